"""Certainty: whether a difference between two timings can be told, and what speaks against calling it sure.

Takes timings and gives values. Which intervals of a ratio or an exponent say nothing is defined in words.py.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from scaling.analysis.curves import Timing

FLOORS = 10  # a time under so many empty calls says more about the call than about the work
DISTURBED = 0.2  # the share of marked samples from which a timing counts as disturbed


def dispatch_floor(timing: "Timing") -> float:
    """Return the seconds of an empty call beside a timing, or 0 where none was measured."""
    return max((record.floor_seconds or 0.0 for record in timing.records), default=0.0)


def near_floor(timing: "Timing") -> float | None:
    """Return the seconds of the empty call that a timing is less than ten of; None where it is longer or none was measured."""
    floor = dispatch_floor(timing)
    return floor if timing.median < FLOORS * floor else None


def is_empty_call(timing: "Timing") -> bool:
    """Return whether a timing is not distinguishable from an empty call: its interval reaches down to the floor."""
    low = timing.interval[0] if timing.interval else timing.median
    return low <= dispatch_floor(timing)


def disturbed_share(timing: "Timing") -> float:
    """Return the share of the samples whose turns were marked as throttled or under foreign load."""
    turns = ((count, place, record.marked.values()) for record in timing.records for place, count in enumerate(record.turns))
    marked = sum(count for count, place, kinds in turns if any(place in places for places in kinds))
    return marked / len(timing.seconds)


def marks_of(timing: "Timing") -> list[str]:
    """Return the names of the marks on the turns of a timing, in words."""
    return sorted({mark.replace("_", " ") for record in timing.records for mark in record.marked})


def doubts(fast: "Timing", slow: "Timing") -> tuple[str, ...]:
    """Return what speaks against calling one timing surely faster than another, in words; nothing where nothing does."""
    floor = max(map(dispatch_floor, (fast, slow)))
    found = []
    if fast.median < FLOORS * floor:
        found.append("under ten empty calls")
    elif slow.median - fast.median < FLOORS * floor:
        found.append("they differ by less than ten empty calls")
    if min(fast.replicates, slow.replicates) < 2:
        found.append("one process")
    disturbed = [timing for timing in (fast, slow) if disturbed_share(timing) > DISTURBED]
    found += dict.fromkeys(mark for timing in disturbed for mark in marks_of(timing))
    return tuple(found)
