"""Reduced: what is made of a point's Jacobian J, outputs x inputs, and how far rounding may move it. NumPy float64 throughout.

A result is compared with what is wanted, over the `size` of what it adds up, and may be off by what the table (check.tolerance)
allows a sum of N numbers; that grows with the root of N. Two things move a reduction:

- Its entries are rounded. One that adds up `terms` numbers is off by e s: e is what the table allows so many numbers, s the size
  of the point's entries: the largest of |J|, or of what is added up on the way to one. How this shows is the `influence`.
- Adding up so many entries (`added`) rounds again, in proportion to the sum of their magnitudes.

    what                        influence                     magnitude
    outputs, inputs, vector     sum |J| |x|, the largest      sum |J| |x|, the largest     x = 1 but for vector
    points, over these as well  sum |J|, the largest          sum |J|, the largest
    norm                        2 s sum |J| + e k s^2         sum J^2                      k entries
    gram, a and b               s (c_a + c_b) + e k s^2       sum |J_a| |J_b|              k outputs, c_a = sum |J_a| over these

The table is asked for N = max(terms, added), so that `size` is the larger of influence sqrt(terms / N) and magnitude
sqrt(added / N). In a sum each entry is rounded in proportion to itself, but to no less than what is added up on the way to it
(`floor`). Norm and Gram follow from the product rule, with its second order: without e k s^2, a column of zeros could not be off
by a rounding.

Does not know where a Jacobian comes from.
"""

from dataclasses import dataclass

import numpy as np

from scaling.options.sparse.sparsity import Pattern

SUMS = ("outputs", "inputs", "vector", "points")  # what is linear in J


@dataclass(frozen=True)
class Rounding:
    """How many numbers an entry of J adds up, how many entries a result, and what the table allows an entry."""

    terms: int
    added: int = 1
    entry: float = 0.0

    @property
    def total(self) -> int:
        """How many numbers the table is asked for."""
        return max(self.terms, self.added)

    def size(self, influence: np.ndarray, magnitude: np.ndarray) -> np.ndarray:
        """What a deviation is divided by, so that what the table allows `total` numbers covers both."""
        return np.maximum(influence * np.sqrt(self.terms / self.total), magnitude * np.sqrt(self.added / self.total))


@dataclass(frozen=True)
class Jacobians:
    """Those of some points: (points, outputs, inputs), or the entries of a pattern, (points, entries), zero elsewhere."""

    values: np.ndarray
    pattern: Pattern | None = None


def add_points(how: str | None, outputs: int, inputs: int, points: int, pattern: Pattern | None = None) -> int:
    """How many entries one number of a result adds up. Where the pattern is known, only its own: to add zeros rounds nothing."""
    in_column, in_row, entries = outputs, inputs, outputs * inputs
    if pattern is not None:
        in_column, in_row, entries = column(pattern), row(pattern), len(pattern.rows)
    counts = {"inputs": in_row, "vector": in_row, "norm": entries, "points": points * in_column}
    return 1 if how is None else counts.get(how, in_column)


def column(pattern: Pattern) -> int:
    """The most entries that a column has."""
    return int(np.bincount(pattern.cols).max(initial=1))


def row(pattern: Pattern) -> int:
    """The most entries that a row has."""
    return int(np.bincount(pattern.rows).max(initial=1))


def reduce_jacobians(
    how: str | None, J: Jacobians, rounding: Rounding, floor: np.ndarray | None = None, x: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """What is wanted, (points, outputs', inputs'), and its size, (points, 1, 1) or by entry of a Gram matrix.

    floor: (points,), the least size of an entry. x: (points, inputs), for vector. For points both are by point still, and the
    size is by entry, (points, 1, inputs): to be added up over the points. Whole and Gram are of Jacobians that are written out.
    """
    magnitude = np.abs(J.values)
    lead = (-1, *[1] * (magnitude.ndim - 1))
    size = magnitude if floor is None else np.maximum(magnitude, floor.reshape(lead))
    if how in SUMS:
        return _sum(how, J, rounding, size, magnitude, x)
    if how is None:
        return J.values, size.max(axis=2, keepdims=True)
    s = size.reshape(len(size), -1).max(axis=1)[:, None, None]
    if how == "norm":
        return _norm(magnitude.reshape(len(magnitude), 1, -1), s, rounding)
    assert J.pattern is None
    return _gram(J.values, magnitude, s, rounding)


def _sum(
    how: str | None, J: Jacobians, rounding: Rounding, size: np.ndarray, magnitude: np.ndarray, x: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray]:
    """A sum over outputs or over inputs, and its size. size, magnitude: of the entries, one no less than the other."""
    if how in ("outputs", "points"):
        want, influence = by_input(J, J.values), by_input(J, size)
        rounded = influence if size is magnitude else by_input(J, magnitude)
    else:
        over = None if how == "inputs" or x is None else np.abs(x)
        want, influence = by_output(J, J.values, x if how == "vector" else None), by_output(J, size, over)
        rounded = influence if size is magnitude else by_output(J, magnitude, over)
    found = rounding.size(influence, rounded)
    if how == "points":
        return want[:, None, :], found[:, None, :]
    if how == "outputs":
        return want[:, None, :], found.max(axis=1)[:, None, None]
    return want[:, :, None], found[:, :, None]


def _norm(magnitude: np.ndarray, s: np.ndarray, rounding: Rounding) -> tuple[np.ndarray, np.ndarray]:
    """The sum of squares of (points, 1, entries), and its size: two (points, 1, 1)."""
    norm = (magnitude @ magnitude.transpose(0, 2, 1)).reshape(s.shape)
    influence = 2 * s * magnitude.sum(axis=2, keepdims=True) + rounding.entry * magnitude.shape[2] * s**2
    return norm, rounding.size(influence, norm)


def _gram(J: np.ndarray, magnitude: np.ndarray, s: np.ndarray, rounding: Rounding) -> tuple[np.ndarray, np.ndarray]:
    """J^T J and its size: two (points, inputs, inputs)."""
    columns = magnitude.sum(axis=1)
    influence = s * (columns[:, :, None] + columns[:, None, :]) + rounding.entry * J.shape[1] * s**2
    return J.transpose(0, 2, 1) @ J, rounding.size(influence, magnitude.transpose(0, 2, 1) @ magnitude)


def reduce_step_bounds(how: str | None, J: Jacobians, bound: np.ndarray) -> np.ndarray:
    """How far a result may move where no entry moves by more than the bound of its input, (points, inputs): (points,).

    The bound of a sum over outputs is that of the sum, and of a vector (points, 1), that of the product. Norm and Gram follow
    from (J + d)^T (J + d); of a Gram matrix the largest entry counts.
    """
    if how not in ("norm", "gram", "inputs"):
        return bound.max(axis=1)
    if how == "inputs":
        return bound.sum(axis=1)
    columns = by_input(J, np.abs(J.values))
    entries = J.values.shape[1] if J.pattern is None else np.bincount(J.pattern.cols, minlength=J.pattern.inputs)
    if how == "norm":
        return (2 * columns * bound + entries * bound**2).sum(axis=1)
    crossed = bound[:, :, None] * columns[:, None, :]
    return (crossed + crossed.transpose(0, 2, 1) + np.max(entries) * bound[:, :, None] * bound[:, None, :]).max(axis=(1, 2))


def by_input(J: Jacobians, values: np.ndarray) -> np.ndarray:
    """The sum over outputs of values at the places of the Jacobians: (points, inputs)."""
    if J.pattern is None:
        return values.sum(axis=1)
    return _scattered(J.pattern.cols, J.pattern.inputs, values)


def by_output(J: Jacobians, values: np.ndarray, x: np.ndarray | None = None) -> np.ndarray:
    """The sum over inputs, each times its own of x, (points, inputs), if that is given: (points, outputs)."""
    if J.pattern is None:
        return values.sum(axis=2) if x is None else (values @ x[:, :, None])[:, :, 0]
    return _scattered(J.pattern.rows, J.pattern.outputs, values if x is None else values * x[:, J.pattern.cols])


def _scattered(places: np.ndarray, count: int, values: np.ndarray) -> np.ndarray:
    """(points, entries) -> (points, count): the sums of the entries that have the same place."""
    return np.stack([np.bincount(places, weights=each, minlength=count) for each in values])
