"""Build the parts of a figure (`Figure`, `Panel`): axes, lines, markers, error bars, labels and line styles.

The fields of a data row are the name of its `line`, its position `x`, its value `y`, the limits `low` and
`high` of the 95 % interval, and its tooltip `tip`.
"""

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from scaling.analysis.cases import Subject
from scaling.analysis.findings import Findings
from scaling.analysis.timings import Timing, format_time
from scaling.core.case import Case, label
from scaling.core.formatting import format_count

Row = dict[str, Any]  # a row of chart data, from field to value
Spec = dict[str, Any]  # a part of a Vega-Lite specification
MAX_PANELS = 6  # largest number of panels in a figure
_MAX_TICKS = 24  # largest number of device counts or sizes for which each has a tick
_MAX_ROUND_TICKS = 9
_MAX_LABELS = 4  # largest number of lines with labels at their ends
_LABEL_HEIGHT = 0.065  # height of a text label as a fraction of the panel height
# True for the marks that are drawn opaque: all marks, or those of the selected legend entry.
_ISOLATED = (
    "!isolated || !datum.line || "
    "indexof(datum.line + ',', isolated + ',') == 0 || indexof(isolated + ',', datum.line + ',') == 0"
)
INK, MUTED, GRID, GROUND = "#1c1e21", "#5b6068", "#dcdfe4", "#ffffff"

# Color-blind safe (after Okabe and Ito), with a contrast of at least 3:1 on a white ground.
BLUE, VERMILION, GREEN, PURPLE = "#0072b2", "#d55e00", "#008a64", "#b5568f"
OCHRE, OLIVE, GREY, SKY = "#a87400", "#847a00", "#6e6e6e", "#2f7fa8"
_MODES = {  # mode -> color and shape; modes of the same derivative order differ in shape
    "jacfwd": (BLUE, "circle"), "jacrev": (VERMILION, "square"), "linearize": (GREEN, "up"),
    "finite_difference": (PURPLE, "diamond"), "vmap_grad": (OCHRE, "down"), "grad_of_sum": (OLIVE, "left"),
    "analytic": (INK, "plus"), "analytic_vmap": (INK, "cross"), "value": (GREY, "right"),
    "fwd_over_rev": (BLUE, "circle"), "rev_over_fwd": (VERMILION, "square"), "rev_over_rev": (GREEN, "up"),
    "fwd_over_fwd": (OCHRE, "down"), "mixed": (PURPLE, "star"), "jet": (PURPLE, "diamond"),
    "forward_laplacian": (OLIVE, "left"),
}  # fmt: skip
_ENGINE_COLORS = {  # of the AD libraries other than JAX
    "torch": "#882255", "autograd": "#117733", "numpy": "#77772a", "casadi": "#332288",
}  # fmt: skip
_DASHES = ((1, 0), (6, 3), (2, 3), (8, 3, 2, 3), (10, 2), (4, 2, 1, 2, 1, 2))  # for lines of one color
SHAPES = {  # SVG paths in the square from -1 to 1
    "circle": "M1,0A1,1,0,1,1,-1,0A1,1,0,1,1,1,0Z", "square": "M-.9,-.9H.9V.9H-.9Z",
    "up": "M0,-1L1,.8H-1Z", "down": "M0,1L-1,-.8H1Z", "left": "M-1,0L.8,-1V1Z", "right": "M1,0L-.8,-1V1Z",
    "diamond": "M0,-1.1L1.1,0L0,1.1L-1.1,0Z", "plus": "M-1,0H1M0,-1V1",
    "cross": "M-.8,-.8L.8,.8M.8,-.8L-.8,.8",
    "star": "M0,-1.1L.35,-.35L1.1,0L.35,.35L0,1.1L-.35,.35L-1.1,0L-.35,-.35Z",
}  # fmt: skip
CONFIG: dict[str, Any] = {
    "font": "system-ui, -apple-system, 'Segoe UI', Roboto, 'Liberation Sans', 'DejaVu Sans', sans-serif",
    "background": None,
    "padding": {"left": 4, "top": 4, "bottom": 4, "right": 14},
    "view": {"stroke": None},
    "axis": {
        "domainColor": MUTED, "tickColor": MUTED, "gridColor": GRID, "labelColor": INK, "titleColor": INK,
        "titleFontWeight": "normal", "labelFontSize": 11, "titleFontSize": 12, "labelOverlap": "greedy",
    },
    "title": {"color": INK, "subtitleColor": INK, "anchor": "start", "fontSize": 12, "subtitleFontSize": 11},
    "legend": {"labelColor": INK, "labelLimit": 0, "title": None, "orient": "bottom", "labelFontSize": 12},
    "mark": {"invalid": "filter"},  # a value that is None has no mark
    "point": {"filled": False, "size": 55, "strokeWidth": 1.6},
    "text": {"color": INK, "fontSize": 11},
}  # fmt: skip


class LineStyle(NamedTuple):
    """The name, color, marker shape and dash pattern of a line, or the name and color of an area."""

    name: str
    color: str
    shape: str | None = None
    dash: tuple[int, ...] | None = None


def line_styles(cases: Mapping[str, Case]) -> list[LineStyle]:
    """Return a style for each line of a figure, sorted by the name of the line.

    `cases` maps the name of each line to one of its cases, whose AD mode determines the color.
    """
    styles, used_styles = [], Counter[str]()
    for name, case in sorted(cases.items()):
        color, shape = _MODES.get(case.mode, (SKY, "cross"))
        if case.engine != "jax":
            color = _ENGINE_COLORS.get(case.engine, OLIVE)
        styles.append(LineStyle(name, color, shape, _DASHES[used_styles[color + shape] % len(_DASHES)]))
        used_styles[color + shape] += 1
    return styles


class Panel(NamedTuple):
    """A panel of a figure: a Vega-Lite chart with its title and size."""

    title: tuple[str, ...]
    chart: Spec
    zoom: bool = True  # whether the reader of the HTML page can zoom and pan
    least_width: int = 0  # pixels
    height: int = 230  # pixels


class Figure(NamedTuple):
    """A figure: a title, a caption, and panels with a common legend."""

    name: str  # also the name of its image files, without the extension
    title: str
    caption: str
    panels: tuple[Panel, ...]
    legend: tuple[LineStyle, ...] = ()


def make_figure(
    name: str, title: str, caption: str, panels: Iterable[Panel], legend: Iterable[LineStyle], problems: int
) -> Figure | None:
    """Return a figure with the given panels, or None if there are none.

    `problems` is the number of problems that could be drawn. The caption states it if it exceeds MAX_PANELS.
    """
    if problems > MAX_PANELS:
        caption += f" {MAX_PANELS} of {problems} problems are drawn; the tables have all."
    figure = Figure(name, title, caption, tuple(panels), tuple(legend))
    return figure if figure.panels else None


def panel_title(findings: Findings, subject: Subject, *details: str) -> tuple[str, ...]:
    """Return the lines of a panel title: the name of the function of `subject`, and `details`.

    The last line names the environment of `subject` if any workload was measured in several environments.
    """
    environment = f"environment {subject.environment}" if findings.has_mixed_environments else ""
    return tuple(filter(None, (subject.family, *details, environment)))


def timing_row(line: str, timing: Timing, x: Any, *remarks: str) -> Row:
    """Return a row of chart data with the time of a timing in seconds, its 95 % interval and a tooltip.

    `line` is the name of the line, and `x` the position on the x-axis. The tooltip contains `remarks`.
    """
    seconds, low, high = timing.estimate
    sample_count = len(timing.seconds)
    samples = format_count(sample_count, "sample") if sample_count else "predicted from the compiled program"
    samples += f" of {len(timing.records)} processes" if len(timing.records) > 1 else ""
    tip = "\n".join(filter(None, (label(timing.case), format_time(timing), *remarks, samples)))
    return {"line": line, "tip": tip, "x": x, "y": seconds, "low": low, "high": high}


def values_with_bounds(rows: Iterable[Row]) -> list[float]:
    """Return the y values of all rows, and the limits of their intervals, without None."""
    values = (row[name] for row in rows if row["y"] is not None for name in ("y", "low", "high"))
    return [value for value in values if value is not None]


def log_axis(title: str, values: Iterable[float], unit: str = "", counts: bool = False) -> Spec:
    """Return a logarithmic Vega-Lite axis that covers all positive `values`.

    If `unit` is given, tick labels have SI prefixes. If `counts` is true and there are at most 24 values,
    each value has a tick. Otherwise, the ticks are at round numbers.
    """
    positive = sorted({value for value in values if value > 0})
    margin = max((positive[-1] / positive[0]) ** 0.06, 1.1)
    low, high = positive[0] / margin, positive[-1] * margin
    ticks = positive if counts and len(positive) <= _MAX_TICKS else _round_ticks(low, high)
    with_prefix = f"format(datum.value, '~s') + '{unit}'"
    tick_label = with_prefix if unit else f"datum.value < 1e5 ? format(datum.value, ',~g') : {with_prefix}"
    scale = {"type": "log", "domain": (low, high), "nice": False}
    return make_axis(title, scale, {"labelExpr": tick_label, "values": ticks})


def _round_ticks(low: float, high: float) -> list[float]:
    """Return at most nine round numbers between `low` and `high` as ticks of a logarithmic axis."""
    exponents = range(math.floor(math.log10(low)), math.ceil(math.log10(high)))
    for mantissas in ((1.0, 1.5, 2, 3, 4, 6, 8), (1, 2, 5), (1,)):
        ticks = [mantissa * 10.0**exponent for exponent in exponents for mantissa in mantissas]
        ticks = [float(f"{tick:.2g}") for tick in ticks if low <= tick <= high]
        if len(ticks) <= _MAX_ROUND_TICKS:
            return ticks
    return ticks[:: math.ceil(len(ticks) / _MAX_ROUND_TICKS)]


def make_axis(title: str, scale: Spec, axis: Spec) -> Spec:
    """Return a numeric Vega-Lite axis. `scale` and `axis` are the properties with these names."""
    return {"type": "quantitative", "title": title, "scale": scale, "axis": axis}


def make_chart(
    rows: Sequence[Row], x: Spec, y: Spec, styles: Sequence[LineStyle], layers: Iterable[Spec]
) -> Spec:
    """Return a Vega-Lite chart of the given layers, which share data rows, axes, colors and tooltips."""
    encoding = {
        "x": {"field": "x", **x}, "y": {"field": "y", **y},
        "color": _line_channel(styles, [style.color for style in styles]),
        "opacity": {"condition": {"test": _ISOLATED, "value": 1}, "value": 0.08},
        "tooltip": {"field": "tip", "type": "nominal"},
    }  # fmt: skip
    return {"data": {"values": rows}, "encoding": encoding, "layer": list(layers)}


def _line_channel(styles: Sequence[LineStyle], values: Sequence[Any]) -> Spec:
    scale = {"domain": [style.name for style in styles], "range": values}
    return {"field": "line", "type": "nominal", "title": None, "scale": scale}


def make_layer(mark: Spec, rows: Sequence[Row] | None = None, **channels: Any) -> Spec:
    """Return a layer of a Vega-Lite chart.

    `mark` is a dict with the mark type, such as "line", and its properties. `channels` are the encoding
    channels. If `rows` is None, the layer uses the data rows of its chart.
    """
    data = {} if rows is None else {"data": {"values": rows}}
    return {"mark": {"clip": True} | mark, "encoding": channels} | data


def draw_lines(rows: Sequence[Row], y: Spec, styles: Sequence[LineStyle]) -> list[Spec]:
    """Return layers that draw the data rows of a chart as lines, error bars and markers.

    `y` is the y-axis of the chart. Two to four lines are labeled with their AD modes if all these modes
    differ.
    """
    dash = _line_channel(styles, [list(style.dash or (1, 0)) for style in styles])
    shape = _line_channel(styles, [SHAPES[style.shape or "circle"] for style in styles])
    bounds: Spec = {"y": {"field": "low"}, "y2": {"field": "high"}}
    lines = make_layer({"type": "line", "strokeWidth": 1.8}, strokeDash=dash)
    error_bars = make_layer({"type": "rule", "strokeWidth": 2}, **bounds)
    layers = [lines, error_bars, make_layer({"type": "point"}, shape=shape)]
    last_rows = {row["line"]: row for row in rows if row["y"] is not None}
    if 1 < len(set(map(_mode_of_line, last_rows))) == len(last_rows) <= _MAX_LABELS:
        colors = {style.name: style.color for style in styles}
        labels = [row | {"color": colors[row["line"]]} for row in _label_line_ends(last_rows.values(), y)]
        # With the color scale of the lines, the fill of the text would also fill the symbols of the legend.
        color = {"field": "color", "type": "nominal", "scale": None}
        layers.append(draw_text(color, labels, align="left", dx=8, dy=3))
    return layers


def _mode_of_line(line: str) -> str:
    return re.split(r" \(|,", line)[0]


def _label_line_ends(last_rows: Iterable[Row], y: Spec) -> list[Row]:
    """Return data rows for labels: the AD mode of each line, at the position of its last data row.

    A label that would overlap another one is moved up.
    """
    domain = y["scale"]["domain"]
    to_position, to_value = (math.log, math.exp) if domain[0] else (float, float)
    least_distance = _LABEL_HEIGHT * (to_position(domain[1]) - to_position(domain[0]))
    labels, position = [], -math.inf
    for row in sorted(last_rows, key=lambda row: row["y"]):
        position = max(to_position(row["y"]), position + least_distance)
        labels.append(row | {"label": _mode_of_line(row["line"]), "y": to_value(position)})
    return labels


def draw_ideal(values: Mapping[int, float], y: Spec) -> list[Spec]:
    """Return layers that draw ideal scaling as a dotted line. `values` maps x values to y values.

    `y` is the axis of the chart.
    """
    rows = [{"x": count, "y": ideal, "label": "ideal"} for count, ideal in values.items()]
    low, high = y["scale"]["domain"]
    visible = [row for row in rows if low <= row["y"] <= high]
    line = {"type": "line", "strokeDash": [2, 3], "strokeWidth": 1.2}
    falls = sorted(values.values()) != list(values.values())
    label = draw_text({"value": MUTED}, visible[-1:], dx=-10, dy=4 if falls else -7)  # away from the data
    return [make_layer(line, rows, color={"value": MUTED}), label]


def draw_text(color: Spec, rows: Sequence[Row] | None = None, **options: Any) -> Spec:
    """Return a layer that writes the field 'label' of each row as text. `options` are mark properties."""
    mark = {"type": "text", "align": "right", "clip": False} | options
    return make_layer(mark, rows, text={"field": "label"}, color=color)
