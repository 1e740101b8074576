"""Rank tests for autocorrelation and trend in the time samples of one process."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy.special import ndtri, stdtr  # not scipy.stats, which takes 0.3 s to import

_SIGNIFICANCE = 1e-3  # probability that independent samples are called dependent


def trend(samples: Sequence[float]) -> float | None:
    """Return the change of the median time from the first to the last third of the samples.

    The change is a fraction of the median of all samples. Return None if Spearman's rank correlation with the
    sample index is not significant at the 0.1 % level, or if there are fewer than three samples.
    """
    ranks, count = _centred_ranks(samples), len(samples)
    if count < 3 or not ranks.any():
        return None
    correlation = abs(float(np.corrcoef(ranks, range(count))[0, 1]))
    statistic = correlation * math.sqrt((count - 2) / max(1 - correlation**2, 1e-12))
    if 2 * stdtr(count - 2, -statistic) > _SIGNIFICANCE:
        return None
    first, last = (float(np.median(part)) for part in (samples[: count // 3], samples[-(count // 3) :]))
    return (last - first) / float(np.median(samples))


def interval_widening(samples: Sequence[float]) -> float | None:
    """Return the factor by which autocorrelation widens the confidence interval of the median.

    The factor assumes a first-order autoregressive process. Return None if the autocorrelation is not
    significant at the 0.1 % level. Source: Bartels 1982, the rank version of von Neumann's ratio test and its
    variance.
    """
    n, correlation = len(samples), _lag_one_correlation(samples)
    if n < 3:
        return None
    spread = math.sqrt((n - 2) * (5 * n**2 - 2 * n - 9) / (5 * n * (n + 1) * (n - 1) ** 2))
    return spread_factor(samples) if correlation > -ndtri(_SIGNIFICANCE) * spread else None


def spread_factor(samples: Sequence[float]) -> float:
    """Return the factor by which autocorrelation widens the confidence interval, without a significance test.

    The factor is at least 1 and at most the square root of the number of samples.
    """
    correlation = max(0.0, _lag_one_correlation(samples))
    return min(math.sqrt((1 + correlation) / (1 - correlation)), math.sqrt(len(samples)))


def _lag_one_correlation(samples: Sequence[float]) -> float:
    """Return the lag-one autocorrelation of the ranks of the samples, or 0 if all samples are equal."""
    ranks = _centred_ranks(samples)
    return 1 - float((np.diff(ranks) ** 2).sum()) / (2 * float(ranks @ ranks)) if ranks.any() else 0.0


def _centred_ranks(samples: Sequence[float]) -> Any:
    """Return the ranks of the samples minus their mean. Equal samples share the mean of their ranks."""
    _, index, counts = np.unique(samples, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[index] - (len(samples) + 1) / 2
