"""The report: a results folder as a page that needs nothing else (page.py), its figures (figures.py) and its tables (tables.py).

Knows the files. Whatever stands in a record is text: it is escaped in HTML and Markdown alike.
"""

import io
from collections.abc import Sequence
from pathlib import Path

from scaling.analysis.answer import sentences
from scaling.analysis.findings import Findings, read
from scaling.core.files import replace_file
from scaling.report import figures, outcomes, page, planned, tables
from scaling.report.document import markdown
from scaling.report.export import UNENCODABLE, csv_table
from scaling.report.labels import legible
from scaling.report.rows import record_table

_UNMEASURED = ("status", "reason", "case", "text")


def write(folder: Path, found: Findings | None = None) -> Path:
    """Write the report of a results folder, read before or not, into its folder `report`; the path of the page."""
    found = found or read(folder)
    drawings, shown = figures.draw(found), tables.every(found)
    target = folder / "report"
    target.mkdir(exist_ok=True)
    names = {*figures.NAMES, *(path.stem for start in figures.FOR_HARDWARE for path in target.glob(f"{start}*"))}
    for stale in names - {drawing.name for drawing in drawings}:
        for ending in figures.ENDINGS:
            (target / f"{stale}.{ending}").unlink(missing_ok=True)
    for drawing in drawings:
        replace_file(target / f"{drawing.name}.svg", drawing.svg.encode())
        replace_file(target / f"{drawing.name}.png", drawing.png)
        replace_file(target / f"{drawing.name}.pdf", drawing.pdf)
    replace_file(target / "table.md", legible(_markdown(found, shown)).encode())
    replace_file(target / "table.csv", _csv(found).encode(errors=UNENCODABLE))
    replace_file(target / "index.html", legible(page.html(found, drawings, shown)).encode())
    return target / "index.html"


def _markdown(found: Findings, shown: Sequence[tables.PageTable]) -> str:
    plans = planned.sections(found)
    parts = [f"# {markdown(found.name)}", *map(markdown, planned.without(plans, sentences(found)))]
    for section in plans:
        parts += [f"## {markdown(section.title)}", *map(markdown, (section.basis, *section.answers))]
    rest = [(group["status"], group["reason"], *item) for group in outcomes.unmeasured(found) for item in group["items"]]
    for title, columns, rows in [
        *((table.title, table.columns, table.rows) for table in shown),
        *([("Skipped and failed", _UNMEASURED, rest)] if rest else []),
    ]:
        lines = [columns, ["---"] * len(columns), *([markdown(text) for text in row] for row in rows)]
        parts += [f"## {markdown(title)}", "\n".join(f"| {' | '.join(line)} |" for line in lines)]
    return "\n\n".join(parts) + "\n"


def _csv(found: Findings) -> str:
    text = io.StringIO()
    csv_table(record_table(found), text)
    return text.getvalue()
