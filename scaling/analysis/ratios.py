"""Estimate times and ratios of times (`Ratio`), p-values, trends and autocorrelation from time samples.

A case has samples from one or more processes, and the processes can be in several cluster jobs. The error of
a time is estimated from the differences between jobs. If there is only one job, it is estimated from the
differences between processes, and for one process from its samples. Processes that were sampled in turns are
compared in pairs, so that common disturbances cancel.

Intervals are Student's t intervals of the logarithm, for unequal variances (Welch). For a single process, the
variance of the median is computed from order statistics, without assuming a distribution.
"""

import functools
import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from scipy.special import bdtr, digamma, ndtri, polygamma, stdtr, stdtrit

from scaling.analysis.estimate import Estimate
from scaling.core.grouping import group_by
from scaling.core.record import Record
from scaling.core.timing import median_interval

_LEAST_VARIANCE = 1e-18  # smallest variance of the logarithm of a time, for a relative error of 1e-9
_LEAST_CASES = 20  # the least number of cases for which variances are moderated
_LEAST_SAMPLES = 6  # with fewer samples, their range contains the median with a probability below 95 %
_SIGNIFICANCE = 1e-3  # significance level of the tests for trend and autocorrelation


@dataclass(frozen=True)
class Ratio:
    """The ratio of two times, or a single time in seconds, with the variance of its logarithm."""

    value: float
    variance: float  # squared standard error of log(value); NaN if there are too few samples
    freedom: float  # degrees of freedom of the variance
    # number of processes, jobs or pairs, the harmonic mean of those of both times; 0 for a single process
    count: float = 0.0
    # process or job -> its logarithm minus the mean; a key of a ratio is (0 for the numerator or 1, this key)
    deviations: Mapping[Hashable, float] = field(default_factory=dict)
    pairs: int = 0  # number of pairs of processes that were sampled in turns

    @property
    def estimate(self) -> Estimate:
        """Return the value with its 95 % interval. The limits are None if there are too few samples."""
        if math.isnan(self.variance):
            return Estimate(self.value, None, None)
        factor = math.exp(float(stdtrit(self.freedom, 0.975)) * math.sqrt(self.variance))
        return Estimate(self.value, self.value / factor, self.value * factor)


def estimate_time(records: Sequence[Record]) -> Estimate:
    """Return the time per call of a case in seconds, with its 95 % interval.

    `records` contains one record per process. The time is the geometric mean of the median times over the
    processes of each job, then over the jobs. The limits of the interval are None if there are too few
    samples.
    """
    if len(records) > 1:
        return _estimate_time(tuple(records)).estimate
    seconds, median = records[0].seconds, statistics.median(records[0].seconds)
    widening = interval_widening(seconds) or 1.0
    interval = [median * (limit / median) ** widening for limit in median_interval(seconds) or ()]
    return Estimate(median, *(interval or (None, None)))


def estimate_ratio(top: Sequence[Record], bottom: Sequence[Record]) -> Ratio:
    """Return the time of `top` divided by the time of `bottom`.

    Both contain one record per process. If at least two processes of `top` were sampled in turns with
    processes of `bottom`, only these pairs are used.
    """
    pairs = _pair_processes(top, bottom)
    if len(pairs) > 1:
        parts = [_estimate_from_members(_average_by_process_or_job(pairs))]
    else:
        parts = [_estimate_time(tuple(top)), _estimate_time(tuple(bottom))]
    value = parts[0].value / math.prod(part.value for part in parts[1:])
    if any(math.isnan(part.variance) for part in parts):
        return Ratio(value, math.nan, 0.0, pairs=len(pairs))
    variances = [max(part.variance, _LEAST_VARIANCE) for part in parts]
    terms = (variance**2 / part.freedom for variance, part in zip(variances, parts, strict=True))
    freedom = sum(variances) ** 2 / sum(terms)
    if not all(part.count for part in parts):
        return Ratio(value, sum(part.variance for part in parts), freedom, pairs=len(pairs))
    deviations: dict[Hashable, float] = {
        (index, name): deviation
        for index, part in enumerate(parts)
        for name, deviation in part.deviations.items()
    }
    count = statistics.harmonic_mean([part.count for part in parts])
    return Ratio(value, sum(variances), freedom, count, deviations, len(pairs))


def _pair_processes(top: Iterable[Record], bottom: Iterable[Record]) -> list[tuple[Record, Record]]:
    """Return pairs of processes, one of `top` and one of `bottom`, that were sampled in turns."""
    partners: dict[tuple[str | None, int], Record] = {
        (record.block, record.replicate): record for record in bottom if record.block
    }
    candidates = ((record, partners.get((record.block, record.replicate))) for record in top)
    return [(record, partner) for record, partner in candidates if partner]


@functools.lru_cache(maxsize=16_384)
def _estimate_time(records: tuple[Record, ...]) -> Ratio:
    """Return the time of a case in seconds. `records` contains one record per process.

    The variance is estimated from the differences between jobs. If there is only one job, it is estimated
    from the differences between processes, and for a single process from its samples.
    """
    members = _average_by_process_or_job([(record,) for record in records]) if len(records) > 1 else {}
    if len(members) > 1:
        return _estimate_from_members(members)
    return _estimate_from_samples(records[0].seconds)


def _estimate_from_members(members: Mapping[Hashable, float]) -> Ratio:
    """Return the geometric mean of times or ratios, with the variance of its logarithm.

    `members` maps each process or job to its mean log(time) or log(ratio).
    """
    logs, mean, count = list(members.values()), statistics.fmean(members.values()), len(members)
    deviations = {name: log - mean for name, log in members.items()}
    return Ratio(math.exp(mean), statistics.variance(logs) / count, count - 1, count, deviations)


def _estimate_from_samples(seconds: Sequence[float]) -> Ratio:
    """Return the median of the time samples of one process, with the variance of its logarithm.

    Source: Price and Bonett 2002, Distribution-free confidence intervals for difference and ratio of medians.
    """
    count, median = len(seconds), statistics.median(seconds)
    if count < _LEAST_SAMPLES:
        return Ratio(median, math.nan, 0.0)
    rank, ordered = max(1, round((count + 1) / 2 - math.sqrt(count))), sorted(seconds)
    normal = -float(ndtri(bdtr(rank - 1, count, 0.5)))
    error = math.log(ordered[-rank] / ordered[rank - 1]) / (2 * normal)
    return Ratio(median, (error * _autocorrelation(seconds)[1]) ** 2, count - 1)


def _average_by_process_or_job(runs: Sequence[Sequence[Record]]) -> dict[Hashable, float]:
    """Return the mean log(time) of each job, or of each process if there is only one job.

    Each of `runs` contains one record or a pair of records. For a pair, the ratio of its times (first /
    second) replaces the time.
    """
    runs_by_job = group_by(runs, lambda run: tuple(str(record.environment.get("job")) for record in run))
    groups = runs_by_job if len(runs_by_job) > 1 else group_by(runs, lambda run: run[0].replicate)
    return {name: statistics.fmean(map(_log_time_or_ratio, group)) for name, group in groups.items()}


def _log_time_or_ratio(run: Sequence[Record]) -> float:
    top, *bottom = (math.log(statistics.median(record.seconds)) for record in run)
    return top - sum(bottom)


def p_value(ratio: Ratio, margin: float = 0.0) -> float | None:
    """Return the p-value of the hypothesis that two times differ by at most the fraction `margin`.

    Return None for a single process. Source: McCarthy and Smyth 2009, tests relative to a threshold (TREAT).
    """
    if not ratio.count:
        return None
    distance, error = abs(math.log(ratio.value)), math.sqrt(ratio.variance)
    limits = (math.log1p(margin), -math.log1p(margin))
    return float(sum(stdtr(ratio.freedom, (limit - distance) / error) for limit in limits))


def moderate_variances(ratios: Sequence[Ratio]) -> list[Ratio]:
    """Return copies of ratios whose variances are closer to a common variance (empirical Bayes).

    Fewer than 20 ratios are returned unchanged. Source: Smyth 2004, the moderated t-statistic of limma.
    """
    from scipy.optimize import brentq  # a slow import, which other functions do not need

    usable = [ratio for ratio in ratios if ratio.count]
    if len(usable) < _LEAST_CASES:
        return list(ratios)
    freedom = np.array([ratio.freedom for ratio in usable])
    variances = np.array([ratio.variance * ratio.count for ratio in usable])  # of a single difference
    logs = np.log(np.maximum(variances, 1e-5 * np.median(variances))) - digamma(freedom / 2)
    logs += np.log(freedom / 2)
    squares = (logs - logs.mean()) ** 2
    # Add a standard error: too small an excess would give all cases the same variance.
    excess = float(logs.var(ddof=1) + squares.std() / math.sqrt(len(logs)) - polygamma(1, freedom / 2).mean())
    half = brentq(lambda x: float(polygamma(1, x)) - excess, 1e-9, 1e7) if excess > 1e-6 else 1e6
    common_variance = math.exp(logs.mean() + digamma(half) - math.log(half))
    prior_freedom = min(2 * half, float(freedom.mean()) * (_effective_count(usable) - 1))

    def moderate(ratio: Ratio) -> Ratio:
        total = prior_freedom + ratio.freedom
        variance = (prior_freedom * common_variance / ratio.count + ratio.freedom * ratio.variance) / total
        return replace(ratio, variance=variance, freedom=total)

    return [moderate(ratio) if ratio.count else ratio for ratio in ratios]


def _effective_count(ratios: Sequence[Ratio]) -> float:
    """Return the effective number of independent ratios.

    It is smaller than the number of ratios if their times were measured in the same processes.
    """
    sums, cases = defaultdict[Hashable, float](float), Counter[Hashable]()
    for ratio in ratios:
        rms = math.sqrt(statistics.fmean(value**2 for value in ratio.deviations.values())) or 1.0
        for process, deviation in ratio.deviations.items():
            sums[process] += deviation / rms
            cases[process] += 1
    pairs = max(1, sum(n * (n - 1) for n in cases.values()))
    correlation = sum(sums[process] ** 2 - n for process, n in cases.items()) / pairs
    return len(ratios) / (1 + (len(ratios) - 1) * min(max(correlation, 0.0), 1.0))


def trend(samples: Sequence[float], min_change: float = 0.0) -> float | None:
    """Return the relative change of the median time from the first to the last third of the samples.

    Return None if there are fewer than three samples, if the change is at most `min_change`, or if it is not
    significant. The test is Spearman's rank correlation with the sample index, at the 0.1 % level.
    """
    count = len(samples)
    if count < 3 or min(samples) == max(samples):
        return None
    first, last = (statistics.median(third) for third in (samples[: count // 3], samples[-(count // 3) :]))
    change = (last - first) / statistics.median(samples)
    if abs(change) <= min_change:
        return None
    ranks, index = _centered_ranks(samples), np.arange(count) - (count - 1) / 2
    determination = (ranks @ index) ** 2 / (ranks @ ranks) / (index @ index)  # the squared correlation
    critical = stdtrit(count - 2, _SIGNIFICANCE / 2) ** 2
    return change if determination * (count - 2) >= critical * (1 - determination) else None


def interval_widening(samples: Sequence[float]) -> float | None:
    """Return the factor by which autocorrelation widens the confidence interval of the median of samples.

    Return None if there are fewer than three samples, or if the autocorrelation is not significant at the 0.1
    % level. Source: Bartels 1982, The rank version of von Neumann's ratio test for randomness.
    """
    n = len(samples)
    if n < 3:
        return None
    correlation, factor = _autocorrelation(samples)
    spread = math.sqrt((n - 2) * (5 * n**2 - 2 * n - 9) / (5 * n * (n + 1) * (n - 1) ** 2))
    return factor if correlation > -ndtri(_SIGNIFICANCE) * spread else None


def _autocorrelation(samples: Sequence[float]) -> tuple[float, float]:
    """Return the rank correlation of successive samples, and the widening of the interval of the median.

    The widening is the width of the interval, divided by its width for independent samples.
    """
    ranks = _centered_ranks(samples)
    correlation = 1 - (np.diff(ranks) ** 2).sum() / (2 * (ranks @ ranks)) if ranks.any() else 0.0
    positive = max(0.0, float(correlation))
    return float(correlation), min(math.sqrt((1 + positive) / (1 - positive)), math.sqrt(len(samples)))


def _centered_ranks(samples: Sequence[float]) -> Any:
    """Return the ranks of the samples minus the mean rank, as an array. Equal samples have equal ranks."""
    _, index, counts = np.unique(samples, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[index] - (len(samples) + 1) / 2


def ratio_interval(top: Sequence[float], bottom: Sequence[float]) -> tuple[float, float, float] | None:
    """Return median(top) / median(bottom) with its 95 % limits, or None if there are too few samples."""
    top_interval, bottom_interval = median_interval(top, 0.975), median_interval(bottom, 0.975)  # Bonferroni
    if top_interval is None or bottom_interval is None:
        return None
    ratio = statistics.median(top) / statistics.median(bottom)
    return ratio, top_interval[0] / bottom_interval[1], top_interval[1] / bottom_interval[0]
