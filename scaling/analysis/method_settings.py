"""Compare settings of one AD method: mesh, forward inputs, overlap, coloring, memory (`pareto_fronts`)."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from scaling.analysis.cases import with_fields, without_memory_setting
from scaling.analysis.ranking import Ranking, find_runner_up
from scaling.analysis.timings import Timing, first_call_seconds, least_time, time_ratio
from scaling.core.case import defaults
from scaling.core.formatting import format_count
from scaling.core.grouping import group_by

_COMPARED_FIELDS = ("mesh", "forward", "overlap")  # fields of a case that `compare_settings` compares


@dataclass(frozen=True)
class SettingComparison(Ranking):
    """The fastest timing and the runner-up among cases that differ only in the field `field`.

    The attribute `case` is the case with the default value of this field.
    """

    field: str  # "mesh", "forward" or "overlap"


def compare_settings(timings: Sequence[Timing]) -> list[SettingComparison]:
    """Compare the times of cases that differ only in the field `mesh`, `forward` or `overlap`.

    `mesh` is the shape of the device mesh. `forward` names the inputs that are differentiated in forward
    mode. `overlap` states whether an all-reduce overlaps the computation.
    """
    comparisons = []
    for field in _COMPARED_FIELDS:
        cases = (with_fields(timing.case, **defaults([field])) for timing in timings)
        pairs = group_by(zip(cases, timings, strict=True), lambda p: (p[0], p[1].environment, p[1].honest))
        for subject, subject_pairs in pairs.items():
            first, *others = sorted((timing for _, timing in subject_pairs), key=lambda timing: timing.median)
            if others:
                runner_up, ratio = find_runner_up(first, others)
                comparisons.append(SettingComparison(*subject, first, runner_up, ratio, field))
    return comparisons


def pair_colored(timings: Iterable[Timing]) -> list[tuple[Timing, Timing | None]]:
    """Return (colored, uncolored) pairs of timings, one pair for each JAX timing with colored seeds.

    With colored seeds, one seed computes several columns or rows of a sparse Jacobian. `uncolored` is the
    fastest timing of the same problem without coloring, or None if there is none.
    """
    seeded = (timing for timing in timings if timing.case.ad_mode.has_seeds and timing.case.engine == "jax")
    pairs: list[tuple[Timing, Timing | None]] = []
    for problem_timings in group_by(seeded, lambda timing: timing.comparison_key).values():
        by_coloring = group_by(problem_timings, lambda timing: timing.case.seeds != "identity")
        uncolored = least_time(by_coloring.get(False, []))
        pairs += [(timing, uncolored) for timing in by_coloring.get(True, [])]
    return pairs


def break_even_calls(timing: Timing, other: Timing) -> int | None:
    """Return the smallest number of calls at which the total time of `timing` is at most that of `other`.

    Total times include compilation. Return None if a first call was not timed, or if it is uncertain that
    `timing` is faster per call.
    """
    first, other_first = first_call_seconds(timing), first_call_seconds(other)
    ratio, gain = time_ratio(other, timing), other.median - timing.median
    if first is None or other_first is None or gain <= 0 or not (ratio.above_one and ratio.is_determined):
        return None
    return 1 + max(0, math.ceil((first - other_first) / gain))


def describe_break_even(colored: Timing, uncolored: Timing) -> str:
    """Return the number of evaluations after which coloring saves time, such as '3 evaluations'.

    The total times include compilation. Return 'never' if coloring is significantly slower, 'not
    distinguished' if no difference is significant, and '' if the number is unknown.
    """
    ratio = time_ratio(uncolored, colored)
    if ratio.above_one:
        calls = break_even_calls(colored, uncolored)
        return format_count(calls, "evaluation") if calls else ""
    return "never" if (ratio.high or 1) < 1 else "not distinguished"


def pareto_fronts(timings: Iterable[Timing]) -> list[list[Timing]]:
    """Return the Pareto front of memory and time of each program with several memory settings.

    A front contains the settings that are faster than all settings with less memory, in ascending order of
    memory (`requested_bytes`). Function values, timings on shared CPU cores, and timings with unknown memory
    are omitted.
    """
    derivatives = (timing for timing in timings if timing.honest and not timing.case.ad_mode.is_value)
    measured = (timing for timing in derivatives if timing.requested_bytes)
    by_program = group_by(measured, lambda t: (t.environment, without_memory_setting(t.case)))
    fronts = []
    for settings in by_program.values():
        front: list[Timing] = []
        for timing in sorted(settings, key=lambda timing: (timing.requested_bytes, timing.median)):
            if not front or timing.median < front[-1].median:
                front.append(timing)
        if len(settings) > 1:
            fronts.append(front)
    return fronts
