"""Front: one program under several memory settings, time against memory, with the Pareto front."""

from collections.abc import Sequence
from functools import partial

from matplotlib.axes import Axes

from scaling.analysis.curves import family_key, problem_size, size_name
from scaling.analysis.grouping import group_by, interleave_groups
from scaling.analysis.methods import base_method, describe_call, method_of
from scaling.analysis.pareto import MethodTime, ParetoFront
from scaling.core.case import AUTO
from scaling.core.formatting import count_of
from scaling.report.drawing import lines
from scaling.report.drawing.palette import BLUE, GREY, INK, MUTED, VERMILION
from scaling.report.drawing.sheet import Drawing, compose

MOST_PANELS = 6
_LETTER, _LINE_SPACE = 0.011, 0.045  # width and height of a letter, as fractions of a panel
_BEST, _BEATEN, _AUTO = (
    ("on the front", BLUE, "o"),
    ("not on the front", GREY, "x"),
    ("chunk=auto", VERMILION, "D"),
)


def draw(fronts: Sequence[ParetoFront], show_environment: bool) -> Drawing | None:
    """Return a panel for each program, in turn from each family, the largest problem with the most
    settings first.
    """
    if not fronts:
        return None
    ordered = sorted(fronts, key=lambda f: (-problem_size(f.case), -len(f.settings), f.fastest.timing.median))
    shown = interleave_groups(ordered, lambda f: (f.environment, *family_key(f.case)))[:MOST_PANELS]
    caption = (
        "One program on the same devices, under several memory settings: how many seeds and points it "
        "takes at a time, what is kept and where. Bytes of a device: inputs, result and temporaries, as "
        "reported by the compiler; bars are 95 % intervals. On the front: no other setting is both faster, "
        "by the medians, and smaller. Names stand where there is room; the table has all."
    )
    if len(fronts) > len(shown):
        caption += f" {len(shown)} of {len(fronts)} are drawn; the others are in the table."
    painters = [partial(_draw, front=front, show_environment=show_environment) for front in shown]
    return compose("front", "Memory settings: time against memory", caption, painters, height=3.8)


def _draw(axis: Axes, front: ParetoFront, show_environment: bool) -> None:
    axis.set_xscale("log")
    axis.set_yscale("log")
    for (name, colour, marker), group in group_by(front.settings, _kind).items():
        rows = [(one.timing.median, *_interval(one)) for one in group]
        errors = [[max(0.0, row[0] - row[1]) for row in rows], [max(0.0, row[2] - row[0]) for row in rows]]
        axis.errorbar(
            [one.memory for one in group], [row[0] for row in rows], yerr=errors, label=name, color=colour,
            marker=marker, linestyle="none", markersize=5, elinewidth=1, capsize=2,
        )  # fmt: skip
    left, right = _limits([one.memory for one in front.settings])
    low, high = _limits([end for one in front.settings for end in (one.timing.median, *_interval(one))])
    memory, seconds = [s.memory for s in front.best], [s.timing.median for s in front.best]
    steps = [memory[0], *memory, right], [high, *seconds, seconds[-1]]
    axis.step(*steps, where="post", color=MUTED, linewidth=1.2, zorder=1)
    axis.set_xlim(left, right)
    axis.set_ylim(low, high)
    _write_names(axis, front)
    lines.set_log_axis(axis.xaxis, "B", [left, right])
    lines.set_log_axis(axis.yaxis, "s", [low, high])
    axis.set_xlabel("memory of a device")
    axis.set_ylabel("time")
    axis.grid(True)
    case = front.fastest.timing.case
    words = (size_name(case), base_method(case).name, describe_call(case), count_of(case.devices, "device"))
    lines.set_panel_title(axis, case, ", ".join(words), front.environment if show_environment else "")


def _kind(setting: MethodTime) -> tuple[str, str, str]:
    return _AUTO if setting.timing.case.chunk == AUTO else _BEST if setting.best else _BEATEN


def _interval(setting: MethodTime) -> tuple[float, float]:
    return setting.timing.interval or (setting.timing.median, setting.timing.median)


def _limits(values: Sequence[float]) -> tuple[float, float]:
    """Return the limits of a logarithmic axis, with a margin for names."""
    margin = max(1.5, (max(values) / min(values)) ** 0.18)
    return min(values) / margin, max(values) * margin


def _write_names(axis: Axes, front: ParetoFront) -> None:
    """Write names at the marks, those of the front first; a name that would cover another one is left out."""
    written: list[tuple[float, float, float]] = []  # left, right, height
    ranked = sorted(
        front.settings, key=lambda one: (one not in (front.fastest, front.smallest), not one.best)
    )
    for setting in ranked:
        at = (setting.memory, setting.timing.median)
        name = method_of(setting.timing.case).short_memory_setting or "all at once"
        x, y = axis.transAxes.inverted().transform(axis.transData.transform(at))
        left, right = (x - _LETTER * len(name), x) if x > 0.7 else (x, x + _LETTER * len(name))
        if any(
            start < right and left < end and abs(y - height) < _LINE_SPACE for start, end, height in written
        ):
            continue
        written.append((left, right, y))
        axis.annotate(
            name, at, (-4 if x > 0.7 else 4, 4), textcoords="offset points",
            ha="right" if x > 0.7 else "left", va="bottom", fontsize=7.5, color=INK,
        )  # fmt: skip
