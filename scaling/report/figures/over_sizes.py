"""Draw figures against problem size: time, and maps of the fastest AD mode over size and device count."""

from collections.abc import Iterable, Sequence

from scaling.analysis.cases import interleave_groups, join_words
from scaling.analysis.estimate import format_exponent, format_ratio
from scaling.analysis.findings import Findings
from scaling.analysis.ranking import FastestMethod
from scaling.analysis.size_series import FastestModeMap, SizeSweep
from scaling.core.formatting import format_duration
from scaling.report.figures import marks
from scaling.report.figures.marks import Figure, Panel, Row, Spec, make_figure
from scaling.report.figures.theme import INK, LineStyle, line_styles

_CELL, _ROW = 74, 42  # width and height of a cell of a map, in pixels
_MAX_ROWS = 30  # number of sizes of a map beyond which its cells are lower and have no text
_SURE, _UNSURE = 0.42, 0.12  # opacity of a cell whose fastest mode is or is not distinguished


def draw_sizes(findings: Findings) -> Figure | None:
    """Return a figure of time against problem size, or None if no size was varied."""
    sweeps = rank_sweeps(findings.size_sweeps)
    shown = sweeps[: marks.MAX_PANELS]
    styles = line_styles({m.name: line[0][1].case for sweep in shown for m, line in sweep.lines.items()})
    panels = []
    for sweep in shown:
        rows = []
        for method, line in sweep.lines.items():
            exponent = sweep.exponents.get(method)
            growth = f"grows with the size to the power of {format_exponent(*exponent)}" if exponent else ""
            rows += [marks.timing_row(method.name, timing, growth, size=float(size)) for size, timing in line]
        x = marks.log_axis("size", sweep.swept, (row["size"] for row in rows), counts=True)
        y = marks.log_axis("seconds", "time", marks.values_with_bounds(rows, "seconds"), "s")
        title = marks.panel_title(findings, sweep, sweep.constants)
        chart = marks.make_chart(rows, x, y, styles, marks.draw_series(rows, y, styles))
        panels.append(Panel(title, chart))
    caption = (
        "Median time of one call; bars are 95 % intervals. A mark tells the exponent of its line. The "
        "sweeps with the most modes and sizes are drawn."
    )
    return make_figure("size", "Time against size", caption, panels, styles, len(sweeps))


def rank_sweeps(sweeps: Iterable[SizeSweep]) -> list[SizeSweep]:
    """Return size sweeps with the most AD methods and timings first.

    Sweeps of different functions alternate, and sweeps of function values come last.
    """
    ranked = sorted(
        sweeps, key=lambda s: (-len(s.lines), -sum(map(len, s.lines.values())), s.case.devices, -s.volume)
    )
    alternating = interleave_groups(ranked, lambda sweep: sweep.family_key)
    return sorted(alternating, key=lambda sweep: sweep.case.ad_mode.is_value)


def draw_crossover(findings: Findings) -> Figure | None:
    """Return a figure of the fastest AD mode over size and device count, or None if no size was varied."""
    maps = sorted(findings.fastest_mode_maps, key=lambda grid: -len(grid.cells))
    shown = interleave_groups(maps, lambda grid: grid.family_key)[: marks.MAX_PANELS]
    cases = {cell.method.name: cell.case for each in shown for cell in each.cells.values()}
    styles = [style._replace(shape=None, dash=None) for style in line_styles(cases)]
    panels = []
    for each in shown:
        constants = join_words(each.fixed_sizes, not each.honest and "oversubscribed")
        title = marks.panel_title(findings, each, constants)
        width, height = 70 + _CELL * len(each.devices), max(120, _ROW * min(len(each.sizes), _MAX_ROWS))
        panels.append(Panel(title, _draw_map(each, styles), zoom=False, least_width=width, height=height))
    caption = (
        "The fastest mode for each size and number of devices, with its time. Pale, with a question mark: "
        "not distinguished from the next. A thick line is where the fastest mode changes, above the largest "
        "size at which the mode below it was measured to be faster; dashed where that is not sure."
    )
    if any(len(each.sizes) > _MAX_ROWS for each in shown):
        caption += f" The cells of more than {_MAX_ROWS} sizes have no text; a tooltip has it."
    heading = "Crossover: which mode for which size and how many devices"
    return make_figure("crossover", heading, caption, panels, styles, len(maps))


def _draw_map(grid: FastestModeMap, styles: Sequence[LineStyle]) -> Spec:
    rows = [_cell_row(cell, size, devices) for (size, devices), cell in grid.cells.items()]
    x = _band_axis("devices", "devices", [f"{count:,}" for count in grid.devices])
    y = _band_axis("size", grid.swept, [f"{size:,}" for size in reversed(grid.sizes)])
    shade: Spec = {"field": "shade", "type": "quantitative", "scale": None}
    layers = [marks.make_layer({"type": "rect"}, fillOpacity=shade), _draw_crossovers(grid)]
    if len(grid.sizes) <= _MAX_ROWS:
        place: Spec = {"align": "center", "baseline": "middle", "lineBreak": "\n", "dy": -6, "fontSize": 10}
        layers.append(marks.draw_text(color={"value": INK}, **place))
    return marks.make_chart(rows, x, y, styles, layers)


def _band_axis(field: str, title: str, names: Sequence[str]) -> Spec:
    """Return a categorical axis with one band per name."""
    axis, scale = {"labelAngle": 0, "ticks": False}, {"paddingInner": 0.05}
    return {"field": field, "title": title, "type": "ordinal", "sort": names, "scale": scale, "axis": axis}


def _draw_crossovers(grid: FastestModeMap) -> Spec:
    """Return the layer of the lines above the sizes at which the fastest mode changes."""
    rows = [
        {"devices": f"{each.devices:,}", "size": f"{each.below:,}", "sure": not each.doubts}
        for each in grid.crossovers
    ]
    channels = {
        "x": {"field": "devices", "bandPosition": 0}, "x2": {"field": "devices", "bandPosition": 1},
        "y": {"field": "size", "bandPosition": 0}, "color": {"value": INK},
        "strokeDash": {"condition": {"test": "datum.sure", "value": [1, 0]}, "value": [4, 3]},
    }  # fmt: skip
    return marks.make_layer({"type": "rule", "strokeWidth": 2.5}, rows, **channels)


def _cell_row(cell: FastestMethod, size: int, devices: int) -> Row:
    method = cell.method
    sure = cell.distinguished or (cell.second is None and not cell.empty)
    runner_up = ""
    if cell.second is not None and cell.ratio:
        runner_up = f"{cell.second.method.name}: {format_ratio(*cell.ratio)}"
        runner_up += "" if sure else ", not distinguished"
    text = f"{method.mode}\n{format_duration(cell.first.median)}{'' if sure else ' ?'}"
    place = {"size": f"{size:,}", "devices": f"{devices:,}"}
    shade = _SURE if sure else _UNSURE
    return marks.timing_row(method.name, cell.first, runner_up, label=text, shade=shade, **place)
