"""Figures over sizes: time with its exponents, and a map of the fastest mode."""

from collections.abc import Collection, Mapping, Sequence

from scaling.analysis.crossover import FastestModeMap
from scaling.analysis.curves import FastestMethod, SizeSweep, family_key, problem_size
from scaling.analysis.grouping import group_by, interleave_groups
from scaling.analysis.growth import SizeExponent
from scaling.analysis.methods import Method, method_of
from scaling.core.formatting import format_duration, format_ratio, is_exponent_determined
from scaling.report.figures import marks
from scaling.report.figures.marks import Figure, Panel, Row, Spec
from scaling.report.figures.theme import INK, LineStyle, method_colour, method_style
from scaling.report.labels import describe_panel

_CELL = 74  # pixels
_SURE, _UNSURE = 0.42, 0.12  # opacity of a cell


def draw_sizes(
    sweeps: Sequence[SizeSweep], exponents: Sequence[SizeExponent], show_environment: bool
) -> Figure | None:
    """Return time against size for the sweeps with the most methods and sizes of each family."""
    if not sweeps:
        return None
    shown = rank_sweeps(sweeps)[: marks.MOST_PANELS]
    by_line = {(id(growth.sweep), growth.method): growth for growth in exponents}
    styles = marks.unique_styles(method_style(method) for sweep in shown for method in sweep.lines)
    panels = []
    for sweep in shown:
        rows = [
            {"size": float(size), **marks.timing_row(method.name, timing)}
            for method, line in sweep.lines.items()
            for size, timing in line
        ]
        x = marks.count_axis("size", sweep.swept, (row["size"] for row in rows))
        y = marks.log_axis("seconds", "time", marks.finite(rows, "seconds", "low", "high"), "s")
        known = {method: by_line.get((id(sweep), method)) for method in sweep.lines}
        labels = marks.draw_labels(_exponent_rows(sweep, known), x, y, ends=True)
        held = describe_panel(sweep.case, sweep.held, sweep.honest)
        title = marks.panel_title(sweep.case, held, sweep.environment if show_environment else "")
        panels.append(Panel(title, (*marks.draw_series(rows, x, y, styles), *labels)))
    caption = "Median time of one call; bars are 95 % intervals; both axes are logarithmic."
    if exponents:
        caption += " The number at the end of a line is the exponent at which time grows with the size,"
        caption += " where it is determined."
    omitted = "panels are drawn, those with the most modes and sizes of each workload; the tables have all"
    caption += marks.describe_omission(shown, sweeps, omitted)
    return marks.compose("size", "Time against size", caption, panels, styles)


def rank_sweeps(sweeps: Sequence[SizeSweep]) -> list[SizeSweep]:
    """Return the fullest sweeps first, in turn from each family; values come last.

    A sweep of two sizes is left out where its family has one with more.
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


def _exponent_rows(sweep: SizeSweep, exponents: Mapping[Method, SizeExponent | None]) -> list[Row]:
    """Return the label of each determined exponent at the end of its line, from the fastest up."""
    rows = []
    for method, growth in exponents.items():
        if growth is not None and is_exponent_determined(*growth.exponent[1:]):
            size, timing = sweep.lines[method][-1]
            label = f"{growth.exponent.value:.2f}".replace("-0.00", "0.00")
            end = {"size": float(size), "seconds": timing.median, "label": label}
            rows.append(end | {"colour": method_colour(method)})
    return sorted(rows, key=lambda row: row["seconds"])


def draw_crossover(maps: Sequence[FastestModeMap], show_environment: bool) -> Figure | None:
    """Return a map of the fastest mode over sizes and devices, the fullest of each family first."""
    filled = sorted((each for each in maps if each.cells), key=lambda m: -len(m.cells))
    shown = interleave_groups(filled, _family)[: marks.MOST_PANELS]
    if not shown:
        return None
    methods = {method_of(cell.first.case) for each in shown for cell in each.cells.values()}
    names = name_methods(methods)
    styles = marks.unique_styles(method_style(m)._replace(shape=None, dash=None) for m in methods)
    panels = []
    for each in shown:
        held = ", ".join(word for word in (each.held, "" if each.honest else "oversubscribed") if word)
        title = marks.panel_title(each.case, held, each.environment if show_environment else "")
        width = 70 + _CELL * len(each.devices)
        height = max(120, 42 * len(each.sizes))
        panels.append(Panel(title, _draw_map(each, names, styles), False, width, height))
    caption = (
        "The fastest mode for each size and number of devices, with its time. Pale, with a question mark: "
        "not distinguished from the next. A thick line is where the fastest mode changes, between sizes at "
        "which both modes were measured and are distinguished; dashed where that is not sure."
    )
    omitted = "maps are drawn; the table of the fastest modes has all"
    caption += marks.describe_omission(shown, filled, omitted)
    heading = "Crossover: which mode for which size and how many devices"
    return marks.compose("crossover", heading, caption, panels, styles)


def _draw_map(
    of: FastestModeMap, names: Mapping[Method, str], styles: Sequence[LineStyle]
) -> tuple[Spec, ...]:
    row, column = ({value: at for at, value in enumerate(values)} for values in (of.sizes, of.devices))
    cells = [_cell_row(cell, column[d], row[size], names) for (size, d), cell in of.cells.items()]
    x = _index_axis("column", "devices", [f"{count:,}" for count in of.devices])
    y = _index_axis("row", of.swept, [format_size(size) for size in of.sizes])
    edges: dict[str, Spec] = {
        "x2": {"field": "right"},
        "y2": {"field": "top"},
        "fillOpacity": {"field": "shade", "type": "quantitative", "scale": None},
    }
    rectangles = marks.draw_layer(
        cells, "rect", {"cornerRadius": 2}, x=x.channel("left"), y=y.channel("bottom"), **edges,
        **marks.line_channels(styles),
    )  # fmt: skip
    text = marks.draw_text(
        cells, x, y, color=INK, align="center", baseline="middle", lineBreak="\n", dx=0, dy=-6, fontSize=10
    )
    flips = [
        {
            "left": column[flip.devices] - 0.5, "right": column[flip.devices] + 0.5, "sure": flip.sure,
            "row": (row[flip.below] + row[flip.above]) / 2,
        }
        for flip in of.crossovers
    ]  # fmt: skip
    dash = {"condition": {"test": "datum.sure", "value": [1, 0]}, "value": [4, 3]}
    ends = {"x": x.channel("left"), "x2": {"field": "right"}, "y": y.channel(), "strokeDash": dash}
    lines = marks.draw_layer(flips, "rule", {"color": INK, "strokeWidth": 2.5}, **ends)
    return rectangles, lines, text


def _cell_row(cell: FastestMethod, column: int, row: int, names: Mapping[Method, str]) -> Row:
    method, time = method_of(cell.first.case), format_duration(cell.first.median)
    sure = cell.distinguished or (cell.second is None and not cell.empty)
    label = f"{names[method]}\n{time}{'' if sure else ' ?'}"
    more = {"column": column, "row": row, "label": label, "shade": _SURE if sure else _UNSURE}
    edges = {"left": column - 0.48, "right": column + 0.48, "bottom": row - 0.48, "top": row + 0.48}
    tip = marks.timing_row(method.name, cell.first)["tip"]
    if cell.second is not None:
        ratio = format_ratio(cell.ratio, cell.ratio_low, cell.ratio_high)
        tip += f"\n{method_of(cell.second.case).name}: {ratio}" + ("" if sure else ", not distinguished")
    return {"line": method.name, "tip": tip} | more | edges


def _index_axis(field: str, title: str, names: Sequence[str]) -> marks.Axis:
    """Return an axis of cells: cell i reaches from i - 0.5 to i + 0.5 and has the i-th name."""
    quoted = ",".join(f"'{name}'" for name in names)  # numbers only
    label = f"[{quoted}][datum.value]"
    axis = {"values": list(range(len(names))), "labelExpr": label, "grid": False, "ticks": False}
    scale = {"domain": [-0.5, len(names) - 0.5], "nice": False}
    return marks.Axis(field, {"title": title, "axis": axis, "scale": scale})


def format_size(value: float) -> str:
    """Return a size in few characters: 8,192, 262,144, 100 k, 10 M, 1.05 M."""
    if value < 1e6 and (value < 1e5 or value % 1000):
        return f"{round(value):,}"
    steps = ((1e9, "G"), (1e6, "M"), (1e3, "k"))
    size, letter = next((size, letter) for size, letter in steps if value >= size)
    return f"{value / size:.3g} {letter}"


def name_methods(methods: Collection[Method]) -> dict[Method, str]:
    """Return a short name for each method: its mode, and what distinguishes it from others of the mode."""
    names = {}
    for mode_group in group_by(methods, lambda m: (m.mode, method_colour(m))).values():
        several = len(mode_group) > 1
        batches, seeds = ({getattr(m, name) for m in mode_group} for name in ("batch", "seeds"))
        for method in mode_group:
            words = [method.mode if method.engine == "jax" else f"{method.engine} {method.mode}"]
            words += [method.batch] if len(batches) > 1 else []
            words += [method.formulation or "", "" if method.jit or not several else "eager"]
            words += [method.seeds] if len(seeds) > 1 else []
            words += [method.short_memory_setting if several else ""]
            names[method] = " ".join(word for word in words if word)
    return names
