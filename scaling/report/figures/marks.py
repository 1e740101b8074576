"""Vega-Lite building blocks of figures: axes, lines, intervals, labels; the classes Figure and Panel."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from scaling.analysis.curves import Timing, family_name
from scaling.core.case import Case, label
from scaling.core.formatting import count_of, format_duration
from scaling.report.figures.theme import MUTED, SHAPES, LineStyle

Row = dict[str, Any]  # a row of a tidy table, which one mark shows
Spec = dict[str, Any]  # a part of a Vega-Lite specification
MOST_PANELS = 6
_MOST_LABELS = 4  # the most lines that get a label at their end
_LABEL_HEIGHT = 0.065  # as a fraction of the panel height
_ISOLATED = "!isolated || indexof(datum.line, isolated) == 0 || indexof(isolated, datum.line) == 0"


@dataclass(frozen=True)
class Axis:
    """An axis: the field that it shows, the options of its encoding channel, and its domain."""

    field: str
    options: Mapping[str, Any]
    domain: tuple[float, float] = (1.0, 10.0)
    linear: bool = False

    def channel(self, field: str | None = None, **more: Any) -> Spec:
        """Return the Vega-Lite encoding channel of a field on this axis."""
        return {"field": field or self.field, "type": "quantitative", **self.options, **more}

    def fraction(self, value: float) -> float:
        """Return the position of a value on the axis, as a fraction from 0 to 1."""
        low, high = self.domain
        if self.linear:
            return (value - low) / (high - low)
        return math.log(value / low) / math.log(high / low)

    def value(self, fraction: float) -> float:
        """Return the value at a fraction of the axis."""
        low, high = self.domain
        return low + fraction * (high - low) if self.linear else low * (high / low) ** fraction


class Panel(NamedTuple):
    """Layers that share their axes, with a title as lines of text."""

    title: tuple[str, ...]
    layers: tuple[Spec, ...]
    zoom: bool = True
    least_width: int = 0  # pixels
    height: int = 230


@dataclass(frozen=True)
class Figure:
    """A figure: its file stem, title, caption, panels and legend."""

    name: str
    title: str
    caption: str
    panels: tuple[Panel, ...]
    legend: tuple[LineStyle, ...] = ()


def describe_omission(shown: int, found: int, what: str) -> str:
    """Return a caption sentence with the number of items drawn, or '' if all are drawn."""
    return f" {shown} of {found} {what}." if shown < found else ""


def panel_title(case: Case, detail: str, environment: str) -> tuple[str, ...]:
    """Return the title lines of a panel: the function, a detail, and the environment if it is not empty."""
    lines = (family_name(case), detail, environment and f"environment {environment}")
    return tuple(line for line in lines if line)


def log_axis(
    field: str, title: str, values: Iterable[float], unit: str | None = None, margin: float = 1.3
) -> Axis:
    """Return a logarithmic axis. If there is a unit, labels have SI prefixes before it."""
    positive = [value for value in values if value and value > 0]
    domain = min(positive) / margin, max(positive) * margin
    steps = (1, 2, 5) if domain[1] < 200 * domain[0] else (1,)
    decades = range(math.floor(math.log10(domain[0])), math.ceil(math.log10(domain[1])) + 1)
    ticks = [float(f"{step}e{power}") for power in decades for step in steps]
    text = "format(datum.value, ',~g')" if unit is None else f"format(datum.value, '~s') + '{unit}'"
    axis = {"labelExpr": text, "values": ticks[:: max(1, len(ticks) // 9)]}
    scale = {"type": "log", "domain": domain, "nice": False}
    return Axis(field, {"title": title, "scale": scale, "axis": axis}, domain)


def linear_axis(field: str, title: str, high: float) -> Axis:
    """Return a linear axis that starts at zero."""
    options = {"title": title, "scale": {"domain": (0, high), "nice": False}, "axis": {"tickCount": 6}}
    return Axis(field, options, (0, high), linear=True)


def count_axis(field: str, title: str, counts: Iterable[float]) -> Axis:
    """Return a logarithmic axis with a tick at each count, for example at each device count."""
    ticks = sorted(set(counts))
    margin = max((ticks[-1] / ticks[0]) ** 0.06, 1.1)
    domain = ticks[0] / margin, ticks[-1] * margin
    text = "datum.value < 1e5 ? format(datum.value, ',d') : format(datum.value, '~s')"
    axis, scale = {"values": ticks, "labelExpr": text}, {"type": "log", "domain": domain, "nice": False}
    return Axis(field, {"title": title, "axis": axis, "scale": scale}, domain)


def name_axis(field: str, title: str, names: Sequence[Any]) -> Axis:
    """Return a categorical axis with a band for each name, in the given order."""
    scale, axis = {"type": "band"}, {"labelAngle": 0}
    return Axis(field, {"title": title, "type": "nominal", "sort": list(names), "scale": scale, "axis": axis})


def draw_layer(rows: Sequence[Row], mark: str, options: Spec, **channels: Spec | None) -> Spec:
    """Return a layer with one mark per row, or with a single line. Channels that are None are omitted."""
    encoding = {name: channel for name, channel in channels.items() if channel is not None}
    return {"data": {"values": rows}, "mark": {"type": mark, "clip": True, **options}, "encoding": encoding}


def _line_channel(styles: Sequence[LineStyle], values: Iterable[Any]) -> Spec:
    scale = {"domain": [style.name for style in styles], "range": list(values)}
    return {"field": "line", "type": "nominal", "title": None, "scale": scale}


def line_channels(styles: Sequence[LineStyle]) -> dict[str, Spec]:
    """Return the encoding channels of color, of opacity (if a line is isolated) and of the tooltip."""
    return {
        "color": _line_channel(styles, (style.colour for style in styles)),
        "opacity": {"condition": {"test": _ISOLATED, "value": 1}, "value": 0.08},
        "tooltip": {"field": "tip", "type": "nominal"},
    }


def draw_points(
    rows: Sequence[Row], x: Axis, y: Axis, styles: Sequence[LineStyle], fill: str | None = None, **more: Spec
) -> Spec:
    """Return a layer with a marker for each row, in the shape of its line.

    Args:
        rows: the rows.
        x: the horizontal axis.
        y: the vertical axis.
        styles: the styles of the lines.
        fill: the field with the color of the interior of a marker.
        more: further encoding channels.
    """
    if fill:
        more["fill"] = {"field": fill, "type": "nominal", "scale": None}
    shape = _line_channel(styles, (SHAPES[style.shape or "circle"] for style in styles))
    return draw_layer(
        rows, "point", {}, x=x.channel(), y=y.channel(), shape=shape, **line_channels(styles), **more
    )


def draw_intervals(rows: Sequence[Row], x: Axis, y: Axis, styles: Sequence[LineStyle]) -> Spec:
    """Return a layer with an error bar for each row that has the interval fields *_low and *_high."""
    low, high = f"{y.field}_low", f"{y.field}_high"
    ends = {"x": x.channel(), "y": y.channel(low), "y2": {"field": high}}
    layer = draw_layer(rows, "rule", {"strokeWidth": 2}, **ends, **line_channels(styles))
    return layer | _keep_known(low, high)


def _keep_known(*fields: str) -> Spec:
    """Return a layer transform that filters out rows with a missing value in the given fields."""
    return {"transform": [{"filter": " && ".join(f"datum.{field} != null" for field in fields)}]}


def draw_lines(
    rows: Sequence[Row], x: Axis, y: Axis, styles: Sequence[LineStyle], dotted: bool = False, **mark: Any
) -> Spec:
    """Return a layer that connects the rows of each line, without rows that have no value."""
    options = {"strokeWidth": 1.8} | ({"strokeDash": [2, 3]} if dotted else {}) | mark
    dash = None if dotted else _line_channel(styles, (list(style.dash or (1, 0)) for style in styles))
    channels = {"x": x.channel(), "y": y.channel(), "strokeDash": dash, **line_channels(styles)}
    layer = draw_layer(rows, "line", options, **channels)
    return layer | _keep_known(y.field)


def draw_series(rows: Sequence[Row], x: Axis, y: Axis, styles: Sequence[LineStyle]) -> list[Spec]:
    """Return layers of lines, intervals and markers, with end labels if there are two to four lines."""
    ends = _last_of_lines(row for row in rows if row.get(y.field) is not None)
    labels = [draw_end_labels(ends, x, y, styles)] if 1 < len(ends) <= _MOST_LABELS else []
    points = draw_points(rows, x, y, styles) | _keep_known(y.field)
    return [draw_lines(rows, x, y, styles), draw_intervals(rows, x, y, styles), points, *labels]


def _last_of_lines(rows: Iterable[Row]) -> list[Row]:
    """Return the last row of each line with a label: its mode or, if modes are shared, its distinct words."""
    last = {row["line"]: row for row in rows}
    modes = {line: line.partition(" (")[0].partition(",")[0] for line in last}
    if len(set(modes.values())) < len(last):
        words = {line: line.split(", ") for line in last}
        shared = set.intersection(*map(set, words.values()))
        modes = {
            line: ", ".join(w for w in of if w not in shared) or modes[line] for line, of in words.items()
        }
    return [row | {"label": modes[line]} for line, row in last.items()]


def draw_end_labels(rows: Sequence[Row], x: Axis, y: Axis, styles: Sequence[LineStyle]) -> Spec:
    """Return a layer of labels to the right of the rows' marks, shifted apart to avoid overlap."""
    colours = {style.name: style.colour for style in styles}
    spread = [
        {
            x.field: row[x.field],
            y.field: y.value(height),
            "line": row["line"],
            "label": row["label"],
            "colour": colours[row["line"]],
        }
        for row, height in _spread(sorted(rows, key=lambda row: row[y.field]), y)
    ]
    return draw_text(spread, x, y, align="left", dx=8, dy=3, fontSize=11)


def _spread(rows: Iterable[Row], y: Axis) -> Iterator[tuple[Row, float]]:
    """Yield pairs of a row and its label height, from bottom to top, at least one label apart."""
    height = -math.inf
    for row in rows:
        height = max(y.fraction(row[y.field]), height + _LABEL_HEIGHT)
        yield row, height


def draw_guide(
    points: Iterable[tuple[float, float]], x: Axis, y: Axis, text: str = "", **mark: Any
) -> list[Spec]:
    """Return layers of a gray dotted line through (x, y) pairs, with an optional label at its end."""
    rows = [{x.field: at, y.field: value} for at, value in points]
    options = {"color": MUTED, "strokeDash": [2, 3], "strokeWidth": 1.2} | mark
    line = draw_layer(rows, "line", options, x=x.channel(), y=y.channel())
    inside = [row | {"label": text} for row in rows if y.domain[0] <= row[y.field] <= y.domain[1]]
    return [line, draw_text(inside[-1:], x, y)] if text else [line]


def draw_text(rows: Sequence[Row], x: Axis, y: Axis, **mark: Any) -> Spec:
    """Return a text layer of the field `label`, in the color of the field `colour` if the rows have it."""
    options = {"color": MUTED, "align": "right", "dx": -6, "dy": -7, "clip": False} | mark
    own = {"field": "colour", "type": "nominal", "scale": None} if rows and "colour" in rows[0] else None
    return draw_layer(rows, "text", options, x=x.channel(), y=y.channel(), text={"field": "label"}, color=own)


def timing_row(line: str, timing: Timing, *words: str, **fields: Any) -> Row:
    """Return the row of a timing, with its time, its interval and its tooltip.

    Args:
        line: the name of the line.
        timing: the timing.
        words: further lines of the tooltip.
        fields: further fields of the row.
    """
    low, high = timing.interval or (None, None)
    samples, processes = len(timing.seconds), timing.replicates
    counts = count_of(samples, "sample") + (f" of {processes} processes" if processes > 1 else "")
    time = format_duration(timing.median, low, high)
    tip = "\n".join(word for word in (label(timing.case), time, *words, counts) if word)
    times = {"seconds": timing.median, "seconds_low": low, "seconds_high": high}
    return {"line": line, "tip": tip} | times | fields


def finite(rows: Iterable[Row], *fields: str) -> list[float]:
    """Return the values of the given fields that are not None."""
    return [row[field] for row in rows for field in fields if row.get(field) is not None]


def with_ends(rows: Sequence[Row], field: str) -> list[float]:
    """Return the values of a field that are not None, with the ends of their intervals."""
    known = [row for row in rows if row.get(field) is not None]
    return finite(known, field, f"{field}_low", f"{field}_high")
