"""Stages: what comes before the first result of a program, and after how many calls that has paid off beside another's.

Knows timings; not what else may tell two programs apart.
"""

import math
import statistics

from scaling.analysis.curves import Timing

_FOUND = ("detect_seconds", "color_seconds")  # where a derivative is sparse: where it is, and which seeds do for it
_MADE = ("trace_seconds", "lower_seconds", "compile_seconds")
_STAGES = (*_FOUND, *_MADE, "first_seconds")


def stage(timing: Timing, *names: str) -> float | None:
    """Seconds of these stages together, the median of the replicates; None where no record tells any of them."""
    told = ([getattr(record, name) for name in names] for record in timing.records)
    each = [sum(known) for stages in told if (known := [seconds for seconds in stages if seconds is not None])]
    return statistics.median(each) if each else None


def found(timing: Timing) -> float | None:
    """Seconds until it is known where a derivative is not zero, and which seeds give it; None where nobody asked."""
    return stage(timing, *_FOUND)


def made(timing: Timing) -> float | None:
    """Seconds of tracing, lowering and compiling."""
    return stage(timing, *_MADE)


def first_call(timing: Timing) -> float | None:
    """Seconds from the plain function to the first result, all stages and the first call; the median of the replicates."""
    each = [sum(getattr(r, name) or 0.0 for name in _STAGES) for r in timing.records if r.first_seconds is not None]
    return statistics.median(each) if each else None


def pays_after(timing: Timing, rival: Timing) -> int | None:
    """How many calls of a program until it has caught up with another that was there sooner; None if never, or if not known."""
    first, before = first_call(timing), first_call(rival)
    if first is None or before is None or rival.median <= timing.median:
        return None
    return 1 + max(0, math.ceil((first - before) / (rival.median - timing.median)))
