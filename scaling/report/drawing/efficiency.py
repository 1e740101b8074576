"""Losses: where the efficiency of a curve goes, as bars that add up to the whole of the device-seconds."""

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
from scaling.report.drawing.palette import BLUE, GREY, OCHRE, ON, PURPLE, VERMILION
from scaling.report.drawing.sheet import Drawing, compose

MOST_PANELS = 6
_PARTS = (("communication", VERMILION), ("imbalance", PURPLE), ("dispatch", OCHRE), ("serial", GREY))
_NAMES = {"serial": "serial work, contention and all else", "imbalance": "imbalance between processes"}


def draw(losses: Sequence[tuple[Curve, tuple[EfficiencyBreakdown, ...]]], several: bool, refused: int = 0) -> Drawing | None:
    """A panel for the fastest curve of the largest problem of each family."""
    of = {id(curve): parts for curve, parts in losses if any(part.devices > 1 for part in parts)}
    rows = choice.rows([curve for curve, _ in losses if id(curve) in of])[:MOST_PANELS]
    best = [max(row, key=_rank) for row in rows]
    if not best:
        return None
    told = "Of the device-seconds of the way that is fastest on the most devices: what does the work of the program on one"
    told += " device, and where the rest goes. Dispatch is the cost of an empty call; communication and imbalance stand where"
    told += " they could be told, else they are within the rest. Super-linear points pass the top."
    if refused:
        told += f" {count_of(refused, 'point')} left out, where an empty call took as long as the case or longer."
    painters = [partial(_draw, curve=curve, parts=of[id(curve)], several=several) for curve in best]
    return compose("losses", "Where the efficiency goes", told, painters)


def _rank(curve: Curve) -> tuple[bool, int, float]:
    """The fastest on the most devices comes first; what is written by hand does not compete."""
    return not curve.case.ad_mode.closed_form, curve.points[-1].devices, -curve.points[-1].seconds


def _draw(axis: Axes, curve: Curve, parts: Sequence[EfficiencyBreakdown], several: bool) -> None:
    efficiency: Mapping[int, float | None] = {point.devices: point.efficiency for point in curve.points}
    devices = [part.devices for part in parts]
    bottom = [efficiency.get(count) or 0.0 for count in devices]
    style: dict[str, Any] = {"width": 0.72}
    at = range(len(devices))
    axis.bar(at, bottom, label="does the work", color=BLUE, **style)
    for index, height in enumerate(bottom):
        axis.text(index, min(height, 1.0) / 2, format_percentage(height), ha="center", va="center", fontsize=8, color=ON)
    for name, colour in _PARTS:
        heights = [max(0.0, getattr(part, name) or 0.0) for part in parts]
        if any(height > 0.001 for height in heights):
            axis.bar(at, heights, bottom=bottom, label=_NAMES.get(name, name), color=colour, **style)
            bottom = [low + height for low, height in zip(bottom, heights, strict=True)]
    axis.set_xticks(at, [str(count) for count in devices])
    axis.set_xlabel("devices")
    axis.set_ylabel("share of device-seconds")
    axis.set_ylim(0, max(1.02, *bottom))
    axis.grid(True, axis="y")
    case = curve.case
    how = f"{method_of(case).name}, {describe_call(case)}, {size_name(case)}"
    lines.title(axis, case, how, curve.environment if several else "")
