"""Define `Figure`, `Panel` and `Axis`, and draw Vega-Lite layers: lines, markers, error bars and labels."""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
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
_MAX_TICKS = 24  # approximate largest number of ticks on an axis
_MAX_LABELS = 4  # largest number of lines with labels at their ends
_LABEL_HEIGHT = 0.065  # height of a text label as a fraction of the panel height
_MARGIN = 1.3  # the factor by which a logarithmic axis extends beyond the smallest and the largest value
# True for the lines that are drawn opaque: all lines, or the lines of the selected legend entry.
_ISOLATED = "!isolated || indexof(datum.line, isolated) == 0 || indexof(isolated, datum.line) == 0"


class Panel(NamedTuple):
    """A panel of a figure: the lines of its title, and Vega-Lite layers that share their axes."""

    title: tuple[str, ...]
    layers: tuple[Spec, ...]
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


@dataclass(frozen=True)
class Axis:
    """An axis that shows a field of the data rows.

    A numerical axis is linear if `domain` starts at 0, and otherwise logarithmic. Other axes are categorical.
    """

    field: str
    options: Mapping[str, Any]  # Vega-Lite properties of the encoding channel, such as `scale` and `axis`
    domain: tuple[float, float] = (1.0, 10.0)  # the ends, which a categorical axis does not have

    def channel(self, field: str | None = None, **more: Any) -> Spec:
        """Return the Vega-Lite encoding channel of a field, by default the field of the axis."""
        return {"field": field or self.field, "type": "quantitative", **self.options, **more}

    def fraction(self, value: float) -> float:
        """Return the position of a value, from 0 (lower end) to 1 (upper end)."""
        low, high = self.domain
        return math.log(value / low) / math.log(high / low) if low else value / high

    def value(self, fraction: float) -> float:
        """Return the value at a position from 0 (lower end) to 1 (upper end)."""
        low, high = self.domain
        return low * (high / low) ** fraction if low else fraction * high


def log_axis(field: str, title: str, values: Iterable[float], unit: str | None = None) -> Axis:
    """Return a logarithmic axis that covers all positive values. With a unit, labels have SI prefixes."""
    positive = [value for value in values if value > 0]
    domain = min(positive) / _MARGIN, max(positive) * _MARGIN
    steps = (1, 2, 5) if domain[1] < 200 * domain[0] else (1,)
    decades = range(math.floor(math.log10(domain[0])), math.ceil(math.log10(domain[1])) + 1)
    ticks = [float(f"{step}e{power}") for power in decades for step in steps]
    text = "format(datum.value, ',~g')" if unit is None else f"format(datum.value, '~s') + '{unit}'"
    axis = {"labelExpr": text, "values": ticks[:: max(1, len(ticks) // 9)]}
    scale = {"type": "log", "domain": domain, "nice": False}
    return Axis(field, {"title": title, "scale": scale, "axis": axis}, domain)


def linear_axis(field: str, title: str, high: float) -> Axis:
    """Return a linear axis from 0 to `high`."""
    options = {"title": title, "scale": {"domain": (0, high), "nice": False}, "axis": {"tickCount": 6}}
    return Axis(field, options, (0, high))


def count_axis(field: str, title: str, counts: Iterable[float]) -> Axis:
    """Return a logarithmic axis with a tick at each count, or at about 24 of the counts if there are more."""
    ticks = sorted(set(counts))
    ratio = ticks[-1] / ticks[0]
    margin = max(ratio**0.06, 1.1)
    domain = ticks[0] / margin, ticks[-1] * margin
    if len(ticks) > _MAX_TICKS:
        last_of_each = {round(_MAX_TICKS * math.log(tick / ticks[0], ratio)): tick for tick in ticks}
        ticks = list(last_of_each.values())
    text = "datum.value < 1e5 ? format(datum.value, ',d') : format(datum.value, '~s')"
    axis, scale = {"values": ticks, "labelExpr": text}, {"type": "log", "domain": domain, "nice": False}
    return Axis(field, {"title": title, "axis": axis, "scale": scale}, domain)


def band_axis(field: str, title: str, names: Sequence[str]) -> Axis:
    """Return a categorical axis with one band per name."""
    axis, scale = {"labelAngle": 0, "ticks": False}, {"paddingInner": 0.05}
    return Axis(field, {"title": title, "type": "ordinal", "sort": names, "scale": scale, "axis": axis})


def draw_layer(rows: Sequence[Row], mark: str, options: Spec, **channels: Spec) -> Spec:
    """Return a Vega-Lite layer. `mark` is a mark type such as 'point', and `options` are mark properties."""
    return {"data": {"values": rows}, "mark": {"type": mark, "clip": True, **options}, "encoding": channels}


def color_of(field: str) -> Spec:
    """Return the Vega-Lite encoding channel of a field that contains colors."""
    return {"field": field, "type": "nominal", "scale": None}


def _line_channel(styles: Sequence[LineStyle], values: Iterable[Any]) -> Spec:
    scale = {"domain": [style.name for style in styles], "range": list(values)}
    return {"field": "line", "type": "nominal", "title": None, "scale": scale}


def line_channels(styles: Sequence[LineStyle]) -> dict[str, Spec]:
    """Return the encoding channels for the color, opacity and tooltip of lines.

    If the reader selects a line in the legend of the HTML page, all other lines become transparent.
    """
    return {
        "color": _line_channel(styles, (style.colour for style in styles)),
        "opacity": {"condition": {"test": _ISOLATED, "value": 1}, "value": 0.08},
        "tooltip": {"field": "tip", "type": "nominal"},
    }


def draw_points(rows: Sequence[Row], x: Axis, y: Axis, styles: Sequence[LineStyle], **more: Spec) -> Spec:
    """Return a layer with a hollow marker for each row that has a y value. `more` are additional channels."""
    shape = _line_channel(styles, (SHAPES[style.shape or "circle"] for style in styles))
    channels = {"x": x.channel(), "y": y.channel(), "shape": shape, **line_channels(styles), **more}
    return draw_layer(rows, "point", {}, **channels) | _drop_missing(y.field)


def draw_intervals(
    rows: Sequence[Row], x: Axis, y: Axis, styles: Sequence[LineStyle], mark: str = "rule", **options: Any
) -> Spec:
    """Return a layer of vertical error bars (bands if `mark` is "area") for the rows with an interval.

    If the field of the y-axis is 'seconds', an interval extends from 'seconds_low' to 'seconds_high'.
    """
    low, high = f"{y.field}_low", f"{y.field}_high"
    ends = {"x": x.channel(), "y": y.channel(low), "y2": {"field": high}}
    layer = draw_layer(rows, mark, options or {"strokeWidth": 2}, **ends, **line_channels(styles))
    return layer | _drop_missing(low, high)


def draw_lines(rows: Sequence[Row], x: Axis, y: Axis, styles: Sequence[LineStyle], **mark: Any) -> Spec:
    """Return a layer with a line for each value of the field `line`. `mark` are properties of the lines."""
    dash = _line_channel(styles, (list(style.dash or (1, 0)) for style in styles))
    channels = {"x": x.channel(), "y": y.channel(), "strokeDash": dash, **line_channels(styles)}
    return draw_layer(rows, "line", {"strokeWidth": 1.8} | mark, **channels) | _drop_missing(y.field)


def _drop_missing(*fields: str) -> Spec:
    return {"transform": [{"filter": " && ".join(f"datum.{field} != null" for field in fields)}]}


def draw_series(rows: Sequence[Row], x: Axis, y: Axis, styles: Sequence[LineStyle]) -> list[Spec]:
    """Return the layers of lines with error bars and markers.

    If there are two to four lines of different AD modes, the mode is written at the end of each line.
    """
    layers = [draw(rows, x, y, styles) for draw in (draw_lines, draw_intervals, draw_points)]
    last_rows = {row["line"]: row for row in rows if row.get(y.field) is not None}
    if 1 < len(set(map(_mode_of_line, last_rows))) == len(last_rows) <= _MAX_LABELS:
        layers.append(_draw_end_labels(list(last_rows.values()), x, y, styles))
    return layers


def _mode_of_line(line: str) -> str:
    return re.split(r" \(|,", line)[0]


def _draw_end_labels(rows: Sequence[Row], x: Axis, y: Axis, styles: Sequence[LineStyle]) -> Spec:
    """Return a layer of AD modes as text to the right of markers, without overlap."""
    colours = {style.name: style.colour for style in styles}
    labels, height = [], -math.inf
    for row in sorted(rows, key=lambda row: row[y.field]):
        height = max(y.fraction(row[y.field]), height + _LABEL_HEIGHT)
        mode = _mode_of_line(row["line"])
        labels.append(row | {"label": mode, y.field: y.value(height), "colour": colours[row["line"]]})
    return draw_text(labels, x, y, color_of("colour"), align="left", dx=8, dy=3, fontSize=11)


def draw_ideal(values: Mapping[int, float], x: Axis, y: Axis) -> list[Spec]:
    """Return the layers of a gray dotted line with the label 'ideal'. `values` maps x values to y values."""
    rows: list[Row] = [{x.field: key, y.field: value, "label": "ideal"} for key, value in values.items()]
    options = {"color": MUTED, "strokeDash": [2, 3], "strokeWidth": 1.2}
    inside = [row for row in rows if y.domain[0] <= row[y.field] <= y.domain[1]]
    line = draw_layer(rows, "line", options, x=x.channel(), y=y.channel())
    return [line, draw_text(inside[-1:], x, y, {"value": MUTED})]


def draw_text(rows: Sequence[Row], x: Axis, y: Axis, color: Spec, **mark: Any) -> Spec:
    """Return a layer with the field `label` of each row as text. `mark` are properties such as `align`."""
    options = {"align": "right", "dx": -6, "dy": -7, "clip": False} | mark
    channels = {"x": x.channel(), "y": y.channel(), "text": {"field": "label"}, "color": color}
    return draw_layer(rows, "text", options, **channels)


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
