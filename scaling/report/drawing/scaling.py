"""Scaling: speed-up and efficiency over devices, strong and weak apart, with the ideal and the fitted law behind."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter

from scaling.analysis.curves import Curve, family, family_name, volume
from scaling.analysis.forecast import Predicted
from scaling.analysis.methods import Method, describe_call, method_of
from scaling.analysis.scaling_fits import ScalingFit
from scaling.core.formatting import count_of
from scaling.report import choice
from scaling.report.drawing import lines
from scaling.report.drawing.palette import colour, cut
from scaling.report.drawing.sheet import Drawing, Painter, compose

MOST_ROWS = 6  # two panels each
MOST_LINES = 8  # in one panel
TITLES = {"strong": "Strong scaling: the same problem on more devices", "weak": "Weak scaling: as many points for each device"}
Line = TypeVar("Line", Curve, Predicted)
Laws = Sequence[tuple[Curve, tuple[ScalingFit, ...]]]


def draw(kind: str, curves: Sequence[Curve], laws: Laws, several: bool) -> Drawing | None:
    """A row of two panels for the largest problem of each family and baseline."""
    drawable = choice.drawable(curve for curve in curves if curve.kind == kind)
    rows = choice.rows(drawable)
    if not rows:
        return None
    best = {id(curve): next((law for law in fitted if law.best), None) for curve, fitted in laws}
    painters: list[Painter] = []
    for row in map(fewer, rows[:MOST_ROWS]):
        painters += [partial(_speedups, row=row, laws=best, several=several), partial(_efficiencies, row=row, laws=best)]
    caption = _caption(kind, curves, drawable, rows, any(best.values()))
    return compose(f"scaling-{kind}", TITLES[kind], caption, painters)


def fewer(curves: Sequence[Line]) -> list[Line]:
    """All of them, or, when they are too many to tell apart, for each mode the one that is fastest on the most devices."""
    if len(curves) <= MOST_LINES:
        return list(curves)
    best: dict[Method, Line] = {}
    for curve in sorted(curves, key=lambda c: (-c.points[-1].devices, c.points[-1].seconds)):
        best.setdefault(method_of(curve.case).plain, curve)
    return list(best.values())


def _speedups(axis: Axes, row: Sequence[Curve], laws: Mapping[int, ScalingFit | None], several: bool) -> None:
    case, weak = row[0].case, row[0].kind == "weak"
    devices = _curves(axis, row, laws, efficiency=False)
    axis.plot(devices, [count / row[0].baseline_devices for count in devices], label="ideal", **lines.GUIDE)
    lines.title(axis, case, row[0].size, row[0].environment if several else "")
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


def _curves(axis: Axes, row: Sequence[Curve], laws: Mapping[int, ScalingFit | None], efficiency: bool) -> list[int]:
    """Every curve of a problem with its law; the numbers of devices."""
    devices = sorted({p.devices for curve in row for p in curve.points})
    if devices[-1] > 16:
        axis.set_xscale("log", base=2)
    for above, curve in enumerate(reversed(row)):
        known, case, way = curve.points, curve.case, method_of(curve.case)
        rows: list[Any] = [
            (p.efficiency, p.efficiency_low, p.efficiency_high) if efficiency else (p.speedup, p.speedup_low, p.speedup_high)
            for p in known
        ]
        name = f"{way.name}, {describe_call(case)}"
        lines.bars(axis, [p.devices for p in known], rows, name, way, cut(case), above)
        base = curve.points[0]
        if law := laws.get(id(curve)):
            at = np.geomspace(known[0].devices, known[-1].devices, 40)
            own = base.seconds / law.seconds  # a law's speed-up stands against its own time on one device
            own /= base.devices if curve.kind == "weak" else 1
            fitted = [own * law.speedup(d) / (d / base.devices if efficiency else 1) for d in at]
            axis.plot(at, fitted, color=colour(way), linewidth=3.5, alpha=0.22, zorder=1, solid_capstyle="round")
    lines.ticks(axis, devices, logarithmic=devices[-1] > 16)
    axis.set_xlabel("devices")
    axis.grid(True)
    return devices


def _caption(kind: str, curves: Sequence[Curve], drawable: Sequence[Curve], rows: Sequence[Sequence[Curve]], fitted: bool) -> str:
    bases = list(dict.fromkeys(row[0].baseline for row in rows[:MOST_ROWS]))
    of = " or ".join(bases) + (", as many points for each device" if kind == "weak" else "")
    told = [f"Against the same program on {of}; bars are 95 % intervals. {_which(drawable, rows[:MOST_ROWS])}"]
    if len(bases) > 1:
        told.append("A panel whose baseline is not one device names it at its axis.")
    if fitted:
        told.append("The broad pale line behind is the law that fits best (its numbers are in the table of laws).")
    if any(curve.case.split == "both" for row in rows[:MOST_ROWS] for curve in row):
        told.append("A split over both axes stands with the mesh that is fastest on each number of devices.")
    if any(len(row) > MOST_LINES for row in rows[:MOST_ROWS]):
        told.append("Where there are many ways to cut and call a mode, the one that is fastest on the most devices is drawn.")
    if left_out := rows[MOST_ROWS:]:
        told.append(f"Left out, but in the tables: {'; '.join(family_name(row[0].case) for row in left_out)}.")
    # A plain jit program has one device by nature: it is a baseline and no curve. Nor is a point of a curve of the other kind.
    drawn = {id(curve) for curve in drawable}
    left = [c for c in curves if c.kind == kind and id(c) not in drawn and c.case.api != "jit"]
    if count := len([c for c in left if not _is_point(c, [other for other in curves if other.kind != kind])]):
        are = "is" if count == 1 else "are"
        told.append(f"{count_of(count, 'curve')} {are} not drawn: no second device count.")
    return " ".join(told)


def _which(drawable: Iterable[Curve], rows: Iterable[Sequence[Curve]]) -> str:
    """Which problems are drawn, in words that are true of all of them."""
    most: dict[tuple, int] = {}
    for curve in drawable:
        of = _group(curve)
        most[of] = max(most.get(of, 0), volume(curve.case))
    if all(volume(row[0].case) == most[_group(row[0])] for row in rows):
        return "The largest problem of each workload is drawn."
    return (
        f"The largest problem of each workload that was measured on {choice.FULL} numbers of devices or more is drawn; "
        "larger ones were measured on fewer."
    )


def _group(curve: Curve) -> tuple:
    return curve.environment, curve.baseline_devices, *family(curve.case)


def _is_point(curve: Curve, others: Iterable[Curve]) -> bool:
    """Whether a curve is but one measurement, and on one of these others as well."""
    only = curve.points[0] if len(curve.points) == 1 else None
    return only is not None and any(
        (other.environment, replace(other.case, devices=only.devices, points=only.points)) == (curve.environment, curve.case)
        and only.devices in {point.devices for point in other.points}
        for other in others
    )
