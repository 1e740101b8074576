"""Plans: predicted time over devices with its interval, a panel for each family, with measurements of the
same cases.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from matplotlib.axes import Axes

from scaling.analysis.curves import Curve, family_key, family_name, problem_size, size_name
from scaling.analysis.forecast import Forecast, PredictedCurve, PredictedPoint
from scaling.analysis.methods import describe_call, method_of
from scaling.core.case import Case, problem
from scaling.core.formatting import count_of
from scaling.report.drawing import lines
from scaling.report.drawing.palette import GROUND, MUTED, layout_marker, line_style, method_colour
from scaling.report.drawing.scaling import MOST_LINES, fewer
from scaling.report.drawing.sheet import Drawing, compose

MOST_PANELS = 8
_HEAVY = 2.8  # of a line that was measured
_EDGE = 1.15  # how far the axes reach beyond the first and the last number of devices


def draw(forecast: Forecast, stem: str, curves: Sequence[Curve]) -> Drawing | None:
    """Return a panel for the largest problem of each family; None where nothing was planned on several
    device counts.
    """
    rows = _largest(curve for curve in forecast.curves if len(curve.points) > 1)
    if not rows:
        return None
    kinds = {record.environment.get("device_kind") for record in forecast.records}
    here = [curve for curve in curves if curve.timings[0].records[0].environment.get("device_kind") in kinds]
    painters = [
        partial(_draw, row=fewer(row), measured=_measured_curves(row, here)) for row in rows[:MOST_PANELS]
    ]
    title = f"Planned for {forecast.title}: seconds over devices"
    return compose(f"plan-{stem}", title, _caption(rows, here), painters)


def _largest(curves: Iterable[PredictedCurve]) -> list[list[PredictedCurve]]:
    """Return the curves of the largest problem of each family, the largest first; values come last."""
    families: dict[tuple, dict[tuple, list[PredictedCurve]]] = {}
    for curve in curves:
        families.setdefault(family_key(curve.case), {}).setdefault(
            problem(_stem(curve.case, curve.kind)), []
        ).append(curve)
    rows = [
        max(problems.values(), key=lambda same: problem_size(same[0].case)) for problems in families.values()
    ]
    return sorted(rows, key=lambda row: (row[0].case.ad_mode.is_value, -problem_size(row[0].case)))


def _stem(case: Case, kind: str) -> Case:
    """A case without its devices: with the points of each of them where those grow."""
    return replace(
        case, devices=1, mesh=None, points=case.points // case.devices if kind == "weak" else case.points
    )


def _measured_curves(row: Sequence[PredictedCurve], curves: Iterable[Curve]) -> list[Curve]:
    """Return the measured curves of the same cases."""
    planned = {(curve.kind, _stem(curve.case, curve.kind)) for curve in fewer(row)}
    return [curve for curve in curves if (curve.kind, _stem(curve.case, curve.kind)) in planned]


def _draw(axis: Axes, row: Sequence[PredictedCurve], measured: Sequence[Curve]) -> None:
    axis.set_xscale("log", base=2)
    axis.set_yscale("log")
    for above, curve in enumerate(reversed(row)):
        _predicted(axis, curve, above)
    for known in measured:
        _measured(axis, known)
    if measured:
        axis.plot(
            [],
            [],
            label="measured, in the colour and with the mark of its prediction",
            color=MUTED,
            linewidth=_HEAVY,
        )
    devices = sorted(
        {p.devices for curve in row for p in curve.points}
        | {p.devices for known in measured for p in known.points}
    )
    _ideal(axis, row, devices)
    axis.set_xlim(devices[0] / _EDGE, devices[-1] * _EDGE)
    lines.set_value_ticks(axis, devices, logarithmic=True)
    lines.set_log_axis(axis.yaxis, "s", axis.get_ylim())
    axis.set_xlabel("devices")
    axis.set_ylabel("time")
    axis.grid(True)
    case, weak = row[0].case, row[0].kind == "weak"
    lines.set_panel_title(
        axis, case, size_name(_stem(case, row[0].kind)) + (" for each device" if weak else ""), ""
    )
    _mark_formula(axis, [point for curve in row for point in curve.points])


def _predicted(axis: Axes, curve: PredictedCurve, above: int) -> None:
    """Draw a line with its band; beyond the compiled programs it is dotted with hollow marks.

    `above` is the number of lines drawn on top; a line under others is wider.
    """
    method, known = method_of(curve.case), [point for point in curve.points if not point.by_formula]
    shade, marker = method_colour(method), layout_marker(curve.case)
    low, high = zip(*(point.interval for point in curve.points), strict=True)
    axis.fill_between(
        [p.devices for p in curve.points], low, high, color=shade, alpha=0.14, linewidth=0, zorder=1
    )
    beyond = [*known[-1:], *(point for point in curve.points if point.by_formula)]
    name = f"{method.name}, {describe_call(curve.case)}"
    at: dict[str, Any] = {
        "color": shade,
        "marker": marker,
        "markersize": min(7, 4 + 0.6 * above),
        "linewidth": min(1.8, 1.0 + 0.15 * above),
    }
    if known:
        axis.plot(*_places(known), label=name, linestyle=line_style(method), zorder=3 - 0.1 * above, **at)
    if len(beyond) > len(known[-1:]):
        own: dict[str, Any] = {} if known else {"label": name}
        axis.plot(
            *_places(beyond), linestyle=":", markerfacecolor=GROUND, zorder=2.95 - 0.1 * above, **own, **at
        )


def _places(points: Sequence[PredictedPoint]) -> tuple[list[int], list[float]]:
    return [point.devices for point in points], [point.seconds for point in points]


def _measured(axis: Axes, curve: Curve) -> None:
    """Draw a heavy solid line, with a bar where the interval is known, in the style of its prediction."""
    method = method_of(curve.case)
    below = [max(0.0, p.seconds - (p.low or p.seconds)) for p in curve.points]
    over = [max(0.0, (p.high or p.seconds) - p.seconds) for p in curve.points]
    axis.errorbar(
        [p.devices for p in curve.points], [p.seconds for p in curve.points], yerr=[below, over],
        color=method_colour(method), linestyle="-", linewidth=_HEAVY, marker=layout_marker(curve.case),
        markersize=8, markerfacecolor="none", elinewidth=1, capsize=3, zorder=4,
    )  # fmt: skip


def _ideal(axis: Axes, row: Sequence[PredictedCurve], devices: Sequence[int]) -> None:
    """Draw the time without any loss, from the fastest method on the fewest devices."""
    curve = min(row, key=lambda each: (each.points[0].devices, each.points[0].seconds))
    first = curve.points[0]
    at = [count for count in devices if count >= first.devices]
    axis.plot(
        at,
        [first.seconds * (1 if curve.kind == "weak" else first.devices / n) for n in at],
        label="ideal",
        **lines.GUIDE,
    )


def _mark_formula(axis: Axes, points: Sequence[PredictedPoint]) -> None:
    """Mark where compiled programs end and formulas begin."""
    beyond = [point.devices for point in points if point.by_formula]
    if not beyond:
        return
    known = [point.devices for point in points if not point.by_formula and point.devices < min(beyond)]
    place = math.sqrt(min(beyond) * max(known)) if known else min(beyond) / math.sqrt(_EDGE)
    axis.axvline(place, color=MUTED, linewidth=0.8, zorder=0.5)
    axis.annotate(
        "formula →", (place, 1), (3, -3), xycoords=("data", "axes fraction"), textcoords="offset points",
        va="top", fontsize=8, color=MUTED,
    )  # fmt: skip


def _caption(rows: Sequence[Sequence[PredictedCurve]], curves: Sequence[Curve]) -> str:
    """Return what is drawn, and what is not."""
    shown = rows[:MOST_PANELS]
    caption = [
        (
            "Predicted, not measured: the line is the median of the prediction, the band its 95 % interval; both axes are"
        )
    ]
    caption[0] += (
        " logarithmic. The largest problem of each workload that was planned on several numbers of devices is drawn."
    )
    if any(point.by_formula for row in shown for curve in row for point in curve.points):
        caption.append(
            "Filled marks are of programs compiled for as many devices; hollow ones, dotted, are by formula alone."
        )
    if any(_measured_curves(row, curves) for row in shown):
        caption.append(
            "Heavy solid lines with large hollow marks were measured on such devices; bars are 95 % intervals."
        )
        if (
            environments := len(
                {curve.environment for row in shown for curve in _measured_curves(row, curves)}
            )
        ) > 1:
            caption.append(f"They are from {environments} environments, a line each.")
    if any(len(row) > MOST_LINES for row in shown):
        caption.append(
            "Where there are many ways to cut and call a mode, the one that is fastest on the most devices is drawn."
        )
    if left := rows[MOST_PANELS:]:
        names = "; ".join(family_name(row[0].case) for row in left)
        caption.append(f"{count_of(len(left), 'workload')} left out, but in the table: {names}.")
    return " ".join(caption)
