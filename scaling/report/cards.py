"""Cards: the answer for each family: which mode, on how many devices, its time, how sure.

From measurements; where nothing was measured, from plans. Knows no markup.
"""

from collections.abc import Sequence
from typing import NamedTuple

from scaling.analysis.answer import format_time, largest_problems, name_with_blocks
from scaling.analysis.certainty import dispatch_floor
from scaling.analysis.curves import (
    FastestMethod,
    baseline_name,
    family_key,
    family_name,
    problem_size,
    size_name,
)
from scaling.analysis.findings import Findings, describe_environment
from scaling.analysis.forecast import Forecast, PredictedCurve
from scaling.analysis.grouping import group_by
from scaling.analysis.methods import describe_call, method_of
from scaling.core.case import problem
from scaling.core.formatting import (
    count_of,
    format_duration,
    format_number,
    format_percentage,
    format_ratio,
    format_seconds,
    is_ratio_determined,
)

_MOST_CARDS = 12


class Card(NamedTuple):
    """The fastest method for the largest problem of a family."""

    family: str
    problem: str
    mode: str
    where: str
    time: str
    sure: bool
    verdict: str
    scaling: str


def make_cards(findings: Findings) -> list[Card]:
    """Return a card for each family, at most _MOST_CARDS."""
    if findings.timings:
        return [_measured_card(findings, head[0]) for _, head in largest_problems(findings)[:_MOST_CARDS]]
    return [_planned_card(each, curves) for each in findings.forecasts for curves in _group_by_family(each)][
        :_MOST_CARDS
    ]


def _group_by_family(forecast: Forecast) -> list[list[PredictedCurve]]:
    """Return the predicted curves of the largest problem of each family; values and derivatives written
    by hand are left out.
    """
    modes = (
        curve
        for curve in forecast.curves
        if not (curve.case.ad_mode.is_value or curve.case.ad_mode.closed_form)
    )
    problems = group_by(modes, lambda c: (family_key(c.case), problem(c.points[0].record.case)))
    families = group_by(problems.items(), lambda item: item[0][0]).values()
    return [
        max((same for _, same in items), key=lambda same: problem_size(same[0].case)) for items in families
    ]


def _planned_card(forecast: Forecast, curves: Sequence[PredictedCurve]) -> Card:
    """Return the card with the least predicted time, and the least of the other modes."""
    least = {id(curve): min(curve.points, key=lambda point: point.seconds) for curve in curves}
    best = min(curves, key=lambda curve: least[id(curve)].seconds)
    point, mode = least[id(best)], method_of(best.case).name
    rivals = [
        (least[id(curve)].seconds, method_of(curve.case).name)
        for curve in curves
        if method_of(curve.case).name != mode
    ]
    seconds, name = min(rivals, default=(0.0, ""))
    beside = f": {name} takes {format_ratio(seconds / point.seconds)} as long" if rivals else ""
    base = best.points[0].devices
    against = (
        f"efficiency {format_percentage(point.efficiency)} of {count_of(base, 'device')}"
        if point.devices > base
        else ""
    )
    return Card(
        f"{family_name(best.case)}, planned for {forecast.title}",
        size_name(point.record.case),
        mode,
        f"{count_of(point.devices, 'device')}, {describe_call(best.case)}",
        format_duration(point.seconds, *point.interval),
        False,
        f"predicted, not measured{beside}",
        against,
    )


def _measured_card(findings: Findings, row: FastestMethod) -> Card:
    first = row.first
    return Card(
        family_name(first.case) + describe_environment(findings, first.environment, first.honest),
        size_name(first.case),
        name_with_blocks(first),
        f"{count_of(first.case.devices, 'device')}, {describe_call(first.case)}",
        format_time(first),
        row.sure,
        _describe_verdict(row),
        _describe_speedup(findings, row),
    )


def _describe_verdict(row: FastestMethod) -> str:
    if row.empty:
        return (
            f"not distinguishable from an empty call ({format_duration(dispatch_floor(row.first))}): no "
            "mode is called the fastest"
        )
    if row.second is None:
        return "no other automatic mode was measured" if row.others else "no other mode was measured"
    factor, second = format_ratio(row.ratio, row.ratio_low, row.ratio_high), method_of(row.second.case).name
    if not row.distinguished:
        return f"not sure: {second} is not distinguished, {factor} as long"
    sure = "sure" if row.sure else f"not sure ({', '.join(row.doubts)})"
    return f"{sure}: {format_seconds(second, row.ratio, row.ratio_low, row.ratio_high)}"


def _describe_speedup(findings: Findings, row: FastestMethod) -> str:
    """Return the speed-up over the same program on its baseline, or '' for the baseline itself."""
    point = findings.points_of(row.first).get("strong")
    if point is None or point.is_baseline:
        return ""
    speedup, base = (
        format_ratio(point.speedup, point.speedup_low, point.speedup_high),
        baseline_name(point.baseline_devices),
    )
    if not is_ratio_determined(point.speedup_low, point.speedup_high):
        return f"speed-up over {base} {speedup}"
    return f"{speedup} as fast as {base}, efficiency {format_number(point.efficiency)}"
