"""Meshes: one program on as many devices, laid out over points and seeds in several ways: which of them is fastest.

Knows timings; not how it is told or drawn.
"""

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass

from scaling.analysis import certainty
from scaling.analysis.curves import Timing, ratio_of
from scaling.core.case import Case

Ratio = tuple[float, float | None, float | None]  # with its 95 % interval


@dataclass(frozen=True)
class Meshes:
    """Every mesh of so many devices on which one program was measured, two at least."""

    case: Case  # without its mesh
    environment: str
    honest: bool
    rows: tuple[tuple[Timing, Ratio], ...]  # each with how many times as long it takes as the fastest, which comes first

    @property
    def distinguished(self) -> bool:
        """Return whether the interval of the ratio of the next to the fastest excludes 1."""
        low = self.rows[1][1][1]
        return low is not None and low > 1

    @property
    def doubts(self) -> tuple[str, ...]:
        """Return what speaks against calling the first surely the fastest, in words."""
        return certainty.doubts(self.rows[0][0], self.rows[1][0])


def meshes(timings: Iterable[Timing]) -> list[Meshes]:
    """Every program that was measured on several meshes of as many devices."""
    groups: dict[tuple[str, bool, Case], list[Timing]] = {}
    for timing in timings:
        if timing.case.mesh:
            of = (timing.environment, timing.honest, dataclasses.replace(timing.case, mesh=None))
            groups.setdefault(of, []).append(timing)
    made = []
    for (environment, honest, case), group in groups.items():
        first, *others = sorted(group, key=lambda timing: timing.median)
        if others:
            rows = [(first, (1.0, 1.0, 1.0)), *((timing, ratio_of(timing, first)) for timing in others)]
            made.append(Meshes(case, environment, honest, tuple(rows)))
    return made


def shape(case: Case) -> str:
    """Over how many devices the points are cut, and over how many the seeds: 2x4."""
    return "x".join(map(str, case.axes))


def padding(timing: Timing) -> float:
    """The share of points times seeds that is computed in vain, so that both share out over the devices."""
    return max((record.padding or 0.0 for record in timing.records), default=0.0)
