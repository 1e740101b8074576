"""Series: whether samples, in the order in which a process took them, are as independent as their interval takes them to be.

Works on ranks, so that a spike counts for no more than any other large sample. Knows numbers; not where they come from, nor what
is made of it. What lasts for many samples shows as a trend or as resemblance of neighbours, not how long it lasts.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy.special import ndtri, stdtr

_CHANCE = 1e-3  # how often independent samples would be called dependent


def trend(samples: Sequence[float]) -> float | None:
    """By how much the last third is slower than the first, as a share of the median; None where chance alone would show it.

    Whether it is chance tells Spearman's rank correlation with the order, by its approximation with Student's t.
    """
    ranks, count = _ranks(samples), len(samples)
    order = np.arange(count) - (count - 1) / 2
    size = math.sqrt(float(ranks @ ranks) * float(order @ order))
    if count < 3 or not size:
        return None
    correlation = abs(float(ranks @ order)) / size
    if 2 * stdtr(count - 2, -correlation * math.sqrt((count - 2) / max(1 - correlation**2, 1e-12))) > _CHANCE:
        return None
    first, last = (float(np.median(part)) for part in (samples[: count // 3], samples[-(count // 3) :]))
    return (last - first) / float(np.median(samples))


def widening(samples: Sequence[float]) -> float | None:
    """How many times as wide the interval of the median ought to be where each sample resembles the one before; None by chance.

    As if each knew nothing of those before the last (a first-order process). Source: the rank version of von Neumann's ratio,
    Bartels 1982, and its variance.
    """
    n, resemblance = len(samples), _resemblance(samples)
    if n < 3:
        return None
    spread = math.sqrt((n - 2) * (5 * n**2 - 2 * n - 9) / (5 * n * (n + 1) * (n - 1) ** 2))
    return stretch(samples) if resemblance > -ndtri(_CHANCE) * spread else None


def stretch(samples: Sequence[float]) -> float:
    """The same, whether or not it could be chance; at most that of samples that all together tell no more than one."""
    resemblance = max(0.0, _resemblance(samples))
    return min(math.sqrt((1 + resemblance) / (1 - resemblance)), math.sqrt(len(samples)))


def _resemblance(samples: Sequence[float]) -> float:
    """The correlation of each sample's rank with that of the one before; 0 where all are equal."""
    ranks = _ranks(samples)
    return 1 - float((np.diff(ranks) ** 2).sum()) / (2 * float(ranks @ ranks)) if ranks.any() else 0.0


def _ranks(samples: Sequence[float]) -> Any:
    """Ranks around zero; equal samples share the mean of theirs."""
    _, place, counts = np.unique(samples, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[place] - (len(samples) + 1) / 2
