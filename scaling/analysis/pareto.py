"""Fronts: what memory buys: one program under several settings, by the bytes of a device and by time, and what nothing beats.

A setting is how many seeds and points are taken at a time, within which memory, kept where, and what reverse mode keeps on its
way (ways.SETTINGS): it changes neither the result nor the way to it. Knows records; not how a front is told or drawn.
"""

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass

from scaling.analysis.curves import Timing, pooled
from scaling.analysis.footprint import MemoryPoint, front
from scaling.analysis.methods import AT_ONCE, method_of
from scaling.core import memory
from scaling.core.case import AUTO, Case
from scaling.core.formatting import count_of
from scaling.core.record import Record
from scaling.core.store import latest

TOO_MUCH = ("too_large", "dominated", "out_of_memory")  # reasons for which a setting has no time


@dataclass(frozen=True)
class MethodTime:
    """A program under one setting."""

    timing: Timing
    memory: int  # bytes of a device: inputs, result and temporaries, as its compiler tells them
    best: bool  # whether no other setting takes less of one of memory and time without taking more of the other

    @property
    def name(self) -> str:
        """In words."""
        return method_time_name(self.timing.case)


@dataclass(frozen=True)
class ParetoFront:
    """Every setting under which one program was measured, two at least."""

    case: Case  # with no setting at all
    environment: str
    settings: tuple[MethodTime, ...]  # the smallest first
    unfit: tuple[Record, ...]  # settings for which memory was too small

    @property
    def best(self) -> tuple[MethodTime, ...]:
        """Those that nothing beats, the smallest first and the fastest last."""
        return tuple(setting for setting in self.settings if setting.best)

    @property
    def fastest(self) -> MethodTime:
        """The one with the least time."""
        return self.best[-1]

    @property
    def smallest(self) -> MethodTime:
        """The one with the least memory."""
        return self.best[0]

    @property
    def chosen(self) -> tuple[MethodTime, ...]:
        """Those that found their blocks themselves."""
        return tuple(setting for setting in self.settings if setting.timing.case.chunk == AUTO)

    def within(self, times: float) -> MethodTime:
        """The smallest that takes no more than so many times the least time."""
        return next(setting for setting in self.best if setting.timing.median <= times * self.fastest.timing.median)


def pareto_fronts(records: Iterable[Record]) -> list[ParetoFront]:
    """A front for every program that was measured under two settings or more; what had no core for each device is left out."""
    several = latest(records)
    families: dict[tuple[str, Case], list[MemoryPoint]] = {}
    for timing in pooled(several):
        if timing.honest and not timing.case.ad_mode.is_value and (bytes_of := _asked(timing.records[0])):
            families.setdefault(_family(timing.environment, timing.case), []).append(MemoryPoint(bytes_of, timing.median, timing))
    unfit: dict[tuple[str, Case], dict[str, Record]] = {}
    for record in several:
        if record.reason in TOO_MUCH:
            unfit.setdefault(_family(record.setting, record.case), {}).setdefault(record.key, record)
    return [_front(of, some, tuple(unfit.get(of, {}).values())) for of, some in families.items() if len(some) > 1]


def _front(of: tuple[str, Case], places: Iterable[MemoryPoint], unfit: tuple[Record, ...]) -> ParetoFront:
    ordered = sorted(places, key=lambda place: place[:2])
    best = {id(place) for place in front(ordered)}
    return ParetoFront(of[1], of[0], tuple(MethodTime(place.timing, place.memory, id(place) in best) for place in ordered), unfit)


def _family(environment: str, case: Case) -> tuple[str, Case]:
    return environment, dataclasses.replace(case, **AT_ONCE)


def _asked(record: Record) -> int | None:
    """What a program asks of a device: known of each, where a peak is seen of none that a neighbour had passed before."""
    return memory.taken(vars(record))


def method_time_name(case: Case) -> str:
    """A setting in words; of what takes all at once, just that."""
    return method_of(case).setting or "all at once"


def chosen(record: Record) -> str:
    """What chunk=auto came to, in words; nothing of other records."""
    blocks = record.blocks
    if not isinstance(blocks, dict):
        return ""
    each = ((blocks.get("chunk"), "seed"), (blocks.get("block"), "point"))
    words = [count_of(count, noun) if isinstance(count, int) else f"all {noun}s" for count, noun in each]
    return f"{' and '.join(words)} at a time" + (", kept on the host" if blocks.get("storage") == "host" else "")
