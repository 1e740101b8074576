"""Write the HTML page of a report (`write_report`), or render that of a comparison (`render_page`).

A page consists of badges, answers, `Section`s and a panel for each case. It works offline. Its template
page.html.jinja includes page.css and page.js. Text from records is escaped. In the browser, vega.min.js draws
the figures.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from markupsafe import Markup

from scaling.analysis.answers import (
    FastestAnswer,
    answer_sentences,
    measured_answers,
)
from scaling.analysis.findings import Findings
from scaling.analysis.lint import format_verdict, lint_findings
from scaling.analysis.timings import describe_disturbed_turns, disturbed_samples
from scaling.core.formatting import format_bytes, format_count, format_duration
from scaling.core.record import STAGES, STATUSES, Record
from scaling.report import tables
from scaling.report.figures import charts, files
from scaling.report.figures.marks import SHAPES, Figure
from scaling.report.terminal import REPORT_FILES
from scaling.report.text import Table, clean_text, load_template, render_markdown
from scaling.results.store import write_files

_MAX_SAMPLES = 14_000  # on one page; if there are more, only every n-th sample of a process is plotted
_MAX_CARDS = 24  # largest number of functions with a card at the top of the page
_RANGE_FIELDS = (  # fields of a record; a detail panel shows the smallest and the largest value
    "detect_seconds", "color_seconds", *STAGES, "argument_bytes", "output_bytes", "temp_bytes", "peak_bytes",
)  # fmt: skip


class Section(NamedTuple):
    """A section of the HTML page that the reader can expand, with sentences, a figure or a table."""

    anchor: str
    title: str
    summary: str  # one line, which is also visible if the section is collapsed
    sentences: Sequence[str] = ()
    figure: Figure | None = None
    table: Table | None = None
    opened: bool = False  # whether the section is initially expanded


def write_report(folder: Path, findings: Findings) -> Path:
    """Write report/index.html and report/table.md in a results folder, and return the path of index.html."""
    answer_table, folded = tables.answer_table(findings), tables.folded_tables(findings)
    sentences, report_folder = answer_sentences(findings), folder / "report"
    page = _render_report(findings, sentences, answer_table, folded)
    markdown = render_markdown(
        "table.md.jinja", findings=findings, answer=sentences,
        tables=[table for table in (answer_table, *folded) if table.rows],
    )  # fmt: skip
    contents = dict(zip(REPORT_FILES, (page.encode(), markdown.encode()), strict=True))
    return write_files(report_folder, contents)[0]


def _render_report(
    findings: Findings, sentences: Sequence[str], answer_table: Table, folded_tables: Iterable[Table]
) -> str:
    """Return the HTML page of a results folder.

    It begins with `answer_table`, or with `sentences` if this table is empty. Each of `folded_tables` is in a
    collapsed section.
    """
    sections = [
        Section(figure.name, figure.title, _first_sentence(figure.caption), figure=figure, opened=number == 0)
        for number, figure in enumerate(charts.make_figures(findings))
    ]
    sections += map(table_section, folded_tables)
    in_sentences = Section(
        "sentences", "In sentences", "the answer with all that went wrong", sentences=sentences
    )
    if answer_table.rows:
        sections = [table_section(answer_table, opened=True), *sections, in_sentences]
    else:
        sections = [in_sentences._replace(opened=True), *sections]
    panels = case_panels({tables.case_anchor(t): {"": t.records} for t in findings.case_timings})
    provenance, counts = files.describe_provenance(findings), tables.count_statuses(findings)
    badges = [(status, f"{counts[status]:,} {status}") for status in (*STATUSES, "missing") if counts[status]]
    badges.append(("review", f"lint: {format_verdict(lint_findings(findings))}"))
    study_title = findings.study.content.get("title")
    title = f"{findings.name}: {study_title}" if study_title else findings.name
    return render_page(title, provenance, badges, sections, panels, measured_answers(findings))


def table_section(table: Table, opened: bool = False) -> Section:
    """Return a section that contains a table. It is initially expanded if `opened` is true."""
    sentence = "" if opened else _first_sentence(table.note)
    row_count = format_count(len(table.rows), "row")
    summary = f"{row_count}. {sentence}" if sentence else row_count
    return Section(table.anchor, table.title, summary, table=table, opened=opened)


def _first_sentence(text: str) -> str:
    return text.partition(". ")[0].rstrip(".")


def render_page(
    title: str,
    provenance: str,
    badges: Sequence[tuple[str, str]],
    sections: Sequence[Section],
    panels: Mapping[str, Any],
    answers: Sequence[FastestAnswer] = (),
) -> str:
    """Return an HTML page with a title, badges, answers, sections and a detail panel for each case.

    `provenance` is the line below the title. Each badge consists of a CSS class and a text. `panels` is the
    result of `case_panels`.
    """
    figures = [section.figure for section in sections if section.figure]
    vega = Path(__file__).with_name("vega.min.js").read_text(encoding="utf-8") if figures or panels else ""
    text = load_template("page.html.jinja").render(
        title=title, provenance=provenance, badges=badges, sections=sections, answers=answers,
        max_cards=_MAX_CARDS, shapes=SHAPES, specs=Markup(files.page_specs(figures)),
        panels=Markup(files.to_script_json(panels)), vega=Markup(vega),
    )  # fmt: skip
    return clean_text(text)


def case_panels(cases: Mapping[str, Mapping[str, Sequence[Record]]]) -> dict[str, Any]:
    """Return a detail panel for each case that has records, as a dict by HTML anchor.

    `cases` maps an HTML anchor to groups of records, with one record per process. The key of a group is a
    prefix of process names: 'A, ' gives 'A, process 1', 'A, process 2' and so on. A panel is a
    JSON-compatible dict:

    facts      list of strings, such as 'compile 1.20 s to 1.40 s'
    step       usually 1; a step of 2 means that only every second sample is plotted
    samples    list with an entry for each process: [name, times in seconds, indices of disturbed samples]
    """
    processes = {
        anchor: [(f"{prefix}process {n}", r) for prefix, rs in groups.items() for n, r in enumerate(rs, 1)]
        for anchor, groups in cases.items()
    }
    total = sum(len(record.seconds) for named in processes.values() for _, record in named)
    step = max(1, math.ceil(total / _MAX_SAMPLES))
    return {anchor: _make_panel(named, step) for anchor, named in processes.items() if named}


def _make_panel(named_records: Sequence[tuple[str, Record]], step: int) -> dict[str, Any]:
    samples = []
    for name, record in sorted(named_records, key=lambda pair: pair[1].started_at or ""):
        seconds = [float(f"{second:.4g}") for second in record.seconds[::step]]
        disturbed = disturbed_samples(record)[::step]
        samples.append([name, seconds, [index for index, value in enumerate(disturbed) if value]])
    omission = [f"one of every {step} samples is drawn"] if step > 1 else []
    facts = omission + _list_facts([record for _, record in named_records])
    return {"facts": facts, "step": step, "samples": samples}


def _list_facts(records: Sequence[Record]) -> list[str]:
    facts = [f"stopped by {', '.join(sorted({str(record.stop_reason) for record in records}))}"]
    for name in _RANGE_FIELDS:
        if values := [value for record in records if (value := getattr(record, name)) is not None]:
            format_value = format_bytes if name.endswith("_bytes") else format_duration
            range_texts = dict.fromkeys((format_value(min(values)), format_value(max(values))))
            quantity = name.replace("_seconds", "").replace("_bytes", " memory")
            facts.append(f"{quantity} {' to '.join(range_texts)}")
    facts += describe_disturbed_turns(records)
    if errors := [(record.error, record.tolerance or 0.0) for record in records if record.error is not None]:
        facts.append("error {:.2g} of at most {:.2g}".format(*max(errors)))
    return facts
