"""Draw the figures of a report (`make_figures`): times and plans by devices, sweeps and modes by size."""

import itertools
from collections.abc import Iterable, Sequence

from scaling.analysis.cases import ENOUGH_COUNTS, S, join_words
from scaling.analysis.curves import Curve, curves_of_largest_problems
from scaling.analysis.estimate import format_exponent, format_ratio
from scaling.analysis.findings import Findings
from scaling.analysis.forecast import Forecast
from scaling.analysis.ranking import Ranking
from scaling.analysis.sweeps import FastestModeMap, SizeSweep
from scaling.core.formatting import format_duration
from scaling.core.grouping import group_by
from scaling.report.figures import marks
from scaling.report.figures.marks import INK, Figure, LineStyle, Panel, Row, Spec, line_styles, make_figure
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
_UNDETERMINED = (
    "Bars are 95 % intervals; of a ratio that is not determined the interval alone is shown, up to the ends "
    "of the axis."
)
_LIMITED = (
    f"Of more than {_MAX_LINES} curves, the one of each mode that is fastest on the most devices is drawn."
)
_SELECTION = (
    f"Of each function the largest problem on {ENOUGH_COUNTS} numbers of devices or more is drawn, or else "
    "the largest one."
)
_LARGEST_SIZE = 10**200  # an axis for a larger size would exceed the range of a float
_CELL_WIDTH, _CELL_HEIGHT = 74, 42  # of a map of the fastest modes, in pixels
_MAX_ROWS = 30  # a map with more sizes has lower cells without text
_SURE_OPACITY, _UNSURE_OPACITY = 0.42, 0.12  # of a cell whose fastest mode is or is not distinguished


def make_figures(findings: Findings) -> list[Figure]:
    """Return the figures of a report in the order of the HTML page, without figures that have no data."""
    figures = [
        draw_times(findings),
        *(draw_plan(findings, forecast) for forecast in findings.forecasts),
        draw_scaling("strong", findings),
        draw_scaling("weak", findings),
        draw_crossover(findings),
        draw_sizes(findings),
    ]
    return [figure for figure in figures if figure]


def draw_times(findings: Findings) -> Figure | None:
    """Draw time and speed-up of strong scaling by number of devices. Return None if there is no curve."""
    curves = [curve for curve in findings.curves if curve.kind == "strong"]
    caption = (
        "Which mode is fastest on how many devices; lower is faster. Speed-up, if its baseline was measured: "
        "every mode against one and the same program, the best plain jit program on one device, without "
        f"those written by hand. {_UNDETERMINED} {_SELECTION} {_LIMITED}"
    )
    fields = ("seconds", "against_jit")
    return _draw_curves("devices", "Time against devices", caption, findings, curves, fields)


def draw_scaling(kind: str, findings: Findings, curves: Sequence[Curve] | None = None) -> Figure | None:
    """Draw speed-up and efficiency against the number of devices. Return None if there is no curve.

    Only curves of this `kind` ("strong" or "weak") are drawn, from `curves` or by default `findings.curves`.
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


def draw_plan(findings: Findings, forecast: Forecast) -> Figure | None:
    """Draw the predicted times of a plan against the number of devices. Return None if there is no curve."""
    caption = (
        "Predicted, not measured: the line is the median of the prediction, the bars are its 95 % intervals. "
        f"{_LIMITED}"
    )
    name = f"plan-{file_stem(forecast.hardware)}"
    title = f"Planned for {forecast.title}: time against devices"
    return _draw_curves(name, title, caption, findings, forecast.curves, ("seconds",))


def _draw_curves(
    name: str, title: str, caption: str, findings: Findings, curves: Sequence[Curve], fields: Sequence[str]
) -> Figure | None:
    """Draw the curves of the largest problem of each function. Return None if no curve can be drawn.

    There is one panel for each problem and field. A field is the quantity on the y-axis, such as 'seconds' or
    'speedup'. Problems with the most device counts come first. Function values (mode=value) come last.
    """
    problems = curves_of_largest_problems(curves, mixed="seconds" in fields)  # times have no baseline
    problems.sort(key=lambda curves: (curves[0].case.ad_mode.is_value, -max(len(c.points) for c in curves)))
    curves_by_problem = [_limit_curves(problem_curves) for problem_curves in problems[: marks.MAX_PANELS]]
    case_of_line = {curve.program_name: curve.case for curve in itertools.chain(*curves_by_problem)}
    styles, panels = line_styles(case_of_line), []
    for problem_curves in curves_by_problem:
        for field in fields:
            rows = _curve_rows(problem_curves, field)
            if any(row["y"] is not None for row in rows):
                panel_title = marks.panel_title(findings, problem_curves[0], problem_curves[0].size)
                panel_title += (_RATIO_NAMES[field],) if field == "against_jit" else ()
                panels.append(Panel(panel_title, _draw_chart(problem_curves, rows, styles, field)))
    return make_figure(name, title, caption, panels, styles, len(problems))


def _limit_curves(curves: Sequence[Curve]) -> list[Curve]:
    """Return `curves` if there are at most eight, otherwise only the fastest curve of each AD method."""
    if len(curves) <= _MAX_LINES:
        return list(curves)
    fastest_first = sorted(curves, key=lambda curve: (-curve.points[-1].devices, curve.points[-1].seconds))
    return [group[0] for group in group_by(fastest_first, lambda curve: curve.method.base).values()]


def _curve_rows(curves: Iterable[Curve], field: str) -> list[Row]:
    """Return a data row for each point of the curves, with the quantity `field` as its y value.

    The y value is None if it is a ratio that is unknown or too uncertain.
    """
    rows = []
    for curve in curves:
        for point in curve.points:
            ratios = {name: getattr(point, name) for name in _RATIO_NAMES}
            tips = [f"{_RATIO_NAMES[name]} {format_ratio(*ratio)}" for name, ratio in ratios.items() if ratio]
            row = marks.timing_row(curve.program_name, point.timing, point.devices, *tips)
            if field != "seconds":
                value, low, high = ratios[field] or (None, None, None)
                is_drawn = ratios[field] and ratios[field].is_determined
                row |= {"y": value if is_drawn else None, "low": low, "high": high}
            rows.append(row)
    return rows


def _draw_chart(
    curves: Sequence[Curve], rows: Sequence[Row], styles: Sequence[LineStyle], field: str
) -> Spec:
    device_counts = sorted({row["x"] for row in rows})
    ideal = _ideal_values(curves, field, device_counts)
    x = marks.log_axis("devices", device_counts, counts=True)
    y = _value_axis(curves[0], field, [*marks.values_with_bounds(rows), *ideal.values()], device_counts)
    layers = [*marks.draw_ideal(ideal, y), *marks.draw_lines(rows, y, styles)]
    return marks.make_chart(rows, x, y, styles, layers)


def _ideal_values(curves: Sequence[Curve], field: str, device_counts: Iterable[int]) -> dict[int, float]:
    """Return the values of `field` under ideal scaling, as a dict by number of devices.

    The values are extrapolated from the fastest curve on the smallest number of devices. Return {} if `field`
    is not 'seconds', 'speedup' or 'efficiency'.
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
        return marks.log_axis("time", values, "s")
    title = "speed-up" if field == "against_jit" else _RATIO_NAMES[field] + curve.points[0].relative
    if field == "efficiency" or device_counts[-1] <= 4 * device_counts[0]:
        scale = {"domain": (0, 1.08 * max(values)), "nice": False}
        return marks.make_axis(title, scale, {"tickCount": 6})
    return marks.log_axis(title, values)


def draw_sizes(findings: Findings) -> Figure | None:
    """Draw time against problem size, one panel for each sweep. Return None if no size was varied."""
    sweeps = rank_sweeps(s for s in findings.size_sweeps if max(s.all_sizes.values()) <= _LARGEST_SIZE)
    drawn_sweeps = sweeps[: marks.MAX_PANELS]
    cases = {method.name: line[0][1].case for sweep in drawn_sweeps for method, line in sweep.lines.items()}
    styles, panels = line_styles(cases), []
    for sweep in drawn_sweeps:
        rows = []
        for method, line in sweep.lines.items():
            exponent = sweep.exponents.get(method)
            growth = f"grows with the size, exponent {format_exponent(*exponent)}" if exponent else ""
            rows += [marks.timing_row(method.name, timing, float(size), growth) for size, timing in line]
        x = marks.log_axis(sweep.swept, (row["x"] for row in rows), counts=True)
        y = marks.log_axis("time", marks.values_with_bounds(rows), "s")
        oversubscribed = not sweep.honest and "unbound or oversubscribed"
        constants = join_words(sweep.fixed_sizes, sweep.devices_text, sweep.call, oversubscribed)
        title = marks.panel_title(findings, sweep, constants)
        chart = marks.make_chart(rows, x, y, styles, marks.draw_lines(rows, y, styles))
        panels.append(Panel(title, chart))
    caption = (
        "Median time of one call; bars are 95 % intervals. The tooltip of a mark gives the exponent of its "
        "line. The sweeps with the most modes and sizes are drawn."
    )
    return make_figure("size", "Time against size", caption, panels, styles, len(sweeps))


def rank_sweeps(sweeps: Iterable[SizeSweep]) -> list[SizeSweep]:
    """Return sweeps in drawing order: the best one of each function, then the second best, and so on.

    The sweep with the most AD methods is the best. If the numbers of AD methods are equal, the sweep with
    more timings is better. Sweeps of function values (mode=value) come last.
    """
    best_first = sorted(
        sweeps, key=lambda s: (-len(s.lines), -sum(map(len, s.lines.values())), s.case.devices, -s.volume)
    )
    return sorted(_interleave_families(best_first), key=lambda sweep: sweep.case.ad_mode.is_value)


def _interleave_families(subjects: Iterable[S]) -> list[S]:
    """Return `subjects` reordered: the first one of each function, then the second one of each, and so on."""
    groups = group_by(subjects, lambda subject: subject.family_key).values()
    ranked = [pair for group in groups for pair in enumerate(group)]
    return [subject for _, subject in sorted(ranked, key=lambda pair: pair[0])]


def draw_crossover(findings: Findings) -> Figure | None:
    """Draw maps of the fastest AD mode by size and number of devices. Return None if no size was varied."""
    maps = sorted(findings.fastest_mode_maps, key=lambda mode_map: -len(mode_map.cells))
    drawn_maps = _interleave_families(maps)[: marks.MAX_PANELS]
    cases = {cell.method.name: cell.case for mode_map in drawn_maps for cell in mode_map.cells.values()}
    styles = [style._replace(shape=None, dash=None) for style in line_styles(cases)]
    panels = []
    for mode_map in drawn_maps:
        constants = join_words(mode_map.fixed_sizes, not mode_map.honest and "unbound or oversubscribed")
        title, chart = marks.panel_title(findings, mode_map, constants), _draw_map(mode_map, styles)
        width = 70 + _CELL_WIDTH * len(mode_map.devices)
        height = max(120, _CELL_HEIGHT * min(len(mode_map.sizes), _MAX_ROWS))
        panels.append(Panel(title, chart, zoom=False, least_width=width, height=height))
    caption = (
        "The fastest mode for each size and number of devices, with its time. Pale, with a question mark: "
        "not distinguished from the next."
    )
    if any(len(mode_map.sizes) > _MAX_ROWS for mode_map in drawn_maps):
        caption += f" The cells of more than {_MAX_ROWS} sizes have no text; a tooltip has it."
    figure_title = "Crossover: which mode for which size and how many devices"
    return make_figure("crossover", figure_title, caption, panels, styles, len(maps))


def _draw_map(mode_map: FastestModeMap, styles: Sequence[LineStyle]) -> Spec:
    rows = [_cell_row(cell, size, devices) for (size, devices), cell in mode_map.cells.items()]
    x = _band_axis("devices", [f"{count:,}" for count in mode_map.devices])
    y = _band_axis(mode_map.swept, [f"{size:,}" for size in reversed(mode_map.sizes)])
    opacity: Spec = {"field": "shade", "type": "quantitative", "scale": None}
    layers = [marks.make_layer({"type": "rect"}, fillOpacity=opacity)]
    if len(mode_map.sizes) <= _MAX_ROWS:
        text: Spec = {"align": "center", "baseline": "middle", "lineBreak": "\n", "dy": -6, "fontSize": 10}
        layers.append(marks.draw_text({"value": INK}, **text))
    return marks.make_chart(rows, x, y, styles, layers)


def _band_axis(title: str, names: Sequence[str]) -> Spec:
    """Return a Vega-Lite axis for categories, with one band for each of `names`."""
    axis, scale = {"labelAngle": 0, "ticks": False}, {"paddingInner": 0.05}
    return {"title": title, "type": "ordinal", "sort": names, "scale": scale, "axis": axis}


def _cell_row(ranking: Ranking, size: int, devices: int) -> Row:
    method = ranking.method
    is_sure = ranking.distinguished or (ranking.runner_up is None and not ranking.is_empty_call)
    runner_up = ""
    if ranking.runner_up is not None and ranking.ratio:
        runner_up = f"{ranking.runner_up.method.name}: {format_ratio(*ranking.ratio)}"
        runner_up += "" if is_sure else ", not distinguished"
    text = f"{method.mode}\n{format_duration(ranking.fastest.median)}{'' if is_sure else ' ?'}"
    opacity = _SURE_OPACITY if is_sure else _UNSURE_OPACITY
    row = marks.timing_row(method.name, ranking.fastest, f"{devices:,}", runner_up)
    return row | {"y": f"{size:,}", "label": text, "shade": opacity}
