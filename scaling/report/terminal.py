"""The terminal: what a results folder says at a glance, for a person without a browser: a table, and small curves.

Speed-up over devices beside the ideal, for the largest problem of each family; where nothing was measured on several numbers of
devices, time over size. Never more than a screen of curves, on a terminal of 80 columns or more, without colours as with them.
Chooses what is shown; how a plot is drawn is known in plot.py.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table
from rich.text import Text

from scaling.analysis import answer
from scaling.analysis.curves import Curve, Panel, Timing, family, family_name, volume
from scaling.analysis.findings import Findings, marks
from scaling.analysis.methods import describe_call, method_of
from scaling.core.formatting import count_of, format_duration, format_number
from scaling.report.choice import largest
from scaling.report.labels import legible
from scaling.report.summary import fold
from scaling.report.terminal_plot import COLOURS, LETTERS, Axis, PlotSeries, draw

_LINES = 23  # of plots, on a screen of 24
_WIDEST = 140
_NARROW = 38  # columns of a plot at least
_ROWS = 2  # of plots
_MOST = 4  # lines in a plot; one less where plots stand in two rows
_TALLEST = 14  # lines of a plot with its axes
_GAP = "  "
_TEXT = (0, 2, 4)  # columns whose cells may be broken between words
_RUNNER_UP, _RATIO = 4, 5
_BORDERS = 3  # characters of a column beside its cell
Say = Callable[[str], str]


@dataclass(frozen=True)
class _Block:
    """A plot to be: what it is of, its series in order of their letters with what each is, and its axes."""

    title: tuple[str, str]
    series: tuple[PlotSeries, ...]
    legend: tuple[str, ...]
    x: Axis
    y: Axis


def show(found: Findings, console: Console) -> None:
    """Print the table of the fastest modes and the curves."""
    say = _plain if (console.encoding or "").lower().startswith("utf") else _ascii
    rows = answer.brief(found)[0]
    if rows:
        _show_table([[_cell(say(cell), column) for column, cell in enumerate(row)] for row in rows], console)
    if len(rows) < len(found.fastest):
        console.print(f"- The largest problem of each kind; the report has all {len(found.fastest)}.", highlight=False)
    for line in curves(found, min(console.width, _WIDEST), say):
        console.print(line, soft_wrap=True, highlight=False)


def show_sentences(found: Findings, console: Console) -> None:
    """Print the sentences; on a terminal no line is broken within a number."""
    for sentence in answer.brief(found)[1]:
        text = f"- {legible(sentence)}"
        for line in fold(text, console.width, "  ") if console.is_terminal else [text]:
            console.print(Text(line), soft_wrap=True, highlight=False)


def _cell(text: str, column: int) -> str:
    """A cell, its numbers on a line of their own: after the name of the runner-up, and after what is said of a ratio."""
    if column == _RUNNER_UP:
        return ",\n".join(part for part in text.rpartition(", ")[::2] if part)
    return text.replace("distinguished: ", "distinguished:\n").replace("call (", "call\n(") if column == _RATIO else text


def _show_table(rows: Sequence[Sequence[str]], console: Console) -> None:
    """Print the table, no word of it broken; where there is no room for that, a paragraph for each row."""
    columns = list(zip(answer.COLUMNS, *rows, strict=True))
    whole = [max(len(line) for cell in column for line in cell.split("\n")) for column in columns]
    words = [max(len(word) for cell in column for word in cell.split()) for column in columns]
    least = [words[at] if at in _TEXT else whole[at] for at in range(len(columns))]
    room = console.width - _BORDERS * len(columns) - 1 - sum(least)
    if room < 0:
        for row in rows:
            first, *rest = fold(", ".join(_sentence(row)), console.width, "  ")
            for line in (first, *rest):
                console.print(Text(line), soft_wrap=True, highlight=False)
        return
    wanted = sum(full - some for full, some in zip(whole, least, strict=True))
    share = min(1.0, room / wanted) if wanted else 0.0
    table = Table()
    for name, full, some in zip(answer.COLUMNS, whole, least, strict=True):
        table.add_column(name, width=some + int(share * (full - some)), overflow="fold")
    for row in rows:
        table.add_row(*map(Text, row))
    console.print(table)


def _sentence(row: Sequence[str]) -> list[str]:
    """A row in words."""
    problem, devices, fastest, time, second, factor = (" ".join(cell.split()) for cell in row)
    told = [f"{problem} on {count_of(int(devices), 'device')}: {fastest} {time}"]
    return [*told, *([f"next {second}"] if second else []), *([factor] if factor else [])]


def _plain(text: str) -> str:
    """Text on one line, and nothing in it that steers a terminal."""
    return " ".join(legible(text).split())


def _ascii(text: str) -> str:
    return _plain(text).replace("µ", "u").encode("ascii", "replace").decode()


def curves(found: Findings, width: int, say: Say = _plain) -> list[Text]:
    """The curves as lines of text, at most a screen of them; none where there is nothing to be drawn."""
    shown, panels = largest(found.curves), _panels(found)
    if not (count := len(shown or panels)):
        return []
    across = max(1, min(count, (width + len(_GAP)) // (_NARROW + len(_GAP))))
    down = min(_ROWS, math.ceil(count / across))
    most = _MOST if down == 1 else _MOST - 1
    blocks = [_scaling(found, some, most) for some in shown] or [_sizes(found, panel, most) for panel in panels]
    each, height = (width - len(_GAP) * (across - 1)) // across, (_LINES - (down - 1)) // down
    lines: list[Text] = []
    for at in range(0, across * down, across):
        lines += [Text()] if at else []
        lines += _beside([_drawn(block, each, height, say) for block in blocks[at : at + across]], each)
    left = count - across * down
    more = f"{count_of(left, 'more plot')} and all intervals" if left > 0 else "all intervals"
    note = f"Line without a letter: ideal. In the report: {more}." if shown else f"In the report: {more}."
    return [*lines, Text(note)]


def _beside(columns: Sequence[Sequence[Text]], width: int) -> list[Text]:
    """Blocks of lines side by side."""
    lines = []
    for row in range(max(map(len, columns))):
        line = Text()
        for at, column in enumerate(columns):
            cell = column[row].copy() if row < len(column) else Text()
            cell.truncate(width, overflow="crop", pad=True)
            line.append(_GAP if at else "").append_text(cell)
        line.rstrip()
        lines.append(line)
    return lines


def _drawn(block: _Block, width: int, height: int, say: Say) -> list[Text]:
    """A block in so many columns and, at most, lines."""

    def fit(words: str) -> str:
        told, mark = say(words), "…" if say is _plain else "..."
        return told if len(told) <= width else told[: width - len(mark)] + mark

    titles = block.title if height > _LINES // _ROWS else [", ".join(word for word in block.title if word)]
    legend = [
        Text().append(letter, COLOURS[at % len(COLOURS)]).append(fit(f"{letter} {words}")[len(letter) :])
        for at, (letter, words) in enumerate(zip(LETTERS, block.legend, strict=False))
    ]
    tall = min(_TALLEST, height - len(titles) - len(legend))
    x, y = ([(value, say(name)) for value, name in axis] for axis in (block.x, block.y))
    plot = draw(block.series, x, y, width, tall, braille=say is _plain)
    return [*(Text(fit(words), "bold") for words in titles if words), *plot, *legend]


def _lettered(lines: Sequence[Sequence[tuple[float, float]]]) -> list[PlotSeries]:
    return [
        PlotSeries(line, letter, COLOURS[at % len(COLOURS)])
        for at, (letter, line) in enumerate(zip(LETTERS, lines, strict=False))
    ]


def _fewer(names: Sequence[str], most: int) -> list[str]:
    """What of a legend has room: all, or the first with a word on the rest."""
    more = f"; {len(names) - most} more" if len(names) > most else ""
    return [*names[: most - 1], *(f"{name}{more}" for name in names[most - 1 : most])]


# Speed-up over devices.


def _scaling(found: Findings, same: Sequence[Curve], most: int) -> _Block:
    """The curves of one problem, the fastest first, and the ideal."""
    lines = [[(p.devices, p.speedup) for p in curve.points] for curve in same[:most]]
    calls = {describe_call(curve.case) for curve in same}
    names = [method_of(curve.case).name + (f", {describe_call(curve.case)}" if len(calls) > 1 else "") for curve in same]
    ends = [f"{format_number(line[-1][1])}x on {line[-1][0]:g}" for line in lines]
    told = [f"{end}: {name}" for end, name in zip(ends, _fewer(names, most), strict=True)]
    devices = sorted({point.devices for curve in same for point in curve.points})
    case, base = same[0].case, same[0].baseline_devices
    title = f"{same[0].kind} scaling{same[0].relative}: {family_name(case)}{marks(found, same[0].environment)}"
    what = ", ".join([same[0].size.replace("for each device", "each"), *(calls if len(calls) == 1 else ())])
    ideal = PlotSeries([(count, count / base) for count in (devices[0], devices[-1])])
    powers = [2.0**power for power in range(math.floor(math.log2(devices[-1] / base)) + 1)]
    return _Block(
        title=(title, what),
        series=(*_lettered(lines), ideal),
        legend=tuple(told),
        x=[(count, str(count)) for count in devices],
        y=[(power, f"{power:g}x") for power in powers],
    )


# Time over size.


def _panels(found: Findings) -> list[Panel]:
    """Of each family the panel with the largest problem."""
    panels: dict[tuple, Panel] = {}
    for panel in found.panels:
        of = (panel.environment, panel.honest, *family(panel.case))
        panels[of] = max(panels.get(of, panel), panel, key=lambda each: volume(each.case))
    return list(panels.values())


def _sizes(found: Findings, panel: Panel, most: int) -> _Block:
    """Time over size, a line for each way, the fastest at the largest size first."""

    def last(rows: Sequence[tuple[int, Timing]]) -> tuple[int, float]:
        return -rows[-1][0], rows[-1][1].median

    ways = sorted(panel.lines.items(), key=lambda line: last(line[1]))
    lines = [[(float(size), timing.median) for size, timing in rows] for _, rows in ways[:most]]
    names = [f"{format_duration(rows[-1][1].median)}: {way.name}" for way, rows in ways]
    sizes = sorted({size for line in lines for size, _ in line})
    times = sorted(seconds for line in lines for _, seconds in line)
    devices = count_of(panel.case.devices, "device")
    return _Block(
        title=(
            f"time over {panel.swept}: {family_name(panel.case)}{marks(found, panel.environment, panel.honest)}",
            ", ".join(word for word in (panel.held, devices, describe_call(panel.case)) if word),
        ),
        series=tuple(_lettered(lines)),
        legend=tuple(_fewer(names, most)),
        x=[(size, f"{size:g}") for size in sizes],
        y=[(seconds, format_duration(seconds)) for seconds in (times[0], math.sqrt(times[0] * times[-1]), times[-1])],
    )
