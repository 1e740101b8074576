"""Rank the timings of each problem to find the fastest AD method and the next one (`FastestMethod`)."""

from collections.abc import Iterable
from dataclasses import dataclass

from scaling.analysis.cases import Subject, group_by, is_candidate
from scaling.analysis.estimate import Estimate
from scaling.analysis.timings import Timing, is_empty_call, least_time, reasons_for_doubt, time_ratio


@dataclass(frozen=True)
class Ranking(Subject):
    """The fastest of several timings, compared with the runner-up."""

    first: Timing
    second: Timing | None  # the next method, or else the same method with another memory setting
    ratio: Estimate | None  # time of `second` divided by the time of `first`

    @property
    def empty(self) -> bool:
        """Return whether the fastest time cannot be distinguished from that of an empty call."""
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
    """The fastest JAX method for one problem and device count, compared with the second-fastest method."""

    by_hand: Estimate | None  # time of `first` divided by that of the handwritten derivative
    others: tuple[Timing, ...]  # timings of the same problem that are excluded by `is_candidate`


def fastest_methods(timings: Iterable[Timing]) -> list[FastestMethod]:
    """Return the fastest JAX method for each problem, device count and environment, with its runner-up."""
    groups = group_by((t for t in timings if not t.case.ad_mode.is_value), lambda t: t.comparison_key)
    methods = []
    for group in groups.values():
        rivals = [timing for timing in group if is_candidate(timing.case)]
        if first := least_time(rivals):
            other_modes = [t for t in rivals if t.base_method != first.base_method]
            second = least_time(other_modes or [t for t in rivals if t.method != first.method])
            ratio = time_ratio(second, first) if second else None
            if second and ratio and (ratio.high or 1) < 1:  # `second` is faster in pairs
                first, second, ratio = second, first, time_ratio(first, second)
            by_hand = compare_with_handwritten(first, group)
            excluded = tuple(t for t in group if not is_candidate(t.case))
            subject = (first.case, first.environment, first.honest)
            methods.append(FastestMethod(*subject, first, second, ratio, by_hand, excluded))
    return methods


def compare_with_handwritten(timing: Timing, group: Iterable[Timing]) -> Estimate | None:
    """Return a time divided by the time of the fastest handwritten derivative, or None if none was measured.

    Only equal `seeds` settings are compared, because with colored seeds the result contains only the
    nonzeros.
    """
    handwritten = (t for t in group if t.case.engine == "jax" and t.case.ad_mode.closed_form)
    fastest = least_time(t for t in handwritten if t.case.seeds == timing.case.seeds)
    return time_ratio(timing, fastest) if fastest and not timing.case.ad_mode.is_value else None


def largest_problems(
    fastest: Iterable[FastestMethod],
) -> list[tuple[list[FastestMethod], list[FastestMethod]]]:
    """Return (all rows, rows of the largest problem) of each function in each environment.

    The rows of the largest problem are in ascending order of time. A problem that was measured on more device
    counts takes precedence over a larger problem.
    """
    pairs = []
    for family in group_by(fastest, lambda row: row.family_key).values():
        problems = group_by(family, lambda row: row.problem_key).values()
        largest = max(problems, key=lambda rows: (len(rows), rows[0].volume))
        pairs.append((family, sorted(largest, key=lambda row: row.first.median)))
    return pairs
