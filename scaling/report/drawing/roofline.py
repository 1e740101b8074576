"""Roofline: the rate of each timing over its operational intensity, under the measured peaks."""

from collections.abc import Sequence
from functools import partial

from matplotlib.axes import Axes

from scaling.analysis.roofline import Roofline
from scaling.core.formatting import format_number
from scaling.report.drawing import lines
from scaling.report.drawing.palette import MUTED, method_colour, mode_marker
from scaling.report.drawing.sheet import Drawing, compose
from scaling.report.labels import describe_panel

MOST_PANELS = 6


def draw(rooflines: Sequence[Roofline], show_environment: bool) -> Drawing | None:
    """Return a panel for each family."""
    if not rooflines:
        return None
    shown = rooflines[:MOST_PANELS]
    caption = "What one device does in a second, by the operations for each byte that must be read or written whatever the program."
    caption += (
        " Under the slope memory binds, under the level arithmetic; both were measured on the same machine."
    )
    caption += " What stays in a cache can pass the slope."
    if len(rooflines) > len(shown):
        caption += f" {len(shown)} of {len(rooflines)} are drawn."
    painters = [partial(_draw, of=each, show_environment=show_environment) for each in shown]
    return compose("roofline", "Roofline: how near to what the machine can do", caption, painters)


def _draw(axis: Axes, of: Roofline, show_environment: bool) -> None:
    axis.set_xscale("log")
    axis.set_yscale("log")
    points = [point for group in of.points.values() for point in group]
    for method, group in of.points.items():
        axis.plot(
            [point.intensity for point in group], [point.rate for point in group], label=method.name,
            color=method_colour(method), marker=mode_marker(method), markerfacecolor="none", linestyle="none",
        )  # fmt: skip
    ridge = of.arithmetic / of.memory
    first, last = (
        min(ridge, *(point.intensity for point in points)) / 4,
        max(ridge, *(point.intensity for point in points)) * 4,
    )
    axis.plot(
        [first, ridge, last], [first * of.memory, of.arithmetic, of.arithmetic], color=MUTED, linewidth=1.4
    )
    level = f"{format_number(of.arithmetic / 1e9)} GFLOP/s"
    axis.annotate(
        level, (last, of.arithmetic), (0, 3), textcoords="offset points", ha="right", fontsize=8, color=MUTED
    )
    slope = f"{format_number(of.memory / 1e9)} GB/s"
    axis.annotate(
        slope,
        (first, first * of.memory),
        (4, 12),
        textcoords="offset points",
        ha="left",
        fontsize=8,
        color=MUTED,
    )
    lines.set_log_axis(axis.xaxis, "", [first, last])
    lines.set_log_axis(axis.yaxis, "", [*(point.rate for point in points), first * of.memory, of.arithmetic])
    axis.set_xlabel("operations for each byte")
    axis.set_ylabel("FLOP/s of a device")
    axis.grid(True)
    lines.set_panel_title(
        axis, of.case, describe_panel(of.case, "", of.honest), of.environment if show_environment else ""
    )
