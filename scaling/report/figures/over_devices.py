"""Draw scaling curves against device count: time, speed-up, efficiency and predicted times."""

import itertools
from collections.abc import Iterable, Sequence

from scaling.analysis.cases import ENOUGH_COUNTS
from scaling.analysis.curves import Curve, curves_of_largest_problems
from scaling.analysis.estimate import format_ratio
from scaling.analysis.findings import Findings
from scaling.analysis.forecast import Forecast
from scaling.core.grouping import group_by
from scaling.report.figures import marks
from scaling.report.figures.marks import Figure, Panel, Row, Spec, make_figure
from scaling.report.figures.theme import LineStyle, line_styles
from scaling.report.text import file_stem

_MAX_LINES = 8  # largest number of lines in one panel
_TITLES = {
    "strong": "Strong scaling: the same problem on more devices",
    "weak": "Weak scaling: as many points for each device",
}
_RATIO_NAMES = {  # from ratio field of a `CurvePoint` to its name in a figure
    "speedup": "speed-up",
    "efficiency": "efficiency",
    "against_jit": "speed-up over the best plain jit program on one device",
}
_UNDETERMINED = "Bars are 95 % intervals; of a ratio that is not determined the interval alone is shown."
_LIMITED = (
    f"Of more than {_MAX_LINES} curves, the one of each mode that is fastest on the most devices is drawn."
)
_SELECTION = (
    f"Of each function the largest problem on {ENOUGH_COUNTS} numbers of devices or more is drawn, or else "
    "the largest one."
)


def _limit_curves(curves: Sequence[Curve]) -> list[Curve]:
    """Return all curves if there are at most eight, otherwise the fastest curve of each AD method."""
    if len(curves) <= _MAX_LINES:
        return list(curves)
    fastest_first = sorted(curves, key=lambda curve: (-curve.points[-1].devices, curve.points[-1].seconds))
    return [group[0] for group in group_by(fastest_first, lambda curve: curve.base_method).values()]


def draw_times(findings: Findings) -> Figure | None:
    """Draw time and speed-up of strong scaling against device count. Return None if there is no curve."""
    curves = [curve for curve in findings.curves if curve.kind == "strong"]
    caption = (
        "Which mode is fastest on how many devices; lower is faster. Speed-up, if its baseline was measured: "
        "every mode against one and the same program, the best plain jit program on one device, without "
        f"those written by hand. {_UNDETERMINED} {_SELECTION} {_LIMITED}"
    )
    fields = ("seconds", "against_jit")
    return _draw_curves("devices", "Time against devices", caption, findings, curves, fields)


def draw_scaling(kind: str, findings: Findings, curves: Sequence[Curve] | None = None) -> Figure | None:
    """Draw speed-up and efficiency against device count. Return None if there is no curve.

    Only curves of this `kind` ("strong" or "weak") are drawn. `curves` is by default `findings.curves`.
    """
    same_kind = [curve for curve in curves or findings.curves if curve.kind == kind]
    baselines = " or ".join(dict.fromkeys(curve.baseline for curve in same_kind if len(curve.points) > 1))
    caption = (
        f"Speed-up and efficiency against the same program on {baselines}"
        f"{', as many points for each device' if kind == 'weak' else ''}. {_UNDETERMINED} {_SELECTION} "
        f"{_LIMITED}"
    )
    fields = ("speedup", "efficiency")
    return _draw_curves(f"scaling-{kind}", _TITLES[kind], caption, findings, same_kind, fields)


def _draw_curves(
    name: str, title: str, caption: str, findings: Findings, curves: Sequence[Curve], fields: Sequence[str]
) -> Figure | None:
    """Draw the curves of the largest problem of each function. Return None if no curve can be drawn.

    There is one panel for each problem and field. Problems with more device counts come first, and function
    values (mode=value) come last. A field is the quantity on the y-axis, such as 'seconds' or 'speedup'.
    """
    problems = curves_of_largest_problems(curves, mixed="seconds" in fields)  # times have no baseline
    problems.sort(key=lambda curves: (curves[0].case.ad_mode.is_value, -max(len(c.points) for c in curves)))
    curves_by_problem = [_limit_curves(problem_curves) for problem_curves in problems[: marks.MAX_PANELS]]
    case_of_line = {curve.program_name: curve.case for curve in itertools.chain(*curves_by_problem)}
    styles, panels = line_styles(case_of_line), []
    for problem_curves in curves_by_problem:
        rows = _measurement_rows(problem_curves)
        for field in fields:
            if any(row[field] is not None for row in rows):
                panel_title = marks.panel_title(findings, problem_curves[0], problem_curves[0].size)
                panel_title += (_RATIO_NAMES[field],) if field == "against_jit" else ()
                panels.append(Panel(panel_title, _draw_chart(problem_curves, rows, styles, field)))
    return make_figure(name, title, caption, panels, styles, len(problems))


def _draw_chart(
    curves: Sequence[Curve], rows: Sequence[Row], styles: Sequence[LineStyle], field: str
) -> Spec:
    names = ("line", "tip", "devices", field, f"{field}_low", f"{field}_high")
    rows = [{name: row[name] for name in names} for row in rows]
    device_counts = sorted({row["devices"] for row in rows})
    ideal = _ideal_values(curves, field, device_counts)
    x = marks.log_axis("devices", "devices", device_counts, counts=True)
    values = [*marks.values_with_bounds(rows, field), *ideal.values()]
    y = _value_axis(curves[0], field, values, device_counts)
    layers = [*marks.draw_ideal(ideal, x, y), *marks.draw_series(rows, y, styles)]
    return marks.make_chart(rows, x, y, styles, layers)


def _ideal_values(curves: Sequence[Curve], field: str, device_counts: Iterable[int]) -> dict[int, float]:
    """Return {device count: value of `field` under ideal scaling}.

    The values are extrapolated from the fastest of the curves at the smallest device count. Return {} if
    `field` is not 'seconds', 'speedup' or 'efficiency'.
    """
    fastest = min((curve.points[0] for curve in curves), key=lambda point: (point.devices, point.seconds))
    speedups = {count: count / fastest.devices for count in device_counts if count >= fastest.devices}
    if field == "seconds":
        is_weak = curves[0].kind == "weak"
        return {count: fastest.seconds / (1 if is_weak else speedup) for count, speedup in speedups.items()}
    if field == "speedup":
        return speedups
    return dict.fromkeys(speedups, 1.0) if field == "efficiency" else {}


def _value_axis(curve: Curve, field: str, values: Sequence[float], device_counts: Sequence[int]) -> Spec:
    if field == "seconds":
        return marks.log_axis(field, "time", values, "s")
    title = "speed-up" if field == "against_jit" else _RATIO_NAMES[field] + curve.points[0].relative
    if field == "efficiency" or device_counts[-1] <= 4 * device_counts[0]:
        scale = {"domain": (0, 1.08 * max(values)), "nice": False}
        return marks.make_axis(field, title, scale, {"tickCount": 6})
    return marks.log_axis(field, title, values)


def _measurement_rows(curves: Iterable[Curve]) -> list[Row]:
    """Return a data row for each curve point. A ratio is None if it is unknown or too uncertain."""
    rows = []
    for curve in curves:
        for point in curve.points:
            ratios, ratio_fields = list[str](), Row(devices=point.devices)
            for field, name in _RATIO_NAMES.items():
                estimate = getattr(point, field)
                ratios += [f"{name} {format_ratio(*estimate)}"] if estimate else []
                value, low, high = estimate or (None, None, None)
                drawn_value = value if estimate is None or estimate.is_determined else None
                ratio_fields |= {field: drawn_value, f"{field}_low": low, f"{field}_high": high}
            rows.append(marks.timing_row(curve.program_name, point.timing, *ratios, **ratio_fields))
    return rows


def draw_plan(findings: Findings, forecast: Forecast) -> Figure | None:
    """Draw the predicted times of a plan against device count. Return None if there is no curve."""
    caption = (
        "Predicted, not measured: the line is the median of the prediction, the bars are its 95 % intervals. "
        f"{_LIMITED}"
    )
    name = f"plan-{file_stem(forecast.hardware)}"
    title = f"Planned for {forecast.title}: time against devices"
    return _draw_curves(name, title, caption, findings, forecast.curves, ("seconds",))
