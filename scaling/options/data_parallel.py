"""Implement `reduce=points` (data parallelism): differentiate a loss summed over points, and check the sum.

The loss is differentiated with respect to inputs that all points (batch elements) share, such as weights.
Each device computes the sum over its own points. With `split=data`, an all-reduce adds these sums, so that
every device has a copy of the total, and each copy is checked. With any other split, the host adds the sums.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from scaling.checks import evaluations
from scaling.checks.finite_step_bound import cover_errors, input_bounds
from scaling.core import inputs
from scaling.core import reference as references
from scaling.core.case import Case
from scaling.core.check import EntryComparison, PointsComparison
from scaling.core.derivative import (
    Derivative,
    DevicePosition,
    LinearMapPart,
    NamedArrays,
    SeedRange,
    ceil_div,
    make_slices,
    reduce_slices,
    sum_over_devices,
    sum_over_seeds,
)
from scaling.core.layout import split_inputs
from scaling.core.reductions import Rounding
from scaling.core.reference import ReferenceSpec
from scaling.core.workload import Workload

Loss = Callable[..., Any]  # f(**shared inputs) returns the scalar sum over some points
SumOverPoints = Callable[[Callable[[Loss], Any]], Any]  # f(transform) returns the sum of transform(loss)
_PIECES = 4  # the number of pieces of a gradient with overlap=true
_PIECE = "piece of an input"  # the name of the argument that is one piece of an input
_REEVALUATED_POINTS = 64  # the maximum number of points at which a sum is reevaluated


def sum_derivative(
    derivative: Derivative, points: NamedArrays, shared: NamedArrays, position: DevicePosition
) -> Any:
    """Return the gradient of a loss that is summed over points, or the loss itself if mode=value.

    With split=data, the sum includes the points of all devices, otherwise only the points of this device
    (`points`). The gradient is a tuple with one item for each `LinearMapPart`. In forward mode, an item is an
    array of shape (seeds,). In reverse mode, it contains one array for each input of the part.
    """
    case = derivative.case
    count = ceil_div(case.points, case.mesh_shape[0])
    has_padding = count * case.mesh_shape[0] != case.points

    def sum_over_points(transform: Callable[[Loss], Any]) -> Any:
        """Return the sum of `transform(loss)` over all blocks of points of this device.

        `loss` is a function that returns the loss of one block. `transform(loss)` is this loss or its
        gradient. With split=data, the result is also summed over all devices.
        """

        def sum_of_block(rows: Any) -> Any:
            rows_of = lambda x: jax.lax.dynamic_slice_in_dim(x, rows[0], len(rows))  # noqa: E731
            block = {name: rows_of(x) for name, x in points.items()} if case.block else points
            valid = position.point_index * count + rows < case.points if has_padding else None
            return transform(lambda **shared: _loss(derivative, block, shared, valid))

        return sum_over_devices(case, sum_over_seeds(sum_of_block, SeedRange(0, count, case.block)))

    if case.ad_mode.is_value:
        return sum_over_points(lambda loss: loss(**shared))
    if case.overlap:
        return tuple(
            _gradient_in_pieces(case, part, sum_over_points, shared, position) for part in derivative.parts
        )
    return sum_over_points(
        lambda loss: tuple(
            reduce_slices(make_slices(case, part, loss, shared, position)) for part in derivative.parts
        )
    )


def _loss(derivative: Derivative, points: NamedArrays, shared: NamedArrays, valid: Any) -> Any:
    """Return the sum of the outputs over all points, or over the points where the array `valid` is true."""
    workload = derivative.workload
    if derivative.case.batch == "whole" and workload.whole is not None and valid is None:
        return jnp.sum(workload.whole(**points, **shared))
    point_losses = jax.vmap(lambda point: workload.function(**point, **shared))(points)
    if valid is not None:
        point_losses = jnp.where(valid.reshape(-1, *[1] * (point_losses.ndim - 1)), point_losses, 0)
    return jnp.sum(point_losses)


def _gradient_in_pieces(
    case: Case,
    part: LinearMapPart,
    sum_over_points: SumOverPoints,
    shared: NamedArrays,
    position: DevicePosition,
) -> Any:
    """Return the gradient of the summed loss for the inputs of `part`, computed in pieces (overlap=true).

    A piece is the gradient with respect to a range of elements of an input. The devices can compute the next
    piece while one piece is summed over the devices. `sum_over_points(transform)` returns the sum of
    `transform(loss)` over the points.
    """

    def differentiate_piece(name: str, pieces: list[Any], index: int, loss: Loss) -> Any:
        def loss_of_piece(**arrays: Any) -> Any:
            whole_input = jnp.concatenate([*pieces[:index], arrays.pop(_PIECE), *pieces[index + 1 :]])
            return loss(**arrays | {name: whole_input.reshape(shared[name].shape)})

        arguments = dict(shared) | {_PIECE: pieces[index]}
        seeds = pieces[index].size if part.computes_columns else 1
        part_of_piece = dataclasses.replace(part, names=(_PIECE,), seeds=seeds)
        slices = make_slices(case, part_of_piece, loss_of_piece, arguments, position)
        (gradient,) = jax.tree.leaves(reduce_slices(slices))
        return gradient.reshape(-1)

    gradients = []  # flat arrays, which the host reshapes
    for name in part.names:
        pieces = jnp.array_split(shared[name].reshape(-1), min(_PIECES, shared[name].size))
        derivatives = [functools.partial(differentiate_piece, name, pieces, k) for k in range(len(pieces))]
        gradients.append(jnp.concatenate(list(map(sum_over_points, derivatives))))
    return jnp.concatenate(gradients) if part.computes_columns else gradients


def sum_over_point_devices(case: Case, x: np.ndarray) -> np.ndarray:
    """Return the sum of `x` over the point devices. With split=data, return all copies of the sum.

    `x` has the shape (point devices, seed devices, ...). The first seed device has the complete values. With
    split=data, each point device already has the sum, and the result has the shape (point devices, ...).
    Otherwise, the result has the shape (1, ...).
    """
    x = x[:, 0]
    return x if case.split == "data" else x.astype(np.float64).sum(axis=0, keepdims=True)


def gather_sums(
    case: Case, workload: Workload, part: LinearMapPart, arrays: list[np.ndarray]
) -> list[np.ndarray]:
    """Return the gradient of the summed loss, as one array of shape (copies, 1, elements) for each input.

    With split=data, there is a copy for each point device, otherwise a single one. `arrays` contains the
    results of all devices, with leading axes (point devices, seed devices): one array in forward mode, one
    array for each input in reverse mode.
    """
    if part.computes_columns:
        (x,) = arrays  # (point devices, seed devices, seeds)
        x = x.reshape(x.shape[0], 1, -1)[:, :, : part.seeds]
        return split_inputs(workload, part, sum_over_point_devices(case, x)[:, None])
    sums = [sum_over_point_devices(case, x) for x in arrays]
    return [x.reshape(len(x), 1, -1) for x in sums]


def compare_sum(spec: ReferenceSpec, result: np.ndarray) -> PointsComparison:
    """Return a `PointsComparison` between a gradient or loss, summed over points, and its expected value.

    `result` has the shape (copies, 1, inputs). With split=data, there is a copy for each device, otherwise
    one.
    """
    rounding, points = spec.rounding, spec.case.points
    term_rounding = dataclasses.replace(rounding, added=rounding.added // points)
    expected = largest_sum = scale = step_bound = np.zeros(())
    for start, stop in references.point_ranges(spec):
        terms, term_scales = _terms_of_sum(spec, term_rounding, start, stop)
        sums = expected + np.cumsum(terms, axis=0)
        expected, largest_sum = sums[-1], np.maximum(largest_sum, np.abs(sums).max(axis=0))
        scale = scale + term_scales.sum(axis=0)
        if spec.case.ad_mode.finite_step:
            step_bound = step_bound + input_bounds(spec, start, stop, rounding.longest_sum).sum(axis=0)
    # As in `Rounding.scale`, the error of a sum is proportional to the square root of its number of terms.
    scale = scale * np.sqrt(term_rounding.longest_sum / rounding.longest_sum)
    scale = np.maximum(scale, largest_sum * np.sqrt(rounding.added / rounding.longest_sum))
    largest, sum_size = scale.max(), np.abs(expected)
    leaf_scale = largest if spec.case.ad_mode.finite_step else rounding.largest_by_leaf(scale)
    # If the terms cancel, an error within the tolerance may be as large as the sum. It is then undecided.
    tolerance = min(spec.tolerance, spec.max_tolerance)
    provable = np.maximum(spec.max_tolerance * rounding.largest_by_leaf(sum_size), tolerance * sum_size.max())
    expected, leaf_scale = (np.broadcast_to(array, result.shape) for array in (expected, leaf_scale))
    comparison = EntryComparison(result.astype(np.float64), expected, leaf_scale, provable=provable)
    bounds = np.full(len(result), step_bound.max())
    if spec.case.ad_mode.finite_step:
        errors = np.abs(comparison.result - expected) - spec.tolerance * largest
        bounds = cover_errors(bounds, errors, functools.partial(_step_bound_of_sum, spec))
    step_error = references.relative_error(bounds, largest)
    return PointsComparison(0, min(_REEVALUATED_POINTS, points), [comparison], step_error)


def _step_bound_of_sum(spec: ReferenceSpec, index: int) -> np.ndarray:
    """Return an upper bound on the error of the summed forward difference for input element `index`."""
    ranges, terms = references.point_ranges(spec), spec.rounding.longest_sum
    return np.asarray(sum(input_bounds(spec, *each, terms, index)[:, 0].sum() for each in ranges))


def _terms_of_sum(
    spec: ReferenceSpec, rounding: Rounding, start: int, stop: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return the expected gradient of the loss at each point in [start, stop), and its error scale.

    With mode=value, return the expected loss instead of its gradient. The expected result is the sum over all
    points. Both arrays have the shape (points, inputs), or (points, 1) with mode=value.
    """
    if spec.case.ad_mode.is_value:
        value, scale = references.reference_values(spec, start, stop)
        return value.sum(axis=1, keepdims=True), scale.sum(axis=1, keepdims=True)
    if spec.sampled:
        evaluation = dataclasses.replace(spec.computed.evaluation, summed=True)
        arrays = inputs.exact_inputs(spec.case, spec.workload, start, stop)
        kind, count = ("rows", 1) if spec.computed.has_reverse_mode else ("columns", spec.derivative.inputs)
        gradient = evaluations.slices(evaluation, arrays, kind, np.arange(count))[:, 0]
        return gradient, np.abs(gradient)
    J = references.reference_jacobians(spec, start, stop)
    value, scale = references.reduce_jacobians(spec.reduction, J, rounding)
    return value[:, 0], scale[:, 0]
