"""Fastest JAX method of each problem (FastestMethod), and the sizes at which it changes (Crossover).

Between the measured sizes, the logarithm of the time is interpolated linearly in the logarithm of the size.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from scaling.analysis.cases import (
    Method,
    base_method,
    competes,
    family_key,
    find_sweeps,
    group_by,
    least_by,
    method_of,
    problem_size,
    size_values,
)
from scaling.analysis.estimate import Estimate, is_ratio_determined
from scaling.analysis.timings import Timing, is_empty_call, reasons_for_doubt, time_ratio
from scaling.core.case import Case, problem


@dataclass(frozen=True)
class FastestMethod:
    """The fastest JAX method for one problem on one device count, compared with the runner-up."""

    first: Timing
    second: Timing | None  # runner-up: another method, or else another memory setting
    ratio: Estimate | None  # time of `second` divided by the time of `first`
    by_hand: float | None  # time of `first` divided by that of the handwritten derivative
    others: tuple[Timing, ...] = ()  # timings of the same problem that are excluded by `competes`

    @property
    def empty(self) -> bool:
        """Return whether the fastest time cannot be distinguished from that of an empty call."""
        return is_empty_call(self.first)

    @property
    def distinguished(self) -> bool:
        """Return whether the runner-up is significantly slower than `first`.

        The result is false if the time of `first` cannot be distinguished from that of an empty call.
        """
        return self.ratio is not None and self.ratio.above_one and not self.empty

    @property
    def doubts(self) -> tuple[str, ...]:
        """Return the reasons why `first` may not be the fastest method, such as 'measured in one process'."""
        if self.second is None or self.ratio is None:
            return ()
        wide = () if is_ratio_determined(*self.ratio[1:]) else ("the ratio is not determined",)
        return (*reasons_for_doubt(self.first, self.second), *wide)

    @property
    def sure(self) -> bool:
        """Return whether `first` is significantly faster than the runner-up and `doubts` is empty."""
        return self.distinguished and not self.doubts

    @property
    def certainty(self) -> str:
        """Return text for a table cell on how certain `first` is, such as 'sure' or 'not distinguished'."""
        if self.second is None or self.empty:
            return "an empty call" if self.empty else "no other method"
        if not self.distinguished:
            return "not distinguished"
        return "sure" if self.sure else f"not sure: {', '.join(self.doubts)}"


def fastest_methods(timings: Iterable[Timing]) -> list[FastestMethod]:
    """Return the fastest JAX method for each problem, device count and environment, with its runner-up."""
    derivatives = (timing for timing in timings if not timing.case.ad_mode.is_value)
    groups = group_by(
        derivatives, lambda t: (t.environment, t.honest, problem(t.case), t.case.devices)
    ).values()
    return [_find_fastest(rivals, g) for g in groups if (rivals := [t for t in g if competes(t.case)])]


def _find_fastest(rivals: Sequence[Timing], group: Sequence[Timing]) -> FastestMethod:
    first = min(rivals, key=lambda t: t.median)
    other_modes = [t for t in rivals if base_method(t.case) != base_method(first.case)]
    others = other_modes or [t for t in rivals if method_of(t.case) != method_of(first.case)]
    second = min(others, key=lambda t: t.median, default=None)
    ratio = time_ratio(second, first) if second else None
    by_hand = compare_with_handwritten(first, group)
    excluded = tuple(t for t in group if not competes(t.case))
    return FastestMethod(first, second, ratio, by_hand.value if by_hand else None, excluded)


def compare_with_handwritten(timing: Timing, group: Iterable[Timing]) -> Estimate | None:
    """Return a time divided by that of the fastest handwritten derivative, or None if there is none.

    With colored seeds the result contains only the nonzeros, so that only equal `seeds` are comparable.

    Args:
        group: the timings of the same problem on as many devices.
    """
    written = (t for t in group if t.case.engine == "jax" and t.case.ad_mode.closed_form)
    comparable = (t for t in written if t.case.seeds == timing.case.seeds)
    fastest = min(comparable, key=lambda t: t.median, default=None)
    return time_ratio(timing, fastest) if fastest and not timing.case.ad_mode.is_value else None


@dataclass(frozen=True)
class Crossover:
    """A change of the fastest method between two problem sizes.

    Each method is represented by its fastest memory setting. Both methods were measured at both sizes, and
    their times differ significantly at each size.
    """

    devices: int
    before: Method  # the fastest method at smaller sizes
    after: Method  # the fastest method at larger sizes
    below: int  # the closest smaller size at which `before` is known to be faster
    above: int  # the closest larger size at which `after` is known to be faster
    at: float  # size at which the interpolated times are equal
    doubts: tuple[str, ...]  # reasons why the crossover may not be real


@dataclass(frozen=True)
class FastestModeMap:
    """The fastest AD mode of one function for each value of one size and each device count."""

    case: Case  # the case with the largest size on the most devices
    environment: str
    honest: bool  # whether each CPU device had its own core
    swept: str  # such as "m", or "points = m" if both vary together
    held: str  # the constant sizes, such as "points=6 o=2"
    sizes: tuple[int, ...]
    devices: tuple[int, ...]
    cells: Mapping[tuple[int, int], FastestMethod]  # (size, device count) -> method; missing if not measured
    crossovers: tuple[Crossover, ...]


def fastest_mode_maps(fastest: Iterable[FastestMethod], timings: Iterable[Timing]) -> list[FastestModeMap]:
    """Return a FastestModeMap for each function, environment and sweep over a problem size."""
    by_key = least_by(timings, lambda t: _timing_key(t, base_method(t.case)), lambda t: t.median)
    families = group_by(
        fastest, lambda row: (row.first.environment, row.first.honest, *family_key(row.first.case))
    )
    maps = []
    for family in families.values():
        for swept, held, rows in find_sweeps(family, lambda row: row.first.case):
            cells = {(size_values(row.first.case)[swept.name], row.first.case.devices): row for row in rows}
            sizes, devices = (tuple(sorted(set(axis))) for axis in zip(*cells, strict=True))
            last = max((row.first for row in rows), key=lambda t: (problem_size(t.case), t.case.devices))
            lines = ([(n, cells[n, count].first) for n in sizes if (n, count) in cells] for count in devices)
            crossovers = tuple(crossover for line in lines for crossover in _crossovers_of_line(line, by_key))
            origin = (last.case, last.environment, last.honest)
            maps.append(FastestModeMap(*origin, swept.title, held, sizes, devices, cells, crossovers))
    return maps


def _crossovers_of_line(
    line: Sequence[tuple[int, Timing]], by_key: Mapping[tuple, Timing]
) -> list[Crossover]:
    crossovers: list[Crossover] = []
    start = 0
    for index, last in enumerate(line):
        tried = (_crossover_between(first, last, by_key) for first in reversed(line[start:index]))
        if crossover := next(filter(None, tried), None):
            crossovers.append(crossover)
            start = index
    return crossovers


def _crossover_between(
    smaller: tuple[int, Timing], larger: tuple[int, Timing], by_key: Mapping[tuple, Timing]
) -> Crossover | None:
    (below, first), (above, last) = smaller, larger
    before, after = base_method(first.case), base_method(last.case)
    slower_first, slower_last = by_key.get(_timing_key(first, after)), by_key.get(_timing_key(last, before))
    if before == after or slower_first is None or slower_last is None:
        return None
    if not (_is_faster(first, slower_first) and _is_faster(last, slower_last)):
        return None
    doubts = dict.fromkeys([*reasons_for_doubt(first, slower_first), *reasons_for_doubt(last, slower_last)])
    lead, lag = math.log(slower_first.median / first.median), math.log(slower_last.median / last.median)
    at = below * (above / below) ** (lead / (lead + lag) if lead + lag else 0.5)
    return Crossover(first.case.devices, before, after, below, above, at, tuple(doubts))


def _is_faster(fast: Timing, slow: Timing) -> bool:
    return time_ratio(slow, fast).above_one and not is_empty_call(fast)


def _timing_key(timing: Timing, method: Method) -> tuple:
    return timing.environment, timing.honest, problem(timing.case), timing.case.devices, method
