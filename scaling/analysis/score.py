"""Accuracy of the times that `scaling plan` predicts: error, coverage of the intervals, and order of methods.

A predicted time is compared with the measured time of the same case on the same kind of device. Timings
shorter than ten empty calls are omitted, because they are mostly dispatch latency.
"""

import itertools
import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from scaling.analysis.cases import Method, base_method, group_by
from scaling.analysis.timings import Timing, near_floor
from scaling.core.case import problem
from scaling.core.record import Record

ORDER_FACTOR = 2.0  # the order of two times is scored if their ratio exceeds this


class PlannedPair(NamedTuple):
    """The predicted and the measured time of a case that was both planned and measured."""

    plan: Record
    timing: Timing

    @property
    def predicted_seconds(self) -> float:
        """Return the median predicted time per call, in seconds."""
        return self.plan.predicted["seconds"]  # type: ignore[index]

    @property
    def ratio(self) -> float:
        """Return the ratio of the predicted to the measured time."""
        return self.predicted_seconds / self.timing.median

    @property
    def in_interval(self) -> bool:
        """Return whether the measured median lies in the predicted 95 % interval of the time."""
        predicted = self.plan.predicted
        return predicted is not None and predicted["low"] <= self.timing.median <= predicted["high"]


@dataclass(frozen=True)
class PlanScore:
    """The errors of the predicted times of a group of cases."""

    workload: str | None  # None for all workloads
    method: Method | None  # None for all methods
    pairs: tuple[PlannedPair, ...]
    ratios: list[float]  # of predicted to measured times, in ascending order
    median_ratio: float
    error: float  # median absolute error, as a fraction of the measured time
    worst: float  # the ratio of predicted to measured time that is furthest from 1 on a logarithmic scale
    coverage: float  # the fraction of the measured times within their predicted 95 % interval


def _score(workload: str | None, method: Method | None, pairs: Sequence[PlannedPair]) -> PlanScore:
    ratios = sorted(pair.ratio for pair in pairs)
    error = statistics.median(abs(ratio - 1) for ratio in ratios)
    worst = max(ratios, key=lambda ratio: abs(math.log(ratio)))
    coverage = sum(pair.in_interval for pair in pairs) / len(pairs)
    return PlanScore(
        workload, method, tuple(pairs), ratios, statistics.median(ratios), error, worst, coverage
    )


@dataclass(frozen=True)
class PlanScores:
    """The errors of the predicted times for one type of hardware: total, and by workload and method."""

    hardware: str
    total: PlanScore
    parts: tuple[PlanScore, ...]
    ordered: int  # number of comparable pairs whose order was predicted correctly
    comparable: int  # number of pairs of methods for a problem whose times differ enough


def plan_scores(plans: Iterable[Record], timings: Sequence[Timing]) -> list[PlanScores]:
    """Return a `PlanScores` for each type of hardware, with the errors of its newest predicted times.

    Types of hardware without a comparable measured time are omitted.
    """
    predicted = (r for r in sorted(plans, key=lambda r: r.started_at or "") if r.predicted is not None)
    scores = []
    for hardware, records in group_by(predicted, lambda r: r.environment["hardware"]["name"]).items():
        planned = {(record.key, record.environment["device_kind"]): record for record in records}
        fit = [timing for timing in timings if timing.honest and near_floor(timing) is None]
        plan = (planned.get((t.case.key, t.records[0].environment.get("device_kind"))) for t in fit)
        pairs = [PlannedPair(record, timing) for record, timing in zip(plan, fit, strict=True) if record]
        if pairs:
            scores.append(_score_pairs(hardware, pairs))
    return scores


def _score_pairs(hardware: str, pairs: Sequence[PlannedPair]) -> PlanScores:
    cases = [pair.timing.case for pair in pairs]
    groups = group_by(pairs, lambda pair: (pair.timing.case.workload, base_method(pair.timing.case)))
    problems = group_by(
        zip(cases, pairs, strict=True),
        lambda row: (problem(row[0]), row[0].devices, row[1].timing.environment),
    )
    ordered = sorted(groups.items(), key=lambda group: str(group[0]))
    parts = tuple(_score(*key, group) for key, group in ordered)
    both = ((a, b) for group in problems.values() for (_, a), (_, b) in itertools.combinations(group, 2))
    slow_first = (sorted(two, key=lambda pair: -pair.timing.median) for two in both)
    verdicts = [
        slow.predicted_seconds > fast.predicted_seconds
        for slow, fast in slow_first
        if slow.timing.median > ORDER_FACTOR * fast.timing.median
    ]
    return PlanScores(hardware, _score(None, None, pairs), parts, sum(verdicts), len(verdicts))
