"""Tests of size sweeps: exponents fitted to times that grow by a known power of the size."""

import re

import numpy as np
import pytest

from scaling.analysis import answers, findings
from tests.support import made_up
from tests.support.records import sweeps_of


@pytest.fixture
def exponents_of(make_record):
    """Return a function from a dict of seconds by size to the fitted exponents."""

    def fit(times, **fields):
        records = [make_record(sizes={"p": p, "o": 3}, seconds=[s] * 9, **fields) for p, s in times.items()]
        sweeps = sweeps_of(records)
        return [exponent for sweep in sweeps for exponent in sweep.exponents.values()]

    return fit


def test_exact_power_is_recovered_exactly(exponents_of):
    (growth,) = exponents_of({p: 1e-3 * p**1.7 for p in (4, 9, 50, 128)})
    assert growth == pytest.approx((1.7, 1.7, 1.7))


@pytest.mark.parametrize("sizes", [(4, 8, 16), (4, 8, 16, 64), (4, 6, 9, 20, 80, 300)])
def test_interval_covers_the_true_exponent(exponents_of, sizes):
    generator, covered, runs = np.random.default_rng(len(sizes)), 0, 200
    for _ in range(runs):
        (growth,) = exponents_of({p: p**2.0 * float(np.exp(0.05 * generator.normal())) for p in sizes})
        covered += growth.low <= 2 <= growth.high
    assert 0.9 * runs <= covered < runs


def test_interval_of_a_changing_exponent_covers_its_values_at_both_ends(exponents_of):
    """The local exponent grows from 1.2 to 1.8; the fitted line has 1.5."""
    (bent,) = exponents_of({p: p + p**2 / 16 for p in (4, 8, 16, 32, 64)})
    assert bent.value == pytest.approx(1.5)
    assert bent.low < 1.2 and bent.high > 1.8
    (straight,) = exponents_of({p: p**1.5 * (1.01 if p == 8 else 1.0) for p in (4, 8, 16, 32, 64)})
    assert straight.high < 1.52
    (three,) = exponents_of({p: p + p**2 / 16 for p in (4, 16, 64)})
    assert three.low < 1.2 and three.high > 1.8


def test_sizes_below_ten_empty_calls_are_omitted(exponents_of):
    times = {p: 1e-5 + 1e-6 * p**2 for p in (1, 2, 3, 100, 300, 1000)}
    (growth,) = exponents_of(times, floor_seconds=1e-5)
    assert growth.value == pytest.approx(2, abs=0.01)
    (flattened,) = exponents_of(times)
    assert flattened.value < 1.8


def test_fewer_than_three_sizes_have_no_exponent(exponents_of):
    assert exponents_of({4: 1.0, 8: 2.0}) == []
    assert exponents_of({1: 1e-5, 4: 1.0, 8: 2.0}, floor_seconds=1e-5) == []


def test_each_mode_has_its_own_exponent(make_record):
    powers = {"jacfwd": 2, "jacrev": 1}
    records = [make_record(sizes={"p": p, "o": 3}, mode=mode, seconds=[p**power] * 9) for p in (4, 8, 16)
               for mode, power in powers.items()]  # fmt: skip
    (sweep,) = sweeps_of(records)
    assert {method.mode: growth.value for method, growth in sweep.exponents.items()} == pytest.approx(powers)


def test_growth_with_each_size_of_a_grid_is_reported_at_the_largest_values_of_the_others(
    make_record, tmp_path
):
    records = [
        make_record(sizes={"p": p, "o": o}, seconds=[p * o**2] * 9) for p in (2, 4, 8) for o in (2, 4, 8)
    ]
    study = findings.read(made_up.write(tmp_path / "made", records, scaling=("strong",)))
    assert answers.describe_growth(study) == [
        f"Time of linear with points=7 {other}=8 grows with {swept} on 1 device, shard_map, points split: "
        f"exponent {power} ({power} to {power}) in jacfwd (vmap)."
        for other, swept, power in (("p", "o", "2.00"), ("o", "p", "1.00"))
    ]


def test_constant_time_has_the_exponent_zero_exactly(exponents_of):
    (growth,) = exponents_of(dict.fromkeys((4, 8, 16, 32), 1e-3))
    assert growth == (0, 0, 0)


def test_exponent_with_a_wide_interval_is_reported_as_not_determined(make_record, tmp_path):
    def describe(**times):
        records = [
            make_record(mode=mode, points=n, seconds=[ms * 1e-3 * (1 + 1e-4 * i) for i in range(9)])
            for mode, column in times.items()
            for n, ms in zip((16, 32, 64), column, strict=True)
        ]
        folder = made_up.write(tmp_path / "-".join(times), records, scaling=("strong",))
        (sentence,) = answers.describe_growth(findings.read(folder))
        return sentence

    both, unknown = describe(jacfwd=(16, 32, 64), jacrev=(10, 200, 90)), describe(jacrev=(10, 200, 90))
    wide = r"not determined \(-[\d.]+ to [\d.]+\) in jacrev \(vmap\)\."
    assert re.search(rf"exponent 1.00 \(.*\) in jacfwd \(vmap\), {wide}", both)
    assert re.search(rf"exponent {wide}", unknown)
