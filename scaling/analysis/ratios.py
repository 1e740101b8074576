"""Ratios: how well the time of a case is known, and the ratio of the times of two cases.

One estimator for speed-ups, for the next mode, for two folders and for baselines. Samples lie within
compilations, those within processes, those within allocations (cluster jobs). The highest level with two
members or more shows how much a repetition differs: variation at lower levels is in its members already. So
with one process an interval is that of its samples, and says nothing of what the next process would give.
Processes that took their samples in turns are compared pair by pair, so that disturbances of both cancel.

Intervals are Student's on logarithms, for unequal variances (Welch). Of the samples of one process the
variance of the median comes from order statistics, without an assumption on how they are distributed.
"""

import itertools
import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
from scipy.special import bdtr, digamma, ndtri, polygamma, stdtr, stdtrit

from scaling.analysis import autocorrelation
from scaling.analysis.grouping import group_by
from scaling.core.intervals import median_interval
from scaling.core.record import Record

LEAST_VARIANCE = 1e-18  # of a logarithm: no time is known to a part in a billion
_LEAST_CASES = 20  # for which variances are moderated
_LEAST_SAMPLES = 6  # of a process: with fewer, the extremes enclose the median less than 95 % of the time
_VISIBLE = 0.02  # by which a ratio of pairs may differ from that of the medians without a note


class Estimate(NamedTuple):
    """A number with its 95 % interval; None where the interval is not known."""

    value: float
    low: float | None
    high: float | None


@dataclass(frozen=True)
class Ratio:
    """The ratio of the times of two cases with its 95 % interval, None where there are too few samples."""

    value: float
    of_medians: float  # the ratio of the two times as they are shown
    low: float | None = None
    high: float | None = None
    pairs: int = 0  # of processes whose samples were taken in turns
    error: float = 0.0  # squared standard error of the logarithm
    freedom: float = 0.0  # degrees of freedom of the error
    count: float = 0.0  # of independent differences; 0 where a process is alone, so that there is no p-value
    deviations: Mapping[Hashable, float] = field(default_factory=dict)  # member -> logarithm minus the mean

    @property
    def estimate(self) -> Estimate:
        """Return the ratio with its interval."""
        return Estimate(self.value, self.low, self.high)

    @property
    def differs_from_medians(self) -> bool:
        """Return whether the ratio of pairs differs visibly from that of the times that are shown."""
        return self.pairs > 1 and abs(math.log(self.value / self.of_medians)) > _VISIBLE


class _Level(NamedTuple):
    """A time, or a ratio of pairs, with its error, from the highest level with two members or more."""

    value: float
    error: float | None  # squared standard error of the logarithm; None: too few samples
    freedom: float
    members: Mapping[Hashable, float]  # logarithms of processes or allocations; empty below these levels


def process_median(record: Record) -> float:
    """Return the seconds of one process: the median of its compilations' medians."""
    return statistics.median(map(statistics.median, samples_by_compilation(record)))


def samples_by_compilation(record: Record) -> list[list[float]]:
    """Return the samples of each compilation, in order."""
    counts = [int(further.get("samples", 0)) for further in record.compilations]
    starts = itertools.accumulate([len(record.seconds) - sum(counts), *counts], initial=0)
    parts = [record.seconds[start:end] for start, end in itertools.pairwise(starts)]
    return [part for part in parts if part]


def case_median(records: Sequence[Record]) -> float:
    """Return the seconds of a case: the median of its processes' medians."""
    return statistics.median(map(process_median, records))


def case_interval(records: Sequence[Record]) -> tuple[float, float] | None:
    """Return the 95 % interval of a case's time, from one record per process; None: too few samples.

    Of several processes, or allocations: the rank interval of their medians where there are enough (six),
    else Student's on the logarithms. Of one process: the rank interval of its samples, enclosing those of
    every compilation, and as much wider as autocorrelation asks for.
    """
    level = _highest_level(records)
    if not level.members:
        parts = [_widened_interval(samples) for samples in samples_by_compilation(records[0])]
        known = [part for part in parts if part]
        return (min(known)[0], max(high for _, high in known)) if len(known) == len(parts) else None
    if ranked := median_interval(list(map(math.exp, level.members.values()))):
        return ranked
    half = float(stdtrit(level.freedom, 0.975)) * math.sqrt(level.error or 0.0)
    return level.value * math.exp(-half), level.value * math.exp(half)


def _widened_interval(samples: Sequence[float]) -> tuple[float, float] | None:
    """Return the rank interval of the median, wider where the samples are autocorrelated."""
    if (interval := median_interval(samples)) is None:
        return None
    median, times = statistics.median(samples), autocorrelation.interval_widening(samples) or 1.0
    low, high = (median * (end / median) ** times for end in interval)
    return low, high


def estimate_ratio(top: Sequence[Record], bottom: Sequence[Record]) -> Ratio:
    """Return the ratio of the times of two cases, from one record per process each."""
    below = {(r.block, r.replicate): r for r in bottom}
    pairs = [(r, below[r.block, r.replicate]) for r in top if r.block and (r.block, r.replicate) in below]
    if len(pairs) > 1:
        logs = [math.log(process_median(a) / process_median(b)) for a, b in pairs]
        jobs = [(_allocation(a), _allocation(b)) for a, b in pairs]
        levels = [_level_of_members(_average_by_allocation([a.replicate for a, _ in pairs], logs, jobs))]
    else:
        levels = [_highest_level(top), _highest_level(bottom)]
    value = levels[0].value / math.prod(level.value for level in levels[1:])
    ratio = Ratio(value, case_median(top) / case_median(bottom), pairs=len(pairs))
    errors = [level.error for level in levels if level.error is not None]
    if len(errors) < len(levels):
        return ratio
    floored = [max(error, LEAST_VARIANCE) for error in errors]
    terms = (error**2 / level.freedom for error, level in zip(floored, levels, strict=True))
    ratio = replace(ratio, error=sum(errors), freedom=sum(floored) ** 2 / sum(terms))
    if all(level.members for level in levels):
        deviations: dict[Hashable, float] = {
            (side, name): log - math.log(level.value)
            for side, level in enumerate(levels)
            for name, log in level.members.items()
        }
        count = statistics.harmonic_mean([len(level.members) for level in levels])
        ratio = replace(ratio, error=sum(floored), count=count, deviations=deviations)
    return _with_interval(ratio)


def _highest_level(records: Sequence[Record]) -> _Level:
    """Return the level of allocations, processes, compilations or samples: the first that has several."""
    logs = [math.log(process_median(record)) for record in records]
    jobs = [_allocation(record) for record in records]
    members = _average_by_allocation([record.replicate for record in records], logs, jobs)
    if len(members) > 1:
        return _level_of_members(members)
    compilations = list(map(statistics.median, samples_by_compilation(records[0])))
    if len(compilations) > 1:
        return _level_of_members(dict(enumerate(map(math.log, compilations))))._replace(members={})
    return _level_of_samples(records[0].seconds)


def _level_of_members(members: Mapping[Hashable, float]) -> _Level:
    logs = list(members.values())
    error = statistics.variance(logs) / len(logs)
    return _Level(math.exp(statistics.fmean(logs)), error, len(logs) - 1, members)


def _level_of_samples(seconds: Sequence[float]) -> _Level:
    """Return the median of the samples of one process, with the error of its logarithm.

    Source: Price and Bonett 2002, Distribution-free confidence intervals for difference and ratio of medians.
    """
    count, median = len(seconds), statistics.median(seconds)
    if count < _LEAST_SAMPLES:
        return _Level(median, None, 0, {})
    rank, ordered = max(1, round((count + 1) / 2 - math.sqrt(count))), sorted(seconds)
    normal = -float(ndtri(bdtr(rank - 1, count, 0.5)))
    error = math.log(ordered[-rank] / ordered[rank - 1]) / (2 * normal)
    return _Level(median, (error * autocorrelation.spread_factor(seconds)) ** 2, count - 1, {})


def _allocation(record: Record) -> str:
    """Return the job of a process; processes without a job are in one allocation."""
    return str(record.environment.get("job"))


def _average_by_allocation(
    processes: Sequence[int], logs: Sequence[float], allocations: Sequence[Hashable]
) -> Mapping[Hashable, float]:
    """Return the mean of each allocation, or the logarithms themselves where there is one allocation."""
    if len(set(allocations)) == 1:
        return dict(zip(processes, logs, strict=True))
    groups = group_by(zip(allocations, logs, strict=True), lambda pair: pair[0])
    return {name: statistics.fmean(log for _, log in group) for name, group in groups.items()}


def _with_interval(ratio: Ratio) -> Ratio:
    """Return the ratio with Student's interval for its error and degrees of freedom."""
    factor = math.exp(float(stdtrit(ratio.freedom, 0.975)) * math.sqrt(ratio.error))
    return replace(ratio, low=ratio.value / factor, high=ratio.value * factor)


def p_value(ratio: Ratio, margin: float = 0.0) -> float | None:
    """Return the p-value of the hypothesis that two cases differ by no more than the margin; None if unknown.

    Source: McCarthy and Smyth 2009, Testing significance relative to a fold-change threshold (TREAT).
    """
    if not ratio.count:
        return None
    distance, error = abs(math.log(ratio.value)), math.sqrt(ratio.error)
    edges = (math.log1p(margin), -math.log1p(margin))
    return float(sum(stdtr(ratio.freedom, (edge - distance) / error) for edge in edges))


def moderate_variances(ratios: Sequence[Ratio]) -> list[Ratio]:
    """Return the ratios with each variance drawn towards those of the others (empirical Bayes).

    Few processes know little of their own variance, many cases know it well. Source: Smyth 2004, the
    moderated t of limma. Cases that share processes are correlated, so the prior never counts for more than
    the effective number of independent cases (the design effect of cluster sampling).
    """
    known = [ratio for ratio in ratios if ratio.count]
    if len(known) < _LEAST_CASES:
        return list(ratios)
    freedom = np.array([ratio.freedom for ratio in known])
    variance = np.array([ratio.error * ratio.count for ratio in known])  # of one difference
    logs = np.log(np.maximum(variance, 1e-5 * np.median(variance))) - digamma(freedom / 2)
    logs += np.log(freedom / 2)
    half = _inverse_trigamma(float(logs.var(ddof=1) - polygamma(1, freedom / 2).mean()))
    common = math.exp(logs.mean() + digamma(half) - math.log(half))
    prior = min(2 * half, float(freedom.mean()) * (_effective_count(known) - 1))

    def moderate(ratio: Ratio) -> Ratio:
        total = prior + ratio.freedom
        pooled = (prior * common / ratio.count + ratio.freedom * ratio.error) / total
        return _with_interval(replace(ratio, error=pooled, freedom=total))

    return [moderate(ratio) if ratio.count else ratio for ratio in ratios]


def _inverse_trigamma(value: float) -> float:
    """Return where the trigamma function has this value, by Newton's method; 1e6 stands for infinity."""
    if value < 1e-6:
        return 1e6
    x = 0.5 + 1 / value
    for _ in range(50):
        x += polygamma(1, x) * (1 - polygamma(1, x) / value) / polygamma(2, x)
    return float(x)


def _effective_count(ratios: Sequence[Ratio]) -> float:
    """Return the effective number of independent cases, from the correlation of their deviations."""
    sums, cases = defaultdict[Hashable, float](float), Counter[Hashable]()
    for ratio in ratios:
        size = math.sqrt(statistics.fmean(value**2 for value in ratio.deviations.values())) or 1.0
        for process, value in ratio.deviations.items():
            sums[process] += value / size
            cases[process] += 1
    pairs = max(1, sum(n * (n - 1) for n in cases.values()))
    correlation = sum(sums[process] ** 2 - n for process, n in cases.items()) / pairs
    return len(ratios) / (1 + (len(ratios) - 1) * min(max(correlation, 0.0), 1.0))
