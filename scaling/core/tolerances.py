"""Tolerances: how far rounding may move a result, from one table, and how far it moves a reduction.

A result is compared with the expected one relative to the `size` of what it adds up. It may be off by
what the table allows a sum of N numbers, which grows with the root of N. Two things move a reduction of a
Jacobian J:

- Each entry of J is rounded. One that adds up `terms` numbers is off by e s: e is what the table allows a
  sum of that length, s the size of the point's entries, which is the largest of |J|, or of what is added
  up to compute an entry. How far this moves the result is the `influence`.
- Adding up entries (`added` of them) rounds again, in proportion to the sum of their magnitudes.

    reduction                   influence                     magnitude
    outputs, inputs, vector     sum |J| |x|, the largest      sum |J| |x|, the largest   x = 1 except in J x
    points, over these as well  sum |J|, the largest          sum |J|, the largest
    norm                        2 s sum |J| + e k s^2         sum J^2                    k entries
    J^T J, entry (a, b)         s (c_a + c_b) + e k s^2       sum |J_a| |J_b|           k outputs, c = sum |J|

The table is asked for N = max(terms, added), so that `size` is the larger of influence sqrt(terms / N) and
magnitude sqrt(added / N). In a sum each entry is rounded in proportion to itself, but to no less than what is
added up to compute it (`floor`). Without the second order e k s^2, a column of zeros could not be off by a
rounding.
"""

from dataclasses import dataclass

import jax
import numpy as np

from scaling.core.case import Case
from scaling.core.pattern import Pattern
from scaling.core.reductions import Reduction

ROUNDOFF = {"float64": 2.0**-53, "float32": 2.0**-24, "bfloat16": 2.0**-8}  # unit roundoff of one operation
# Unit roundoff of a product in float32 where an accelerator shortens its factors.
PRODUCT_ROUNDOFF = {
    ("gpu", "default"): 2.0**-11,  # TF32
    ("gpu", "high"): 2.0**-11,
    ("tpu", "default"): 2.0**-8,  # bfloat16
    ("tpu", "high"): 2.0**-14,  # three of them
}
ROUNDINGS = 8  # in each term; what needs more is looked at again
_UNDERFLOWS = 2.0**10  # times the smallest normal number: what lies below may be lost in a product


def unit_roundoff(case: Case, platform: str, inside: float) -> float:
    """Return the unit roundoff of the least exact operation. inside: of a narrower dtype in the function."""
    roundoff = ROUNDOFF[case.dtype]
    if case.dtype == "float32":
        roundoff = max(roundoff, PRODUCT_ROUNDOFF.get((platform, case.precision), 0.0))
    return max(roundoff, inside)


def tolerance(roundoff: float, terms: int) -> float:
    """Return what rounding may do to a sum of `terms` numbers, a random walk of some roundings a term."""
    return ROUNDINGS * roundoff * float(np.sqrt(terms))


def least_size(case: Case) -> float:
    """Return the size below which numbers of a dtype lose digits; a deviation is divided by no less."""
    return _UNDERFLOWS * float(jax.numpy.finfo(case.dtype).tiny) / ROUNDOFF[case.dtype]


def relative_error(difference: np.ndarray, size: np.ndarray) -> np.ndarray:
    """Return difference / size, where 0 / 0 is no error and anything else over 0 an infinite one."""
    difference, size = np.broadcast_arrays(difference, size)
    unequal = np.where(difference == 0, 0.0, np.inf)
    return np.asarray(np.divide(difference, size, out=unequal, where=size > 0))


def at_least(size: np.ndarray, floor: np.ndarray | None) -> np.ndarray:
    """Return sizes, (points, ...), none below the floor of its point, (points,), if there is one."""
    return size if floor is None else np.maximum(size, floor.reshape(-1, *[1] * (size.ndim - 1)))


@dataclass(frozen=True)
class Rounding:
    """The terms of an entry of J, the entries that a result adds up, and the tolerance of an entry."""

    terms: int
    added: int = 1
    entry: float = 0.0

    @property
    def total(self) -> int:
        """The length of the sum that the table is asked for."""
        return max(self.terms, self.added)

    def size(self, influence: np.ndarray, magnitude: np.ndarray) -> np.ndarray:
        """Return what a deviation is divided by, so that the tolerance of `total` covers both effects."""
        by_entries = influence * np.sqrt(self.terms / self.total)
        return np.asarray(np.maximum(by_entries, magnitude * np.sqrt(self.added / self.total)))


@dataclass(frozen=True)
class Jacobians:
    """Jacobians of some points, (points, outputs, inputs), or the entries of a pattern, (points, entries)."""

    values: np.ndarray
    pattern: Pattern | None = None

    def by_input(self, values: np.ndarray) -> np.ndarray:
        """Return the sum over outputs of values at the entries of the Jacobians: (points, inputs)."""
        if self.pattern is None:
            return np.asarray(values.sum(axis=1))
        return _sum_by_index(self.pattern.cols, self.pattern.inputs, values)

    def by_output(self, values: np.ndarray, x: np.ndarray | None = None) -> np.ndarray:
        """Return the sum over inputs, (points, outputs), weighted by x, (points, inputs), if given."""
        if self.pattern is None:
            return np.asarray(values.sum(axis=2) if x is None else (values @ x[:, :, None])[:, :, 0])
        weighted = values if x is None else values * x[:, self.pattern.cols]
        return _sum_by_index(self.pattern.rows, self.pattern.outputs, weighted)

    def largest_by_output(self) -> np.ndarray:
        """Return the largest magnitude in each row: (points, outputs)."""
        if self.pattern is None:
            return np.asarray(np.abs(self.values).max(axis=2))
        largest = np.zeros((len(self.values), self.pattern.outputs))
        np.maximum.at(largest.T, self.pattern.rows, np.abs(self.values).T)
        return largest

    def entries_by_input(self) -> np.ndarray:
        """Return the number of entries in the column of each input, or one number for all."""
        if self.pattern is None:
            return np.asarray(self.values.shape[1])
        return np.bincount(self.pattern.cols, minlength=self.pattern.inputs)


def _sum_by_index(index: np.ndarray, count: int, values: np.ndarray) -> np.ndarray:
    """Return the sums of the entries that have the same index: (points, entries) -> (points, count)."""
    return np.stack([np.bincount(index, weights=each, minlength=count) for each in values])


@dataclass(frozen=True, kw_only=True)
class SizedEntries(Jacobians):
    """Jacobians with what each entry is rounded in proportion to (`size`), and its magnitude.

    x: (points, inputs), the points themselves, for a reduction that multiplies with them.
    """

    size: np.ndarray
    magnitude: np.ndarray
    rounding: Rounding
    x: np.ndarray | None = None

    @property
    def largest(self) -> np.ndarray:
        """The largest size of each point: (points, 1, 1)."""
        return np.asarray(self.size.reshape(len(self.size), -1).max(axis=1)[:, None, None])


@dataclass(frozen=True)
class EntryCounts:
    """The most entries that a column and a row have, those of a Jacobian, and the number of points."""

    column: int
    row: int
    entries: int
    points: int


def count_entries(outputs: int, inputs: int, points: int, pattern: Pattern | None = None) -> EntryCounts:
    """Count the entries of a Jacobian, without known zeros: adding these rounds nothing."""
    if pattern is None:
        return EntryCounts(outputs, inputs, outputs * inputs, points)
    column, row = (int(np.bincount(index).max(initial=1)) for index in (pattern.cols, pattern.rows))
    return EntryCounts(column, row, len(pattern.rows), points)


def reduce_jacobians(
    reduction: Reduction,
    J: Jacobians,
    rounding: Rounding,
    floor: np.ndarray | None = None,
    x: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Return the expected result, (points, outputs', inputs'), and its size, of a shape that broadcasts
    with it.

    floor: (points,), the least size of an entry. x: (points, inputs). Of a sum over points both are still by
    point, to be added up. The whole Jacobian and J^T J need Jacobians that are written out.
    """
    magnitude = np.abs(J.values)
    size = at_least(magnitude, floor)
    entries = SizedEntries(J.values, J.pattern, size=size, magnitude=magnitude, rounding=rounding, x=x)
    expected, influence, terms = reduction.reference(entries)
    return expected, rounding.size(influence, terms)
