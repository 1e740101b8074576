"""A plot of text: points joined by lines on a grid of characters, both axes logarithmic.

Each series has a letter, so that it can be recognised without colour. Lines are drawn with Braille
characters; on an ASCII terminal there are letters only, and dots for the ideal.
"""

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from rich.text import Text

COLOURS = ("blue", "red", "green", "magenta", "cyan", "yellow")
LETTERS = "abcdefghij"
_OVERLAP = "*"  # several letters in one cell
_DOT_COLUMNS, _DOT_ROWS = 2, 4  # dots of a Braille character
_BRAILLE, _DOTS = 0x2800, ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))


class PlotSeries(NamedTuple):
    """Points to be joined, sorted by x; all numbers are positive."""

    points: Sequence[tuple[float, float]]
    letter: str = ""  # "": a line without letters, such as the ideal
    colour: str = "dim"


Axis = Sequence[tuple[float, str]]  # tick values and their labels


@dataclass
class _Grid:
    """A grid of characters: the Braille dots of lines, and letters on top."""

    width: int
    height: int
    x: tuple[float, float]
    y: tuple[float, float]
    dots: dict[tuple[int, int], tuple[int, str]] = field(
        default_factory=dict
    )  # (row, column) -> bits, colour
    marks: dict[tuple[int, int], tuple[str, str]] = field(
        default_factory=dict
    )  # (row, column) -> letter, colour

    def locate(self, x: float, y: float, across: int = 1, down: int = 1) -> tuple[int, int]:
        """Return row and column of a point, in characters or in fractions of them."""
        column = _log_fraction(x, *self.x) * (self.width * across - 1)
        row = (1 - _log_fraction(y, *self.y)) * (self.height * down - 1)
        return round(row), round(column)


def _log_fraction(value: float, low: float, high: float) -> float:
    """Return the position of a value between two others on a logarithmic scale, from 0 to 1."""
    return (math.log(value) - math.log(low)) / (math.log(high) - math.log(low)) if high > low else 0.5


def draw_plot(
    series: Sequence[PlotSeries], x: Axis, y: Axis, width: int, height: int, braille: bool = True
) -> list[Text]:
    """Return a plot of this size, its axes included, as a line of text for each row."""
    points = [point for each in series for point in each.points]
    margin = max((len(name) for _, name in y), default=0)
    across, up = ((min(values), max(values)) for values in zip(*points, strict=True))
    grid = _Grid(width - margin - 2, height - 2, across, up)
    for each in reversed(series):
        _draw_line(grid, each, braille)
    for each in reversed(series):
        _draw_letters(grid, each)
    rows = _row_labels(grid, y)
    bar, foot = ("│", "└" + "─" * grid.width) if braille else ("|", "+" + "-" * grid.width)
    lines = [
        Text(f"{rows.get(row, ''):>{margin}} ").append(bar, "dim") + _render_row(grid, row)
        for row in range(grid.height)
    ]
    lines.append(Text(" " * (margin + 1)).append(foot, "dim"))
    return [*lines, Text(" " * (margin + 2) + _render_ticks(grid, x))]


def _draw_line(grid: _Grid, series: PlotSeries, braille: bool) -> None:
    """Join the points of a series; in ASCII only a series without a letter, by full stops."""
    if series.letter and not braille:
        return
    across, down = (_DOT_COLUMNS, _DOT_ROWS) if braille else (1, 1)
    for row, column in _interpolate([grid.locate(*point, across, down) for point in series.points]):
        if braille:
            cell = row // down, column // across
            bits = grid.dots.get(cell, (0, ""))[0] | _DOTS[row % down][column % across]
            grid.dots[cell] = bits, series.colour
        elif column % 2 == 0:
            grid.marks[row, column] = ".", series.colour


def _row_labels(grid: _Grid, y: Axis) -> dict[int, str]:
    """Return the label of each row; of several the nearest."""
    nearest: dict[int, tuple[float, str]] = {}
    for value, name in y:
        exact = (1 - _log_fraction(value, *grid.y)) * (grid.height - 1)
        if 0 <= round(exact) < grid.height:
            row = round(exact)
            nearest[row] = min(nearest.get(row, (1.0, "")), (abs(exact - row), name))
    return {row: name for row, (_, name) in nearest.items()}


def _interpolate(places: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Yield every cell on straight lines from one cell to the next."""
    for (row, column), (to_row, to_column) in itertools.pairwise(places):
        steps = max(abs(to_row - row), abs(to_column - column), 1)
        for step in range(steps + 1):
            yield (
                round(row + (to_row - row) * step / steps),
                round(column + (to_column - column) * step / steps),
            )


def _draw_letters(grid: _Grid, series: PlotSeries) -> None:
    for point in series.points if series.letter else ():
        locate = grid.locate(*point)
        occupied = grid.marks.get(locate, (".", ""))[0] not in (".", series.letter)
        grid.marks[locate] = (_OVERLAP, "") if occupied else (series.letter, series.colour)


def _render_row(grid: _Grid, row: int) -> Text:
    line = Text()
    for column in range(grid.width):
        bits, below = grid.dots.get((row, column), (0, ""))
        letter, colour = grid.marks.get((row, column), (chr(_BRAILLE + bits) if bits else " ", below))
        line.append(letter, colour)
    return line


def _render_ticks(grid: _Grid, x: Axis) -> str:
    """Return the line of tick labels, without those that would touch the one before."""
    line = ""
    for tick, name in x:
        start = min(max(0, grid.locate(tick, grid.y[0])[1] - len(name) // 2), grid.width - len(name))
        if not line or start > len(line):
            line = line.ljust(start) + name
    return line
