"""Memory: time against the memory of a device, for the problem with the most methods of each family, with
the Pareto front.
"""

from collections.abc import Iterable, Sequence
from functools import partial

from matplotlib.axes import Axes

from scaling.analysis.curves import Timing, family_key, problem, problem_size, size_name
from scaling.analysis.footprint import MemoryPoint, find_front, memory_of
from scaling.analysis.methods import Method, method_of
from scaling.report.drawing import lines
from scaling.report.drawing.palette import method_colour, mode_marker
from scaling.report.drawing.sheet import Drawing, compose

MOST_PANELS = 6


def draw(timings: Iterable[Timing], show_environment: bool) -> Drawing | None:
    """Return a panel for each family with several methods."""
    panels = _panels(timings)
    if not panels:
        return None
    caption = "Memory of one device: the peak of the program where the compiler or the device tells it, else inputs, results and"
    caption += " temporaries. Each mark is a mode, under one setting of memory, on so many devices; the more devices, the larger the"
    caption += " mark. Of each workload the problem with the most modes is drawn; of several the one on the most numbers of devices,"
    caption += " then the largest. The dotted front: nothing else is both faster and smaller."
    if len(panels) > MOST_PANELS:
        caption += f" {MOST_PANELS} of {len(panels)} are drawn."
    painters = [
        partial(_draw, points=points, show_environment=show_environment) for points in panels[:MOST_PANELS]
    ]
    return compose("memory", "Time against memory", caption, painters)


def _panels(timings: Iterable[Timing]) -> list[list[MemoryPoint]]:
    families: dict[tuple, dict[tuple, list[MemoryPoint]]] = {}
    for timing in timings:
        held = memory_of(timing)
        if held and timing.honest and timing.case.kind == "case" and not timing.case.ad_mode.is_value:
            problems = families.setdefault((timing.environment, *family_key(timing.case)), {})
            problems.setdefault(problem(timing.case), []).append(MemoryPoint(held, timing.median, timing))
    made = [max(problems.values(), key=_fullness) for problems in families.values()]
    return [
        points
        for points in made
        if len({method_of(timing.case).without_memory_setting for *_, timing in points}) > 1
    ]


def _fullness(points: Sequence[MemoryPoint]) -> tuple[int, int, int]:
    """Rank problems by methods, then numbers of devices, then size."""
    cases = [timing.case for *_, timing in points]
    return (
        len({method_of(case).without_memory_setting for case in cases}),
        len({case.devices for case in cases}),
        problem_size(cases[0]),
    )


def _draw(axis: Axes, points: Sequence[MemoryPoint], show_environment: bool) -> None:
    axis.set_xscale("log")
    axis.set_yscale("log")
    methods: dict[Method, list[MemoryPoint]] = {}
    for point in sorted(points, key=lambda point: point.timing.case.devices):
        methods.setdefault(method_of(point.timing.case).without_memory_setting, []).append(point)
    counts = sorted({timing.case.devices for *_, timing in points})
    for method, group in methods.items():
        for held, seconds, timing in group:
            size = 4 + 5 * counts.index(timing.case.devices) / max(1, len(counts) - 1)
            first = timing is group[0].timing
            axis.plot(
                held, seconds, label=method.name if first else "_", color=method_colour(method),
                marker=mode_marker(method), markersize=size, markerfacecolor="none", linestyle="none",
            )  # fmt: skip
    best = find_front(points)
    axis.step(
        [point.memory for point in best],
        [point.seconds for point in best],
        where="post",
        zorder=1,
        **lines.GUIDE,
    )
    lines.set_log_axis(axis.xaxis, "B", [point.memory for point in points])
    lines.set_log_axis(axis.yaxis, "s", [point.seconds for point in points])
    axis.set_xlabel("memory of a device")
    axis.set_ylabel("time")
    axis.grid(True)
    last = points[0].timing
    how = f"{counts[0]} to {counts[-1]} devices" if len(counts) > 1 else f"devices: {counts[0]}"
    lines.set_panel_title(
        axis, last.case, f"{size_name(last.case)}, {how}", last.environment if show_environment else ""
    )
