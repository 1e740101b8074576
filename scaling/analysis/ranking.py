"""Rank AD methods (`Ranking`) and device counts; compare meshes, coloring, memory (`pareto_fronts`)."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from scaling.analysis.cases import Subject, is_candidate, with_fields, without_memory_setting
from scaling.analysis.estimate import Estimate
from scaling.analysis.timings import (
    Timing,
    break_even_calls,
    is_empty_call,
    least_time,
    reasons_for_doubt,
    recommend_devices,
    time_ratio,
)
from scaling.core.case import defaults
from scaling.core.formatting import format_count
from scaling.core.grouping import group_by

OUT_OF_MEMORY_REASONS = ("too_large", "dominated", "out_of_memory")
_COMPARED_FIELDS = ("mesh", "forward", "overlap")  # fields of a case that `compare_settings` compares


@dataclass(frozen=True)
class Ranking(Subject):
    """The fastest timing of a problem, its runner-up, and the ratio of their times."""

    fastest: Timing
    runner_up: Timing | None  # with another method, or else another memory setting; see `find_runner_up`
    ratio: Estimate | None  # time of `runner_up` divided by the time of `fastest`

    @property
    def is_empty_call(self) -> bool:
        """Return whether the shortest time may be only the overhead of a call (`timings.is_empty_call`)."""
        return is_empty_call(self.fastest)

    @property
    def distinguished(self) -> bool:
        """Return whether the fastest timing is significantly faster than the runner-up.

        Return False if there is no runner-up, or if `is_empty_call` is true.
        """
        return self.ratio is not None and self.ratio.above_one and not self.is_empty_call

    @property
    def doubts(self) -> tuple[str, ...]:
        """Return the reasons why the ranking may be wrong, such as 'measured in one process'."""
        if self.runner_up is None or self.ratio is None:
            return ()
        wide = () if self.ratio.is_determined else ("the ratio is not determined",)
        return (*reasons_for_doubt(self.fastest, self.runner_up), *wide)

    @property
    def certainty(self) -> str:
        """Return the certainty of the fastest method as text, such as 'sure' or 'not distinguished'."""
        if self.runner_up is None or self.is_empty_call:
            return "not distinguished from an empty call" if self.is_empty_call else "no other mode measured"
        if not self.distinguished:
            return "not distinguished"
        return f"not sure: {', '.join(self.doubts)}" if self.doubts else "sure"


def fastest_methods(timings: Iterable[Timing]) -> list[Ranking]:
    """Return the fastest AD method and its runner-up for each problem, device count and environment."""
    groups = group_by((t for t in timings if not t.case.ad_mode.is_value), lambda t: t.comparison_key)
    rankings = []
    for problem_timings in groups.values():
        candidates = [timing for timing in problem_timings if is_candidate(timing.case)]
        if fastest := least_time(candidates):
            other_modes = [timing for timing in candidates if timing.base_method != fastest.base_method]
            other_settings = [timing for timing in candidates if timing.method != fastest.method]
            runner_up = find_runner_up(fastest, other_modes or other_settings)
            rankings.append(Ranking(fastest.case, fastest.environment, fastest.honest, fastest, *runner_up))
    return rankings


def find_runner_up(fastest: Timing, others: Iterable[Timing]) -> tuple[Timing | None, Estimate | None]:
    """Return (runner-up, its time divided by the time of `fastest`), or (None, None) if `others` is empty.

    The runner-up is the fastest of `others` that is not significantly slower than `fastest`. If all of
    `others` are significantly slower, it is the fastest of them.
    """
    ratios = ((timing, time_ratio(timing, fastest)) for timing in others)
    return min(ratios, key=lambda pair: (pair[1].above_one, pair[0].median), default=(None, None))


class Recommendation(NamedTuple):
    """The recommended device count of a problem. If none is recommended, `certainty` is ''."""

    ranking: Ranking  # on the recommended device count, otherwise on the fastest
    certainty: str  # of the device count, in the words of `Ranking.certainty`
    doubt: str  # why no device count is recommended, or ''


def join_certainties(of_method: str, of_devices: str) -> str:
    """Join a text about the fastest method and a text about its device count.

    For example, 'sure' and 'not sure: ...' become 'sure; device count not sure: ...'. `of_devices` is omitted
    if it is '' or equals `of_method`.
    """
    return of_method if of_devices in ("", of_method) else f"{of_method}; device count {of_devices}"


def recommend_ranking(rankings: Sequence[Ranking]) -> Recommendation:
    """Return the recommended device count of a problem, from one `Ranking` per device count.

    No device count is recommended if only one was measured, if devices are oversubscribed, if the times are
    too uncertain, or if the shortest time may be that of an empty call.
    """
    fastest = min(rankings, key=lambda ranking: ranking.fastest.median)
    if fastest.is_empty_call or not fastest.honest or len(rankings) == 1:
        return Recommendation(fastest, "", "")
    timings = [ranking.fastest for ranking in rankings]
    timing, doubt = recommend_devices(timings)
    recommended = next(ranking for ranking in rankings if ranking.fastest is timing)
    runner_up, ratio = find_runner_up(timing, (other for other in timings if other is not timing))
    across_counts = replace(recommended, runner_up=runner_up, ratio=ratio)
    return Recommendation(recommended, "" if doubt else across_counts.certainty, doubt)


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
                comparisons.append(SettingComparison(*subject, first, *find_runner_up(first, others), field))
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
