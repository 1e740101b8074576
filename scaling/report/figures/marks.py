"""Define `Figure` and `Panel`, and make Vega-Lite charts: axes, lines, markers, error bars and labels."""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from scaling.analysis.cases import Subject
from scaling.analysis.findings import Findings
from scaling.analysis.timings import Timing, format_time
from scaling.core.case import label
from scaling.core.formatting import count_of
from scaling.report.figures.theme import MUTED, SHAPES, LineStyle

Row = dict[str, Any]  # the data of one mark (long format)
Spec = dict[str, Any]  # a part of a Vega-Lite specification
MAX_PANELS = 6  # largest number of panels in a figure
_MAX_TICKS = 24  # largest number of device counts or sizes that all have a tick
_MAX_ROUND_TICKS = 9
_MAX_LABELS = 4  # largest number of lines with labels at their ends
_LABEL_HEIGHT = 0.065  # height of a text label as a fraction of the panel height
# True for the marks that are drawn opaque: all marks, or those of the selected legend entry.
_ISOLATED = (
    "!isolated || !datum.line || indexof(datum.line, isolated) == 0 || indexof(isolated, datum.line) == 0"
)


class Panel(NamedTuple):
    """A panel of a figure: the lines of its title, and a layered Vega-Lite chart."""

    title: tuple[str, ...]
    chart: Spec
    zoom: bool = True
    least_width: int = 0  # pixels
    height: int = 230


class Figure(NamedTuple):
    """A figure of panels that share a legend."""

    name: str  # also the stem of its files
    title: str
    caption: str
    panels: tuple[Panel, ...]
    legend: tuple[LineStyle, ...] = ()


def make_figure(
    name: str, title: str, caption: str, panels: Iterable[Panel], legend: Iterable[LineStyle], problems: int
) -> Figure | None:
    """Return a figure with the given panels, or None if there are none.

    If the number of `problems` exceeds MAX_PANELS, the caption states that some of them are not drawn.
    """
    if problems > MAX_PANELS:
        caption += f" {MAX_PANELS} of {problems} problems are drawn; the tables have all."
    figure = Figure(name, title, caption, tuple(panels), tuple(legend))
    return figure if figure.panels else None


def panel_title(findings: Findings, subject: Subject, *details: str) -> tuple[str, ...]:
    """Return the lines of a panel title: the function, details, and the environment if there are several."""
    where = f"environment {subject.environment}" if findings.has_mixed_environments else ""
    return tuple(filter(None, (subject.family, *details, where)))


def timing_row(line: str, timing: Timing, *words: str, **fields: Any) -> Row:
    """Return the data row of a timing on a line: its time in seconds, 95 % interval and tooltip.

    `words` are further lines of the tooltip, and `fields` further fields of the row.
    """
    seconds, low, high = timing.estimate
    samples = count_of(len(timing.seconds), "sample") if timing.seconds else ""  # a prediction has none
    samples += f" of {timing.replicates} processes" if timing.replicates > 1 else ""
    tip = "\n".join(filter(None, (label(timing.case), format_time(timing), *words, samples)))
    return {"line": line, "tip": tip, "seconds": seconds, "seconds_low": low, "seconds_high": high} | fields


def values_with_bounds(rows: Iterable[Row], field: str) -> list[float]:
    """Return the values of a field in all rows that have one, and the bounds of their intervals."""
    names = (field, f"{field}_low", f"{field}_high")
    values = (row[name] for row in rows if row.get(field) is not None for name in names)
    return [value for value in values if value is not None]


def log_axis(field: str, title: str, values: Iterable[float], unit: str = "", counts: bool = False) -> Spec:
    """Return a logarithmic axis that covers all positive values.

    With a `unit`, labels have SI prefixes. If the values are `counts`, each has a tick unless there are many.
    """
    positive = sorted({value for value in values if value > 0})
    margin = max((positive[-1] / positive[0]) ** 0.06, 1.1)
    low, high = positive[0] / margin, positive[-1] * margin
    ticks = positive if counts and len(positive) <= _MAX_TICKS else _round_ticks(low, high)
    text = f"format(datum.value, '~s') + '{unit}'"
    text = text if unit else f"datum.value < 1e5 ? format(datum.value, ',~g') : {text}"
    scale = {"type": "log", "domain": (low, high), "nice": False}
    return _axis(field, title, scale, {"labelExpr": text, "values": ticks})


def _round_ticks(low: float, high: float) -> list[float]:
    """Return round numbers between the ends of a logarithmic axis, at most about nine."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)))
    for steps in ((1.0, 1.5, 2, 3, 4, 6, 8), (1, 2, 5), (1,)):
        ticks = [step * 10.0**power for power in decades for step in steps]
        ticks = [float(f"{tick:.2g}") for tick in ticks if low <= tick <= high]
        if len(ticks) <= _MAX_ROUND_TICKS:
            return ticks
    return ticks[:: len(ticks) // _MAX_ROUND_TICKS]


def linear_axis(field: str, title: str, high: float) -> Spec:
    """Return a linear axis from 0 to `high`."""
    return _axis(field, title, {"domain": (0, high), "nice": False}, {"tickCount": 6})


def _axis(field: str, title: str, scale: Spec, axis: Spec) -> Spec:
    return {"field": field, "type": "quantitative", "title": title, "scale": scale, "axis": axis}


def make_chart(
    rows: Sequence[Row], x: Spec, y: Spec, styles: Sequence[LineStyle], layers: Iterable[Spec]
) -> Spec:
    """Return a Vega-Lite chart whose layers share data rows, axes, colors and tooltips.

    If the reader selects a line in the legend of the HTML page, all other lines become transparent.
    """
    encoding = {
        "x": x, "y": y, "color": _line_channel(styles, [style.colour for style in styles]),
        "opacity": {"condition": {"test": _ISOLATED, "value": 1}, "value": 0.08},
        "tooltip": {"field": "tip", "type": "nominal"},
    }  # fmt: skip
    return {"data": {"values": rows}, "encoding": encoding, "layer": list(layers)}


def _line_channel(styles: Sequence[LineStyle], values: Sequence[Any]) -> Spec:
    scale = {"domain": [style.name for style in styles], "range": values}
    return {"field": "line", "type": "nominal", "title": None, "scale": scale}


def make_layer(mark: Spec, rows: Sequence[Row] | None = None, **channels: Any) -> Spec:
    """Return a layer of a chart. `mark` are the mark type and its properties.

    The layer shows `rows`, by default those of the chart. `channels` replace or add encoding channels.
    """
    data = {} if rows is None else {"data": {"values": rows}}
    return {"mark": {"clip": True} | mark, "encoding": channels} | data


def draw_lines(styles: Sequence[LineStyle], rows: Sequence[Row] | None = None, **options: Any) -> Spec:
    """Return a layer with a line for each value of the field `line`. `options` are properties of the mark."""
    dash = _line_channel(styles, [list(style.dash or (1, 0)) for style in styles])
    return make_layer({"type": "line", "strokeWidth": 1.8} | options, rows, strokeDash=dash)


def draw_points(styles: Sequence[LineStyle], **channels: Any) -> Spec:
    """Return a layer of hollow markers. `channels` are additional encoding channels."""
    shape = _line_channel(styles, [SHAPES[style.shape or "circle"] for style in styles])
    return make_layer({"type": "point"}, shape=shape, **channels)


def draw_intervals(field: str, mark: str = "rule", **options: Any) -> Spec:
    """Return a layer of error bars (of bands if `mark` is "area") from FIELD_low to FIELD_high."""
    ends: Spec = {"y": {"field": f"{field}_low"}, "y2": {"field": f"{field}_high"}}
    return make_layer({"type": mark, "strokeWidth": 2} | options, **ends)


def draw_series(rows: Sequence[Row], y: Spec, styles: Sequence[LineStyle]) -> list[Spec]:
    """Return the layers of lines with error bars and markers.

    If there are two to four lines of different AD modes, the mode is written at the end of each line.
    """
    layers = [draw_lines(styles), draw_intervals(y["field"]), draw_points(styles)]
    last_rows = {row["line"]: row for row in rows if row.get(y["field"]) is not None}
    if 1 < len(set(map(_mode_of_line, last_rows))) == len(last_rows) <= _MAX_LABELS:
        labels = _end_labels(last_rows.values(), y)
        layers.append(draw_text(labels, align="left", dx=8, dy=3))
    return layers


def _mode_of_line(line: str) -> str:
    return re.split(r" \(|,", line)[0]


def _end_labels(rows: Iterable[Row], y: Spec) -> list[Row]:
    """Return the rows with the AD mode as `label`, and with y values that keep the labels apart."""
    field, domain = y["field"], y["scale"]["domain"]
    to_height, to_value = (math.log, math.exp) if domain[0] else (float, float)
    gap = _LABEL_HEIGHT * (to_height(domain[1]) - to_height(domain[0]))
    labels, height = [], -math.inf
    for row in sorted(rows, key=lambda row: row[field]):
        height = max(to_height(row[field]), height + gap)
        labels.append(row | {"label": _mode_of_line(row["line"]), field: to_value(height)})
    return labels


def draw_ideal(values: Mapping[int, float], x: Spec, y: Spec) -> list[Spec]:
    """Return the layers of a gray dotted line with the label 'ideal'. `values` maps x values to y values."""
    rows: list[Row] = [
        {x["field"]: key, y["field"]: value, "label": "ideal"} for key, value in values.items()
    ]
    low, high = y["scale"]["domain"]
    inside = [row for row in rows if low <= row[y["field"]] <= high]
    line = {"type": "line", "strokeDash": [2, 3], "strokeWidth": 1.2}
    color = {"value": MUTED}
    return [make_layer(line, rows, color=color), draw_text(inside[-1:], color=color, dx=-6, dy=-7)]


def draw_text(rows: Sequence[Row] | None = None, color: Spec | None = None, **options: Any) -> Spec:
    """Return a layer with the field `label` as text. `options` are mark properties such as `align`."""
    channels = {"text": {"field": "label"}} | ({"color": color} if color else {})
    return make_layer({"type": "text", "align": "right", "clip": False} | options, rows, **channels)
