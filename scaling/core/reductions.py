"""Define each `Reduction` of the Jacobian J at a point (whole, sums, norm, J^T J), on devices and in NumPy.

A device reduces each column or row of J as soon as it is computed, without storing J. The field `columns` of
a reduction is the step for columns (forward mode), the field `rows` the step for rows (reverse mode). NumPy
is imported inside of the functions, because modules that read records import `REDUCTIONS` without NumPy.
"""

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

from scaling.core import load_option

OUTPUTS, INPUTS = "outputs", "inputs"
Array = Any  # a NumPy array
# The expected result at all points in float64, and its influence and magnitude (see `Rounding.scale`).
ReferenceTerms = tuple[Array, Array, Array]


def at_least(scale: Array, floor: Array | None) -> Array:
    """Return the larger of `scale` and `floor`. `floor` has the shape (points,), or None for no limit."""
    import numpy as np

    return scale if floor is None else np.maximum(scale, floor.reshape(-1, *[1] * (scale.ndim - 1)))


@dataclass(frozen=True)
class Rounding:
    """The lengths of the sums that compute a result, which determine its allowed rounding error."""

    terms: int  # the number of terms whose sum is one entry of the Jacobian
    added: int = 1  # the number of entries of the Jacobian whose sum is one element of the result
    entry: float = 0.0  # the tolerance (relative error) of an entry of the Jacobian
    leaf_sizes: tuple[int, ...] = ()  # the size of each leaf (differentiated input), or empty if not used

    @property
    def longest_sum(self) -> int:
        """Return the number of terms in the longest sum."""
        return max(self.terms, self.added)

    def largest_by_leaf(self, values: Array) -> Array:
        """Return the maximum of `values` over each leaf (input), as an array that broadcasts to `values`."""
        import numpy as np

        if len(self.leaf_sizes) < 2:
            return values.max(axis=-1, keepdims=True)
        largest = np.maximum.reduceat(values, np.cumsum((0, *self.leaf_sizes[:-1])), axis=-1)
        return np.repeat(largest, self.leaf_sizes, axis=-1)

    def scale(self, influence: Array, magnitude: Array) -> Array:
        """Return the larger of two weighted arrays, by which the check divides the errors of a result.

        `influence` is the largest change of the result if each entry of the Jacobian has a relative error of
        1. Its weight is sqrt(`terms` / `longest_sum`). `magnitude` is the sum of the absolute values of the
        entries that are added to get one element of the result. Its weight is sqrt(`added` / `longest_sum`).
        """
        import numpy as np

        entry_scale = influence * np.sqrt(self.terms / self.longest_sum)
        return np.maximum(entry_scale, magnitude * np.sqrt(self.added / self.longest_sum))


@dataclass(frozen=True)
class Jacobians:
    """The dense Jacobians at some points (batch elements)."""

    values: Array  # of shape (points, outputs, inputs), or (points, nonzeros) in `SparseJacobians`
    # The least size of an entry at each point, of shape (points,), or None for no limit.
    floor: Array | None = field(default=None, kw_only=True)

    @property
    def size(self) -> Array:
        """Return the size of each entry: its absolute value or, if larger, `floor`."""
        return at_least(abs(self.values), self.floor)

    def by_input(self, values: Array) -> Array:
        """Sum `values`, one per entry of J, over the outputs. The result has the shape (points, inputs)."""
        return values.sum(axis=1)

    def by_output(self, values: Array, x: Array | None = None) -> Array:
        """Sum `values`, one per entry of J, over the inputs. If `x` is given, it contains weights.

        `x` has the shape (points, inputs). The result has the shape (points, outputs).
        """
        return values.sum(axis=2) if x is None else (values @ x[:, :, None])[:, :, 0]

    def largest_by_output(self) -> Array:
        """Return the largest absolute value in each row of J, in the shape (points, outputs)."""
        return abs(self.values).max(axis=2)

    def entries_by_input(self) -> Array:
        """Return the number of stored entries per column of J, an int that holds for all columns."""
        return self.values.shape[1]


@dataclass(frozen=True)
class SliceStep:
    """How a reduction processes each column or row of the Jacobian J, and combines the results."""

    # A function of a column (..., outputs), or of a row and x, both tuples of one array per input. It returns
    # the contribution of the slice to the reduced J. If None, the slice is used unchanged.
    function: Callable[..., Any] | None = None
    sums_seeds: bool = False  # whether contributions are summed over seeds, on the devices and then the host
    products: bool = False  # whether the device computes the inner products of all pairs of columns of J


@dataclass(frozen=True)
class Reduction:
    """A quantity that is computed from the Jacobian J at each point, such as the sum of its rows."""

    name: str  # the value of the field `reduce` of a case
    _: KW_ONLY
    axes: tuple[str | None, str | None]  # the axes of the result: OUTPUTS, INPUTS, or None for length 1
    columns: SliceStep = SliceStep()  # the step for each column of J in forward mode
    rows: SliceStep = SliceStep()  # the step for each row of J in reverse mode
    # A JAX function from J (points, outputs, inputs) and x (points, inputs) to the result.
    of_jacobians: Callable[[Any, Any], Any]
    entries: str  # the entries of J that are summed to one element: an "entry", a "column", a "row" or "all"
    # A NumPy function of J, the lengths of the sums that compute the result, and x (points, inputs) or None.
    reference: Callable[[Jacobians, Rounding, Array], ReferenceTerms]
    # A NumPy function from (J, bound) to the largest change of the result at each point, of shape (points,).
    # It assumes that each entry J[p, o, i] changes by at most bound[p, i], the error of a finite difference.
    step_bound: Callable[[Jacobians, Any], Any] = lambda J, bound: bound.max(axis=1)
    degree: int = 1  # the degree of the result as a polynomial in the entries of J
    # The kind of values that the check samples if the whole reference takes too long: "entries" of J,
    # "products" of J with random vectors, or None.
    sampling: str | None = None
    along_point: bool = False  # whether forward mode needs only one tangent, `Workload.direction`
    sums_points: bool = False  # whether the result is also summed over the points

    def shape(self, outputs: int, inputs: int) -> tuple[int, int]:
        """Return the shape of the result at one point for a Jacobian of shape (outputs, inputs)."""
        sizes = {OUTPUTS: outputs, INPUTS: inputs, None: 1}
        return sizes[self.axes[0]], sizes[self.axes[1]]

    @property
    def linear_in_inputs(self) -> bool:
        """Return whether the result is linear in the Jacobian J, and has an axis of inputs."""
        return self.axes[1] == INPUTS and self.degree == 1

    @property
    def sums_outputs(self) -> bool:
        """Return whether the result is the derivative of the sum of the outputs."""
        return self.linear_in_inputs and self.axes[0] is None

    @property
    def products(self) -> bool:
        """Return whether the result is the matrix J^T J."""
        return self.columns.products or self.rows.products


def _reference_whole(J: Jacobians, rounding: Rounding, x: Array) -> ReferenceTerms:
    scale = rounding.largest_by_leaf(J.size)
    return J.values, scale, scale


def _reference_points(J: Jacobians, rounding: Rounding, x: Array) -> ReferenceTerms:
    """Return (expected result, influence, magnitude) for the sum of J over the outputs."""
    expected, influence, magnitude = map(J.by_input, (J.values, J.size, abs(J.values)))
    return expected[:, None, :], influence[:, None, :], magnitude[:, None, :]


def _reference_outputs(J: Jacobians, rounding: Rounding, x: Array) -> ReferenceTerms:
    expected, influence, magnitude = _reference_points(J, rounding, x)
    return expected, rounding.largest_by_leaf(influence), rounding.largest_by_leaf(magnitude)


def _reference_product(J: Jacobians, rounding: Rounding, x: Array) -> ReferenceTerms:
    """Return (expected result, influence, magnitude) for J @ x, or for the row sums of J if x is None."""
    weights = None if x is None else abs(x)
    expected, influence = J.by_output(J.values, x), J.by_output(J.size, weights)
    magnitude = J.by_output(abs(J.values), weights)
    return expected[:, :, None], influence[:, :, None], magnitude[:, :, None]


def _reference_norm(J: Jacobians, rounding: Rounding, x: Array) -> ReferenceTerms:
    points = len(J.values)
    flat, largest = abs(J.values).reshape(points, 1, -1), J.size.reshape(points, 1, -1).max(-1, keepdims=True)
    norm = flat @ flat.transpose(0, 2, 1)
    second_order = rounding.entry * flat.shape[2] * largest**2
    return norm, 2 * largest * flat.sum(axis=2, keepdims=True) + second_order, norm


def _bound_norm(J: Jacobians, bound: Any) -> Any:
    return (2 * J.by_input(abs(J.values)) * bound + J.entries_by_input() * bound**2).sum(axis=1)


WHOLE = Reduction(
    "whole", axes=(OUTPUTS, INPUTS), entries="entry", sampling="entries", reference=_reference_whole,
    of_jacobians=lambda J, x: J,
)  # fmt: skip
TRACE = Reduction(  # for target=laplacian only, where J is the Hessian and a seed v contributes v^T J v
    "trace", axes=(None, None), entries="column",
    reference=lambda J, rounding, x: load_option("laplacian").reference_trace(J),
    columns=SliceStep(sums_seeds=True),
    of_jacobians=lambda J, x: J.trace(axis1=1, axis2=2),
)  # fmt: skip
_ALL_REDUCTIONS = (
    WHOLE,
    Reduction(
        "outputs", axes=(None, INPUTS), entries="column", sampling="entries", reference=_reference_outputs,
        columns=SliceStep(lambda column: column.sum(axis=-1)),
        rows=SliceStep(sums_seeds=True),
        of_jacobians=lambda J, x: J.sum(axis=1),
    ),
    Reduction(
        "inputs", axes=(OUTPUTS, None), entries="row", sampling="products",
        reference=lambda J, rounding, x: _reference_product(J, rounding, None),
        columns=SliceStep(sums_seeds=True),
        rows=SliceStep(lambda row, x: sum(a.sum() for a in row)),
        of_jacobians=lambda J, x: J.sum(axis=2),
        step_bound=lambda J, bound: bound.sum(axis=1),
    ),
    Reduction(
        "vector", axes=(OUTPUTS, None), entries="row", sampling="products", along_point=True,
        reference=_reference_product,
        rows=SliceStep(lambda row, x: sum((a * b).sum() for a, b in zip(row, x, strict=True))),
        of_jacobians=lambda J, x: (J @ x[:, :, None])[:, :, 0],
    ),
    Reduction(
        "norm", axes=(None, None), entries="all", degree=2, reference=_reference_norm, step_bound=_bound_norm,
        columns=SliceStep(lambda column: (column**2).sum(axis=-1), sums_seeds=True),
        rows=SliceStep(lambda row, x: sum((a**2).sum() for a in row), sums_seeds=True),
        of_jacobians=lambda J, x: (J**2).sum(axis=(1, 2)),
    ),
    Reduction(
        "gram", axes=(INPUTS, INPUTS), entries="column", degree=2,
        reference=lambda J, rounding, x: load_option("gram").reference_gram(J, rounding),
        columns=SliceStep(products=True),
        rows=SliceStep(sums_seeds=True, products=True),
        of_jacobians=lambda J, x: J.swapaxes(1, 2) @ J,
        step_bound=lambda J, bound: load_option("gram").step_bound(J, bound),
    ),
    Reduction(
        "points", axes=(None, INPUTS), entries="column", sampling="entries", reference=_reference_points,
        of_jacobians=lambda J, x: J.sum(axis=1),
        sums_points=True,
    ),
)  # fmt: skip
REDUCTIONS: dict[str, Reduction] = {reduction.name: reduction for reduction in _ALL_REDUCTIONS}
