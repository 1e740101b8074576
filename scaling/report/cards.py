"""Cards: the answer at a glance, one for each family: which mode, on how many devices, what it costs, how sure.

Of what was measured; where nothing was, of what was planned. Knows findings and how they are worded; not markup. What the cards
leave out the sentences of answer.py say.
"""

from collections.abc import Sequence
from typing import NamedTuple

from scaling.analysis.answer import heads, named, time_of
from scaling.analysis.certainty import dispatch_floor
from scaling.analysis.curves import Fastest, baseline_name, family, family_name, size_name, volume
from scaling.analysis.findings import Findings, marks
from scaling.analysis.forecast import Forecast, Predicted
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

_MOST = 12


class Card(NamedTuple):
    """The fastest way to the largest problem of a family."""

    family: str
    problem: str
    mode: str
    where: str
    time: str
    sure: bool
    verdict: str
    scaling: str


def cards(found: Findings) -> list[Card]:
    """A card for each family, at most so many."""
    if found.timings:
        return [_card(found, head[0]) for _, head in heads(found)[:_MOST]]
    return [_foretold(each, curves) for each in found.forecasts for curves in _families(each)][:_MOST]


def _families(forecast: Forecast) -> list[list[Predicted]]:
    """The predicted curves of the largest problem of each family; a value alone, and what is written by hand, has no card."""
    families: dict[tuple, dict[tuple, list[Predicted]]] = {}
    for curve in forecast.curves:
        if not (curve.case.ad_mode.is_value or curve.case.ad_mode.closed_form):
            families.setdefault(family(curve.case), {}).setdefault(problem(curve.points[0].record.case), []).append(curve)
    return [max(problems.values(), key=lambda same: volume(same[0].case)) for problems in families.values()]


def _foretold(forecast: Forecast, curves: Sequence[Predicted]) -> Card:
    """The least predicted time, and the least of the other modes."""
    least = {id(curve): min(curve.points, key=lambda point: point.seconds) for curve in curves}
    best = min(curves, key=lambda curve: least[id(curve)].seconds)
    point, mode = least[id(best)], method_of(best.case).name
    rivals = [(least[id(curve)].seconds, method_of(curve.case).name) for curve in curves if method_of(curve.case).name != mode]
    seconds, name = min(rivals, default=(0.0, ""))
    beside = f": {name} takes {format_ratio(seconds / point.seconds)} as long" if rivals else ""
    base = best.points[0].devices
    against = f"efficiency {format_percentage(point.efficiency)} of {count_of(base, 'device')}" if point.devices > base else ""
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


def _card(found: Findings, row: Fastest) -> Card:
    first = row.first
    return Card(
        family_name(first.case) + marks(found, first.environment, first.honest),
        size_name(first.case),
        named(first),
        f"{count_of(first.case.devices, 'device')}, {describe_call(first.case)}",
        time_of(first),
        row.sure,
        _verdict(row),
        _scaling(found, row),
    )


def _verdict(row: Fastest) -> str:
    if row.empty:
        return f"not distinguishable from an empty call ({format_duration(dispatch_floor(row.first))}): no mode is called the fastest"
    if row.second is None:
        return "no other automatic mode was measured" if row.others else "no other mode was measured"
    factor, second = format_ratio(row.ratio, row.ratio_low, row.ratio_high), method_of(row.second.case).name
    if not row.distinguished:
        return f"not sure: {second} is not told apart, {factor} as long"
    sure = "sure" if row.sure else f"not sure ({', '.join(row.doubts)})"
    return f"{sure}: {format_seconds(second, row.ratio, row.ratio_low, row.ratio_high)}"


def _scaling(found: Findings, row: Fastest) -> str:
    """The speed-up over the same program on its baseline, where it is not the baseline itself."""
    point = found.places(row.first).get("strong")
    if point is None or point.is_baseline:
        return ""
    speedup, base = format_ratio(point.speedup, point.speedup_low, point.speedup_high), baseline_name(point.baseline_devices)
    if not is_ratio_determined(point.speedup_low, point.speedup_high):
        return f"speed-up over {base} {speedup}"
    return f"{speedup} as fast as {base}, efficiency {format_number(point.efficiency)}"
