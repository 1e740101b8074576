"""Crossover sizes: the fastest mode for each size and device count, and the sizes at which it changes.

Between the measured sizes, the times are interpolated by straight lines through their logarithms.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from scaling.analysis import certainty
from scaling.analysis.curves import FastestMethod, Timing, family_key, problem_size, time_ratio
from scaling.analysis.grouping import group_by, least_by
from scaling.analysis.methods import Method, base_method
from scaling.analysis.sweeps import find_sweeps, size_values
from scaling.core.case import Case


@dataclass(frozen=True)
class Crossover:
    """A change of the fastest method between two problem sizes.

    Each method is represented by its fastest memory setting. Both methods were measured at both sizes, and
    their times differ significantly at each size.
    """

    devices: int
    before: Method
    after: Method
    below: int  # the closest smaller size at which `before` is known to be faster
    above: int  # the closest larger size at which `after` is known to be faster
    at: float  # size at which log-log interpolated times are equal
    doubts: tuple[str, ...]

    @property
    def sure(self) -> bool:
        """Return whether there is no reason to doubt the crossover."""
        return not self.doubts


@dataclass(frozen=True)
class FastestModeMap:
    """The fastest AD mode of one function for each value of one size and each device count."""

    case: Case  # the case with the largest size on the most devices
    environment: str
    honest: bool
    swept: str  # such as "m", or "points = m" if both vary together
    held: str  # the constant sizes, such as "points=6 o=2"
    sizes: tuple[int, ...]
    devices: tuple[int, ...]
    cells: Mapping[tuple[int, int], FastestMethod]  # (size, device count) -> method; missing if not measured
    crossovers: tuple[Crossover, ...]


def fastest_mode_maps(fastest: Iterable[FastestMethod], timings: Iterable[Timing]) -> list[FastestModeMap]:
    """Return a FastestModeMap for each function and each problem size that has several measured values."""
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
            place = (last.case, last.environment, last.honest, swept.title, held)
            maps.append(FastestModeMap(*place, sizes, devices, cells, crossovers))
    return maps


def _crossovers_of_line(
    line: Sequence[tuple[int, Timing]], by_key: Mapping[tuple, Timing]
) -> list[Crossover]:
    """Return the crossovers on one device count, each between the closest sizes that show it significantly.

    Args:
        line: pairs of size and fastest timing, in ascending order of size.
        by_key: dict from `_timing_key` to the timing with the fastest memory setting.
    """
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
    """Return the significant change of the fastest method between two sizes, or None if there is none."""
    (below, first), (above, last) = smaller, larger
    before, after = base_method(first.case), base_method(last.case)
    slower_first, slower_last = by_key.get(_timing_key(first, after)), by_key.get(_timing_key(last, before))
    if before == after or slower_first is None or slower_last is None:
        return None
    if not (_is_faster(first, slower_first) and _is_faster(last, slower_last)):
        return None
    doubts = dict.fromkeys([*certainty.doubts(first, slower_first), *certainty.doubts(last, slower_last)])
    lead, lag = math.log(slower_first.median / first.median), math.log(slower_last.median / last.median)
    at = below * (above / below) ** (lead / (lead + lag) if lead + lag else 0.5)
    return Crossover(first.case.devices, before, after, below, above, at, tuple(doubts))


def _is_faster(fast: Timing, slow: Timing) -> bool:
    """Return whether `fast` is significantly faster than `slow` and takes longer than an empty call."""
    low = time_ratio(slow, fast).low
    return low is not None and low > 1 and not certainty.is_empty_call(fast)


def _timing_key(timing: Timing, method: Method) -> tuple:
    case = timing.case
    sizes = tuple(sorted(size_values(case).items()))
    return timing.environment, timing.honest, family_key(case), sizes, case.devices, method
