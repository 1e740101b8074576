"""Pareto fronts: one program under several memory settings, compared by the memory of a device and by time.

A memory setting changes neither the result nor the mode (see methods.MEMORY_FIELDS).
"""

from collections.abc import Iterable
from dataclasses import dataclass

from scaling.analysis.curves import Timing, pool_processes
from scaling.analysis.footprint import MemoryPoint, find_front
from scaling.analysis.grouping import group_by
from scaling.analysis.methods import method_of, without_memory_setting
from scaling.core import memory
from scaling.core.case import AUTO, Case
from scaling.core.formatting import count_of
from scaling.core.record import Record
from scaling.core.store import latest

OUT_OF_MEMORY_REASONS = ("too_large", "dominated", "out_of_memory")


@dataclass(frozen=True)
class MethodTime:
    """A program under one memory setting."""

    timing: Timing
    memory: int  # bytes of a device: inputs, result and temporaries, as reported by the compiler
    best: bool  # whether it is on the Pareto front

    @property
    def name(self) -> str:
        """Return the memory setting in words."""
        return memory_setting_name(self.timing.case)


@dataclass(frozen=True)
class ParetoFront:
    """The memory settings under which one program was measured, two at least."""

    case: Case  # without a memory setting
    environment: str
    settings: tuple[MethodTime, ...]  # the smallest first
    not_fitting: tuple[Record, ...]  # settings that ran out of memory

    @property
    def best(self) -> tuple[MethodTime, ...]:
        """Return the settings on the Pareto front: the smallest first, the fastest last."""
        return tuple(setting for setting in self.settings if setting.best)

    @property
    def fastest(self) -> MethodTime:
        """Return the setting with the least time."""
        return self.best[-1]

    @property
    def smallest(self) -> MethodTime:
        """Return the setting with the least memory."""
        return self.best[0]

    @property
    def automatic(self) -> tuple[MethodTime, ...]:
        """Return the settings whose blocks were chosen automatically (chunk=auto)."""
        return tuple(setting for setting in self.settings if setting.timing.case.chunk == AUTO)

    def smallest_within(self, factor: float) -> MethodTime:
        """Return the smallest setting that takes at most this factor times the least time."""
        return next(
            setting for setting in self.best if setting.timing.median <= factor * self.fastest.timing.median
        )


def pareto_fronts(records: Iterable[Record]) -> list[ParetoFront]:
    """Return a front for every program that was measured under two memory settings or more.

    Records of oversubscribed devices are left out.
    """
    newest = latest(records)
    points = [
        MemoryPoint(needed, timing.median, timing)
        for timing in pool_processes(newest)
        if timing.honest
        and not timing.case.ad_mode.is_value
        and (needed := memory.bytes_while_running(vars(timing.records[0])))
    ]
    programs = group_by(points, lambda point: _program(point.timing.environment, point.timing.case))
    replicates = group_by(
        (record for record in newest if record.reason in OUT_OF_MEMORY_REASONS),
        lambda record: (*_program(record.setting, record.case), record.key),
    )
    not_fitting = group_by((r[0] for r in replicates.values()), lambda r: _program(r.setting, r.case))
    return [
        _front(*program, group, tuple(not_fitting.get(program, ())))
        for program, group in programs.items()
        if len(group) > 1
    ]


def _program(environment: str, case: Case) -> tuple[str, Case]:
    """Return what the settings of one program have in common."""
    return environment, without_memory_setting(case)


def _front(
    environment: str, case: Case, points: Iterable[MemoryPoint], not_fitting: tuple[Record, ...]
) -> ParetoFront:
    ordered = sorted(points, key=lambda point: point[:2])
    best = {id(point) for point in find_front(ordered)}
    settings = tuple(MethodTime(point.timing, point.memory, id(point) in best) for point in ordered)
    return ParetoFront(case, environment, settings, not_fitting)


def memory_setting_name(case: Case) -> str:
    """Return the memory setting of a case in words, or 'all at once'."""
    return method_of(case).memory_setting or "all at once"


def automatic_blocks(record: Record) -> str:
    """Return the blocks that chunk=auto has chosen, in words, or '' for other records."""
    blocks = record.blocks
    if not isinstance(blocks, dict):
        return ""
    counts = ((blocks.get("chunk"), "seed"), (blocks.get("block"), "point"))
    words = [count_of(count, noun) if isinstance(count, int) else f"all {noun}s" for count, noun in counts]
    return f"{' and '.join(words)} at a time" + (
        ", kept on the host" if blocks.get("storage") == "host" else ""
    )
