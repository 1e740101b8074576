"""Make the tables and summary cards that name the fastest AD mode of each problem, and how certain it is.

A problem is a function with fixed input sizes. The tables contain measured times only, and the cards contain
predicted times if nothing was measured. All text is plain, without HTML or Markdown.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from scaling.analysis.cases import family_key, group_by, least_by
from scaling.analysis.curves import Curve
from scaling.analysis.estimate import format_percentage, format_ratio, format_time_ratio
from scaling.analysis.fastest import FastestMethod, largest_problems
from scaling.analysis.findings import Findings
from scaling.analysis.forecast import Forecast
from scaling.analysis.summary import compare_with_more_devices, describe_by_hand
from scaling.analysis.timings import (
    Timing,
    describe_slower,
    dispatch_floor,
    format_time,
    name_with_blocks,
    note_on_ratio,
    recommend_devices,
)
from scaling.core.case import problem
from scaling.core.formatting import format_duration
from scaling.report.text import Table, make_table

NOTE = (
    "The fastest automatic mode, on its best number of devices. Time: median of one call. Ratio: "
    "time of the runner-up over that of the fastest, from pairs of calls where they alternated. Runner-up: "
    "the fastest of the other modes on as many devices, or of those that are not distinguished, if any. "
    "Intervals are at 95 %. Certainty is about the mode, not the devices. In a time shorter than ten empty "
    "calls, dispatch takes more than a tenth."
)


class Card(NamedTuple):
    """The text of a summary card on the fastest AD method for the largest problem of a function."""

    problem: str  # the result of `problem_name`, such as 'mlp width=8 points=64'
    other_sizes: str  # a note on the other sizes that were measured, or ''
    mode: str  # the fastest method, or both methods if the runner-up is not significantly slower
    layout: str  # such as '1 device, jit'; if `mode` names two methods, also the method of `time`
    time: str  # the time of one call with its 95 % interval
    ratio: str  # the ratio of the runner-up's time to `time`, or ''
    certainty: str  # the result of `describe_certainty`, or 'predicted, not measured'
    notes: tuple[str, ...]  # on other device counts, the speed-up, and the handwritten derivative


def describe_certainty(row: FastestMethod) -> str:
    """Return how certain it is that a method is the fastest, such as 'sure' or 'not sure: ' with reasons."""
    if row.empty:
        return f"not distinguishable from an empty call ({format_duration(dispatch_floor(row.first))})"
    if row.second is None:
        return f"no other {'automatic ' if row.others else ''}mode was measured"
    if row.distinguished:
        return row.certainty
    return "; ".join(filter(None, ["not distinguished from the runner-up", ", ".join(row.doubts)]))


def problem_name(findings: Findings, timing: Timing | FastestMethod) -> str:
    """Return the name of a problem, such as 'mlp width=8 points=64', followed by `Findings.suffix`."""
    return f"{timing.family} {timing.size}{findings.suffix(timing.environment, timing.honest)}"


def name_with_time(timing: Timing) -> str:
    """Return the AD method and the median time of a timing, such as 'jacrev (vmap), 1.20 ms'."""
    return f"{timing.method.name}, {format_duration(timing.median)}"


def answer_table(findings: Findings) -> Table:
    """Return a table with the fastest AD mode of each problem, its device count, and the runner-up."""
    rows = (_format_row(findings, row) for row in _keep_best_device_counts(findings.fastest))
    return make_table("fastest", "Fastest mode of each problem", NOTE, rows)


def device_table(findings: Findings) -> Table:
    """Return a table of the fastest AD mode and the runner-up of each problem on each device count."""
    rows = (_format_row(findings, row) for row in findings.fastest)
    note = "The same for each number of devices."
    return make_table("each", "Fastest mode on each number of devices", note, rows)


def _keep_best_device_counts(rows: Iterable[FastestMethod]) -> list[FastestMethod]:
    return list(least_by(rows, lambda row: row.problem_key, lambda row: row.first.median).values())


def _format_row(findings: Findings, row: FastestMethod) -> dict[str, object]:
    return {
        "problem": problem_name(findings, row),
        "fastest": name_with_blocks(row.first),
        "time": format_time(row.first),
        "devices": row.case.devices,
        "runner-up": row.second and name_with_time(row.second),
        "ratio": row.second and row.ratio and format_ratio(*row.ratio) + note_on_ratio(row.second, row.first),
        "certainty": describe_certainty(row),
    }


def make_cards(findings: Findings) -> list[Card]:
    """Return one summary card per function and environment, or per plan if nothing was measured."""
    if findings.timings:
        problems = largest_problems(findings.fastest)
        return [_measured_card(findings, rows, largest) for rows, largest in problems]
    return [card for forecast in findings.forecasts for card in _planned_cards(forecast)]


def _measured_card(
    findings: Findings, rows: Sequence[FastestMethod], largest: Sequence[FastestMethod]
) -> Card:
    """Return the card of a function. `rows` and `largest` are a pair that `largest_problems` returns."""
    row = largest[0]
    mode, layout, ratio = name_with_blocks(row.first), f"{row.devices_text}, {row.call}", ""
    if row.second is not None:
        second = row.second.method.name
        if not row.distinguished and second != mode:
            mode, layout = f"{mode} or {second}", f"{layout}, by {mode}"
        ratio = describe_slower(second, row.second, row.first)
    notes = [_describe_other_counts(largest)] if row.first.honest and not row.empty else []
    curve, point = findings.curves_of(row.first).get("strong", (None, None))
    if curve and point and not point.is_baseline and not row.empty:
        speedup, efficiency = format_ratio(*point.speedup), format_ratio(*point.efficiency, sign="")
        notes.append(
            f"Speed-up over the same program on {curve.baseline}: {speedup}, efficiency {efficiency}"
        )
    return Card(
        problem_name(findings, row), _describe_other_sizes(rows, row), mode, layout, format_time(row.first),
        ratio, describe_certainty(row), (*notes, *describe_by_hand(row)),
    )  # fmt: skip


def _describe_other_counts(rows: Sequence[FastestMethod]) -> str:
    """Return text that compares the fastest times of a problem on several device counts."""
    first = rows[0].first
    if len(rows) == 1:
        return f"Measured on {first.devices_text} only"
    chosen, doubt = recommend_devices([row.first for row in rows])
    if doubt:
        return f"No number of devices can be recommended: {doubt}"
    if chosen is not first:
        return f"Not distinguished from the fastest on {chosen.devices_text}, which is recommended"
    more, pay = compare_with_more_devices(rows)
    return pay if more else f"Slower on fewer devices; {first.devices_text} are the most measured"


def _describe_other_sizes(rows: Sequence[FastestMethod], row: FastestMethod) -> str:
    sizes = _keep_best_device_counts(rows)
    if len(sizes) < 2:
        return ""
    names = dict.fromkeys(name_with_blocks(each.first) for each in sizes if each.distinguished)
    others = [name for name in names if name != name_with_blocks(row.first)]
    which = "the largest" if row.volume == max(each.volume for each in rows) else "one"
    return f"{which} of {len(sizes)} sizes" + (f"; fastest at others: {', '.join(others)}" if others else "")


def largest_planned(curves: Iterable[Curve]) -> list[list[Curve]]:
    """Return one list per function with the predicted scaling curves of its largest problem.

    Function values come last, and larger problems before smaller ones.
    """
    families = group_by(curves, lambda curve: family_key(curve.case)).values()
    groups = []
    for family in families:
        problems = group_by(family, lambda curve: problem(curve.program[1])).values()
        groups.append(max(problems, key=lambda group: group[0].volume))
    return sorted(groups, key=lambda group: (group[0].case.ad_mode.is_value, -group[0].volume))


def _planned_cards(forecast: Forecast) -> list[Card]:
    curves = (c for c in forecast.curves if not (c.case.ad_mode.is_value or c.case.ad_mode.closed_form))
    return [_planned_card(forecast, group) for group in largest_planned(curves)]


def _planned_card(forecast: Forecast, curves: Sequence[Curve]) -> Card:
    fastest = [min(curve.points, key=lambda point: point.seconds) for curve in curves]
    best, *others = sorted(fastest, key=lambda point: point.seconds)
    timing, ratio = best.timing, ""
    if second := next((p.timing for p in others if p.timing.method.name != timing.method.name), None):
        on = "" if second.case.devices == timing.case.devices else f" on {second.devices_text}"
        ratio = format_time_ratio(f"{second.method.name}{on}", second.median / timing.median)
    return Card(
        f"{timing.family} {timing.size}, planned for {forecast.title}", "", timing.method.name,
        f"{timing.devices_text}, {timing.call}", format_time(timing), ratio, "predicted, not measured",
        (f"Efficiency {format_percentage(best.efficiency.value)}",),
    )  # fmt: skip
