"""Evaluate entries that failed the check again with random rounding errors, to find out if they are wrong.

The derivative is evaluated several times in the dtype of the case, each time with other rounding errors in
all intermediate results (rounding.py). The range of an entry among these evaluations estimates its
rounding error. The entry passes if its error is not larger than the tolerance plus a multiple of the range.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from scaling.core.check import CheckProgress, EntryComparison, PointsComparison
from scaling.core.reference import Arrays, ReferenceSpec, reduce_reference
from scaling.core.tolerances import Jacobians, relative_error
from scaling.options.reference import evaluation as evaluations
from scaling.options.reference.computed_reference import native_evaluation
from scaling.options.reference.evaluation import Evaluation

_EVALUATIONS = 16
_FEW_EVALUATIONS = 4  # of functions whose Jacobians have more than _LARGE entries at the points
_LARGE = 2**24
_RATIO_OF_RANGES = 1.7  # the expected range of 16 normal samples over that of 4
_PERTURBATION_ROUNDINGS = 2  # the change of the inputs in each evaluation, in unit roundoffs
_ROUNDINGS_OF_VALUE = 64  # the unit roundoffs of a value that its derivative may contain as an error
_RANGES = 3  # the multiple of the range of an entry among 16 evaluations that rounding explains
_MOST_COLUMNS = 32  # the most columns of a block that are reevaluated
_LEAST_POINTS = 8  # the number of failed points of a block that are always reevaluated
_MOST_ENTRIES = 2**18  # the most entries at the reevaluated points, if there are more points

Columns = np.ndarray | slice


class Retry(NamedTuple):
    """Entries of a block of points (batch elements) that failed the check and are reevaluated."""

    spec: ReferenceSpec  # how the reference of the case is evaluated, and its tolerance
    native: Evaluation  # the function of the case, with the dtype of the case
    arrays: Arrays  # the inputs at the points that contain the entries
    # got, want: the entries of the result and of the reference
    got: np.ndarray
    want: np.ndarray
    size: np.ndarray  # the magnitude of each entry, by which its error is divided
    # A function (evaluation, inputs) that evaluates the entries: an array of the shape of `want`.
    measure: Callable[[Evaluation, Arrays], np.ndarray]


def reevaluate_failures(comparisons: CheckProgress) -> None:
    """Reevaluate the entries that failed the check, and record in `comparisons` which of them are wrong.

    The estimated rounding error is added to the tolerance of an entry. Entries whose tolerance then exceeds
    `spec.max_tolerance` are excluded from the check, unless their error is larger than rounding explains.
    """
    spec, first = comparisons.spec, comparisons.suspects[0][0]
    assert first.inputs is not None
    computed = spec.computed
    native = computed.native if computed else native_evaluation(spec.case, spec.workload, first.inputs)
    for block, comparison in comparisons.suspects:
        if comparisons.first_wrong is None:
            _reevaluate_block(comparisons, native, block, comparison)
    for block, error in comparisons.suspects_over_budget:
        comparisons.record_errors(block, error, ~(error <= comparisons.allowed))


def _reevaluate_block(
    comparisons: CheckProgress, native: Evaluation, block: PointsComparison, comparison: EntryComparison
) -> None:
    spec = comparisons.spec
    errors = relative_error(np.abs(comparison.result - comparison.expected), comparison.scale)
    points, columns = _choose_entries(spec, comparison, errors)
    # A derivative may cross zero at a point. Its typical size is its root mean square over the points, or
    # over the outputs if there is only one point.
    sizes = np.broadcast_to(comparison.scale, comparison.expected.shape)
    axes = (0, 1) if len(sizes) == 1 and sizes.ndim > 1 else 0
    typical = np.sqrt(np.mean(sizes**2, axis=axes, keepdims=True))[0][..., columns]
    retry = _make_retry(spec, native, block, comparison, points, columns)
    natural_size, noise = _natural_size(retry), np.zeros(retry.want.shape)
    is_wrong, is_excluded, *_ = _judge(retry, typical, natural_size, noise)
    passes = ~is_wrong & ~is_excluded
    unexplained = ~passes.reshape(len(points), -1).all(axis=1)
    if unexplained.any():  # by the rounding errors of the values
        rows = _choose_failed(unexplained, unexplained.astype(float), len(points))
        part = _make_retry(spec, native, block, comparison, points[rows], columns)
        try:
            noise[rows] = np.where(passes[rows], 0.0, _estimate_rounding_errors(part))
        except Exception as failure:  # of the function, or of JAX: the entries that do not pass stay wrong
            message = f"{type(failure).__name__}: {failure}".strip().splitlines()[0][:120]
            block = block._replace(note=f"{block.note}; its rounding error is unknown ({message})")
    is_wrong, is_excluded, is_hidden, error, allowed = _judge(retry, typical, natural_size, noise)
    point_is_wrong, point_errors = np.zeros(len(errors), bool), np.zeros(len(errors))
    point_is_wrong[points] = is_wrong.reshape(len(points), -1).max(axis=1)
    point_errors[points] = error.reshape(len(points), -1).max(axis=1)
    comparisons.allowed = max(comparisons.allowed, float(allowed.max()))
    comparisons.record_errors(block, point_errors, point_is_wrong)
    # Judge the failed entries that were not reevaluated.
    failed_before = errors[points[:, None], ..., columns] > spec.tolerance
    excluded_share = is_excluded.sum() / max(1, failed_before.sum())
    errors[points[:, None], ..., columns] = 0.0
    failed = errors > comparisons.allowed
    comparisons.undecided_entries += int(is_excluded.sum() + excluded_share * failed.sum())
    if failed.any() and not excluded_share and not is_hidden.any():
        by_point = errors.reshape(len(errors), -1)
        comparisons.record_errors(block, by_point.max(axis=1), failed.reshape(by_point.shape).max(axis=1))


def _judge(
    retry: Retry, typical: np.ndarray, natural_size: np.ndarray, noise: np.ndarray
) -> tuple[np.ndarray, ...]:
    """Judge entries by their errors and by `noise`, estimates of their rounding errors of the same shape.

    Args:
        typical: the typical size of each entry, see `_reevaluate_block`.
        natural_size: the result of `_natural_size`.

    Returns: five arrays of the shape of the entries.
        Whether rounding errors do not explain the error of the entry, so that it is wrong.
        Whether rounding errors are so large that the entry proves nothing and is excluded.
        Whether rounding errors exceed the largest tolerance.
        The relative error, or 0 if the entry is excluded.
        The relative error up to which the entry passes.
    """
    spec = retry.spec
    # The function's values may contain this rounding error, whatever the mode. Alone it excludes no entry.
    value_rounding = _ROUNDINGS_OF_VALUE * spec.roundoff * np.sqrt(spec.workload.terms) * natural_size
    most = min(spec.tolerance, spec.max_tolerance - spec.tolerance) * typical
    noise = np.maximum(noise, np.minimum(most, value_rounding))
    error, limit = np.abs(retry.got - retry.want), spec.tolerance * retry.size
    is_hidden = noise > spec.max_tolerance * retry.size
    size = np.where(is_hidden, np.maximum(np.maximum(retry.size, typical), natural_size), retry.size)
    allowed = spec.tolerance + relative_error(noise, size)
    is_right = error <= limit
    is_wrong = ~is_right & ~(error <= limit + noise)
    is_excluded = ~is_right & ~is_wrong & ~(allowed <= spec.max_tolerance)
    counted_error = np.where(is_excluded, 0.0, relative_error(error, size))
    return (
        is_wrong,
        is_excluded,
        is_hidden,
        counted_error,
        np.where(is_right | is_excluded, spec.tolerance, allowed),
    )


def _choose_entries(
    spec: ReferenceSpec, comparison: EntryComparison, errors: np.ndarray
) -> tuple[np.ndarray, Columns]:
    """Return the indices of the points and of the columns to reevaluate, or a slice for all columns."""
    failed = errors > spec.tolerance
    by_point = failed.reshape(len(failed), -1)
    most = max(_LEAST_POINTS, _MOST_ENTRIES // by_point.shape[1])
    points = _choose_failed(by_point.max(axis=1), errors.reshape(by_point.shape).max(axis=1), most)
    has_columns = comparison.measure is None and spec.case.target != "hvp" and not spec.case.ad_mode.is_value
    if not has_columns or spec.reduction.sums_points or not spec.reduction.linear_in_inputs:
        return points, slice(None)  # single columns cannot be evaluated
    by_column, worst = (array[points].reshape(-1, array.shape[-1]) for array in (failed, errors))
    return points, _choose_failed(by_column.max(axis=0), worst.max(axis=0), _MOST_COLUMNS)


def _choose_failed(failed: np.ndarray, errors: np.ndarray, most: int) -> np.ndarray:
    """Return sorted indices of failed elements, which have the largest errors, at most `most`.

    If more failed, half of the indices have the largest errors, and half are evenly spaced.
    Otherwise, elements that passed are added, so that few programs are compiled.
    """
    order, failures = np.argsort(-errors, kind="stable"), int(failed.sum())
    if failures <= most:
        count = 16
        while count < failures:
            count *= 4
        return np.sort(order[: min(most, count)])
    worst, rest = order[: most // 2], np.sort(order[most // 2 : failures])
    spaced = np.linspace(0, len(rest) - 1, most - most // 2).astype(int)
    return np.sort(np.concatenate([worst, rest[spaced]]))


def _make_retry(
    spec: ReferenceSpec,
    native: Evaluation,
    block: PointsComparison,
    comparison: EntryComparison,
    points: np.ndarray,
    columns: Columns,
) -> Retry:
    assert block.inputs is not None
    arrays, measure = block.inputs, functools.partial(_expected_result, spec, columns)
    if spec.reduction.sums_points:
        measure = functools.partial(_expected_sum, spec)
    else:
        arrays = {name: x[points] if name in native.per_point else x for name, x in arrays.items()}
    if comparison.measure is not None:
        measure = functools.partial(comparison.measure, points=points)
    shape = comparison.expected.shape
    got, want, size = (
        np.broadcast_to(array, shape)[points][..., columns]
        for array in (comparison.result, comparison.expected, comparison.scale)
    )
    return Retry(spec, native, arrays, got, want, size, measure)


def _estimate_rounding_errors(retry: Retry) -> np.ndarray:
    """Return the rounding error of each entry in the dtype of the case, an array that broadcasts to them.

    The rounding error is three times the range of the entry among evaluations with random rounding errors. A
    rounding error relative to the size of the entry is at least the median of those of all entries.
    """
    generator, relative = np.random.default_rng(1), _PERTURBATION_ROUNDINGS * retry.spec.roundoff
    sizes = retry.spec.sizes
    is_large = len(retry.want) * sizes.values * sizes.inputs > _LARGE
    count, ranges = (_FEW_EVALUATIONS, _RATIO_OF_RANGES * _RANGES) if is_large else (_EVALUATIONS, _RANGES)
    with evaluations.evaluation_context(retry.native.dtype):
        pairs = evaluations.with_rounding(retry.native, retry.arrays, relative, generator, count)
        rounded = np.array([retry.measure(*pair) for pair in pairs])
    noise = ranges * (rounded.max(axis=0) - rounded.min(axis=0))
    median = float(np.median(relative_error(noise, retry.size)))
    return np.maximum(noise, retry.size * min(1.0, median))


def _natural_size(retry: Retry) -> np.ndarray:
    """Return an estimate of the magnitude of each entry from the values f(x) and the inputs x.

    The estimate is |f(x)| / |x| for a derivative, a power of this ratio for a reduction of higher degree, and
    |f(x)| for a value or the product of a derivative and x. The result broadcasts to the shape of the
    entries.
    """
    with evaluations.evaluation_context(retry.native.dtype):
        value = np.abs(evaluations.values(retry.native, retry.arrays))
    spec, shape = retry.spec, retry.want.shape
    value = np.maximum(value, np.sqrt(np.mean(value**2, axis=0)))  # an output may cross zero at a point
    is_along_point = spec.case.ad_mode.is_value or spec.reduction.along_point or spec.case.target == "hvp"
    mean_squares = [np.mean(retry.arrays[name] ** 2) for name in retry.native.names]
    typical_input = np.sqrt(np.mean(mean_squares)) or 1.0
    size = value if is_along_point else (value / typical_input) ** spec.reduction.degree
    if spec.reduction.sums_points:
        return np.full((1,) * max(1, len(shape)), size.sum())
    if shape[1] != size.shape[1]:
        size = size.max(axis=1, keepdims=True)
    return size.reshape(*size.shape, *[1] * (len(shape) - 2))


def _expected_result(
    spec: ReferenceSpec, columns: Columns, evaluation: Evaluation, arrays: Arrays
) -> np.ndarray:
    if spec.case.ad_mode.is_value:
        return evaluations.values(evaluation, arrays)[:, :, None]
    if not isinstance(columns, slice):
        if spec.reduction.sums_outputs:
            evaluation = evaluations.with_summed_outputs(evaluation)
        return evaluations.jacobian_columns(evaluation, arrays, columns)
    J = evaluations.jacobian_in_few_passes(evaluation, arrays)
    if spec.sizes.summed and spec.workload.reduce is not None:
        J = J.sum(axis=1, keepdims=True)
    return reduce_reference(spec, Jacobians(J), None, arrays)[0]


def _expected_sum(spec: ReferenceSpec, evaluation: Evaluation, arrays: Arrays) -> np.ndarray:
    """Return the sum of the derivatives at k of the n points, times sqrt(n / k), of shape (1, inputs).

    The factor scales the rounding error, which grows with the square root of the number of terms.
    """
    summed = evaluations.with_summed_outputs(evaluation)
    by_point = evaluations.jacobian_in_few_passes(summed, arrays)[:, 0]
    return np.asarray(by_point.sum(axis=0, keepdims=True) * np.sqrt(spec.case.points / len(by_point)))
