"""Figures of memory: time against memory of a device, by mode and by memory setting, with Pareto fronts."""

from collections.abc import Iterable, Sequence

from scaling.analysis.curves import Timing, family_key, problem, problem_size, size_name
from scaling.analysis.grouping import group_by, interleave_groups
from scaling.analysis.methods import base_method, describe_call, method_of
from scaling.analysis.variants import MemoryPoint, ParetoFront, find_front, memory_of
from scaling.core.case import AUTO
from scaling.core.formatting import count_of, format_bytes
from scaling.report.figures import marks
from scaling.report.figures.marks import Figure, Panel, Row
from scaling.report.figures.theme import BLUE, GREY, VERMILION, LineStyle, method_style

_SOLID = (1, 0)
_KINDS = {
    "on the front": LineStyle("on the front", BLUE, "circle", _SOLID),
    "not on the front": LineStyle("not on the front", GREY, "cross", _SOLID),
    "chunk=auto": LineStyle("chunk=auto", VERMILION, "diamond", _SOLID),
}


def draw_memory(timings: Iterable[Timing], show_environment: bool) -> Figure | None:
    """Return time against memory for the problem with the most methods of each family."""
    groups = _fullest_problems(timings)
    if not groups:
        return None
    methods = {base_method(point.timing.case) for points in groups for point in points}
    styles = marks.unique_styles(map(method_style, methods))
    panels = [_draw_points(points, styles, show_environment) for points in groups]
    caption = (
        "Memory of one device: the peak of the program where the compiler or the device reports it, else "
        "inputs, results and temporaries. Each mark is a mode, under one memory setting and on one number of "
        "devices; the more devices, the larger the mark. Of each workload the problem with the most modes is "
        "drawn; of several the one on the most numbers of devices, then the largest. Dotted: nothing is both "
        "faster and smaller."
    )
    return marks.compose("memory", "Time against memory", caption, panels, styles)


def _fullest_problems(timings: Iterable[Timing]) -> list[list[MemoryPoint]]:
    """Return the points of the problem with the most methods of each family with several methods."""
    points = [
        MemoryPoint(memory, timing.median, timing)
        for timing in timings
        if (memory := memory_of(timing)) and timing.honest
        if timing.case.kind == "case" and not timing.case.ad_mode.is_value
    ]
    families = group_by(points, lambda p: (p.timing.environment, *family_key(p.timing.case))).values()
    by_problem = (group_by(family, lambda p: problem(p.timing.case)).values() for family in families)
    fullest = [max(problems, key=_fullness) for problems in by_problem]
    return [points for points in fullest if _fullness(points)[0] > 1]


def _fullness(points: Sequence[MemoryPoint]) -> tuple[int, int, int]:
    """Return the number of methods, that of device counts, and the size."""
    cases = [point.timing.case for point in points]
    return len(set(map(base_method, cases))), len({c.devices for c in cases}), problem_size(cases[0])


def _draw_points(points: Sequence[MemoryPoint], styles: Sequence[LineStyle], show_environment: bool) -> Panel:
    rows = [_memory_row(base_method(point.timing.case).name, point.memory, point.timing) for point in points]
    x, y = _memory_axes(rows, ())
    counts = sorted({row["devices"] for row in rows})
    areas = [40 + 160 * at / max(1, len(counts) - 1) for at in range(len(counts))]
    size = {
        "field": "devices",
        "type": "ordinal",
        "scale": {"domain": counts, "range": areas},
        "legend": None,
    }
    best = [(point.memory, point.seconds) for point in find_front(points)]
    layers = (
        *marks.draw_guide(best, x, y, interpolate="step-after"),
        marks.draw_points(rows, x, y, styles, size=size),
    )
    first = points[0].timing
    where = f"{counts[0]} to {counts[-1]} devices" if len(counts) > 1 else f"devices: {counts[0]}"
    environment = first.environment if show_environment else ""
    return Panel(marks.panel_title(first.case, f"{size_name(first.case)}, {where}", environment), layers)


def _memory_row(line: str, memory: int, timing: Timing, label: str = "") -> Row:
    row = marks.timing_row(line, timing, memory=memory, devices=timing.case.devices, label=label)
    setting = method_of(timing.case).memory_setting
    return row | {"tip": "\n".join(word for word in (row["tip"], format_bytes(memory), setting) if word)}


def _memory_axes(
    rows: Sequence[Row], fields: Iterable[str], margin: float = 1.5
) -> tuple[marks.Axis, marks.Axis]:
    seconds = marks.finite(rows, "seconds", *fields)
    x = marks.log_axis("memory", "memory of a device", (row["memory"] for row in rows), "B", margin)
    return x, marks.log_axis("seconds", "time", seconds, "s", margin)


def draw_fronts(fronts: Sequence[ParetoFront], show_environment: bool) -> Figure | None:
    """Return time against memory of one program under several memory settings, the largest problems first."""
    if not fronts:
        return None
    ordered = sorted(fronts, key=lambda f: (-problem_size(f.case), -len(f.settings), f.fastest.timing.median))
    varied = interleave_groups(ordered, lambda f: (f.environment, *family_key(f.case)))
    kinds = {_kind(setting) for front in varied[: marks.MOST_PANELS] for setting in front.settings}
    styles = marks.unique_styles(_KINDS[kind] for kind in kinds)
    panels = [_draw_front(front, styles, show_environment) for front in varied]
    caption = (
        "One program on the same devices, under several memory settings: how many seeds and points it takes "
        "at a time, what is kept and where. Bytes of a device: inputs, result and temporaries, as reported "
        "by the compiler; bars are 95 % intervals. On the front: no other setting is both faster, by the "
        "medians, and smaller. Names are written where there is room; the table has all."
    )
    return marks.compose("front", "Memory settings: time against memory", caption, panels, styles)


def _kind(setting: MemoryPoint) -> str:
    if setting.timing.case.chunk == AUTO:
        return "chunk=auto"
    return "on the front" if setting.best else "not on the front"


def _draw_front(front: ParetoFront, styles: Sequence[LineStyle], show_environment: bool) -> Panel:
    ranked = sorted(front.settings, key=lambda s: (s not in (front.fastest, front.smallest), not s.best))
    rows = [
        _memory_row(_kind(setting), setting.memory, setting.timing, _setting_name(setting))
        for setting in ranked
    ]
    memory = [row["memory"] for row in rows]
    x, y = _memory_axes(rows, ("low", "high"), max(1.5, (max(memory) / min(memory)) ** 0.18))
    best = [(setting.memory, setting.timing.median) for setting in front.best]
    (left, _), (_, low) = best[0], best[-1]
    steps = [(left, y.domain[1]), *best, (x.domain[1], low)]
    layers = (
        *marks.draw_guide(steps, x, y, interpolate="step-after"),
        marks.draw_intervals(rows, x, y, styles),
        marks.draw_points(rows, x, y, styles),
        *marks.draw_labels(rows, x, y),
    )
    case = front.fastest.timing.case
    words = (size_name(case), base_method(case).name, describe_call(case), count_of(case.devices, "device"))
    title = marks.panel_title(case, ", ".join(words), front.environment if show_environment else "")
    return Panel(title, layers)


def _setting_name(setting: MemoryPoint) -> str:
    return method_of(setting.timing.case).short_memory_setting or "all at once"
