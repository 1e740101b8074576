"""Format a comparison of two results folders (`FolderComparison`) as sentences, Markdown or an HTML page."""

import textwrap
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from scaling.analysis import folder_comparison
from scaling.analysis.estimate import format_percentage, format_ratio
from scaling.analysis.folder_comparison import ComparedCase, FolderComparison
from scaling.analysis.ratios import estimate_time
from scaling.analysis.timings import pool_processes, reasons_for_doubt
from scaling.core.case import label
from scaling.core.formatting import format_count, format_duration
from scaling.core.grouping import group_by
from scaling.report.page import Section, case_panels, render_page, table_section
from scaling.report.text import Table, escape_markdown, make_table, to_markdown_table
from scaling.results.store import write_files

_MAX_ROWS = 40  # largest number of cases in the tables of the console and of Markdown
_BADGE_CLASSES = {  # verdict -> CSS class of its color, unless it has the default color
    **dict.fromkeys((*folder_comparison.REGRESSIONS, "failed in A"), "failed"),
    folder_comparison.FASTER: "ok",
}
_NOTE = (
    "A is the old folder, B the new one. The link of a case opens its samples, in the order they were taken: "
    "A in blue, B in orange. p: the p-value, corrected for the number of cases."
)


def comparison_lines(comparison: FolderComparison) -> list[str]:
    """Return sentences on a comparison. The last one counts the cases with each verdict."""
    differing = "; ".join(f"{fact} ({', then '.join(pair)})" for fact, pair in comparison.differences.items())
    difference = f"they differ in {differing}" if differing else "nothing recorded differs"
    # Output contains no absolute path of a machine.
    a, b = (path.name if path.is_absolute() else path for path in (comparison.a, comparison.b))
    lines = [f"A is {a}, B is {b}; {difference}."]
    measured = [(row.ratio.pairs, max(len(row.a), len(row.b))) for row in comparison.rows if row.ratio]
    # A single pair is not used if there are other processes.
    if unpaired := sum(pairs < min(2, processes) for pairs, processes in measured):
        lines += [
            f"{unpaired} of {format_count(len(measured), 'case')} {'was' if unpaired == 1 else 'were'} not "
            "measured in turns with the other folder: a change of the machine between them counts as a "
            "difference.",
            "`scaling run versus=...` measures both in turns.",
        ]
    counts = Counter(row.verdict for row in comparison.rows)
    if counts[folder_comparison.UNDECIDED]:
        lines.append(
            "Undecided: one process in a folder cannot distinguish a difference from chance; "
            "replicates=3 or more can."
        )
    always_shown = (folder_comparison.SLOWER, folder_comparison.FASTER, folder_comparison.SAME)
    shown = [verdict for verdict in folder_comparison.VERDICTS if counts[verdict] or verdict in always_shown]
    error_rate = f"false discoveries held to {format_percentage(folder_comparison.FALSE_DISCOVERIES)}"
    margin = f"up to {100 * comparison.margin:g} % is no difference"
    totals = ", ".join(f"{counts[verdict]} {verdict}" for verdict in shown)
    return [*lines, *comparison.notes, f"{totals} (of {len(comparison.rows)}; {error_rate}, {margin})"]


def changed_table(comparison: FolderComparison) -> Table:
    """Return a table of at most 40 changed cases. Its last row counts the cases that are omitted, if any."""
    return _short_table([row for row in comparison.rows if row.verdict not in folder_comparison.UNCHANGED])


def _short_table(cases: Sequence[ComparedCase]) -> Table:
    table_rows = [_format_compared_case(compared) for compared in cases[:_MAX_ROWS]]
    if omitted := len(cases) - len(table_rows):
        table_rows.append(dict.fromkeys(table_rows[0]) | {"case": f"and {omitted} more"})
    return make_table("changed", "Changed cases", "", table_rows)


def case_table(cases: Sequence[ComparedCase], anchor: str = "changed", title: str = "Changed cases") -> Table:
    """Return the table of compared cases on the HTML page: both times, their ratio and the verdict."""
    rows = (
        {"case": "", **_format_compared_case(compared)} for compared in cases
    )  # the first column has the links
    return make_table(anchor, title, _NOTE, rows, [f"case-{compared.case.key}" for compared in cases])


def _format_compared_case(compared: ComparedCase) -> dict[str, object]:
    ratio, remarks = compared.ratio, textwrap.shorten(compared.text, 100, placeholder=" ...")
    if ratio:
        pairs_text = f", {ratio.pairs} in turns" if ratio.pairs else ""
        remarks = f"{len(compared.a)} + {len(compared.b)} processes{pairs_text}{_describe_doubts(compared)}"
    return {
        "verdict": compared.verdict,
        "case": label(compared.case),
        "A": format_duration(estimate_time(compared.a).value) if compared.a else None,
        "B": format_duration(estimate_time(compared.b).value) if compared.b else None,
        "B over A": ratio and format_ratio(*ratio.estimate),
        "p": None if compared.p is None else f"{compared.p:.2g}",
        "remarks": remarks,
    }


def _describe_doubts(compared: ComparedCase) -> str:
    if compared.verdict not in (folder_comparison.SLOWER, folder_comparison.FASTER):
        return ""
    timings = pool_processes(compared.a) + pool_processes(compared.b)
    doubts = reasons_for_doubt(*sorted(timings, key=lambda timing: timing.median))
    return f"; not sure: {', '.join(doubts)}" if doubts else ""


def format_markdown(comparison: FolderComparison) -> str:
    """Return a comparison in Markdown, for example for a pull request, with a table of at most 40 cases."""
    *remarks, summary = map(escape_markdown, comparison_lines(comparison))
    table = to_markdown_table(_short_table(comparison.rows))
    return "\n\n".join([f"**{summary}**", table, "\n".join(f"- {remark}" for remark in remarks)]) + "\n"


def write_comparison(comparison: FolderComparison) -> Path:
    """Write the HTML page report/comparison.html in the new results folder (B), and return its path."""
    *remarks, summary = comparison_lines(comparison)
    cases_by_unchanged = group_by(comparison.rows, lambda row: row.verdict in folder_comparison.UNCHANGED)
    tables = (
        case_table(cases_by_unchanged.get(False, [])),
        case_table(cases_by_unchanged.get(True, []), "unchanged", "Cases without a shown difference"),
    )
    sections = [Section("summary", "What was compared", "", sentences=remarks, opened=True)]
    sections += [table_section(table, table.anchor == "changed") for table in tables if table.rows]
    counts = Counter(row.verdict for row in comparison.rows)
    badges = [(_BADGE_CLASSES.get(verdict, ""), f"{count} {verdict}") for verdict, count in counts.items()]
    title = f"{comparison.b.name} against {comparison.a.name}"
    panels = case_panels({f"case-{row.case.key}": {"A, ": row.a, "B, ": row.b} for row in comparison.rows})
    page = render_page(title, summary, badges, sections, panels)
    (path,) = write_files(comparison.b / "report", {"comparison.html": page.encode()})
    return path
