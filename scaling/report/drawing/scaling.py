"""Scaling: speed-up and efficiency over devices, strong and weak apart, with the ideal and the fitted law."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter

from scaling.analysis.curves import Curve, family_key, family_name, problem_size
from scaling.analysis.forecast import PredictedCurve
from scaling.analysis.methods import Method, describe_call, method_of
from scaling.analysis.scaling_fits import ScalingFit
from scaling.core.formatting import count_of
from scaling.report import choice
from scaling.report.drawing import lines
from scaling.report.drawing.palette import layout_marker, method_colour
from scaling.report.drawing.sheet import Drawing, Painter, compose

MOST_ROWS = 6  # two panels each
MOST_LINES = 8  # in one panel
TITLES = {
    "strong": "Strong scaling: the same problem on more devices",
    "weak": "Weak scaling: as many points for each device",
}
Line = TypeVar("Line", Curve, PredictedCurve)
Laws = Sequence[tuple[Curve, tuple[ScalingFit, ...]]]


def draw(kind: str, curves: Sequence[Curve], laws: Laws, show_environment: bool) -> Drawing | None:
    """Return a row of two panels for the largest problem of each family and baseline."""
    drawable = choice.multi_point_curves(curve for curve in curves if curve.kind == kind)
    rows = choice.curves_of_largest_problems(drawable)
    if not rows:
        return None
    best = {id(curve): next((law for law in fitted if law.best), None) for curve, fitted in laws}
    painters: list[Painter] = []
    for row in map(fewer, rows[:MOST_ROWS]):
        painters += [
            partial(_speedups, row=row, laws=best, show_environment=show_environment),
            partial(_efficiencies, row=row, laws=best),
        ]
    caption = _caption(kind, curves, drawable, rows, any(best.values()))
    return compose(f"scaling-{kind}", TITLES[kind], caption, painters)


def fewer(curves: Sequence[Line]) -> list[Line]:
    """Return all curves, or where they are too many, for each method the one that is fastest on the most
    devices.
    """
    if len(curves) <= MOST_LINES:
        return list(curves)
    best: dict[Method, Line] = {}
    for curve in sorted(curves, key=lambda c: (-c.points[-1].devices, c.points[-1].seconds)):
        best.setdefault(method_of(curve.case).without_memory_setting, curve)
    return list(best.values())


def _speedups(
    axis: Axes, row: Sequence[Curve], laws: Mapping[int, ScalingFit | None], show_environment: bool
) -> None:
    case, weak = row[0].case, row[0].kind == "weak"
    devices = _curves(axis, row, laws, efficiency=False)
    axis.plot(devices, [count / row[0].baseline_devices for count in devices], label="ideal", **lines.GUIDE)
    lines.set_panel_title(axis, case, row[0].size, row[0].environment if show_environment else "")
    axis.set_ylabel(("speed-up (scaled)" if weak else "speed-up") + row[0].relative)
    if devices[-1] > 16:
        axis.set_yscale("log", base=2)
        axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    else:
        axis.set_ylim(bottom=0)


def _efficiencies(axis: Axes, row: Sequence[Curve], laws: Mapping[int, ScalingFit | None]) -> None:
    devices = _curves(axis, row, laws, efficiency=True)
    axis.plot(devices, [1] * len(devices), label="ideal", **lines.GUIDE)
    axis.set_ylabel("efficiency" + row[0].relative)
    axis.set_ylim(bottom=0, top=max(1.1, axis.get_ylim()[1]))


def _curves(
    axis: Axes, row: Sequence[Curve], laws: Mapping[int, ScalingFit | None], efficiency: bool
) -> list[int]:
    """Draw every curve of a problem with its law; return the numbers of devices."""
    devices = sorted({p.devices for curve in row for p in curve.points})
    if devices[-1] > 16:
        axis.set_xscale("log", base=2)
    for above, curve in enumerate(reversed(row)):
        known, case, method = curve.points, curve.case, method_of(curve.case)
        rows: list[Any] = [
            (p.efficiency, p.efficiency_low, p.efficiency_high)
            if efficiency
            else (p.speedup, p.speedup_low, p.speedup_high)
            for p in known
        ]
        name = f"{method.name}, {describe_call(case)}"
        lines.draw_with_bars(axis, [p.devices for p in known], rows, name, method, layout_marker(case), above)
        base = curve.points[0]
        if law := laws.get(id(curve)):
            at = np.geomspace(known[0].devices, known[-1].devices, 40)
            own = base.seconds / law.seconds  # a law's speed-up stands against its own time on one device
            own /= base.devices if curve.kind == "weak" else 1
            fitted = [own * law.speedup(d) / (d / base.devices if efficiency else 1) for d in at]
            axis.plot(
                at,
                fitted,
                color=method_colour(method),
                linewidth=3.5,
                alpha=0.22,
                zorder=1,
                solid_capstyle="round",
            )
    lines.set_value_ticks(axis, devices, logarithmic=devices[-1] > 16)
    axis.set_xlabel("devices")
    axis.grid(True)
    return devices


def _caption(
    kind: str,
    curves: Sequence[Curve],
    drawable: Sequence[Curve],
    rows: Sequence[Sequence[Curve]],
    fitted: bool,
) -> str:
    bases = list(dict.fromkeys(row[0].baseline for row in rows[:MOST_ROWS]))
    of = " or ".join(bases) + (", as many points for each device" if kind == "weak" else "")
    caption = [
        (
            f"Against the same program on {of}; bars are 95 % intervals. {_describe_chosen(drawable, rows[:MOST_ROWS])}"
        )
    ]
    if len(bases) > 1:
        caption.append("A panel whose baseline is not one device names it at its axis.")
    if fitted:
        caption.append(
            "The broad pale line behind is the law that fits best (its numbers are in the table of laws)."
        )
    if any(curve.case.split == "both" for row in rows[:MOST_ROWS] for curve in row):
        caption.append(
            "A split over both axes stands with the mesh that is fastest on each number of devices."
        )
    if any(len(row) > MOST_LINES for row in rows[:MOST_ROWS]):
        caption.append(
            "Where there are many ways to cut and call a mode, the one that is fastest on the most devices is drawn."
        )
    if left_out := rows[MOST_ROWS:]:
        caption.append(
            f"Left out, but in the tables: {'; '.join(family_name(row[0].case) for row in left_out)}."
        )
    # A plain jit program is a baseline and not a curve; neither is a point of a curve of the other kind.
    drawn = {id(curve) for curve in drawable}
    left = [c for c in curves if c.kind == kind and id(c) not in drawn and c.case.api != "jit"]
    if count := len([c for c in left if not _is_point(c, [other for other in curves if other.kind != kind])]):
        are = "is" if count == 1 else "are"
        caption.append(f"{count_of(count, 'curve')} {are} not drawn: no second device count.")
    return " ".join(caption)


def _describe_chosen(drawable: Iterable[Curve], rows: Iterable[Sequence[Curve]]) -> str:
    """Return which problems are drawn, in words true of all of them."""
    most: dict[tuple, int] = {}
    for curve in drawable:
        of = _group(curve)
        most[of] = max(most.get(of, 0), problem_size(curve.case))
    if all(problem_size(row[0].case) == most[_group(row[0])] for row in rows):
        return "The largest problem of each workload is drawn."
    return (
        f"The largest problem of each workload that was measured on {choice.ENOUGH_COUNTS} numbers of "
        "devices or more is drawn; larger ones were measured on fewer."
    )


def _group(curve: Curve) -> tuple:
    return curve.environment, curve.baseline_devices, *family_key(curve.case)


def _is_point(curve: Curve, others: Iterable[Curve]) -> bool:
    """Return whether a curve is a single measurement that is also on one of the other curves."""
    only = curve.points[0] if len(curve.points) == 1 else None
    return only is not None and any(
        (other.environment, replace(other.case, devices=only.devices, points=only.points))
        == (curve.environment, curve.case)
        and only.devices in {point.devices for point in other.points}
        for other in others
    )
