"""Compute the tolerance and the scale of rounding errors in `Jacobians` and their reductions.

A result is correct if error <= tolerance(N) * scale, where tolerance(N) is the relative error of a sum of N
numbers, and the scale is the magnitude of its terms. Rounding changes a reduced Jacobian J in two ways:

- Each entry of J is a sum of `terms` numbers and has an error of tolerance(terms) * s, where s is the size of
  the entry: its magnitude |J|, or the magnitude of the terms of its sum if that is known and larger. The
  influence is the resulting change of the result, divided by tolerance(terms).
- The result is a sum of `added` entries of J. The magnitude is the sum of the magnitudes of these entries.

    reduction                 influence                     magnitude
    whole                     largest s of the row          largest s of the row     over the same leaf
    outputs                   largest sum of s              largest sum of |J|       over the same leaf
    inputs, vector            sum of s |x|                  sum of |J| |x|           x = 1 for inputs
    points                    sum of s                      largest partial sum      over the points
    trace                     sum of largest s of the rows  sum of |J_ii|            J is the Hessian
    norm                      2 S sum |J| + e k S^2         sum of J^2               k entries of J
    J^T J, entry (a, b)       S (c_a + c_b) + e k S^2       sum of |J_a| |J_b|       k outputs of J

A leaf is a differentiated input. A large derivative with respect to one leaf does not hide an error in a
small derivative with respect to another leaf. Here e is tolerance(terms), S is the largest s of the point,
J_a is the column a of J, and c_a is the sum of the magnitudes in J_a. The term e k S^2 covers the rounding of
a column of zeros. If N is the larger of `terms` and `added`, the scale is the larger of
influence * sqrt(terms / N) and magnitude * sqrt(added / N).
"""

from dataclasses import dataclass

import jax
import numpy as np

from scaling.core.case import Case
from scaling.core.reductions import Reduction
from scaling.core.shape import Pattern

ROUNDOFF = {"float64": 2.0**-53, "float32": 2.0**-24, "bfloat16": 2.0**-8}  # unit roundoff of one operation
# Unit roundoff of a float32 product on an accelerator, by (platform, precision).
PRODUCT_ROUNDOFF = {
    ("gpu", "default"): 2.0**-11,  # TF32
    ("gpu", "high"): 2.0**-11,
    ("tpu", "default"): 2.0**-8,  # bfloat16
    ("tpu", "high"): 2.0**-14,  # three bfloat16 products
}
ROUNDINGS = 8  # unit roundoffs allowed per term; an entry with a larger error is evaluated again
_UNDERFLOW_MARGIN = 2.0**10  # multiple of the smallest normal number below which a product may lose digits


def unit_roundoff(case: Case, platform: str, inner_roundoff: float) -> float:
    """Return the unit roundoff of the least precise operation, which is at least `inner_roundoff`."""
    roundoff = ROUNDOFF[case.dtype]
    if case.dtype == "float32":
        roundoff = max(roundoff, PRODUCT_ROUNDOFF.get((platform, case.precision), 0.0))
    return max(roundoff, inner_roundoff)


def tolerance(roundoff: float, terms: int) -> float:
    """Return the relative error that rounding may cause in a sum of `terms` numbers (random-walk model)."""
    return ROUNDINGS * roundoff * float(np.sqrt(terms))


def least_scale(case: Case) -> float:
    """Return the smallest number that errors are divided by. Products below this number may lose digits."""
    return _UNDERFLOW_MARGIN * float(jax.numpy.finfo(case.dtype).tiny) / ROUNDOFF[case.dtype]


def relative_error(difference: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """Return difference / scale elementwise, where 0 / 0 is 0 and any other division by 0 is infinite."""
    difference, scale = np.broadcast_arrays(difference, scale)
    without_scale = np.where(difference == 0, 0.0, np.inf)
    return np.asarray(np.divide(difference, scale, out=without_scale, where=scale > 0))


def at_least(scale: np.ndarray, floor: np.ndarray | None) -> np.ndarray:
    """Return the elementwise maximum of `scale` (points, ...) and `floor`, of shape (points,) or None."""
    return scale if floor is None else np.maximum(scale, floor.reshape(-1, *[1] * (scale.ndim - 1)))


@dataclass(frozen=True)
class Rounding:
    """The lengths of the sums in a result, which determine the tolerance, and the sizes of its leaves."""

    terms: int  # the number of terms whose sum is one entry of the Jacobian
    added: int = 1  # the number of entries of the Jacobian whose sum is one element of the result
    entry: float = 0.0  # the tolerance (relative error) of an entry of the Jacobian
    leaf_sizes: tuple[int, ...] = ()  # the size of each leaf (differentiated input), or empty if not used

    @property
    def longest_sum(self) -> int:
        """Return the number of terms of the longest sum in the result, which determines the tolerance."""
        return max(self.terms, self.added)

    def largest_by_leaf(self, values: np.ndarray) -> np.ndarray:
        """Return the maximum of `values` (..., inputs) over each leaf. The result broadcasts to `values`."""
        if len(self.leaf_sizes) < 2:
            return np.asarray(values.max(axis=-1, keepdims=True))
        largest = np.maximum.reduceat(values, np.cumsum((0, *self.leaf_sizes[:-1])), axis=-1)
        return np.repeat(largest, self.leaf_sizes, axis=-1)

    def scale(self, influence: np.ndarray, magnitude: np.ndarray) -> np.ndarray:
        """Return the scale by which errors are divided. The module docstring defines both arguments."""
        entry_scale = influence * np.sqrt(self.terms / self.longest_sum)
        sum_scale = magnitude * np.sqrt(self.added / self.longest_sum)
        return np.asarray(np.maximum(entry_scale, sum_scale))


@dataclass(frozen=True)
class Jacobians:
    """The dense Jacobians at some points. The subclass `SparseJacobians` (options/sparse) stores nonzeros."""

    values: np.ndarray  # of shape (points, outputs, inputs), or (points, nonzeros) if sparse

    def by_input(self, values: np.ndarray) -> np.ndarray:
        """Return the sums of an array like `values` over the outputs, in the shape (points, inputs)."""
        return np.asarray(values.sum(axis=1))

    def by_output(self, values: np.ndarray, x: np.ndarray | None = None) -> np.ndarray:
        """Return the sums over the inputs, weighted by x (points, inputs) if given, as (points, outputs)."""
        return np.asarray(values.sum(axis=2) if x is None else (values @ x[:, :, None])[:, :, 0])

    def largest_by_output(self) -> np.ndarray:
        """Return the largest magnitude in each row as an array of shape (points, outputs)."""
        return np.asarray(np.abs(self.values).max(axis=2))

    def entries_by_input(self) -> np.ndarray:
        """Return the number of entries in each column of J: a scalar, or an array (inputs,) if sparse."""
        return np.asarray(self.values.shape[1])


@dataclass(frozen=True)
class SizedEntries:
    """Jacobians, and the quantities that determine the tolerance for the reduced Jacobians."""

    J: Jacobians
    size: np.ndarray  # the size of each entry, by which its error is divided, in the shape of `J.values`
    magnitude: np.ndarray  # the absolute value of each entry, in the shape of `J.values`
    rounding: Rounding  # the lengths of the sums that compute the result
    x: np.ndarray | None = None  # the points, of shape (points, inputs), if the reduction multiplies by them

    @property
    def largest(self) -> np.ndarray:
        """Return the largest `size` of the entries at each point, as an array of shape (points, 1, 1)."""
        return np.asarray(self.size.reshape(len(self.size), -1).max(axis=1)[:, None, None])


def added_entries(
    reduction: Reduction, outputs: int, inputs: int, points: int, pattern: Pattern | None = None
) -> int:
    """Return the largest number of entries of a Jacobian whose sum is one element of its reduction."""
    column, row, total = outputs, inputs, outputs * inputs
    if pattern is not None:
        column, row = (int(np.bincount(index).max(initial=1)) for index in (pattern.cols, pattern.rows))
        total = len(pattern.rows)
    count = {"entry": 1, "column": column, "row": row, "all": total}[reduction.entries]
    return count * (points if reduction.sums_points else 1)


def reduce_jacobians(
    reduction: Reduction,
    J: Jacobians,
    rounding: Rounding,
    floor: np.ndarray | None = None,
    x: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Return the reduced Jacobian of each point, and the scale of its errors, as float64 arrays.

    The first array has the shape (points, *reduction.shape(outputs, inputs)). The scale broadcasts to it.
    WHOLE and J^T J need dense Jacobians. `floor`, of shape (points,), is a lower bound on the scale. `x`, of
    shape (points, inputs), contains the points.
    """
    magnitude = np.abs(J.values)
    entries = SizedEntries(J, at_least(magnitude, floor), magnitude, rounding, x)
    expected, influence, magnitude = reduction.reference(entries)
    return expected, rounding.scale(influence, magnitude)
