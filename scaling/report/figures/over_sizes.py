"""Draw time against problem size, and maps of the fastest AD mode for each size and device count."""

from collections.abc import Iterable, Sequence

from scaling.analysis.cases import interleave_groups, join_words
from scaling.analysis.estimate import format_exponent, format_ratio
from scaling.analysis.findings import Findings
from scaling.analysis.ranking import Ranking
from scaling.analysis.size_series import FastestModeMap, SizeSweep
from scaling.core.formatting import format_duration
from scaling.report.figures import marks
from scaling.report.figures.marks import Figure, Panel, Row, Spec, make_figure
from scaling.report.figures.theme import INK, LineStyle, line_styles

_CELL_WIDTH, _CELL_HEIGHT = 74, 42  # of a map of the fastest modes, in pixels
_MAX_ROWS = 30  # a map with more sizes has lower cells without text
_SURE_OPACITY, _UNSURE_OPACITY = 0.42, 0.12  # of a cell whose fastest mode is or is not distinguished


def draw_sizes(findings: Findings) -> Figure | None:
    """Draw time against problem size. Return None if no size was varied."""
    sweeps = rank_sweeps(findings.size_sweeps)
    drawn_sweeps = sweeps[: marks.MAX_PANELS]
    cases = {method.name: line[0][1].case for sweep in drawn_sweeps for method, line in sweep.lines.items()}
    styles, panels = line_styles(cases), []
    for sweep in drawn_sweeps:
        rows = []
        for method, line in sweep.lines.items():
            exponent = sweep.exponents.get(method)
            growth = f"grows with the size, exponent {format_exponent(*exponent)}" if exponent else ""
            rows += [marks.timing_row(method.name, timing, growth, size=float(size)) for size, timing in line]
        x = marks.log_axis("size", sweep.swept, (row["size"] for row in rows), counts=True)
        y = marks.log_axis("seconds", "time", marks.values_with_bounds(rows, "seconds"), "s")
        oversubscribed = not sweep.honest and "unbound or oversubscribed"
        constants = join_words(sweep.fixed_sizes, sweep.devices_text, sweep.call, oversubscribed)
        title = marks.panel_title(findings, sweep, constants)
        chart = marks.make_chart(rows, x, y, styles, marks.draw_series(rows, y, styles))
        panels.append(Panel(title, chart))
    caption = (
        "Median time of one call; bars are 95 % intervals. The tooltip of a mark gives the exponent of its "
        "line. The sweeps with the most modes and sizes are drawn."
    )
    return make_figure("size", "Time against size", caption, panels, styles, len(sweeps))


def rank_sweeps(sweeps: Iterable[SizeSweep]) -> list[SizeSweep]:
    """Return size sweeps in drawing order: the best sweep of each function, then the second best, and so on.

    The best sweep has the most AD methods and, of several such sweeps, the most timings. Sweeps of function
    values (mode=value) come last.
    """
    best_first = sorted(
        sweeps, key=lambda s: (-len(s.lines), -sum(map(len, s.lines.values())), s.case.devices, -s.volume)
    )
    interleaved = interleave_groups(best_first, lambda sweep: sweep.family_key)
    return sorted(interleaved, key=lambda sweep: sweep.case.ad_mode.is_value)


def draw_crossover(findings: Findings) -> Figure | None:
    """Draw maps of the fastest AD mode per size and device count. Return None if no size was varied."""
    maps = sorted(findings.fastest_mode_maps, key=lambda mode_map: -len(mode_map.cells))
    drawn_maps = interleave_groups(maps, lambda mode_map: mode_map.family_key)[: marks.MAX_PANELS]
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
    x = _band_axis("devices", "devices", [f"{count:,}" for count in mode_map.devices])
    y = _band_axis("size", mode_map.swept, [f"{size:,}" for size in reversed(mode_map.sizes)])
    opacity: Spec = {"field": "shade", "type": "quantitative", "scale": None}
    layers = [marks.make_layer({"type": "rect"}, fillOpacity=opacity)]
    if len(mode_map.sizes) <= _MAX_ROWS:
        text: Spec = {"align": "center", "baseline": "middle", "lineBreak": "\n", "dy": -6, "fontSize": 10}
        layers.append(marks.draw_text(color={"value": INK}, **text))
    return marks.make_chart(rows, x, y, styles, layers)


def _band_axis(field: str, title: str, names: Sequence[str]) -> Spec:
    """Return a categorical axis with one band for each name."""
    axis, scale = {"labelAngle": 0, "ticks": False}, {"paddingInner": 0.05}
    return {"field": field, "title": title, "type": "ordinal", "sort": names, "scale": scale, "axis": axis}


def _cell_row(ranking: Ranking, size: int, devices: int) -> Row:
    method = ranking.method
    is_sure = ranking.distinguished or (ranking.runner_up is None and not ranking.is_empty_call)
    runner_up = ""
    if ranking.runner_up is not None and ranking.ratio:
        runner_up = f"{ranking.runner_up.method.name}: {format_ratio(*ranking.ratio)}"
        runner_up += "" if is_sure else ", not distinguished"
    text = f"{method.mode}\n{format_duration(ranking.fastest.median)}{'' if is_sure else ' ?'}"
    position = {"size": f"{size:,}", "devices": f"{devices:,}"}
    opacity = _SURE_OPACITY if is_sure else _UNSURE_OPACITY
    return marks.timing_row(method.name, ranking.fastest, runner_up, label=text, shade=opacity, **position)
