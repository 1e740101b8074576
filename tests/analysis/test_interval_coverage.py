"""Tests of the confidence intervals of ratios.py: their coverage of the true ratio, and their width."""

import random

import numpy as np
import pytest

from scaling.analysis import ratios
from scaling.analysis.ratios import ratio_interval
from scaling.core.case import Case
from scaling.core.record import Record

pytestmark = pytest.mark.thin(4, "thorough")

CASE = Case("linear", sizes={"p": 5, "o": 3}, points=7)
RUNS = 250


def process(seconds, replicate=0, block=None, job=None):
    environment = {"digest": "e"} | ({"job": job} if job else {})
    return Record(CASE, "ok", environment, seconds=list(seconds), replicate=replicate, block=block)


def processes(generator, levels, samples=15, noise=0.02, block=None, jobs=()):
    """Return one record per level (the logarithm of its median) with noisy samples; `jobs` names the job of each record."""
    scatter = noise * generator.normal(size=(len(levels), samples))
    named = [*jobs, *[None] * len(levels)]
    return [
        process(np.exp(level + row), i, block, named[i])
        for i, (level, row) in enumerate(zip(levels, scatter, strict=True))
    ]


def estimate_of(top, bottom):
    return ratios.estimate_ratio(top, bottom).estimate


def simulate(draw, estimate=estimate_of, runs=RUNS, seed=1):
    """Return how often the interval contains the true ratio 1, and the median half-width of its logarithm."""
    generator, covered, half_widths = np.random.default_rng(seed), 0, []
    for _ in range(runs):
        ratio = estimate(*draw(generator))
        covered += ratio.low <= 1 <= ratio.high
        half_widths.append(np.log(ratio.high / ratio.low) / 2)
    return covered / runs, float(np.median(half_widths))


@pytest.mark.parametrize("count", [2, 3, 5, 10])
@pytest.mark.parametrize("between, noise", [(0.03, 0.01), (0.005, 0.05)])
def test_interval_over_several_processes_covers_the_population_ratio(count, between, noise):
    draw_side = lambda g: processes(g, between * g.normal(size=count), noise=noise)  # noqa: E731
    coverage, _ = simulate(lambda g: (draw_side(g), draw_side(g)))
    assert coverage >= 0.92
    if between > noise:  # pooling treats the samples as independent repeats
        assert simulate(lambda g: (draw_side(g), draw_side(g)), pooled_ratio)[0] < 0.9


def pooled_ratio(top, bottom):
    samples = ([s for record in side for s in record.seconds] for side in (top, bottom))
    return ratios.Estimate(*ratio_interval(*samples))


@pytest.mark.parametrize("count", [2, 3, 5, 10])
def test_processes_that_took_turns_are_compared_in_pairs(count):
    def draw(generator, blocks=("b", "b")):
        drift = 0.1 * generator.normal(size=count)
        return [
            processes(generator, drift + 0.01 * generator.normal(size=count), noise=0.005, block=block)
            for block in blocks
        ]

    coverage, half_width = simulate(draw)
    assert coverage >= 0.92
    assert half_width < 0.5 * simulate(lambda g: draw(g, ("a", "b")))[1]
    assert half_width < 0.5 * simulate(lambda g: draw(g, (None, None)))[1]


@pytest.mark.parametrize("samples", [6, 9, 15, 40])
@pytest.mark.parametrize("tail", ["normal", "spikes"])
def test_interval_of_single_processes_covers_the_ratio_and_is_shorter_than_by_ranks(samples, tail):
    def draw_side(generator):
        outliers = 1.0 * (generator.random(samples) < 0.1) if tail == "spikes" else 0.0
        return [process(np.exp(0.02 * generator.normal(size=samples) + outliers * generator.random(samples)))]

    coverage, half_width = simulate(lambda g: (draw_side(g), draw_side(g)))
    assert coverage >= 0.93
    if samples > 6:
        rank_ratio = lambda a, b: ratios.Estimate(*ratio_interval(a[0].seconds, b[0].seconds))  # noqa: E731
        assert half_width < 0.8 * simulate(lambda g: (draw_side(g), draw_side(g)), rank_ratio)[1]


def autocorrelated(generator, samples, correlation):
    series = generator.normal(size=samples)
    for i in range(1, samples):
        series[i] = correlation * series[i - 1] + np.sqrt(1 - correlation**2) * series[i]
    return [process(np.exp(0.02 * series))]


@pytest.mark.parametrize(
    "correlation, samples, min_coverage", [(0.3, 15, 0.9), (0.5, 30, 0.9), (0.7, 30, 0.87), (0.7, 100, 0.9)]
)
def test_autocorrelated_samples_have_wider_intervals(correlation, samples, min_coverage):
    """A known limit: ten strongly correlated samples are too few to detect the correlation, so the interval is too short."""
    coverage, half_width = simulate(
        lambda g: (autocorrelated(g, samples, correlation), autocorrelated(g, samples, correlation))
    )
    assert coverage >= min_coverage
    assert (
        half_width > simulate(lambda g: (autocorrelated(g, samples, 0.0), autocorrelated(g, samples, 0.0)))[1]
    )


@pytest.mark.parametrize("jobs, per_job", [(2, 3), (3, 3), (5, 2)])
def test_interval_over_several_jobs_is_estimated_between_jobs(jobs, per_job):
    def draw(generator, with_jobs=True):
        sides = []
        for name in ("top", "bottom"):
            levels = np.repeat(0.03 * generator.normal(size=jobs), per_job) + 0.005 * generator.normal(
                size=jobs * per_job
            )
            names = [f"{name} {i // per_job}" for i in range(jobs * per_job)] if with_jobs else ()
            sides.append(processes(generator, levels, noise=0.005, jobs=names))
        return sides

    assert simulate(draw)[0] >= 0.92
    assert simulate(lambda g: draw(g, with_jobs=False))[0] < 0.9, "processes of one job are not independent"


def test_single_job_and_no_job_give_the_same_interval():
    generator = np.random.default_rng(3)
    sides = [processes(generator, 0.03 * generator.normal(size=4)) for _ in range(2)]
    with_one_job = [[process(r.seconds, r.replicate, job="12") for r in side] for side in sides]
    assert ratios.estimate_ratio(*with_one_job) == ratios.estimate_ratio(*sides)


def test_one_process_contributes_its_samples_and_several_their_medians():
    generator = np.random.default_rng(4)
    (single,), several = processes(generator, [0.0], noise=0.01), processes(generator, [0.0, 0.1, -0.1, 0.05])
    against_itself, against_several = (estimate_of([single], [single]), estimate_of([single], several))
    assert against_itself.high < 1.02 and against_several.low < 0.92 and against_several.high > 1.08


def test_too_few_samples_have_no_interval():
    few, enough = process([1.0, 2.0, 3.0, 4.0, 5.0]), process([1.0, 2.0, 1.5, 3.0, 0.5, 2.5])
    assert estimate_of([few], [enough]) == (3 / 1.75, None, None)
    assert estimate_of([enough], [enough]).low < 1


def test_one_outlier_does_not_widen_the_interval():
    steady = [1.0, 1.01, 0.99, 1.02, 0.98, 1.01, 1.0, 0.99, 1.0]
    ratio = estimate_of([process([*steady[:-1], 100.0])], [process(steady)])
    assert 0.95 < ratio.low < ratio.high < 1.05


def test_interval_does_not_depend_on_the_order_of_records():
    generator = np.random.default_rng(5)
    levels = [0.0, 0.01, 0.02, 0.03, 0.04, 0.3]  # too skewed for the interval of the normal distribution
    top, bottom = (processes(generator, side_levels, block="b") for side_levels in (levels, [0.0] * 6))
    expected = estimate_of(top, bottom)
    for seed in range(5):
        shuffled = random.Random(seed).sample(top, 6), random.Random(seed + 9).sample(bottom, 6)
        assert estimate_of(*shuffled) == pytest.approx(expected, rel=1e-12)


def test_job_identifiers_may_be_lists_or_text():
    seconds = [1 + 0.01 * i for i in range(9)]
    list_ids, text_ids = ([process(seconds, i, job=job) for i in range(3)] for job in (["a", "b"], "a, b"))
    assert ratios.estimate_ratio(list_ids, list_ids) == ratios.estimate_ratio(text_ids, text_ids)
