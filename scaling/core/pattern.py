"""Define sparsity patterns of Jacobians and their colorings, and compare the entries of two patterns.

The code that detects and colors patterns is in options/sparse.
"""

from dataclasses import dataclass

import numpy as np

from scaling.core.case import Refusal


@dataclass(frozen=True)
class Pattern:
    """The positions of the possible nonzeros of a Jacobian, a matrix (outputs, inputs).

    `rows` and `cols` are int32 arrays (entries,). The entries are distinct and sorted by row, then by column.
    """

    rows: np.ndarray
    cols: np.ndarray
    outputs: int
    inputs: int


@dataclass(frozen=True)
class Coloring:
    """A coloring of the columns and rows of a sparsity pattern.

    All columns (or rows) of one color are computed together with one seed, as their sum. The entries of the
    Jacobian are read from these sums, the compressed columns and rows.

    Attributes:
        columns: the color of each column, int32 (inputs,), with -1 for a column without a color. None if no
            column has a color.
        rows: the color of each row, int32 (outputs,), in the same form.
        column_count, row_count: the numbers of colors of columns and of rows.
        by_row: whether each entry is read from a compressed row instead of a compressed column, bool
            (entries,).
        detect_seconds, color_seconds: the time to detect the pattern and to color it, without imports.
    """

    pattern: Pattern
    columns: np.ndarray | None
    rows: np.ndarray | None
    column_count: int
    row_count: int
    by_row: np.ndarray
    detect_seconds: float = 0.0
    color_seconds: float = 0.0


@dataclass(frozen=True)
class CommonEntries:
    """The entries that two patterns, `ours` and `theirs`, share. All fields are None for equal patterns.

    Attributes:
        at: for each entry of `ours`, its index in `theirs`, or an arbitrary index if `theirs` lacks it.
        has: for each entry of `ours`, whether `theirs` contains it.
        lacking: the indices in `theirs` of the entries that `ours` does not contain.
    """

    at: np.ndarray | None = None
    has: np.ndarray | None = None
    lacking: np.ndarray | None = None


def validated_pattern(rows: np.ndarray, cols: np.ndarray, outputs: int, inputs: int) -> Pattern:
    """Return the `Pattern` with the given entries.

    Raise `Refusal` unless the entries are distinct, sorted and inside the Jacobian.
    """
    rows, cols = np.asarray(rows), np.asarray(cols)
    if rows.shape != cols.shape or rows.ndim != 1 or not rows.size:
        shapes = f"not arrays of {rows.shape} and {cols.shape}"
        raise Refusal(f"a pattern is the rows and the columns of its entries, {shapes}")
    if rows.min() < 0 or cols.min() < 0 or rows.max() >= outputs or cols.max() >= inputs:
        raise Refusal(f"a pattern has entries beyond the {outputs} x {inputs} of the Jacobian")
    pattern = Pattern(rows, cols, outputs, inputs)
    if not np.all(np.diff(_flat_indices(pattern)) > 0):
        raise Refusal("a pattern must name each of its entries once, row by row")
    return pattern


def common_entries(ours: Pattern, theirs: Pattern) -> CommonEntries:
    """Return which entries two sparsity patterns of Jacobians of the same shape have in common."""
    if np.array_equal(ours.rows, theirs.rows) and np.array_equal(ours.cols, theirs.cols):
        return CommonEntries()
    our_indices, their_indices = _flat_indices(ours), _flat_indices(theirs)
    at = np.minimum(np.searchsorted(their_indices, our_indices), len(their_indices) - 1)
    has = their_indices[at] == our_indices
    lacking = np.setdiff1d(np.arange(len(their_indices)), at[has], assume_unique=True)
    return CommonEntries(at, has, lacking)


def to_dense(pattern: Pattern, entries: np.ndarray) -> np.ndarray:
    """Return dense Jacobians (points, outputs, inputs) with the given nonzeros, (points, entries)."""
    dense: np.ndarray = np.zeros((len(entries), pattern.outputs, pattern.inputs))
    dense[:, pattern.rows, pattern.cols] = entries
    return dense


def _flat_indices(pattern: Pattern) -> np.ndarray:
    """Return the int64 index of each entry in the raveled Jacobian."""
    return np.asarray(pattern.rows.astype(np.int64) * pattern.inputs + pattern.cols)
