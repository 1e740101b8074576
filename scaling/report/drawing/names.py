"""Names: where there is room for a name beside each mark of a panel, in points from its lower left corner.

By arithmetic, from how wide letters are on average: what a font makes of a name is not asked. Knows nothing of what is drawn.
"""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

Point = tuple[float, float]
Line = tuple[Point, Point]

_ADVANCE, _LINE = 0.56, 1.25  # what a letter takes of its size across and down
_MARK = 4.0  # around a mark that no name may cover
_AWAY = (5.0, 12.0, 20.0, 30.0, 42.0, 56.0, 72.0)  # from a mark to its name
_TURNS = [(math.cos(turn * math.pi / 8), math.sin(turn * math.pi / 8)) for turn in (1, *range(16))]  # up and right comes first
_COVERED, _CROSSED = 3.0, 150.0  # as if a name were so much farther off: for a square point that it covers, for a line it crosses
_ROUNDS = 3
_NEAR = 40.0  # marks that are in each other's way


class Box(NamedTuple):
    """A rectangle."""

    left: float
    low: float
    right: float
    high: float

    def over(self, other: "Box") -> float:
        """The area that two have in common."""
        across = min(self.right, other.right) - max(self.left, other.left)
        return max(0.0, across) * max(0.0, min(self.high, other.high) - max(self.low, other.low))


class Candidate(NamedTuple):
    """A place that a name might have, the line from there to its mark, and what it costs in points of distance."""

    box: Box
    line: Line
    cost: float


class LabelPlace(NamedTuple):
    """Where a name stands: its lower left corner, and where a line to its mark begins, None where it is beside that.

    start: in shares of the name's width and height, as that is not known exactly.
    """

    at: Point
    start: Point | None


def place_labels(
    marks: Sequence[Point], names: Mapping[int, str], lines: Sequence[Line], panel: Point, size: float
) -> dict[int, LabelPlace]:
    """A place for the name of each of these marks, so that names cover no mark, no line and no other name, as far as may be.

    names: by the number of the mark. lines: straight up or across. panel: its width and height. size: of letters. One after
    the other, those with the most neighbours first, and each again when the others have their places.
    """
    taken = [Box(x - _MARK, y - _MARK, x + _MARK, y + _MARK) for x, y in marks]
    taken += [Box(min(x, to_x) - 1, min(y, to_y) - 1, max(x, to_x) + 1, max(y, to_y) + 1) for (x, y), (to_x, to_y) in lines]
    crowded = {number: sum(math.dist(marks[number], other) < _NEAR for other in marks) for number in names}
    room = {
        number: _candidates(marks[number], (size * _ADVANCE * len(name), size * _LINE), taken, Box(0, 0, *panel))
        for number, name in names.items()
    }
    placed: dict[int, Candidate] = {}
    for number in _ROUNDS * sorted(names, key=lambda number: (-crowded[number], number)):
        placed.pop(number, None)
        placed[number] = _best(room[number], list(placed.values()))
    return {number: _place(candidate) for number, candidate in placed.items()}


def _place(candidate: Candidate) -> LabelPlace:
    box, line, _ = candidate
    start = (line[1][0] - box.left) / (box.right - box.left), (line[1][1] - box.low) / (box.high - box.low)
    return LabelPlace((box.left, box.low), start if math.dist(*line) > 2 * _MARK else None)


def _candidates(mark: Point, extent: Point, taken: Sequence[Box], panel: Box) -> list[Candidate]:
    """The places around a mark, with what each costs whatever the other names do: the nearest and freest first."""
    wide, tall = extent
    several = []
    for away in _AWAY:
        for right, up in _TURNS:
            x, y = mark[0] + away * right, mark[1] + away * up
            left, low = x - wide * (1 - right) / 2, y - tall * (1 - up) / 2
            box = Box(left, low, left + wide, low + tall)
            nearest = min(max(mark[0], box.left), box.right), min(max(mark[1], box.low), box.high)
            covered = sum(box.over(other) for other in taken) + wide * tall - box.over(panel)
            several.append(Candidate(box, (mark, nearest), _COVERED * covered + math.dist(mark, nearest)))
    return sorted(several, key=lambda each: each.cost)


def _best(several: Sequence[Candidate], placed: Sequence[Candidate]) -> Candidate:
    """The one that costs least where these other names stand."""
    best, least = several[0], math.inf
    for candidate in several:
        if candidate.cost >= least:
            break
        box, line, cost = candidate
        cost += _COVERED * sum(box.over(name) for name, _, _ in placed)
        cost += _CROSSED * sum(_cross(line, other) + _passes(line, name) + _passes(other, box) for name, other, _ in placed)
        if cost < least:
            best, least = candidate, cost
    return best


def _cross(one: Line, other: Line) -> bool:
    """Whether two straight lines meet."""

    def side(of: Line, point: Point) -> float:
        (x, y), (to_x, to_y) = of
        return (to_x - x) * (point[1] - y) - (to_y - y) * (point[0] - x)

    return side(one, other[0]) * side(one, other[1]) < 0 and side(other, one[0]) * side(other, one[1]) < 0


def _passes(line: Line, box: Box) -> bool:
    """Whether a line goes through a name: across one of its diagonals."""
    rising, falling = ((box.left, box.low), (box.right, box.high)), ((box.left, box.high), (box.right, box.low))
    return _cross(line, rising) or _cross(line, falling)
