"""Cards: the answer at a glance, one for each family: which mode, on how many devices, what it costs, how sure.

Of what was measured; where nothing was, of what was planned. Knows findings and how they are worded; not markup. What the cards
leave out the sentences of answer.py say.
"""

from collections.abc import Sequence
from typing import NamedTuple

from scaling.case import ANALYTIC, problem
from scaling.reading.answer import heads, time_of
from scaling.reading.curves import Fastest, family, family_name, size_name, volume
from scaling.reading.findings import Findings, marks
from scaling.reading.forecast import Forecast, Predicted
from scaling.reading.ways import call_of, way_of
from scaling.words import counted, duration, number, ratio, share

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
        if curve.case.mode not in ("value", *ANALYTIC):
            families.setdefault(family(curve.case), {}).setdefault(problem(curve.points[0].record.case), []).append(curve)
    return [max(problems.values(), key=lambda same: volume(same[0].case)) for problems in families.values()]


def _foretold(forecast: Forecast, curves: Sequence[Predicted]) -> Card:
    """The least predicted time, and the least of the other modes."""
    least = {id(curve): min(curve.points, key=lambda point: point.seconds) for curve in curves}
    best = min(curves, key=lambda curve: least[id(curve)].seconds)
    point, mode = least[id(best)], way_of(best.case).name
    rivals = [(least[id(curve)].seconds, way_of(curve.case).name) for curve in curves if way_of(curve.case).name != mode]
    seconds, name = min(rivals, default=(0.0, ""))
    beside = f": {name} takes {ratio(seconds / point.seconds)} as long" if rivals else ""
    base = best.points[0].devices
    against = f"efficiency {share(point.efficiency)} of {counted(base, 'device')}" if point.devices > base else ""
    return Card(
        f"{family_name(best.case)}, planned for {forecast.title}",
        size_name(point.record.case),
        mode,
        f"{counted(point.devices, 'device')}, {call_of(best.case)}",
        duration(point.seconds, *point.interval),
        False,
        f"predicted, not measured{beside}",
        against,
    )


def _card(found: Findings, row: Fastest) -> Card:
    first = row.first
    return Card(
        family_name(first.case) + marks(found, first.environment, first.honest),
        size_name(first.case),
        way_of(first.case).name,
        f"{counted(first.case.devices, 'device')}, {call_of(first.case)}",
        time_of(first),
        row.sure,
        _verdict(row),
        _scaling(found, row),
    )


def _verdict(row: Fastest) -> str:
    if row.second is None:
        return "no other mode was measured"
    factor, second = ratio(row.ratio, row.ratio_low, row.ratio_high), way_of(row.second.case).name
    return f"sure: {second} takes {factor} as long" if row.sure else f"not sure: {second} is not told apart, {factor} as long"


def _scaling(found: Findings, row: Fastest) -> str:
    """The speed-up over one device with the same program, where there is one."""
    first = row.first
    point = found.places(first).get("strong")
    if point is None or point.devices == 1 or point.speedup is None:
        return ""
    speedup = ratio(point.speedup, point.speedup_low, point.speedup_high)
    return f"{speedup} as fast as one device, efficiency {number(point.efficiency or 0)}"
