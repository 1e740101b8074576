"""Page: the report as one HTML file that needs no network, from findings and drawings.

The markup is in report.html.jinja, its style and script in report.css and report.js. Text from records is
escaped; text in drawings is escaped where they are made.
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
from scaling.report import figures, outcomes, planned, tables
from scaling.report.cards import make_cards
from scaling.report.drawing import palette
from scaling.report.drawing.sheet import Drawing
from scaling.report.labels import file_stems

_LONG_TABLE = 40  # rows; longer tables are folded, except that of every case
_DASHES = {"--": "5 3", "-.": "6 2 1.5 2", ":": "1.5 2.5"}
_MARKERS = {
    "o": "M15 2.5a3.5 3.5 0 1 0 .01 0z", "s": "M11.8 2.8h6.4v6.4h-6.4z", "^": "M15 2l4 7.5h-8z",
    "v": "M15 10l4-7.5h-8z", "D": "M15 1.5L19.5 6 15 10.5 10.5 6z", "P": "M15 2v8M11 6h8",
    "X": "M12 3l6 6M18 3l-6 6", "x": "M12 3l6 6M18 3l-6 6", "<": "M11 6l7.5-4v8z", ">": "M19 6l-7.5-4v8z",
    "d": "M15 1.5L18 6 15 10.5 12 6z", "*": "M15 1.5l1.1 3.2h3.4l-2.7 2 1 3.3-2.8-2-2.8 2 1-3.3-2.7-2h3.4z",
}  # fmt: skip


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


def render_page(
    findings: Findings, drawings: Sequence[Drawing], page_tables: Sequence[tables.PageTable]
) -> str:
    """Return the page as HTML."""
    rows, sentences = summarize(findings)
    plans = planned.plan_sections(findings)
    of_plans = {
        section.anchor: next((d for d in drawings if d.name == section.anchor), None) for section in plans
    }
    drawings = [drawing for drawing in drawings if drawing.name not in of_plans]
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
        "drawings": drawings,
        "tables": by_anchor.values(),
        "grid": outcomes.outcome_grid(findings),
        "unmeasured": outcomes.group_unmeasured(findings),
        "environments": tables.describe_environments(findings),
        "missing": findings.missing,
        "damaged": findings.damaged,
    }
    return _load_template().render(
        **context, contents=_table_of_contents(context, by_anchor.values(), drawings), long=_LONG_TABLE,
        endings=figures.ENDINGS, drawn=Markup, light=palette.style_sheet(dark=False),
        dark=palette.style_sheet(dark=True), themed=palette.to_css_variables, dashes=_DASHES,
        markers=_MARKERS,
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
    context: dict, by_anchor: Iterable[tables.PageTable], drawings: Iterable[Drawing]
) -> list[tuple[str, str]]:
    """Return the anchors and titles of the sections of the page."""
    entries = [("fastest", "Fastest mode")] if context["fastest"] else []
    entries += [(section.anchor, section.title) for section, _ in context["plans"]]
    entries += [(drawing.name, drawing.title.split(":")[0]) for drawing in drawings]
    entries += [("outcomes", "What became of every case")] if context["grid"] else []
    entries += [(table.anchor, table.title) for table in by_anchor]
    entries += [("unmeasured", "Skipped and failed")] if context["unmeasured"] else []
    entries += [("missing", "Not run yet")] if context["missing"] else []
    entries += [("environments", "Where it was measured")] if context["environments"] else []
    return entries + ([("damaged", "Damaged lines")] if context["damaged"] else [])
