"""Write the report of a results folder: index.html, table.md and table.csv."""

from collections.abc import Iterable
from pathlib import Path

from scaling.analysis.dataframe import record_table
from scaling.analysis.findings import Findings, read
from scaling.analysis.forecast import describe_plan, plan_answers
from scaling.analysis.summary import answer_sentences
from scaling.report import answer_tables, page, page_tables
from scaling.report.figures import files
from scaling.report.markdown import MarkdownSection, to_markdown
from scaling.report.text import Table
from scaling.results.store import read_json, replace_file


def write_report(folder: Path, findings: Findings | None = None) -> Path:
    """Write the report of a results folder to its subfolder `report`, and return the path of index.html.

    If `findings` is None, the results are read from the folder.
    """
    findings = findings or read(folder)
    folded = page_tables.folded_tables(findings)
    target = folder / "report"
    target.mkdir(exist_ok=True)
    files.remove_stale(target)
    text = _to_markdown(findings, [answer_tables.answer_table(findings), *folded])
    replace_file(target / "table.md", text.encode())
    replace_file(target / "table.csv", record_table(findings).to_csv(index=False).encode())
    content = page.report_page(findings, study_title(folder, findings), folded)
    replace_file(target / "index.html", page.render(content).encode())
    return target / "index.html"


def study_title(folder: Path, findings: Findings) -> str:
    """Return the title of a report, such as 'smoke: A short study'.

    The title follows the name of the study. It is omitted if study.json contains none.
    """
    study = read_json(folder / "study.json")
    title = study.get("title") if isinstance(study, dict) else None
    return f"{findings.name}: {title}" if title else findings.name


def _to_markdown(findings: Findings, tables: Iterable[Table]) -> str:
    planned = [
        MarkdownSection(f"Planned for {forecast.title}", [describe_plan(forecast), *plan_answers(forecast)])
        for forecast in findings.forecasts
    ]
    shown = {sentence for section in planned for sentence in section.paragraphs}
    sentences = [sentence for sentence in answer_sentences(findings) if sentence not in shown]
    answer = MarkdownSection("Answer", sentences)
    measured = [
        MarkdownSection(table.title, tables=[table._replace(title="")]) for table in tables if table.rows
    ]
    return to_markdown(findings.name, [answer, *planned, *measured])
