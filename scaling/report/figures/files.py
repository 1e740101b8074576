"""Convert figures to Vega-Lite JSON for the HTML page, or to SVG, PNG and PDF files with their provenance."""

import json
import resource
import textwrap
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import vl_convert

from scaling.analysis.findings import Findings
from scaling.core.case import Refusal
from scaling.core.formatting import list_first
from scaling.report.figures.marks import CONFIG, GROUND, Figure, Panel, Spec
from scaling.report.text import clean_text

_ADDRESS_SPACE = 2**37  # bytes; V8, which draws image files, reserves about as many, and otherwise aborts
_PANEL_WIDTH = 400  # pixels
_PANEL_LETTERS = 62  # number of letters that fit into the width
_SCHEMA = "https://vega.github.io/schema/vega-lite/v6.json"
_ISOLATED = {"name": "isolated", "value": ""}
_DRAG_EVENTS = "[mousedown, window:mouseup] > window:mousemove!"
_ZOOM = {
    "name": "zoom",
    "bind": "scales",
    "select": {"type": "interval", "zoom": "wheel![event.shiftKey]", "translate": _DRAG_EVENTS},
}
ENCODERS: dict[str, Callable[[str], bytes]] = {  # from format to function that converts SVG text
    "svg": str.encode,
    "png": lambda svg: vl_convert.svg_to_png(svg, scale=2.0),
    "pdf": vl_convert.svg_to_pdf,
}


def page_specs(figures: Iterable[Figure]) -> str:
    """Return the Vega-Lite specifications of figures as JSON text for a script element of an HTML page."""
    panels = {figure.name: [_page_panel(panel) for panel in figure.panels] for figure in figures}
    return to_script_json({"config": CONFIG | {"legend": {"disable": True}}, "figures": panels})


def _page_panel(panel: Panel) -> Spec:
    first_layer, *other_layers = panel.chart["layer"]
    layers = [first_layer | {"params": [_ZOOM]} if panel.zoom else first_layer, *other_layers]
    size = {"height": panel.height, "autosize": {"type": "fit-x", "contains": "padding"}}
    return panel.chart | {"layer": layers, "params": [_ISOLATED]} | size


def to_script_json(value: Any) -> str:
    """Return a value as JSON text for an HTML script element."""
    text = json.dumps(_clean_values(value), ensure_ascii=False, separators=(",", ":"))
    # A tag in the text must not end the script element.
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _clean_values(value: Any) -> Any:
    """Return a copy of nested data with clean text (`clean_text`), and floats of six significant digits."""
    if isinstance(value, dict):
        return {key: _clean_values(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_clean_values(item) for item in value]
    if isinstance(value, float):
        return float(f"{value:.6g}")
    return clean_text(value) if isinstance(value, str) else value


def file_spec(figure: Figure, provenance: str) -> Spec:
    """Return the Vega-Lite specification of a figure for an image file. `provenance` is the subtitle."""
    panels = [
        panel.chart | {
            "title": {"text": [line for text in panel.title for line in textwrap.wrap(text, _PANEL_LETTERS)]},
            "width": max(_PANEL_WIDTH, panel.least_width), "height": panel.height,
        }
        for panel in figure.panels
    ]  # fmt: skip
    legend = CONFIG["legend"] | {"columns": 2, "symbolSize": 90}
    return _clean_values({
        "$schema": _SCHEMA,
        "config": CONFIG | {"background": GROUND, "legend": legend, "padding": 12},
        "title": {"text": figure.title, "subtitle": provenance, "fontSize": 15, "offset": 12},
        "concat": panels,
        "columns": min(2, len(panels)),
        "params": [_ISOLATED],
        "resolve": {"scale": {"color": "shared", "shape": "shared", "strokeDash": "shared"}},
        "spacing": 28,
    })  # fmt: skip


def describe_provenance(findings: Findings) -> str:
    """Return one line of text with the study, devices, dates and git commits of the results."""
    records = findings.records or [record for forecast in findings.forecasts for record in forecast.records]
    machines = sorted({_describe_machine(record.environment) for record in records})
    commits = sorted({str(record.environment.get("commit") or "unknown")[:12] for record in records})
    dates = sorted({(record.started_at or "")[:10] for record in records} - {""})
    dates_text = " to ".join(dict.fromkeys((dates[0], dates[-1]))) if dates else "unknown date"
    commit = f"commit {list_first(commits, 2) or 'unknown'}"
    return " · ".join((findings.name, list_first(machines, 2) or "unknown", dates_text, commit))


def _describe_machine(environment: Mapping[str, Any]) -> str:
    device_kind = str(environment.get("device_kind") or "unknown machine")
    is_bound = environment.get("platform") == "cpu" and environment.get("bound")
    return f"{device_kind} (a device is one core)" if is_bound else device_kind


def encode_figures(figures: Iterable[Figure], findings: Findings, extension: str) -> dict[str, bytes]:
    """Return the content of an image file for each figure, by file name.

    `extension` is a key of ENCODERS, such as "png". Raise `Refusal` if `ulimit -v` is too low.
    """
    if 0 <= resource.getrlimit(resource.RLIMIT_AS)[0] < _ADDRESS_SPACE:
        raise Refusal("image files cannot be drawn with this `ulimit -v`: set `ulimit -v unlimited`")
    provenance, encode = describe_provenance(findings), ENCODERS[extension]
    return {
        f"{figure.name}.{extension}": encode(vl_convert.vegalite_to_svg(file_spec(figure, provenance)))
        for figure in figures
    }
