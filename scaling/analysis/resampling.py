"""Resampling: how many times as long one case takes as another, with a bootstrap interval by levels.

Samples lie within compilations, those within processes, those within allocations (jobs of a cluster). On each side the highest
level that has two members or more is drawn from anew: what varies further down shows in its members already, and would count
twice if it were drawn as well. So with one process the interval is that of its samples, with one job that of its processes, and
neither knows what the next would give. Where turns of sampling alternated, pairs of processes are drawn, and what slowed both
down cancels; only there.

Of n members n - 1 are drawn, so that the spread is neither too small nor too large however few there are (Rao and Wu 1988,
Resampling inference with complex survey data); the distances of the percentiles are expanded as Student's quantile is over the
normal one (after Hesterberg 2015, What teachers should know about the bootstrap), and are those of a normal distribution at
least. A plain percentile interval of two processes would hold the truth two times in three. Samples of a process that resemble
the one before them tell less than as many independent ones: their draws are spread as much further (series.py).

Knows records and statistics. The draws are the same for all that have as many members, so that the same records give the same
interval in every order, on every machine.
"""

import functools
import math
import statistics
from collections.abc import Hashable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy.special import ndtri, stdtrit

from scaling.analysis import autocorrelation
from scaling.analysis.ratios import LEAST_VARIANCE, compilations, process_median
from scaling.core.record import Record

_DRAWS = 2000
_LEAST_SAMPLES = 6  # of a process: of fewer the extremes enclose the median less than 95 % of the time
_PERCENTILES = (0.025, 0.975)
_NORMAL = float(ndtri(_PERCENTILES[1]))


class ResampledEstimate(NamedTuple):
    """A number with its 95 % interval; None where it cannot be known."""

    value: float
    low: float | None
    high: float | None


class _Samples(NamedTuple):
    """A time or a ratio, and how far its logarithm is off from draw to draw; None where there are too few samples."""

    value: float
    draws: Any
    variance: float = 0.0
    members: int = 0
    least: float = 0.0  # variance of a normal distribution below which the draws are not believed


def ratio(top: Sequence[Record], bottom: Sequence[Record]) -> ResampledEstimate:
    """How many times as long the top takes as the bottom, from a record a process on each side."""
    pairs = _pairs(top, bottom)
    sides = [_of_members(pairs, 0)] if len(pairs) > 1 else [_side(top, 0), _side(bottom, 1)]
    value = sides[0].value / math.prod(side.value for side in sides[1:])
    if any(side.draws is None for side in sides):
        return ResampledEstimate(value, None, None)
    draws = sides[0].draws - sum(side.draws for side in sides[1:])
    down, up = np.quantile(draws, _PERCENTILES)
    least = _NORMAL * math.sqrt(sum(side.least for side in sides))
    further = float(stdtrit(_freedom(sides), _PERCENTILES[1])) / _NORMAL
    return ResampledEstimate(value, value * math.exp(further * min(down, -least)), value * math.exp(further * max(up, least)))


def _freedom(sides: Sequence[_Samples]) -> float:
    """Degrees of freedom of all variances together (Welch and Satterthwaite)."""
    variances = [max(side.variance, LEAST_VARIANCE) for side in sides]
    each = (variance**2 / (side.members - 1) for variance, side in zip(variances, sides, strict=True))
    return sum(variances) ** 2 / sum(each)


def _pairs(top: Iterable[Record], bottom: Iterable[Record]) -> list[float]:
    """The logarithms of the ratios of processes whose turns alternated: those with the same block and replicate."""
    below = {(record.block, record.replicate): record for record in bottom}
    both = [(record, other) for record in top if record.block and (other := below.get((record.block, record.replicate)))]
    logs = [math.log(process_median(a) / process_median(b)) for a, b in both]
    return _by_allocation(logs, [(_allocation(a), _allocation(b)) for a, b in both])


def _side(records: Sequence[Record], stream: int) -> _Samples:
    """A case, by its allocations, processes, compilations or samples: the first of these of which there are several."""
    logs = [math.log(process_median(record)) for record in records]
    members = _by_allocation(logs, [_allocation(record) for record in records])
    if len(members) == 1:
        members = [math.log(statistics.median(samples)) for samples in compilations(records[0])]
    return _of_members(members, stream) if len(members) > 1 else _of_samples(records[0].seconds, stream)


def _allocation(record: Record) -> Hashable:
    """The job in which a process ran; all that ran outside one, or in a cluster that names none, are together."""
    return str(record.environment.get("job"))


def _by_allocation(logs: Sequence[float], allocations: Sequence[Hashable]) -> list[float]:
    """The mean of each allocation, where there are several; otherwise the logarithms as they are."""
    groups: dict[Hashable, list[float]] = {}
    for allocation, log in zip(allocations, logs, strict=True):
        groups.setdefault(allocation, []).append(log)
    return [statistics.fmean(group) for group in groups.values()] if len(groups) > 1 else list(logs)


def _of_members(logs: Sequence[float], stream: int) -> _Samples:
    values = np.sort(logs)  # so that the order of the records does not matter
    draws = values[_members(len(values), stream)].mean(1) - values.mean()
    variance = float(values.var(ddof=1)) / len(values)
    return _Samples(math.exp(values.mean()), draws, variance, len(values), variance)


def _of_samples(seconds: Sequence[float], stream: int) -> _Samples:
    """One process, by the median of its samples."""
    median = statistics.median(seconds)
    if len(seconds) < _LEAST_SAMPLES:
        return _Samples(median, None)
    drawn = np.sort(seconds)[_middles(len(seconds), stream)].mean(0)
    draws = np.log(drawn / median) * autocorrelation.stretch(seconds)
    low, high = np.quantile(draws, _PERCENTILES)
    return _Samples(median, draws, float((high - low) / (2 * _NORMAL)) ** 2, len(seconds))


@functools.lru_cache(maxsize=4096)
def _members(count: int, stream: int) -> Any:
    """Which members each draw takes, one fewer than there are: (draws, members - 1)."""
    return np.random.default_rng([count, stream]).integers(count, size=(_DRAWS, count - 1))


@functools.lru_cache(maxsize=4096)
def _middles(count: int, stream: int) -> Any:
    """Which two of the sorted samples are in the middle of each draw of as many: (2, draws); the same twice if they are odd."""
    taken = np.sort(np.random.default_rng([count, stream]).integers(count, size=(_DRAWS, count)), 1)
    return taken[:, [(count - 1) // 2, count // 2]].T
