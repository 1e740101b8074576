"""Write the report of a results folder: index.html, table.md and table.csv."""

from collections.abc import Sequence
from pathlib import Path

from scaling.analysis.answer import answer_sentences, describe_plan
from scaling.analysis.dataframe import record_table
from scaling.analysis.findings import Findings, read
from scaling.analysis.forecast import plan_answers
from scaling.core.store import read_json, replace_file
from scaling.report import answer_tables, page, page_tables
from scaling.report.document import escape_markdown, to_markdown_table
from scaling.report.figures import files
from scaling.report.text import Table, clean_text


def write_report(folder: Path, findings: Findings | None = None) -> Path:
    """Write the report of a results folder to its subfolder `report`, and return the path of index.html."""
    findings = findings or read(folder)
    by_devices = answer_tables.device_table(findings)
    folded = [*([by_devices] if by_devices.rows else []), *page_tables.folded_tables(findings)]
    target = folder / "report"
    target.mkdir(exist_ok=True)
    files.remove_stale(target)
    every = [answer_tables.answer_table(findings), *folded]
    replace_file(target / "table.md", clean_text(_to_markdown(findings, every)).encode())
    replace_file(target / "table.csv", record_table(findings).to_csv(index=False).encode())
    shown = page.report_page(findings, study_title(folder, findings), folded)
    replace_file(target / "index.html", page.render(shown).encode())
    return target / "index.html"


def study_title(folder: Path, findings: Findings) -> str:
    """Return the title of a report, such as 'smoke: A short study'.

    If study.json contains no title, return only the name of the study.
    """
    study = read_json(folder / "study.json")
    title = study.get("title") if isinstance(study, dict) else None
    return f"{findings.name}: {title}" if title else findings.name


def _to_markdown(findings: Findings, folded_tables: Sequence[Table]) -> str:
    plans = [[describe_plan(each), *plan_answers(each)] for each in findings.forecasts]
    planned = {sentence for sentences in plans for sentence in sentences}
    sentences = [sentence for sentence in answer_sentences(findings) if sentence not in planned]
    parts = [f"# {escape_markdown(findings.name)}", *map(escape_markdown, sentences)]
    for each, answered in zip(findings.forecasts, plans, strict=True):
        parts += [f"## {escape_markdown(f'Planned for {each.title}')}", *map(escape_markdown, answered)]
    for table in folded_tables:
        if table.rows:
            parts += [f"## {escape_markdown(table.title)}", to_markdown_table(table.columns, table.rows)]
    return "\n\n".join(parts) + "\n"
