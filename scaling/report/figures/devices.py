"""Figures over devices: time, speed-up and efficiency, strong and weak scaling apart, and meshes."""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np

from scaling.analysis.curves import (
    Curve,
    CurvePoint,
    family_key,
    family_name,
    problem,
    problem_size,
    size_name,
)
from scaling.analysis.forecast import PredictedCurve
from scaling.analysis.grouping import group_by
from scaling.analysis.methods import Method, describe_call, method_of
from scaling.analysis.scaling_fits import ScalingFit
from scaling.analysis.variants import Variants, mesh_name
from scaling.core.formatting import count_of, format_duration, format_ratio
from scaling.report import choice
from scaling.report.figures import marks
from scaling.report.figures.marks import Figure, Panel, Row, Spec
from scaling.report.figures.theme import GRID, LineStyle, layout_style, method_style

MOST_LINES = 8  # in one panel
_MOST_MESH_LINES = 6
TITLES = {
    "strong": "Strong scaling: the same problem on more devices",
    "weak": "Weak scaling: as many points for each device",
}
AnyCurve = TypeVar("AnyCurve", Curve, PredictedCurve)
Laws = Sequence[tuple[Curve, tuple[ScalingFit, ...]]]


def fewer(curves: Sequence[AnyCurve]) -> list[AnyCurve]:
    """Return all curves, or of too many the one of each method that is fastest on the most devices."""
    if len(curves) <= MOST_LINES:
        return list(curves)
    best: dict[Method, AnyCurve] = {}
    for curve in sorted(curves, key=lambda c: (-c.points[-1].devices, c.points[-1].seconds)):
        best.setdefault(method_of(curve.case).without_memory_setting, curve)
    return list(best.values())


def curve_name(case_or_curve: Any) -> str:
    """Return the name of a curve in a legend: its method and how it is called."""
    case = getattr(case_or_curve, "case", case_or_curve)
    return f"{method_of(case).name}, {describe_call(case)}"


def curve_styles(curves: Iterable[Any]) -> list[LineStyle]:
    """Return the style of each curve, sorted by name.

    Marks distinguish layouts, or modes if there is one layout.
    """
    cases = [curve.case for curve in curves]
    if len({describe_call(case) for case in cases}) > 1:
        return marks.unique_styles(layout_style(curve_name(case), case) for case in cases)
    return marks.unique_styles(method_style(method_of(c))._replace(name=curve_name(c)) for c in cases)


def draw_times(curves: Sequence[Curve], show_environment: bool) -> Figure | None:
    """Return time against devices, and speed-up over the best one-device program, of the largest problems."""
    rows = choice.curves_of_largest_problems(curve for curve in curves if curve.kind == "strong")
    groups = [fewer(row) for row in rows[: marks.MOST_PANELS]]
    styles, panels = curve_styles(itertools.chain(*groups)), []
    for group in groups:
        title = marks.panel_title(
            group[0].case, group[0].size, group[0].environment if show_environment else ""
        )
        panels.append(Panel(title, _draw_seconds(group, styles)))
        if any(point.against_jit is not None for curve in group for point in curve.points):
            against = "speed-up over the best one-device program"
            panels.append(
                Panel((*title, against), _draw_ratios(group, styles, "against_jit", "speed-up", {}))
            )
    if not panels:
        return None
    caption = (
        "Lower is faster at the left; at the right every mode is compared with the same program: the fastest "
        f"plain jit program on one device that is not written by hand. {_CAPTION}"
    )
    heading = "Time against devices, and speed-up over the best one-device program"
    return marks.compose("devices", heading, caption, panels, styles, most=len(panels))


_CAPTION = "Bars are 95 % intervals; of a ratio that is not determined the interval alone is shown."


def _draw_seconds(group: Sequence[Curve], styles: Sequence[LineStyle]) -> tuple[Spec, ...]:
    rows = [
        {"devices": timing.case.devices, **marks.timing_row(curve_name(curve), timing)}
        for curve in group
        for timing in curve.timings
    ]
    x = marks.count_axis("devices", "devices", marks.finite(rows, "devices"))
    y = marks.log_axis("seconds", "time", marks.finite(rows, "seconds", "low", "high"), "s")
    first = min((curve.points[0] for curve in group), key=lambda p: (p.devices, p.seconds))
    counts = sorted({row["devices"] for row in rows if row["devices"] >= first.devices})
    ideal = [(count, first.seconds * first.devices / count) for count in counts]
    return (*marks.draw_guide(ideal, x, y, "ideal"), *marks.draw_series(rows, x, y, styles))


def draw_scaling(kind: str, curves: Sequence[Curve], laws: Laws, show_environment: bool) -> Figure | None:
    """Return speed-up and efficiency for the largest problem of each family and baseline."""
    drawable = choice.multi_point_curves(curve for curve in curves if curve.kind == kind)
    rows = choice.curves_of_largest_problems(drawable)
    if not rows:
        return None
    best = {id(curve): next((law for law in fitted if law.best), None) for curve, fitted in laws}
    groups = [fewer(row) for row in rows[: marks.MOST_PANELS]]
    styles, panels = curve_styles(itertools.chain(*groups)), []
    for group in groups:
        first = group[0]
        title = marks.panel_title(first.case, first.size, first.environment if show_environment else "")
        speedup = ("speed-up (scaled)" if kind == "weak" else "speed-up") + first.relative
        for field, axis_title in (("speedup", speedup), ("efficiency", "efficiency" + first.relative)):
            panels.append(Panel(title, _draw_ratios(group, styles, field, axis_title, best)))
    caption = _describe_scaling(kind, curves, drawable, rows, any(best.values()))
    return marks.compose(f"scaling-{kind}", TITLES[kind], caption, panels, styles, most=len(panels))


def _draw_ratios(
    group: Sequence[Curve],
    styles: Sequence[LineStyle],
    field: str,
    title: str,
    laws: Mapping[int, ScalingFit | None],
) -> tuple[Spec, ...]:
    """Return a ratio of the points against devices, with the ideal and the law that fits best."""
    rows = [_point_row(curve, point, field) for curve in group for point in curve.points]
    counts = sorted({row["devices"] for row in rows})
    many, efficiency, base = counts[-1] > 16, field == "efficiency", group[0].baseline_devices
    x = marks.count_axis("devices", "devices", counts, "log" if many else "linear")
    shown = [row for row in rows if row["ratio"] is not None]
    values = [*marks.finite(shown, "ratio", "low", "high"), *([1.0] if efficiency else [])]
    if field == "speedup":
        values += [count / base for count in counts]
    if many and not efficiency:
        y = marks.log_axis("ratio", title, values, margin=1.2)
    else:
        y = marks.linear_axis("ratio", title, 1.08 * max(values, default=1.0))
    fits = [
        marks.draw_lines(_law_rows(curve, law, efficiency), x, y, styles, strokeWidth=6, strokeOpacity=0.2)
        for curve in group
        if (law := laws.get(id(curve)))
    ]
    ideal = [(count, 1.0 if efficiency else count / base) for count in counts]
    guides = [] if field == "against_jit" else marks.draw_guide(ideal, x, y, "ideal")
    return (*fits, *guides, *marks.draw_series(rows, x, y, styles))


def _point_row(curve: Curve, point: CurvePoint, field: str) -> Row:
    value, low, high = (getattr(point, f"{field}{end}") for end in ("", "_low", "_high"))
    line, word = curve_name(curve), field.replace("against_jit", "speed-up over the best one-device program")
    time = format_duration(point.seconds, point.low, point.high)
    tip = (line, count_of(point.devices, "device"), f"{word} {format_ratio(value, low, high)}", time)
    return marks.ratio_row(line, "\n".join(tip), value, low, high) | {"devices": point.devices}


def _law_rows(curve: Curve, law: ScalingFit, efficiency: bool) -> list[Row]:
    """Return the fitted law along the devices, against the curve's own time on its baseline."""
    base = curve.points[0]
    scale = base.seconds / law.seconds / (base.devices if curve.kind == "weak" else 1)
    devices = np.geomspace(base.devices, curve.points[-1].devices, 24)
    ideal = [count / base.devices if efficiency else 1 for count in devices]
    ratios = [scale * law.speedup(count) / by for count, by in zip(devices, ideal, strict=True)]
    line = curve_name(curve)
    return [
        {"line": line, "devices": round(float(count), 4), "ratio": float(ratio)}
        for count, ratio in zip(devices, ratios, strict=True)
    ]


def _describe_scaling(
    kind: str,
    curves: Sequence[Curve],
    drawable: Sequence[Curve],
    rows: Sequence[Sequence[Curve]],
    fitted: bool,
) -> str:
    shown, left_out = rows[: marks.MOST_PANELS], rows[marks.MOST_PANELS :]
    bases = list(dict.fromkeys(row[0].baseline for row in shown))
    of = " or ".join(bases) + (", as many points for each device" if kind == "weak" else "")
    caption = [f"Against the same program on {of}. {_CAPTION} {_describe_chosen(drawable, shown)}"]
    if len(bases) > 1:
        caption.append("A panel whose baseline is not one device names it at its axis.")
    if fitted:
        caption.append("The broad pale line is the law that fits best (the table of laws has its numbers).")
    if any(curve.case.split == "both" for row in shown for curve in row):
        caption.append(
            "A split over both axes is drawn with the mesh that is fastest on each number of devices."
        )
    if any(len(row) > MOST_LINES for row in shown):
        caption.append("Of the many layouts of a mode the one that is fastest on the most devices is drawn.")
    if left_out:
        names = "; ".join(family_name(row[0].case) for row in left_out)
        caption.append(f"Left out, but in the tables: {names}.")
    if count := _count_single_points(kind, curves, drawable):
        caption.append(
            f"{count_of(count, 'curve')} {'is' if count == 1 else 'are'} not drawn: no second device count."
        )
    return " ".join(caption)


def _describe_chosen(drawable: Iterable[Curve], rows: Iterable[Sequence[Curve]]) -> str:
    """Return which problems are drawn."""
    families = group_by(drawable, _family)
    largest = {of: max(problem_size(curve.case) for curve in same) for of, same in families.items()}
    if all(problem_size(row[0].case) == largest[_family(row[0])] for row in rows):
        return "The largest problem of each workload is drawn."
    return (
        f"The largest problem of each workload that was measured on {choice.ENOUGH_COUNTS} numbers of "
        "devices or more is drawn; larger ones were measured on fewer."
    )


def _family(curve: Curve) -> tuple:
    return curve.environment, curve.baseline_devices, *family_key(curve.case)


def _count_single_points(kind: str, curves: Sequence[Curve], drawable: Sequence[Curve]) -> int:
    """Return the number of curves of a kind with a single point that no other curve has.

    jit is a baseline, not a curve.
    """
    drawn = {id(curve) for curve in drawable}
    rest = [c for c in curves if c.kind == kind and id(c) not in drawn and c.case.api != "jit"]
    others = {
        (other.environment, replace(other.case, devices=point.devices, points=point.points))
        for other in curves
        if other.kind != kind
        for point in other.points
    }
    return sum((c.environment, c.case) not in others for c in rest)


def draw_meshes(meshes: Sequence[Variants], show_environment: bool) -> Figure | None:
    """Return time by mesh for the largest problem of each family."""
    families = group_by((m for m in meshes if m.honest), lambda m: (m.environment, *family_key(m.case)))
    groups = []
    for family in families.values():
        problems = group_by(family, lambda mesh: problem(mesh.case)).values()
        groups.append(_fewer_meshes(max(problems, key=lambda same: (len(same), problem_size(same[0].case)))))
    if not groups:
        return None
    styles = marks.unique_styles(
        layout_style(_mesh_line(mesh), mesh.case) for group in groups[: marks.MOST_PANELS] for mesh in group
    )
    panels = [_draw_mesh(group, styles, show_environment) for group in groups[: marks.MOST_PANELS]]
    caption = (
        "Time by mesh: devices over points x devices over seeds; bars are 95 % intervals. "
        "A filled mark is the fastest mesh on its number of devices, where it is distinguished from the next."
    )
    caption += marks.describe_omission(panels, groups, "are drawn; the table has all")
    return marks.compose("mesh", "Meshes: points by seeds", caption, panels, styles)


def _mesh_line(mesh: Variants) -> str:
    return curve_name(mesh.case).replace(", the fastest mesh", "")


def _fewer_meshes(group: Sequence[Variants]) -> list[Variants]:
    """Return the comparisons of the methods that are fastest on the most devices."""
    ranks = {
        name: min((-mesh.case.devices, mesh.rows[0][0].median) for mesh in same)
        for name, same in group_by(group, _mesh_line).items()
    }
    kept = sorted(ranks, key=lambda name: ranks[name])[:_MOST_MESH_LINES]
    return [mesh for mesh in group if _mesh_line(mesh) in kept]


def _draw_mesh(group: Sequence[Variants], styles: Sequence[LineStyle], show_environment: bool) -> Panel:
    timings = [(mesh, timing) for mesh in group for timing, _ in mesh.rows]
    shapes = sorted({(t.case.devices, -t.case.axes[0], mesh_name(t.case)) for _, t in timings})
    rows = []
    for mesh, timing in timings:
        distinguished = mesh.distinguished and timing is mesh.rows[0][0]
        name, line = mesh_name(timing.case), _mesh_line(mesh)
        row = marks.timing_row(line, timing, mesh=name, best=distinguished)
        rows.append(row | {"tip": f"{row['tip']}\nmesh {name}"})
    rows.sort(key=lambda row: [name for *_, name in shapes].index(row["mesh"]))
    x = marks.name_axis("mesh", "mesh: points x seeds", [name for *_, name in shapes])
    y = marks.log_axis("seconds", "time", marks.finite(rows, "seconds", "low", "high"), "s")
    last = [{"mesh": one[2]} for one, other in itertools.pairwise(shapes) if one[0] != other[0]]
    dividers = marks.draw_layer(last, "rule", {"color": GRID}, x=x.channel(bandPosition=1))
    best = [row for row in rows if row["best"]]
    case = max((mesh.case for mesh in group), key=lambda case: case.devices)
    title = marks.panel_title(case, size_name(case), group[0].environment if show_environment else "")
    layers = (dividers, *marks.draw_series(rows, x, y, styles), marks.draw_filled_points(best, x, y, styles))
    return Panel(title, layers, zoom=False, least_width=60 + 34 * len(shapes))
