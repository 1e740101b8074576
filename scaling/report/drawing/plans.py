"""Plans: predicted time over devices with its interval, a panel for each family, with what was measured of the same."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from matplotlib.axes import Axes

from scaling.analysis.curves import Curve, family, family_name, size_name, volume
from scaling.analysis.forecast import Expected, Forecast, Predicted
from scaling.analysis.methods import describe_call, method_of
from scaling.core.case import Case, problem
from scaling.core.formatting import count_of
from scaling.report.drawing import lines
from scaling.report.drawing.palette import GROUND, QUIET, colour, cut, dashes
from scaling.report.drawing.scaling import MOST_LINES, fewer
from scaling.report.drawing.sheet import Drawing, compose

MOST_PANELS = 8
_HEAVY = 2.8  # of a line that was measured
_EDGE = 1.15  # how far the axes reach beyond the first and the last number of devices


def draw(forecast: Forecast, stem: str, curves: Sequence[Curve]) -> Drawing | None:
    """A panel for the largest problem of each family; none where nothing was planned on several numbers of devices."""
    rows = _largest(curve for curve in forecast.curves if len(curve.points) > 1)
    if not rows:
        return None
    kinds = {record.environment.get("device_kind") for record in forecast.records}
    here = [curve for curve in curves if curve.timings[0].records[0].environment.get("device_kind") in kinds]
    painters = [partial(_draw, row=fewer(row), measured=_beside(row, here)) for row in rows[:MOST_PANELS]]
    title = f"Planned for {forecast.title}: seconds over devices"
    return compose(f"plan-{stem}", title, _caption(rows, here), painters)


def _largest(curves: Iterable[Predicted]) -> list[list[Predicted]]:
    """The curves of the largest problem of each family, the largest first; those of a value alone come last."""
    families: dict[tuple, dict[tuple, list[Predicted]]] = {}
    for curve in curves:
        families.setdefault(family(curve.case), {}).setdefault(problem(_stem(curve.case, curve.kind)), []).append(curve)
    rows = [max(problems.values(), key=lambda same: volume(same[0].case)) for problems in families.values()]
    return sorted(rows, key=lambda row: (row[0].case.ad_mode.is_value, -volume(row[0].case)))


def _stem(case: Case, kind: str) -> Case:
    """A case without its devices: with the points of each of them where those grow."""
    return replace(case, devices=1, mesh=None, points=case.points // case.devices if kind == "weak" else case.points)


def _beside(row: Sequence[Predicted], curves: Iterable[Curve]) -> list[Curve]:
    """What was measured of the same."""
    planned = {(curve.kind, _stem(curve.case, curve.kind)) for curve in fewer(row)}
    return [curve for curve in curves if (curve.kind, _stem(curve.case, curve.kind)) in planned]


def _draw(axis: Axes, row: Sequence[Predicted], measured: Sequence[Curve]) -> None:
    axis.set_xscale("log", base=2)
    axis.set_yscale("log")
    for above, curve in enumerate(reversed(row)):
        _predicted(axis, curve, above)
    for known in measured:
        _measured(axis, known)
    if measured:
        axis.plot([], [], label="measured, in the colour and with the mark of its prediction", color=QUIET, linewidth=_HEAVY)
    devices = sorted({p.devices for curve in row for p in curve.points} | {p.devices for known in measured for p in known.points})
    _ideal(axis, row, devices)
    axis.set_xlim(devices[0] / _EDGE, devices[-1] * _EDGE)
    lines.ticks(axis, devices, logarithmic=True)
    lines.logarithmic(axis.yaxis, "s", axis.get_ylim())
    axis.set_xlabel("devices")
    axis.set_ylabel("time")
    axis.grid(True)
    case, weak = row[0].case, row[0].kind == "weak"
    lines.title(axis, case, size_name(_stem(case, row[0].kind)) + (" for each device" if weak else ""), "")
    _formula(axis, [point for curve in row for point in curve.points])


def _predicted(axis: Axes, curve: Predicted, above: int) -> None:
    """A line with its band; beyond what was compiled for it is dotted and its marks are hollow.

    A line under others (`above` counts them) is wider than they are, so that two that fall together are both seen.
    """
    way, known = method_of(curve.case), [point for point in curve.points if not point.formula]
    shade, marker = colour(way), cut(curve.case)
    low, high = zip(*(point.interval for point in curve.points), strict=True)
    axis.fill_between([p.devices for p in curve.points], low, high, color=shade, alpha=0.14, linewidth=0, zorder=1)
    beyond = [*known[-1:], *(point for point in curve.points if point.formula)]
    name = f"{way.name}, {describe_call(curve.case)}"
    at: dict[str, Any] = {
        "color": shade,
        "marker": marker,
        "markersize": min(7, 4 + 0.6 * above),
        "linewidth": min(1.8, 1.0 + 0.15 * above),
    }
    if known:
        axis.plot(*_places(known), label=name, linestyle=dashes(way), zorder=3 - 0.1 * above, **at)
    if len(beyond) > len(known[-1:]):
        own: dict[str, Any] = {} if known else {"label": name}
        axis.plot(*_places(beyond), linestyle=":", markerfacecolor=GROUND, zorder=2.95 - 0.1 * above, **own, **at)


def _places(points: Sequence[Expected]) -> tuple[list[int], list[float]]:
    return [point.devices for point in points], [point.seconds for point in points]


def _measured(axis: Axes, curve: Curve) -> None:
    """A heavy solid line, with a bar where the interval is known; its name is that of its prediction."""
    way = method_of(curve.case)
    below = [max(0.0, p.seconds - (p.low or p.seconds)) for p in curve.points]
    over = [max(0.0, (p.high or p.seconds) - p.seconds) for p in curve.points]
    axis.errorbar(
        [p.devices for p in curve.points], [p.seconds for p in curve.points],
        yerr=[below, over],
        color=colour(way), linestyle="-", linewidth=_HEAVY,
        marker=cut(curve.case), markersize=8, markerfacecolor="none", elinewidth=1, capsize=3, zorder=4,
    )  # fmt: skip


def _ideal(axis: Axes, row: Sequence[Predicted], devices: Sequence[int]) -> None:
    """What as many devices would take without any loss, from the fastest on the fewest of them."""
    curve = min(row, key=lambda each: (each.points[0].devices, each.points[0].seconds))
    first = curve.points[0]
    at = [count for count in devices if count >= first.devices]
    axis.plot(at, [first.seconds * (1 if curve.kind == "weak" else first.devices / n) for n in at], label="ideal", **lines.GUIDE)


def _formula(axis: Axes, points: Sequence[Expected]) -> None:
    """Where compiled programs end and formula alone begins."""
    beyond = [point.devices for point in points if point.formula]
    if not beyond:
        return
    known = [point.devices for point in points if not point.formula and point.devices < min(beyond)]
    place = math.sqrt(min(beyond) * max(known)) if known else min(beyond) / math.sqrt(_EDGE)
    axis.axvline(place, color=QUIET, linewidth=0.8, zorder=0.5)
    axis.annotate(
        "formula →", (place, 1), (3, -3), xycoords=("data", "axes fraction"), textcoords="offset points", va="top", fontsize=8,
        color=QUIET,
    )  # fmt: skip


def _caption(rows: Sequence[Sequence[Predicted]], curves: Sequence[Curve]) -> str:
    """What is drawn, and what is not."""
    shown = rows[:MOST_PANELS]
    told = ["Predicted, not measured: the line is the median of the prediction, the band its 95 % interval; both axes are"]
    told[0] += " logarithmic. The largest problem of each workload that was planned on several numbers of devices is drawn."
    if any(point.formula for row in shown for curve in row for point in curve.points):
        told.append("Filled marks are of programs compiled for as many devices; hollow ones, dotted, are by formula alone.")
    if any(_beside(row, curves) for row in shown):
        told.append("Heavy solid lines with large hollow marks were measured on such devices; bars are 95 % intervals.")
        if (several := len({curve.environment for row in shown for curve in _beside(row, curves)})) > 1:
            told.append(f"They are from {several} environments, a line each.")
    if any(len(row) > MOST_LINES for row in shown):
        told.append("Where there are many ways to cut and call a mode, the one that is fastest on the most devices is drawn.")
    if left := rows[MOST_PANELS:]:
        names = "; ".join(family_name(row[0].case) for row in left)
        told.append(f"{count_of(len(left), 'workload')} left out, but in the table: {names}.")
    return " ".join(told)
