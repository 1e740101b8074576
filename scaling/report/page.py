"""HTML page of a results folder, or of a comparison (comparison.py), as one file that works offline.

The template page.html.jinja includes page.css and page.js. Text from records is escaped. In the browser,
vega.min.js renders the figures.
"""

import functools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jinja2
from markupsafe import Markup

from scaling.analysis import trends
from scaling.analysis.answer import summarize
from scaling.analysis.cases import join_words
from scaling.analysis.curves import KINDS
from scaling.analysis.findings import Findings
from scaling.analysis.forecast import describe_plan, plan_answers
from scaling.analysis.lint import lint_findings, verdict
from scaling.core.formatting import count_of
from scaling.core.record import STATUSES
from scaling.report import answer_tables, page_tables
from scaling.report.answer_tables import Card
from scaling.report.case_panel import case_panels, samples_spec
from scaling.report.figures import files, make_figures, theme
from scaling.report.figures.marks import Figure
from scaling.report.text import Table, clean_text, file_stems, keep_numbers_whole
from scaling.results import store

_FOLDER = Path(__file__).parent


class Section(NamedTuple):
    """A section of the HTML page with optional sentences, figure and table."""

    anchor: str
    title: str
    tells: str  # one-line summary
    note: str = ""
    sentences: Sequence[str] = ()
    figure: Figure | None = None
    table: Table | None = None
    opened: bool = False  # whether the section is initially expanded


class Page(NamedTuple):
    """The content of an HTML page: badges, cards, sections and detail panels. See `render`."""

    title: str
    provenance: str
    badges: Sequence[tuple[str, str]]  # pairs of status and text
    sections: Sequence[Section]
    cards: Sequence[Card] = ()
    panels: Mapping[str, Any] = {}  # from HTML anchor to detail panel of a case


def table_section(table: Table, opened: bool = False) -> Section:
    """Return a page section that contains a table.

    The one-line summary of a collapsed section contains the first sentence of the table's note.
    """
    summary = "" if opened else table.note.partition(". ")[0].rstrip(".")
    tells = join_words(count_of(len(table.rows), "row"), summary)
    return Section(table.anchor, table.title, tells, table.note, table=table, opened=opened)


def report_page(findings: Findings, title: str, folded_tables: Iterable[Table]) -> Page:
    """Return the content of the HTML page of a results folder, with tables in collapsed sections."""
    answer = answer_tables.answer_table(findings)
    sections = [*_figure_sections(findings), *map(table_section, folded_tables)]
    stated = {sentence for section in sections for sentence in section.sentences}
    if sentences := [sentence for sentence in summarize(findings) if sentence not in stated]:
        tells = "the answer with all that went wrong"
        sections.append(Section("sentences", "In sentences", tells, sentences=sentences))
    if answer.rows:
        sections.insert(0, table_section(answer, opened=True))
    else:
        sections = [part._replace(opened=part.opened or bool(part.sentences)) for part in sections]
    panels = case_panels(
        (page_tables.case_anchor(timing), [(f"process {n}", r) for n, r in enumerate(timing.records, 1)])
        for timing in findings.case_timings
    )
    provenance, cards = files.describe_provenance(findings), answer_tables.make_cards(findings)
    return Page(title, provenance, _list_badges(findings), sections, cards, panels)


def _list_badges(findings: Findings) -> list[tuple[str, str]]:
    counts = Counter(store.states(findings.records).values()) + Counter(missing=len(findings.missing))
    counts["planned"] = sum(r.status == "planned" for each in findings.forecasts for r in each.records)
    counted = [
        (status, f"{counts[status]:,} {status}") for status in (*STATUSES, "missing") if counts[status]
    ]
    return [*counted, ("review", f"reviewed: {verdict(lint_findings(findings))}")]


def _figure_sections(findings: Findings) -> list[Section]:
    figures = {figure.name: figure for figure in make_figures(findings)}
    stems = file_stems(each.hardware for each in findings.forecasts)
    planned = []
    for each in findings.forecasts:
        name, title = f"plan-{stems[each.hardware]}", f"Planned for {each.title}"
        note, answers, figure = describe_plan(each), plan_answers(each), figures.pop(name, None)
        planned.append(Section(name, title, "predicted, not measured", note, answers, figure))
    notes = {f"scaling-{kind}": trends.describe_laws(findings, [kind]) for kind in KINDS}
    notes |= {"crossover": trends.describe_crossovers(findings), "size": trends.describe_growth(findings)}
    measured = [
        Section(name, figure.title, figure.caption.partition(". ")[0].rstrip("."),
                sentences=notes.get(name, ()), figure=figure, opened=name == "devices")
        for name, figure in figures.items()
    ]  # fmt: skip
    first = [section for section in measured if section.opened]
    return [*first, *planned, *(section for section in measured if not section.opened)]


@functools.cache
def _load_template() -> jinja2.Template:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_FOLDER), autoescape=True, undefined=jinja2.StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    environment.filters["whole"] = keep_numbers_whole
    return environment.get_template("page.html.jinja")


def render(page: Page) -> str:
    """Return a page as HTML text."""
    figures = [section.figure for section in page.sections if section.figure]
    cases = {"spec": files.to_page_colours(samples_spec()), "cases": page.panels}
    vega = (_FOLDER / "vega.min.js").read_text(encoding="utf-8") if figures or page.panels else ""
    text = _load_template().render(
        page=page, light=theme.style_sheet(dark=False), dark=theme.style_sheet(dark=True),
        themed=theme.to_css_variable, shapes=theme.SHAPES, specs=Markup(files.page_specs(figures)),
        panels=Markup(files.to_script_json(cases)), vega=Markup(vega),
    )  # fmt: skip
    return clean_text(text)
