"""Make the data and the plot of the detail panel that the HTML page shows for each measured case."""

from collections.abc import Iterable, Sequence
from typing import Any

from scaling.analysis.timings import disturbed_samples
from scaling.core.formatting import count_of, format_bytes, format_duration
from scaling.core.record import STAGES, Record
from scaling.report.figures.marks import Spec
from scaling.report.figures.theme import BLUE, SHAPES, VERMILION

_RANGE_FIELDS = (  # fields of a record whose smallest and largest value a panel shows
    "detect_seconds", "color_seconds", *STAGES, "argument_bytes", "output_bytes", "temp_bytes", "peak_bytes",
)  # fmt: skip


def case_panels(cases: Iterable[tuple[str, Sequence[tuple[str, Record]]]]) -> dict[str, Any]:
    """Return the detail panels of the cases that have records, as a dict from HTML anchor to panel.

    `cases` are pairs (HTML anchor, [(process name, record), ...]). A panel is a JSON-compatible dict:

    facts      a list of strings, such as 'compile 1.20 s to 1.40 s'
    samples    for each process, [process name, times in seconds, indices of the disturbed samples]
    """
    return {anchor: _make_panel(records) for anchor, records in cases if records}


def _make_panel(records: Sequence[tuple[str, Record]]) -> dict[str, Any]:
    samples = []
    for name, record in sorted(records, key=lambda pair: pair[1].started_at or ""):
        disturbed = disturbed_samples(record)[: len(record.seconds)]
        samples.append([name, record.seconds, [index for index, value in enumerate(disturbed) if value]])
    return {"facts": _list_facts([record for _, record in records]), "samples": samples}


def _list_facts(records: Sequence[Record]) -> list[str]:
    facts = [f"stopped by {', '.join(sorted({str(record.stop_reason) for record in records}))}"]
    for name in _RANGE_FIELDS:
        if values := [value for record in records if (value := getattr(record, name)) is not None]:
            format_value = format_bytes if name.endswith("_bytes") else format_duration
            bounds = dict.fromkeys((format_value(min(values)), format_value(max(values))))
            quantity = name.replace("_seconds", "").replace("_bytes", " memory")
            facts.append(f"{quantity} {' to '.join(bounds)}")
    for mark in sorted({mark for record in records for mark in record.marked}):
        marked = sum(len(record.marked.get(mark, ())) for record in records)
        turns = count_of(sum(len(record.turns) for record in records), "turn")
        facts.append(f"{mark.replace('_', ' ')} in {marked} of {turns}")
    errors = [(record.error, record.tolerance or 0.0) for record in records if record.error is not None]
    if errors:
        facts.append("error {:.2g} of at most {:.2g}".format(*max(errors)))
    return facts


def samples_spec() -> Spec:
    """Return the Vega-Lite specification for the plot of time samples. page.js inserts the data."""
    colour = {"field": "line", "type": "nominal", "scale": {"domain": ["A", "B"], "range": [BLUE, VERMILION]}}
    cross, circle = SHAPES["cross"], SHAPES["circle"]
    shape = {"condition": {"test": "datum.marked", "value": cross}, "value": circle}
    x: Spec = {
        "field": "number", "type": "quantitative", "title": "sample, process after process (cross: marked)",
        "axis": {"tickMinStep": 1, "format": "d"}, "scale": {"nice": False},
    }  # fmt: skip
    y: Spec = {
        "field": "seconds", "type": "quantitative", "title": "time", "scale": {"zero": False},
        "axis": {"labelExpr": "format(datum.value, '~s') + 's'"},
    }  # fmt: skip
    shared = {"x": x, "y": y, "color": colour, "detail": {"field": "process"}}
    point = {"shape": shape, "tooltip": {"field": "tip", "type": "nominal"}}
    line = {"type": "line", "strokeWidth": 1, "strokeOpacity": 0.5}
    return {
        "height": 200,
        "data": {"name": "samples"},
        "layer": [
            {"mark": line, "encoding": shared},
            {"mark": {"type": "point", "size": 24}, "encoding": shared | point},
        ],
    }
