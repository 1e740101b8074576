"""Cards: the answer at a glance, one for each family: which mode, on how many devices, what it costs, how sure.

Knows findings and how they are worded; not markup. What the cards leave out the sentences of answer.py say.
"""

from typing import NamedTuple

from scaling.reading.answer import heads, time_of
from scaling.reading.curves import Fastest, family_name, size_name
from scaling.reading.findings import Findings, marks
from scaling.reading.ways import call_of, way_of
from scaling.words import counted, number, ratio

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
    return [_card(found, head[0]) for _, head in heads(found)[:_MOST]]


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
