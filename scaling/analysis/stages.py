"""Stages: the time before the first result of a program, and after how many calls that has paid off."""

import math
import statistics

from scaling.analysis.curves import Timing
from scaling.core.record import COMPILING_STAGES

_SPARSITY = ("detect_seconds", "color_seconds")  # finding the nonzeros of a sparse derivative, and its seeds


def stage_seconds(timing: Timing, *names: str) -> float | None:
    """Return the total seconds of these stages, the median of the replicates; None where no record has
    any of them.
    """
    values = ([getattr(record, name) for name in names] for record in timing.records)
    totals = [sum(known) for stages in values if (known := [v for v in stages if v is not None])]
    return statistics.median(totals) if totals else None


def sparsity_seconds(timing: Timing) -> float | None:
    """Return the seconds of detecting the sparsity pattern and coloring it, or None where there were none."""
    return stage_seconds(timing, *_SPARSITY)


def compiling_seconds(timing: Timing) -> float | None:
    """Return the seconds of tracing, lowering and compiling."""
    return stage_seconds(timing, *COMPILING_STAGES)


def first_call_seconds(timing: Timing) -> float | None:
    """Return the seconds from the plain function to the first result, the median of the replicates."""
    names = (*_SPARSITY, *COMPILING_STAGES, "first_seconds")
    called = [record for record in timing.records if record.first_seconds is not None]
    return statistics.median(sum(getattr(r, n) or 0.0 for n in names) for r in called) if called else None


def break_even_calls(timing: Timing, other: Timing) -> int | None:
    """Return after how many calls a program is faster in total than another; None: never, or not known."""
    first, other_first = first_call_seconds(timing), first_call_seconds(other)
    if first is None or other_first is None or other.median <= timing.median:
        return None
    return 1 + max(0, math.ceil((first - other_first) / (other.median - timing.median)))
