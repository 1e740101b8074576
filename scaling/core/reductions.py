"""Reductions: what is computed from the Jacobian J of each point, as values.

A case names one of `REDUCTIONS`. A device applies `columns` or `rows` to its slices as they are computed, so
that a whole Jacobian need not exist; `of_jacobians` reduces one that a workload computed as a whole. Some
results are a sum over the seeds, which the host adds up over devices; the others have a place for each seed.
`reference` says the expected result in float64, and how large the terms are that it adds up; see
tolerances.py. To add a reduction, add one value to `REDUCTIONS`. Imports neither JAX nor NumPy until
one is applied.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from scaling.core.tolerances import EntryCounts, Jacobians, SizedEntries

OUTPUTS, INPUTS = "outputs", "inputs"
# The expected result, its influence and its magnitude: three arrays (points, outputs', inputs').
Terms = tuple[Any, Any, Any]


@dataclass(frozen=True)
class SliceStep:
    """What a device keeps of its slices.

    each: for columns, (..., outputs) -> what is kept of one; for rows, (a tuple of arrays, the inputs) ->
    what is kept. None keeps the slice.
    added: whether what is kept is summed over the seeds, on the device and over devices on the host.
    products: whether the result is the products of all pairs of inputs instead.
    """

    each: Callable[..., Any] | None = None
    added: bool = False
    products: bool = False

    @property
    def placed(self) -> bool:
        """Whether each seed has a place of its own in the result."""
        return not (self.added or self.products)


def _largest_bound(_: "Jacobians", bound: Any) -> Any:
    """Return the largest bound of each point, for a result that no sum over inputs moves further."""
    return bound.max(axis=1)


@dataclass(frozen=True)
class Reduction:
    """What is computed from a Jacobian J, (outputs, inputs).

    axes: what the two axes of the result run over: OUTPUTS, INPUTS, or None for a single entry.
    of_jacobians: (Jacobians, inputs) -> result on a device; (points, outputs, inputs) and (points, inputs).
    entries: how many entries of J one number of the result adds up.
    reference: the expected result with its influence and magnitude, in NumPy.
    step_bound: how far the result moves where each entry moves by at most the bound of its input: (points,).
    degree: of the result as a polynomial in J.
    sampling: how a part of the reference is compared where all of it takes too long: by "entries", "products"
    of J with a vector, or "columns" of J^T J; None where no part can be compared.
    along_point: whether its only tangent is the point itself.
    sums_points: whether it is summed over the points too, so that there is one result for all.
    """

    name: str
    axes: tuple[str | None, str | None]
    columns: SliceStep
    rows: SliceStep
    of_jacobians: Callable[[Any, Any], Any]
    entries: Callable[["EntryCounts"], int]
    reference: Callable[["SizedEntries"], Terms]
    step_bound: Callable[["Jacobians", Any], Any] = field(default=_largest_bound)
    degree: int = 1
    sampling: str | None = None
    along_point: bool = False
    sums_points: bool = False

    def shape(self, outputs: int, inputs: int) -> tuple[int, int]:
        """Return the shape of the result of one point."""
        sizes = {OUTPUTS: outputs, INPUTS: inputs, None: 1}
        return sizes[self.axes[0]], sizes[self.axes[1]]

    def numbers(self, outputs: int, inputs: int) -> int:
        """Return how many numbers the result of one point has."""
        return math.prod(self.shape(outputs, inputs))

    @property
    def linear_in_inputs(self) -> bool:
        """Whether the last axis of the result is that of J, so that inputs can be computed apart."""
        return self.axes[1] == INPUTS and self.degree == 1

    @property
    def sums_outputs(self) -> bool:
        """Whether the result is the derivative of the sum over the outputs."""
        return self.linear_in_inputs and self.axes[0] is None

    @property
    def products(self) -> bool:
        """Whether a device needs pairs of columns, or all of some rows, at once."""
        return self.columns.products or self.rows.products


def _sum_row(row: Any, _: Any) -> Any:
    return sum(a.sum() for a in row)


def _row_times_point(row: Any, x: Any) -> Any:
    return sum((a * b).sum() for a, b in zip(row, x, strict=True))


def _sum_squares(row: Any, _: Any) -> Any:
    return sum((a**2).sum() for a in row)


def _times_point(J: Any, x: Any) -> Any:
    import jax.numpy as jnp

    return jnp.einsum("pok,pk->po", J, x)


def _column_products(J: Any, _: Any) -> Any:
    import jax.numpy as jnp

    return jnp.einsum("poa,pob->pab", J, J)


def _reference_whole(e: "SizedEntries") -> Terms:
    size = e.size.max(axis=2, keepdims=True)
    return e.values, size, size


def _reference_outputs(e: "SizedEntries") -> Terms:
    influence, magnitude = (e.by_input(values).max(axis=1)[:, None, None] for values in (e.size, e.magnitude))
    return e.by_input(e.values)[:, None, :], influence, magnitude


def _reference_points(e: "SizedEntries") -> Terms:
    """Return the terms of each point, which are then added up over the points."""
    return tuple(e.by_input(values)[:, None, :] for values in (e.values, e.size, e.magnitude))  # type: ignore[return-value]


def _reference_inputs(e: "SizedEntries") -> Terms:
    return tuple(e.by_output(values)[:, :, None] for values in (e.values, e.size, e.magnitude))  # type: ignore[return-value]


def _reference_vector(e: "SizedEntries") -> Terms:
    along = None if e.x is None else abs(e.x)
    sums = (e.by_output(e.values, e.x), e.by_output(e.size, along), e.by_output(e.magnitude, along))
    return tuple(values[:, :, None] for values in sums)  # type: ignore[return-value]


def _reference_norm(e: "SizedEntries") -> Terms:
    """The influence follows from the product rule, with its second order."""
    flat, s = e.magnitude.reshape(len(e.magnitude), 1, -1), e.largest
    norm = (flat @ flat.transpose(0, 2, 1)).reshape(s.shape)
    influence = 2 * s * flat.sum(axis=2, keepdims=True) + e.rounding.entry * flat.shape[2] * s**2
    return norm, influence, norm


def _reference_gram(e: "SizedEntries") -> Terms:
    """The influence follows from the product rule, with its second order."""
    J, columns, s = e.values, e.magnitude.sum(axis=1), e.largest
    influence = s * (columns[:, :, None] + columns[:, None, :]) + e.rounding.entry * J.shape[1] * s**2
    return J.transpose(0, 2, 1) @ J, influence, e.magnitude.transpose(0, 2, 1) @ e.magnitude


def _bound_norm(J: "Jacobians", bound: Any) -> Any:
    return (2 * J.by_input(abs(J.values)) * bound + J.entries_by_input() * bound**2).sum(axis=1)


def _bound_gram(J: "Jacobians", bound: Any) -> Any:
    """Return the bound of the largest entry of J^T J."""
    columns, pairs = J.by_input(abs(J.values)), bound[:, :, None] * bound[:, None, :]
    crossed = bound[:, :, None] * columns[:, None, :]
    return (crossed + crossed.transpose(0, 2, 1) + J.entries_by_input().max() * pairs).max(axis=(1, 2))


WHOLE = Reduction(
    "whole",
    axes=(OUTPUTS, INPUTS),
    columns=SliceStep(),
    rows=SliceStep(),
    of_jacobians=lambda J, x: J,
    entries=lambda count: 1,
    reference=_reference_whole,
    sampling="entries",
)
_SUM_OVER_OUTPUTS = Reduction(
    "outputs",
    axes=(None, INPUTS),
    columns=SliceStep(lambda column: column.sum(axis=-1)),
    rows=SliceStep(added=True),
    of_jacobians=lambda J, x: J.sum(axis=1),
    entries=lambda count: count.column,
    reference=_reference_outputs,
    sampling="entries",
)
_SUM_OVER_INPUTS = Reduction(
    "inputs",
    axes=(OUTPUTS, None),
    columns=SliceStep(added=True),
    rows=SliceStep(_sum_row),
    of_jacobians=lambda J, x: J.sum(axis=2),
    entries=lambda count: count.row,
    reference=_reference_inputs,
    step_bound=lambda J, bound: bound.sum(axis=1),
    sampling="products",
)
_TIMES_POINT = Reduction(
    "vector",
    axes=(OUTPUTS, None),
    columns=SliceStep(),
    rows=SliceStep(_row_times_point),
    of_jacobians=_times_point,
    entries=lambda count: count.row,
    reference=_reference_vector,
    sampling="products",
    along_point=True,
)
_SQUARED_NORM = Reduction(
    "norm",
    axes=(None, None),
    columns=SliceStep(lambda column: (column**2).sum(axis=-1), added=True),
    rows=SliceStep(_sum_squares, added=True),
    of_jacobians=lambda J, x: (J**2).sum(axis=(1, 2)),
    entries=lambda count: count.entries,
    reference=_reference_norm,
    step_bound=_bound_norm,
    degree=2,
)
_GRAM = Reduction(
    "gram",
    axes=(INPUTS, INPUTS),
    columns=SliceStep(products=True),
    rows=SliceStep(added=True, products=True),
    of_jacobians=_column_products,
    entries=lambda count: count.column,
    reference=_reference_gram,
    step_bound=_bound_gram,
    degree=2,
    sampling="columns",
)
_SUM_OVER_POINTS = Reduction(
    "points",
    axes=(None, INPUTS),
    columns=SliceStep(),
    rows=SliceStep(),
    of_jacobians=lambda J, x: J.sum(axis=1),
    entries=lambda count: count.points * count.column,
    reference=_reference_points,
    sampling="entries",
    sums_points=True,
)
REDUCTIONS: dict[str, Reduction] = {
    each.name: each
    for each in (
        WHOLE,
        _SUM_OVER_OUTPUTS,
        _SUM_OVER_INPUTS,
        _TIMES_POINT,
        _SQUARED_NORM,
        _GRAM,
        _SUM_OVER_POINTS,
    )
}
