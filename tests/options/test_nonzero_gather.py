"""Where the entries of a pattern lie: refused where a pattern is none, and found again in another."""

import numpy as np
import pytest

from scaling.core import pattern as common_pattern
from scaling.core.case import Refusal


def some(generator, outputs=6, inputs=9):
    rows, cols = np.nonzero(generator.random((outputs, inputs)) < 0.4)
    return common_pattern.validated_pattern(rows.astype(np.int32), cols.astype(np.int32), outputs, inputs)


def test_entries_are_found_in_another_pattern_and_what_is_lacking_is_named():
    generator = np.random.default_rng(1)
    for _ in range(50):
        ours, theirs = some(generator), some(generator)
        found = common_pattern.common_entries(ours, theirs)
        mine = set(zip(ours.rows.tolist(), ours.cols.tolist(), strict=True))
        other = list(zip(theirs.rows.tolist(), theirs.cols.tolist(), strict=True))
        assert [other[at] if has else None for at, has in zip(found.at, found.has, strict=True)] == [
            place if place in other else None for place in sorted(mine)
        ]
        assert [other[number] for number in found.lacking] == [place for place in other if place not in mine]


def test_places_beyond_two_to_the_31_are_told_apart():
    rows, cols = np.array([0, 30_000], np.int32), np.array([2, 2], np.int32)
    ours, theirs = (
        common_pattern.validated_pattern(rows, cols, 100_000, 90_000),
        common_pattern.validated_pattern(rows[1:], cols[1:], 100_000, 90_000),
    )
    assert common_pattern.common_entries(theirs, ours).lacking.tolist() == [
        0
    ] and common_pattern.common_entries(theirs, ours).at.tolist() == [1]


def test_a_pattern_written_out_holds_its_entries_and_zeros():
    pattern = common_pattern.validated_pattern(np.array([0, 2]), np.array([1, 0]), 3, 2)
    assert common_pattern.to_dense(pattern, np.array([[5.0, 7.0]])).tolist() == [[[0, 5], [0, 0], [7, 0]]]


@pytest.mark.parametrize(
    ("rows", "cols", "words"),
    [
        ([0, 1], [0], "not arrays of"),
        ([], [], "not arrays of"),
        ([0, 3], [0, 0], "beyond the 3 x 2"),
        ([0, 1], [0, 2], "beyond the 3 x 2"),
        ([0, -1], [0, 0], "beyond the 3 x 2"),
        ([1, 0], [0, 0], "each of its entries once, row by row"),
        ([1, 1], [0, 0], "each of its entries once, row by row"),
    ],
)
def test_what_is_no_pattern_is_refused(rows, cols, words):
    with pytest.raises(Refusal, match=words):
        common_pattern.validated_pattern(np.array(rows, int), np.array(cols, int), 3, 2)
