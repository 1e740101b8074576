"""Intervals: how well a handful of timings knows its median, without assuming how they are distributed."""

import functools
import math
import statistics
from collections.abc import Sequence

# In units of sqrt(count), twelve standard deviations: the probability below is less than 1e-30.
_TAIL = 6


@functools.lru_cache(maxsize=4096)
def _rank(count: int, confidence: float) -> int:
    """Return the largest k for which the k-th smallest and the k-th largest value enclose the median, or 0.

    The number of samples below the median is binomial, with probability 1/2. Its probabilities are computed
    one from the next, as floats: `math.comb(count, k)` does not fit into one for 1,030 samples or more.
    """
    allowed = (1 - confidence) / 2 * (1 + 1e-9)  # equal but for rounding is allowed
    first = max(0, count // 2 - _TAIL * math.isqrt(count))
    chance = math.exp(
        math.lgamma(count + 1) - math.lgamma(first + 1) - math.lgamma(count - first + 1) - count * math.log(2)
    )
    below = 0.0
    for k in range(first, count // 2 + 1):
        below += chance
        if below > allowed:
            return k
        chance *= (count - k) / (k + 1)
    return 0


def median_interval(samples: Sequence[float], confidence: float = 0.95) -> tuple[float, float] | None:
    """Return the order statistics that enclose the median with this confidence; None for too few samples.

    Six samples are the least for 95 %, seven for 97.5 %. Source: the sign test; see any text on nonparametric
    statistics.
    """
    k = _rank(len(samples), confidence)
    if k < 1:
        return None
    ordered = sorted(samples)
    return ordered[k - 1], ordered[-k]


def ratio_interval(top: Sequence[float], bottom: Sequence[float]) -> tuple[float, float, float] | None:
    """Return the ratio of two medians with a 95 % interval: (ratio, low, high).

    The interval of each median is taken at 97.5 %, so that both hold at least 95 % of the time (Bonferroni).
    """
    above, below = median_interval(top, 0.975), median_interval(bottom, 0.975)
    if above is None or below is None:
        return None
    return statistics.median(top) / statistics.median(bottom), above[0] / below[1], above[1] / below[0]
