"""The exponents that growth.py finds of times that grow by a known power."""

import re

import numpy as np
import pytest

from scaling.analysis import curves, findings, trends
from scaling.analysis.growth import size_exponents
from scaling.report import page_tables
from tests.support import made_up


@pytest.fixture
def grown(make_record):
    """The growth of one mode's time with a size, from seconds by size."""

    def made(times, **fields):
        records = [make_record(sizes={"p": p, "o": 3}, seconds=[s] * 9, **fields) for p, s in times.items()]
        return size_exponents(curves.size_sweeps(records))

    return made


def test_an_exact_power_is_found_exactly(grown):
    (growth,) = grown({p: 1e-3 * p**1.7 for p in (4, 9, 50, 128)})
    assert growth.exponent == pytest.approx((1.7, 1.7, 1.7)) and not growth.bent
    assert (growth.sizes, growth.left_out, growth.sweep.swept, growth.method.mode) == (4, 0, "p", "jacfwd")


@pytest.mark.parametrize("sizes", [(4, 8, 16), (4, 8, 16, 64), (4, 6, 9, 20, 80, 300)])
def test_the_interval_of_an_exponent_holds_it(grown, sizes):
    generator, held, runs = np.random.default_rng(len(sizes)), 0, 200
    for _ in range(runs):
        (growth,) = grown({p: p**2.0 * float(np.exp(0.05 * generator.normal())) for p in sizes})
        held += growth.exponent.low <= 2 <= growth.exponent.high
    assert 0.9 * runs <= held < runs


def test_the_interval_of_a_growth_that_is_no_power_holds_the_exponents_at_both_ends(grown):
    """Here from 1.2 to 1.8, with the line at 1.5."""
    (bent,) = grown({p: p + p**2 / 16 for p in (4, 8, 16, 32, 64)})
    assert (
        bent.bent
        and bent.exponent.value == pytest.approx(1.5)
        and bent.exponent.low < 1.2
        and bent.exponent.high > 1.8
    )
    (straight,) = grown({p: p**1.5 * (1.01 if p == 8 else 1.0) for p in (4, 8, 16, 32, 64)})
    assert not straight.bent and straight.exponent.high < 1.52
    (three,) = grown({p: p + p**2 / 16 for p in (4, 16, 64)})
    assert not three.bent and three.exponent.low < 1.2 and three.exponent.high > 1.8


def test_sizes_that_take_less_than_ten_empty_calls_are_left_out_and_counted(grown):
    times = {p: 1e-5 + 1e-6 * p**2 for p in (1, 2, 3, 100, 300, 1000)}
    (growth,) = grown(times, floor_seconds=1e-5)
    assert (growth.sizes, growth.left_out) == (3, 3) and growth.exponent.value == pytest.approx(2, abs=0.01)
    (flattened,) = grown(times)
    assert flattened.exponent.value < 1.8


def test_fewer_than_three_sizes_have_no_exponent(grown):
    assert grown({4: 1.0, 8: 2.0}) == []
    assert grown({1: 1e-5, 4: 1.0, 8: 2.0}, floor_seconds=1e-5) == []


def test_each_mode_has_an_exponent_of_its_own(make_record):
    powers = {"jacfwd": 2, "jacrev": 1}
    records = [make_record(sizes={"p": p, "o": 3}, mode=mode, seconds=[p**power] * 9) for p in (4, 8, 16)
               for mode, power in powers.items()]  # fmt: skip
    found = size_exponents(curves.size_sweeps(records))
    assert {growth.method.mode: growth.exponent.value for growth in found} == pytest.approx(powers)


def test_what_does_not_grow_has_the_exponent_0_without_a_rounding_error(grown):
    (growth,) = grown(dict.fromkeys((4, 8, 16, 32), 1e-3))
    assert growth.exponent == (0, 0, 0)


def test_sizes_of_more_than_64_bits_have_an_exponent(grown):
    (growth,) = grown({p: 1e-3 * p**0.1 for p in (1, 10**19, 10**40)})
    assert growth.exponent.value == pytest.approx(0.1)


def test_an_exponent_whose_interval_says_nothing_is_not_determined(make_record, tmp_path):
    records = [
        make_record(mode=mode, points=n, seconds=[ms * 1e-3 * (1 + 1e-4 * i) for i in range(9)])
        for mode, times in (("jacfwd", (16, 32, 64)), ("jacrev", (10, 200, 90)))
        for n, ms in zip((16, 32, 64), times, strict=True)
    ]
    found = findings.read(made_up.write(tmp_path / "made", records, scaling=("strong",)))
    (told,) = trends.describe_growth(found)
    assert "to the power of 1 (" in told and re.search(
        r"; not determined in jacrev \(vmap\) \(-[\d.]+ to [\d.]+\)", told
    )
    rows = next(table for table in page_tables.folded_tables(found) if table.anchor == "growth").rows
    assert [row[3].startswith("not determined (") for row in rows] == [False, True]
