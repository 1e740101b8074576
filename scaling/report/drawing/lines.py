"""Axes: what the panels of several figures share: lines with intervals, ticks, titles, short numbers."""

import math
import textwrap
from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import EngFormatter, FixedLocator, FuncFormatter, LogLocator, NullLocator

from scaling.analysis.curves import family_name
from scaling.analysis.methods import Method
from scaling.core.case import Case
from scaling.report.drawing.palette import MUTED, line_style, method_colour

GUIDE: dict[str, Any] = {"color": MUTED, "linewidth": 1, "linestyle": ":"}
Row = tuple[float, float | None, float | None]  # a number with its interval


def draw_with_bars(
    axis: Axes,
    at: Sequence[float],
    rows: Sequence[Row],
    name: str,
    method: Method,
    marker: str,
    above: int = 0,
) -> None:
    """Draw a line through (middle, low, high), with a bar where the interval is known.

    `above` is the number of lines drawn on top. A line under others is wider, so that coinciding lines are
    both visible.
    """
    middle = [row[0] for row in rows]
    below = [0.0 if row[1] is None else max(0.0, row[0] - row[1]) for row in rows]
    over = [0.0 if row[2] is None else max(0.0, row[2] - row[0]) for row in rows]
    axis.errorbar(
        at, middle, yerr=[below, over], label=name, color=method_colour(method), linestyle=line_style(method),
        marker=marker, markerfacecolor="none", markersize=min(9, 5 + above),
        linewidth=min(2.4, 1.2 + 0.2 * above), elinewidth=1, capsize=3, zorder=3 - 0.1 * above,
    )  # fmt: skip


def set_value_ticks(axis: Axes, values: Sequence[int], logarithmic: bool) -> None:
    """Set ticks at the values themselves, without those that would overlap."""
    describe_panel = math.log if logarithmic else float
    panel_size = (describe_panel(values[-1]) - describe_panel(values[0])) / 9
    kept = [values[-1]]
    for value in reversed(values[:-1]):
        if describe_panel(kept[-1]) - describe_panel(value) >= panel_size:
            kept.append(value)
    axis.xaxis.set_major_locator(FixedLocator(sorted(map(float, kept))))
    axis.xaxis.set_minor_locator(NullLocator())
    axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: format_size(value)))


def set_log_axis(axis: Any, unit: str, values: Sequence[float]) -> None:
    """Make an axis (`axes.xaxis` or `axes.yaxis`) logarithmic in engineering units, with finer ticks
    where it spans little.
    """
    narrow = max(values) < 30 * min(values)
    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if narrow else (1.0,), numticks=9))
    axis.set_major_formatter(EngFormatter(unit=unit, sep=" "))
    axis.set_minor_locator(NullLocator())


def format_size(value: float) -> str:
    """Return a size in few characters: 8,192, 262,144, 100 k, 10 M, 1.05 M."""
    if value < 1e6 and (value < 1e5 or value % 1000):
        return f"{round(value):,}"
    tens, letter = next(
        ((tens, letter) for tens, letter in ((9, "G"), (6, "M"), (3, "k")) if value >= 10**tens)
    )
    return f"{value / 10**tens:.3g} {letter}"


def set_panel_title(axis: Axes, case: Case, detail: str, environment: str) -> None:
    """Set the title of a panel: the function, a detail, and the environment where there are several."""
    lines = [family_name(case), detail, environment and f"environment {environment}"]
    text = "\n".join(textwrap.fill(line, 54) for line in lines if line)
    axis.set_title(text, loc="left", fontsize=9)
