"""Sizes: time against size, a line for each method, with its exponent."""

from collections.abc import Mapping, Sequence
from functools import partial

from matplotlib.axes import Axes

from scaling.analysis.curves import SizeSweep, family_key, problem_size
from scaling.analysis.growth import SizeExponent
from scaling.analysis.methods import Method
from scaling.core.formatting import is_exponent_determined
from scaling.report.drawing import lines
from scaling.report.drawing.palette import method_colour, mode_marker
from scaling.report.drawing.sheet import Drawing, compose
from scaling.report.labels import describe_panel

MOST_PANELS = 6
_MOST_EXPONENTS = 8  # written at the ends of lines, so far as they do not cover each other
_LEAST_SPAN = 1.01  # of the times in a panel
_ROOM = 0.07  # of a panel's height, between two of them


def draw(
    panels: Sequence[SizeSweep], growths: Sequence[SizeExponent], show_environment: bool
) -> Drawing | None:
    """Return the panels with the most methods and sizes, in turn from each family."""
    if not panels:
        return None
    ranked = _varied(panels)
    shown = ranked[:MOST_PANELS]
    by_panel: dict[int, dict[Method, SizeExponent]] = {}
    for growth in growths:
        by_panel.setdefault(id(growth.sweep), {})[growth.method] = growth
    caption = "Median time of one call; bars are 95 % intervals; both axes are logarithmic."
    if by_panel:
        caption += " The number at the end of a line is the exponent at which time grows with the size."
    if len(panels) > len(shown):
        caption += f" {len(shown)} of {len(panels)} panels are drawn, those with the most modes and sizes of each workload;"
        caption += " the others stand in the tables."
    painters = [
        partial(_draw, panel=panel, growths=by_panel.get(id(panel), {}), show_environment=show_environment)
        for panel in shown
    ]
    return compose("size", "Time against size", caption, painters)


def _varied(panels: Sequence[SizeSweep]) -> list[SizeSweep]:
    """Return the panels with the most methods and sizes first, in turn from each family.

    A panel of two sizes is left out where its family has a panel with more.
    """
    counts = {id(panel): len({size for line in panel.lines.values() for size, _ in line}) for panel in panels}
    most: dict[tuple, int] = {}
    for panel in panels:
        of = (panel.environment, *family_key(panel.case))
        most[of] = max(most.get(of, 0), counts[id(panel)])
    panels = [p for p in panels if counts[id(p)] > 2 or most[(p.environment, *family_key(p.case))] <= 2]
    turn: dict[tuple, int] = {}
    ranked: list[tuple[bool, int, int, SizeSweep]] = []
    for panel in sorted(
        panels,
        key=lambda p: (
            -len(p.lines),
            -sum(map(len, p.lines.values())),
            p.case.devices,
            -problem_size(p.case),
        ),
    ):
        of = (panel.environment, *family_key(panel.case))
        turn[of] = turn.get(of, -1) + 1
        ranked.append((panel.case.ad_mode.is_value, turn[of], len(ranked), panel))
    return [panel for *_, panel in sorted(ranked, key=lambda row: row[:3])]


def _draw(
    axis: Axes, panel: SizeSweep, growths: Mapping[Method, SizeExponent], show_environment: bool
) -> None:
    sizes = sorted({size for line in panel.lines.values() for size, _ in line})
    axis.set_xscale("log")
    axis.set_yscale("log")
    for above, (method, line) in enumerate(panel.lines.items()):
        rows = [(timing.median, *(timing.interval or (None, None))) for _, timing in line]
        lines.draw_with_bars(
            axis, [float(size) for size, _ in line], rows, method.name, method, mode_marker(method), above
        )
    lines.set_value_ticks(axis, sizes, logarithmic=True)
    lines.set_log_axis(
        axis.yaxis, "s", [timing.median for line in panel.lines.values() for _, timing in line]
    )
    low, high = axis.get_ylim()
    if high < low * _LEAST_SPAN:  # equal times but for rounding: too little for an axis
        axis.set_ylim(low / _LEAST_SPAN, high * _LEAST_SPAN)
    axis.set_xlabel(panel.swept)
    axis.set_ylabel("time")
    axis.grid(True)
    lines.set_panel_title(
        axis,
        panel.case,
        describe_panel(panel.case, panel.held, panel.honest),
        panel.environment if show_environment else "",
    )
    _exponents(axis, panel, growths)


def _known(growth: SizeExponent | None) -> bool:
    """Return whether there is an exponent with a meaningful interval."""
    return growth is not None and is_exponent_determined(*growth.exponent[1:])


def _exponents(axis: Axes, panel: SizeSweep, growths: Mapping[Method, SizeExponent]) -> None:
    """Write the exponents at the ends of lines, from the fastest up, without those that would overlap."""
    axis.autoscale_view()  # so that the places are known
    taken: list[float] = []
    ends = sorted(
        (line[-1][1].median, float(line[-1][0]), method)
        for method, line in panel.lines.items()
        if _known(growths.get(method))
    )
    for seconds, size, method in ends[:_MOST_EXPONENTS]:
        _, height = axis.transAxes.inverted().transform(axis.transData.transform((size, seconds)))
        if all(abs(height - other) > _ROOM for other in taken):
            taken.append(float(height))
            axis.annotate(
                f"{growths[method].exponent.value:.2f}", (size, seconds), (7, 0), textcoords="offset points",
                va="center", fontsize=8, color=method_colour(method),
            )  # fmt: skip
