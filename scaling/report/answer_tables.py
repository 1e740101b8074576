"""Make the tables that name the fastest AD mode of each problem, and the answers of plans, in plain text.

A problem is a function with fixed input sizes. The tables contain measured times only.
"""

from collections.abc import Iterable, Sequence

from scaling.analysis.answers import FastestAnswer, describe_certainty, problem_name
from scaling.analysis.cases import family_key, group_by
from scaling.analysis.curves import Curve
from scaling.analysis.estimate import format_percentage, format_ratio, format_time_ratio
from scaling.analysis.fastest import FastestMethod, best_device_counts
from scaling.analysis.findings import Findings
from scaling.analysis.forecast import Forecast
from scaling.analysis.timings import (
    Timing,
    format_time,
    name_with_blocks,
)
from scaling.core.case import problem
from scaling.core.formatting import format_duration
from scaling.report.text import Table, make_table

NOTE = (
    "The fastest automatic mode, on its best number of devices. Time: of one call. Ratio: time of the "
    "runner-up over that of the fastest, from the processes where they alternated, if any. Runner-up: "
    "the fastest of the other modes on as many devices, or of those that are not distinguished, if any. "
    "Intervals are at 95 %. Certainty is about the mode, not the devices. In a time shorter than ten empty "
    "calls, dispatch takes more than a tenth."
)


def name_with_time(timing: Timing) -> str:
    """Return the AD method and the time of a timing, such as 'jacrev (vmap), 1.20 ms'."""
    return f"{timing.method.name}, {format_duration(timing.median)}"


def answer_table(findings: Findings) -> Table:
    """Return a table with the fastest AD mode of each problem, its device count, and the runner-up."""
    rows = (_format_row(findings, row) for row in best_device_counts(findings.fastest))
    return make_table("fastest", "Fastest mode of each problem", NOTE, rows)


def device_table(findings: Findings) -> Table:
    """Return a table of the fastest AD mode and the runner-up of each problem on each device count."""
    rows = (_format_row(findings, row) for row in findings.fastest)
    note = "The same for each number of devices."
    return make_table("each", "Fastest mode on each number of devices", note, rows)


def _format_row(findings: Findings, row: FastestMethod) -> dict[str, object]:
    return {
        "problem": problem_name(findings, row),
        "fastest": name_with_blocks(row.first),
        "time": format_time(row.first),
        "devices": row.case.devices,
        "runner-up": row.second and name_with_time(row.second),
        "ratio": row.second and row.ratio and format_ratio(*row.ratio),
        "certainty": describe_certainty(row),
    }


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


def predicted_answers(forecast: Forecast) -> list[FastestAnswer]:
    """Return one answer per function on the predicted times of its largest problem."""
    curves = (c for c in forecast.curves if not (c.case.ad_mode.is_value or c.case.ad_mode.closed_form))
    return [_predicted_answer(forecast, group) for group in largest_planned(curves)]


def _predicted_answer(forecast: Forecast, curves: Sequence[Curve]) -> FastestAnswer:
    fastest = [min(curve.points, key=lambda point: point.seconds) for curve in curves]
    best, *others = sorted(fastest, key=lambda point: point.seconds)
    timing = best.timing
    layout, ratio = f"{timing.devices_text}, {timing.call}", ""
    if second := next((p.timing for p in others if p.timing.method.name != timing.method.name), None):
        on = "" if second.case.devices == timing.case.devices else f" on {second.devices_text}"
        ratio = format_time_ratio(f"{second.method.name}{on}", second.median / timing.median)
    return FastestAnswer(
        f"{timing.family} {timing.size}, planned for {forecast.title}", timing.method.name,
        format_time(timing), layout, ratio, "predicted, not measured",
        (f"Efficiency {format_percentage(best.efficiency.value)}",),
    )  # fmt: skip
