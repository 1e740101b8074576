"""Write the folder `report` of a results folder: index.html, tables in table.md, records in table.csv."""

from pathlib import Path

from scaling.analysis.dataframe import record_table
from scaling.analysis.findings import Findings, read
from scaling.analysis.forecast import describe_plan, plan_answers
from scaling.analysis.summary import answer_sentences
from scaling.report import answer_tables, page, page_tables
from scaling.report.markdown import render_markdown
from scaling.results.store import read_json, replace_file


def write_report(folder: Path, findings: Findings | None = None) -> Path:
    """Write the report of a results folder to its subfolder `report`, and return the path of index.html.

    If `findings` is None, the results are read from the folder.
    """
    findings = findings or read(folder)
    folded = page_tables.folded_tables(findings)
    target = folder / "report"
    target.mkdir(exist_ok=True)
    planned = [
        (f"Planned for {forecast.title}", [describe_plan(forecast), *plan_answers(forecast)])
        for forecast in findings.forecasts
    ]
    shown = {sentence for _, sentences in planned for sentence in sentences}
    answer = [sentence for sentence in answer_sentences(findings) if sentence not in shown]
    tables = [table for table in (answer_tables.answer_table(findings), *folded) if table.rows]
    text = render_markdown("table.md.jinja", findings=findings, answer=answer, planned=planned, tables=tables)
    replace_file(target / "table.md", text.encode())
    replace_file(target / "table.csv", record_table(findings).to_csv(index=False).encode())
    html = page.render_report(findings, _study_title(folder, findings), folded)
    replace_file(target / "index.html", html.encode())
    return target / "index.html"


def _study_title(folder: Path, findings: Findings) -> str:
    study = read_json(folder / "study.json")
    title = study.get("title") if isinstance(study, dict) else None
    return f"{findings.name}: {title}" if title else findings.name
