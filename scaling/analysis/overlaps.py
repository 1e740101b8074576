"""Overlaps: the gain from reducing each part of a gradient as soon as it is ready, instead of all at the
end.
"""

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass

from scaling.analysis.curves import Timing, time_ratio
from scaling.analysis.ratios import Estimate


@dataclass(frozen=True)
class Overlap:
    """A timing with overlapped communication, compared with the same case without."""

    timing: Timing
    without: Timing
    ratio: Estimate  # time with overlap over time without


def find_overlaps(timings: Iterable[Timing]) -> list[Overlap]:
    """Return every case that was measured with and without overlap in one environment."""
    by_case = {(timing.environment, timing.honest, timing.case): timing for timing in timings}
    overlaps = []
    for (environment, honest, case), timing in by_case.items():
        without = by_case.get((environment, honest, dataclasses.replace(case, overlap=False)))
        if case.overlap and without:
            overlaps.append(Overlap(timing, without, time_ratio(timing, without)))
    return overlaps
