"""Ratios, exponents and fractions as text, with their intervals."""

import pytest

from scaling.analysis import estimate


def test_ratios_are_formatted_with_their_interval():
    assert estimate.format_ratio(1.768, 1.7, 1.81) == "1.77x (1.70 to 1.81)"
    assert estimate.format_ratio(5700.0) == "5,700x"


@pytest.mark.parametrize("value, low, high, expected", [
    (1.03, 1.003, 1.06, "1.03x (1.003 to 1.06)"), (1.003, 1.0004, 1.006, "1.003x (1.0004 to 1.01)"),
    (0.98, 0.96, 0.9997, "0.98x (0.96 to 0.9997)"), (1.001, 0.996, 1.004, "1.00x (1.00 to 1.00)"),
    (1.1, 1.0000001, 1.2, "1.10x (1.00 to 1.20)"), (100.2, 1.001, 100.4, "not determined (1.001 to 100)"),
])  # fmt: skip
def test_interval_that_excludes_1_does_not_seem_to_contain_it(value, low, high, expected):
    assert estimate.format_ratio(value, low, high) == expected


@pytest.mark.parametrize("value, low, high, expected", [
    (1.72, 0.59, 37.2, "not determined (0.59 to 37.2)"), (1.0, 0.4, 2.4, "not determined (0.40 to 2.40)"),
    (30.0, 2.0, 40.0, "not determined (2.00 to 40.0)"), (1.72, 1.7, 1.8, "1.72x (1.70 to 1.80)"),
    (1.1, 0.6, 2.4, "1.10x (0.60 to 2.40)"), (6.0, 3.0, 12.0, "6.00x (3.00 to 12.0)"), (1.72, None, None, "1.72x"),
    (1103.0, 1054.0, 1154.0, "1,103x (1,054 to 1,154)"), (5e3, 34.7, 107563.0, "not determined (34.7 to 107,563)"),
])  # fmt: skip
def test_ratio_with_a_wide_interval_is_formatted_as_not_determined(value, low, high, expected):
    assert estimate.format_ratio(value, low, high) == expected


@pytest.mark.parametrize("value, low, high, expected", [
    (2.91, -2.65, 8.48, "not determined (-2.65 to 8.48)"), (1.0, 0.4, 1.41, "not determined (0.400 to 1.41)"),
    (1.02, 0.98, 1.05, "1.02 (0.980 to 1.05)"), (-0.5, -0.9, 0.0, "-0.500 (-0.900 to 0)"), (2.0, None, None, "2.00"),
    (0.1 - 1e-12, 0.1, 0.1, "0.100 (0.100 to 0.100)"), (0.8, 0.797, 0.803, "0.800 (0.797 to 0.803)"),
    (1.28, 1.26, 1.3, "1.28 (1.26 to 1.30)"), (0.0, 0.0, 0.03, "0 (0 to 0.0300)"),
    (120.0, None, None, "120"), (2e-6, 1e-6, 3.1e-6, "2.00e-06 (1.00e-06 to 3.10e-06)"),
])  # fmt: skip
def test_exponent_with_a_wide_interval_is_formatted_as_not_determined(value, low, high, expected):
    assert estimate.format_exponent(value, low, high) == expected


def test_share_with_an_interval_from_0_to_1_is_formatted_as_not_determined():
    assert estimate.format_fraction(0.3, 0.0, 1.0) == "not determined (0 to 1.00)"
    assert estimate.format_fraction(0.1, 0.05, 0.2) == "0.100 (0.0500 to 0.200)"
