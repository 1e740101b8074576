"""Rank AD methods (`fastest_methods`), compare settings, and recommend device counts."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from scaling.analysis.cases import MEMORY_FIELDS, Subject, is_candidate, with_fields
from scaling.analysis.estimate import Estimate
from scaling.analysis.timings import (
    Timing,
    describe_slower,
    is_empty_call,
    least_time,
    reasons_for_doubt,
    time_ratio,
)
from scaling.core.case import defaults
from scaling.core.grouping import group_by

_SETTINGS = (*MEMORY_FIELDS, "seeds", "mesh", "forward", "overlap")  # fields of a case


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
    def fastest_mode(self) -> str:
        """Return the name of the AD mode that is significantly faster than all others, or ''."""
        if not self.distinguished or not self.runner_up or self.runner_up.base_method == self.base_method:
            return ""
        return self.base_method.name

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
        if self.is_empty_call:
            return "not distinguished from an empty call"
        if self.runner_up is None:
            return "no other mode measured"
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


def compare_settings(timings: Iterable[Timing]) -> list[list[Timing]]:
    """Return the timings of each program with several settings, sorted by time.

    The cases of a program differ only in settings such as `chunk`, `mesh` and `seeds`. Function values are
    omitted.
    """
    derivatives = (timing for timing in timings if not timing.case.ad_mode.is_value)
    groups = group_by(
        derivatives, lambda t: (t.environment, t.honest, with_fields(t.case, **defaults(_SETTINGS)))
    )
    return [sorted(group, key=lambda t: t.median) for group in groups.values() if len(group) > 1]


def find_runner_up(fastest: Timing, others: Iterable[Timing]) -> tuple[Timing | None, Estimate | None]:
    """Return (runner-up, its time divided by the time of `fastest`), or (None, None) if `others` is empty.

    The runner-up is the fastest of `others` that is not significantly slower than `fastest`. If all of
    `others` are significantly slower, it is the fastest of them.
    """
    ratios = ((timing, time_ratio(timing, fastest)) for timing in others)
    return min(ratios, key=lambda pair: (pair[1].above_one, pair[0].median), default=(None, None))


def recommend_devices(timings: Sequence[Timing]) -> tuple[Timing, str]:
    """Return (timing on the recommended device count, '').

    The recommended device count is the smallest one whose time is not significantly longer than the shortest.
    If it is uncertain, return (fastest timing, reason). A reason is, for example, that samples are too few.
    """
    fastest = min(timings, key=lambda timing: timing.median)
    not_slower = (timing for timing in timings if not time_ratio(timing, fastest).above_one)
    fewest = min(not_slower, key=lambda timing: timing.case.devices)
    ratio = time_ratio(fewest, fastest)
    if ratio.low is None:
        return fastest, f"too few samples to compare {fastest.devices_text} with {fewest.devices_text}"
    if not ratio.is_determined:
        return fastest, describe_slower(fewest.method_on_devices, fewest, fastest)
    return fewest, ""


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

    No device count is recommended if only one was measured, if cores are shared or unbound, if the times are
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
