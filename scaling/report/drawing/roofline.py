"""Roofline: the rate of each timing over its operational intensity, under the measured ceilings."""

from collections.abc import Sequence
from functools import partial

from matplotlib.axes import Axes

from scaling.analysis.roofline import Roofline
from scaling.core.formatting import format_number
from scaling.report.drawing import lines
from scaling.report.drawing.palette import QUIET, colour, shape
from scaling.report.drawing.sheet import Drawing, compose
from scaling.report.labels import place

MOST_PANELS = 6


def draw(rooflines: Sequence[Roofline], several: bool) -> Drawing | None:
    """A panel for each family."""
    if not rooflines:
        return None
    shown = rooflines[:MOST_PANELS]
    told = "What one device does in a second, by the operations for each byte that must be read or written whatever the program."
    told += " Under the slope memory binds, under the level arithmetic; both were measured on the same machine."
    told += " What stays in a cache can pass the slope."
    if len(rooflines) > len(shown):
        told += f" {len(shown)} of {len(rooflines)} are drawn."
    painters = [partial(_draw, of=each, several=several) for each in shown]
    return compose("roofline", "Roofline: how near to what the machine can do", told, painters)


def _draw(axis: Axes, of: Roofline, several: bool) -> None:
    axis.set_xscale("log")
    axis.set_yscale("log")
    dots = [dot for some in of.dots.values() for dot in some]
    for way, some in of.dots.items():
        axis.plot(
            [dot.intensity for dot in some], [dot.rate for dot in some], label=way.name, color=colour(way), marker=shape(way),
            markerfacecolor="none", linestyle="none",
        )  # fmt: skip
    ridge = of.arithmetic / of.memory
    first, last = min(ridge, *(dot.intensity for dot in dots)) / 4, max(ridge, *(dot.intensity for dot in dots)) * 4
    axis.plot([first, ridge, last], [first * of.memory, of.arithmetic, of.arithmetic], color=QUIET, linewidth=1.4)
    level = f"{format_number(of.arithmetic / 1e9)} GFLOP/s"
    axis.annotate(level, (last, of.arithmetic), (0, 3), textcoords="offset points", ha="right", fontsize=8, color=QUIET)
    slope = f"{format_number(of.memory / 1e9)} GB/s"
    axis.annotate(slope, (first, first * of.memory), (4, 12), textcoords="offset points", ha="left", fontsize=8, color=QUIET)
    lines.logarithmic(axis.xaxis, "", [first, last])
    lines.logarithmic(axis.yaxis, "", [*(dot.rate for dot in dots), first * of.memory, of.arithmetic])
    axis.set_xlabel("operations for each byte")
    axis.set_ylabel("FLOP/s of a device")
    axis.grid(True)
    lines.title(axis, of.case, place(of.case, "", of.honest), of.environment if several else "")
