"""Print the tables of `scaling report` on a console, and make the one-screen summary of `scaling run`.

If a table is too wide for the console, each row is printed as a paragraph.
"""

import textwrap
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from scaling.analysis import lint, summary
from scaling.analysis.answers import measured_answers
from scaling.analysis.curves import Curve, CurvePoint, derivative_curves
from scaling.analysis.estimate import format_ratio
from scaling.analysis.findings import Findings
from scaling.core.formatting import format_duration
from scaling.report.tables import answer_table
from scaling.report.text import LINES, WIDTH, Table, clean_text, keep_numbers_whole, make_table, wrap_text

_BORDERS = 3  # characters of padding and border per column
_RESERVED_LINES = 4  # lines printed below a summary: other environments, counts, report path
_MAX_WARNINGS = 4  # number of warnings in a summary


def print_report(findings: Findings, console: Console) -> None:
    """Print the fastest modes, the speed-ups and the conclusions of a study on a console."""
    table = answer_table(findings)
    if table.rows:
        print_table(table, console)
    for curves in derivative_curves(findings.curves):
        print_table(curve_table(findings, curves), console)
    for sentence in summary.answer_sentences(findings):
        _print_wrapped(f"- {sentence}", console)


def curve_table(findings: Findings, curves: Sequence[Curve]) -> Table:
    """Return a table with a row for each of the scaling curves of one problem.

    The table has a column for each device count, with the time and the speed-up.
    """
    first, counts = curves[0], sorted({point.devices for curve in curves for point in curve.points})
    kind = "scaled speed-up, weak scaling" if first.kind == "weak" else "speed-up, strong scaling"
    title = f"{first.family}, {first.size}{findings.suffix(first.environment)}: time and {kind}"
    rows = (
        {"on devices": curve.program_name, **dict.fromkeys(map(str, counts))}
        | {str(point.devices): _curve_cell(point) for point in curve.points}
        for curve in curves
    )
    return make_table("curves", f"{title}{first.points[0].relative}", "", rows)


def _curve_cell(point: CurvePoint) -> str:
    time = format_duration(point.seconds)
    if point.is_baseline:
        return time
    return f"{time}, {format_ratio(*point.speedup).partition(' (')[0]}"


def print_table(table: Table, console: Console) -> None:
    """Print the title and the rows of a table on a console, as paragraphs if the table is too wide."""
    rows = [
        [keep_numbers_whole(_to_one_line(cell, console)) for cell in row]
        for row in (table.columns, *table.rows)
    ]
    _print_wrapped(table.title, console)
    widths = _column_widths(list(zip(*rows, strict=True)), console.width)
    if widths is None:
        for head, *values in rows[1:]:
            named = (f"{name} {value}" for name, value in zip(rows[0][1:], values, strict=True) if value)
            _print_wrapped(f"{head}: {', '.join(named)}", console)
        return
    rich_table = RichTable()
    for name in rows[0]:
        rich_table.add_column(Text(name), no_wrap=True)
    for row in rows[1:]:
        cells = (wrap_text(cell, width) for cell, width in zip(row, widths, strict=True))
        rich_table.add_row(*(Text("\n".join(lines)) for lines in cells))
    console.print(rich_table)


def _column_widths(columns: Sequence[Sequence[str]], width: int) -> list[int] | None:
    """Return the width of each column in characters, or None if the table does not fit into `width`.

    `columns` contains the cells of each column. No column is narrower than its longest word.
    """
    largest = [max(map(len, column)) for column in columns]
    smallest = [max(len(word) for cell in column for word in cell.split(" ")) for column in columns]
    spare = width - _BORDERS * len(columns) - 1 - sum(smallest)
    if spare < 0:
        return None
    wanted = sum(largest) - sum(smallest)
    fraction = min(1.0, spare / wanted) if wanted else 0.0
    return [low + int(fraction * (high - low)) for low, high in zip(smallest, largest, strict=True)]


def summary_lines(findings: Findings, folder: Path, width: int = WIDTH) -> list[str]:
    """Return the summary that `scaling run` prints at its end, as lines that fit on one screen.

    The summary contains the fastest AD mode of each function, warnings, and the next commands. `width` is the
    width of the console in characters.
    """
    width = min(width, WIDTH)
    remarks = [remark for remark in lint.lint_findings(findings) if remark.severity != lint.NOTE]
    warnings = [
        f"{each.severity}: {each.rule} ({each.count}); {each.fix}" for each in remarks[:_MAX_WARNINGS]
    ]
    warnings = [textwrap.shorten(clean_text(warning), width, placeholder=" ...") for warning in warnings]
    commands = [f"scaling report {folder}", f"scaling lint {folder}"]
    if omitted := len(remarks) - len(warnings):
        warnings.append(f"{omitted} more: {commands[1]}")
    answers = [f"{answer.headline}." for answer in measured_answers(findings)] or summary.answer_sentences(
        findings
    )
    max_lines, lines = LINES - _RESERVED_LINES - len(warnings) - len(commands), list[str]()
    for index, answer in enumerate(answers):
        paragraph = wrap_text(answer, width, "  ")
        if len(lines) + len(paragraph) + (index < len(answers) - 1) > max_lines:
            lines.append(f"{len(answers) - index} more: {commands[0]}")
            break
        lines += paragraph
    return [*lines, *warnings, *commands]


def _to_one_line(text: str, console: Console) -> str:
    """Return the text on one line, without characters that the console cannot display."""
    words = " ".join(clean_text(text).split())
    if (console.encoding or "").lower().startswith("utf"):
        return words
    return words.replace("µ", "u").encode("ascii", "replace").decode()


def _print_wrapped(text: str, console: Console) -> None:
    """Print text on a console, wrapped to its width if it is a terminal and as one line otherwise."""
    line = _to_one_line(text, console)
    lines = wrap_text(line, console.width, "  ") if console.is_terminal else [line]
    for line in lines:
        console.print(Text(line), soft_wrap=True, highlight=False)
