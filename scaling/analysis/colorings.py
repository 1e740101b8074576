"""Colorings: sparse derivatives from few seeds: what finding these took, and after how many evaluations that has paid off.

Knows timings; not how a pattern is found, nor how it is coloured.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from scaling.analysis.curves import Timing, problem, ratio_of
from scaling.analysis.stages import pays_after


@dataclass(frozen=True)
class ColoringGain:
    """A timing of few seeds that give a sparse derivative, beside the fastest way with all of them."""

    timing: Timing
    rival: Timing | None  # None where the problem was measured with no identity seeds on as many devices
    ratio: tuple[float, float | None, float | None] | None  # how many times as long the rival takes, with its 95 % interval
    pays: int | None  # the number of evaluations from which on it is faster in all, what came before among it; None: never

    @property
    def seeds(self) -> int | None:
        """How many seeds it takes: a colour each."""
        colors = self.timing.records[0].colors or {}
        return sum(count for count in colors.values() if isinstance(count, int)) or None


def coloring_gains(timings: Iterable[Timing]) -> list[ColoringGain]:
    """Every timing with coloured seeds; what is written by hand needs none."""
    groups: dict[tuple, list[Timing]] = {}
    for timing in timings:
        if timing.case.ad_mode.has_seeds and timing.case.engine == "jax":
            where = (timing.environment, timing.honest, problem(timing.case), timing.case.devices)
            groups.setdefault(where, []).append(timing)
    return [_coloring(timing, group) for group in groups.values() for timing in group if timing.case.seeds != "identity"]


def _coloring(timing: Timing, group: Sequence[Timing]) -> ColoringGain:
    rivals = (each for each in group if each.case.seeds == "identity")
    rival = min(rivals, key=lambda each: each.median, default=None)
    ratio = ratio_of(rival, timing) if rival else None
    return ColoringGain(timing, rival, ratio, pays_after(timing, rival) if rival else None)
