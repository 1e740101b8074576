"""A plot of text: points joined by lines on a grid of characters, both axes logarithmic, as a login node can show it.

Each series has a letter, so that it can be told from the others without colour. Lines are drawn in Braille, whose dots are finer
than a character; where a terminal knows ASCII alone there are only letters, and dots for the ideal. Knows no records.
"""

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from rich.text import Text

COLOURS = ("blue", "red", "green", "magenta", "cyan", "yellow")
LETTERS = "abcdefghij"
_SEVERAL = "*"  # letters in one place
_ACROSS, _DOWN = 2, 4  # dots of a Braille character
_BRAILLE, _DOTS = 0x2800, ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))


class PlotSeries(NamedTuple):
    """Points to be joined, sorted by x; all numbers are positive."""

    points: Sequence[tuple[float, float]]
    letter: str = ""  # none: a line without marks, such as the ideal
    colour: str = "dim"


Axis = Sequence[tuple[float, str]]  # the values that it names, and how


@dataclass
class _Grid:
    """Characters in rows, with what is drawn below and upon them: the dots of lines, and letters."""

    width: int
    height: int
    x: tuple[float, float]
    y: tuple[float, float]
    dots: dict[tuple[int, int], tuple[int, str]] = field(default_factory=dict)  # (row, column) -> bits, colour
    marks: dict[tuple[int, int], tuple[str, str]] = field(default_factory=dict)  # (row, column) -> letter, colour

    def place(self, x: float, y: float, across: int = 1, down: int = 1) -> tuple[int, int]:
        """Row and column of a point, in characters or in so many parts of them."""
        column = _part(x, *self.x) * (self.width * across - 1)
        row = (1 - _part(y, *self.y)) * (self.height * down - 1)
        return round(row), round(column)


def _part(value: float, low: float, high: float) -> float:
    """How far a value lies between two others, by their logarithms."""
    return (math.log(value) - math.log(low)) / (math.log(high) - math.log(low)) if high > low else 0.5


def draw(series: Sequence[PlotSeries], x: Axis, y: Axis, width: int, height: int, braille: bool = True) -> list[Text]:
    """A plot in so many characters, its axes included, a line of text for each row."""
    points = [point for one in series for point in one.points]
    margin = max((len(name) for _, name in y), default=0)
    across, up = ((min(values), max(values)) for values in zip(*points, strict=True))
    grid = _Grid(width - margin - 2, height - 2, across, up)
    for one in reversed(series):
        _line(grid, one, braille)
    for one in reversed(series):
        _mark(grid, one)
    rows = _beside(grid, y)
    bar, foot = ("│", "└" + "─" * grid.width) if braille else ("|", "+" + "-" * grid.width)
    lines = [Text(f"{rows.get(row, ''):>{margin}} ").append(bar, "dim") + _row(grid, row) for row in range(grid.height)]
    lines.append(Text(" " * (margin + 1)).append(foot, "dim"))
    return [*lines, Text(" " * (margin + 2) + _under(grid, x))]


def _line(grid: _Grid, series: PlotSeries, braille: bool) -> None:
    """Join the points; in ASCII only a line without letters, by full stops."""
    if series.letter and not braille:
        return
    across, down = (_ACROSS, _DOWN) if braille else (1, 1)
    for row, column in _joined([grid.place(*point, across, down) for point in series.points]):
        if braille:
            cell = row // down, column // across
            bits = grid.dots.get(cell, (0, ""))[0] | _DOTS[row % down][column % across]
            grid.dots[cell] = bits, series.colour
        elif column % 2 == 0:
            grid.marks[row, column] = ".", series.colour


def _beside(grid: _Grid, y: Axis) -> dict[int, str]:
    """The name beside each row that has one: of several the one that is nearest to where the row lies."""
    nearest: dict[int, tuple[float, str]] = {}
    for value, name in y:
        exact = (1 - _part(value, *grid.y)) * (grid.height - 1)
        if 0 <= round(exact) < grid.height:
            row = round(exact)
            nearest[row] = min(nearest.get(row, (1.0, "")), (abs(exact - row), name))
    return {row: name for row, (_, name) in nearest.items()}


def _joined(places: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Every place on straight lines from one to the next."""
    for (row, column), (to_row, to_column) in itertools.pairwise(places):
        steps = max(abs(to_row - row), abs(to_column - column), 1)
        for step in range(steps + 1):
            yield round(row + (to_row - row) * step / steps), round(column + (to_column - column) * step / steps)


def _mark(grid: _Grid, series: PlotSeries) -> None:
    for point in series.points if series.letter else ():
        place = grid.place(*point)
        taken = grid.marks.get(place, (".", ""))[0] not in (".", series.letter)
        grid.marks[place] = (_SEVERAL, "") if taken else (series.letter, series.colour)


def _row(grid: _Grid, row: int) -> Text:
    line = Text()
    for column in range(grid.width):
        bits, below = grid.dots.get((row, column), (0, ""))
        letter, colour = grid.marks.get((row, column), (chr(_BRAILLE + bits) if bits else " ", below))
        line.append(letter, colour)
    return line


def _under(grid: _Grid, x: Axis) -> str:
    """The names of the ticks of x, each under its place, less those that would run into the one before."""
    line = ""
    for tick, name in x:
        start = min(max(0, grid.place(tick, grid.y[0])[1] - len(name) // 2), grid.width - len(name))
        if not line or start > len(line):
            line = line.ljust(start) + name
    return line
