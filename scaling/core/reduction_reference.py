"""Evaluate a reduction in NumPy float64, and bound how far rounding may move the result of a case.

A result is compared with the expected one, over the `size` of what it adds up, and may be off by what the
table of tolerances allows a sum of N numbers, which grows with the root of N. Two things move a reduction:

- The entries of J are rounded. One that adds up `terms` numbers is off by e s: e is what the table allows so
many numbers, s the
  size of the point's entries: the largest of |J|, or of what is added up to compute one. How far this moves the result is the
  `influence`.
- Adding up so many entries (`added`) rounds again, in proportion to the sum of their magnitudes.

    reduction                   influence                     magnitude
    outputs, inputs, vector     sum |J| |x|, the largest      sum |J| |x|, the largest     x = 1 but for vector
    points, over these as well  sum |J|, the largest          sum |J|, the largest
    norm                        2 s sum |J| + e k s^2         sum J^2                      k entries
    J^T J, entry (a, b)         s (c_a + c_b) + e k s^2       sum |J_a| |J_b|              k outputs, c_a = sum |J_a| over these

The table is asked for N = max(terms, added), so that `size` is the larger of influence sqrt(terms / N) and
magnitude sqrt(added / N). In a sum each entry is rounded in proportion to itself, but to no less than what is
added up to compute it (`floor`). Without the second order e k s^2, a column of zeros could not be off by a
rounding.
"""

from dataclasses import dataclass

import numpy as np

from scaling.core.pattern import Pattern
from scaling.core.reductions import Reduction


@dataclass(frozen=True)
class Rounding:
    """How many numbers an entry of J adds up, how many entries a result adds up, and what the table allows an
    entry."""

    terms: int
    added: int = 1
    entry: float = 0.0

    @property
    def total(self) -> int:
        """How many numbers the table is asked for."""
        return max(self.terms, self.added)

    def size(self, influence: np.ndarray, magnitude: np.ndarray) -> np.ndarray:
        """Return what a deviation is divided by, so that the tolerance of `total` numbers covers both."""
        by_entries = influence * np.sqrt(self.terms / self.total)
        return np.asarray(np.maximum(by_entries, magnitude * np.sqrt(self.added / self.total)))


@dataclass(frozen=True)
class Jacobians:
    """Those of some points: (points, outputs, inputs), or the entries of a pattern, (points, entries), zero
    elsewhere."""

    values: np.ndarray
    pattern: Pattern | None = None

    def by_input(self, values: np.ndarray) -> np.ndarray:
        """Return the sum over outputs of values at the entries of the Jacobians: (points, inputs)."""
        if self.pattern is None:
            return np.asarray(values.sum(axis=1))
        return _sum_at(self.pattern.cols, self.pattern.inputs, values)

    def by_output(self, values: np.ndarray, x: np.ndarray | None = None) -> np.ndarray:
        """Return the sum over inputs, each times its own of x, (points, inputs), if given: (points,
        outputs)."""
        if self.pattern is None:
            return np.asarray(values.sum(axis=2) if x is None else (values @ x[:, :, None])[:, :, 0])
        return _sum_at(
            self.pattern.rows, self.pattern.outputs, values if x is None else values * x[:, self.pattern.cols]
        )

    def entries_by_input(self) -> np.ndarray:
        """Return how many entries the column of each input has, or one number for all."""
        if self.pattern is None:
            return np.asarray(self.values.shape[1])
        return np.bincount(self.pattern.cols, minlength=self.pattern.inputs)


@dataclass(frozen=True)
class SizedEntries:
    """The entries of some Jacobians, what each is rounded in proportion to (`size`), and their magnitudes.

    x: (points, inputs), the points themselves, for a reduction that multiplies with them.
    """

    of: Jacobians
    size: np.ndarray
    magnitude: np.ndarray
    rounding: Rounding
    x: np.ndarray | None = None

    @property
    def values(self) -> np.ndarray:
        """The entries of the Jacobians."""
        return self.of.values

    @property
    def largest(self) -> np.ndarray:
        """The largest size of each point: (points, 1, 1)."""
        return np.asarray(self.size.reshape(len(self.size), -1).max(axis=1)[:, None, None])

    def by_input(self, values: np.ndarray) -> np.ndarray:
        """Return the sum over outputs: (points, inputs)."""
        return self.of.by_input(values)

    def by_output(self, values: np.ndarray, x: np.ndarray | None = None) -> np.ndarray:
        """Return the sum over inputs, each times its own of x if given: (points, outputs)."""
        return self.of.by_output(values, x)


@dataclass(frozen=True)
class EntryCounts:
    """The most entries that a column and a row have, those of a Jacobian, and the number of points."""

    column: int
    row: int
    entries: int
    points: int


def count_entries(outputs: int, inputs: int, points: int, pattern: Pattern | None = None) -> EntryCounts:
    """Count the entries of a Jacobian. Of a known pattern only its own count: adding zeros rounds nothing."""
    if pattern is None:
        return EntryCounts(outputs, inputs, outputs * inputs, points)
    column, row = (int(np.bincount(at).max(initial=1)) for at in (pattern.cols, pattern.rows))
    return EntryCounts(column, row, len(pattern.rows), points)


def reduce_jacobians(
    reduction: Reduction,
    J: Jacobians,
    rounding: Rounding,
    floor: np.ndarray | None = None,
    x: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Return the expected result, (points, outputs', inputs'), and its size, of a shape that broadcasts with
    it.

    floor: (points,), the least size of an entry. x: (points, inputs). Of a sum over points both are still by
    point, to be added up. The whole Jacobian and J^T J are of Jacobians that are written out.
    """
    magnitude = np.abs(J.values)
    lead = (-1, *[1] * (magnitude.ndim - 1))
    size = magnitude if floor is None else np.maximum(magnitude, floor.reshape(lead))
    expected, influence, terms = reduction.reference(SizedEntries(J, size, magnitude, rounding, x))
    return expected, rounding.size(influence, terms)


def _sum_at(places: np.ndarray, count: int, values: np.ndarray) -> np.ndarray:
    """Return the sums of the entries that have the same place: (points, entries) -> (points, count)."""
    return np.stack([np.bincount(places, weights=each, minlength=count) for each in values])
