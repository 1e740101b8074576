"""Draw figures against device count: time, speed-up, efficiency, and predicted times of plans."""

import itertools
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from scaling.analysis.cases import group_by
from scaling.analysis.curves import ENOUGH_COUNTS, Curve, CurvePoint, curves_of_largest_problems
from scaling.analysis.estimate import format_ratio
from scaling.analysis.findings import Findings
from scaling.analysis.forecast import Forecast, is_by_formula
from scaling.analysis.scaling_fits import ScalingFit
from scaling.report.answer_tables import largest_planned
from scaling.report.figures import marks
from scaling.report.figures.marks import Axis, Figure, Panel, Row, Spec, make_figure
from scaling.report.figures.theme import GROUND, LineStyle, line_styles

_MAX_LINES = 8  # number of lines in one panel
_TITLES = {
    "strong": "Strong scaling: the same problem on more devices",
    "weak": "Weak scaling: as many points for each device",
}
_RATIOS = {  # from field of a curve point to its name in the figure
    "speedup": "speed-up",
    "efficiency": "efficiency",
    "against_jit": "speed-up over the best automatic program on one device",
}
_UNDETERMINED = "Bars are 95 % intervals; of a ratio that is not determined the interval alone is shown."
_LIMITED = (
    f"Of more than {_MAX_LINES} curves, the one of each mode that is fastest on the most devices is drawn."
)
_SELECTION = (
    f"Of each workload the largest problem on {ENOUGH_COUNTS} numbers of devices or more is drawn, or else "
    "the largest one."
)


def _limit_curves(curves: Sequence[Curve]) -> list[Curve]:
    """Return all curves if there are at most eight, otherwise the fastest curve of each AD method."""
    if len(curves) <= _MAX_LINES:
        return list(curves)
    fastest_first = sorted(curves, key=lambda c: (-c.points[-1].devices, c.points[-1].seconds))
    return [group[0] for group in group_by(fastest_first, lambda curve: curve.base_method).values()]


def _curve_styles(groups: Iterable[Iterable[Curve]]) -> list[LineStyle]:
    return line_styles({curve.program_name: curve.case for curve in itertools.chain(*groups)})


def draw_times(findings: Findings) -> Figure | None:
    """Return a figure of time and speed-up against device count for the largest problem of each function.

    The speed-up is relative to the fastest plain jit program on one device, except handwritten derivatives.
    If there is no strong scaling curve, return None.
    """
    curves = [curve for curve in findings.curves if curve.kind == "strong"]
    caption = "Which mode is fastest on how many devices. Lower is faster."
    if any(point.against_jit for curve in curves for point in curve.points):
        caption = (
            "Which mode is fastest on how many devices, and its speed-up over one device. Left: lower is "
            "faster. Right: every mode against one and the same program, the fastest plain jit program on "
            "one device that is not written by hand."
        )
    caption += f" {_UNDETERMINED} {_SELECTION} {_LIMITED}"
    panels, legend, problems = _draw_curves(findings, curves, ("seconds", "against_jit"))
    return make_figure("devices", "Time and speed-up against devices", caption, panels, legend, problems)


def draw_scaling(kind: str, findings: Findings, curves: Sequence[Curve] | None = None) -> Figure | None:
    """Return a figure of speed-up and efficiency against device count, or None if there is no curve.

    `kind` is "strong" or "weak". `curves` are the available curves, by default all curves of `findings`.
    """
    selected = [curve for curve in curves or findings.curves if curve.kind == kind]
    baselines = " or ".join(dict.fromkeys(c.baseline for c in selected if len(c.points) > 1))
    caption = (
        f"Speed-up and efficiency against the same program on {baselines}"
        f"{', as many points for each device' if kind == 'weak' else ''}. {_UNDETERMINED} {_SELECTION} "
        f"The broad pale line is the law that fits best. {_LIMITED}"
    )
    panels, legend, problems = _draw_curves(findings, selected, ("speedup", "efficiency"))
    return make_figure(f"scaling-{kind}", _TITLES[kind], caption, panels, legend, problems)


def _draw_curves(
    findings: Findings, curves: Sequence[Curve], fields: Sequence[str]
) -> tuple[list[Panel], list[LineStyle], int]:
    """Return the panels and the legend of a figure, and the number of all problems, drawn or not.

    The largest problem of each function has one panel for each of the `fields` with values. A field is
    'seconds' or a ratio field of `CurvePoint`, such as 'speedup'.
    """
    problems = curves_of_largest_problems(curves, mixed="seconds" in fields)  # times have no baseline
    groups = [_limit_curves(group) for group in problems[: marks.MAX_PANELS]]
    laws = {id(curve): law for curve, law in findings.best_fits}
    styles, panels = _curve_styles(groups), []
    for group in groups:
        rows = _measurement_rows(group)
        for field in fields:
            if any(row[field] is not None for row in rows):
                title = marks.panel_title(findings, group[0], group[0].size)
                title += (_RATIOS[field],) if field == "against_jit" else ()
                panels.append(Panel(title, _draw_panel(group, rows, styles, field, laws)))
    return panels, styles, len(problems)


def _draw_panel(
    group: Sequence[Curve], rows: Sequence[Row], styles: Sequence[LineStyle], field: str,
    laws: Mapping[int, ScalingFit],
) -> tuple[Spec, ...]:  # fmt: skip
    counts = sorted({row["devices"] for row in rows})
    first = min((curve.points[0] for curve in group), key=lambda p: (p.devices, p.seconds))
    ideal = _ideal_values(first, group[0].kind, field, counts)
    x = marks.count_axis("devices", "devices", counts)
    y = _value_axis(group[0], field, [*marks.values_with_bounds(rows, field), *ideal.values()], counts)
    fitted = [curve for curve in group if id(curve) in laws and field in ("speedup", "efficiency")]
    wide_pale = {"strokeWidth": 6, "strokeOpacity": 0.2}
    fits = [marks.draw_lines(_law_rows(c, laws[id(c)], field), x, y, styles, **wide_pale) for c in fitted]
    ideal_lines = marks.draw_ideal(ideal, x, y) if ideal else []
    return (*fits, *ideal_lines, *marks.draw_series(rows, x, y, styles))


def _ideal_values(first: CurvePoint, kind: str, field: str, counts: Iterable[int]) -> dict[int, float]:
    """Return the value of a field on each device count under ideal scaling from the point `first` on."""
    speedups = {count: count / first.devices for count in counts if count >= first.devices}
    if field == "seconds":
        return {count: first.seconds / (1 if kind == "weak" else ideal) for count, ideal in speedups.items()}
    if field == "speedup":
        return speedups
    return dict.fromkeys(speedups, 1.0) if field == "efficiency" else {}


def _value_axis(first: Curve, field: str, values: Sequence[float], counts: Sequence[int]) -> Axis:
    if field == "seconds":
        return marks.log_axis(field, "time", values, "s")
    scaled = "scaled " if (first.kind, field) == ("weak", "speedup") else ""
    relative = first.points[0].relative
    title = "speed-up" if field == "against_jit" else f"{scaled}{_RATIOS[field]}{relative}"
    if field == "efficiency" or counts[-1] <= 4 * counts[0]:
        return marks.linear_axis(field, title, 1.08 * max(values))
    return marks.log_axis(field, title, values)


def _measurement_rows(curves: Iterable[Curve]) -> list[Row]:
    """Return a data row for each point of each curve. A ratio is None if its interval is too wide."""
    rows = []
    for curve in curves:
        for point in curve.points:
            words, fields = list[str](), Row(devices=point.devices)
            for field, name in _RATIOS.items():
                estimate = getattr(point, field)
                words += [f"{name} {format_ratio(*estimate)}"] if estimate else []
                value, low, high = estimate or (None, None, None)
                shown = value if estimate is None or estimate.is_determined else None
                fields |= {field: shown, f"{field}_low": low, f"{field}_high": high}
            rows.append(marks.timing_row(curve.program_name, point.timing, *words, **fields))
    return rows


def _law_rows(curve: Curve, law: ScalingFit, field: str) -> list[Row]:
    """Return 12 data rows of a fitted scaling law, relative to the measured time of the baseline.

    `field` is 'speedup' or 'efficiency'.
    """
    base, rows = curve.points[0], []
    scale = base.seconds / law.seconds / (base.devices if curve.kind == "weak" else 1)
    for count in np.geomspace(base.devices, curve.points[-1].devices, 12):
        value = scale * law.speedup(count) / (count / base.devices if field == "efficiency" else 1)
        rows.append({"line": curve.program_name, "devices": round(float(count), 4), field: float(value)})
    return rows


def draw_plan(forecast: Forecast, stem: str, curves: Iterable[Curve]) -> Figure | None:
    """Return a figure of predicted time against device count, or None if the plan has no scaling curve.

    The figure shows the largest problem of each function. It also shows measured `curves` of the same
    programs on the planned kind of device. `stem` is the name of the hardware in file names.
    """
    problems = largest_planned(curve for curve in forecast.curves if len(curve.points) > 1)
    kinds = {record.environment.get("device_kind") for record in forecast.records}
    same_kind = [c for c in curves if c.timings[0].record.environment.get("device_kind") in kinds]
    groups = [_limit_curves(group) for group in problems[: marks.MAX_PANELS]]
    styles, panels = _curve_styles(groups), []
    for group in groups:
        programs = {curve.program for curve in group}
        measured = [curve for curve in same_kind if curve.program in programs]
        panels.append(_draw_predictions(group, measured, styles))
    caption = (
        "Predicted, not measured: the line is the median of the prediction, the band its 95 % interval. "
        "Filled marks are programs compiled for that many devices; hollow ones are by formula alone. Heavy "
        f"lines with large marks, if any, were measured on such devices. {_LIMITED}"
    )
    title = f"Planned for {forecast.title}: time against devices"
    return make_figure(f"plan-{stem}", title, caption, panels, styles, len(problems))


def _draw_predictions(
    group: Sequence[Curve], measured: Sequence[Curve], styles: Sequence[LineStyle]
) -> Panel:
    colours = {style.name: style.colour for style in styles}
    rows = []
    for curve in group:
        for point in curve.points:
            line, formula = curve.program_name, is_by_formula(point)
            by = "predicted by formula" if formula else "predicted from the compiled program"
            fill = GROUND if formula else colours[line]
            rows.append(marks.timing_row(line, point.timing, by, devices=point.devices, fill=fill))
    measured_rows = _measurement_rows(measured)
    counts = sorted({row["devices"] for row in (*rows, *measured_rows)})
    x = marks.count_axis("devices", "devices", counts)
    y = marks.log_axis("seconds", "time", marks.values_with_bounds([*rows, *measured_rows], "seconds"), "s")
    first = min((curve.points[0] for curve in group), key=lambda p: p.devices)
    ideal = _ideal_values(first, group[0].kind, "seconds", counts)
    layers = (
        marks.draw_intervals(rows, x, y, styles, "area", fillOpacity=0.14),
        *marks.draw_ideal(ideal, x, y),
        marks.draw_lines(rows, x, y, styles),
        marks.draw_points(rows, x, y, styles, fill=marks.color_of("fill")),
        marks.draw_lines(measured_rows, x, y, styles, strokeWidth=3.2),
        marks.draw_intervals(measured_rows, x, y, styles),
        marks.draw_points(measured_rows, x, y, styles, size={"value": 150}),
    )
    return Panel((group[0].family, group[0].size), layers)
