"""Whether the intervals by level of ratios.py hold the truth as often as they say, and no longer than they need be."""

import random

import numpy as np
import pytest

from scaling.analysis import ratios
from scaling.core.case import Case
from scaling.core.intervals import ratio_interval
from scaling.core.record import Record

pytestmark = pytest.mark.thin(4, "contract")

CASE = Case("linear", sizes={"p": 5, "o": 3}, points=7)
RUNS = 250


def process(seconds, replicate=0, block=None, job=None, further=()):
    around = {"digest": "e"} | ({"job": job} if job else {})
    return Record(CASE, "ok", around, seconds=list(seconds), replicate=replicate, block=block,
                  compilations=[{"samples": count} for count in further])  # fmt: skip


def processes(generator, levels, samples=15, noise=0.02, block=None, jobs=()):
    """A process for each level (a logarithm), its samples scattered around it; `jobs` names the job of each."""
    scatter = noise * generator.normal(size=(len(levels), samples))
    named = [*jobs, *[None] * len(levels)]
    return [
        process(np.exp(level + row), i, block, named[i])
        for i, (level, row) in enumerate(zip(levels, scatter, strict=True))
    ]


def held(draw, estimate=ratios.estimate_ratio, runs=RUNS, seed=1):
    """How often the interval of a ratio holds 1, the truth, and the median of its half-width on the logarithm."""
    generator, count, halves = np.random.default_rng(seed), 0, []
    for _ in range(runs):
        found = estimate(*draw(generator))
        count += found.low <= 1 <= found.high
        halves.append(np.log(found.high / found.low) / 2)
    return count / runs, float(np.median(halves))


@pytest.mark.parametrize("count", [2, 3, 5, 10])
@pytest.mark.parametrize("between, noise", [(0.03, 0.01), (0.005, 0.05)])
def test_of_several_processes_the_interval_holds_the_ratio_of_all_that_there_might_have_been(
    count, between, noise
):
    one = lambda g: processes(g, between * g.normal(size=count), noise=noise)  # noqa: E731
    often, _ = held(lambda g: (one(g), one(g)))
    assert often >= 0.92
    if between > noise:  # as if samples were independent repeats
        assert held(lambda g: (one(g), one(g)), of_pooled_samples)[0] < 0.9


def of_pooled_samples(top, bottom):
    pooled = ([s for record in side for s in record.seconds] for side in (top, bottom))
    return ratios.Estimate(*ratio_interval(*pooled))


@pytest.mark.parametrize("count", [2, 3, 5, 10])
def test_processes_that_took_turns_are_compared_pair_by_pair(count):
    def draw(generator, blocks=("b", "b")):
        drift = 0.1 * generator.normal(size=count)
        return [
            processes(generator, drift + 0.01 * generator.normal(size=count), noise=0.005, block=block)
            for block in blocks
        ]

    often, half = held(draw)
    assert often >= 0.92
    assert (
        half < 0.5 * held(lambda g: draw(g, ("a", "b")))[1]
        and half < 0.5 * held(lambda g: draw(g, (None, None)))[1]
    )


@pytest.mark.parametrize("samples", [6, 9, 15, 40])
@pytest.mark.parametrize("tail", ["normal", "spikes"])
def test_of_one_process_the_interval_is_that_of_its_samples_and_shorter_than_that_of_ranks(samples, tail):
    def one(generator):
        far = 1.0 * (generator.random(samples) < 0.1) if tail == "spikes" else 0.0
        return [process(np.exp(0.02 * generator.normal(size=samples) + far * generator.random(samples)))]

    often, half = held(lambda g: (one(g), one(g)))
    assert often >= 0.93
    if samples > 6:
        ranked = lambda a, b: ratios.Estimate(*ratio_interval(a[0].seconds, b[0].seconds))  # noqa: E731
        assert half < 0.8 * held(lambda g: (one(g), one(g)), ranked)[1]


def resembling(generator, samples, likeness):
    series = generator.normal(size=samples)
    for i in range(1, samples):
        series[i] = likeness * series[i - 1] + np.sqrt(1 - likeness**2) * series[i]
    return [process(np.exp(0.02 * series))]


@pytest.mark.parametrize(
    "likeness, samples, least", [(0.3, 15, 0.9), (0.5, 30, 0.9), (0.7, 30, 0.87), (0.7, 100, 0.9)]
)
def test_samples_that_resemble_those_before_them_tell_less(likeness, samples, least):
    """A limit: ten samples each much like the one before are too few to see that; then the interval is too short."""
    often, half = held(lambda g: (resembling(g, samples, likeness), resembling(g, samples, likeness)))
    assert (
        often >= least
        and half > held(lambda g: (resembling(g, samples, 0.0), resembling(g, samples, 0.0)))[1]
    )


@pytest.mark.parametrize("jobs, each", [(2, 3), (3, 3), (5, 2)])
def test_of_several_jobs_the_interval_is_one_between_jobs(jobs, each):
    def draw(generator, named=True):
        sides = []
        for name in ("top", "bottom"):
            levels = np.repeat(0.03 * generator.normal(size=jobs), each) + 0.005 * generator.normal(
                size=jobs * each
            )
            names = [f"{name} {i // each}" for i in range(jobs * each)] if named else ()
            sides.append(processes(generator, levels, noise=0.005, jobs=names))
        return sides

    assert held(draw)[0] >= 0.92
    assert held(lambda g: draw(g, named=False))[0] < 0.9, "processes of one job are not independent"


def test_one_job_is_no_level_and_neither_is_none():
    generator = np.random.default_rng(3)
    sides = [processes(generator, 0.03 * generator.normal(size=4)) for _ in range(2)]
    there = [[process(r.seconds, r.replicate, job="12") for r in side] for side in sides]
    assert ratios.estimate_ratio(*there) == ratios.estimate_ratio(*sides)


def test_a_process_on_one_side_is_known_by_its_samples_and_several_on_the_other_by_their_medians():
    generator = np.random.default_rng(4)
    (one,), several = processes(generator, [0.0], noise=0.01), processes(generator, [0.0, 0.1, -0.1, 0.05])
    alone, beside = ratios.estimate_ratio([one], [one]), ratios.estimate_ratio([one], several)
    assert alone.high < 1.02 and beside.low < 0.92 and beside.high > 1.08


def test_fresh_compilations_of_one_process_are_its_members():
    loose = process([1.0, 1.001] * 5 + [1.2, 1.201] * 5, further=(10,))
    tight = process([1.0, 1.001] * 5 + [1.0, 1.002] * 5, further=(10,))
    assert (
        ratios.estimate_ratio([loose], [tight]).high
        > 1.5
        > 1.01
        > ratios.estimate_ratio([tight], [tight]).high
    )


def test_too_few_samples_have_no_interval():
    few, enough = process([1.0, 2.0, 3.0, 4.0, 5.0]), process([1.0, 2.0, 1.5, 3.0, 0.5, 2.5])
    assert ratios.estimate_ratio([few], [enough]).estimate == (3 / 1.75, None, None)
    assert ratios.estimate_ratio([enough], [enough]).low < 1


def test_one_sample_far_off_makes_no_interval_wide():
    steady = [1.0, 1.01, 0.99, 1.02, 0.98, 1.01, 1.0, 0.99, 1.0]
    found = ratios.estimate_ratio([process([*steady[:-1], 100.0])], [process(steady)])
    assert 0.95 < found.low < found.high < 1.05


def test_the_same_records_give_the_same_interval_in_every_order():
    generator = np.random.default_rng(5)
    levels = [0.0, 0.01, 0.02, 0.03, 0.04, 0.3]  # so skewed that not the normal distribution decides
    top, bottom = (processes(generator, each, block="b") for each in (levels, [0.0] * 6))
    found = ratios.estimate_ratio(top, bottom)
    for seed in range(5):
        shuffled = random.Random(seed).sample(top, 6), random.Random(seed + 9).sample(bottom, 6)
        assert ratios.estimate_ratio(*shuffled).estimate == pytest.approx(found.estimate, rel=1e-12)


def test_a_job_may_be_named_by_anything():
    times = [1 + 0.01 * i for i in range(9)]
    listed, named = ([process(times, i, job=job) for i in range(3)] for job in (["a", "b"], "a, b"))
    assert ratios.estimate_ratio(listed, listed) == ratios.estimate_ratio(named, named)
