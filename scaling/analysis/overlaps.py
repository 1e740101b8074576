"""Overlaps: what it buys to send each part of a gradient as soon as it is there, instead of all of it at the end.

Knows timings; not whether anything was really sent at the same time.
"""

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass

from scaling.analysis.curves import Timing, ratio_of


@dataclass(frozen=True)
class Overlap:
    """A timing that overlaps, beside the same that does not."""

    timing: Timing
    without: Timing
    ratio: tuple[float, float | None, float | None]  # how many times as long it takes as without, with its 95 % interval


def overlaps(timings: Iterable[Timing]) -> list[Overlap]:
    """Every timing that was measured both ways in one environment."""
    of = {(timing.environment, timing.honest, timing.case): timing for timing in timings}
    made = []
    for (environment, honest, case), timing in of.items():
        without = of.get((environment, honest, dataclasses.replace(case, overlap=False)))
        if case.overlap and without:
            made.append(Overlap(timing, without, ratio_of(timing, without)))
    return made
