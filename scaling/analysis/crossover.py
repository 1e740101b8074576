"""Find the problem sizes at which the fastest method changes, and map it over sizes and device counts.

Between the measured sizes, the logarithm of the time is interpolated linearly in the logarithm of the size.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from scaling.analysis.cases import Method, Subject, find_size_series, group_by, least_by, size_values
from scaling.analysis.fastest import FastestMethod
from scaling.analysis.timings import Timing, is_empty_call, reasons_for_doubt, time_ratio


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
class FastestModeMap(Subject):
    """The fastest AD mode of one function for each value of one problem size and each device count.

    `case` is the one with the largest size on the most devices.
    """

    swept: str  # the varying size, such as "m", or "points = m" if both vary together
    fixed_sizes: str  # the constant sizes, such as "points=6 o=2"
    sizes: tuple[int, ...]
    devices: tuple[int, ...]
    cells: Mapping[tuple[int, int], FastestMethod]  # (size, device count) -> method; missing if not measured
    crossovers: tuple[Crossover, ...]


def fastest_mode_maps(fastest: Iterable[FastestMethod], timings: Iterable[Timing]) -> list[FastestModeMap]:
    """Return a `FastestModeMap` for each function, environment and varying problem size.

    `timings` has the timings of all methods, from which the crossovers are computed.
    """
    best = least_by(timings, lambda t: (*t.comparison_key, t.base_method), lambda t: t.median)
    maps = []
    for family in group_by(fastest, lambda row: row.family_key).values():
        for name, title, fixed_sizes, rows in find_size_series(family, lambda row: row.case):
            cells = {(size_values(row.case)[name], row.case.devices): row for row in rows}
            sizes, devices = (tuple(sorted(set(axis))) for axis in zip(*cells, strict=True))
            last = max(rows, key=lambda row: (row.volume, row.case.devices))
            lines = ([(n, cells[n, count].first) for n in sizes if (n, count) in cells] for count in devices)
            crossovers = tuple(crossover for line in lines for crossover in _crossovers_of_line(line, best))
            subject = (last.case, last.environment, last.honest)
            maps.append(FastestModeMap(*subject, title, fixed_sizes, sizes, devices, cells, crossovers))
    return maps


def _crossovers_of_line(line: Sequence[tuple[int, Timing]], best: Mapping[tuple, Timing]) -> list[Crossover]:
    crossovers: list[Crossover] = []
    start = 0
    for index, last in enumerate(line):
        tried = (_crossover_between(*first, *last, best) for first in reversed(line[start:index]))
        if crossover := next(filter(None, tried), None):
            crossovers.append(crossover)
            start = index
    return crossovers


def _crossover_between(
    below: int, first: Timing, above: int, last: Timing, best: Mapping[tuple, Timing]
) -> Crossover | None:
    before, after = first.base_method, last.base_method
    slower_first = best.get((*first.comparison_key, after))
    slower_last = best.get((*last.comparison_key, before))
    if before == after or slower_first is None or slower_last is None:
        return None
    pairs = ((first, slower_first), (last, slower_last))
    if not all(time_ratio(slow, fast).above_one and not is_empty_call(fast) for fast, slow in pairs):
        return None
    doubts = dict.fromkeys(reason for pair in pairs for reason in reasons_for_doubt(*pair))
    gap_below, gap_above = (math.log(slow.median / fast.median) for fast, slow in pairs)
    fraction = gap_below / (gap_below + gap_above) if gap_below + gap_above else 0.5
    at = below * (above / below) ** fraction
    return Crossover(first.case.devices, before, after, below, above, at, tuple(doubts))
