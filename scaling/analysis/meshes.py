"""Meshes: one program on the same number of devices, arranged over points and seeds in several ways."""

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass

from scaling.analysis import certainty
from scaling.analysis.curves import Timing, time_ratio
from scaling.analysis.grouping import group_by
from scaling.analysis.ratios import Estimate
from scaling.core.case import Case


@dataclass(frozen=True)
class MeshComparison:
    """Two or more meshes of the same number of devices on which one program was measured."""

    case: Case  # without its mesh
    environment: str
    honest: bool
    rows: tuple[tuple[Timing, Estimate], ...]  # with the time over that of the fastest, which comes first

    @property
    def distinguished(self) -> bool:
        """Return whether the interval of the ratio of the second to the fastest excludes 1."""
        low = self.rows[1][1].low
        return low is not None and low > 1

    @property
    def doubts(self) -> tuple[str, ...]:
        """Return in words what makes it doubtful that the first mesh is the fastest."""
        return certainty.doubts(self.rows[0][0], self.rows[1][0])


def compare_meshes(timings: Iterable[Timing]) -> list[MeshComparison]:
    """Return a comparison for every program that was measured on several meshes of as many devices."""
    groups = group_by(
        (timing for timing in timings if timing.case.mesh),
        lambda t: (t.environment, t.honest, dataclasses.replace(t.case, mesh=None)),
    )
    comparisons = []
    for (environment, honest, case), group in groups.items():
        first, *others = sorted(group, key=lambda timing: timing.median)
        if others:
            rows = [(first, Estimate(1.0, 1.0, 1.0)), *((t, time_ratio(t, first)) for t in others)]
            comparisons.append(MeshComparison(case, environment, honest, tuple(rows)))
    return comparisons


def mesh_name(case: Case) -> str:
    """Return the devices over points times the devices over seeds, such as '2x4'."""
    return "x".join(map(str, case.axes))


def padding_share(timing: Timing) -> float:
    """Return the fraction of points times seeds that is padding, so that both divide evenly over the
    devices.
    """
    return max((record.padding or 0.0 for record in timing.records), default=0.0)
