"""Efficiency breakdown: bars that add up to all of the device-seconds."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from matplotlib.axes import Axes

from scaling.analysis.curves import Curve, size_name
from scaling.analysis.efficiency_breakdown import EfficiencyBreakdown
from scaling.analysis.methods import describe_call, method_of
from scaling.core.formatting import count_of, format_percentage
from scaling.report import choice
from scaling.report.drawing import lines
from scaling.report.drawing.palette import BLUE, GREY, OCHRE, ON_COLOUR, PURPLE, VERMILION
from scaling.report.drawing.sheet import Drawing, compose

MOST_PANELS = 6
_PARTS = (("communication", VERMILION), ("imbalance", PURPLE), ("dispatch", OCHRE), ("serial", GREY))
_NAMES = {"serial": "serial work, contention and all else", "imbalance": "imbalance between processes"}


def draw(
    losses: Sequence[tuple[Curve, tuple[EfficiencyBreakdown, ...]]],
    show_environment: bool,
    count_refused: int = 0,
) -> Drawing | None:
    """Return a panel for the fastest curve of the largest problem of each family."""
    of = {id(curve): parts for curve, parts in losses if any(part.devices > 1 for part in parts)}
    rows = choice.curves_of_largest_problems([curve for curve, _ in losses if id(curve) in of])[:MOST_PANELS]
    best = [max(row, key=_rank) for row in rows]
    if not best:
        return None
    caption = "Of the device-seconds of the method that is fastest on the most devices: what does the work of the program on one"
    caption += " device, and where the rest goes. Dispatch is the cost of an empty call; communication and imbalance stand where"
    caption += " they could be told, else they are within the rest. Super-linear points pass the top."
    if count_refused:
        caption += f" {count_of(count_refused, 'point')} left out, where an empty call took as long as the case or longer."
    painters = [
        partial(_draw, curve=curve, parts=of[id(curve)], show_environment=show_environment) for curve in best
    ]
    return compose("losses", "Where the efficiency goes", caption, painters)


def _rank(curve: Curve) -> tuple[bool, int, float]:
    """Rank the fastest on the most devices first; derivatives written by hand come last."""
    return not curve.case.ad_mode.closed_form, curve.points[-1].devices, -curve.points[-1].seconds


def _draw(axis: Axes, curve: Curve, parts: Sequence[EfficiencyBreakdown], show_environment: bool) -> None:
    efficiency: Mapping[int, float | None] = {point.devices: point.efficiency for point in curve.points}
    devices = [part.devices for part in parts]
    bottom = [efficiency.get(count) or 0.0 for count in devices]
    style: dict[str, Any] = {"width": 0.72}
    at = range(len(devices))
    axis.bar(at, bottom, label="does the work", color=BLUE, **style)
    for index, height in enumerate(bottom):
        axis.text(
            index,
            min(height, 1.0) / 2,
            format_percentage(height),
            ha="center",
            va="center",
            fontsize=8,
            color=ON_COLOUR,
        )
    for name, method_colour in _PARTS:
        heights = [max(0.0, getattr(part, name) or 0.0) for part in parts]
        if any(height > 0.001 for height in heights):
            axis.bar(at, heights, bottom=bottom, label=_NAMES.get(name, name), color=method_colour, **style)
            bottom = [low + height for low, height in zip(bottom, heights, strict=True)]
    axis.set_xticks(at, [str(count) for count in devices])
    axis.set_xlabel("devices")
    axis.set_ylabel("share of device-seconds")
    axis.set_ylim(0, max(1.02, *bottom))
    axis.grid(True, axis="y")
    case = curve.case
    how = f"{method_of(case).name}, {describe_call(case)}, {size_name(case)}"
    lines.set_panel_title(axis, case, how, curve.environment if show_environment else "")
