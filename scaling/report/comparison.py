"""Comparison of two results folders, A (old) and B (new), as sentences, table rows, Markdown and page."""

from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from scaling.analysis import compare
from scaling.analysis.compare import ComparedCase, FolderComparison
from scaling.analysis.estimate import format_percentage, format_ratio
from scaling.analysis.ratios import case_median
from scaling.analysis.timings import automatic_blocks
from scaling.core.case import label
from scaling.core.formatting import count_of, format_duration
from scaling.report.case_panel import case_panels
from scaling.report.markdown import escape_markdown, to_markdown_table
from scaling.report.page import Page, Section, render, table_section
from scaling.report.text import Table, make_table
from scaling.results.store import replace_file

COLUMNS = ("verdict", "case", "A", "B", "B over A", "p", "remarks")
_MOST_ROWS = 40


def comparison_lines(comparison: FolderComparison) -> list[str]:
    """Return a summary of a comparison as sentences: folders, environments, sampling order, verdicts."""
    facts = "; ".join(f"{name} ({', then '.join(pair)})" for name, pair in comparison.differences.items())
    # Output contains no absolute path of a machine.
    a, b = (path.name if path.is_absolute() else path for path in (comparison.a, comparison.b))
    lines = [f"A is {a}, B is {b}; {f'they differ in {facts}' if facts else 'nothing recorded differs'}."]
    measured = [row.ratio for row in comparison.rows if row.ratio]
    if unpaired := sum(not ratio.pairs for ratio in measured):
        lines += [
            f"{unpaired} of {count_of(len(measured), 'case')} were not measured in turns with the other "
            "side: a change of the machine between them counts as a difference.",
            "`scaling run versus=...` measures both in turns.",
        ]
    counts = Counter(row.verdict for row in comparison.rows)
    if counts[compare.UNDECIDED]:
        lines.append(
            "Undecided: one process on a side cannot distinguish a difference from chance; "
            "replicates=3 or more can."
        )
    shown = [v for v in compare.VERDICTS if counts[v] or v in (compare.SLOWER, compare.FASTER, compare.SAME)]
    held = f"false discoveries held to {format_percentage(compare.FALSE_DISCOVERIES)}"
    margin = f"up to {100 * comparison.margin:g} % is no difference"
    words = ", ".join(f"{counts[verdict]} {verdict}" for verdict in shown)
    return [*lines, *comparison.notes, f"{words} (of {len(comparison.rows)}; {held}, {margin})"]


def changed_rows(comparison: FolderComparison) -> list[tuple[str, ...]]:
    """Return table rows of up to 40 cases whose time or status changed, and a row that counts the others."""
    changed = sum(row.verdict not in compare.UNCHANGED for row in comparison.rows)
    return comparison_rows(comparison, min(changed, _MOST_ROWS))


def comparison_rows(comparison: FolderComparison, most: int) -> list[tuple[str, ...]]:
    """Return the table rows of the first `most` compared cases, in the order of VERDICTS.

    Each row is a tuple with one cell for each of COLUMNS. If there are more cases, an additional row counts
    them.
    """
    lines = [_format_row(row) for row in comparison.rows[:most]]
    rest = Counter(row.verdict for row in comparison.rows[most:])
    words = ", ".join(f"{count} {verdict}" for verdict, count in rest.items())
    return [*lines, ("", f"and {words}", *[""] * (len(COLUMNS) - 2))] if rest else lines


def _format_row(row: ComparedCase) -> tuple[str, ...]:
    ratio, remarks, over = row.ratio, row.text[:100], ""
    if ratio:
        paired = f", {ratio.pairs} in turns" if ratio.pairs else ""
        medians = f"; the medians give {format_ratio(ratio.of_medians)}" if ratio.differs_from_medians else ""
        remarks = f"{len(row.a)} + {len(row.b)} processes{paired}{medians}{_describe_blocks(row)}"
        over = format_ratio(ratio.value, ratio.low, ratio.high)
    times = (format_duration(case_median(side)) if side else "" for side in (row.a, row.b))
    return row.verdict, label(row.case), *times, over, "" if row.p is None else f"{row.p:.2g}", remarks


def _describe_blocks(row: ComparedCase) -> str:
    chosen = (dict.fromkeys(filter(None, map(automatic_blocks, side))) for side in (row.a, row.b))
    a, b = (" or ".join(blocks) or "unknown" for blocks in chosen)
    return "" if a == b else f"; chunk=auto: {a}, then {b}"


def format_markdown(comparison: FolderComparison) -> str:
    """Return a comparison as Markdown for a pull request: summary, table of cases, and remarks."""
    *remarks, summary = map(escape_markdown, comparison_lines(comparison))
    table = Table("", "", "", COLUMNS, comparison_rows(comparison, _MOST_ROWS))
    items = "\n".join(f"- {remark}" for remark in remarks)
    return "\n\n".join([f"**{summary}**", to_markdown_table(table), items]) + "\n"


def write_comparison(comparison: FolderComparison) -> Path:
    """Write the HTML page of a comparison to report/comparison.html in folder B, and return its path."""
    target = comparison.b / "report" / "comparison.html"
    target.parent.mkdir(exist_ok=True)
    replace_file(target, render(comparison_page(comparison)).encode())
    return target


def comparison_page(comparison: FolderComparison) -> Page:
    """Return the content of the HTML page of a comparison. Unchanged cases have a separate section."""
    *remarks, summary = comparison_lines(comparison)
    changed = [row for row in comparison.rows if row.verdict not in compare.UNCHANGED]
    rest = [row for row in comparison.rows if row.verdict in compare.UNCHANGED]
    tables = (
        _comparison_table("changed", "Changed cases", changed),
        _comparison_table("unchanged", "Cases without a shown difference", rest),
    )
    sections = [Section("summary", "What was compared", summary, sentences=remarks, opened=True)]
    sections += [table_section(t, opened=t.anchor == "changed" or not changed) for t in tables if t.rows]
    counts = Counter(row.verdict for row in comparison.rows)
    badges = [(_badge_colour(verdict), f"{count} {verdict}") for verdict, count in counts.items()]
    title = f"{comparison.b.name} against {comparison.a.name}"
    panels = case_panels(
        (
            _anchor(row),
            [
                (f"{side}, process {number}", record)
                for side, records in (("A", row.a), ("B", row.b))
                for number, record in enumerate(records, 1)
            ],
        )
        for row in comparison.rows
    )
    return Page(title, summary, badges, sections, panels=panels)


def _comparison_table(anchor: str, title: str, compared: Iterable[ComparedCase]) -> Table:
    note = (
        "A is the old folder, B the new one. The link of a case opens its samples, in the order they were "
        "taken."
    )
    rows = list(compared)
    cells = ({"case": "", **dict(zip(COLUMNS, _format_row(row), strict=True))} for row in rows)
    return make_table(anchor, title, note, cells, list(map(_anchor, rows)))


def _anchor(row: ComparedCase) -> str:
    return f"case-{row.case.key}"


def _badge_colour(verdict: str) -> str:
    return "failed" if "failed" in verdict or verdict == "slower" else "ok" if verdict == "faster" else ""
