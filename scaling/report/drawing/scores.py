"""Scores: predicted against measured seconds, both axes logarithmic."""

from collections.abc import Sequence
from functools import partial
from typing import Any

from matplotlib.axes import Axes

from scaling.analysis.score import PlannedPair, PlanScores
from scaling.report.drawing import lines
from scaling.report.drawing.palette import BLUE, GREEN, GREY, OCHRE, OLIVE, PURPLE, SKY, VERMILION
from scaling.report.drawing.sheet import Drawing, compose

_SIGNS = (
    (BLUE, "o"), (VERMILION, "s"), (GREEN, "^"), (PURPLE, "D"), (OCHRE, "v"), (SKY, "P"), (OLIVE, "<"),
    (GREY, "x"),
)  # fmt: skip
_FACTOR = 2.0  # the lines parallel to the diagonal
_ROOM = 1.3  # beyond the least and the largest


def draw(scores: PlanScores, stem: str) -> Drawing:
    """Return one panel."""
    caption = (
        "A mark for each case that was both planned and measured on the same kind of device. On the line "
        "what was predicted is what was measured, above it took less than predicted; between the outer "
        "lines the two are within a factor of two."
    )
    if len({pair.timing.case.workload for pair in scores.total.pairs}) > len(_SIGNS):
        caption += f" All workloads after the first {len(_SIGNS) - 1} have one sign."
    title = f"Predicted against measured: {scores.hardware}"
    return compose(f"score-{stem}", title, caption, [partial(_draw, pairs=scores.total.pairs)], height=4.4)


def _draw(axis: Axes, pairs: Sequence[PlannedPair]) -> None:
    axis.set_xscale("log")
    axis.set_yscale("log")
    workloads = sorted({pair.timing.case.workload for pair in pairs})
    for number, (shade, marker) in enumerate(_SIGNS):
        last = number == len(_SIGNS) - 1
        names = workloads[number:] if last else workloads[number : number + 1]
        group = [
            (pair.timing.median, _predicted(pair)) for pair in pairs if pair.timing.case.workload in names
        ]
        if group:
            name = names[0] if len(names) == 1 else f"{len(names)} other workloads"
            axis.plot(
                *zip(*group, strict=True), label=name, color=shade, marker=marker, markersize=4,
                markerfacecolor="none", markeredgewidth=0.8, linestyle="None", alpha=0.8,
            )  # fmt: skip
    both = [seconds for pair in pairs for seconds in (pair.timing.median, _predicted(pair))]
    ends = min(both) / _ROOM, max(both) * _ROOM
    axis.plot(
        ends, ends, label="as predicted", color=lines.GUIDE["color"], linewidth=1, linestyle="-", zorder=1
    )
    for number, factor in enumerate((_FACTOR, 1 / _FACTOR)):
        name_with_blocks: dict[str, Any] = {} if number else {"label": "a factor of two"}
        axis.plot(ends, [factor * end for end in ends], zorder=1, **name_with_blocks, **lines.GUIDE)
    for one, each in ((axis.xaxis, axis.set_xlim), (axis.yaxis, axis.set_ylim)):
        each(*ends)
        lines.set_log_axis(one, "s", ends)
    axis.set_xlabel("measured time")
    axis.set_ylabel("predicted time")
    axis.grid(True)


def _predicted(pair: PlannedPair) -> float:
    """Seconds, the middle of the prediction."""
    return pair.ratio * pair.timing.median
