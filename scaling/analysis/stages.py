"""Time to the first result (tracing, compilation, sparsity detection), and the break-even number of calls."""

import math
import statistics

from scaling.analysis.curves import Timing
from scaling.core.record import COMPILING_STAGES

_SPARSITY = ("detect_seconds", "color_seconds")  # sparsity detection, coloring


def stage_seconds(timing: Timing, *names: str) -> float | None:
    """Return the total time of the given stages in seconds, or None if it is unknown.

    The total is the median over processes. `names` are fields of a record, such as "compile_seconds".
    """
    values = ([getattr(record, name) for name in names] for record in timing.records)
    totals = [sum(known) for stages in values if (known := [v for v in stages if v is not None])]
    return statistics.median(totals) if totals else None


def sparsity_seconds(timing: Timing) -> float | None:
    """Return the time of sparsity detection and coloring in seconds, or None if neither was done."""
    return stage_seconds(timing, *_SPARSITY)


def compiling_seconds(timing: Timing) -> float | None:
    """Return the time of tracing, lowering and compiling in seconds, or None if it was not recorded."""
    return stage_seconds(timing, *COMPILING_STAGES)


def first_call_seconds(timing: Timing) -> float | None:
    """Return the time to the first result in seconds, including compilation, or None if it is unknown.

    Sparsity detection and coloring are included. The time is the median over processes.
    """
    names = (*_SPARSITY, *COMPILING_STAGES, "first_seconds")
    called = [record for record in timing.records if record.first_seconds is not None]
    return statistics.median(sum(getattr(r, n) or 0.0 for n in names) for r in called) if called else None


def break_even_calls(timing: Timing, other: Timing) -> int | None:
    """Return the number of calls after which `timing` has taken no more time in total than `other`.

    The total time includes the compilation. Return None if `timing` is not faster per call, or if the time to
    the first result of one of them is unknown.
    """
    first, other_first = first_call_seconds(timing), first_call_seconds(other)
    if first is None or other_first is None or other.median <= timing.median:
        return None
    return 1 + max(0, math.ceil((first - other_first) / (other.median - timing.median)))
