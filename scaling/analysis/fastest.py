"""Rank the timings of each problem to find the fastest AD method and the runner-up (`FastestMethod`)."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from scaling.analysis.cases import Subject, group_by, is_candidate, least_by
from scaling.analysis.estimate import Estimate
from scaling.analysis.timings import Timing, is_empty_call, least_time, reasons_for_doubt, time_ratio


@dataclass(frozen=True)
class Ranking(Subject):
    """The fastest of several timings, compared with the runner-up."""

    first: Timing
    second: Timing | None  # with another method, or else another memory setting; see `find_runner_up`
    ratio: Estimate | None  # time of `second` divided by the time of `first`

    @property
    def empty(self) -> bool:
        """Return whether the fastest time cannot be distinguished from the time of an empty call."""
        return is_empty_call(self.first)

    @property
    def distinguished(self) -> bool:
        """Return whether the runner-up is significantly slower, and the fastest is not an empty call."""
        return self.ratio is not None and self.ratio.above_one and not self.empty

    @property
    def doubts(self) -> tuple[str, ...]:
        """Return the reasons why `first` may not be the fastest, such as 'measured in one process'."""
        if self.second is None or self.ratio is None:
            return ()
        wide = () if self.ratio.is_determined else ("the ratio is not determined",)
        return (*reasons_for_doubt(self.first, self.second), *wide)

    @property
    def sure(self) -> bool:
        """Return whether `first` is significantly faster than the runner-up and `doubts` is empty."""
        return self.distinguished and not self.doubts

    @property
    def certainty(self) -> str:
        """Return text on the certainty that `first` is the fastest, such as 'sure' or 'not distinguished'."""
        if self.second is None or self.empty:
            return "an empty call" if self.empty else "no other method"
        if not self.distinguished:
            return "not distinguished"
        return "sure" if self.sure else f"not sure: {', '.join(self.doubts)}"


@dataclass(frozen=True)
class FastestMethod(Ranking):
    """The fastest JAX method for one problem and device count, compared with the runner-up."""

    by_hand: Estimate | None  # time of `first` divided by the time of the handwritten derivative
    others: tuple[Timing, ...]  # timings of the same problem that are excluded by `is_candidate`


def fastest_methods(timings: Iterable[Timing]) -> list[FastestMethod]:
    """Return the fastest JAX method for each problem, device count and environment, with its runner-up."""
    groups = group_by((t for t in timings if not t.case.ad_mode.is_value), lambda t: t.comparison_key)
    methods = []
    for group in groups.values():
        rivals = [timing for timing in group if is_candidate(timing.case)]
        if first := least_time(rivals):
            second, ratio = find_runner_up(first, _other_methods(first, rivals))
            by_hand = compare_with_handwritten(first, group)
            excluded = tuple(t for t in group if not is_candidate(t.case))
            subject = (first.case, first.environment, first.honest)
            methods.append(FastestMethod(*subject, first, second, ratio, by_hand, excluded))
    return methods


def _other_methods(first: Timing, rivals: Sequence[Timing]) -> list[Timing]:
    other_modes = [timing for timing in rivals if timing.base_method != first.base_method]
    return other_modes or [timing for timing in rivals if timing.method != first.method]


def find_runner_up(first: Timing, others: Iterable[Timing]) -> tuple[Timing | None, Estimate | None]:
    """Return the runner-up among `others`, and its time divided by the time of `first`.

    The runner-up is the shortest timing that is not significantly longer than `first`. If all timings are
    significantly longer, it is the shortest of all. If `others` is empty, return (None, None).
    """
    ratios = ((timing, time_ratio(timing, first)) for timing in others)
    return min(ratios, key=lambda pair: (pair[1].above_one, pair[0].median), default=(None, None))


def compare_with_handwritten(timing: Timing, group: Iterable[Timing]) -> Estimate | None:
    """Return a time divided by the time of the fastest handwritten derivative, or None if none was measured.

    Only equal `seeds` settings are compared, because with colored seeds the result contains only the
    nonzeros.
    """
    handwritten = (t for t in group if t.case.engine == "jax" and t.case.ad_mode.closed_form)
    fastest = least_time(t for t in handwritten if t.case.seeds == timing.case.seeds)
    return time_ratio(timing, fastest) if fastest and not timing.case.ad_mode.is_value else None


def best_device_counts(rows: Iterable[FastestMethod]) -> list[FastestMethod]:
    """Return the row with the shortest time for each problem, of its rows on different device counts."""
    return list(least_by(rows, lambda row: row.problem_key, lambda row: row.first.median).values())


def largest_problems(
    fastest: Iterable[FastestMethod],
) -> list[tuple[list[FastestMethod], list[FastestMethod]]]:
    """Return a pair (all rows, rows of the largest problem) for each function in each environment.

    The rows of the largest problem are in ascending order of time. A problem that was measured on more device
    counts takes precedence over a larger problem.
    """
    pairs = []
    for family in group_by(fastest, lambda row: row.family_key).values():
        problems = group_by(family, lambda row: row.problem_key).values()
        largest = max(problems, key=lambda rows: (len(rows), rows[0].volume))
        pairs.append((family, sorted(largest, key=lambda row: row.first.median)))
    return pairs
