"""Comparison of settings of one program: mesh, overlap, coloring (Gain), memory and time (ParetoFront)."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import NamedTuple

from scaling.analysis.cases import group_by, method_of, without_memory_setting
from scaling.analysis.estimate import Estimate
from scaling.analysis.timings import Timing, break_even_calls, reasons_for_doubt, time_ratio
from scaling.core import memory
from scaling.core.case import Case, defaults, problem
from scaling.core.record import Record

OUT_OF_MEMORY_REASONS = ("too_large", "dominated", "out_of_memory")


@dataclass(frozen=True)
class SettingComparison:
    """A comparison of the times of two or more cases that differ only in given fields, such as "mesh"."""

    case: Case  # the case without the compared fields
    environment: str
    honest: bool  # whether each CPU device had its own core
    rows: tuple[tuple[Timing, Estimate], ...]  # (timing, its time / the shortest time), fastest first

    @property
    def distinguished(self) -> bool:
        """Return whether the second fastest setting is significantly slower than the fastest."""
        return self.rows[1][1].above_one

    @property
    def doubts(self) -> tuple[str, ...]:
        """Return reasons why the first setting may not be the fastest, such as 'measured in one process'."""
        return reasons_for_doubt(self.rows[0][0], self.rows[1][0])


def compare_settings(timings: Iterable[Timing], *fields: str) -> list[SettingComparison]:
    """Return a comparison for each program that was measured with several values of the given fields.

    `fields` are names of fields of `Case`, such as "mesh".
    """
    programs = group_by(timings, lambda t: (t.environment, t.honest, replace(t.case, **defaults(fields))))
    comparisons = []
    for (environment, honest, case), group in programs.items():
        first, *others = sorted(group, key=lambda timing: timing.median)
        if others:
            rows = tuple((timing, time_ratio(timing, first)) for timing in (first, *others))
            comparisons.append(SettingComparison(case, environment, honest, rows))
    return comparisons


class Gain(NamedTuple):
    """A timing with colored seeds, compared with the fastest one without."""

    timing: Timing
    other: Timing | None  # None if it was not measured
    ratio: Estimate | None  # time of `other` divided by the time of `timing`
    seeds: int | None  # the number of seeds after coloring; None if it is unknown
    break_even: int | None  # see `break_even_calls`


def coloring_gains(timings: Iterable[Timing]) -> list[Gain]:
    """Return the gain of each timing with colored seeds over the fastest JAX method without coloring.

    Handwritten derivatives are excluded.
    """
    seeded = (t for t in timings if t.case.ad_mode.has_seeds and t.case.engine == "jax")
    groups = group_by(seeded, lambda t: (t.environment, t.honest, problem(t.case), t.case.devices))
    gains = []
    for group in groups.values():
        identity = (each for each in group if each.case.seeds == "identity")
        dense = min(identity, key=lambda each: each.median, default=None)
        for timing in (each for each in group if each.case.seeds != "identity"):
            counts = (timing.records[0].colors or {}).values()
            seeds = sum(count for count in counts if isinstance(count, int)) or None
            ratio = time_ratio(dense, timing) if dense else None
            break_even = break_even_calls(timing, dense) if dense else None
            gains.append(Gain(timing, dense, ratio, seeds, break_even))
    return gains


class MemoryPoint(NamedTuple):
    """One memory setting of a program, with the memory of one device and the time of a call."""

    memory: int  # bytes
    seconds: float
    timing: Timing

    @property
    def name(self) -> str:
        """Return the memory setting as text, such as '4 seeds at a time' or 'all at once'."""
        return method_of(self.timing.case).memory_setting or "all at once"


class ParetoFront(NamedTuple):
    """The memory and the time of one program for each of at least two memory settings.

    Memory is that of one device: inputs, result and temporaries, as reported by the compiler.
    """

    settings: list[MemoryPoint]
    best: list[MemoryPoint]  # the Pareto front in ascending order of memory: smallest first, fastest last
    not_fitting: list[Record]  # settings that ran out of memory


def pareto_fronts(timings: Iterable[Timing], records: Iterable[Record]) -> list[ParetoFront]:
    """Return a Pareto front for each program that was measured with two memory settings or more.

    `records` are the newest records of all cases, including cases that ran out of memory.
    """
    honest = (t for t in timings if t.honest and not t.case.ad_mode.is_value)
    needed = ((memory.bytes_while_running(vars(t.records[0])), t) for t in honest)
    points = [MemoryPoint(held, t.median, t) for held, t in needed if held]
    short = {(r.setting, r.case): r for r in records if r.reason in OUT_OF_MEMORY_REASONS}
    not_fitting = group_by(short.values(), lambda r: (r.setting, without_memory_setting(r.case)))
    programs = group_by(points, lambda p: (p.timing.environment, without_memory_setting(p.timing.case)))
    return [
        ParetoFront(group, find_front(group), not_fitting.get(program, []))
        for program, group in programs.items()
        if len(group) > 1
    ]


def find_front(points: Iterable[MemoryPoint]) -> list[MemoryPoint]:
    """Return the Pareto-optimal settings in time and memory, in ascending order of memory."""
    front: list[MemoryPoint] = []
    for point in sorted(points, key=lambda point: point[:2]):
        if not front or point.seconds < front[-1].seconds:
            front.append(point)
    return front


def mesh_name(case: Case) -> str:
    """Return the mesh of a case, such as '2x4' for 2 devices along the points and 4 along the seeds."""
    return "x".join(map(str, case.axes))
