"""Compiling: the first call against a later one, with lines of how many calls take as long as the first."""

import math
from collections.abc import Iterable, Sequence
from functools import partial

from matplotlib.axes import Axes

from scaling.analysis.curves import Timing, family
from scaling.analysis.methods import Method, method_of
from scaling.analysis.stages import first_call
from scaling.core.formatting import count_of
from scaling.report.drawing import lines
from scaling.report.drawing.palette import QUIET, colour, shape
from scaling.report.drawing.sheet import Drawing, compose

MOST_PANELS = 6
Place = tuple[float, float, Timing]  # seconds of a call, of the first


def draw(timings: Iterable[Timing], several: bool) -> Drawing | None:
    """A panel for each family, of all sizes and numbers of devices."""
    families: dict[tuple, list[Place]] = {}
    for timing in timings:
        first = first_call(timing)
        if first and timing.case.kind == "case" and timing.case.jit and not timing.case.ad_mode.is_value:
            families.setdefault((timing.environment, *family(timing.case)), []).append((timing.median, first, timing))
    if not families:
        return None
    told = "The first call: tracing, lowering, compiling and running once; of coloured seeds, finding them too. On a slanted line"
    told += " so many later calls take as long as the first one took: below it most of the time of such a run is computing, above"
    told += " it is compiling."
    if len(families) > MOST_PANELS:
        told += f" {MOST_PANELS} of {len(families)} are drawn."
    painters = [partial(_draw, places=places, several=several) for places in list(families.values())[:MOST_PANELS]]
    return compose("compile", "Compiling against running", told, painters)


def _draw(axis: Axes, places: Sequence[Place], several: bool) -> None:
    axis.set_xscale("log")
    axis.set_yscale("log")
    ways: dict[Method, list[Place]] = {}
    for place in places:
        ways.setdefault(method_of(place[2].case).plain, []).append(place)
    for way, some in sorted(ways.items(), key=lambda item: item[0].name):
        axis.plot(
            [place[0] for place in some], [place[1] for place in some], label=way.name, color=colour(way), marker=shape(way),
            markersize=5, markerfacecolor="none", linestyle="none",
        )  # fmt: skip
    runs, firsts = [place[0] for place in places], [place[1] for place in places]
    low, high = min(firsts) / 1.6, max(firsts) * 1.6
    left, right = min(runs) / 1.6, max(runs) * 1.6
    spanned = math.log10(high / left) - math.log10(low / right)
    for power in range(0, 10, 1 if spanned < 5 else 2):
        count = 10**power
        at = [max(left, low / count), min(right, high / count)]
        if at[0] < at[1]:
            axis.plot(at, [count * each for each in at], zorder=1, **lines.GUIDE)
            text = count_of(count, "call") if count == 1 else f"{lines.whole(count)} calls"
            axis.annotate(text, (at[1], count * at[1]), (-2, -2), textcoords="offset points", ha="right", va="top", fontsize=7,
                          color=QUIET)  # fmt: skip
    axis.set_xlim(left, right)
    axis.set_ylim(low, high)
    lines.logarithmic(axis.xaxis, "s", [left, right])
    lines.logarithmic(axis.yaxis, "s", [low, high])
    axis.set_xlabel("a later call")
    axis.set_ylabel("the first call")
    axis.grid(True)
    case = places[0][2].case
    lines.title(axis, case, f"{count_of(len(places), 'case')}, all sizes", places[0][2].environment if several else "")
