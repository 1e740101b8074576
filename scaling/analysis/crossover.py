"""Crossover: for each size and number of devices the fastest mode, and where along the sizes it changes.

Takes what curves.py found and gives values. Every cell compares modes on one problem; cells are never pooled, so that a map says
nothing between the sizes that were measured but where a line through the neighbours would cross.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from scaling.analysis import certainty
from scaling.analysis.curves import Fastest, Timing, family, ratio_of, volume
from scaling.analysis.methods import Method, method_of
from scaling.analysis.sweeps import numbers, sweeps
from scaling.core.case import Case


@dataclass(frozen=True)
class Crossover:
    """Between two sizes the faster of two modes changes, whatever the setting of its memory.

    Both modes were measured at both sizes and are distinguished there; between the two sizes nothing is claimed.
    """

    devices: int
    before: Method
    after: Method
    below: int  # the last size at which `before` is known to be fastest
    above: int  # the first at which `after` is
    at: float  # where straight lines through both modes' times cross, both axes logarithmic
    doubts: tuple[str, ...]  # what speaks against calling it sure, in words

    @property
    def sure(self) -> bool:
        """Return whether nothing speaks against it."""
        return not self.doubts


@dataclass(frozen=True)
class FastestModeMap:
    """For each size and number of devices the fastest mode of one family, where one size is swept and the others are held."""

    case: Case  # that of the largest size on the most devices
    environment: str
    honest: bool
    swept: str  # such as "m", or "points = m" where both move together
    held: str  # the other sizes, such as "points=6 o=2"
    sizes: tuple[int, ...]
    devices: tuple[int, ...]
    cells: Mapping[tuple[int, int], Fastest]  # (size, devices) -> the fastest; what was not measured has no cell
    flips: tuple[Crossover, ...]


def fastest_mode_maps(fastest: Iterable[Fastest], timings: Iterable[Timing]) -> list[FastestModeMap]:
    """A map for each family that was measured at two sizes or more, in each environment."""
    groups: dict[tuple, list[Fastest]] = {}
    for row in fastest:
        groups.setdefault((row.first.environment, row.first.honest, *family(row.first.case)), []).append(row)
    rivals = _rivals(timings)
    return [made for group in groups.values() for made in _maps(group, rivals)]


def _maps(group: Sequence[Fastest], rivals: Mapping[tuple, Timing]) -> list[FastestModeMap]:
    """One size is swept, the others tell the maps of a family apart."""
    made = []
    for swept, held, rows in sweeps(group, lambda row: row.first.case):
        at = {(numbers(row.first.case)[swept.name], row.first.case.devices): row for row in rows}
        sizes, devices = (tuple(sorted(set(axis))) for axis in zip(*at, strict=True))
        last = max((row.first for row in rows), key=lambda timing: (volume(timing.case), timing.case.devices))
        flips = [
            flip for count in devices for flip in _flips(count, [(s, at[s, count]) for s in sizes if (s, count) in at], rivals)
        ]
        made.append(FastestModeMap(last.case, last.environment, last.honest, swept.title, held, sizes, devices, at, tuple(flips)))
    return made


def _flips(devices: int, row: Sequence[tuple[int, Fastest]], rivals: Mapping[tuple, Timing]) -> list[Crossover]:
    """Return the changes of the fastest mode along the sizes, each between the nearest sizes that show it."""
    found: list[Crossover] = []
    start = 0
    for index, (above, other) in enumerate(row):
        for below, one in reversed(row[start:index]):
            if flip := _flip(devices, (below, one.first), (above, other.first), rivals):
                found.append(flip)
                start = index
                break
    return found


def _flip(devices: int, one: tuple[int, Timing], other: tuple[int, Timing], rivals: Mapping[tuple, Timing]) -> Crossover | None:
    """Return the change between the fastest of two sizes; None unless both modes are there and distinguished at both."""
    (below, first), (above, last) = one, other
    before, after = method_of(first.case).plain, method_of(last.case).plain
    lagging, leading = rivals.get(_place(first, after)), rivals.get(_place(last, before))
    if before == after or lagging is None or leading is None:
        return None
    if not (_distinguished(first, lagging) and _distinguished(last, leading)):
        return None
    doubts = dict.fromkeys([*certainty.doubts(first, lagging), *certainty.doubts(last, leading)])
    return Crossover(devices, before, after, below, above, _crossing(below, first, lagging, above, leading, last), tuple(doubts))


def _distinguished(fast: Timing, slow: Timing) -> bool:
    """Return whether one timing is known to be faster than another, and more than an empty call."""
    _, low, _ = ratio_of(slow, fast)
    return low is not None and low > 1 and not certainty.is_empty_call(fast)


def _crossing(below: int, a: Timing, b: Timing, above: int, a_after: Timing, b_after: Timing) -> float:
    """The size at which two modes take as long as each other, times and sizes taken for straight lines on logarithmic axes."""
    lead, lag = math.log(b.median / a.median), math.log(a_after.median / b_after.median)  # both at least 0
    return below * (above / below) ** (lead / (lead + lag) if lead + lag else 0.5)


def _rivals(timings: Iterable[Timing]) -> dict[tuple, Timing]:
    """The fastest timing of each way to each problem, by its place."""
    best: dict[tuple, Timing] = {}
    for timing in timings:
        place = _place(timing, method_of(timing.case).plain)
        best[place] = min(best.get(place, timing), timing, key=lambda t: t.median)
    return best


def _place(timing: Timing, way: Method) -> tuple:
    """What two timings of the same problem on as many devices in one environment have in common."""
    case = timing.case
    sizes = tuple(sorted(numbers(case).items()))
    return timing.environment, timing.honest, family(case), sizes, case.devices, way
