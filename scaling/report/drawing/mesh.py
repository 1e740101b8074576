"""Mesh: time by how the devices are laid out over points and seeds, for each number of them."""

import itertools
from collections.abc import Sequence
from functools import partial

from matplotlib.axes import Axes

from scaling.analysis.curves import family, problem, size_name, volume
from scaling.analysis.meshes import Meshes, shape
from scaling.analysis.methods import describe_call, method_of
from scaling.report.drawing import lines
from scaling.report.drawing.palette import GRID, colour, cut
from scaling.report.drawing.sheet import Drawing, compose, room

MOST_PANELS = 6
MOST_LINES = 6  # in one panel
_TICK = 3.2  # what the name of a mesh takes of the size of its letters


def draw(meshes: Sequence[Meshes], several: bool) -> Drawing | None:
    """A panel for the largest problem of each family."""
    families: dict[tuple, dict[tuple, list[Meshes]]] = {}
    for each in meshes:
        if each.honest:
            problems = families.setdefault((each.environment, *family(each.case)), {})
            problems.setdefault(problem(each.case), []).append(each)
    panels = [max(problems.values(), key=lambda some: (len(some), volume(some[0].case))) for problems in families.values()]
    if not panels:
        return None
    told = "Time by mesh: devices over points x devices over seeds; bars are 95 % intervals. A filled mark is the fastest mesh of"
    told += " so many devices, where it can be told apart from the next."
    if len(panels) > MOST_PANELS:
        told += f" {MOST_PANELS} of {len(panels)} are drawn; the others stand in the table."
    space = room(len(panels[:MOST_PANELS]))
    painters = [partial(_draw, some=_fewer(some), space=space, several=several) for some in panels[:MOST_PANELS]]
    return compose("mesh", "Meshes: points by seeds", told, painters)


def _line(each: Meshes) -> str:
    return f"{method_of(each.case).name}, {describe_call(each.case)}".replace(", the fastest mesh", "")


def _fewer(some: Sequence[Meshes]) -> list[Meshes]:
    """Those of the ways that are fastest on the most devices."""
    last: dict[str, tuple[int, float]] = {}
    for each in some:
        rank = (-each.case.devices, each.rows[0][0].median)
        last[_line(each)] = min(last.get(_line(each), rank), rank)
    kept = sorted(last, key=lambda name: last[name])[:MOST_LINES]
    return [each for each in some if _line(each) in kept]


def _draw(axis: Axes, some: Sequence[Meshes], space: tuple[float, float], several: bool) -> None:
    axis.set_yscale("log")
    shapes = sorted({(t.case.devices, -t.case.axes[0], shape(t.case)) for each in some for t, _ in each.rows})
    counts = [count for count, *_ in shapes]
    at = {name: index for index, (_, _, name) in enumerate(shapes)}
    named = set[str]()
    for each in some:
        way, name = method_of(each.case), _line(each)
        timings = sorted((timing for timing, _ in each.rows), key=lambda timing: at[shape(timing.case)])
        rows = [(timing.median, *(timing.interval or (None, None))) for timing in timings]
        mark = cut(each.case)
        lines.bars(axis, [at[shape(t.case)] for t in timings], rows, "_" if name in named else name, way, mark)
        named.add(name)
        if each.distinguished:
            best = each.rows[0][0]
            axis.plot(at[shape(best.case)], best.median, marker=mark, markersize=7, color=colour(way), linestyle="none", zorder=4)
    for index, (one, other) in enumerate(itertools.pairwise(counts)):
        if one != other:
            axis.axvline(index + 0.5, color=GRID, linewidth=1)
    axis.set_xticks(
        range(len(shapes)), [name for *_, name in shapes], rotation=90 if len(shapes) * _TICK * space[1] > space[0] else 0
    )
    axis.tick_params(axis="x", labelsize=space[1])
    axis.set_xlim(-0.5, len(shapes) - 0.5)
    lines.logarithmic(axis.yaxis, "s", [timing.median for each in some for timing, _ in each.rows])
    axis.set_xlabel("mesh: points x seeds")
    axis.set_ylabel("time")
    axis.grid(True, axis="y")
    case = max((each.case for each in some), key=lambda case: case.devices)
    lines.title(axis, case, size_name(case), some[0].environment if several else "")
