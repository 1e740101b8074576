"""The report: a results folder as a page (page.py), its figures (figures) and its tables (tables.py),
written as files.
"""

import io
from collections.abc import Sequence
from pathlib import Path

from scaling.analysis.answer import answer_sentences
from scaling.analysis.findings import Findings, read
from scaling.analysis.table import UNENCODABLE, record_table, write_csv_table
from scaling.core.store import replace_file
from scaling.report import figures, outcomes, page, planned, tables
from scaling.report.document import escape_markdown
from scaling.report.figures import files
from scaling.report.labels import clean_text

_UNMEASURED = ("status", "reason", "case", "text")


def write_report(folder: Path, findings: Findings | None = None) -> Path:
    """Write the report of a results folder into its folder `report`; return the path of the page."""
    findings = findings or read(folder)
    made, page_tables = figures.make_figures(findings), tables.page_tables(findings)
    target = folder / "report"
    target.mkdir(exist_ok=True)
    files.remove_stale(target)
    replace_file(target / "table.md", clean_text(_to_markdown(findings, page_tables)).encode())
    replace_file(target / "table.csv", _to_csv(findings).encode(errors=UNENCODABLE))
    replace_file(target / "index.html", clean_text(page.render_page(findings, made, page_tables)).encode())
    return target / "index.html"


def _to_markdown(findings: Findings, page_tables: Sequence[tables.PageTable]) -> str:
    plans = planned.plan_sections(findings)
    parts = [
        f"# {escape_markdown(findings.name)}",
        *map(escape_markdown, planned.leave_out_answers(plans, answer_sentences(findings))),
    ]
    for section in plans:
        parts += [
            f"## {escape_markdown(section.title)}",
            *map(escape_markdown, (section.basis, *section.answers)),
        ]
    rest = [
        (group.status, group.reason, *row)
        for group in outcomes.group_unmeasured(findings)
        for row in group.cases
    ]
    for title, columns, rows in [
        *((table.title, table.columns, table.rows) for table in page_tables),
        *([("Skipped and failed", _UNMEASURED, rest)] if rest else []),
    ]:
        lines = [columns, ["---"] * len(columns), *([escape_markdown(text) for text in row] for row in rows)]
        parts += [f"## {escape_markdown(title)}", "\n".join(f"| {' | '.join(line)} |" for line in lines)]
    return "\n\n".join(parts) + "\n"


def _to_csv(findings: Findings) -> str:
    text = io.StringIO()
    write_csv_table(record_table(findings), text)
    return text.getvalue()
