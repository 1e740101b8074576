"""Compare a sample of a result with JAX (random columns, rows, products) if all entries take too long.

At every point (batch element), some columns and rows of the Jacobian are compared, and its products with
random vectors. The error of a product is relative to the root mean square of the expected products. At some
points, all entries are compared.
"""

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from scaling.checks import evaluations
from scaling.checks.evaluations import Evaluation
from scaling.checks.finite_step_bound import result_bounds
from scaling.core import inputs
from scaling.core import reference as references
from scaling.core.check import EntryComparison, PointsComparison, compare_points
from scaling.core.inputs import InputArrays
from scaling.core.reductions import Jacobians
from scaling.core.reference import ReferenceSpec, flatten_inputs, point_ranges, relative_error
from scaling.options.sparse_jacobians import SparseJacobians

_RANDOM_VECTORS = 4  # the number of random vectors that multiply the derivative of each input
_COLUMNS, _ROWS = 8, 4  # the number of columns and rows of each Jacobian that are compared
_SECONDS_OF_COMPARISON = 3e-4  # the shortest time to compare all entries of one point, in seconds
_SIGN_SAMPLES = 3  # the number of random sign changes from which the magnitude of summed terms is estimated


def compare_samples(spec: ReferenceSpec, result: np.ndarray) -> Iterator[PointsComparison]:
    """Compare a result with its reference by samples, and yield the comparisons of each block of points.

    The first comparison of a block contains random samples at all points of the block. Each further
    comparison contains all entries at one point.
    """
    generator = np.random.default_rng([spec.case.data_seed, 1])
    complete_points = _sample_indices(_count_complete_points(spec), spec.case.points, generator)
    typical_inputs = evaluations.sample_inputs(spec.case, spec.workload)
    groups = evaluations.group_inputs(spec.computed.evaluation, typical_inputs, generator)
    for start, stop in point_ranges(spec):
        yield _compare_block(spec, result[start:stop], start, stop, groups)
        for point in map(int, complete_points[(start <= complete_points) & (complete_points < stop)]):
            yield compare_points(spec, result[point : point + 1], point, point + 1)


def compared_shares(spec: ReferenceSpec, decided_share: float) -> dict[str, float]:
    """Return a dict with the fractions of the "entries" and of the "points" that the check compares.

    A point counts if all of its entries are compared. A compared entry counts only if its rounding error is
    small enough to decide whether it is correct. `decided_share` is the fraction of the compared entries for
    which this is true.
    """
    if _is_matrix_vector_product(spec):
        return {"entries": decided_share, "points": 1.0}
    compared_columns, compared_rows = _sample_columns_and_rows(spec)
    outputs = spec.reduction.shape(spec.derivative.outputs, spec.derivative.inputs)[0]
    complete = 0.0 if spec.reduction.sums_points else _count_complete_points(spec) / spec.case.points
    columns, rows = len(compared_columns) / spec.derivative.inputs, len(compared_rows) / outputs
    sampled = rows + columns - rows * columns
    entries = decided_share * (sampled + (1 - sampled) * complete)
    return {"entries": entries, "points": 1.0 if sampled == 1 else complete}


def _is_matrix_vector_product(spec: ReferenceSpec) -> bool:
    return spec.case.target == "hvp" or spec.reduction.sampling == "products"


def _sample_indices(count: int, size: int, generator: np.random.Generator) -> np.ndarray:
    return np.sort(generator.choice(size, min(count, size), replace=False))


def _count_complete_points(spec: ReferenceSpec) -> int:
    """Return the number of points at which all entries can be compared within the time limit."""
    if _is_matrix_vector_product(spec) or spec.case.ad_mode.finite_step:
        return 0
    seconds_per_point = max(spec.computed.seconds / spec.case.points, _SECONDS_OF_COMPARISON)
    return int(min(spec.case.points, references.BUDGET_SECONDS / 2 / seconds_per_point))


def _sample_columns_and_rows(spec: ReferenceSpec) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(spec.case.data_seed)
    outputs = 1 if spec.reduction.sums_outputs else spec.derivative.outputs
    rows = _sample_indices(_ROWS, outputs, generator) if spec.computed.has_reverse_mode else np.arange(0)
    return _sample_indices(_COLUMNS, spec.derivative.inputs, generator), rows


def _compare_block(
    spec: ReferenceSpec, result: np.ndarray, start: int, stop: int, groups: evaluations.Groups
) -> PointsComparison:
    """Return comparisons of random samples of the result at the points [start, stop)."""
    arrays, result = inputs.exact_inputs(spec.case, spec.workload, start, stop), result.astype(np.float64)
    generator = np.random.default_rng([spec.case.data_seed, 2, start])
    if _is_matrix_vector_product(spec):
        comparisons = [_compare_products(spec, arrays, result, generator)]
    else:
        comparisons = list(_compare_jacobians(spec, arrays, result, generator, groups))
    step_error = np.zeros(stop - start)
    if spec.case.ad_mode.finite_step:
        # One error bound holds for all entries, so that they have the same scale.
        scales = [comparison.scale.max(axis=(1, 2), keepdims=True) for comparison in comparisons]
        comparisons = [dataclasses.replace(x, scale=y) for x, y in zip(comparisons, scales, strict=True)]
        step_error = relative_error(result_bounds(spec, start, stop), np.min(scales, axis=0).ravel())
    return PointsComparison(start, stop, comparisons, step_error)


def _compare_jacobians(
    spec: ReferenceSpec,
    arrays: InputArrays,
    result: np.ndarray,
    generator: np.random.Generator,
    groups: evaluations.Groups,
) -> Iterator[EntryComparison]:
    """Yield comparisons of Jacobians with the reference: products with random vectors, columns, and rows.

    Rows are compared only if JAX has reverse mode for the function. `result` contains the Jacobians, of shape
    (points, outputs, inputs), or (points, 1, nonzeros) if seeds=colored.
    """
    compared_columns, compared_rows = _sample_columns_and_rows(spec)
    if spec.pattern is None:
        J, rows, cols = Jacobians(result), np.arange(result.shape[1])[:, None], np.arange(result.shape[2])
    else:
        pattern = spec.pattern
        J, rows, cols = SparseJacobians(result[:, 0], pattern), pattern.rows, pattern.cols
    yield _compare_random_products(spec, arrays, J, generator, groups)
    yield _compare_columns(spec, arrays, J, cols, compared_columns)
    if len(compared_rows):
        yield _compare_rows(spec, arrays, J, rows, compared_rows)


def _compare_random_products(
    spec: ReferenceSpec,
    arrays: InputArrays,
    J: Jacobians,
    generator: np.random.Generator,
    groups: evaluations.Groups,
) -> EntryComparison:
    """Return a comparison of the products of the Jacobians J and random vectors.

    Each vector is nonzero only for the inputs of one group of `groups`. Otherwise, a large derivative with
    respect to one input could hide an error in a small one.
    """
    evaluation = spec.computed.evaluation
    names, per_point = evaluation.names, evaluation.per_point
    vectors = [evaluations.random_direction(evaluation, arrays, generator) for _ in range(_RANDOM_VECTORS)]
    directions = [direction for v in vectors for direction in evaluations.split_direction(v, groups)]
    measure = _make_measure("jvp", directions, spec.reduction.sums_outputs)
    expected = measure(evaluation, arrays)
    scale = np.sqrt(np.mean(np.split(expected**2, _RANDOM_VECTORS, axis=2), axis=0))
    scale = _floor_scale(spec, np.maximum(np.tile(scale, _RANDOM_VECTORS), np.abs(expected)))
    points = len(J.values)
    flat_directions = (flatten_inputs(names, per_point, direction, points) for direction in directions)
    products = np.stack([J.by_output(J.values, v) for v in flat_directions], axis=2)
    return EntryComparison(products, expected, scale, measure)


def _compare_columns(
    spec: ReferenceSpec, arrays: InputArrays, J: Jacobians, cols: np.ndarray, compared: np.ndarray
) -> EntryComparison:
    """Return a comparison of some columns of J with their expected values.

    `compared` contains the indices of these columns. `cols`, which broadcasts to `J.values`, contains the
    column index of each entry.
    """
    measure = _make_measure("columns", compared, spec.reduction.sums_outputs)
    entries = np.stack([J.by_output(J.values * (cols == k)) for k in compared], axis=2)
    leaves = range(len(spec.rounding.leaf_sizes))
    leaf = np.repeat(leaves, spec.rounding.leaf_sizes)  # the leaf of each column
    J_by_leaf = [dataclasses.replace(J, values=J.values * (leaf[cols] == k)) for k in leaves]
    scale = _floor_scale(spec, np.stack([J_leaf.largest_by_output() for J_leaf in J_by_leaf], axis=2))
    expected = measure(spec.computed.evaluation, arrays)
    return EntryComparison(entries, expected, scale[:, :, leaf[compared]], measure)


def _compare_rows(
    spec: ReferenceSpec, arrays: InputArrays, J: Jacobians, rows: np.ndarray, compared: np.ndarray
) -> EntryComparison:
    """Return a comparison of some rows of J with their expected values.

    `compared` contains the indices of these rows. `rows`, which broadcasts to `J.values`, contains the row
    index of each entry.
    """
    measure = _make_measure("rows", compared, spec.reduction.sums_outputs)
    entries = np.stack([J.by_input(J.values * (rows == k)) for k in compared], axis=1)
    expected = measure(spec.computed.evaluation, arrays)
    scale = _floor_scale(spec, spec.rounding.largest_by_leaf(np.abs(expected)))
    return EntryComparison(entries, expected, scale, measure)


def _floor_scale(spec: ReferenceSpec, scale: np.ndarray) -> np.ndarray:
    """Return `scale`, with small elements increased to a fraction of the largest element in their row.

    The fraction is `spec.tolerance / spec.max_tolerance`.
    """
    return np.maximum(scale, spec.tolerance / spec.max_tolerance * scale.max(axis=2, keepdims=True))


def _compare_products(
    spec: ReferenceSpec, arrays: InputArrays, result: np.ndarray, generator: np.random.Generator
) -> EntryComparison:
    """Return a comparison of `result` with the product of the Jacobian (or Hessian) and a vector.

    The vector is the direction that the workload defines or, if the case sums the columns of the Jacobian, a
    vector of ones. `result` has the shape (points, outputs, 1).
    """
    evaluation = spec.computed.evaluation
    has_direction = spec.case.target == "hvp" or spec.reduction.along_point  # J x at the point x
    names = zip(evaluation.names, spec.workload.direction_names, strict=True)
    direction = {x: arrays[v] if has_direction else np.ones_like(arrays[v]) for x, v in names}
    measure = _make_measure("jvp", [direction])
    expected = measure(evaluation, arrays)
    # The magnitude of the summed terms is estimated from copies of v with random signs.
    scale = np.abs(expected)
    for _ in range(_SIGN_SAMPLES):
        signed = {name: x * generator.choice([-1.0, 1.0], x.shape) for name, x in direction.items()}
        scale = np.maximum(scale, np.abs(_make_measure("jvp", [signed])(evaluation, arrays)))
    return EntryComparison(result, expected, scale, measure)


def _make_measure(quantity: str, seeds: Any, is_summed: bool = False) -> Callable[..., np.ndarray]:
    """Return a function measure(evaluation, arrays, points) that computes parts or products of Jacobians.

    `points` contains the indices of points within a block, by default of all its points. `arrays` contains
    the inputs at these points.

    Args:
        quantity: "jvp", or a `quantity` of `evaluations.slices`: "columns" or "rows".
        seeds: for "jvp", a list of tangents. Each tangent contains the values at all points of the block.
            Otherwise, the `seeds` of `evaluations.slices`.
        is_summed: whether the outputs of each point are summed before the differentiation.
    """

    def measure(evaluation: Evaluation, arrays: InputArrays, points: Any = slice(None)) -> np.ndarray:
        evaluation = dataclasses.replace(evaluation, summed=is_summed)
        if quantity != "jvp":
            return evaluations.slices(evaluation, arrays, quantity, seeds)
        per_point, products = evaluation.per_point, []
        for seed in seeds:
            tangents = {name: x[points] if name in per_point else x for name, x in seed.items()}
            products.append(evaluations.directional_derivative(evaluation, arrays, tangents))
        return np.stack(products, axis=2)

    return measure
