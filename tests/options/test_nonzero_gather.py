"""Tests of sparsity patterns: invalid patterns are rejected, and entries are located in another pattern."""

import numpy as np
import pytest

from scaling.core.case import Refusal
from scaling.core.derivative import to_dense
from scaling.options import sparse_jacobians


def draw_pattern(generator, outputs=6, inputs=9):
    rows, cols = np.nonzero(generator.random((outputs, inputs)) < 0.4)
    return sparse_jacobians.validated_pattern(rows.astype(np.int32), cols.astype(np.int32), outputs, inputs)


def test_common_entries_of_two_patterns_are_located_and_lacking_ones_reported():
    generator = np.random.default_rng(1)
    for _ in range(50):
        first, second = draw_pattern(generator), draw_pattern(generator)
        common = sparse_jacobians.common_nonzeros(first, second)
        first_entries = set(zip(first.rows.tolist(), first.cols.tolist(), strict=True))
        second_entries = list(zip(second.rows.tolist(), second.cols.tolist(), strict=True))
        assert [
            second_entries[position] if is_common else None
            for position, is_common in zip(common.positions, common.is_common, strict=True)
        ] == [entry if entry in second_entries else None for entry in sorted(first_entries)]
        assert [second_entries[number] for number in common.missing] == [
            entry for entry in second_entries if entry not in first_entries
        ]


def test_flat_indices_beyond_32_bits_are_distinguished():
    rows, cols = np.array([0, 30_000], np.int32), np.array([2, 2], np.int32)
    first, second = (
        sparse_jacobians.validated_pattern(rows, cols, 100_000, 90_000),
        sparse_jacobians.validated_pattern(rows[1:], cols[1:], 100_000, 90_000),
    )
    common = sparse_jacobians.common_nonzeros(second, first)
    assert common.missing.tolist() == [0] and common.positions.tolist() == [1]


def test_the_dense_form_of_a_pattern_has_its_entries_and_zeros():
    pattern = sparse_jacobians.validated_pattern(np.array([0, 2]), np.array([1, 0]), 3, 2)
    assert to_dense(pattern, np.array([[5.0, 7.0]])).tolist() == [[[0, 5], [0, 0], [7, 0]]]


@pytest.mark.parametrize(
    ("rows", "cols"),
    [
        ([0, 1], [0]),
        ([], []),
        ([0, 3], [0, 0]),
        ([0, 1], [0, 2]),
        ([0, -1], [0, 0]),
        ([1, 0], [0, 0]),
        ([1, 1], [0, 0]),
    ],
)
def test_an_invalid_pattern_is_rejected(rows, cols):
    with pytest.raises(Refusal, match=r"the 3 x 2 Jacobian.*each once, sorted by row"):
        sparse_jacobians.validated_pattern(np.array(rows, int), np.array(cols, int), 3, 2)


def test_a_pattern_that_is_not_integer_is_rejected_with_its_dtype():
    with pytest.raises(
        Refusal, match=r"must be two integer arrays .*; these are float64 \(2,\) and int64 \(2,\)$"
    ):
        sparse_jacobians.validated_pattern(np.array([0.0, 2.0]), np.array([1, 0]), 3, 2)
