"""Front: one program under several settings of its memory, time against bytes, each setting by its name.

Knows fronts, and where there is room for a name; not which settings there may be.
"""

import math
from collections.abc import Iterable, Sequence
from functools import partial
from itertools import pairwise

from matplotlib.axes import Axes

from scaling.analysis.curves import family, size_name, volume
from scaling.analysis.methods import describe_call, method_of
from scaling.analysis.pareto import MethodTime, ParetoFront
from scaling.core.case import AUTO
from scaling.core.formatting import count_of
from scaling.report.drawing import lines, names
from scaling.report.drawing.names import Point
from scaling.report.drawing.palette import BLUE, GREY, INK, QUIET, VERMILION
from scaling.report.drawing.sheet import Drawing, compose, room

MOST_PANELS = 6
_MOST_NAMES = 16  # in a panel
_HEIGHT = 3.8  # inches
_BEST, _BEATEN, _FOUND = ("on the front", BLUE, "o"), ("not on the front", GREY, "x"), ("chunk=auto", VERMILION, "D")


def draw(fronts: Sequence[ParetoFront], several: bool) -> Drawing | None:
    """A panel for each program, in turn from each family, the largest and fullest first."""
    if not fronts:
        return None
    shown = _varied(fronts)[:MOST_PANELS]
    told = "One program on the same devices, under several settings of memory: how many seeds and points it takes at a time, what"
    told += " is kept and where. Bytes of a device: inputs, result and temporaries, as the compiler tells them; bars are 95 %"
    told += " intervals. On the front: no other setting is both faster, by the medians, and smaller."
    if len(fronts) > len(shown):
        told += f" {len(shown)} of {len(fronts)} are drawn; the others stand in the table."
    painters = [partial(_draw, front=front, space=room(len(shown)), several=several) for front in shown]
    return compose("front", "Settings: what memory buys", told, painters, height=_HEIGHT)


def _varied(fronts: Iterable[ParetoFront]) -> list[ParetoFront]:
    """In turn from each family: the fronts of its largest problem, those of more settings first."""
    turn: dict[tuple, int] = {}
    ranked = []
    for front in sorted(fronts, key=lambda one: (-volume(one.case), -len(one.settings), one.fastest.timing.median)):
        of = (front.environment, *family(front.case))
        turn[of] = turn.get(of, -1) + 1
        ranked.append((turn[of], front))
    return [front for _, front in sorted(ranked, key=lambda pair: pair[0])]


def _draw(axis: Axes, front: ParetoFront, space: tuple[float, float], several: bool) -> None:
    axis.set_xscale("log")
    axis.set_yscale("log")
    kinds: dict[tuple[str, str, str], list[MethodTime]] = {}
    for setting in front.settings:
        kinds.setdefault(_FOUND if setting.timing.case.chunk == AUTO else _BEST if setting.best else _BEATEN, []).append(setting)
    for (name, colour, marker), some in kinds.items():
        rows = [(one.timing.median, *_interval(one)) for one in some]
        around = [[max(0.0, row[0] - row[1]) for row in rows], [max(0.0, row[2] - row[0]) for row in rows]]
        axis.errorbar(
            [one.memory for one in some], [row[0] for row in rows], yerr=around, label=name, color=colour, marker=marker,
            linestyle="none", markersize=5, elinewidth=1, capsize=2,
        )  # fmt: skip
    left, right = _around([one.memory for one in front.settings])
    low, high = _around([end for one in front.settings for end in (one.timing.median, *_interval(one))])
    corners = _corners(front, right, high)
    axis.plot(*zip(*corners, strict=True), color=QUIET, linewidth=1.2, zorder=1)
    axis.set_xlim(left, right)
    axis.set_ylim(low, high)
    _name(axis, front, corners, space, ((left, right), (low, high)))
    lines.logarithmic(axis.xaxis, "B", [left, right])
    lines.logarithmic(axis.yaxis, "s", [low, high])
    axis.set_xlabel("memory of a device")
    axis.set_ylabel("time")
    axis.grid(True)
    case = front.fastest.timing.case
    how = f"{size_name(case)}, {method_of(case).plain.name}, {describe_call(case)}, {count_of(case.devices, 'device')}"
    lines.title(axis, case, how, front.environment if several else "")


def _interval(setting: MethodTime) -> Point:
    return setting.timing.interval or (setting.timing.median, setting.timing.median)


def _around(values: Sequence[float]) -> tuple[float, float]:
    """Limits of a logarithmic axis with room for names at the ends."""
    more = max(1.5, (max(values) / min(values)) ** 0.18)
    return min(values) / more, max(values) * more


def _corners(front: ParetoFront, right: float, high: float) -> list[Point]:
    """The front as a line of steps: from above down to the smallest, and from the fastest on to the right."""
    corners: list[Point] = [(front.smallest.memory, high)]
    for setting in front.best:
        corners += [(setting.memory, corners[-1][1]), (setting.memory, setting.timing.median)]
    return [*corners, (right, corners[-1][1])]


def _name(
    axis: Axes, front: ParetoFront, corners: Sequence[Point], space: tuple[float, float], limits: tuple[Point, Point]
) -> None:
    """Write the names beside their marks; where these are too many, of those on the front alone."""
    panel, size = (space[0], (_HEIGHT - 0.5) * 72), space[1]
    across, up = limits

    def place(value: Point) -> Point:
        return panel[0] * _share(value[0], across), panel[1] * _share(value[1], up)

    marks = [place((one.memory, one.timing.median)) for one in front.settings]
    few = len(marks) <= _MOST_NAMES
    wanted = [at for at, one in enumerate(front.settings) if few or one.best or one.timing.case.chunk == AUTO][:_MOST_NAMES]
    texts = {at: method_of(front.settings[at].timing.case).brief or "all at once" for at in wanted}
    bars = [[place((one.memory, end)) for end in _interval(one)] for one in front.settings]
    strokes = [*pairwise(map(place, corners)), *((low, high) for low, high in bars)]
    for at, (corner, start) in names.place_labels(marks, texts, strokes, panel, size).items():
        (x, y), one = marks[at], front.settings[at]
        leader = {"arrowstyle": "-", "color": QUIET, "linewidth": 0.5, "shrinkA": 0, "shrinkB": 3, "relpos": start}
        axis.annotate(
            texts[at], (one.memory, one.timing.median), (corner[0] - x, corner[1] - y), textcoords="offset points", ha="left",
            va="bottom", fontsize=size, color=INK, arrowprops=leader if start else None,
        )  # fmt: skip


def _share(value: float, limits: Point) -> float:
    return math.log(value / limits[0]) / math.log(limits[1] / limits[0])
