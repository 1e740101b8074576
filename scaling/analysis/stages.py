"""Time to the first result (tracing, compilation, sparsity detection), and the break-even number of calls."""

import math
import statistics

from scaling.analysis.curves import Timing
from scaling.core.record import COMPILING_STAGES

_SPARSITY = ("detect_seconds", "color_seconds")  # sparsity detection, coloring


def stage_seconds(timing: Timing, *names: str) -> float | None:
    """Return the median over processes of the total seconds of the given stages, or None if unknown."""
    values = ([getattr(record, name) for name in names] for record in timing.records)
    totals = [sum(known) for stages in values if (known := [v for v in stages if v is not None])]
    return statistics.median(totals) if totals else None


def sparsity_seconds(timing: Timing) -> float | None:
    """Return the seconds of sparsity detection and coloring, or None if there were none."""
    return stage_seconds(timing, *_SPARSITY)


def compiling_seconds(timing: Timing) -> float | None:
    """Return the seconds of tracing, lowering and compiling, or None if they were not recorded."""
    return stage_seconds(timing, *COMPILING_STAGES)


def first_call_seconds(timing: Timing) -> float | None:
    """Return the median seconds to the first result, compilation included, or None if they are unknown."""
    names = (*_SPARSITY, *COMPILING_STAGES, "first_seconds")
    called = [record for record in timing.records if record.first_seconds is not None]
    return statistics.median(sum(getattr(r, n) or 0.0 for n in names) for r in called) if called else None


def break_even_calls(timing: Timing, other: Timing) -> int | None:
    """Return after how many calls `timing`, with compilation, is faster than `other`, or None if never."""
    first, other_first = first_call_seconds(timing), first_call_seconds(other)
    if first is None or other_first is None or other.median <= timing.median:
        return None
    return 1 + max(0, math.ceil((first - other_first) / (other.median - timing.median)))
