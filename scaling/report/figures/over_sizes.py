"""Figures against problem size: time with growth exponents, and maps of the fastest AD mode (crossover)."""

from collections.abc import Mapping, Sequence

from scaling.analysis.cases import family_key, group_by, interleave_groups, method_of, problem_size
from scaling.analysis.crossover import FastestMethod, FastestModeMap
from scaling.analysis.estimate import format_exponent, format_ratio
from scaling.analysis.findings import Findings
from scaling.analysis.growth import SizeSweep
from scaling.core.formatting import format_duration
from scaling.report.figures import marks
from scaling.report.figures.marks import Figure, Panel, Row, Spec
from scaling.report.figures.theme import INK, LineStyle, line_styles
from scaling.report.text import describe_panel

_CELL = 74  # pixels
_SURE, _UNSURE = 0.42, 0.12  # opacity of a cell whose fastest mode is or is not distinguished


def draw_sizes(findings: Findings) -> Figure | None:
    """Return a figure of time against problem size, or None if no size was varied."""
    shown = rank_sweeps(findings.size_sweeps)[: marks.MOST_PANELS]
    if not shown:
        return None
    exponents = {(id(growth.sweep), growth.method): growth.exponent for growth in findings.size_exponents}
    cases = {m.name: line[0][1].case for sweep in shown for m, line in sweep.lines.items()}
    styles = line_styles(cases)
    panels = []
    for sweep in shown:
        rows = [
            marks.timing_row(method.name, timing, word, size=float(size))
            for method, line in sweep.lines.items()
            for of in [exponents.get((id(sweep), method))]
            for word in [f"grows with the size to the power of {format_exponent(*of)}" if of else ""]
            for size, timing in line
        ]
        x = marks.count_axis("size", sweep.swept, (row["size"] for row in rows))
        y = marks.log_axis("seconds", "time", marks.with_ends(rows, "seconds"), "s")
        held = describe_panel(sweep.case, sweep.held, sweep.honest)
        title = marks.panel_title(findings, sweep.case, held, sweep.environment)
        panels.append(Panel(title, tuple(marks.draw_series(rows, x, y, styles))))
    caption = "Median time of one call; bars are 95 % intervals. A mark tells the exponent of its line."
    omitted = "panels are drawn, those with the most modes and sizes of each workload; the tables have all"
    caption += marks.describe_omission(len(shown), len(findings.size_sweeps), omitted)
    return Figure("size", "Time against size", caption, tuple(panels), tuple(styles))


def rank_sweeps(sweeps: Sequence[SizeSweep]) -> list[SizeSweep]:
    """Return the size sweeps in the order of the figure: those with the most methods and times first.

    A size sweep contains the times of one function at several sizes. Sweeps of different functions alternate.
    Sweeps of function values, without derivatives, come last. A sweep of two sizes is omitted if there is a
    longer sweep of its function.
    """
    counts = {id(s): len({size for line in s.lines.values() for size, _ in line}) for s in sweeps}
    most = {of: max(counts[id(sweep)] for sweep in same) for of, same in group_by(sweeps, _family).items()}
    kept = [sweep for sweep in sweeps if counts[id(sweep)] > 2 or most[_family(sweep)] <= 2]
    kept.sort(
        key=lambda s: (-len(s.lines), -sum(map(len, s.lines.values())), s.case.devices, -problem_size(s.case))
    )
    return sorted(interleave_groups(kept, _family), key=lambda sweep: sweep.case.ad_mode.is_value)


def _family(of: SizeSweep | FastestModeMap) -> tuple:
    return of.environment, of.honest, *family_key(of.case)


def draw_crossover(findings: Findings) -> Figure | None:
    """Return a figure that maps the fastest AD mode over size and device count, or None without such maps."""
    filled = sorted((each for each in findings.fastest_mode_maps if each.cells), key=lambda m: -len(m.cells))
    shown = interleave_groups(filled, _family)[: marks.MOST_PANELS]
    if not shown:
        return None
    firsts = [cell.first.case for each in shown for cell in each.cells.values()]
    styles = [
        style._replace(shape=None, dash=None)
        for style in line_styles({method_of(case).name: case for case in firsts})
    ]
    panels = []
    for each in shown:
        held = ", ".join(word for word in (each.held, "" if each.honest else "oversubscribed") if word)
        title = marks.panel_title(findings, each.case, held, each.environment)
        width, height = 70 + _CELL * len(each.devices), max(120, 42 * len(each.sizes))
        panels.append(Panel(title, _draw_map(each, styles), False, width, height))
    caption = (
        "The fastest mode for each size and number of devices, with its time. Pale, with a question mark: "
        "not distinguished from the next. A thick line is where the fastest mode changes, between sizes at "
        "which both modes were measured and are distinguished; dashed where that is not sure."
    )
    omitted = "maps are drawn; the table of each number of devices has all"
    caption += marks.describe_omission(len(shown), len(filled), omitted)
    heading = "Crossover: which mode for which size and how many devices"
    return Figure("crossover", heading, caption, tuple(panels), tuple(styles))


def _draw_map(grid: FastestModeMap, styles: Sequence[LineStyle]) -> tuple[Spec, ...]:
    row, column = ({value: at for at, value in enumerate(values)} for values in (grid.sizes, grid.devices))
    cells = [_cell_row(cell, column[d], row[size]) for (size, d), cell in grid.cells.items()]
    x = _index_axis("column", "devices", [f"{count:,}" for count in grid.devices])
    y = _index_axis("row", grid.swept, [format_size(size) for size in grid.sizes])
    edges: dict[str, Spec] = {
        "x2": {"field": "right"},
        "y2": {"field": "top"},
        "fillOpacity": {"field": "shade", "type": "quantitative", "scale": None},
    }
    rectangles = marks.draw_layer(
        cells, "rect", {"cornerRadius": 2}, x=x.channel("left"), y=y.channel("bottom"), **edges,
        **marks.line_channels(styles),
    )  # fmt: skip
    options = {"align": "center", "baseline": "middle", "lineBreak": "\n", "dx": 0, "dy": -6, "fontSize": 10}
    flips = [
        {
            "left": column[flip.devices] - 0.5, "right": column[flip.devices] + 0.5, "sure": not flip.doubts,
            "row": (row[flip.below] + row[flip.above]) / 2,
        }
        for flip in grid.crossovers
    ]  # fmt: skip
    dash = {"condition": {"test": "datum.sure", "value": [1, 0]}, "value": [4, 3]}
    ends = {"x": x.channel("left"), "x2": {"field": "right"}, "y": y.channel(), "strokeDash": dash}
    lines = marks.draw_layer(flips, "rule", {"color": INK, "strokeWidth": 2.5}, **ends)
    return rectangles, lines, marks.draw_text(cells, x, y, color=INK, **options)


def _cell_row(cell: FastestMethod, column: int, row: int) -> Row:
    method = method_of(cell.first.case)
    sure = cell.distinguished or (cell.second is None and not cell.empty)
    words = []
    if cell.second is not None and cell.ratio:
        ratio = f"{method_of(cell.second.case).name}: {format_ratio(*cell.ratio)}"
        words = [ratio if sure else f"{ratio}, not distinguished"]
    text = f"{method.mode}\n{format_duration(cell.first.median)}{'' if sure else ' ?'}"
    edges = {"left": column - 0.48, "right": column + 0.48, "bottom": row - 0.48, "top": row + 0.48}
    fields = {"column": column, "row": row, "label": text, "shade": _SURE if sure else _UNSURE}
    return marks.timing_row(method.name, cell.first, *words, **fields, **edges)


def _index_axis(field: str, title: str, names: Sequence[str]) -> marks.Axis:
    """Return an axis on which the interval from i - 0.5 to i + 0.5 is labeled with `names[i]`."""
    quoted = ",".join(f"'{name}'" for name in names)  # names contain digits and SI prefixes only
    axis = {"values": list(range(len(names))), "labelExpr": f"[{quoted}][datum.value]"}
    options: Mapping = {"axis": axis | {"grid": False, "ticks": False}}
    scale = {"domain": [-0.5, len(names) - 0.5], "nice": False}
    return marks.Axis(field, {"title": title, "scale": scale, **options})


def format_size(value: float) -> str:
    """Return a size as short text, such as '8,192', '100 k' or '1.05 M'."""
    if value < 1e6 and (value < 1e5 or value % 1000):
        return f"{round(value):,}"
    steps = ((1e9, "G"), (1e6, "M"), (1e3, "k"))
    size, letter = next((size, letter) for size, letter in steps if value >= size)
    return f"{value / size:.3g} {letter}"
