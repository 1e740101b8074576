"""Numbers and durations as text."""

import pytest

from scaling.core import formatting


@pytest.mark.parametrize(
    "seconds, text",
    [(1.23e-5, "12.3 µs"), (0.9999e-3, "1.00 ms"), (0.0165, "16.5 ms"), (2.0, "2.00 s"), (3e-7, "300 ns"), (140.04, "140 s"),
     (9.999e-6, "10.0 µs"), (99.96e-3, "100 ms")],
)  # fmt: skip
def test_durations_are_formatted_in_suitable_units(seconds, text):
    assert formatting.format_duration(seconds) == text


@pytest.mark.parametrize("value, text", [(0.0175, "0.0175"), (0.05, "0.05"), (0.5, "0.50"), (12.345, "12.3")])
def test_a_number_under_a_tenth_keeps_three_digits(value, text):
    assert formatting.format_number(value) == text


@pytest.mark.parametrize(
    "value, text",
    [(None, "null"), (True, "true"), ([1, None], "[1, null]"), ({"a": False}, "{'a': false}"), ("None", "'None'"),
     (["it's True"], '["it\'s True"]'), (1.5, "1.5")],
)  # fmt: skip
def test_a_value_is_shown_as_in_yaml_and_a_text_is_kept(value, text):
    assert formatting.format_value(value) == text
