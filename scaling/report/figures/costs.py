"""Figures of efficiency losses (stacked bars), roofline, time against memory, and prediction accuracy."""

from collections.abc import Sequence

from scaling.analysis.baselines import EfficiencyBreakdown, Roofline, rooflines
from scaling.analysis.cases import (
    base_method,
    describe_call,
    family_key,
    group_by,
    method_of,
    problem_size,
    size_name,
)
from scaling.analysis.curves import Curve, curves_of_largest_problems
from scaling.analysis.estimate import format_percentage
from scaling.analysis.findings import Findings
from scaling.analysis.forecast import PlanScores
from scaling.analysis.setting_comparison import MemoryPoint, find_front
from scaling.analysis.timings import memory_of
from scaling.core.case import problem
from scaling.core.formatting import count_of, format_bytes, format_duration, format_number
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
    line_styles,
)
from scaling.report.text import describe_panel

_PARTS = {
    "work": LineStyle("does the work", BLUE),
    "communication": LineStyle("communication", VERMILION),
    "imbalance": LineStyle("imbalance between processes", PURPLE),
    "dispatch": LineStyle("dispatch", OCHRE),
    "serial": LineStyle("serial work, contention and all else", GREY),
}
_LEAST_SHARE = 0.001


def draw_losses(findings: Findings) -> Figure | None:
    """Return a bar chart that divides the device time into useful work and efficiency losses.

    For the largest problem of each function, the chart shows the curve that is fastest on the most devices.
    Return None if no curve has known losses on several devices.
    """
    parts_of = {
        id(curve): parts
        for curve, parts in findings.efficiency_breakdowns
        if any(part.devices > 1 for part in parts)
    }
    groups = curves_of_largest_problems(c for c in findings.curves if id(c) in parts_of)
    fastest = [max(group, key=_curve_rank) for group in groups]
    if not fastest:
        return None
    shown = fastest[: marks.MOST_PANELS]
    rows = {id(curve): _segment_rows(curve, parts_of[id(curve)]) for curve in shown}
    drawn = {row["line"] for segments in rows.values() for row in segments}
    styles = [style for style in _PARTS.values() if style.name in drawn]
    panels = []
    for curve in shown:
        words = f"{method_of(curve.case).name}, {describe_call(curve.case)}, {size_name(curve.case)}"
        title = marks.panel_title(findings, curve.case, words, curve.environment)
        panels.append(Panel(title, _draw_bars(rows[id(curve)], styles), zoom=False))
    caption = (
        "Device-seconds of the method that is fastest on the most devices: the part that does the work of "
        "the one-device program, and the losses. Communication and imbalance are shown separately where "
        "they are known; otherwise they are part of the rest. Numbers of devices on which an empty call "
        "takes at least as long as the case are left out."
    )
    caption += marks.describe_omission(len(shown), len(fastest), "are drawn")
    return Figure("losses", "Where the efficiency goes", caption, tuple(panels), tuple(styles))


def _curve_rank(curve: Curve) -> tuple[bool, int, float]:
    """Return a sort key that is largest for the curve to show for a problem.

    Automatic modes rank above handwritten derivatives, then more devices above fewer, then shorter times
    above longer.
    """
    return not curve.case.ad_mode.closed_form, curve.points[-1].devices, -curve.points[-1].seconds


def _segment_rows(curve: Curve, parts: Sequence[EfficiencyBreakdown]) -> list[Row]:
    """Return the segments of stacked bars as rows of data, with one bar per device count.

    The segments of a bar are ordered from bottom to top. Losses of at most 0.1 % of the device time are
    omitted.
    """
    efficiency = {point.devices: point.efficiency.value for point in curve.points}
    rows = []
    for part in parts:
        bottom = 0.0
        for name, style in _PARTS.items():
            value = efficiency.get(part.devices) if name == "work" else getattr(part, name)
            share = max(0.0, value or 0.0)
            if share > _LEAST_SHARE or name == "work":
                text, devices = format_percentage(share), count_of(part.devices, "device")
                tip = "\n".join((style.name, devices, f"{text} of the device-seconds"))
                place = {"devices": part.devices, "bottom": bottom, "top": bottom + share}
                rows.append(
                    {"line": style.name, "tip": tip, "label": text if name == "work" else "", **place}
                )
            bottom += share
    return rows


def _draw_bars(rows: Sequence[Row], styles: Sequence[LineStyle]) -> tuple[Spec, ...]:
    x = marks.name_axis("devices", "devices", sorted({row["devices"] for row in rows}))
    y = marks.linear_axis("bottom", "share of device-seconds", max(1.02, *(row["top"] for row in rows)))
    ends = {"x": x.channel(), "y": y.channel(), "y2": {"field": "top"}}
    bars = marks.draw_layer(rows, "bar", {"width": {"band": 0.72}}, **ends, **marks.line_channels(styles))
    work = [row | {"bottom": min(row["top"], 1.0) / 2} for row in rows if row["label"]]
    return bars, marks.draw_text(work, x, y, color=ON_COLOUR, align="center", dx=0, dy=0)


def draw_rooflines(findings: Findings) -> Figure | None:
    """Return a roofline figure: FLOP/s against arithmetic intensity, with the measured peaks.

    Return None if the peak rates of the machine were not measured, or if no operations and bytes were
    counted.
    """
    found = rooflines(findings.timings)
    shown = found[: marks.MOST_PANELS]
    if not shown:
        return None
    styles = line_styles({m.name: ps[0].timing.case for each in shown for m, ps in each.points.items()})
    panels = [_draw_roofline(findings, each, styles) for each in shown]
    caption = (
        "Operations per second of one device against operations per byte of compulsory traffic (inputs read "
        "once, the result written once). The slope is the limit by memory, the level the limit by "
        "arithmetic; both were measured on the same machine. Data in a cache can exceed the slope."
    )
    caption += marks.describe_omission(len(shown), len(found), "are drawn")
    title = "Roofline: how near to what the machine can do"
    return Figure("roofline", title, caption, tuple(panels), tuple(styles))


def _draw_roofline(findings: Findings, roofline: Roofline, styles: Sequence[LineStyle]) -> Panel:
    rows = [
        marks.timing_row(
            method.name, point.timing, f"{format_number(point.rate / 1e9)} GFLOP/s",
            f"{format_number(point.intensity)} operations per byte",
            intensity=point.intensity, rate=point.rate,
        )
        for method, group in roofline.points.items() for point in group
    ]  # fmt: skip
    ridge, intensities = roofline.arithmetic / roofline.memory, marks.finite(rows, "intensity")
    first, last = min(ridge, *intensities) / 4, max(ridge, *intensities) * 4
    x = marks.log_axis("intensity", "operations for each byte", (first, last), "", margin=1)
    rates = [*marks.finite(rows, "rate"), first * roofline.memory, roofline.arithmetic]
    y = marks.log_axis("rate", "FLOP/s of a device", rates, "", margin=2)
    roof = [(first, first * roofline.memory), (ridge, roofline.arithmetic), (last, roofline.arithmetic)]
    level = f"{format_number(roofline.arithmetic / 1e9)} GFLOP/s"
    slope = f"{format_number(roofline.memory / 1e9)} GB/s"
    start = [{"intensity": first, "rate": first * roofline.memory, "label": slope}]
    layers = (
        *marks.draw_guide(roof, x, y, level, strokeDash=[1, 0]),
        marks.draw_text(start, x, y, align="left", dx=6, dy=-12),
        marks.draw_points(rows, x, y, styles),
    )
    title = describe_panel(roofline.case, "", roofline.honest)
    return Panel(marks.panel_title(findings, roofline.case, title, roofline.environment), layers)


def draw_memory(findings: Findings) -> Figure | None:
    """Return a figure of time against memory, or None if no function was measured with several methods.

    For each function, the figure shows the problem with the most methods. Methods that differ only in their
    memory setting are counted separately.
    """
    groups = _most_complete_problems(findings)
    if not groups:
        return None
    shown = groups[: marks.MOST_PANELS]
    styles = line_styles({_line_name(p): p.timing.case for points in shown for p in points})
    panels = [_draw_memory(findings, points, styles) for points in shown]
    caption = (
        "Time and memory of each mode, memory setting and number of devices; a larger mark is more devices. "
        "The memory is that of one device: the reported peak, or else inputs, results and temporaries. "
        "The dotted line is the Pareto front: no other program is both faster and smaller. Of each workload "
        "the problem with the most programs is drawn."
    )
    caption += marks.describe_omission(len(shown), len(groups), "are drawn; the table has all")
    return Figure("memory", "Time against memory", caption, tuple(panels), tuple(styles))


def _line_name(point: MemoryPoint) -> str:
    return base_method(point.timing.case).name


def _most_complete_problems(findings: Findings) -> list[list[MemoryPoint]]:
    points = [
        MemoryPoint(memory, timing.median, timing)
        for timing in findings.timings
        if (memory := memory_of(timing)) and timing.honest
        if timing.case.kind == "case" and not timing.case.ad_mode.is_value
    ]
    families = group_by(points, lambda p: (p.timing.environment, *family_key(p.timing.case))).values()
    by_problem = (group_by(family, lambda p: problem(p.timing.case)).values() for family in families)
    fullest = [max(problems, key=_completeness_key) for problems in by_problem]
    return [points for points in fullest if _completeness_key(points)[0] > 1]


def _completeness_key(points: Sequence[MemoryPoint]) -> tuple[int, int, int]:
    """Return a sort key for one problem: (number of methods, number of device counts, problem size)."""
    cases = [point.timing.case for point in points]
    return len(set(map(method_of, cases))), len({c.devices for c in cases}), problem_size(cases[0])


def _draw_memory(findings: Findings, points: Sequence[MemoryPoint], styles: Sequence[LineStyle]) -> Panel:
    counts = sorted({point.timing.case.devices for point in points})
    rows = [
        marks.timing_row(_line_name(p), p.timing, format_bytes(p.memory), memory=p.memory,
                         area=40 + 160 * counts.index(p.timing.case.devices) / max(1, len(counts) - 1),
                         label=method_of(p.timing.case).memory_setting)
        for p in points
    ]  # fmt: skip
    x = marks.log_axis("memory", "memory of a device", (row["memory"] for row in rows), "B", 1.5)
    y = marks.log_axis("seconds", "time", marks.with_ends(rows, "seconds"), "s", 1.5)
    size = {"field": "area", "type": "quantitative", "scale": None}
    front = find_front(points)
    best = {(point.memory, point.seconds) for point in front}
    named = [row for row in rows if row["label"] and (row["memory"], row["seconds"]) in best]
    layers = (
        *marks.draw_guide([(p.memory, p.seconds) for p in front], x, y, interpolate="step-after"),
        marks.draw_intervals(rows, x, y, styles),
        marks.draw_points(rows, x, y, styles, size=size),
        marks.draw_end_labels(named, x, y, styles),
    )
    first = points[0].timing
    where = f"{counts[0]} to {counts[-1]} devices" if len(counts) > 1 else count_of(counts[0], "device")
    title = f"{size_name(first.case)}, {where}"
    return Panel(marks.panel_title(findings, first.case, title, first.environment), layers)


def draw_scores(scores: PlanScores, stem: str) -> Figure:
    """Return a figure of predicted time against measured time, with one mark per case.

    Args:
        stem: The name of the hardware in file names, such as 'nvidia-h100'.
    """
    pairs = scores.total.pairs
    styles = line_styles({base_method(pair.timing.case).name: pair.timing.case for pair in pairs})
    rows = [
        marks.timing_row(base_method(pair.timing.case).name, pair.timing,
                         f"predicted {format_duration(pair.predicted_seconds)}",
                         measured=pair.timing.median, predicted=pair.predicted_seconds)
        for pair in pairs
    ]  # fmt: skip
    values = marks.finite(rows, "measured", "predicted")
    x = marks.log_axis("measured", "measured time", values, "s")
    y = marks.log_axis("predicted", "predicted time", values, "s")
    low, high = x.domain
    layers = (
        *marks.draw_guide([(low, low), (high, high)], x, y, "as predicted", strokeDash=[1, 0]),
        *marks.draw_guide([(low, low * 2), (high / 2, high)], x, y),
        *marks.draw_guide([(low * 2, low), (high, high / 2)], x, y, "a factor of two"),
        marks.draw_points(rows, x, y, styles),
    )
    caption = (
        "A mark for each case that was both planned and measured on the same kind of device; above the line "
        "it took less than predicted."
    )
    title = f"Predicted against measured: {scores.hardware}"
    return Figure(f"score-{stem}", title, caption, (Panel((), layers),), tuple(styles))
