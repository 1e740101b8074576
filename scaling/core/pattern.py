"""Sparsity patterns: where a Jacobian may be other than zero, its colours, and how two patterns compare.

Does not know how a pattern is detected or coloured.
"""

from dataclasses import dataclass

import numpy as np

from scaling.core.case import Refusal


@dataclass(frozen=True)
class Pattern:
    """Where a Jacobian may be other than zero: rows and columns, int32, of each entry once, row by row."""

    rows: np.ndarray
    cols: np.ndarray
    outputs: int
    inputs: int


@dataclass(frozen=True)
class Coloring:
    """A pattern and its colours.

    columns: (inputs,) int32, the colour of each column, -1 for one that has none; None where no columns are
    compressed. rows: (outputs,), likewise. by_row: (entries,), whether an entry is read off its row's colour,
    otherwise off its column's. The seconds are those of the first time, without importing and compiling
    asdex.
    """

    pattern: Pattern
    columns: np.ndarray | None
    rows: np.ndarray | None
    column_count: int
    row_count: int
    by_row: np.ndarray
    detect_seconds: float
    color_seconds: float


@dataclass(frozen=True)
class CommonEntries:
    """How the entries of a pattern (`ours`) lie in another (`theirs`).

    at: for each of ours the number of the same entry of theirs, where there is one (`has`); lacking: the
    numbers of theirs that we have not. All None where both patterns are the same.
    """

    at: np.ndarray | None = None
    has: np.ndarray | None = None
    lacking: np.ndarray | None = None


def validated_pattern(rows: np.ndarray, cols: np.ndarray, outputs: int, inputs: int) -> Pattern:
    """Return a pattern of this shape; refuse one that does not name each entry once, row by row."""
    rows, cols = np.asarray(rows), np.asarray(cols)
    if rows.shape != cols.shape or rows.ndim != 1 or not rows.size:
        raise Refusal(
            "a pattern is the rows and the columns of its entries, "
            f"not arrays of {rows.shape} and {cols.shape}"
        )
    if rows.min() < 0 or cols.min() < 0 or rows.max() >= outputs or cols.max() >= inputs:
        raise Refusal(f"a pattern has entries beyond the {outputs} x {inputs} of the Jacobian")
    pattern = Pattern(rows, cols, outputs, inputs)
    if not np.all(np.diff(_numbers(pattern)) > 0):
        raise Refusal("a pattern must name each of its entries once, row by row")
    return pattern


def common_entries(ours: Pattern, theirs: Pattern) -> CommonEntries:
    """Where our entries lie among theirs. Both of the same shape."""
    if np.array_equal(ours.rows, theirs.rows) and np.array_equal(ours.cols, theirs.cols):
        return CommonEntries()
    mine, other = _numbers(ours), _numbers(theirs)
    at = np.minimum(np.searchsorted(other, mine), len(other) - 1)
    has = other[at] == mine
    found = np.zeros(len(other), bool)
    found[at[has]] = True
    return CommonEntries(at, has, np.flatnonzero(~found))


def to_dense(pattern: Pattern, entries: np.ndarray) -> np.ndarray:
    """(points, entries) -> (points, outputs, inputs), zero elsewhere."""
    made: np.ndarray = np.zeros((len(entries), pattern.outputs, pattern.inputs))
    made[:, pattern.rows, pattern.cols] = entries
    return made


def _numbers(pattern: Pattern) -> np.ndarray:
    """Return the number of each entry in the matrix written out, in int64."""
    return np.asarray(pattern.rows.astype(np.int64) * pattern.inputs + pattern.cols)
