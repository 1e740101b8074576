"""Compare settings of one program: mesh, overlap, coloring (`ColoringGain`), memory (`ParetoFront`)."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import NamedTuple

from scaling.analysis.cases import group_by, without_memory_setting
from scaling.analysis.estimate import Estimate
from scaling.analysis.fastest import Ranking, find_runner_up
from scaling.analysis.timings import Timing, break_even_calls, least_time, time_ratio
from scaling.core import record
from scaling.core.case import defaults
from scaling.core.formatting import count_of
from scaling.core.record import Record

OUT_OF_MEMORY_REASONS = ("too_large", "dominated", "out_of_memory")


@dataclass(frozen=True)
class SettingComparison(Ranking):
    """A comparison of cases that differ in only one field. In `case`, this field has its default value."""

    timings: tuple[Timing, ...]  # at least two: `first`, then the others in ascending order of time


def compare_settings(timings: Iterable[Timing], field: str) -> list[SettingComparison]:
    """Return a comparison for each program measured with several values of `field`, a field of `Case`."""
    programs = group_by(timings, lambda t: (replace(t.case, **defaults([field])), t.environment, t.honest))
    comparisons = []
    for subject, group in programs.items():
        first, *others = sorted(group, key=lambda timing: timing.median)
        second, ratio = find_runner_up(first, others)
        if second:
            comparisons.append(SettingComparison(*subject, first, second, ratio, (first, *others)))
    return comparisons


class ColoringGain(NamedTuple):
    """The time of a derivative with colored seeds, compared with the shortest time without coloring."""

    timing: Timing
    uncolored: Timing | None  # the fastest timing without coloring; None if it was not measured
    ratio: Estimate | None  # time of `uncolored` divided by the time of `timing`
    seeds: int | None  # the number of seeds after coloring; None if it is unknown
    break_even: int | None  # calls until coloring takes less time in total; see `break_even_calls`

    @property
    def pays_after(self) -> str:
        """Return when coloring pays: '3 evaluations', 'never' or 'not distinguished', or '' if unknown."""
        if self.ratio is None or self.ratio.above_one:
            return count_of(self.break_even, "evaluation") if self.break_even else ""
        return "never" if (self.ratio.high or 1) < 1 else "not distinguished"


def coloring_gains(timings: Iterable[Timing]) -> list[ColoringGain]:
    """Return a `ColoringGain` for each JAX timing with colored seeds."""
    seeded = (t for t in timings if t.case.ad_mode.has_seeds and t.case.engine == "jax")
    groups = group_by(seeded, lambda t: t.comparison_key)
    gains = []
    for group in groups.values():
        uncolored = least_time(each for each in group if each.case.seeds == "identity")
        for timing in (each for each in group if each.case.seeds != "identity"):
            seeds = sum(count or 0 for count in (timing.record.colors or {}).values()) or None
            ratio = time_ratio(uncolored, timing) if uncolored else None
            break_even = break_even_calls(timing, uncolored) if uncolored else None
            gains.append(ColoringGain(timing, uncolored, ratio, seeds, break_even))
    return gains


class MemoryPoint(NamedTuple):
    """The memory per device and the time per call of a program with one memory setting."""

    memory: int  # bytes
    seconds: float
    timing: Timing

    @property
    def name(self) -> str:
        """Return the memory setting as text, such as '4 seeds at a time' or 'all at once'."""
        return self.timing.method.memory_setting or "all at once"


class ParetoFront(NamedTuple):
    """The memory per device and the time per call of one program under at least two memory settings."""

    settings: list[MemoryPoint]
    best: list[MemoryPoint]  # the Pareto front in ascending order of memory: smallest first, fastest last
    not_fitting: list[Record]  # the records of settings that ran out of memory


def pareto_fronts(timings: Iterable[Timing], records: Iterable[Record]) -> list[ParetoFront]:
    """Return a `ParetoFront` for each program that was measured with at least two memory settings.

    Timings of function values, timings with devices that shared CPU cores, and timings with unknown memory
    are omitted. `records` shows which settings ran out of memory.
    """
    derivatives = (t for t in timings if t.honest and not t.case.ad_mode.is_value)
    sizes = ((record.bytes_while_running(vars(t.record)), t) for t in derivatives)
    points = [MemoryPoint(size, t.median, t) for size, t in sizes if size]
    too_large = {(r.setting, r.case): r for r in records if r.reason in OUT_OF_MEMORY_REASONS}
    not_fitting = group_by(too_large.values(), lambda r: (r.setting, without_memory_setting(r.case)))
    programs = group_by(points, lambda p: (p.timing.environment, without_memory_setting(p.timing.case)))
    return [
        ParetoFront(group, find_pareto_front(group), not_fitting.get(program, []))
        for program, group in programs.items()
        if len(group) > 1
    ]


def find_pareto_front(points: Iterable[MemoryPoint]) -> list[MemoryPoint]:
    """Return the points that are Pareto-optimal in memory and time, in ascending order of memory."""
    front: list[MemoryPoint] = []
    for point in sorted(points, key=lambda point: point[:2]):
        if not front or point.seconds < front[-1].seconds:
            front.append(point)
    return front
