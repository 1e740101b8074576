"""Draw figures against device count: time, speed-up, efficiency, and predicted times of plans."""

import itertools
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from scaling.analysis.cases import group_by
from scaling.analysis.curves import ENOUGH_COUNTS, Curve, curves_of_largest_problems
from scaling.analysis.estimate import format_ratio
from scaling.analysis.findings import Findings
from scaling.analysis.forecast import Forecast
from scaling.analysis.scaling_fits import ScalingFit
from scaling.report.figures import marks
from scaling.report.figures.marks import Figure, Panel, Row, Spec, make_figure
from scaling.report.figures.theme import LineStyle, line_styles
from scaling.report.text import file_stem

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

    The speed-up is relative to the fastest jit program on one device that is no handwritten derivative.
    If there is no strong scaling curve, return None.
    """
    curves = [curve for curve in findings.curves if curve.kind == "strong"]
    caption = (
        "Which mode is fastest on how many devices; lower is faster. Speed-up: every mode against one and "
        "the same program, the fastest plain jit program on one device that is not written by hand. "
        f"{_UNDETERMINED} {_SELECTION} {_LIMITED}"
    )
    title = "Time and speed-up against devices"
    return _draw_curves("devices", title, caption, findings, curves, ("seconds", "against_jit"))


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
    fields = ("speedup", "efficiency")
    return _draw_curves(f"scaling-{kind}", _TITLES[kind], caption, findings, selected, fields)


def _draw_curves(
    name: str, title: str, caption: str, findings: Findings, curves: Sequence[Curve], fields: Sequence[str]
) -> Figure | None:
    """Return a figure of curves. The largest problem of each function has a panel for each of the `fields`.

    A field is 'seconds' or a ratio field of `CurvePoint`, such as 'speedup'.
    """
    problems = curves_of_largest_problems(curves, mixed="seconds" in fields)  # times have no baseline
    groups = [_limit_curves(group) for group in problems[: marks.MAX_PANELS]]
    laws = {id(curve): law for curve, law in findings.best_fits}
    styles, panels = _curve_styles(groups), []
    for group in groups:
        rows = _measurement_rows(group)
        for field in fields:
            if any(row[field] is not None for row in rows):
                heading = marks.panel_title(findings, group[0], group[0].size)
                heading += (_RATIOS[field],) if field == "against_jit" else ()
                panels.append(Panel(heading, _draw_chart(group, rows, styles, field, laws)))
    return make_figure(name, title, caption, panels, styles, len(problems))


def _draw_chart(
    group: Sequence[Curve],
    rows: Sequence[Row],
    styles: Sequence[LineStyle],
    field: str,
    laws: Mapping[int, ScalingFit],
) -> Spec:
    names = ("line", "tip", "devices", field, f"{field}_low", f"{field}_high")
    rows = [{name: row[name] for name in names} for row in rows]
    counts = sorted({row["devices"] for row in rows})
    ideal = _ideal_values(group, field, counts)
    x = marks.log_axis("devices", "devices", counts, counts=True)
    y = _value_axis(group[0], field, [*marks.values_with_bounds(rows, field), *ideal.values()], counts)
    fitted = [curve for curve in group if id(curve) in laws and field in ("speedup", "efficiency")]
    law_rows = [row for curve in fitted for row in _law_rows(curve, laws[id(curve)], field)]
    fits = marks.draw_lines(styles, law_rows, strokeWidth=6, strokeOpacity=0.2)
    layers = [fits, *marks.draw_ideal(ideal, x, y), *marks.draw_series(rows, y, styles)]
    return marks.make_chart(rows, x, y, styles, layers)


def _ideal_values(curves: Sequence[Curve], field: str, counts: Iterable[int]) -> dict[int, float]:
    """Return the value of a field on each device count if the first point of `curves` scaled ideally."""
    first = min((curve.points[0] for curve in curves), key=lambda point: (point.devices, point.seconds))
    speedups = {count: count / first.devices for count in counts if count >= first.devices}
    if field == "seconds":
        is_weak = curves[0].kind == "weak"
        return {count: first.seconds / (1 if is_weak else ideal) for count, ideal in speedups.items()}
    if field == "speedup":
        return speedups
    return dict.fromkeys(speedups, 1.0) if field == "efficiency" else {}


def _value_axis(first: Curve, field: str, values: Sequence[float], counts: Sequence[int]) -> Spec:
    if field == "seconds":
        return marks.log_axis(field, "time", values, "s")
    title = "speed-up" if field == "against_jit" else _RATIOS[field] + first.points[0].relative
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


def draw_plan(forecast: Forecast) -> Figure | None:
    """Return a figure of predicted time against device count, or None if the plan has no scaling curve.

    The figure shows the largest problem of each function.
    """
    problems = curves_of_largest_problems(forecast.curves, mixed=True)
    groups = [_limit_curves(group) for group in problems[: marks.MAX_PANELS]]
    styles = _curve_styles(groups)
    panels = [Panel((group[0].family, group[0].size), _draw_predictions(group, styles)) for group in groups]
    caption = (
        "Predicted, not measured: the line is the median of the prediction, the band its 95 % interval. "
        f"{_LIMITED}"
    )
    title = f"Planned for {forecast.title}: time against devices"
    return make_figure(f"plan-{file_stem(forecast.hardware)}", title, caption, panels, styles, len(problems))


def _draw_predictions(group: Sequence[Curve], styles: Sequence[LineStyle]) -> Spec:
    by = "predicted from the compiled program"
    rows = [
        marks.timing_row(curve.program_name, point.timing, by, devices=point.devices)
        for curve in group
        for point in curve.points
    ]
    counts = sorted({row["devices"] for row in rows})
    x = marks.log_axis("devices", "devices", counts, counts=True)
    y = marks.log_axis("seconds", "time", marks.values_with_bounds(rows, "seconds"), "s")
    layers = [
        marks.draw_intervals("seconds", "area", strokeWidth=0, fillOpacity=0.14),
        *marks.draw_ideal(_ideal_values(group, "seconds", counts), x, y),
        marks.draw_lines(styles),
        marks.draw_points(styles),
    ]
    return marks.make_chart(rows, x, y, styles, layers)
