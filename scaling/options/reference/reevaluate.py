"""Reevaluate the entries that failed the check with random rounding errors, and record the wrong ones.

The derivative is evaluated several times in the dtype of the case, with different random rounding errors in
all intermediate results (rounding.py). An entry passes if its error is not larger than the tolerance plus a
multiple of the range of its values.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from scaling.core.check import CheckProgress, EntryComparison, PointsComparison
from scaling.core.inputs import InputArrays
from scaling.core.reference import ReferenceSpec, reduce_reference
from scaling.core.tolerances import Jacobians, relative_error
from scaling.options.reference import evaluations
from scaling.options.reference.computed_reference import native_evaluation
from scaling.options.reference.evaluations import Evaluation

_EVALUATIONS = 16  # the number of evaluations with random rounding errors
_FEW_EVALUATIONS = 4  # if the Jacobians at the reevaluated points have more than _LARGE entries
_LARGE = 2**24
_RATIO_OF_RANGES = 1.7  # the expected range of 16 normal samples over that of 4
_PERTURBATION_ROUNDINGS = 2  # the change of the inputs in each evaluation, in unit roundoffs
_ROUNDINGS_OF_VALUE = 64  # the error of a derivative from rounding the value, in unit roundoffs of it
_RANGES = 3  # the estimated rounding error, as a multiple of the range among 16 evaluations
_MAX_COLUMNS = 32  # limit on the number of reevaluated columns of a block of points
_MIN_POINTS = 8  # the number of points that are reevaluated even if they have more than _MAX_ENTRIES
_MAX_ENTRIES = 2**18  # limit on the number of entries at more than _MIN_POINTS points

Columns = np.ndarray | slice


class FailedEntries(NamedTuple):
    """Entries of a result, at some points (batch elements), that failed the check and are reevaluated."""

    spec: ReferenceSpec
    native: Evaluation  # the function in the dtype of the case
    arrays: InputArrays  # a dict from input name to its values at the points
    measure: Callable[[Evaluation, InputArrays], np.ndarray]  # evaluates the entries
    result: np.ndarray  # of shape (points, ...), like the next three arrays
    expected: np.ndarray
    size: np.ndarray  # by which the error of each entry is divided
    row_size: np.ndarray  # the largest size of the row, over all differentiated inputs


def reevaluate_failures(progress: CheckProgress) -> None:
    """Reevaluate the entries that failed the check, and record in `progress` which of them are wrong.

    The estimated rounding error is added to the tolerance of an entry. Entries whose tolerance then exceeds
    `spec.max_tolerance` are excluded from the check, unless their error is larger than rounding explains.
    """
    spec, arrays = progress.spec, progress.suspects[0][0].inputs
    assert arrays is not None
    native = spec.computed.native if spec.computed else native_evaluation(spec.case, spec.workload, arrays)
    for block, comparison in progress.suspects:
        if progress.first_wrong is None:
            _reevaluate_block(progress, native, block, comparison)
    for block, error in progress.suspects_over_budget:
        progress.record_errors(block, error, ~(error <= progress.allowed))


def _reevaluate_block(
    progress: CheckProgress, native: Evaluation, block: PointsComparison, comparison: EntryComparison
) -> None:
    """Reevaluate the failed entries of one comparison at the points of `block`, and record the wrong ones."""
    spec = progress.spec
    errors = relative_error(np.abs(comparison.result - comparison.expected), comparison.scale)
    points, columns = _choose_entries(spec, comparison, errors)
    # A derivative may cross zero at a point. Its typical size is its root mean square over the points, or
    # over the outputs if there is only one point.
    sizes = np.broadcast_to(comparison.scale, comparison.expected.shape)
    axes = (0, 1) if len(sizes) == 1 and sizes.ndim > 1 else 0
    typical_size = np.sqrt(np.mean(sizes**2, axis=axes, keepdims=True))[0][..., columns]
    entries = _select_entries(spec, native, block, comparison, points, columns)
    estimated_size, noise = _estimate_size(entries), np.zeros(entries.expected.shape)
    is_wrong, is_excluded, *_ = _classify_entries(entries, typical_size, estimated_size, noise)
    passes = ~is_wrong & ~is_excluded
    unexplained = ~passes.reshape(len(points), -1).all(axis=1)
    if unexplained.any():  # by the rounding errors of the values
        rows = _choose_indices(unexplained, unexplained.astype(float), len(points))
        part = _select_entries(spec, native, block, comparison, points[rows], columns)
        try:
            noise[rows] = np.where(passes[rows], 0.0, _estimate_rounding_errors(part))
        except Exception as failure:  # of the function, or of JAX: the entries that do not pass stay wrong
            message = f"{type(failure).__name__}: {failure}".strip().splitlines()[0][:120]
            block = block._replace(note=f"{block.note}; its rounding error is unknown ({message})")
    is_wrong, is_excluded, is_hidden, error, allowed = _classify_entries(
        entries, typical_size, estimated_size, noise
    )
    point_is_wrong, point_errors = np.zeros(len(errors), bool), np.zeros(len(errors))
    point_is_wrong[points] = is_wrong.reshape(len(points), -1).max(axis=1)
    point_errors[points] = error.reshape(len(points), -1).max(axis=1)
    progress.allowed = max(progress.allowed, float(allowed.max()))
    progress.record_errors(block, point_errors, point_is_wrong)
    # Classify the failed entries that were not reevaluated.
    failed_before = errors[points[:, None], ..., columns] > spec.tolerance
    excluded_share = is_excluded.sum() / max(1, failed_before.sum())
    errors[points[:, None], ..., columns] = 0.0
    failed = errors > progress.allowed
    progress.undecided_entries += int(is_excluded.sum() + excluded_share * failed.sum())
    if failed.any() and not excluded_share and not is_hidden.any():
        by_point = errors.reshape(len(errors), -1)
        progress.record_errors(block, by_point.max(axis=1), failed.reshape(by_point.shape).max(axis=1))


def _classify_entries(
    entries: FailedEntries, typical_size: np.ndarray, estimated_size: np.ndarray, noise: np.ndarray
) -> tuple[np.ndarray, ...]:
    """Decide for each entry whether rounding errors explain its error.

    Return five arrays: is_wrong (rounding errors do not explain the error), is_excluded (they are too large
    for a check), is_hidden (they exceed the largest tolerance), the relative error (0 if excluded), and the
    relative error that is allowed. `typical_size` is the root mean square of the entry over the points or
    outputs, `estimated_size` the result of `_estimate_size`, and `noise` the estimated rounding error.
    """
    spec = entries.spec
    # The function's values may contain this rounding error in every mode. It is limited, so that it alone
    # excludes no entry.
    value_rounding = _ROUNDINGS_OF_VALUE * spec.roundoff * np.sqrt(spec.workload.terms) * estimated_size
    max_value_rounding = min(spec.tolerance, spec.max_tolerance - spec.tolerance) * typical_size
    noise = np.maximum(noise, np.minimum(max_value_rounding, value_rounding))
    # Noise that exceeds the size of an entry may vary by orders of magnitude, as in chaos.
    is_noise = (noise > entries.size) & np.isfinite(noise)
    largest_noise = np.max(noise, axis=0, where=is_noise, initial=0.0)  # over the points
    noise = np.where(is_noise, largest_noise, noise)
    error, limit = np.abs(entries.result - entries.expected), spec.tolerance * entries.size
    is_hidden = noise > spec.max_tolerance * entries.size
    largest_size = np.maximum(np.maximum(entries.row_size, typical_size), estimated_size)
    size = np.where(is_hidden, largest_size, entries.size)
    allowed = spec.tolerance + relative_error(noise, size)
    is_wrong = ~(error <= limit + noise)
    # Noise may hide the derivative by one input, such as a zero, and still be small in comparison with others.
    is_within_row = is_hidden & ~is_wrong & (error <= spec.tolerance * entries.row_size)
    is_within_tolerance = (error <= limit) | is_within_row
    is_excluded = ~is_within_tolerance & ~is_wrong & ~(allowed <= spec.max_tolerance)
    counted_error = np.where(is_excluded, 0.0, relative_error(error, size))
    allowed = np.where(is_within_tolerance | is_excluded, spec.tolerance, allowed)
    return is_wrong, is_excluded, is_hidden, counted_error, allowed


def _choose_entries(
    spec: ReferenceSpec, comparison: EntryComparison, errors: np.ndarray
) -> tuple[np.ndarray, Columns]:
    """Return the indices of the points and of the columns to reevaluate, or a slice for all columns."""
    failed = errors > spec.tolerance
    failed_by_point = failed.reshape(len(failed), -1)
    errors_by_point = errors.reshape(failed_by_point.shape)
    limit = max(_MIN_POINTS, _MAX_ENTRIES // failed_by_point.shape[1])
    points = _choose_indices(failed_by_point.max(axis=1), errors_by_point.max(axis=1), limit)
    has_columns = comparison.measure is None and spec.case.target != "hvp" and not spec.case.ad_mode.is_value
    if not has_columns or spec.reduction.sums_points or not spec.reduction.linear_in_inputs:
        return points, slice(None)  # single columns cannot be evaluated
    by_column, worst = (array[points].reshape(-1, array.shape[-1]) for array in (failed, errors))
    return points, _choose_indices(by_column.max(axis=0), worst.max(axis=0), _MAX_COLUMNS)


def _choose_indices(failed: np.ndarray, errors: np.ndarray, limit: int) -> np.ndarray:
    """Return at most `limit` sorted indices of elements to reevaluate. Failed ones have the largest errors.

    If more than `limit` elements failed, half of the indices have the largest errors, and half are evenly
    spaced among the other failed elements. Otherwise, elements that passed are added, so that the number of
    indices has few different values and few programs are compiled.
    """
    order, failures = np.argsort(-errors, kind="stable"), int(failed.sum())
    if failures <= limit:
        count = 16
        while count < failures:
            count *= 4
        return np.sort(order[: min(limit, count)])
    worst, other_failures = order[: limit // 2], np.sort(order[limit // 2 : failures])
    spaced = np.linspace(0, len(other_failures) - 1, limit - limit // 2).astype(int)
    return np.sort(np.concatenate([worst, other_failures[spaced]]))


def _select_entries(
    spec: ReferenceSpec,
    native: Evaluation,
    block: PointsComparison,
    comparison: EntryComparison,
    points: np.ndarray,
    columns: Columns,
) -> FailedEntries:
    assert block.inputs is not None
    arrays, measure = block.inputs, functools.partial(_evaluate_columns, spec, columns)
    if not spec.reduction.sums_points:
        arrays = {name: x[points] if name in native.per_point else x for name, x in arrays.items()}
    if comparison.measure is not None:
        measure = functools.partial(comparison.measure, points=points)
    shape, row_size = comparison.expected.shape, comparison.scale
    if comparison.measure is None and spec.reduction.linear_in_inputs:
        row_size = row_size.max(axis=-1, keepdims=True)
    selected = (
        np.broadcast_to(array, shape)[points][..., columns]
        for array in (comparison.result, comparison.expected, comparison.scale, row_size)
    )
    return FailedEntries(spec, native, arrays, measure, *selected)


@np.errstate(invalid="ignore")  # an infinite value minus another
def _estimate_rounding_errors(entries: FailedEntries) -> np.ndarray:
    """Return the estimated rounding error of each entry.

    It is three times the range (maximum minus minimum) of the entry among evaluations with random rounding
    errors, or infinite if one of them is not finite. Relative to the size of the entry, it is at least the
    median over all entries.
    """
    generator, relative = np.random.default_rng(1), _PERTURBATION_ROUNDINGS * entries.spec.roundoff
    sizes = entries.spec.sizes
    is_large = len(entries.expected) * sizes.values * sizes.inputs > _LARGE
    count, ranges = (_FEW_EVALUATIONS, _RATIO_OF_RANGES * _RANGES) if is_large else (_EVALUATIONS, _RANGES)
    with evaluations.evaluation_context(entries.native.dtype):
        pairs = evaluations.with_rounding(entries.native, entries.arrays, relative, generator, count)
        rounded = np.array([entries.measure(*pair) for pair in pairs])
    noise = ranges * (rounded.max(axis=0) - rounded.min(axis=0))
    noise[~np.isfinite(noise)] = np.inf
    median = float(np.median(relative_error(noise, entries.size)))
    return np.maximum(noise, entries.size * min(1.0, median))


def _estimate_size(entries: FailedEntries) -> np.ndarray:
    """Return an estimate of the magnitude of each entry from the values f(x) and the inputs x.

    The estimate is |f(x)| / |x| for a derivative, a power of this ratio for a reduction of higher degree, and
    |f(x)| for a value or the product of a derivative and x. The result broadcasts to the shape of the
    entries.
    """
    with evaluations.evaluation_context(entries.native.dtype):
        value = np.abs(evaluations.values(entries.native, entries.arrays))
    value[~np.isfinite(value)] = 0.0  # as a log density outside of its support
    spec, shape = entries.spec, entries.expected.shape
    value = np.maximum(value, np.sqrt(np.mean(value**2, axis=0)))  # an output may cross zero at a point
    is_along_point = spec.case.ad_mode.is_value or spec.reduction.along_point or spec.case.target == "hvp"
    mean_squares = [np.mean(entries.arrays[name] ** 2) for name in entries.native.names]
    typical_input = np.sqrt(np.mean(mean_squares)) or 1.0
    size = value if is_along_point else (value / typical_input) ** spec.reduction.degree
    if spec.reduction.sums_points:
        return np.full((1,) * max(1, len(shape)), size.sum())
    if shape[1] != size.shape[1]:
        size = size.max(axis=1, keepdims=True)
    return size.reshape(*size.shape, *[1] * (len(shape) - 2))


def _evaluate_columns(
    spec: ReferenceSpec, columns: Columns, evaluation: Evaluation, arrays: InputArrays
) -> np.ndarray:
    """Return some columns of the reduced Jacobians, or with mode=value the values, of shape (points, ...).

    For a sum over n points, return the sum over k of them times sqrt(n / k), because the rounding error of
    the sum grows with the square root of the number of terms.
    """
    if spec.case.ad_mode.is_value:
        return evaluations.values(evaluation, arrays)[:, :, None]
    if spec.reduction.sums_points:
        summed = dataclasses.replace(evaluation, summed=True)
        gradients = evaluations.jacobian_in_few_passes(summed, arrays)
        return np.asarray(gradients.sum(axis=0, keepdims=True) * np.sqrt(spec.case.points / len(gradients)))
    if not isinstance(columns, slice):
        evaluation = dataclasses.replace(evaluation, summed=spec.reduction.sums_outputs)
        return evaluations.slices(evaluation, arrays, "columns", columns)
    J = evaluations.jacobian_in_few_passes(evaluation, arrays)
    if spec.sizes.summed and spec.workload.reduce is not None:
        J = J.sum(axis=1, keepdims=True)
    return reduce_reference(spec, Jacobians(J), None, arrays)[0]
