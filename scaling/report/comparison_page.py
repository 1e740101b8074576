"""HTML page of a comparison of two results folders (analysis/compare.py): changed and unchanged cases."""

from collections import Counter
from pathlib import Path

from scaling.analysis.compare import (
    COLUMNS,
    SAME,
    UNDECIDED,
    ComparedCase,
    FolderComparison,
    comparison_lines,
    comparison_rows,
)
from scaling.core.record import Record
from scaling.core.store import replace_file
from scaling.report import page
from scaling.report.case_panel import case_panels
from scaling.report.page import Page, Section, table_section
from scaling.report.text_table import Table

_UNCHANGED = (SAME, UNDECIDED)
NOTE = (
    "A is the old folder, B the new one. The link of a case opens its samples, in the order they were taken."
)


def write_comparison(comparison: FolderComparison) -> Path:
    """Write the HTML page of a comparison, and return its path.

    The page is report/comparison.html in folder B, the newer of the two results folders.
    """
    target = comparison.b / "report" / "comparison.html"
    target.parent.mkdir(exist_ok=True)
    replace_file(target, page.render(comparison_page(comparison)).encode())
    return target


def comparison_page(comparison: FolderComparison) -> Page:
    """Return the content of the HTML page of a comparison, with unchanged cases in a separate section."""
    *remarks, summary = comparison_lines(comparison)
    rows = comparison_rows(comparison, len(comparison.rows))
    pairs = list(zip(comparison.rows, rows, strict=True))
    changed = [pair for pair in pairs if pair[0].verdict not in _UNCHANGED]
    rest = [pair for pair in pairs if pair[0].verdict in _UNCHANGED]
    counts = Counter(row.verdict for row in comparison.rows)
    panels = case_panels((_anchor(row), _name_processes(row)) for row in comparison.rows)
    sections = [
        Section("summary", "What was compared", summary, sentences=remarks, opened=True),
        table_section(_comparison_table("changed", "Changed cases", changed), opened=True),
        table_section(
            _comparison_table("unchanged", "Cases without a shown difference", rest), opened=not changed
        ),
    ]
    badges = [(_badge_colour(verdict), f"{count} {verdict}") for verdict, count in counts.items()]
    title = f"{comparison.b.name} against {comparison.a.name}"
    return Page(title, summary, badges, sections, panels=panels)


def _comparison_table(anchor: str, title: str, pairs: list[tuple[ComparedCase, tuple[str, ...]]]) -> Table:
    order = [COLUMNS.index("case"), *(at for at, name in enumerate(COLUMNS) if name != "case")]
    cells = [tuple(row[at] for at in order) for _, row in pairs]
    return Table(
        anchor, title, NOTE, tuple(COLUMNS[at] for at in order), cells, [_anchor(c) for c, _ in pairs]
    )


def _anchor(row: ComparedCase) -> str:
    return f"case-{row.case.key}"


def _name_processes(row: ComparedCase) -> list[tuple[str, Record]]:
    return [(f"{side}, process {n}", r) for side in "AB" for n, r in enumerate(getattr(row, side.lower()), 1)]


def _badge_colour(verdict: str) -> str:
    return "failed" if "failed" in verdict or verdict == "slower" else "ok" if verdict == "faster" else ""
