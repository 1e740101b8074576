"""Figures against device count: time, speed-up, efficiency, device meshes, and predicted times of plans."""

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeVar

import numpy as np

from scaling.analysis.cases import (
    Method,
    base_method,
    describe_call,
    family_key,
    family_name,
    group_by,
    method_of,
    problem_size,
    size_name,
    stem,
)
from scaling.analysis.curves import (
    ENOUGH_COUNTS,
    Curve,
    curves_of_largest_problems,
)
from scaling.analysis.estimate import format_ratio, is_ratio_determined
from scaling.analysis.findings import Findings
from scaling.analysis.forecast import Forecast, PredictedCurve, PredictedPoint
from scaling.analysis.scaling_fits import ScalingFit
from scaling.analysis.setting_comparison import SettingComparison, mesh_name
from scaling.core.case import Case, label, problem
from scaling.core.formatting import count_of, format_duration
from scaling.report.figures import marks
from scaling.report.figures.marks import Figure, Panel, Row, Spec
from scaling.report.figures.theme import GRID, GROUND, MUTED, LineStyle, line_styles

MOST_LINES = 8  # number of lines in one panel
MOST_PLANS = 8  # number of panels in the figure of a plan
TITLES = {
    "strong": "Strong scaling: the same problem on more devices",
    "weak": "Weak scaling: as many points for each device",
}
_UNDETERMINED = "Bars are 95 % intervals; of a ratio that is not determined the interval alone is shown."
_RATIOS = {
    "speedup": "speed-up",
    "efficiency": "efficiency",
    "against_jit": "speed-up over the best automatic program on one device",
}
_LIMITED = " Of the many layouts of a mode the one that is fastest on the most devices is drawn."
AnyCurve = TypeVar("AnyCurve", Curve, PredictedCurve)


def _limit_curves(curves: Sequence[AnyCurve]) -> list[AnyCurve]:
    """Return the curves to draw: all of them, or one per method if there are more than MOST_LINES.

    The curve of a method is the fastest among those with the most devices. Methods that differ only in their
    memory setting count as one.
    """
    if len(curves) <= MOST_LINES:
        return list(curves)
    best: dict[Method, AnyCurve] = {}
    for curve in sorted(curves, key=lambda c: (-c.points[-1].devices, c.points[-1].seconds)):
        best.setdefault(base_method(curve.case), curve)
    return list(best.values())


def line_name(case: Case) -> str:
    """Return the legend entry of a case, such as 'jacrev (vmap), shard_map, points split'."""
    return f"{method_of(case).name}, {describe_call(case)}"


def _curve_styles(curves: Iterable[Any]) -> list[LineStyle]:
    return line_styles({line_name(curve.case): curve.case for curve in curves})


def _title(findings: Findings, curve: Curve, *words: str) -> tuple[str, ...]:
    return (*marks.panel_title(findings, curve.case, curve.size, curve.environment), *words)


def draw_times(findings: Findings) -> Figure | None:
    """Return a figure of time and speed-up against device count for the largest problem of each function.

    The speed-up is relative to the fastest jit program on one device without a handwritten derivative. Return
    None if there is no strong scaling curve.
    """
    found = curves_of_largest_problems(curve for curve in findings.curves if curve.kind == "strong")
    groups = [_limit_curves(row) for row in found[: marks.MOST_PANELS]]
    styles, panels = _curve_styles(itertools.chain(*groups)), []
    for group in groups:
        rows = _measurement_rows(group)
        panels.append(Panel(_title(findings, group[0]), _draw_seconds(group, rows, styles)))
        if any(row["against_jit_low"] is not None for row in rows):
            title = _title(findings, group[0], "speed-up over the best automatic program on one device")
            panels.append(Panel(title, _draw_ratios(group, rows, styles, "against_jit", "speed-up")))
    if not panels:
        return None
    caption = (
        "Which mode is fastest on how many devices, and its speed-up over one device. Left: "
        "lower is faster. Right: every mode against one and the same program, the fastest plain jit program "
        f"on one device that is not written by hand. {_UNDETERMINED}"
    )
    caption += _LIMITED if any(len(row) > MOST_LINES for row in found) else ""
    caption += marks.describe_omission(len(groups), len(found), "families are drawn; the tables have all")
    return Figure("devices", "Time and speed-up against devices", caption, tuple(panels), tuple(styles))


def _draw_seconds(
    group: Sequence[Curve], rows: Sequence[Row], styles: Sequence[LineStyle]
) -> tuple[Spec, ...]:
    x = marks.count_axis("devices", "devices", marks.finite(rows, "devices"))
    y = marks.log_axis("seconds", "time", marks.with_ends(rows, "seconds"), "s")
    first = min((curve.points[0] for curve in group), key=lambda p: (p.devices, p.seconds))
    counts = sorted({row["devices"] for row in rows if row["devices"] >= first.devices})
    ideal = [(count, first.seconds * first.devices / count) for count in counts]
    return (*marks.draw_guide(ideal, x, y, "ideal"), *marks.draw_series(rows, x, y, styles))


def _measurement_rows(curves: Iterable[Curve]) -> list[Row]:
    """Return a row of data for each device count of each curve.

    A speed-up or efficiency whose interval is too wide to be determined is None.
    """
    rows = []
    for curve in curves:
        for point, timing in zip(curve.points, curve.timings, strict=True):
            words, fields = list[str](), Row(devices=point.devices)
            for field, word in _RATIOS.items():
                estimate = getattr(point, field)
                words += [f"{word} {format_ratio(*estimate)}"] if estimate else []
                value, low, high = estimate or (None, None, None)
                shown = value if is_ratio_determined(low, high) else None
                fields |= {field: shown, f"{field}_low": low, f"{field}_high": high}
            rows.append(marks.timing_row(line_name(curve.case), timing, *words, **fields))
    return rows


def draw_scaling(kind: str, findings: Findings, curves: Sequence[Curve] | None = None) -> Figure | None:
    """Return a figure of speed-up and efficiency against device count, or None if there is no curve.

    Args:
        kind: The kind of scaling, 'strong' or 'weak'.
        curves: The scaling curves to choose from. By default these are all curves of `findings`.
    """
    drawable = [c for c in curves or findings.curves if c.kind == kind and len(c.points) > 1]
    rows = curves_of_largest_problems(drawable)
    if not rows:
        return None
    laws = {id(curve): law for curve, fitted in findings.scaling_fits for law in fitted if law.best}
    groups = [_limit_curves(row) for row in rows[: marks.MOST_PANELS]]
    styles, panels = _curve_styles(itertools.chain(*groups)), []
    for group in groups:
        drawn = _measurement_rows(group)
        for field in ("speedup", "efficiency"):
            title = _RATIOS[field] + (" (scaled)" if (kind, field) == ("weak", "speedup") else "")
            layers = _draw_ratios(group, drawn, styles, field, title + group[0].relative, laws)
            panels.append(Panel(_title(findings, group[0]), layers))
    caption = _describe_scaling(kind, drawable, rows)
    return Figure(f"scaling-{kind}", TITLES[kind], caption, tuple(panels), tuple(styles))


def _draw_ratios(
    group: Sequence[Curve],
    rows: Sequence[Row],
    styles: Sequence[LineStyle],
    field: str,
    title: str,
    laws: Mapping[int, ScalingFit] = MappingProxyType({}),
) -> tuple[Spec, ...]:
    counts, base = sorted({row["devices"] for row in rows}), group[0].baseline_devices
    efficiency = field == "efficiency"
    ideal = [(count, 1.0 if efficiency else count / base) for count in counts]
    guided = [] if field == "against_jit" else ideal
    values = [*marks.with_ends(rows, field), *(value for _, value in guided)]
    x = marks.count_axis("devices", "devices", counts)
    if efficiency or counts[-1] <= 4 * counts[0]:
        y = marks.linear_axis(field, title, 1.08 * max(values, default=1.0))
    else:
        y = marks.log_axis(field, title, values or [1.0], margin=1.2)
    fits = [
        marks.draw_lines(_law_rows(curve, laws[id(curve)], field), x, y, styles, strokeWidth=6,
                         strokeOpacity=0.2)
        for curve in group if id(curve) in laws
    ]  # fmt: skip
    guides = marks.draw_guide(ideal, x, y, "ideal") if guided else []
    return (*fits, *guides, *marks.draw_series(rows, x, y, styles))


def _law_rows(curve: Curve, law: ScalingFit, field: str) -> list[Row]:
    """Return rows of data with the speed-up or efficiency of a fitted scaling law at 12 device counts.

    The values are relative to the measured time of the baseline, not to the fitted time.

    Args:
        field: 'speedup' or 'efficiency'.
    """
    base = curve.points[0]
    scale = base.seconds / law.seconds / (base.devices if curve.kind == "weak" else 1)
    return [
        {
            "line": line_name(curve.case),
            "devices": round(float(count), 4),
            field: float(scale * law.speedup(count) / (count / base.devices if field == "efficiency" else 1)),
        }
        for count in np.geomspace(base.devices, curve.points[-1].devices, 12)
    ]


def _describe_scaling(kind: str, drawable: Sequence[Curve], rows: Sequence[Sequence[Curve]]) -> str:
    shown, omitted = rows[: marks.MOST_PANELS], rows[marks.MOST_PANELS :]
    bases = " or ".join(dict.fromkeys(row[0].baseline for row in shown))
    of = bases + (", as many points for each device" if kind == "weak" else "")
    selection = _describe_selection(drawable, shown)
    caption = f"Speed-up and efficiency against the same program on {of}. {_UNDETERMINED} {selection}"
    caption += " The broad pale line is the law that fits best."
    if any(curve.case.split == "both" for row in shown for curve in row):
        caption += " A split over both axes is drawn with the mesh that is fastest on each number of devices."
    caption += _LIMITED if any(len(row) > MOST_LINES for row in shown) else ""
    if omitted:
        names = "; ".join(family_name(row[0].case) for row in omitted)
        caption += f" Left out, but in the tables: {names}."
    return caption


def _describe_selection(drawable: Iterable[Curve], rows: Iterable[Sequence[Curve]]) -> str:
    families = group_by(drawable, _family)
    largest = {of: max(problem_size(curve.case) for curve in same) for of, same in families.items()}
    if all(problem_size(row[0].case) == largest[_family(row[0])] for row in rows):
        return "The largest problem of each workload is drawn."
    return (
        f"The largest problem of each workload that was measured on {ENOUGH_COUNTS} "
        "numbers of "
        "devices or more is drawn; larger ones were measured on fewer."
    )


def _family(curve: Curve) -> tuple:
    return curve.environment, curve.baseline_devices, *family_key(curve.case)


def draw_meshes(findings: Findings) -> Figure | None:
    """Return a figure of time against device mesh, or None if no meshes were compared.

    For each function, the figure shows the problem with the most mesh comparisons. The mesh '2x4' splits the
    points over 2 devices and the seeds over 4.
    """
    honest = (mesh for mesh in findings.mesh_comparisons if mesh.honest)
    families = group_by(honest, lambda mesh: (mesh.environment, *family_key(mesh.case)))
    groups = []
    for family in families.values():
        problems = group_by(family, lambda mesh: problem(mesh.case)).values()
        groups.append(max(problems, key=lambda same: (len(same), problem_size(same[0].case))))
    if not groups:
        return None
    shown = groups[: marks.MOST_PANELS]
    styles = line_styles({_mesh_line(mesh): mesh.case for group in shown for mesh in group})
    panels = [_draw_mesh(findings, group, styles) for group in shown]
    caption = (
        "Which mesh, devices over points x devices over seeds, is fastest. Bars are 95 % intervals. A "
        "filled mark is the fastest mesh on its number of devices, where it is distinguished from the next."
    )
    caption += marks.describe_omission(len(shown), len(groups), "are drawn; the table has all")
    return Figure("mesh", "Meshes: time by mesh", caption, tuple(panels), tuple(styles))


def _mesh_line(mesh: SettingComparison) -> str:
    return line_name(mesh.case).replace(", the fastest mesh", "")


def _draw_mesh(findings: Findings, group: Sequence[SettingComparison], styles: Sequence[LineStyle]) -> Panel:
    rows, colours = [], {style.name: style.colour for style in styles}
    for mesh in group:
        for timing, over in mesh.rows:
            line, first = _mesh_line(mesh), timing is mesh.rows[0][0]
            word = "" if first else f"{format_ratio(*over)} as long as the fastest mesh"
            inside = colours[line] if first and mesh.distinguished else GROUND
            fields = {"mesh": mesh_name(timing.case), "fill": inside, "devices": timing.case.devices}
            rows.append(marks.timing_row(line, timing, word, **fields))
    shapes = {row["mesh"]: (row["devices"], -int(row["mesh"].split("x")[0])) for row in rows}
    names = sorted(shapes, key=lambda name: shapes[name])
    rows.sort(key=lambda row: names.index(row["mesh"]))
    x = marks.name_axis("mesh", "mesh: points x seeds", names)
    y = marks.log_axis("seconds", "time", marks.with_ends(rows, "seconds"), "s")
    ends = [{"mesh": a} for a, b in itertools.pairwise(names) if shapes[a][0] != shapes[b][0]]
    dividers = marks.draw_layer(ends, "rule", {"color": GRID}, x=x.channel(bandPosition=1))
    layers = (
        dividers,
        marks.draw_lines(rows, x, y, styles),
        marks.draw_intervals(rows, x, y, styles),
        marks.draw_points(rows, x, y, styles, fill="fill"),
    )
    case = max((mesh.case for mesh in group), key=lambda case: case.devices)
    title = marks.panel_title(findings, case, size_name(case), group[0].environment)
    return Panel(title, layers, zoom=False, least_width=60 + 34 * len(names))


# Figures of plans.


def draw_plan(forecast: Forecast, stem_name: str, curves: Sequence[Curve]) -> Figure | None:
    """Return a figure of predicted time against device count, or None if the plan has no scaling curve.

    The figure shows the largest problem of each function.

    Args:
        stem_name: The name of the hardware in file names, such as 'nvidia-h100'.
        curves: The measured curves. Those of the shown programs on the planned kind of device are included.
    """
    groups = _largest_planned(curve for curve in forecast.curves if len(curve.points) > 1)
    if not groups:
        return None
    kinds = {record.environment.get("device_kind") for record in forecast.records}
    same_kind = [c for c in curves if c.timings[0].records[0].environment.get("device_kind") in kinds]
    shown = [_limit_curves(group) for group in groups[:MOST_PLANS]]
    planned = [{(curve.kind, stem(curve.case, curve.kind)) for curve in group} for group in shown]
    measured = [[c for c in same_kind if (c.kind, stem(c.case, c.kind)) in programs] for programs in planned]
    styles = _curve_styles(itertools.chain(*shown))
    panels = [_draw_predictions(group, known, styles) for group, known in zip(shown, measured, strict=True)]
    caption = (
        "Predicted, not measured: the line is the median of the prediction, the band its 95 % interval. "
        "Filled marks are programs compiled for that many devices; hollow ones, dotted, are by formula "
        "alone."
    )
    if any(measured):
        caption += " Heavy lines with large marks were measured on such devices."
    caption += _LIMITED if any(len(group) > MOST_LINES for group in groups) else ""
    if left_out := groups[MOST_PLANS:]:
        names = "; ".join(family_name(group[0].case) for group in left_out)
        caption += f" {count_of(len(left_out), 'workload')} left out, but in the table: {names}."
    title = f"Planned for {forecast.title}: time against devices"
    return Figure(f"plan-{stem_name}", title, caption, tuple(panels), tuple(styles))


def _largest_planned(curves: Iterable[PredictedCurve]) -> list[list[PredictedCurve]]:
    families = group_by(curves, lambda curve: family_key(curve.case)).values()
    problems = (group_by(f, lambda c: problem(stem(c.case, c.kind))).values() for f in families)
    groups = [max(several, key=lambda same: problem_size(same[0].case)) for several in problems]
    return sorted(groups, key=lambda group: (group[0].case.ad_mode.is_value, -problem_size(group[0].case)))


def _draw_predictions(
    group: Sequence[PredictedCurve], measured: Sequence[Curve], styles: Sequence[LineStyle]
) -> Panel:
    colours = {style.name: style.colour for style in styles}
    rows = [_predicted_row(curve, point, colours) for curve in group for point in curve.points]
    known = _measurement_rows(measured)
    counts = sorted({row["devices"] for row in (*rows, *known)})
    x = marks.count_axis("devices", "devices", counts)
    y = marks.log_axis("seconds", "time", marks.with_ends([*rows, *known], "seconds"), "s")
    compiled, formula = ([row for row in rows if row["by_formula"] is by] for by in (False, True))
    last = {row["line"]: row for row in compiled}  # where the dotted lines of extrapolation start
    beyond = [*(row for line, row in last.items() if line in {r["line"] for r in formula}), *formula]
    first, weak = min((c.points[0] for c in group), key=lambda p: p.devices), group[0].kind == "weak"
    ideal = [(n, first.seconds * (1 if weak else first.devices / n)) for n in counts if n >= first.devices]
    ends = {"x": x.channel(), "y": y.channel("seconds_low"), "y2": {"field": "seconds_high"}}
    layers = (
        marks.draw_layer(rows, "area", {"fillOpacity": 0.14}, **ends, **marks.line_channels(styles)),
        *marks.draw_guide(ideal, x, y, "ideal"),
        marks.draw_lines(compiled, x, y, styles),
        marks.draw_lines(beyond, x, y, styles, dotted=True),
        marks.draw_points(rows, x, y, styles, fill="fill"),
        marks.draw_lines(known, x, y, styles, strokeWidth=3.2),
        marks.draw_intervals(known, x, y, styles),
        marks.draw_points(known, x, y, styles, size={"value": 150}),
        *_draw_formula_divider(compiled, formula, x),
    )
    size = size_name(stem(group[0].case, group[0].kind)) + (" for each device" if weak else "")
    return Panel((family_name(group[0].case), size), layers)


def _predicted_row(curve: PredictedCurve, point: PredictedPoint, colours: Mapping[str, str]) -> Row:
    low, high = point.interval
    by = "predicted by formula" if point.by_formula else "predicted from the compiled program"
    tip = (label(point.record.case), format_duration(point.seconds, low, high), by)
    line = line_name(curve.case)
    return {
        "line": line, "devices": point.devices, "seconds": point.seconds,
        "seconds_low": low, "seconds_high": high,
        "by_formula": point.by_formula, "tip": "\n".join(tip),
        "fill": GROUND if point.by_formula else colours[line],
    }  # fmt: skip


def _draw_formula_divider(compiled: Sequence[Row], formula: Sequence[Row], x: marks.Axis) -> list[Spec]:
    if not formula:
        return []
    first = min(row["devices"] for row in formula)
    known = [row["devices"] for row in compiled if row["devices"] < first]
    rows = [{"devices": math.sqrt(first * max(known)) if known else first / 1.05, "label": "formula →"}]
    text = {"align": "left", "dx": 3, "dy": 6, "color": MUTED}
    return [
        marks.draw_layer(rows, "rule", {"color": MUTED}, x=x.channel()),
        marks.draw_layer(rows, "text", text, x=x.channel(), y={"value": 0}, text={"field": "label"}),
    ]
