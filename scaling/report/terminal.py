"""Print reports, tables and the summary of a run on a console, and save a printed report (.inputs.json).

A report that is up to date is printed again without reading the records.
"""

import contextlib
import hashlib
import itertools
import os
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from scaling.core import environment
from scaling.core.formatting import format_count
from scaling.core.record import STATUSES
from scaling.report.text import WIDTH, Table, clean_text, keep_numbers_whole, wrap_text
from scaling.results import store

if TYPE_CHECKING:
    from scaling.analysis.findings import Findings

REPORT_FILES = ("index.html", "table.md")
_SAVED_OUTPUT = ".inputs.json"  # file with the digest of a report's inputs and its text for a console
_BORDER_WIDTH = 3  # characters of padding and border per column
# `scaling run` prints at most 25 lines: answers, warnings, two commands, and four lines below them.
_ANSWER_LINES, _MAX_WARNINGS = 15, 4


class TerminalReport(NamedTuple):
    """The tables and text that `scaling report` prints about a results folder."""

    tables: Sequence[Table]  # the fastest modes, and the scaling curves of each problem
    sentences: Sequence[str]
    totals: str  # the number of cases per status


def terminal_report(findings: "Findings") -> TerminalReport:
    """Return the tables and sentences that `scaling report` prints on a console."""
    from scaling.analysis.answers import answer_sentences
    from scaling.analysis.curves import curves_of_largest_problems
    from scaling.report.tables import answer_table, curve_table

    derivatives = (curve for curve in findings.curves if not curve.case.ad_mode.is_value)
    curve_tables = (curve_table(findings, curves) for curves in curves_of_largest_problems(derivatives))
    tables = [table for table in (answer_table(findings), *curve_tables) if table.rows]
    return TerminalReport(tables, answer_sentences(findings), describe_totals(findings))


def describe_totals(findings: "Findings") -> str:
    """Return the number of cases with each status as text, such as '2 ok, 0 skipped, 1 failed'.

    Each replicate counts as a case. Missing cases are stated if there are any. Planned cases are stated if
    the folder contains only plans.
    """
    from scaling.report.tables import count_statuses

    counts = count_statuses(findings)
    has_only_plans = bool(findings.forecasts) and not findings.newest_records
    statuses = [*(STATUSES if has_only_plans else STATUSES[:3]), *(["missing"] if counts["missing"] else [])]
    return ", ".join(f"{counts[name]:,} {name}" for name in statuses)


def inputs_digest(folder: Path) -> str:
    """Return a SHA-256 digest of everything that determines the report of a results folder.

    The digest covers the name, records, plans and study.json of the folder, and the source and templates of
    this package.
    """
    digest = hashlib.sha256(os.fsencode(f"{folder.resolve().name} {environment.package_hash()}"))
    templates = Path(__file__).parent.glob("*.[cj]*")  # .css, .jinja and .js files
    inputs = [*folder.glob("*.jsonl"), *folder.glob("plan-*.json"), folder / "study.json"]
    for path in (*sorted(inputs), *sorted(templates)):
        content = b""
        with contextlib.suppress(OSError):
            content = store.read_file(path)
        digest.update(os.fsencode(f"{path.name} {len(content)} ") + content)
    return digest.hexdigest()


def _add_output_digest(folder: Path, digest: str) -> str:
    """Return `digest`, followed by a space and a digest of the existing files of the report."""
    output = hashlib.sha256()
    for name in REPORT_FILES:
        with contextlib.suppress(OSError):
            output.update(store.read_file(folder / "report" / name))
    return f"{digest} {output.hexdigest()}"


def load_saved_output(folder: Path, digest: str) -> TerminalReport | None:
    """Return what the last report printed on the console, or None if the report is outdated.

    A report is outdated if `digest` is not the saved digest of its inputs, or if one of its files was
    changed.
    """
    saved = store.read_json(folder / "report" / _SAVED_OUTPUT)
    if not (isinstance(saved, dict) and saved.get("digest") == _add_output_digest(folder, digest)):
        return None
    return TerminalReport([Table(*table) for table in saved["tables"]], saved["sentences"], saved["totals"])


def save_output(folder: Path, digest: str, printed: TerminalReport) -> None:
    """Save what a report printed on the console, and the digest of its inputs, to report/.inputs.json."""
    content = {"digest": _add_output_digest(folder, digest)} | printed._asdict()
    store.write_json(folder / "report" / _SAVED_OUTPUT, content)


def print_report(report: TerminalReport, console: Console) -> None:
    """Print the tables and the sentences of a report on a console."""
    for table in report.tables:
        print_table(table, console)
    for sentence in report.sentences:
        print_wrapped(f"- {sentence}", console)


def print_table(table: Table, console: Console) -> None:
    """Print a table and its title. If the console is too narrow, print each row as a paragraph."""
    header, *text_rows = (
        [keep_numbers_whole(_to_one_line(cell, console)) for cell in row]
        for row in (table.columns, *table.rows)
    )
    print_wrapped(table.title, console)
    widths = _column_widths(list(zip(header, *text_rows, strict=True)), console.width)
    if widths is None:
        for first_cell, *cells in text_rows:
            named = (f"{name} {cell}" for name, cell in zip(header[1:], cells, strict=True) if cell)
            print_wrapped(f"{first_cell}: {', '.join(named)}", console)
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
    """Return the width of each column in characters, or None if the table does not fit into `width`.

    `columns` contains the cells of each column. Words are not broken.
    """
    max_widths = [max(map(len, column)) for column in columns]
    min_widths = [max(len(word) for cell in column for word in cell.split(" ")) for column in columns]
    free_width = width - _BORDER_WIDTH * len(columns) - 1 - sum(min_widths)
    if free_width < 0:
        return None
    wanted_width = sum(max_widths) - sum(min_widths)
    fraction = min(1.0, free_width / wanted_width) if wanted_width else 0.0
    return [low + int(fraction * (high - low)) for low, high in zip(min_widths, max_widths, strict=True)]


def _to_one_line(text: str, console: Console) -> str:
    """Return a text on one line, without characters that the console cannot display."""
    line = " ".join(clean_text(text).split())
    if (console.encoding or "").lower().startswith("utf"):
        return line
    return line.replace("µ", "u").encode("ascii", "replace").decode()


def print_wrapped(text: str, console: Console) -> None:
    """Print text wrapped to the width of the console, or on one line if the console is not a terminal."""
    line = _to_one_line(text, console)
    wrapped = "\n".join(wrap_text(line, console.width, "  ")) if console.is_terminal else line
    console.print(Text(wrapped), soft_wrap=True, highlight=False)


def summary_lines(findings: "Findings", folder: Path, width: int = WIDTH) -> list[str]:
    """Return the lines of a summary that fits one screen: answers, warnings, and the next commands.

    No line is longer than `width` characters, except the commands.
    """
    from scaling.analysis.answers import answer_sentences, measured_answers
    from scaling.analysis.lint import lint_findings

    width = min(width, WIDTH)
    remarks = [clean_text(f"{r.severity}: {r.rule} ({r.count}); {r.fix}") for r in lint_findings(findings)]
    answers = [f"{answer.headline}." for answer in measured_answers(findings)]
    answers = answers or answer_sentences(findings)[: -1 if remarks else None]  # without that on the remarks
    paragraphs = [wrap_text(answer, width, "  ") for answer in answers]
    fitting = sum(end <= _ANSWER_LINES for end in itertools.accumulate(map(len, paragraphs)))
    shown = max(1, fitting)  # the first answer also on a narrow screen
    warnings = [textwrap.shorten(text, width, placeholder=" ...") for text in remarks[:_MAX_WARNINGS]]
    return [
        *itertools.chain(*paragraphs[:shown]), *warnings,
        store.format_command("report", folder) + _count_more(len(answers[shown:]), "answer"),
        store.format_command("lint", folder) + _count_more(len(remarks) - len(warnings), "problem"),
    ]  # fmt: skip


def _count_more(omitted: int, noun: str) -> str:
    return f"  # {format_count(omitted, f'more {noun}')}" if omitted else ""
