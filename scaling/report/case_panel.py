"""Detail panels of the HTML page, one per measured case: plot of time samples, compile times and memory."""

from collections.abc import Iterable, Sequence
from typing import Any

from scaling.analysis.timings import disturbed_samples
from scaling.core.formatting import count_of, format_bytes, format_duration
from scaling.core.record import STAGES, Record
from scaling.report.figures.marks import Spec
from scaling.report.figures.theme import BLUE, SHAPES, VERMILION

MOST_SAMPLES = 40_000  # per page; if there are more, only every n-th sample is plotted
_RANGES = (
    "detect_seconds", "color_seconds", *STAGES, "argument_bytes", "output_bytes", "temp_bytes", "peak_bytes",
)  # fmt: skip


def case_panels(groups: Iterable[tuple[str, Sequence[tuple[str, Record]]]]) -> dict[str, Any]:
    """Return a JSON-compatible dict from the HTML anchor of each measured case to its detail panel.

    A panel has `facts`, such as 'compile 1.20 s to 1.40 s', and `samples`, with a list for each process: the
    name, the samples in seconds, and the indices of the disturbed ones. `groups` has the anchor and the
    (process name, record) pairs of each case.
    """
    cases = list(groups)
    step = 1 + sum(len(record.seconds) for _, records in cases for _, record in records) // MOST_SAMPLES
    return {anchor: _make_panel(records, step) for anchor, records in cases if records}


def _make_panel(records: Sequence[tuple[str, Record]], step: int) -> dict[str, Any]:
    ordered = sorted(records, key=lambda pair: pair[1].started_at or "")
    samples = []
    for name, record in ordered:
        disturbed = disturbed_samples(record)[: len(record.seconds) : step]
        marked = [index for index, is_marked in enumerate(disturbed) if is_marked]
        samples.append([name, record.seconds[::step], marked])
    facts = [f"one of every {step} samples is drawn"] if step > 1 else []
    return {"facts": facts + _list_facts([record for _, record in ordered]), "samples": samples}


def _list_facts(records: Sequence[Record]) -> list[str]:
    words = [f"stopped by {', '.join(sorted({str(record.stop_reason) for record in records}))}"]
    for name in _RANGES:
        if known := [value for record in records if (value := getattr(record, name)) is not None]:
            write = format_bytes if name.endswith("_bytes") else format_duration
            ends = dict.fromkeys((write(min(known)), write(max(known))))
            what = name.replace("_seconds", "").replace("_bytes", " memory")
            words.append(f"{what} {' to '.join(ends)}")
    for mark in sorted({mark for record in records for mark in record.marked}):
        marked = sum(len(record.marked.get(mark, ())) for record in records)
        turns = count_of(sum(len(record.turns) for record in records), "turn")
        words.append(f"{mark.replace('_', ' ')} in {marked} of {turns}")
    errors = [(record.error, record.tolerance or 0.0) for record in records if record.error is not None]
    if errors:
        words.append("error {:.2g} of at most {:.2g}".format(*max(errors)))
    return words


def samples_spec() -> Spec:
    """Return a Vega-Lite specification without data that plots the time samples in a detail panel.

    The script page.js inserts the samples of the selected case.
    """
    colour = {"field": "line", "type": "nominal", "scale": {"range": [BLUE, VERMILION]}}
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
