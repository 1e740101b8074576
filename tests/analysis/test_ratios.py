"""Tests of ratios.py: ratios, intervals and p-values against SciPy and against simulated processes with known ratios."""

import dataclasses
import math
import statistics

import numpy as np
import pytest
from scipy import stats

from scaling.analysis import ratios
from scaling.core.case import Case
from scaling.core.record import Record
from scaling.core.timing import median_interval

pytestmark = pytest.mark.thin(3, "thorough")

CASE = Case("linear", sizes={"p": 5, "o": 3}, points=7)


def process(seconds, replicate=0, block=None):
    return Record(CASE, "ok", {"digest": "e"}, seconds=list(seconds), replicate=replicate, block=block)


def processes(medians, block=None):
    """Return one record per median, each with three samples."""
    return [process([0.9 * m, m, 1.3 * m], replicate, block) for replicate, m in enumerate(medians)]


def test_case_time_is_the_geometric_mean_of_process_medians_whatever_their_sample_counts():
    records = [process([1.0] * 50), process([2.0] * 7, 1), process([4.0, 4.0, 9.0], 2)]
    assert ratios.estimate_time(records).value == pytest.approx(2.0)


def test_case_time_of_several_jobs_lies_in_its_interval_whatever_the_processes_of_each_job():
    medians = {"monday": [1.0 + i / 1000 for i in range(10)], "tuesday": [2.0], "friday": [4.0]}
    records = [
        dataclasses.replace(process([seconds] * 9, i), environment={"job": job})
        for job, times in medians.items()
        for i, seconds in enumerate(times)
    ]
    value, low, high = ratios.estimate_time(records)
    assert low <= value <= high
    assert value == pytest.approx(2.0, rel=2e-3)


@pytest.mark.parametrize("counts", [(1, 1), (1, 4), (3, 3), (4, 2), (9, 9)])
@pytest.mark.parametrize("blocks", [(None, None), ("b", "b")])
def test_ratio_of_two_cases_is_the_quotient_of_their_times_unless_only_some_processes_alternated(
    counts, blocks
):
    generator = np.random.default_rng(counts)
    sides = [
        [process(generator.lognormal(0, 1, 23), i, block) for i in range(count)]
        for count, block in zip(counts, blocks, strict=True)
    ]
    top, bottom = (ratios.estimate_time(side).value for side in sides)
    is_partly_paired = blocks == ("b", "b") and counts[0] != counts[1] and min(counts) > 1
    is_quotient = ratios.estimate_ratio(*sides).estimate.value == pytest.approx(top / bottom, rel=1e-12)
    assert is_quotient is not is_partly_paired


def test_single_process_has_an_interval_of_its_samples_but_no_p_value():
    one, other = process(np.linspace(1, 2, 9)), process(np.linspace(10, 20, 9), block="b")
    assert ratios.estimate_time([one])[1:] == median_interval(one.seconds)
    for top in ([other], [other, process([15.0] * 9, 1)]):
        ratio = ratios.estimate_ratio(top, [one])
        assert ratio.estimate.value == pytest.approx(10) and ratio.estimate.low < 10 < ratio.estimate.high
        assert ratios.p_value(ratio) is None and ratio.count == 0
    assert ratios.estimate_ratio([process([1.0] * 3)], [one]).estimate.low is None


@pytest.mark.parametrize("count", [2, 3, 5, 6, 10])
def test_interval_between_processes_covers_the_truth_and_pooled_samples_do_not(count):
    generator, covered, pooled_covered, runs = np.random.default_rng(count), 0, 0, 400
    for _ in range(runs):
        centres = np.exp(0.05 * generator.normal(size=count))
        records = [
            process(centre * np.exp(0.005 * generator.normal(size=20)), i) for i, centre in enumerate(centres)
        ]
        _, low, high = ratios.estimate_time(records)
        covered += low <= 1 <= high
        low, high = median_interval([s for record in records for s in record.seconds])
        pooled_covered += low <= 1 <= high
    assert covered >= 0.93 * runs > 0.8 * runs > pooled_covered


def test_paired_comparison_matches_a_paired_t_test_on_logarithms():
    top, bottom = [1.1, 2.3, 3.1, 4.6], [1.0, 2.0, 3.0, 4.0]
    ratio = ratios.estimate_ratio(processes(top, "b"), processes(bottom, "b")[::-1])
    expected = stats.ttest_rel(np.log(top), np.log(bottom))
    assert ratios.p_value(ratio) == pytest.approx(expected.pvalue) and ratio.pairs == 4
    assert np.log([ratio.estimate.low, ratio.estimate.high]) == pytest.approx(
        tuple(expected.confidence_interval())
    )
    assert ratio.estimate.value == pytest.approx(math.exp(statistics.fmean(np.log(top) - np.log(bottom))))


@pytest.mark.parametrize("blocks", [(None, None), ("a", "b"), (None, "b")])
def test_unpaired_comparison_matches_the_welch_test(blocks):
    top, bottom = [1.1, 1.3, 1.2, 1.9, 1.4], [1.0, 1.01, 1.02]
    ratio = ratios.estimate_ratio(processes(top, blocks[0]), processes(bottom, blocks[1]))
    expected = stats.ttest_ind(np.log(top), np.log(bottom), equal_var=False)
    assert ratios.p_value(ratio) == pytest.approx(expected.pvalue) and ratio.pairs == 0
    assert np.log([ratio.estimate.low, ratio.estimate.high]) == pytest.approx(
        tuple(expected.confidence_interval())
    )


def test_noise_common_to_a_pair_cancels():
    drift, noise = np.array([1.0, 1.5, 0.8, 2.0, 1.2]), np.array([1.0, 1.002, 0.999, 1.001, 0.998])
    paired = ratios.estimate_ratio(processes(1.05 * drift * noise, "b"), processes(drift, "b")).estimate
    unpaired = ratios.estimate_ratio(processes(1.05 * drift * noise, "a"), processes(drift, "b")).estimate
    assert 1 < paired.low < 1.05 < paired.high and unpaired.low < 0.7


def test_differences_within_the_margin_are_not_significant():
    ratio = ratios.estimate_ratio(processes([1.005, 1.0051, 1.0049], "b"), processes([1.0] * 3, "b"))
    assert ratios.p_value(ratio) < 0.001 and ratios.p_value(ratio, 0.01) > 0.5
    same = ratios.estimate_ratio(processes([1.0] * 3, "b"), processes([1.0] * 3, "b"))
    assert same.estimate.value == 1 and ratios.p_value(same) == 1


# Moderated variances: processes with noise of 3 %, or of 1 to 10 % depending on the case (two orders of variance).

NOISES = {
    "normal": lambda generator, shape: generator.normal(size=shape),
    "heavy-tailed": lambda generator, shape: generator.standard_t(3, size=shape) / math.sqrt(3),
    "with outliers": lambda generator, shape: (
        generator.normal(size=shape) / 2 + 4 * (generator.random(shape) < 0.1)
    ),
}


def simulate_ratios(generator, noise, replicates, spread, shared=0.0, slower=0, cases=200):
    """Return ratios of paired processes. The first `slower` cases take 10 % longer; `shared` is the fraction of common noise."""
    draw_noise = lambda cases: NOISES[noise](generator, (cases, replicates, 2)) @ [1, -1]  # noqa: E731
    scale = 0.03 * 10 ** generator.uniform(-0.5, 0.5, (cases, 1)) if spread else 0.03
    logs = scale * (math.sqrt(1 - shared) * draw_noise(cases) + math.sqrt(shared) * draw_noise(1))
    logs[:slower] += math.log(1.1)
    return [
        ratios.estimate_ratio(processes(np.exp(row), "b"), processes([1.0] * replicates, "b")) for row in logs
    ]


def p_values(estimates, margin=0.0):
    return np.array([ratios.p_value(ratio, margin) for ratio in estimates])


@pytest.mark.covering(2)
@pytest.mark.parametrize("shared", [0.0, 0.5])
@pytest.mark.parametrize("spread", [False, True])
@pytest.mark.parametrize("noise", NOISES)
def test_moderated_variances_keep_the_false_positive_rate_at_five_percent(noise, spread, shared):
    generator = np.random.default_rng(2)
    studies = [simulate_ratios(generator, noise, 3 + i % 3, spread, shared) for i in range(12)]
    plain, moderated = (
        [p_values(estimates) for estimates in studies],
        [p_values(ratios.moderate_variances(estimates)) for estimates in studies],
    )
    # The cases of a study share noise.
    assert np.mean(np.array(moderated) < 0.05) <= max(0.06, np.mean(np.array(plain) < 0.05) + 0.02)
    assert np.mean([(stats.false_discovery_control(p) < 0.05).mean() for p in moderated]) <= 0.05


def test_moderation_of_few_unequal_variances_keeps_the_false_discovery_rate():
    generator = np.random.default_rng(4)
    studies = [simulate_ratios(generator, "normal", 2, True, cases=30) for _ in range(100)]
    p = [p_values(ratios.moderate_variances(estimates), 0.01) for estimates in studies]
    # All ratios are 1, so that each discovery is false.
    assert np.mean([(stats.false_discovery_control(each) < 0.05).any() for each in p]) <= 0.08


@pytest.mark.parametrize("spread", [False, True])
def test_moderation_changes_nothing_if_the_cases_share_all_noise(spread):
    estimates = simulate_ratios(np.random.default_rng(3), "normal", 4, spread, shared=1.0)
    assert p_values(ratios.moderate_variances(estimates)) == pytest.approx(p_values(estimates), abs=1e-6)


@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize(
    "replicates, spread, min_gain", [(3, False, 0.3), (3, True, 0.2), (5, False, 0.1), (5, True, 0.05)]
)
def test_moderated_variances_gain_power_with_few_replicates(noise, replicates, spread, min_gain):
    generator, repeats = np.random.default_rng(5), range(6)
    studies = [simulate_ratios(generator, noise, replicates, spread, slower=200) for _ in repeats]
    plain, moderated = (
        np.mean([p_values(moderate(estimates), 0.01) < 0.01 for estimates in studies])
        for moderate in (list, ratios.moderate_variances)
    )
    assert moderated >= plain + min_gain


def test_variances_are_not_moderated_for_few_cases_or_undecidable_ratios():
    estimates = simulate_ratios(np.random.default_rng(1), "normal", 3, True, cases=19)
    assert ratios.moderate_variances(estimates) == estimates
    single = ratios.estimate_ratio([process([1.0] * 9)], [process([2.0] * 9)])
    moderated = ratios.moderate_variances([single, *estimates, *estimates])
    assert moderated[0] == single
    assert moderated[1].freedom > estimates[0].freedom
    assert moderated[1].estimate.value == pytest.approx(estimates[0].estimate.value)
