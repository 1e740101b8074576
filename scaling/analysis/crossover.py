"""Crossover: the fastest mode for each size and number of devices, and where along the sizes it changes.

Each cell of a map compares modes on one problem. Between the measured sizes nothing is claimed, except where
straight lines through the neighbouring times would cross.
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
    """A change of the fastest method between two sizes, whatever the memory setting.

    Both methods were measured at both sizes and are distinguished there.
    """

    devices: int
    before: Method
    after: Method
    below: int  # the last size at which `before` is known to be fastest
    above: int  # the first size at which `after` is known to be fastest
    at: float  # where straight lines through both methods' times cross on logarithmic axes
    doubts: tuple[str, ...]  # what makes it doubtful, in words

    @property
    def sure(self) -> bool:
        """Return whether there is no doubt."""
        return not self.doubts


@dataclass(frozen=True)
class FastestModeMap:
    """The fastest mode of one family for each size and number of devices, the other sizes held constant."""

    case: Case  # that of the largest size on the most devices
    environment: str
    honest: bool
    swept: str  # such as "m", or "points = m" where both vary together
    held: str  # the other sizes, such as "points=6 o=2"
    sizes: tuple[int, ...]
    devices: tuple[int, ...]
    cells: Mapping[tuple[int, int], FastestMethod]  # by (size, devices); no cell for what was not measured
    crossovers: tuple[Crossover, ...]


def fastest_mode_maps(fastest: Iterable[FastestMethod], timings: Iterable[Timing]) -> list[FastestModeMap]:
    """Return a map for each family that was measured at two sizes or more, in each environment."""
    by_place = least_by(timings, lambda t: _place(t, base_method(t.case)), lambda t: t.median)
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
            found = tuple(each for line in lines for each in _crossovers_of_line(line, by_place))
            place = (last.case, last.environment, last.honest, swept.title, held)
            maps.append(FastestModeMap(*place, sizes, devices, cells, found))
    return maps


def _crossovers_of_line(
    line: Sequence[tuple[int, Timing]], by_place: Mapping[tuple, Timing]
) -> list[Crossover]:
    """Return the changes of the fastest method, each between the nearest sizes that show it."""
    crossovers: list[Crossover] = []
    start = 0
    for index, last in enumerate(line):
        tried = (_crossover_between(first, last, by_place) for first in reversed(line[start:index]))
        if crossover := next(filter(None, tried), None):
            crossovers.append(crossover)
            start = index
    return crossovers


def _crossover_between(
    one: tuple[int, Timing], other: tuple[int, Timing], by_place: Mapping[tuple, Timing]
) -> Crossover | None:
    """Return the change between the fastest of two sizes.

    None unless both methods were measured at both sizes and are distinguished there.
    """
    (below, first), (above, last) = one, other
    before, after = base_method(first.case), base_method(last.case)
    slower_first, slower_last = by_place.get(_place(first, after)), by_place.get(_place(last, before))
    if before == after or slower_first is None or slower_last is None:
        return None
    if not (_is_faster(first, slower_first) and _is_faster(last, slower_last)):
        return None
    doubts = dict.fromkeys([*certainty.doubts(first, slower_first), *certainty.doubts(last, slower_last)])
    lead, lag = math.log(slower_first.median / first.median), math.log(slower_last.median / last.median)
    at = below * (above / below) ** (lead / (lead + lag) if lead + lag else 0.5)
    return Crossover(first.case.devices, before, after, below, above, at, tuple(doubts))


def _is_faster(fast: Timing, slow: Timing) -> bool:
    """Return whether one timing is known to be faster than another, and is more than an empty call."""
    low = time_ratio(slow, fast).low
    return low is not None and low > 1 and not certainty.is_empty_call(fast)


def _place(timing: Timing, method: Method) -> tuple:
    """Return what identifies a method on one problem, on as many devices, in one environment."""
    case = timing.case
    sizes = tuple(sorted(size_values(case).items()))
    return timing.environment, timing.honest, family_key(case), sizes, case.devices, method
