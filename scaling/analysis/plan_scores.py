"""Compare the predicted times of a plan with measured times (`PlanScores`), and describe the errors.

A predicted time is compared with the measured time of the same case on the same kind of device. Timings
shorter than ten empty calls are omitted, because they are mostly dispatch latency.
"""

import itertools
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from scaling.analysis.cases import Method, group_by
from scaling.analysis.estimate import format_percentage, format_ratio
from scaling.analysis.timings import Timing, near_floor
from scaling.core.formatting import count_of, format_number
from scaling.core.record import Record

_ORDER_FACTOR = 2.0  # the order of two times is scored if their ratio exceeds this


class PlannedPair(NamedTuple):
    """The measured and the predicted time of a case that was both planned and measured."""

    timing: Timing
    predicted: Mapping[str, Any]  # the field `predicted` of the plan: "seconds", "low", "high" and others


class PlanScore(NamedTuple):
    """The errors of the predicted times in a group of cases, relative to the measured times."""

    workload: str | None  # None for all workloads
    method: Method | None  # None for all methods
    pairs: list[PlannedPair]
    ratios: list[float]  # predicted time / measured time of each case, in ascending order
    median_ratio: float
    error: float  # median absolute error, as a fraction of the measured time
    worst: float  # the ratio of predicted to measured time that is furthest from 1 on a logarithmic scale
    coverage: float  # the fraction of the measured times within their predicted 95 % interval


class PlanScores(NamedTuple):
    """The prediction errors on one type of hardware, in total and for each pair of workload and method."""

    hardware: str
    total: PlanScore
    parts: list[PlanScore]
    ordered: int  # number of comparable pairs whose order was predicted correctly
    comparable: int  # number of pairs of methods for one problem with times that differ enough


def plan_scores(plans: Iterable[Record], timings: Sequence[Timing]) -> list[PlanScores]:
    """Return the errors of the newest predicted times for each planned hardware that was also measured."""
    reliable = [timing for timing in timings if timing.honest and near_floor(timing) is None]
    newest_last = (r for r in sorted(plans, key=lambda r: r.started_at or "") if r.predicted is not None)
    scores = []
    for hardware, records in group_by(newest_last, lambda r: r.environment["hardware"]["name"]).items():
        planned = {(record.key, record.environment["device_kind"]): record.predicted for record in records}
        keys = [(timing.case.key, timing.record.environment.get("device_kind")) for timing in reliable]
        matches = zip(reliable, map(planned.get, keys), strict=True)
        if pairs := [PlannedPair(timing, predicted) for timing, predicted in matches if predicted]:
            scores.append(_score_hardware(hardware, pairs))
    return scores


def _score_hardware(hardware: str, pairs: list[PlannedPair]) -> PlanScores:
    groups = group_by(pairs, lambda pair: (pair.timing.case.workload, pair.timing.base_method))
    parts = [
        _score_group(*key, group) for key, group in sorted(groups.items(), key=lambda item: str(item[0]))
    ]
    verdicts = [
        slow.predicted["seconds"] > fast.predicted["seconds"]
        for group in group_by(pairs, lambda pair: pair.timing.comparison_key).values()
        for slow, fast in itertools.permutations(group, 2)
        if slow.timing.median > _ORDER_FACTOR * fast.timing.median
    ]
    return PlanScores(hardware, _score_group(None, None, pairs), parts, sum(verdicts), len(verdicts))


def _score_group(workload: str | None, method: Method | None, pairs: list[PlannedPair]) -> PlanScore:
    ratios = sorted(predicted["seconds"] / timing.median for timing, predicted in pairs)
    error = statistics.median(abs(ratio - 1) for ratio in ratios)
    worst = max(ratios, key=lambda ratio: abs(math.log(ratio)))
    inside = [predicted["low"] <= timing.median <= predicted["high"] for timing, predicted in pairs]
    coverage = sum(inside) / len(pairs)
    return PlanScore(workload, method, pairs, ratios, statistics.median(ratios), error, worst, coverage)


def describe_score(scores: PlanScores) -> list[str]:
    """Return sentences on the errors of the predicted times, and on the predicted order of the methods."""
    total = scores.total
    sentences = [
        f"Predicted against measured on {scores.hardware}: the median prediction is "
        f"{format_ratio(total.median_ratio)} what was measured, over {count_of(len(total.pairs), 'case')}; "
        f"the median error is {format_percentage(total.error)}, the worst ratio "
        f"{format_ratio(total.worst)}, and {format_percentage(total.coverage)} of the measured times lie in "
        "their predicted 95 % interval."
    ]
    if scores.comparable:
        sentences.append(
            f"Of {count_of(scores.comparable, 'pair')} of methods for one problem whose measured times "
            f"differ by more than a factor of {format_number(_ORDER_FACTOR)}, {scores.ordered} "
            f"({format_percentage(scores.ordered / scores.comparable)}) were predicted in the right order."
        )
    return sentences
