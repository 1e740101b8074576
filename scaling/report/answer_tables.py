"""Tables and summary cards of the fastest AD mode for each problem, with its runner-up and certainty.

A problem is a function to differentiate at fixed sizes. The tables contain measured times. The cards contain
predicted times if nothing was measured. All text is free of markup.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from scaling.analysis.answer import largest_problems, name_with_blocks
from scaling.analysis.cases import (
    baseline_name,
    describe_call,
    family_key,
    family_name,
    group_by,
    least_by,
    method_of,
    problem_size,
    size_name,
    stem,
)
from scaling.analysis.crossover import FastestMethod
from scaling.analysis.estimate import format_percentage, format_ratio, format_time_ratio
from scaling.analysis.findings import Findings, describe_environment
from scaling.analysis.forecast import Forecast, PredictedCurve
from scaling.analysis.timings import Timing, dispatch_floor, format_time
from scaling.core.case import problem
from scaling.core.formatting import count_of, format_duration
from scaling.report.text import Table, make_table

NOTE = (
    "The fastest automatic mode, on its best number of devices. Time: median of one call. Ratio: "
    "time of the runner-up, the fastest of the other modes on as many devices, over that of the fastest, "
    "from pairs of calls where they alternated. Intervals are at 95 %. Certainty is about the mode, not the "
    "devices."
)


class Card(NamedTuple):
    """The text of a summary card on the fastest AD method for the largest problem of a function.

    Attributes:
        family: The problem, such as 'mlp width=8 points=64'.
        sizes: A note on the other sizes that were measured, or '' if there are none.
        mode: The fastest method, or both methods if the runner-up is not significantly slower.
        where: The device count, JAX API and split, such as '4 devices, shard_map, points split'.
        time: The time of one call with its 95 % interval.
        ratio: The ratio of the runner-up's time to `time`, or '' if there is no runner-up.
        certainty: The result of `describe_certainty`, or 'predicted, not measured'.
        sure: Whether `certainty` is 'sure'.
        speedup: The speed-up, or '' if it is unknown. For a predicted time, the efficiency.
    """

    family: str
    sizes: str
    mode: str
    where: str
    time: str
    ratio: str
    certainty: str
    sure: bool
    speedup: str


def describe_certainty(row: FastestMethod) -> str:
    """Return text that says how certain it is that a method is the fastest.

    The text is 'sure' or 'not sure: ' with the reasons. It is another one if no other method was measured, if
    the runner-up is not significantly slower, or if an empty call takes as long.
    """
    if row.empty:
        return f"not distinguishable from an empty call ({format_duration(dispatch_floor(row.first))})"
    if row.second is None:
        return f"no other {'automatic ' if row.others else ''}mode was measured"
    if row.distinguished:
        return "sure" if row.sure else f"not sure: {', '.join(row.doubts)}"
    return "; ".join(filter(None, ["not distinguished from the runner-up", ", ".join(row.doubts)]))


def problem_name(findings: Findings, timing: Timing) -> str:
    """Return the name of the problem that was timed, such as 'mlp width=8 points=64'.

    The environment is appended if there are several, and 'oversubscribed' if CPU devices shared cores.
    """
    where = describe_environment(findings, timing.environment, timing.honest)
    return f"{family_name(timing.case)} {size_name(timing.case)}{where}"


def name_with_time(timing: Timing) -> str:
    """Return the method and the time of a timing, such as 'jacrev (vmap), 1.20 ms'."""
    return f"{method_of(timing.case).name}, {format_duration(timing.median)}"


def answer_table(findings: Findings) -> Table:
    """Return a table with the fastest AD mode and device count for each problem."""
    rows = (_cells(findings, row) for row in _keep_best_device_counts(findings.fastest))
    return make_table("fastest", "Fastest mode of each problem", NOTE, rows)


def _keep_best_device_counts(rows: Iterable[FastestMethod]) -> list[FastestMethod]:
    best = least_by(
        rows,
        lambda row: (row.first.environment, row.first.honest, problem(row.first.case)),
        lambda row: row.first.median,
    )
    return list(best.values())


def device_table(findings: Findings) -> Table:
    """Return a table with the fastest AD mode for each problem on each device count."""
    rows = (_cells(findings, row) for row in findings.fastest)
    note = "The same for each number of devices."
    return make_table("each", "Fastest mode on each number of devices", note, rows)


def _cells(findings: Findings, row: FastestMethod) -> dict[str, object]:
    first, second = row.first, row.second
    return {
        "problem": problem_name(findings, first),
        "fastest": name_with_blocks(first),
        "time": format_time(first),
        "devices": first.case.devices,
        "runner-up": second and name_with_time(second),
        "ratio": row.ratio and format_ratio(*row.ratio),
        "certainty": describe_certainty(row),
    }


def make_cards(findings: Findings) -> list[Card]:
    """Return the summary cards of a report, one per differentiated function and environment.

    If nothing was measured, return cards with predicted times, one per function and planned hardware.
    """
    if findings.timings:
        return [_measured_card(findings, rows, head[0]) for rows, head in largest_problems(findings)]
    return [card for forecast in findings.forecasts for card in _planned_cards(forecast)]


def _measured_card(findings: Findings, rows: Iterable[FastestMethod], row: FastestMethod) -> Card:
    mode, ratio = name_with_blocks(row.first), ""
    if row.second is not None:
        second = method_of(row.second.case).name
        mode += "" if row.distinguished or second == mode else f" or {second}"
        ratio = format_time_ratio(second, *(row.ratio or ()))
    return Card(
        problem_name(findings, row.first),
        _describe_other_sizes(rows, row),
        mode,
        f"{count_of(row.first.case.devices, 'device')}, {describe_call(row.first.case)}",
        format_time(row.first),
        ratio,
        describe_certainty(row),
        row.sure,
        _describe_speedup(findings, row),
    )


def _describe_other_sizes(rows: Iterable[FastestMethod], row: FastestMethod) -> str:
    best = _keep_best_device_counts(rows)
    if len(best) < 2:
        return ""
    names = dict.fromkeys(name_with_blocks(each.first) for each in best if each.distinguished)
    others = [name for name in names if name != name_with_blocks(row.first)]
    return f"one of {len(best)} sizes" + (f"; fastest at others: {', '.join(others)}" if others else "")


def _describe_speedup(findings: Findings, row: FastestMethod) -> str:
    point = findings.points_of(row.first).get("strong")
    if point is None or point.is_baseline:
        return ""
    return f"Speed-up over {baseline_name(point.baseline_devices)}: {format_ratio(*point.speedup)}"


def largest_planned(curves: Iterable[PredictedCurve]) -> list[list[PredictedCurve]]:
    """Return the predicted curves of each function's largest problem, as one list of curves per problem.

    Curves of function values (without derivatives) come last, and larger problems before smaller ones.
    """
    families = group_by(curves, lambda curve: family_key(curve.case)).values()
    problems = (group_by(f, lambda c: problem(stem(c.case, c.kind))).values() for f in families)
    groups = [max(several, key=lambda same: problem_size(same[0].case)) for several in problems]
    return sorted(groups, key=lambda group: (group[0].case.ad_mode.is_value, -problem_size(group[0].case)))


def _planned_cards(forecast: Forecast) -> list[Card]:
    curves = (c for c in forecast.curves if not (c.case.ad_mode.is_value or c.case.ad_mode.closed_form))
    return [_planned_card(forecast, group) for group in largest_planned(curves)]


def _planned_card(forecast: Forecast, curves: Sequence[PredictedCurve]) -> Card:
    points = sorted((min(c.points, key=lambda p: p.seconds) for c in curves), key=lambda p: p.seconds)
    best, case = points[0], points[0].record.case
    names = [method_of(point.record.case).name for point in points]
    rivals = (pair for pair in zip(names, points, strict=True) if pair[0] != names[0])
    second = next(rivals, None)
    return Card(
        f"{family_name(case)} {size_name(case)}, planned for {forecast.title}",
        "",
        names[0],
        f"{count_of(best.devices, 'device')}, {describe_call(case)}",
        format_duration(best.seconds, *best.interval),
        format_time_ratio(second[0], second[1].seconds / best.seconds) if second else "",
        "predicted, not measured",
        False,
        f"Efficiency {format_percentage(best.efficiency)}",
    )
