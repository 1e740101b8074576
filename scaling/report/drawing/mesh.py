"""Mesh: time by how the devices are arranged over points and seeds, for each number of devices."""

import itertools
from collections.abc import Sequence
from functools import partial

from matplotlib.axes import Axes

from scaling.analysis.curves import family_key, problem, problem_size, size_name
from scaling.analysis.meshes import MeshComparison, mesh_name
from scaling.analysis.methods import describe_call, method_of
from scaling.report.drawing import lines
from scaling.report.drawing.palette import GRID, layout_marker, method_colour
from scaling.report.drawing.sheet import Drawing, compose, panel_size

MOST_PANELS = 6
MOST_LINES = 6  # in one panel
_TICK = 3.2  # what the name of a mesh takes of the size of its letters


def draw(meshes: Sequence[MeshComparison], show_environment: bool) -> Drawing | None:
    """Return a panel for the largest problem of each family."""
    families: dict[tuple, dict[tuple, list[MeshComparison]]] = {}
    for each in meshes:
        if each.honest:
            problems = families.setdefault((each.environment, *family_key(each.case)), {})
            problems.setdefault(problem(each.case), []).append(each)
    panels = [
        max(problems.values(), key=lambda group: (len(group), problem_size(group[0].case)))
        for problems in families.values()
    ]
    if not panels:
        return None
    caption = "Time by mesh: devices over points x devices over seeds; bars are 95 % intervals. A filled mark is the fastest mesh of"
    caption += " so many devices, where it is distinguished from the next."
    if len(panels) > MOST_PANELS:
        caption += f" {MOST_PANELS} of {len(panels)} are drawn; the others stand in the table."
    space = panel_size(len(panels[:MOST_PANELS]))
    painters = [
        partial(_draw, group=_fewer(group), space=space, show_environment=show_environment)
        for group in panels[:MOST_PANELS]
    ]
    return compose("mesh", "Meshes: points by seeds", caption, painters)


def _line(each: MeshComparison) -> str:
    return f"{method_of(each.case).name}, {describe_call(each.case)}".replace(", the fastest mesh", "")


def _fewer(group: Sequence[MeshComparison]) -> list[MeshComparison]:
    """Return the comparisons of the methods that are fastest on the most devices."""
    last: dict[str, tuple[int, float]] = {}
    for each in group:
        rank = (-each.case.devices, each.rows[0][0].median)
        last[_line(each)] = min(last.get(_line(each), rank), rank)
    kept = sorted(last, key=lambda name: last[name])[:MOST_LINES]
    return [each for each in group if _line(each) in kept]


def _draw(
    axis: Axes, group: Sequence[MeshComparison], space: tuple[float, float], show_environment: bool
) -> None:
    axis.set_yscale("log")
    shapes = sorted(
        {(t.case.devices, -t.case.axes[0], mesh_name(t.case)) for each in group for t, _ in each.rows}
    )
    counts = [count for count, *_ in shapes]
    at = {name: index for index, (_, _, name) in enumerate(shapes)}
    name_with_blocks = set[str]()
    for each in group:
        method, name = method_of(each.case), _line(each)
        timings = sorted(
            (timing for timing, _ in each.rows),
            key=lambda timing: at[mesh_name(timing.case)],
        )
        rows = [(timing.median, *(timing.interval or (None, None))) for timing in timings]
        mark = layout_marker(each.case)
        lines.draw_with_bars(
            axis,
            [at[mesh_name(t.case)] for t in timings],
            rows,
            "_" if name in name_with_blocks else name,
            method,
            mark,
        )
        name_with_blocks.add(name)
        if each.distinguished:
            best = each.rows[0][0]
            axis.plot(
                at[mesh_name(best.case)],
                best.median,
                marker=mark,
                markersize=7,
                color=method_colour(method),
                linestyle="none",
                zorder=4,
            )
    for index, (one, other) in enumerate(itertools.pairwise(counts)):
        if one != other:
            axis.axvline(index + 0.5, color=GRID, linewidth=1)
    axis.set_xticks(
        range(len(shapes)),
        [name for *_, name in shapes],
        rotation=90 if len(shapes) * _TICK * space[1] > space[0] else 0,
    )
    axis.tick_params(axis="x", labelsize=space[1])
    axis.set_xlim(-0.5, len(shapes) - 0.5)
    lines.set_log_axis(axis.yaxis, "s", [timing.median for each in group for timing, _ in each.rows])
    axis.set_xlabel("mesh: points x seeds")
    axis.set_ylabel("time")
    axis.grid(True, axis="y")
    case = max((each.case for each in group), key=lambda case: case.devices)
    lines.set_panel_title(axis, case, size_name(case), group[0].environment if show_environment else "")
