"""Ratios: how well a case's time is known from a few processes, and the ratio of the times of two cases.

The process is the unit of replication: samples of one process share its memory layout and its compilation,
and show how well its own median is known, not what the next process would give. The intervals here are
Student's, from which p-values follow; resampling.py has the bootstrap intervals by level. This module needs
SciPy, so a worker does not import it.
"""

import itertools
import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
from scipy.special import digamma, polygamma, stdtr, stdtrit

from scaling.core.intervals import median_interval
from scaling.core.record import Record

LEAST_VARIANCE = 1e-18  # of a logarithm: no time is known to a part in a billion
_LEAST_CASES = 20  # for which variances are moderated


class Estimate(NamedTuple):
    """A number with its 95 % interval; None where the interval is not known."""

    value: float
    low: float | None
    high: float | None


@dataclass(frozen=True)
class PairedRatio:
    """The ratio of the times of two cases with its 95 % interval.

    The interval is None where there are too few samples. With one process for a case the interval is that of
    the samples within the processes, and there is no p-value.
    """

    value: float
    low: float | None
    high: float | None
    pairs: int = 0  # of processes whose samples were taken in turns
    count: float = 0.0  # of independent differences between the two cases; 0 where there is no p-value
    variance: float = 0.0  # of the logarithm of one such difference
    freedom: float = 0.0  # degrees of freedom of the variance
    deviations: Mapping[Hashable, float] = field(
        default_factory=dict
    )  # process -> its logarithm minus the mean


def process_median(record: Record) -> float:
    """Return the seconds of one process: the median of its compilations' medians."""
    return statistics.median(map(statistics.median, samples_by_compilation(record)))


def samples_by_compilation(record: Record) -> list[list[float]]:
    """Return the samples of each compilation, in order."""
    counts = [int(further.get("samples", 0)) for further in record.compilations]
    starts = [0, *np.cumsum([len(record.seconds) - sum(counts), *counts]).tolist()]
    parts = [record.seconds[start:end] for start, end in itertools.pairwise(starts)]
    return [part for part in parts if part]


def case_median(records: Sequence[Record]) -> float:
    """Return the seconds of a case: the median of its processes' medians."""
    return statistics.median(map(process_median, records))


def case_interval(records: Sequence[Record], confidence: float = 0.95) -> tuple[float, float] | None:
    """Return the interval of a case's median, from one record per process; None where there are too few
    samples.

    Of several processes: the rank interval of their medians where there are enough (six for 95 %), else
    Student's on the logarithms. Of one process: the rank interval of its samples, enclosing those of every
    compilation.
    """
    medians = [process_median(record) for record in records]
    if len(medians) == 1:
        intervals = [median_interval(samples, confidence) for samples in samples_by_compilation(records[0])]
        known = [interval for interval in intervals if interval]
        return (min(known)[0], max(high for _, high in known)) if len(known) == len(intervals) else None
    if ranked := median_interval(medians, confidence):
        return ranked
    logs = np.log(medians)
    half = stdtrit(len(logs) - 1, (1 + confidence) / 2) * math.sqrt(logs.var(ddof=1) / len(logs))
    return math.exp(logs.mean() - half), math.exp(logs.mean() + half)


def student_ratio(top: Sequence[Record], bottom: Sequence[Record]) -> PairedRatio:
    """Return the ratio of the times of two cases, from one record per process each.

    Two or more pairs of processes that took their samples in turns (same block and replicate) are compared
    pair by pair, so that disturbances of both cancel; otherwise all processes of one case with all of the
    other (Welch).
    """
    above, below = (
        {(r.block, r.replicate): math.log(process_median(r)) for r in side} for side in (top, bottom)
    )
    shared = [process for process in above if process in below and process[0] is not None]
    if len(shared) > 1:
        logs = {process[1]: above[process] - below[process] for process in shared}
        mean, variance = (
            statistics.fmean(logs.values()),
            max(statistics.variance(logs.values()), LEAST_VARIANCE),
        )
        deviations: dict[Hashable, float] = {replicate: log - mean for replicate, log in logs.items()}
        paired = PairedRatio(
            math.exp(mean), 0, 0, len(shared), len(logs), variance, len(logs) - 1, deviations
        )
        return _with_student_interval(paired)
    if min(len(above), len(below)) > 1:
        return _welch_ratio(above, below, len(shared))
    over, under = case_interval(top, 0.975), case_interval(bottom, 0.975)  # both hold at 95 % (Bonferroni)
    low, high = (over[0] / under[1], over[1] / under[0]) if over and under else (None, None)
    return PairedRatio(case_median(top) / case_median(bottom), low, high, len(shared))


def _welch_ratio(above: Mapping[tuple, float], below: Mapping[tuple, float], pairs: int) -> PairedRatio:
    """Return the ratio of two independent groups of logarithms."""
    sides = (above, below)
    means, counts = [statistics.fmean(side.values()) for side in sides], [len(side) for side in sides]
    errors = [max(statistics.variance(side.values()), LEAST_VARIANCE) / len(side) for side in sides]
    freedom = sum(errors) ** 2 / sum(error**2 / (n - 1) for error, n in zip(errors, counts, strict=True))
    count = statistics.harmonic_mean(counts)
    deviations: dict[Hashable, float] = {
        (i, process[1]): log - means[i] for i, side in enumerate(sides) for process, log in side.items()
    }
    ratio = math.exp(means[0] - means[1])
    return _with_student_interval(
        PairedRatio(ratio, 0, 0, pairs, count, sum(errors) * count, freedom, deviations)
    )


def _with_student_interval(ratio: PairedRatio) -> PairedRatio:
    """Return the ratio with Student's interval for its variance and degrees of freedom."""
    factor = math.exp(float(stdtrit(ratio.freedom, 0.975)) * math.sqrt(ratio.variance / ratio.count))
    return replace(ratio, low=ratio.value / factor, high=ratio.value * factor)


def p_value(ratio: PairedRatio, margin: float = 0.0) -> float | None:
    """Return the p-value of the hypothesis that the two cases differ by no more than the margin; None if
    unknown.

    Source: McCarthy and Smyth 2009, Testing significance relative to a fold-change threshold (TREAT).
    """
    if not ratio.count:
        return None
    distance, error = abs(math.log(ratio.value)), math.sqrt(ratio.variance / ratio.count)
    edges = (math.log1p(margin), -math.log1p(margin))
    return float(sum(stdtr(ratio.freedom, (edge - distance) / error) for edge in edges))


def moderate_variances(ratios: Sequence[PairedRatio]) -> list[PairedRatio]:
    """Return the ratios with each variance drawn towards those of the others (empirical Bayes).

    Few processes know little of their own variance, many cases know it well. Source: Smyth 2004, the
    moderated t of limma. Cases that share processes are correlated, so the prior never counts for more than
    the effective number of independent cases (the design effect of cluster sampling).
    """
    known = [ratio for ratio in ratios if ratio.count]
    if len(known) < _LEAST_CASES:
        return list(ratios)
    freedom, variance = (
        np.array([getattr(ratio, name) for ratio in known]) for name in ("freedom", "variance")
    )
    logs = (
        np.log(np.maximum(variance, 1e-5 * np.median(variance))) - digamma(freedom / 2) + np.log(freedom / 2)
    )
    half = _inverse_trigamma(float(logs.var(ddof=1) - polygamma(1, freedom / 2).mean()))
    common = math.exp(logs.mean() + digamma(half) - math.log(half))
    prior = min(2 * half, float(freedom.mean()) * (_effective_count(known) - 1))

    def moderate(ratio: PairedRatio) -> PairedRatio:
        total = prior + ratio.freedom
        pooled = (prior * common + ratio.freedom * ratio.variance) / total
        return _with_student_interval(replace(ratio, variance=pooled, freedom=total))

    return [moderate(ratio) if ratio.count else ratio for ratio in ratios]


def _inverse_trigamma(value: float) -> float:
    """Return where the trigamma function has this value, by Newton's method; a million stands for
    infinity.
    """
    if value < 1e-6:
        return 1e6
    x = 0.5 + 1 / value
    for _ in range(50):
        x += polygamma(1, x) * (1 - polygamma(1, x) / value) / polygamma(2, x)
    return float(x)


def _effective_count(ratios: Sequence[PairedRatio]) -> float:
    """Return the effective number of independent cases, from the mean correlation of their processes'
    deviations.
    """
    sums, cases = defaultdict[Hashable, float](float), Counter[Hashable]()
    for ratio in ratios:
        size = math.sqrt(statistics.fmean(value**2 for value in ratio.deviations.values())) or 1.0
        for process, value in ratio.deviations.items():
            sums[process] += value / size
            cases[process] += 1
    pairs = max(1, sum(n * (n - 1) for n in cases.values()))
    correlation = sum(sums[process] ** 2 - n for process, n in cases.items()) / pairs
    return len(ratios) / (1 + (len(ratios) - 1) * min(max(correlation, 0.0), 1.0))
