"""Compiling: the first call against a later one, with lines of how many calls take as long as the first."""

import math
from collections.abc import Iterable, Sequence
from functools import partial

from matplotlib.axes import Axes

from scaling.analysis.curves import Timing, family_key
from scaling.analysis.methods import Method, method_of
from scaling.analysis.stages import first_call_seconds
from scaling.core.formatting import count_of
from scaling.report.drawing import lines
from scaling.report.drawing.palette import MUTED, method_colour, mode_marker
from scaling.report.drawing.sheet import Drawing, compose

MOST_PANELS = 6
CallPoint = tuple[float, float, Timing]  # seconds of a call, of the first


def draw(timings: Iterable[Timing], show_environment: bool) -> Drawing | None:
    """Return a panel for each family, of all sizes and numbers of devices."""
    families: dict[tuple, list[CallPoint]] = {}
    for timing in timings:
        first = first_call_seconds(timing)
        if first and timing.case.kind == "case" and timing.case.jit and not timing.case.ad_mode.is_value:
            families.setdefault((timing.environment, *family_key(timing.case)), []).append(
                (timing.median, first, timing)
            )
    if not families:
        return None
    caption = "The first call: tracing, lowering, compiling and running once; of coloured seeds, finding them too. On a slanted line"
    caption += " so many later calls take as long as the first one took: below it most of the time of such a run is computing, above"
    caption += " it is compiling."
    if len(families) > MOST_PANELS:
        caption += f" {MOST_PANELS} of {len(families)} are drawn."
    painters = [
        partial(_draw, points=points, show_environment=show_environment)
        for points in list(families.values())[:MOST_PANELS]
    ]
    return compose("compile", "Compiling against running", caption, painters)


def _draw(axis: Axes, points: Sequence[CallPoint], show_environment: bool) -> None:
    axis.set_xscale("log")
    axis.set_yscale("log")
    methods: dict[Method, list[CallPoint]] = {}
    for point in points:
        methods.setdefault(method_of(point[2].case).without_memory_setting, []).append(point)
    for method, group in sorted(methods.items(), key=lambda item: item[0].name):
        axis.plot(
            [point[0] for point in group], [point[1] for point in group], label=method.name,
            color=method_colour(method), marker=mode_marker(method), markersize=5, markerfacecolor="none",
            linestyle="none",
        )  # fmt: skip
    runs, firsts = [point[0] for point in points], [point[1] for point in points]
    low, high = min(firsts) / 1.6, max(firsts) * 1.6
    left, right = min(runs) / 1.6, max(runs) * 1.6
    spanned = math.log10(high / left) - math.log10(low / right)
    for power in range(0, 10, 1 if spanned < 5 else 2):
        count = 10**power
        at = [max(left, low / count), min(right, high / count)]
        if at[0] < at[1]:
            axis.plot(at, [count * each for each in at], zorder=1, **lines.GUIDE)
            text = count_of(count, "call") if count == 1 else f"{lines.format_size(count)} calls"
            axis.annotate(
                text, (at[1], count * at[1]), (-2, -2), textcoords="offset points", ha="right", va="top",
                fontsize=7, color=MUTED,
            )  # fmt: skip
    axis.set_xlim(left, right)
    axis.set_ylim(low, high)
    lines.set_log_axis(axis.xaxis, "s", [left, right])
    lines.set_log_axis(axis.yaxis, "s", [low, high])
    axis.set_xlabel("a later call")
    axis.set_ylabel("the first call")
    axis.grid(True)
    case = points[0][2].case
    lines.set_panel_title(
        axis,
        case,
        f"{count_of(len(points), 'case')}, all sizes",
        points[0][2].environment if show_environment else "",
    )
