"""Colorings: what sparse derivatives with few seeds gain over dense ones, and when that pays for the
coloring.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from scaling.analysis.curves import Timing, problem, time_ratio
from scaling.analysis.grouping import group_by
from scaling.analysis.ratios import Estimate
from scaling.analysis.stages import break_even_calls


@dataclass(frozen=True)
class ColoringGain:
    """A timing with colored seeds, compared with the fastest method with all seeds."""

    timing: Timing
    dense: Timing | None  # None where the problem was not measured with identity seeds on as many devices
    ratio: Estimate | None  # time of the dense method over time with colored seeds
    break_even: int | None  # evaluations after which it is faster in total, compiling included; None: never

    @property
    def seeds(self) -> int | None:
        """Return the number of seeds: one for each color."""
        colors = self.timing.records[0].colors or {}
        return sum(count for count in colors.values() if isinstance(count, int)) or None


def coloring_gains(timings: Iterable[Timing]) -> list[ColoringGain]:
    """Return the gain of every timing with colored seeds; derivatives written by hand are left out."""
    seeded = (t for t in timings if t.case.ad_mode.has_seeds and t.case.engine == "jax")
    groups = group_by(seeded, lambda t: (t.environment, t.honest, problem(t.case), t.case.devices)).values()
    return [_gain(timing, group) for group in groups for timing in group if timing.case.seeds != "identity"]


def _gain(timing: Timing, group: Sequence[Timing]) -> ColoringGain:
    identity = (each for each in group if each.case.seeds == "identity")
    dense = min(identity, key=lambda each: each.median, default=None)
    if dense is None:
        return ColoringGain(timing, None, None, None)
    return ColoringGain(timing, dense, time_ratio(dense, timing), break_even_calls(timing, dense))
