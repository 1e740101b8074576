"""Resampling: the ratio of the times of two cases with a bootstrap interval by level.

Samples lie within compilations, those within processes, those within allocations (cluster jobs). For each
case the highest level with two members or more is resampled: variation at lower levels shows in its members
already, and resampling it too would count it twice. So with one process the interval is that of its samples,
with one allocation that of its processes; neither includes the variation of the next level. Where samples
were taken in turns, pairs of processes are resampled, so that disturbances of both cancel.

Of n members n - 1 are drawn, so that the variance is unbiased for few members (Rao and Wu 1988, Resampling
inference with complex survey data). The percentile distances are expanded by the ratio of Student's quantile
to the normal one (after Hesterberg 2015, What teachers should know about the bootstrap), and are at least
those of a normal distribution. A plain percentile interval of two processes would include the truth two times
in three. Draws of autocorrelated samples are spread further (autocorrelation.py).

The draws depend on the number of members only, so the same records give the same interval in any order, on
any machine.
"""

import functools
import math
import statistics
from collections.abc import Hashable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy.special import ndtri, stdtrit

from scaling.analysis import autocorrelation
from scaling.analysis.grouping import group_by
from scaling.analysis.ratios import LEAST_VARIANCE, Estimate, process_median, samples_by_compilation
from scaling.core.record import Record

_DRAWS = 2000
_LEAST_SAMPLES = 6  # of a process: with fewer, the extremes enclose the median less than 95 % of the time
_PERCENTILES = (0.025, 0.975)
_NORMAL = float(ndtri(_PERCENTILES[1]))


class _Resampled(NamedTuple):
    """A time or a ratio with the deviations of its logarithm over the draws; None where there are too few
    samples.
    """

    value: float
    draws: Any
    variance: float = 0.0
    members: int = 0
    least_variance: float = 0.0  # of the normal distribution that the draws are widened to


def bootstrap_ratio(top: Sequence[Record], bottom: Sequence[Record]) -> Estimate:
    """Return the ratio of the times of two cases, from one record per process each."""
    pairs = _log_ratios_of_pairs(top, bottom)
    sides = (
        [_resample_members(pairs, 0)]
        if len(pairs) > 1
        else [_resample_case(top, 0), _resample_case(bottom, 1)]
    )
    value = sides[0].value / math.prod(side.value for side in sides[1:])
    if any(side.draws is None for side in sides):
        return Estimate(value, None, None)
    draws = sides[0].draws - sum(side.draws for side in sides[1:])
    low, high = np.quantile(draws, _PERCENTILES)
    least = _NORMAL * math.sqrt(sum(side.least_variance for side in sides))
    expansion = float(stdtrit(_degrees_of_freedom(sides), _PERCENTILES[1])) / _NORMAL
    low, high = (value * math.exp(expansion * end) for end in (min(low, -least), max(high, least)))
    return Estimate(value, low, high)


def _degrees_of_freedom(sides: Sequence[_Resampled]) -> float:
    """Return the degrees of freedom of the sum of the variances (Welch and Satterthwaite)."""
    variances = [max(side.variance, LEAST_VARIANCE) for side in sides]
    terms = (variance**2 / (side.members - 1) for variance, side in zip(variances, sides, strict=True))
    return sum(variances) ** 2 / sum(terms)


def _log_ratios_of_pairs(top: Iterable[Record], bottom: Iterable[Record]) -> list[float]:
    """Return the logarithms of the ratios of processes that took their samples in turns (same block and
    replicate).
    """
    below = {(record.block, record.replicate): record for record in bottom}
    pairs = [(r, other) for r in top if r.block and (other := below.get((r.block, r.replicate)))]
    logs = [math.log(process_median(one) / process_median(other)) for one, other in pairs]
    return _average_by_allocation(logs, [(_allocation(one), _allocation(other)) for one, other in pairs])


def _resample_case(records: Sequence[Record], stream: int) -> _Resampled:
    """Resample the allocations, processes, compilations or samples: the first of these that there are
    several of.
    """
    logs = [math.log(process_median(record)) for record in records]
    members = _average_by_allocation(logs, [_allocation(record) for record in records])
    if len(members) == 1:
        members = [math.log(statistics.median(samples)) for samples in samples_by_compilation(records[0])]
    return (
        _resample_members(members, stream)
        if len(members) > 1
        else _resample_samples(records[0].seconds, stream)
    )


def _allocation(record: Record) -> Hashable:
    """Return the job of a process; processes without a job are in one allocation."""
    return str(record.environment.get("job"))


def _average_by_allocation(logs: Sequence[float], allocations: Sequence[Hashable]) -> list[float]:
    """Return the mean of each allocation, or the logarithms themselves where there is one allocation."""
    groups = group_by(zip(allocations, logs, strict=True), lambda pair: pair[0]).values()
    return [statistics.fmean(log for _, log in group) for group in groups] if len(groups) > 1 else list(logs)


def _resample_members(logs: Sequence[float], stream: int) -> _Resampled:
    values = np.sort(logs)  # so that the order of the records does not matter
    draws = values[_drawn_members(len(values), stream)].mean(1) - values.mean()
    variance = float(values.var(ddof=1)) / len(values)
    return _Resampled(math.exp(values.mean()), draws, variance, len(values), variance)


def _resample_samples(seconds: Sequence[float], stream: int) -> _Resampled:
    """Resample the samples of one process; the value is their median."""
    median = statistics.median(seconds)
    if len(seconds) < _LEAST_SAMPLES:
        return _Resampled(median, None)
    medians = np.sort(seconds)[_drawn_medians(len(seconds), stream)].mean(0)
    draws = np.log(medians / median) * autocorrelation.spread_factor(seconds)
    low, high = np.quantile(draws, _PERCENTILES)
    return _Resampled(median, draws, float((high - low) / (2 * _NORMAL)) ** 2, len(seconds))


@functools.lru_cache(maxsize=4096)
def _drawn_members(count: int, stream: int) -> Any:
    """Return the indices of the members of each draw: (draws, members - 1)."""
    return np.random.default_rng([count, stream]).integers(count, size=(_DRAWS, count - 1))


@functools.lru_cache(maxsize=4096)
def _drawn_medians(count: int, stream: int) -> Any:
    """Return the indices of the two middle samples of each draw, equal where the count is odd: (2, draws)."""
    taken = np.sort(np.random.default_rng([count, stream]).integers(count, size=(_DRAWS, count)), 1)
    return taken[:, [(count - 1) // 2, count // 2]].T
