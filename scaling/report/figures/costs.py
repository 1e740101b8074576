"""Figures of costs: where the efficiency goes, how near to the machine's peaks, and compiling."""

from collections.abc import Iterable, Sequence

from scaling.analysis.baselines import Roofline
from scaling.analysis.curves import Curve, Timing, family_key, size_name
from scaling.analysis.efficiency_breakdown import EfficiencyBreakdown
from scaling.analysis.grouping import group_by
from scaling.analysis.methods import base_method, describe_call, method_of
from scaling.analysis.stages import first_call_seconds
from scaling.core.formatting import count_of, format_duration, format_number, format_percentage
from scaling.report import choice
from scaling.report.figures import marks
from scaling.report.figures.marks import Figure, Panel, Row, Spec
from scaling.report.figures.theme import (
    BLUE,
    GREY,
    OCHRE,
    ON_COLOUR,
    PURPLE,
    VERMILION,
    LineStyle,
    method_style,
)
from scaling.report.labels import describe_panel

_PARTS = {
    "work": LineStyle("does the work", BLUE),
    "communication": LineStyle("communication", VERMILION),
    "imbalance": LineStyle("imbalance between processes", PURPLE),
    "dispatch": LineStyle("dispatch", OCHRE),
    "serial": LineStyle("serial work, contention and all else", GREY),
}
_LEAST_SHARE = 0.001


def draw_losses(
    losses: Sequence[tuple[Curve, tuple[EfficiencyBreakdown, ...]]],
    show_environment: bool,
    count_refused: int = 0,
) -> Figure | None:
    """Return where the efficiency goes, for the fastest curve of the largest problem of each family."""
    parts_of = {id(curve): parts for curve, parts in losses if any(part.devices > 1 for part in parts)}
    groups = choice.curves_of_largest_problems(curve for curve, _ in losses if id(curve) in parts_of)
    fastest = [max(group, key=_rank) for group in groups]
    if not fastest:
        return None
    rows = {id(curve): _share_rows(curve, parts_of[id(curve)]) for curve in fastest[: marks.MOST_PANELS]}
    drawn = {row["line"] for some in rows.values() for row in some}
    styles = [style for style in _PARTS.values() if style.name in drawn]
    panels = []
    for curve in fastest[: marks.MOST_PANELS]:
        words = f"{method_of(curve.case).name}, {describe_call(curve.case)}, {size_name(curve.case)}"
        title = marks.panel_title(curve.case, words, curve.environment if show_environment else "")
        panels.append(Panel(title, _draw_bars(rows[id(curve)], styles), zoom=False))
    caption = (
        "Of the device-seconds of the method that is fastest on the most devices: what does the work of the "
        "program on one device, and where the rest goes. Dispatch is the cost of an empty call; "
        "communication and imbalance are drawn where they are known, else they are within the rest. "
        "Super-linear points pass the top."
    )
    if count_refused:
        refused = count_of(count_refused, "point")
        caption += f" {refused} left out, where an empty call took as long as the case or longer."
    caption += marks.describe_omission(panels, fastest, "are drawn; the table has all")
    return marks.compose("losses", "Where the efficiency goes", caption, panels, styles)


def _rank(curve: Curve) -> tuple[bool, int, float]:
    """Rank the fastest on the most devices first; derivatives written by hand come last."""
    return not curve.case.ad_mode.closed_form, curve.points[-1].devices, -curve.points[-1].seconds


def _share_rows(curve: Curve, parts: Sequence[EfficiencyBreakdown]) -> list[Row]:
    """Return a row for each part of each number of devices, from the bottom up."""
    efficiency = {point.devices: point.efficiency for point in curve.points}
    rows = []
    for part in parts:
        bottom = 0.0
        for name, style in _PARTS.items():
            value = efficiency.get(part.devices) if name == "work" else getattr(part, name)
            share = max(0.0, value or 0.0)
            if share > _LEAST_SHARE or name == "work":
                devices = count_of(part.devices, "device")
                tip = "\n".join((style.name, devices, f"{format_percentage(share)} of the device-seconds"))
                row = {
                    "line": style.name,
                    "devices": part.devices,
                    "bottom": bottom,
                    "top": bottom + share,
                    "tip": tip,
                }
                rows.append(row | ({"label": format_percentage(share)} if name == "work" else {}))
            bottom += share
    return rows


def _draw_bars(rows: Sequence[Row], styles: Sequence[LineStyle]) -> tuple[Spec, ...]:
    x = marks.name_axis("devices", "devices", sorted({row["devices"] for row in rows}))
    y = marks.linear_axis("bottom", "share of device-seconds", max(1.02, *(row["top"] for row in rows)))
    ends = {"x": x.channel(), "y": y.channel(), "y2": {"field": "top"}}
    bars = marks.draw_layer(rows, "bar", {"width": {"band": 0.72}}, **ends, **marks.line_channels(styles))
    work = [row | {"middle": min(row["top"], 1.0) / 2} for row in rows if "label" in row]
    middle = marks.Axis("middle", y.options)
    return bars, marks.draw_text(work, x, middle, color=ON_COLOUR, align="center", dx=0, dy=0)


def draw_rooflines(rooflines: Sequence[Roofline], show_environment: bool) -> Figure | None:
    """Return the rate of each timing against its operational intensity, under the measured peaks."""
    if not rooflines:
        return None
    shown = rooflines[: marks.MOST_PANELS]
    styles = marks.unique_styles(method_style(method) for each in shown for method in each.points)
    panels = [_draw_roofline(each, styles, show_environment) for each in shown]
    caption = (
        "Operations per second of one device, by the operations for each byte that must be read or written "
        "whatever the program. Under the slope memory limits, under the level arithmetic; both were measured "
        "on the same machine. What stays in a cache can pass the slope."
    )
    caption += marks.describe_omission(shown, rooflines)
    return marks.compose("roofline", "Roofline: how near to what the machine can do", caption, panels, styles)


def _draw_roofline(of: Roofline, styles: Sequence[LineStyle], show_environment: bool) -> Panel:
    rows = [
        {
            **marks.timing_row(method.name, point.timing), "intensity": point.intensity, "rate": point.rate,
            "tip": "\n".join((
                marks.timing_row(method.name, point.timing)["tip"], size_name(point.timing.case),
                f"{format_number(point.rate / 1e9)} GFLOP/s", f"{format_number(point.intensity)} operations per byte",
            )),
        }
        for method, group in of.points.items() for point in group
    ]  # fmt: skip
    ridge, intensities = of.arithmetic / of.memory, marks.finite(rows, "intensity")
    first, last = min(ridge, *intensities) / 4, max(ridge, *intensities) * 4
    x = marks.log_axis("intensity", "operations for each byte", (first, last), "", margin=1)
    rates = [*marks.finite(rows, "rate"), first * of.memory, of.arithmetic]
    y = marks.log_axis("rate", "FLOP/s of a device", rates, "", margin=2)
    roof = [(first, first * of.memory), (ridge, of.arithmetic), (last, of.arithmetic)]
    level, slope = f"{format_number(of.arithmetic / 1e9)} GFLOP/s", f"{format_number(of.memory / 1e9)} GB/s"
    start = [{"intensity": first, "rate": first * of.memory, "label": slope}]
    layers = (
        *marks.draw_guide(roof, x, y, level, strokeDash=[1, 0]),
        marks.draw_text(start, x, y, align="left", dx=6, dy=-12),
        marks.draw_points(rows, x, y, styles),
    )
    title = describe_panel(of.case, "", of.honest)
    return Panel(marks.panel_title(of.case, title, of.environment if show_environment else ""), layers)


def draw_compiling(timings: Iterable[Timing], show_environment: bool) -> Figure | None:
    """Return the first call against a later one, for each family, with all sizes and numbers of devices."""
    calls = [
        (timing, first)
        for timing in timings
        if (first := first_call_seconds(timing))
        if timing.case.kind == "case" and timing.case.jit and not timing.case.ad_mode.is_value
    ]
    groups = list(group_by(calls, lambda call: (call[0].environment, *family_key(call[0].case))).values())
    if not groups:
        return None
    shown = groups[: marks.MOST_PANELS]
    styles = marks.unique_styles(method_style(base_method(t.case)) for group in shown for t, _ in group)
    panels = [_draw_calls(group, styles, show_environment) for group in shown]
    caption = (
        "The first call: tracing, lowering, compiling and running once; of coloured seeds, finding them too. "
        "On a slanted line that many later calls take as long as the first one took: below it most of the "
        "time of such a run is computing, above it is compiling."
    )
    caption += marks.describe_omission(shown, groups)
    return marks.compose("compile", "Compiling against running", caption, panels, styles)


def _draw_calls(
    group: Sequence[tuple[Timing, float]], styles: Sequence[LineStyle], show_environment: bool
) -> Panel:
    rows = [marks.timing_row(base_method(t.case).name, t, first=first) for t, first in group]
    rows = [row | {"tip": f"{row['tip']}\nfirst call {format_duration(row['first'])}"} for row in rows]
    x = marks.log_axis("seconds", "a later call", marks.finite(rows, "seconds"), "s", margin=1.6)
    y = marks.log_axis("first", "the first call", marks.finite(rows, "first"), "s", margin=1.6)
    (left, right), (low, high) = x.domain, y.domain
    guides = []
    for power in range(0, 10, 1 if high * right < 1e5 * low * left else 2):
        start, end = max(left, low / 10**power), min(right, high / 10**power)
        if start < end:
            label = "1 call" if power == 0 else f"{10**power:,} calls"
            guides.extend(marks.draw_guide([(at, at * 10**power) for at in (start, end)], x, y, label))
    timing = group[0][0]
    title = marks.panel_title(
        timing.case,
        f"{count_of(len(rows), 'case')}, all sizes",
        timing.environment if show_environment else "",
    )
    return Panel(title, (*guides, marks.draw_points(rows, x, y, styles)))
