"""Tests of the rank of a median interval against the binomial distribution of SciPy and exact integers."""

import math

import pytest
from scipy import stats

from scaling.analysis.ratios import ratio_interval
from scaling.core.timing import _enclosing_rank, median_interval

LEVELS = (0.5, 0.9, 0.95, 0.975, 0.99, 0.999)


def exact_rank(count, confidence):
    """Return the rank, computed with integers of arbitrary size."""
    allowed, below = math.floor((1 - confidence) / 2 * 2.0**53) << max(0, count - 53), 0
    if count < 53:
        allowed >>= 53 - count
    for k in range(count // 2 + 1):
        below += math.comb(count, k)
        if below > allowed:
            return k
    return 0


@pytest.mark.parametrize("confidence", LEVELS)
def test_the_rank_is_exact_for_up_to_400_samples(confidence):
    for count in range(1, 400):
        assert _enclosing_rank(count, confidence) == exact_rank(count, confidence), count


LARGE = pytest.param(100_000, marks=pytest.mark.thorough)


@pytest.mark.parametrize("count", [1, 2, 1000, 1023, 1024, 1029, 1030, 1075, 2000, 4096, 9_999, LARGE])
@pytest.mark.parametrize("confidence", LEVELS)
def test_the_rank_agrees_with_scipy_for_up_to_100_000_samples(count, confidence):
    k = _enclosing_rank(count, confidence)
    allowed = (1 - confidence) / 2
    assert stats.binom.cdf(k, count, 0.5) > allowed
    assert k == 0 or stats.binom.cdf(k - 1, count, 0.5) <= allowed * (1 + 1e-8)


@pytest.mark.parametrize("count", [1024, 5000, 100_000])
def test_many_samples_give_a_narrow_interval_around_their_median(count):
    samples = [1 + i / count for i in range(count)]
    low, high = median_interval(samples)
    assert low < 1.5 < high
    assert high - low == pytest.approx(2 * 1.96 * 0.5 / math.sqrt(count), rel=0.05)
    ratio, low, high = ratio_interval(samples, samples)
    assert ratio == 1 and low < 1 < high
