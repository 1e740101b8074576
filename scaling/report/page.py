"""Page: the report as one HTML file that needs no network, from findings and figures.

The markup is in report.html.jinja, its style and script in report.css and report.js. Text from records is
escaped; figures are Vega-Lite specifications, drawn in the browser by the scripts in vega.min.js.
"""

import dataclasses
import functools
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

import jinja2
from markupsafe import Markup

from scaling.analysis import trends
from scaling.analysis.answer import describe_score, summarize
from scaling.analysis.curves import KINDS
from scaling.analysis.findings import Findings
from scaling.core import store
from scaling.core.record import STATUSES
from scaling.report import outcomes, planned, tables
from scaling.report.cards import make_cards
from scaling.report.figures import files, theme
from scaling.report.figures.marks import Figure
from scaling.report.labels import file_stems

_LONG_TABLE = 40  # rows; longer tables are folded, except that of every case


@functools.cache
def _load_template() -> jinja2.Template:
    loader = jinja2.FileSystemLoader(Path(__file__).parent)
    options = {
        "autoescape": True,
        "undefined": jinja2.StrictUndefined,
        "trim_blocks": True,
        "lstrip_blocks": True,
    }
    return jinja2.Environment(loader=loader, **options).get_template("report.html.jinja")  # type: ignore[arg-type]


@functools.cache
def _load_vega() -> str:
    return (Path(__file__).parent / "vega.min.js").read_text(encoding="utf-8")


def render_page(
    findings: Findings, all_figures: Sequence[Figure], page_tables: Sequence[tables.PageTable]
) -> str:
    """Return the page as HTML."""
    rows, sentences = summarize(findings)
    plans = planned.plan_sections(findings)
    of_plans = {
        section.anchor: next((f for f in all_figures if f.name == section.anchor), None) for section in plans
    }
    figures = [figure for figure in all_figures if figure.name not in of_plans]
    count = Counter(store.states(findings.records).values())
    count["planned"] = sum(
        record.status == "planned" for forecast in findings.forecasts for record in forecast.records
    )
    by_anchor = {table.anchor: table for table in page_tables}
    fastest = by_anchor.pop("fastest", None)
    context = {
        "name": findings.name,
        "counts": [(status, count[status]) for status in STATUSES if count[status]],
        "verdict": by_anchor["review"].rows[0][1],
        "cards": make_cards(findings),
        "sentences": planned.leave_out_answers(plans, sentences),
        "plans": [(section, of_plans[section.anchor]) for section in plans],
        "notes": _figure_notes(findings),
        "fastest": fastest
        and {"brief": rows, "columns": fastest.columns, "all": fastest.rows if fastest.rows != rows else ()},
        "figures": figures,
        "tables": by_anchor.values(),
        "grid": outcomes.outcome_grid(findings),
        "unmeasured": outcomes.group_unmeasured(findings),
        "environments": tables.describe_environments(findings),
        "missing": findings.missing,
        "damaged": findings.damaged,
    }
    return _load_template().render(
        **context, contents=_table_of_contents(context, by_anchor.values(), figures), long=_LONG_TABLE,
        light=theme.style_sheet(dark=False), dark=theme.style_sheet(dark=True),
        themed=theme.to_css_variable, shapes=theme.SHAPES, provenance=files.describe_provenance(findings),
        specs=Markup(files.page_specs(all_figures)), vega=Markup(_load_vega()),
    )  # fmt: skip


def _figure_notes(findings: Findings) -> dict[str, list[str]]:
    """Return the sentences that go with a figure, by the figure's name."""
    kinds = {kind: [one for one in findings.scaling_fits if one[0].kind == kind] for kind in KINDS}
    laws = {
        f"scaling-{kind}": trends.describe_laws(dataclasses.replace(findings, scaling_fits=of))
        for kind, of in kinds.items()
    }
    stem = file_stems(each.hardware for each in findings.plan_scores)
    laws |= {f"score-{stem[each.hardware]}": describe_score(each) for each in findings.plan_scores}
    return {
        "crossover": trends.describe_crossovers(findings),
        "size": trends.describe_growth(findings),
        **laws,
    }


def _table_of_contents(
    context: dict, by_anchor: Iterable[tables.PageTable], figures: Iterable[Figure]
) -> list[tuple[str, str]]:
    """Return the anchors and titles of the sections of the page."""
    entries = [("fastest", "Fastest mode")] if context["fastest"] else []
    entries += [(section.anchor, section.title) for section, _ in context["plans"]]
    entries += [(figure.name, figure.title.split(":")[0]) for figure in figures]
    entries += [("outcomes", "What became of every case")] if context["grid"] else []
    entries += [(table.anchor, table.title) for table in by_anchor]
    entries += [("unmeasured", "Skipped and failed")] if context["unmeasured"] else []
    entries += [("missing", "Not run yet")] if context["missing"] else []
    entries += [("environments", "Where it was measured")] if context["environments"] else []
    return entries + ([("damaged", "Damaged lines")] if context["damaged"] else [])
