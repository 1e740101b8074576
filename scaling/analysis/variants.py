"""Variants: one program under several values of a field: meshes, memory settings, overlap, kinds of seeds.

Takes timings and returns which variant is fastest, which takes the least memory, and what each costs.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from scaling.analysis import certainty
from scaling.analysis.curves import Timing, pool_processes, problem, time_ratio
from scaling.analysis.grouping import group_by
from scaling.analysis.methods import method_of, without_memory_setting
from scaling.analysis.ratios import Estimate
from scaling.analysis.stages import break_even_calls
from scaling.core import memory
from scaling.core.case import AUTO, Case
from scaling.core.formatting import count_of
from scaling.core.record import Record
from scaling.core.store import latest

OUT_OF_MEMORY_REASONS = ("too_large", "dominated", "out_of_memory")


@dataclass(frozen=True)
class Variants:
    """Timings of one program that differ in one field, two at least, the fastest first."""

    case: Case  # without the field
    environment: str
    honest: bool
    rows: tuple[tuple[Timing, Estimate], ...]  # with the time over that of the fastest

    @property
    def distinguished(self) -> bool:
        """Return whether the interval of the ratio of the second to the fastest excludes 1."""
        low = self.rows[1][1].low
        return low is not None and low > 1

    @property
    def doubts(self) -> tuple[str, ...]:
        """Return in words what makes it doubtful that the first is the fastest."""
        return certainty.doubts(self.rows[0][0], self.rows[1][0])


def compare_variants(timings: Iterable[Timing], *fields: str) -> list[Variants]:
    """Return the variants of every program that was measured with several values of these fields."""
    programs = group_by(timings, lambda t: (t.environment, t.honest, _without(t.case, fields)))
    found = []
    for (environment, honest, case), group in programs.items():
        first, *others = sorted(group, key=lambda timing: timing.median)
        if others:
            rows = [(first, Estimate(1.0, 1.0, 1.0)), *((t, time_ratio(t, first)) for t in others)]
            found.append(Variants(case, environment, honest, tuple(rows)))
    return found


def _without(case: Case, fields: Iterable[str]) -> Case:
    defaults: dict[str, Any] = {name: Case.__dataclass_fields__[name].default for name in fields}
    return replace(case, **defaults)


@dataclass(frozen=True)
class Gain:
    """A timing that sends early or takes colored seeds, compared with one that does not."""

    timing: Timing
    other: Timing | None  # None where that was not measured
    ratio: Estimate | None  # the time of the other over that of the timing

    @property
    def seeds(self) -> int | None:
        """Return the number of seeds: one for each color."""
        colors = self.timing.records[0].colors or {}
        return sum(count for count in colors.values() if isinstance(count, int)) or None

    @property
    def break_even(self) -> int | None:
        """Return the evaluations after which it is faster in total, compiling included; None: never."""
        return break_even_calls(self.timing, self.other) if self.other else None


def overlap_gains(timings: Iterable[Timing]) -> list[Gain]:
    """Return every case that was measured with and without overlapped communication."""
    found = compare_variants(timings, "overlap")
    pairs = [sorted((timing for timing, _ in each.rows), key=lambda t: not t.case.overlap) for each in found]
    return [Gain(timing, without, time_ratio(without, timing)) for timing, without in pairs]


def coloring_gains(timings: Iterable[Timing]) -> list[Gain]:
    """Return every timing with colored seeds and the fastest method with all; none is written by hand."""
    seeded = (t for t in timings if t.case.ad_mode.has_seeds and t.case.engine == "jax")
    groups = group_by(seeded, lambda t: (t.environment, t.honest, problem(t.case), t.case.devices))
    gains = []
    for group in groups.values():
        identity = (each for each in group if each.case.seeds == "identity")
        dense = min(identity, key=lambda each: each.median, default=None)
        colored = [each for each in group if each.case.seeds != "identity"]
        gains += [Gain(each, dense, time_ratio(dense, each) if dense else None) for each in colored]
    return gains


class MemoryPoint(NamedTuple):
    """A timing with the memory of a device and its time."""

    memory: int  # bytes
    seconds: float
    timing: Timing
    best: bool = False  # whether it is on the Pareto front

    @property
    def name(self) -> str:
        """Return the memory setting in words."""
        return memory_setting_name(self.timing.case)


@dataclass(frozen=True)
class ParetoFront:
    """The memory settings under which one program was measured, two at least.

    Memory is that of a device: inputs, result and temporaries, as reported by the compiler.
    """

    case: Case  # without a memory setting
    environment: str
    settings: tuple[MemoryPoint, ...]  # the smallest first
    not_fitting: tuple[Record, ...] = field(default=())  # settings that ran out of memory

    @property
    def best(self) -> tuple[MemoryPoint, ...]:
        """Return the settings on the Pareto front: the smallest first, the fastest last."""
        return tuple(setting for setting in self.settings if setting.best)

    @property
    def fastest(self) -> MemoryPoint:
        """Return the setting with the least time."""
        return self.best[-1]

    @property
    def smallest(self) -> MemoryPoint:
        """Return the setting with the least memory."""
        return self.best[0]

    @property
    def automatic(self) -> tuple[MemoryPoint, ...]:
        """Return the settings whose blocks were chosen automatically (chunk=auto)."""
        return tuple(setting for setting in self.settings if setting.timing.case.chunk == AUTO)

    def smallest_within(self, factor: float) -> MemoryPoint:
        """Return the smallest setting that takes at most this factor times the least time."""
        return next(setting for setting in self.best if setting.seconds <= factor * self.fastest.seconds)


def pareto_fronts(records: Iterable[Record]) -> list[ParetoFront]:
    """Return a front for every program under two memory settings or more, oversubscribed ones left out."""
    newest = latest(records)
    timings = [t for t in pool_processes(newest) if t.honest and not t.case.ad_mode.is_value]
    needed = ((memory.bytes_while_running(vars(t.records[0])), t) for t in timings)
    points = [MemoryPoint(held, t.median, t) for held, t in needed if held]
    short = {(r.setting, r.case): r for r in newest if r.reason in OUT_OF_MEMORY_REASONS}
    not_fitting = group_by(short.values(), lambda r: (r.setting, without_memory_setting(r.case)))
    programs = group_by(points, lambda p: (p.timing.environment, without_memory_setting(p.timing.case)))
    fronts = []
    for (environment, case), group in programs.items():
        best = find_front(group)
        ordered = [p._replace(best=p in best) for p in sorted(group, key=lambda p: p[:2])]
        if len(group) > 1:
            unfit = tuple(not_fitting.get((environment, case), ()))
            fronts.append(ParetoFront(case, environment, tuple(ordered), unfit))
    return fronts


def find_front(points: Iterable[MemoryPoint]) -> list[MemoryPoint]:
    """Return the points that no other beats in both memory and time, the smallest first."""
    front: list[MemoryPoint] = []
    for point in sorted(points, key=lambda point: point[:2]):
        if not front or point.seconds < front[-1].seconds:
            front.append(point)
    return front


def memory_of(timing: Timing) -> int | None:
    """Return the bytes of one device: the measured peak, else what the program needs; None: not known."""
    record = timing.records[0]
    return record.peak_bytes or memory.bytes_while_running(vars(record)) or None


def memory_setting_name(case: Case) -> str:
    """Return the memory setting of a case in words, or 'all at once'."""
    return method_of(case).memory_setting or "all at once"


def automatic_blocks(record: Record) -> str:
    """Return the blocks that chunk=auto has chosen, in words, or '' for other records."""
    blocks: Any = record.blocks
    if not isinstance(blocks, Mapping):
        return ""
    counts = ((blocks.get("chunk"), "seed"), (blocks.get("block"), "point"))
    words = [count_of(count, noun) if isinstance(count, int) else f"all {noun}s" for count, noun in counts]
    on_host = ", kept on the host" if blocks.get("storage") == "host" else ""
    return f"{' and '.join(words)} at a time{on_host}"


def mesh_name(case: Case) -> str:
    """Return the devices over points times the devices over seeds, such as '2x4'."""
    return "x".join(map(str, case.axes))


def padding_share(timing: Timing) -> float:
    """Return the fraction of points times seeds that is padding, so that both divide evenly."""
    return max((record.padding or 0.0 for record in timing.records), default=0.0)
