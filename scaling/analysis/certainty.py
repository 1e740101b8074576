"""Reasons to doubt a timing: close to an empty call, only one process, throttling, or foreign load."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from scaling.analysis.curves import Timing

FLOORS = 10  # a time shorter than this many empty calls is mostly dispatch latency
# Labels of doubts, which are the same in tables, sentences and warnings.
SHORT, ONE_PROCESS = "shorter than ten empty calls", "measured in one process"
DISTURBED = 0.2  # a time with a larger fraction of disturbed samples is doubtful


def dispatch_floor(timing: "Timing") -> float:
    """Return the dispatch latency in seconds: the time of an empty call, or 0 if none was measured."""
    return max((record.floor_seconds or 0.0 for record in timing.records), default=0.0)


def near_floor(timing: "Timing") -> float | None:
    """Return the time of an empty call in seconds if a timing is shorter than ten of them, otherwise None."""
    floor = dispatch_floor(timing)
    return floor if timing.median < FLOORS * floor else None


def is_empty_call(timing: "Timing") -> bool:
    """Return whether a measured time cannot be distinguished from the time of an empty call.

    This is the case if the lower limit of the 95 % confidence interval is at most the time of an empty call.
    If the interval is unknown, the median is compared instead.
    """
    low = timing.interval[0] if timing.interval else timing.median
    return low <= dispatch_floor(timing)


def disturbed_share(timing: "Timing") -> float:
    """Return the fraction of samples that were taken while the host was throttled or under foreign load."""
    marked = 0
    for record in timing.records:
        turns = {turn for turns in record.marked.values() for turn in turns}
        marked += sum(count for turn, count in enumerate(record.turns) if turn in turns)
    return marked / len(timing.seconds)


def marks_of(timing: "Timing") -> list[str]:
    """Return the sorted names of the disturbances during a measurement, such as 'foreign load'."""
    return sorted({mark.replace("_", " ") for record in timing.records for mark in record.marked})


def doubts(fast: "Timing", slow: "Timing") -> tuple[str, ...]:
    """Return the reasons to doubt that `fast` is faster than `slow`, such as 'foreign load', or ()."""
    floor = max(map(dispatch_floor, (fast, slow)))
    reasons = []
    if fast.median < FLOORS * floor:
        reasons.append(SHORT)
    elif slow.median - fast.median < FLOORS * floor:
        reasons.append("they differ by less than ten empty calls")
    if min(fast.replicates, slow.replicates) < 2:
        reasons.append(ONE_PROCESS)
    disturbed = [timing for timing in (fast, slow) if disturbed_share(timing) > DISTURBED]
    return (*reasons, *dict.fromkeys(mark for timing in disturbed for mark in marks_of(timing)))
