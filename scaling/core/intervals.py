"""Compute distribution-free confidence intervals of a median, and of a ratio of two medians."""

import functools
import math
import statistics
from collections.abc import Sequence

# Ranks at least 6 sqrt(count), 12 standard deviations, below the middle have a probability below 1e-30.
_TAIL = 6


@functools.lru_cache(maxsize=4096)
def _enclosing_rank(count: int, confidence: float) -> int:
    """Return the rank k of the samples that bound a confidence interval of the median, or 0 if none do.

    k is the largest rank for which the interval from the k-th smallest to the k-th largest of `count` samples
    contains the median of their distribution with at least the probability `confidence`, such as 0.95. The
    number of samples below that median is binomial with probability 1/2.
    """
    # Each probability is computed from the previous one, because `math.comb(count, k)` does not fit in a
    # float for 1,030 or more samples.
    allowed = (1 - confidence) / 2 * (1 + 1e-9)  # allows for rounding
    first = max(0, count // 2 - _TAIL * math.isqrt(count))
    probability = math.exp(
        math.lgamma(count + 1) - math.lgamma(first + 1) - math.lgamma(count - first + 1) - count * math.log(2)
    )
    cumulative = 0.0
    for k in range(first, count // 2 + 1):
        cumulative += probability
        if cumulative > allowed:
            return k
        probability *= (count - k) / (k + 1)
    return 0


def median_interval(samples: Sequence[float], confidence: float = 0.95) -> tuple[float, float] | None:
    """Return the confidence interval (low, high) of the median, or None if there are too few samples.

    The confidence is 95 % by default. `low` and `high` are two of the samples. 95 % confidence needs at least
    six samples and 97.5 % needs seven. The interval follows from the sign test, which textbooks on
    nonparametric statistics describe.
    """
    k = _enclosing_rank(len(samples), confidence)
    if k < 1:
        return None
    ordered = sorted(samples)
    return ordered[k - 1], ordered[-k]


def ratio_interval(top: Sequence[float], bottom: Sequence[float]) -> tuple[float, float, float] | None:
    """Return the ratio of the medians of two samples with its 95 % confidence interval: (ratio, low, high).

    All values must be positive. Return None if there are too few. Each median has an interval with 97.5 %
    confidence, so that both intervals are correct with a probability of at least 95 % (Bonferroni).
    """
    above, below = median_interval(top, 0.975), median_interval(bottom, 0.975)
    if above is None or below is None:
        return None
    return statistics.median(top) / statistics.median(bottom), above[0] / below[1], above[1] / below[0]
