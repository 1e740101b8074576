"""Write the report of a results folder: index.html, table.md and table.csv."""

from pathlib import Path

from scaling.analysis.dataframe import record_columns, to_csv
from scaling.analysis.findings import Findings, read
from scaling.analysis.summary import answer_sentences
from scaling.report import page, tables
from scaling.report.markdown import render_markdown
from scaling.results import store


def write_report(folder: Path, findings: Findings | None = None) -> Path:
    """Write a report to the subfolder `report` of a results folder, and return the path of index.html.

    Existing files are replaced, unless they have the same content. If `findings` is None, the results are
    read from `folder`. Raise `Refusal` if a file must be written and cannot be.
    """
    findings = findings or read(folder)
    study = store.read_json(folder / "study.json")
    title = study.get("title") if isinstance(study, dict) else None
    folded = tables.folded_tables(findings)
    text = render_markdown(
        "table.md.jinja", findings=findings, answer=answer_sentences(findings),
        tables=[table for table in (tables.answer_table(findings), *folded) if table.rows],
    )  # fmt: skip
    html = page.render_report(findings, f"{findings.name}: {title}" if title else findings.name, folded)
    files = {"index.html": html, "table.md": text, "table.csv": to_csv(record_columns(findings))}
    for name, content in files.items():
        path = folder / "report" / name
        if not path.is_file() or path.read_bytes() != content.encode():
            store.require_writable(path.parent)
            path.parent.mkdir(exist_ok=True)
            store.replace_file(path, content.encode())
    return folder / "report" / "index.html"
