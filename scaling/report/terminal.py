"""Print reports and tables on a console, and format the summary of a run.

This module imports the analysis only where it needs it, so that other commands start quickly.
"""

import itertools
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from scaling.core.formatting import format_count
from scaling.core.record import STATUSES
from scaling.report.text import WIDTH, Table, clean_text, keep_numbers_whole, wrap_text
from scaling.results import store

if TYPE_CHECKING:
    from scaling.analysis.findings import Findings

_BORDER_WIDTH = 3  # characters of padding and border per column
# `scaling run` prints at most 25 lines: answers, warnings, two commands, and four lines below them.
_ANSWER_LINES, _MAX_WARNINGS = 15, 4


def print_report(findings: "Findings", console: Console) -> None:
    """Print the fastest modes, the scaling curves of each problem, and the sentences of a report."""
    from scaling.analysis.answers import answer_sentences
    from scaling.analysis.curves import curves_of_largest_problems
    from scaling.report.tables import answer_table, curve_table

    derivatives = (curve for curve in findings.curves if not curve.case.ad_mode.is_value)
    curve_tables = (curve_table(findings, curves) for curves in curves_of_largest_problems(derivatives))
    for table in (answer_table(findings), *curve_tables):
        if table.rows:
            print_table(table, console)
    for sentence in answer_sentences(findings):
        _print_wrapped(f"- {sentence}", console)


def describe_totals(findings: "Findings") -> str:
    """Return the number of cases of each status as text, such as '2 ok, 0 skipped, 1 failed'.

    Each replicate counts as a case. The text also states the number of missing cases, if there are any. If
    there are only plans, it states the number of planned cases.
    """
    from scaling.report.tables import count_statuses

    counts = count_statuses(findings)
    has_only_plans = bool(findings.forecasts) and not findings.newest_records
    statuses = [*(STATUSES if has_only_plans else STATUSES[:3]), *(["missing"] if counts["missing"] else [])]
    return ", ".join(f"{counts[name]:,} {name}" for name in statuses)


def print_table(table: Table, console: Console) -> None:
    """Print a table and its title. If the console is too narrow, print each row as a paragraph."""
    header, *text_rows = (
        [keep_numbers_whole(_to_one_line(cell, console)) for cell in row]
        for row in (table.columns, *table.rows)
    )
    _print_wrapped(table.title, console)
    widths = _column_widths(list(zip(header, *text_rows, strict=True)), console.width)
    if widths is None:
        for first_cell, *cells in text_rows:
            named = (f"{name} {cell}" for name, cell in zip(header[1:], cells, strict=True) if cell)
            _print_wrapped(f"{first_cell}: {', '.join(named)}", console)
        return
    rich_table = RichTable()
    names, *rows = (
        [Text("\n".join(wrap_text(cell, width))) for cell, width in zip(row, widths, strict=True)]
        for row in (header, *text_rows)
    )
    for name in names:
        rich_table.add_column(name, no_wrap=True)
    for row in rows:
        rich_table.add_row(*row)
    console.print(rich_table)


def _column_widths(columns: Sequence[Sequence[str]], width: int) -> list[int] | None:
    """Return the width of each column in characters, or None if the longest words do not fit into `width`."""
    max_widths = [max(map(len, column)) for column in columns]
    min_widths = [max(len(word) for cell in column for word in cell.split(" ")) for column in columns]
    free_width = width - _BORDER_WIDTH * len(columns) - 1 - sum(min_widths)
    if free_width < 0:
        return None
    wanted_width = sum(max_widths) - sum(min_widths)
    fraction = min(1.0, free_width / wanted_width) if wanted_width else 0.0
    return [low + int(fraction * (high - low)) for low, high in zip(min_widths, max_widths, strict=True)]


def _to_one_line(text: str, console: Console) -> str:
    """Return a text on one line. Characters that the console cannot display are replaced."""
    line = " ".join(clean_text(text).split())
    if (console.encoding or "").lower().startswith("utf"):
        return line
    return line.replace("µ", "u").encode("ascii", "replace").decode()


def _print_wrapped(text: str, console: Console) -> None:
    """Print text wrapped to the width of the console, or on one line if the console is not a terminal."""
    line = _to_one_line(text, console)
    wrapped = "\n".join(wrap_text(line, console.width, "  ")) if console.is_terminal else line
    console.print(Text(wrapped), soft_wrap=True, highlight=False)


def summary_lines(findings: "Findings", folder: Path, width: int = WIDTH) -> list[str]:
    """Return a summary of `width` columns that fits one screen. It ends with the commands to run next."""
    from scaling.analysis.answers import answer_sentences, measured_answers
    from scaling.analysis.lint import lint_findings

    width = min(width, WIDTH)
    answers = [f"{answer.headline}." for answer in measured_answers(findings)] or answer_sentences(findings)
    paragraphs = [wrap_text(answer, width, "  ") for answer in answers]
    fitting = sum(end <= _ANSWER_LINES for end in itertools.accumulate(map(len, paragraphs)))
    shown = max(1, fitting)  # the first answer also on a narrow screen
    remarks = [clean_text(f"{r.severity}: {r.rule} ({r.count}); {r.fix}") for r in lint_findings(findings)]
    warnings = [textwrap.shorten(text, width, placeholder=" ...") for text in remarks[:_MAX_WARNINGS]]
    return [
        *itertools.chain(*paragraphs[:shown]), *warnings,
        store.format_command("report", folder) + _count_more(len(answers[shown:]), "answer"),
        store.format_command("lint", folder) + _count_more(len(remarks) - len(warnings), "problem"),
    ]  # fmt: skip


def _count_more(omitted: int, noun: str) -> str:
    return f"  # {format_count(omitted, f'more {noun}')}" if omitted else ""
