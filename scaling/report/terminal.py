"""The terminal report: a table of the fastest modes, and small curves, for a person without a browser.

Shows speed-up over devices for the largest problem of each family, or time over size where only one number of
devices was measured. At most a screen of curves, on 80 columns or more, with or without colours.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table
from rich.text import Text

from scaling.analysis import answer
from scaling.analysis.curves import Curve, SizeSweep, Timing, family_key, family_name, problem_size
from scaling.analysis.findings import Findings, describe_environment
from scaling.analysis.methods import describe_call, method_of
from scaling.core.formatting import count_of, format_duration, format_number
from scaling.report.choice import derivative_curves
from scaling.report.labels import clean_text
from scaling.report.summary import wrap_text
from scaling.report.terminal_plot import COLOURS, LETTERS, Axis, PlotSeries, draw_plot

_PLOT_LINES = 23  # of plots, on a screen of 24
_MOST_COLUMNS = 140
_LEAST_COLUMNS = 38  # columns of a plot at least
_ROWS = 2  # of plots
_MOST_SERIES = 4  # lines in a plot; one less where plots stand in two rows
_MOST_PLOT_LINES = 14  # lines of a plot with its axes
_GAP = "  "
_TEXT = (0, 2, 4)  # columns whose cells may be broken between words
_RUNNER_UP, _RATIO = 4, 5
_BORDERS = 3  # characters of a column around its cell
ToText = Callable[[str], str]


@dataclass(frozen=True)
class _PlotBlock:
    """A plot to be drawn: its title, its series in order of their letters, its legend and its axes."""

    title: tuple[str, str]
    series: tuple[PlotSeries, ...]
    legend: tuple[str, ...]
    x: Axis
    y: Axis


def print_table(findings: Findings, console: Console) -> None:
    """Print the table of the fastest modes and the curves."""
    to_text = _to_one_line if (console.encoding or "").lower().startswith("utf") else _to_ascii
    rows = answer.summarize(findings)[0]
    if rows:
        _print_rows(
            [[_break_cell(to_text(cell), column) for column, cell in enumerate(row)] for row in rows], console
        )
    if len(rows) < len(findings.fastest):
        console.print(
            f"- The largest problem of each kind; the report has all {len(findings.fastest)}.",
            highlight=False,
        )
    for line in draw_curves(findings, min(console.width, _MOST_COLUMNS), to_text):
        console.print(line, soft_wrap=True, highlight=False)


def print_sentences(findings: Findings, console: Console) -> None:
    """Print the sentences; on a terminal no line is broken within a number."""
    for sentence in answer.summarize(findings)[1]:
        text = f"- {clean_text(sentence)}"
        for line in wrap_text(text, console.width, "  ") if console.is_terminal else [text]:
            console.print(Text(line), soft_wrap=True, highlight=False)


def _break_cell(text: str, column: int) -> str:
    """Return a cell with its numbers on lines of their own."""
    if column == _RUNNER_UP:
        return ",\n".join(part for part in text.rpartition(", ")[::2] if part)
    return (
        text.replace("distinguished: ", "distinguished:\n").replace("call (", "call\n(")
        if column == _RATIO
        else text
    )


def _print_rows(rows: Sequence[Sequence[str]], console: Console) -> None:
    """Print the table without breaking words; where it is too wide, print a paragraph for each row."""
    columns = list(zip(answer.COLUMNS, *rows, strict=True))
    full_widths = [max(len(line) for cell in column for line in cell.split("\n")) for column in columns]
    word_widths = [max(len(word) for cell in column for word in cell.split()) for column in columns]
    least_widths = [word_widths[at] if at in _TEXT else full_widths[at] for at in range(len(columns))]
    spare = console.width - _BORDERS * len(columns) - 1 - sum(least_widths)
    if spare < 0:
        for row in rows:
            first, *rest = wrap_text(", ".join(_row_sentence(row)), console.width, "  ")
            for line in (first, *rest):
                console.print(Text(line), soft_wrap=True, highlight=False)
        return
    missing = sum(full - some for full, some in zip(full_widths, least_widths, strict=True))
    share = min(1.0, spare / missing) if missing else 0.0
    table = Table()
    for name, full, some in zip(answer.COLUMNS, full_widths, least_widths, strict=True):
        table.add_column(name, width=some + int(share * (full - some)), overflow="fold")
    for row in rows:
        table.add_row(*map(Text, row))
    console.print(table)


def _row_sentence(row: Sequence[str]) -> list[str]:
    """Return a row in words."""
    problem, devices, fastest, time, second, factor = (" ".join(cell.split()) for cell in row)
    words = [f"{problem} on {count_of(int(devices), 'device')}: {fastest} {time}"]
    return [*words, *([f"next {second}"] if second else []), *([factor] if factor else [])]


def _to_one_line(text: str) -> str:
    """Return text on one line, without control characters."""
    return " ".join(clean_text(text).split())


def _to_ascii(text: str) -> str:
    return _to_one_line(text).replace("µ", "u").encode("ascii", "replace").decode()


def draw_curves(findings: Findings, width: int, to_text: ToText = _to_one_line) -> list[Text]:
    """Return the curves as lines of text, at most a screen; [] where there is nothing to draw."""
    shown, sweeps = derivative_curves(findings.curves), _largest_sweeps(findings)
    if not (count := len(shown or sweeps)):
        return []
    across = max(1, min(count, (width + len(_GAP)) // (_LEAST_COLUMNS + len(_GAP))))
    down = min(_ROWS, math.ceil(count / across))
    most = _MOST_SERIES if down == 1 else _MOST_SERIES - 1
    blocks = [_scaling_block(findings, some, most) for some in shown] or [
        _size_block(findings, sweep, most) for sweep in sweeps
    ]
    each, height = (width - len(_GAP) * (across - 1)) // across, (_PLOT_LINES - (down - 1)) // down
    lines: list[Text] = []
    for at in range(0, across * down, across):
        lines += [Text()] if at else []
        lines += _join_side_by_side(
            [_draw_block(block, each, height, to_text) for block in blocks[at : at + across]], each
        )
    left = count - across * down
    more = f"{count_of(left, 'more plot')} and all intervals" if left > 0 else "all intervals"
    note = f"Line without a letter: ideal. In the report: {more}." if shown else f"In the report: {more}."
    return [*lines, Text(note)]


def _join_side_by_side(columns: Sequence[Sequence[Text]], width: int) -> list[Text]:
    """Return blocks of lines side by side."""
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


def _draw_block(block: _PlotBlock, width: int, height: int, to_text: ToText) -> list[Text]:
    """Return a block in this many columns and at most this many lines."""

    def fit(text: str) -> str:
        words, mark = to_text(text), "…" if to_text is _to_one_line else "..."
        return words if len(words) <= width else words[: width - len(mark)] + mark

    titles = (
        block.title if height > _PLOT_LINES // _ROWS else [", ".join(word for word in block.title if word)]
    )
    legend = [
        Text().append(letter, COLOURS[at % len(COLOURS)]).append(fit(f"{letter} {words}")[len(letter) :])
        for at, (letter, words) in enumerate(zip(LETTERS, block.legend, strict=False))
    ]
    tall = min(_MOST_PLOT_LINES, height - len(titles) - len(legend))
    x, y = ([(value, to_text(name)) for value, name in axis] for axis in (block.x, block.y))
    plot = draw_plot(block.series, x, y, width, tall, braille=to_text is _to_one_line)
    return [*(Text(fit(words), "bold") for words in titles if words), *plot, *legend]


def _lettered_series(lines: Sequence[Sequence[tuple[float, float]]]) -> list[PlotSeries]:
    return [
        PlotSeries(line, letter, COLOURS[at % len(COLOURS)])
        for at, (letter, line) in enumerate(zip(LETTERS, lines, strict=False))
    ]


def _shorten_legend(names: Sequence[str], most: int) -> list[str]:
    """Return the legend entries that fit; the last one counts the others."""
    more = f"; {len(names) - most} more" if len(names) > most else ""
    return [*names[: most - 1], *(f"{name}{more}" for name in names[most - 1 : most])]


# Speed-up over devices.


def _scaling_block(findings: Findings, curves: Sequence[Curve], most: int) -> _PlotBlock:
    """Return the plot of the curves of one problem, the fastest first, with the ideal."""
    lines = [[(p.devices, p.speedup) for p in curve.points] for curve in curves[:most]]
    calls = {describe_call(curve.case) for curve in curves}
    names = [
        method_of(curve.case).name + (f", {describe_call(curve.case)}" if len(calls) > 1 else "")
        for curve in curves
    ]
    ends = [f"{format_number(line[-1][1])}x on {line[-1][0]:g}" for line in lines]
    words = [f"{end}: {name}" for end, name in zip(ends, _shorten_legend(names, most), strict=True)]
    devices = sorted({point.devices for curve in curves for point in curve.points})
    case, base = curves[0].case, curves[0].baseline_devices
    title = (
        f"{curves[0].kind} scaling{curves[0].relative}: "
        f"{family_name(case)}{describe_environment(findings, curves[0].environment)}"
    )
    what = ", ".join([curves[0].size.replace("for each device", "each"), *(calls if len(calls) == 1 else ())])
    ideal = PlotSeries([(count, count / base) for count in (devices[0], devices[-1])])
    powers = [2.0**power for power in range(math.floor(math.log2(devices[-1] / base)) + 1)]
    return _PlotBlock(
        title=(title, what),
        series=(*_lettered_series(lines), ideal),
        legend=tuple(words),
        x=[(count, str(count)) for count in devices],
        y=[(power, f"{power:g}x") for power in powers],
    )


# Time over size.


def _largest_sweeps(findings: Findings) -> list[SizeSweep]:
    """Return for each family the sweep with the largest problem."""
    sweeps: dict[tuple, SizeSweep] = {}
    for sweep in findings.size_sweeps:
        of = (sweep.environment, sweep.honest, *family_key(sweep.case))
        sweeps[of] = max(sweeps.get(of, sweep), sweep, key=lambda each: problem_size(each.case))
    return list(sweeps.values())


def _size_block(findings: Findings, sweep: SizeSweep, most: int) -> _PlotBlock:
    """Return the plot of time over size, the fastest method at the largest size first."""

    def last(rows: Sequence[tuple[int, Timing]]) -> tuple[int, float]:
        return -rows[-1][0], rows[-1][1].median

    methods = sorted(sweep.lines.items(), key=lambda line: last(line[1]))
    lines = [[(float(size), timing.median) for size, timing in rows] for _, rows in methods[:most]]
    names = [f"{format_duration(rows[-1][1].median)}: {method.name}" for method, rows in methods]
    sizes = sorted({size for line in lines for size, _ in line})
    times = sorted(seconds for line in lines for _, seconds in line)
    devices = count_of(sweep.case.devices, "device")
    return _PlotBlock(
        title=(
            (
                f"time over {sweep.swept}: "
                f"{family_name(sweep.case)}{describe_environment(findings, sweep.environment, sweep.honest)}"
            ),
            ", ".join(word for word in (sweep.held, devices, describe_call(sweep.case)) if word),
        ),
        series=tuple(_lettered_series(lines)),
        legend=tuple(_shorten_legend(names, most)),
        x=[(size, f"{size:g}") for size in sizes],
        y=[
            (seconds, format_duration(seconds))
            for seconds in (times[0], math.sqrt(times[0] * times[-1]), times[-1])
        ],
    )
