"""Sizes: time against size, a line for each mode, with the exponent at which it grows."""

from collections.abc import Mapping, Sequence
from functools import partial

from matplotlib.axes import Axes

from scaling.analysis.curves import Panel, family, volume
from scaling.analysis.growth import SizeExponent
from scaling.analysis.methods import Method
from scaling.core.formatting import is_exponent_determined
from scaling.report.drawing import lines
from scaling.report.drawing.palette import colour, shape
from scaling.report.drawing.sheet import Drawing, compose
from scaling.report.labels import place

MOST_PANELS = 6
_MOST_EXPONENTS = 8  # written at the ends of lines, so far as they do not cover each other
_LEAST_SPAN = 1.01  # of the times in a panel
_ROOM = 0.07  # of a panel's height, between two of them


def draw(panels: Sequence[Panel], growths: Sequence[SizeExponent], several: bool) -> Drawing | None:
    """The fullest panels of each family."""
    if not panels:
        return None
    ranked = _varied(panels)
    shown = ranked[:MOST_PANELS]
    by_panel: dict[int, dict[Method, SizeExponent]] = {}
    for growth in growths:
        by_panel.setdefault(id(growth.panel), {})[growth.way] = growth
    told = "Median time of one call; bars are 95 % intervals; both axes are logarithmic."
    if by_panel:
        told += " The number at the end of a line is the exponent at which time grows with the size."
    if len(panels) > len(shown):
        told += f" {len(shown)} of {len(panels)} panels are drawn, those with the most modes and sizes of each workload;"
        told += " the others stand in the tables."
    painters = [partial(_draw, panel=panel, growths=by_panel.get(id(panel), {}), several=several) for panel in shown]
    return compose("size", "Time against size", told, painters)


def _varied(panels: Sequence[Panel]) -> list[Panel]:
    """The fullest panels first, in turn from each family, so that no workload crowds the others out.

    Two sizes make no curve: a panel of them is left out where its family has a panel of more.
    """
    counts = {id(panel): len({size for line in panel.lines.values() for size, _ in line}) for panel in panels}
    most: dict[tuple, int] = {}
    for panel in panels:
        of = (panel.environment, *family(panel.case))
        most[of] = max(most.get(of, 0), counts[id(panel)])
    panels = [p for p in panels if counts[id(p)] > 2 or most[(p.environment, *family(p.case))] <= 2]
    turn: dict[tuple, int] = {}
    ranked: list[tuple[bool, int, int, Panel]] = []
    for panel in sorted(panels, key=lambda p: (-len(p.lines), -sum(map(len, p.lines.values())), p.case.devices, -volume(p.case))):
        of = (panel.environment, *family(panel.case))
        turn[of] = turn.get(of, -1) + 1
        ranked.append((panel.case.ad_mode.is_value, turn[of], len(ranked), panel))
    return [panel for *_, panel in sorted(ranked, key=lambda row: row[:3])]


def _draw(axis: Axes, panel: Panel, growths: Mapping[Method, SizeExponent], several: bool) -> None:
    sizes = sorted({size for line in panel.lines.values() for size, _ in line})
    axis.set_xscale("log")
    axis.set_yscale("log")
    for above, (way, line) in enumerate(panel.lines.items()):
        rows = [(timing.median, *(timing.interval or (None, None))) for _, timing in line]
        lines.bars(axis, [float(size) for size, _ in line], rows, way.name, way, shape(way), above)
    lines.ticks(axis, sizes, logarithmic=True)
    lines.logarithmic(axis.yaxis, "s", [timing.median for line in panel.lines.values() for _, timing in line])
    low, high = axis.get_ylim()
    if high < low * _LEAST_SPAN:  # equal times but for rounding: too little for an axis
        axis.set_ylim(low / _LEAST_SPAN, high * _LEAST_SPAN)
    axis.set_xlabel(panel.swept)
    axis.set_ylabel("time")
    axis.grid(True)
    lines.title(axis, panel.case, place(panel.case, panel.held, panel.honest), panel.environment if several else "")
    _exponents(axis, panel, growths)


def _known(growth: SizeExponent | None) -> bool:
    """Return whether there is an exponent, and its interval says anything."""
    return growth is not None and is_exponent_determined(*growth.exponent[1:])


def _exponents(axis: Axes, panel: Panel, growths: Mapping[Method, SizeExponent]) -> None:
    """At the end of each line, from the fastest up, what would not be written over another left out."""
    axis.autoscale_view()  # so that the places are known
    taken: list[float] = []
    ends = sorted((line[-1][1].median, float(line[-1][0]), way) for way, line in panel.lines.items() if _known(growths.get(way)))
    for seconds, size, way in ends[:_MOST_EXPONENTS]:
        _, height = axis.transAxes.inverted().transform(axis.transData.transform((size, seconds)))
        if all(abs(height - other) > _ROOM for other in taken):
            taken.append(float(height))
            axis.annotate(
                f"{growths[way].exponent.value:.2f}", (size, seconds), (7, 0), textcoords="offset points", va="center",
                fontsize=8, color=colour(way),
            )  # fmt: skip
