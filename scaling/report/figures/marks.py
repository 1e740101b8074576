"""Marks: axes, lines with intervals and labels that the figures share, and the figure as a value."""

import math
from collections.abc import Iterable, Mapping, Sequence, Sized
from dataclasses import dataclass
from typing import Any, NamedTuple

from scaling.analysis.curves import Timing, family_name
from scaling.core.case import Case
from scaling.core.formatting import count_of, format_duration, is_ratio_determined
from scaling.report.figures.theme import MUTED, SHAPES, LineStyle

Row = dict[str, Any]  # a row of a tidy table: one mark
Spec = dict[str, Any]  # a part of a Vega-Lite specification
MOST_PANELS = 6
_LABEL_HEIGHT, _LETTER = 0.055, 0.0145  # height of a label and width of a letter, as fractions of a panel
_ISOLATED = "!isolated || indexof(datum.line, isolated) == 0 || indexof(isolated, datum.line) == 0"


@dataclass(frozen=True)
class Axis:
    """An axis: the field that it shows, and the options of its channel."""

    field: str
    options: Mapping[str, Any]
    domain: tuple[float, float] = (1.0, 10.0)

    def channel(self, field: str | None = None, **more: Any) -> Spec:
        """Return the channel of a field on this axis."""
        return {"field": field or self.field, "type": "quantitative", **self.options, **more}

    def fraction(self, value: float) -> float:
        """Return where a value lies on a logarithmic axis, from 0 to 1."""
        low, high = self.domain
        return math.log(value / low) / math.log(high / low)


class Panel(NamedTuple):
    """Layers that share their axes, with a title as lines of text."""

    title: tuple[str, ...]
    layers: tuple[Spec, ...]
    zoom: bool = True
    least_width: int = 0  # pixels
    height: int = 230


@dataclass(frozen=True)
class Figure:
    """A figure: the stem of its file names, its title and caption, its panels and its legend."""

    name: str
    title: str
    caption: str
    panels: tuple[Panel, ...]
    legend: tuple[LineStyle, ...]


def compose(
    name: str,
    title: str,
    caption: str,
    panels: Sequence[Panel],
    legend: Iterable[LineStyle] = (),
    most: int = MOST_PANELS,
) -> Figure:
    """Return a figure of the first panels, with a note in the caption where others are left out."""
    shown = panels[:most]
    caption += describe_omission(shown, panels, "panels are drawn; the tables have all")
    return Figure(name, title, caption, tuple(shown), tuple(legend))


def describe_omission(shown: Sized, found: Sized, drawn: str = "are drawn") -> str:
    """Return the sentence of a caption that counts what is drawn; empty where that is everything."""
    return f" {len(shown)} of {len(found)} {drawn}." if len(shown) < len(found) else ""


def panel_title(case: Case, detail: str, environment: str) -> tuple[str, ...]:
    """Return the title of a panel: the function, a detail, and the environment where there are several."""
    lines = (family_name(case), detail, environment and f"environment {environment}")
    return tuple(line for line in lines if line)


def unique_styles(styles: Iterable[LineStyle]) -> list[LineStyle]:
    """Return each style once, by name."""
    return [*{style.name: style for style in sorted(styles, key=lambda style: style.name)}.values()]


def log_axis(
    field: str, title: str, values: Iterable[float], unit: str | None = None, margin: float = 1.3
) -> Axis:
    """Return a logarithmic axis for the values.

    Labels are in engineering units, or plain numbers if there is no unit.
    """
    positive = [value for value in values if value and value > 0]
    domain = min(positive) / margin, max(positive) * margin
    narrow = domain[1] < 200 * domain[0]
    decades = range(math.floor(math.log10(domain[0])), math.ceil(math.log10(domain[1])) + 1)
    ticks = [float(f"{tick}e{power}") for power in decades for tick in ((1, 2, 5) if narrow else (1,))]
    label = "format(datum.value, ',~g')" if unit is None else f"format(datum.value, '~s') + '{unit}'"
    axis = {"labelExpr": label, "values": ticks[:: max(1, len(ticks) // 9)]}
    scale = {"type": "log", "domain": domain, "nice": False}
    return Axis(field, {"title": title, "scale": scale, "axis": axis}, domain)


def linear_axis(field: str, title: str, high: float) -> Axis:
    """Return a linear axis from zero."""
    options = {"title": title, "scale": {"domain": (0, high), "nice": False}, "axis": {"tickCount": 6}}
    return Axis(field, options, (0, high))


def count_axis(field: str, title: str, counts: Iterable[float], kind: str = "log") -> Axis:
    """Return an axis with a tick at each count, such as those of devices."""
    ticks = sorted(set(counts))
    margin = max((ticks[-1] / ticks[0]) ** 0.06, 1.1)
    domain = ticks[0] / margin, ticks[-1] * margin
    if kind == "linear":
        domain = ticks[0] - 0.05 * ticks[-1], 1.05 * ticks[-1]
    label = "datum.value < 1e5 ? format(datum.value, ',d') : format(datum.value, '~s')"
    options = {
        "axis": {"values": ticks, "labelExpr": label},
        "scale": {"type": kind, "domain": domain, "nice": False},
    }
    return Axis(field, {"title": title, **options}, domain)


def name_axis(field: str, title: str, names: Sequence[Any]) -> Axis:
    """Return an axis with a band for each name, in this order."""
    return Axis(
        field,
        {
            "title": title,
            "type": "nominal",
            "sort": list(names),
            "scale": {"type": "band"},
            "axis": {"labelAngle": 0},
        },
    )


def draw_layer(rows: Sequence[Row], mark: str, options: Spec, **channels: Spec | None) -> Spec:
    """Return a layer with a mark for each row, or with one line; channels of None are omitted."""
    encoding = {name: channel for name, channel in channels.items() if channel is not None}
    return {"data": {"values": rows}, "mark": {"type": mark, "clip": True, **options}, "encoding": encoding}


def line_channel(styles: Sequence[LineStyle], values: Iterable[Any], **more: Any) -> Spec:
    """Return a channel that has a value for each line, such as its colour."""
    scale = {"domain": [style.name for style in styles], "range": list(values)}
    return {"field": "line", "type": "nominal", "title": None, "scale": scale, **more}


def line_channels(styles: Sequence[LineStyle]) -> dict[str, Spec]:
    """Return the channels of colour, of opacity while another line is isolated, and of the text on hover."""
    return {
        "color": line_channel(styles, (style.colour for style in styles)),
        "opacity": {"condition": {"test": _ISOLATED, "value": 1}, "value": 0.08},
        "tooltip": {"field": "tip", "type": "nominal"},
    }


def draw_points(rows: Sequence[Row], x: Axis, y: Axis, styles: Sequence[LineStyle], **more: Spec) -> Spec:
    """Return a mark for each row in the shape of its line."""
    shape = line_channel(styles, (SHAPES[style.shape or "circle"] for style in styles))
    return draw_layer(
        rows, "point", {}, x=x.channel(), y=y.channel(), shape=shape, **line_channels(styles), **more
    )


def draw_filled_points(
    rows: Sequence[Row], x: Axis, y: Axis, styles: Sequence[LineStyle], colour: str | None = None
) -> Spec:
    """Return points filled with a colour, or with that of their line."""
    colours = {style.name: colour or style.colour for style in styles}
    filled = [row | {"colour": colours[row["line"]]} for row in rows]
    return draw_points(filled, x, y, styles, fill={"field": "colour", "type": "nominal", "scale": None})


def draw_intervals(rows: Sequence[Row], x: Axis, y: Axis, styles: Sequence[LineStyle]) -> Spec:
    """Return a bar from `low` to `high` for each row that has an interval."""
    ends = {"x": x.channel(), "y": y.channel("low"), "y2": {"field": "high"}}
    layer = draw_layer(rows, "rule", {"strokeWidth": 2}, **ends, **line_channels(styles))
    return layer | {"transform": [{"filter": "datum.low != null && datum.high != null"}]}


def draw_lines(
    rows: Sequence[Row], x: Axis, y: Axis, styles: Sequence[LineStyle], dotted: bool = False, **mark: Any
) -> Spec:
    """Return a line through the rows of each line; it breaks where a value is not determined."""
    dashes = ([2, 3] if dotted else list(style.dash or (1, 0)) for style in styles)
    options = {"strokeWidth": 1.8, "invalid": "break-paths-filter-domains"} | mark
    dash = line_channel(styles, dashes)
    return draw_layer(
        rows, "line", options, x=x.channel(), y=y.channel(), strokeDash=dash, **line_channels(styles)
    )


def draw_series(rows: Sequence[Row], x: Axis, y: Axis, styles: Sequence[LineStyle]) -> list[Spec]:
    """Return lines, intervals and points."""
    return [draw(rows, x, y, styles) for draw in (draw_lines, draw_intervals, draw_points)]


def draw_guide(
    points: Iterable[tuple[float, float]], x: Axis, y: Axis, label: str = "", **mark: Any
) -> list[Spec]:
    """Return a dotted grey line through the points, with a label at its last point."""
    rows = [{x.field: at, y.field: value} for at, value in points]
    options = {"color": MUTED, "strokeDash": [2, 3], "strokeWidth": 1.2} | mark
    line = draw_layer(rows, "line", options, x=x.channel(), y=y.channel())
    inside = [row | {"label": label} for row in rows if y.domain[0] <= row[y.field] <= y.domain[1]]
    return [line, draw_text(inside[-1:], x, y)] if label else [line]


def draw_text(rows: Sequence[Row], x: Axis, y: Axis, **mark: Any) -> Spec:
    """Return the field `label` of each row as text, in the `colour` of the rows where they have one."""
    options = {"color": MUTED, "align": "right", "dx": -6, "dy": -7, "clip": False} | mark
    own = {"field": "colour", "type": "nominal", "scale": None} if rows and "colour" in rows[0] else None
    return draw_layer(rows, "text", options, x=x.channel(), y=y.channel(), text={"field": "label"}, color=own)


def draw_labels(rows: Iterable[Row], x: Axis, y: Axis, ends: bool = False) -> list[Spec]:
    """Return the labels of rows, without those that would cover an earlier one.

    The axes are logarithmic. ends: whether the rows are the right ends of lines, written to the right of
    them; else a label is above its mark, and to the left of it in the right part of the panel.
    """
    taken: list[tuple[float, float, float]] = []  # left, right, height
    kept: dict[str, list[Row]] = {"left": [], "right": []}
    for row in rows:
        at, height = x.fraction(row[x.field]), y.fraction(row[y.field])
        width, side = _LETTER * len(row["label"]), "right" if at > 0.7 and not ends else "left"
        left = at - width if side == "right" else at
        if all(left > b or left + width < a or abs(height - h) > _LABEL_HEIGHT for a, b, h in taken):
            taken.append((left, left + width, height))
            kept[side].append(row)
    options = {"fontSize": 10, "dy": 3 if ends else -8}
    return [
        draw_text(some, x, y, align=side, dx=-4 if side == "right" else 8 if ends else 5, **options)
        for side, some in kept.items()
        if some
    ]


def timing_row(line: str, timing: Timing, **fields: Any) -> Row:
    """Return the row of a timing: its time and interval, and its numbers in words."""
    low, high = timing.interval or (None, None)
    time = format_duration(timing.median, low, high)
    samples = sum(len(record.seconds) for record in timing.records)
    words = (line, count_of(timing.case.devices, "device"), time, count_of(samples, "sample"))
    row = {"line": line, "seconds": timing.median, "low": low, "high": high, "tip": "\n".join(words)}
    return row | fields


def ratio_row(line: str, tip: str, value: float | None, low: float | None, high: float | None) -> Row:
    """Return the row of a ratio; its value is None where it is not determined, so that it is not drawn."""
    shown = value if is_ratio_determined(low, high) else None
    return {"line": line, "ratio": shown, "low": low, "high": high, "tip": tip}


def finite(rows: Iterable[Row], *fields: str) -> list[float]:
    """Return the values of some fields that are known."""
    return [row[field] for row in rows for field in fields if row.get(field) is not None]
