"""Page: the report as one HTML file that asks nothing of any network, from findings and drawings.

Knows markup, which stands in report.html.jinja with its style and its script; not the disk, nor what the numbers say. Whatever
stands in a record is text and is escaped; the drawings are ours, their text escaped where they are made.
"""

import dataclasses
import functools
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

import jinja2
from markupsafe import Markup

from scaling.analysis import trends
from scaling.analysis.answer import brief, scored
from scaling.analysis.curves import KINDS
from scaling.analysis.findings import Findings
from scaling.core import store
from scaling.core.record import STATUSES
from scaling.report import figures, outcomes, planned, tables
from scaling.report.cards import cards
from scaling.report.drawing import palette
from scaling.report.drawing.sheet import Drawing
from scaling.report.labels import stems

_LONG = 40  # rows: a table of more is folded, but for that of every case
_DASHES = {"--": "5 3", "-.": "6 2 1.5 2", ":": "1.5 2.5"}
_MARKERS = {
    "o": "M15 2.5a3.5 3.5 0 1 0 .01 0z", "s": "M11.8 2.8h6.4v6.4h-6.4z", "^": "M15 2l4 7.5h-8z", "v": "M15 10l4-7.5h-8z",
    "D": "M15 1.5L19.5 6 15 10.5 10.5 6z", "P": "M15 2v8M11 6h8", "X": "M12 3l6 6M18 3l-6 6", "x": "M12 3l6 6M18 3l-6 6",
    "<": "M11 6l7.5-4v8z", ">": "M19 6l-7.5-4v8z", "d": "M15 1.5L18 6 15 10.5 12 6z",
    "*": "M15 1.5l1.1 3.2h3.4l-2.7 2 1 3.3-2.8-2-2.8 2 1-3.3-2.7-2h3.4z",
}  # fmt: skip


@functools.cache
def _template() -> jinja2.Template:
    loader = jinja2.FileSystemLoader(Path(__file__).parent)
    options = {"autoescape": True, "undefined": jinja2.StrictUndefined, "trim_blocks": True, "lstrip_blocks": True}
    return jinja2.Environment(loader=loader, **options).get_template("report.html.jinja")  # type: ignore[arg-type]


def html(found: Findings, drawings: Sequence[Drawing], shown: Sequence[tables.PageTable]) -> str:
    """The page."""
    rows, said = brief(found)
    plans = planned.sections(found)
    of_plans = {section.anchor: next((d for d in drawings if d.name == section.anchor), None) for section in plans}
    drawings = [drawing for drawing in drawings if drawing.name not in of_plans]
    count = Counter(store.states(found.records).values())
    count["planned"] = sum(record.status == "planned" for forecast in found.forecasts for record in forecast.records)
    several = {table.anchor: table for table in shown}
    fastest = several.pop("fastest", None)
    context = {
        "name": found.name,
        "counts": [(status, count[status]) for status in STATUSES if count[status]],
        "verdict": several["review"].rows[0][1],
        "cards": cards(found),
        "sentences": planned.without(plans, said),
        "plans": [(section, of_plans[section.anchor]) for section in plans],
        "notes": _notes(found),
        "fastest": fastest and {"brief": rows, "columns": fastest.columns, "all": fastest.rows if fastest.rows != rows else ()},
        "drawings": drawings,
        "tables": several.values(),
        "grid": outcomes.grid(found),
        "unmeasured": outcomes.unmeasured(found),
        "environments": tables.environments(found),
        "missing": found.missing,
        "damaged": found.damaged,
    }
    return _template().render(
        **context, contents=_contents(context, several.values(), drawings), long=_LONG, endings=figures.ENDINGS, drawn=Markup,
        light=palette.sheet(dark=False), dark=palette.sheet(dark=True), themed=palette.themed, dashes=_DASHES, markers=_MARKERS,
    )  # fmt: skip


def _notes(found: Findings) -> dict[str, list[str]]:
    """What is said of a figure in sentences, by the figure's name."""
    kinds = {kind: [one for one in found.laws if one[0].kind == kind] for kind in KINDS}
    laws = {f"scaling-{kind}": trends.laws(dataclasses.replace(found, laws=of)) for kind, of in kinds.items()}
    stem = stems(each.hardware for each in found.scores)
    laws |= {f"score-{stem[each.hardware]}": scored(each) for each in found.scores}
    return {"crossover": trends.crossovers(found), "size": trends.growth(found), **laws}


def _contents(context: dict, several: Iterable[tables.PageTable], drawings: Iterable[Drawing]) -> list[tuple[str, str]]:
    """The anchors and titles of what the page has."""
    made = [("fastest", "Fastest mode")] if context["fastest"] else []
    made += [(section.anchor, section.title) for section, _ in context["plans"]]
    made += [(drawing.name, drawing.title.split(":")[0]) for drawing in drawings]
    made += [("outcomes", "What became of every case")] if context["grid"] else []
    made += [(table.anchor, table.title) for table in several]
    made += [("unmeasured", "Skipped and failed")] if context["unmeasured"] else []
    made += [("missing", "Not run yet")] if context["missing"] else []
    made += [("environments", "Where it was measured")] if context["environments"] else []
    return made + ([("damaged", "Damaged lines")] if context["damaged"] else [])
