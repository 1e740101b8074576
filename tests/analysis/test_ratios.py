"""What ratios.py makes of processes whose truth is known, against SciPy's own tests, and over many simulated cases."""

import math
import statistics

import numpy as np
import pytest
from scipy import stats
from scipy.special import polygamma

from scaling.analysis import ratios
from scaling.core.case import Case
from scaling.core.intervals import median_interval
from scaling.core.record import Record

pytestmark = pytest.mark.thin(3, "contract")

CASE = Case("linear", sizes={"p": 5, "o": 3}, points=7)


def process(seconds, replicate=0, block=None, further=()):
    return Record(CASE, "ok", {"digest": "e"}, seconds=list(seconds), replicate=replicate, block=block,
                  compilations=[{"samples": count} for count in further])  # fmt: skip


def processes(medians, block=None):
    """A process each, with three samples around its median."""
    return [process([0.9 * m, m, 1.3 * m], replicate, block) for replicate, m in enumerate(medians)]


def test_a_case_takes_the_median_of_its_processes_however_many_samples_each_gave():
    assert ratios.case_median([process([1.0] * 50), process([2.0] * 7, 1), process([3.0] * 7, 2)]) == 2.0


def test_a_process_that_compiled_several_times_takes_the_median_of_its_compilations():
    record = process([1.0] * 30 + [2.0] * 7 + [4.0] * 7, further=(7, 7))
    assert ratios.process_median(record) == 2.0
    assert ratios.case_interval([record]) == (1.0, 4.0)
    assert ratios.case_interval([process([1.0] * 30 + [2.0] * 3, further=(3,))]) is None


def test_one_process_has_the_interval_of_its_samples_and_nothing_can_be_decided():
    one, other = process(np.linspace(1, 2, 9)), process(np.linspace(10, 20, 9), block="b")
    assert ratios.case_interval([one]) == median_interval(one.seconds)
    for top in ([other], [other, process([15.0] * 9, 1)]):
        found = ratios.estimate_ratio(top, [one])
        assert found.value == pytest.approx(10) and found.low < 10 < found.high
        assert ratios.p_value(found) is None and found.count == 0
    assert ratios.estimate_ratio([process([1.0] * 3)], [one]).low is None


@pytest.mark.parametrize("count", [2, 3, 5, 6, 10])
def test_an_interval_between_processes_holds_the_truth_where_one_of_pooled_samples_does_not(count):
    generator, held, pooled, runs = np.random.default_rng(count), 0, 0, 400
    for _ in range(runs):
        centres = np.exp(0.05 * generator.normal(size=count))
        records = [process(c * np.exp(0.005 * generator.normal(size=20)), i) for i, c in enumerate(centres)]
        low, high = ratios.case_interval(records)
        held += low <= 1 <= high
        low, high = median_interval([s for record in records for s in record.seconds])
        pooled += low <= 1 <= high
    assert held >= 0.93 * runs > 0.8 * runs > pooled


def test_pairs_are_compared_as_a_paired_t_test_on_logarithms_does():
    top, bottom = [1.1, 2.3, 3.1, 4.6], [1.0, 2.0, 3.0, 4.0]
    found = ratios.estimate_ratio(processes(top, "b"), processes(bottom, "b")[::-1])
    wanted = stats.ttest_rel(np.log(top), np.log(bottom))
    assert ratios.p_value(found) == pytest.approx(wanted.pvalue) and found.pairs == 4
    assert np.log([found.low, found.high]) == pytest.approx(tuple(wanted.confidence_interval()))
    assert found.value == pytest.approx(math.exp(statistics.fmean(np.log(top) - np.log(bottom))))


@pytest.mark.parametrize("blocks", [(None, None), ("a", "b"), (None, "b")])
def test_what_shares_no_block_is_compared_as_the_test_of_welch_does(blocks):
    top, bottom = [1.1, 1.3, 1.2, 1.9, 1.4], [1.0, 1.01, 1.02]
    found = ratios.estimate_ratio(processes(top, blocks[0]), processes(bottom, blocks[1]))
    wanted = stats.ttest_ind(np.log(top), np.log(bottom), equal_var=False)
    assert ratios.p_value(found) == pytest.approx(wanted.pvalue) and found.pairs == 0
    assert np.log([found.low, found.high]) == pytest.approx(tuple(wanted.confidence_interval()))


def test_what_slows_both_of_a_pair_down_cancels():
    drift, noise = np.array([1.0, 1.5, 0.8, 2.0, 1.2]), np.array([1.0, 1.002, 0.999, 1.001, 0.998])
    paired = ratios.estimate_ratio(processes(1.05 * drift * noise, "b"), processes(drift, "b"))
    apart = ratios.estimate_ratio(processes(1.05 * drift * noise, "a"), processes(drift, "b"))
    assert 1 < paired.low < 1.05 < paired.high and apart.low < 0.7


def test_within_the_margin_nothing_is_ever_different():
    found = ratios.estimate_ratio(processes([1.005, 1.0051, 1.0049], "b"), processes([1.0] * 3, "b"))
    assert ratios.p_value(found) < 0.001 and ratios.p_value(found, 0.01) > 0.5
    same = ratios.estimate_ratio(processes([1.0] * 3, "b"), processes([1.0] * 3, "b"))
    assert same.value == 1 and ratios.p_value(same) == 1


# Variances that borrow from each other: processes with noise of 3 %, or of 1 to 10 % by case (two orders of variance).

NOISES = {
    "normal": lambda generator, shape: generator.normal(size=shape),
    "heavy-tailed": lambda generator, shape: generator.standard_t(3, size=shape) / math.sqrt(3),
    "now and then far off": lambda generator, shape: (
        generator.normal(size=shape) / 2 + 4 * (generator.random(shape) < 0.1)
    ),
}


def simulated(generator, noise, replicates, spread, together=0.0, slower=0, cases=200):
    """Ratios of pairs of processes; so many cases take 10 % longer. together: the share of noise that all have in common."""
    one = lambda cases: NOISES[noise](generator, (cases, replicates, 2)) @ [1, -1]  # noqa: E731
    scale = 0.03 * 10 ** generator.uniform(-0.5, 0.5, (cases, 1)) if spread else 0.03
    logs = scale * (math.sqrt(1 - together) * one(cases) + math.sqrt(together) * one(1))
    logs[:slower] += math.log(1.1)
    return [
        ratios.estimate_ratio(processes(np.exp(row), "b"), processes([1.0] * replicates, "b")) for row in logs
    ]


def p_values(found, margin=0.0):
    return np.array([ratios.p_value(ratio, margin) for ratio in found])


@pytest.mark.parametrize("together", [0.0, 0.5])
@pytest.mark.parametrize("spread", [False, True])
@pytest.mark.parametrize("noise", NOISES)
def test_borrowed_variances_call_no_more_than_five_in_a_hundred_equal_cases_different(
    noise, spread, together
):
    generator = np.random.default_rng(2)
    worlds = [simulated(generator, noise, 3 + i % 3, spread, together) for i in range(12)]
    own, drawn = (
        [p_values(found) for found in worlds],
        [p_values(ratios.moderate_variances(found)) for found in worlds],
    )
    assert np.mean(np.array(drawn) < 0.05) <= max(
        0.06, np.mean(np.array(own) < 0.05) + 0.02
    )  # all have their luck in common
    assert np.mean([(stats.false_discovery_control(p) < 0.05).mean() for p in drawn]) <= 0.05


@pytest.mark.parametrize("spread", [False, True])
def test_cases_that_share_all_their_luck_know_no_more_than_one(spread):
    found = simulated(np.random.default_rng(3), "normal", 4, spread, together=1.0)
    assert p_values(ratios.moderate_variances(found)) == pytest.approx(p_values(found), abs=1e-6)


@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize(
    "replicates, spread, least", [(3, False, 0.3), (3, True, 0.2), (5, False, 0.1), (5, True, 0.05)]
)
def test_borrowed_variances_find_more_with_few_replicates(noise, replicates, spread, least):
    generator, worlds = np.random.default_rng(5), range(6)
    found = [simulated(generator, noise, replicates, spread, slower=200) for _ in worlds]
    own, drawn = (
        np.mean([p_values(draw(each), 0.01) < 0.01 for each in found])
        for draw in (list, ratios.moderate_variances)
    )
    assert drawn >= own + least


def test_nothing_is_borrowed_from_few_cases_nor_by_what_cannot_be_decided():
    found = simulated(np.random.default_rng(1), "normal", 3, True, cases=19)
    assert ratios.moderate_variances(found) == found
    single = ratios.estimate_ratio([process([1.0] * 9)], [process([2.0] * 9)])
    drawn = ratios.moderate_variances([single, *found, *found])
    assert (
        drawn[0] == single
        and drawn[1].freedom > found[0].freedom
        and drawn[1].value == pytest.approx(found[0].value)
    )


def test_the_inverse_of_the_trigamma_function_is_its_inverse():
    for value in (1e-5, 0.01, 0.5, 3.0, 200.0):
        assert polygamma(1, ratios._inverse_trigamma(value)) == pytest.approx(value)
