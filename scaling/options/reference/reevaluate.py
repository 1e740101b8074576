"""Reevaluate entries that failed the check at perturbed inputs, to distinguish rounding from wrong results.

The inputs are perturbed by a few unit roundoffs, and the derivative is evaluated in the dtype of the case.
How much an entry varies among these evaluations is an estimate of its rounding error. The entry passes if its
error is not larger than the tolerance plus this estimate.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from scaling.core.check import CheckProgress, EntryComparison, PointsComparison
from scaling.core.reference import Arrays, ReferenceSpec, reduce_reference
from scaling.core.tolerances import ROUNDINGS, ROUNDOFF, Jacobians, relative_error
from scaling.options.reference import evaluation as evaluations
from scaling.options.reference import fd_check
from scaling.options.reference.computed_reference import native_evaluation
from scaling.options.reference.evaluation import Evaluation

_ROUNDINGS_OF_VALUE = 64  # the unit roundoffs of a value that its derivative may contain as an error
_PERTURBATIONS, _PERTURBATION_ROUNDINGS = 8, 2  # their number, and their size in unit roundoffs
_MOST_POINTS, _MOST_COLUMNS = 8, 32  # the most points and columns of a block that are reevaluated

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
    retry = _make_retry(spec, native, block, comparison, points, columns)
    # A derivative may cross zero at a point. Its typical size is its root mean square over the points, or
    # over the outputs if there is only one point.
    sizes = np.broadcast_to(comparison.scale, comparison.expected.shape)
    axes = (0, 1) if len(sizes) == 1 and sizes.ndim > 1 else 0
    typical = np.sqrt(np.mean(sizes**2, axis=axes, keepdims=True))[0][..., columns]
    noise, natural_size, is_hidden = _estimate_rounding_errors(retry, spec.tolerance * typical)
    error, limit = np.abs(retry.got - retry.want), spec.tolerance * retry.size
    size = np.where(is_hidden, np.maximum(retry.size, natural_size), retry.size)
    passes, allowed = error <= limit, spec.tolerance + relative_error(noise, size)
    is_coarse = ~(allowed <= spec.max_tolerance)
    is_wrong = ~passes & ~(error <= limit + np.where(is_coarse, 4 * noise, noise))
    is_excluded = ~passes & ~is_wrong & is_coarse
    point_is_wrong, point_errors = np.zeros(len(errors), bool), np.zeros(len(errors))
    point_is_wrong[points] = is_wrong.reshape(len(is_wrong), -1).max(axis=1)
    kept_errors = np.where(is_excluded, 0.0, relative_error(error, size))
    point_errors[points] = kept_errors.reshape(len(error), -1).max(axis=1)
    most_allowed = float(np.where(passes | is_excluded, spec.tolerance, allowed).max())
    comparisons.allowed = max(comparisons.allowed, most_allowed)
    comparisons.record_errors(block, point_errors, point_is_wrong)
    # Judge the failed entries that were not reevaluated.
    errors[points[:, None], ..., columns] = 0.0
    failed = errors > comparisons.allowed
    excluded_share = float(np.mean(is_excluded[~passes])) if (~passes).any() else 0.0
    reevaluated = points.size if isinstance(columns, slice) else columns.size
    comparisons.undecided_entries += int(excluded_share * max(int(failed.sum()), reevaluated))
    if failed.any() and not excluded_share and not is_hidden.any():
        by_point = errors.reshape(len(errors), -1)
        comparisons.record_errors(block, by_point.max(axis=1), failed.reshape(by_point.shape).max(axis=1))


def _choose_entries(
    spec: ReferenceSpec, comparison: EntryComparison, errors: np.ndarray
) -> tuple[np.ndarray, Columns]:
    """Return the indices of the points and of the columns to reevaluate, or all columns as `slice(None)`."""
    failed = errors > spec.tolerance
    by_point = failed.reshape(len(failed), -1)
    points = _choose_failed(by_point.max(axis=1), errors.reshape(by_point.shape).max(axis=1), _MOST_POINTS)
    is_linear = spec.reduction.linear_in_inputs and not spec.reduction.sums_points
    has_columns = comparison.measure is None and spec.case.target != "hvp" and not spec.case.ad_mode.is_value
    if not (has_columns and is_linear):
        return points, slice(None)  # single columns cannot be evaluated
    by_column, worst = (array[points].reshape(-1, array.shape[-1]) for array in (failed, errors))
    return points, _choose_failed(by_column.max(axis=0), worst.max(axis=0), _MOST_COLUMNS)


def _choose_failed(failed: np.ndarray, errors: np.ndarray, most: int) -> np.ndarray:
    """Return sorted indices of up to `most` failed elements: half the largest errors, half evenly spaced."""
    indices = np.flatnonzero(failed)
    order = indices[np.argsort(-errors[indices], kind="stable")]
    worst, rest = order[: most // 2], np.sort(order[most // 2 :])
    if len(rest):
        rest = rest[np.linspace(0, len(rest) - 1, min(len(rest), most - most // 2)).astype(int)]
    return np.unique(np.concatenate([worst, rest]))


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


def _estimate_rounding_errors(retry: Retry, typical: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Estimate the rounding error and the magnitude of each entry of a `Retry`.

    Args:
        typical: the tolerance times the typical size of each entry. It limits the error that is
            attributed to the rounding of the function's values.

    Returns:
        The absolute rounding error of each entry.
        The magnitude of each entry, estimated by `_natural_size`.
        Whether rounding dominates each entry: its rounding error is large relative to `Retry.size`, and the
            rounding of the function's values explains this error.
    """
    spec, computed = retry.spec, retry.spec.computed
    noise, natural_size = _native_noise(retry)
    value_rounding = _relative_value_rounding(spec) * natural_size
    noise = np.maximum(noise, np.minimum(typical, value_rounding))
    reference_noise = _reference_noise(retry)
    # If a reference consists of rounding error only, the error of the result is larger than the reference by
    # the ratio of the unit roundoffs.
    is_zero = retry.size <= 8 * reference_noise
    reference_roundoff = ROUNDOFF[computed.evaluation.dtype] if computed else spec.roundoff
    largest = noise.max(axis=tuple(range(1, noise.ndim)), keepdims=True)
    zero_noise = np.maximum(largest, ROUNDINGS * reference_noise * spec.roundoff / reference_roundoff)
    noise = np.where(is_zero, zero_noise, noise)
    is_hidden = (is_zero | (noise > spec.max_tolerance * retry.size)) & (noise <= value_rounding)
    return noise, natural_size, is_hidden


def _native_noise(retry: Retry) -> tuple[np.ndarray, np.ndarray]:
    """Return the rounding error of the entries in the dtype of the case, and the result of `_natural_size`.

    The rounding error of an entry is the largest of three estimates:

    - the range of the entry at perturbed inputs,
    - the median over all entries of the relative range, times the size of the entry,
    - twice the error of the entry if JAX computes it in this dtype, maximized over the last axis. This
      includes cancellation, such as in 1 - tanh(x)^2 where tanh(x) is close to 1. An error larger than the
      rounding of the function's values explains is ignored, because the derivative may be wrong.

    If the function cannot be evaluated, both results are zero.
    """
    native, want, size = retry.native, retry.want, retry.size
    try:
        with evaluations.evaluation_context(native.dtype):
            perturbed = _evaluate_perturbed(retry, native, retry.spec.roundoff)
            center = retry.measure(native, retry.arrays)
            value = np.abs(evaluations.values(native, retry.arrays))
    except Exception:
        return np.zeros((1,) * want.ndim), np.zeros((1,) * want.ndim)
    natural_size = _natural_size(retry, value)
    noise = perturbed.max(axis=0) - perturbed.min(axis=0)
    noise = np.maximum(noise, size * min(1.0, float(np.median(relative_error(noise, size)))))
    error = np.abs(center - want)
    error = np.where(error <= _relative_value_rounding(retry.spec) * natural_size, 2 * error, 0.0)
    return np.maximum(noise, error.max(axis=-1, keepdims=True)), natural_size


def _natural_size(retry: Retry, value: np.ndarray) -> np.ndarray:
    """Estimate the magnitude of each entry from the values |f(x)|, (points, outputs), and the inputs x.

    It is |f(x)| / |x| for a derivative, its power for a reduction of higher degree, and |f(x)| for a value or
    the product of a derivative and x. The result broadcasts to the shape of the entries.
    """
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


def _reference_noise(retry: Retry) -> np.ndarray:
    """Return the largest change of a computed reference at perturbed inputs, for each point.

    The result broadcasts to the shape of the entries: (points, 1, ...), or a zero (1,) for a closed form.
    """
    computed = retry.spec.computed
    if computed is None:
        return np.zeros(1)
    evaluation: Evaluation = computed.evaluation
    with evaluations.evaluation_context(evaluation.dtype):
        perturbed = _evaluate_perturbed(retry, evaluation, max(ROUNDOFF[evaluation.dtype], computed.inside))
    change = np.abs(perturbed - retry.want)
    return np.asarray(change.max(axis=(0, *range(2, change.ndim))).reshape(-1, *[1] * (change.ndim - 2)))


def _evaluate_perturbed(retry: Retry, evaluation: Evaluation, roundoff: float) -> np.ndarray:
    """Return the entries evaluated at several perturbed inputs: (perturbations, *shape of the entries)."""
    generator, relative = np.random.default_rng(1), _PERTURBATION_ROUNDINGS * roundoff
    perturbed = [
        fd_check.perturb(evaluation, retry.arrays, relative, generator) for _ in range(_PERTURBATIONS)
    ]
    return np.array([retry.measure(evaluation, arrays) for arrays in perturbed])


def _relative_value_rounding(spec: ReferenceSpec) -> float:
    return _ROUNDINGS_OF_VALUE * spec.roundoff * float(np.sqrt(spec.workload.terms))


def _expected_result(
    spec: ReferenceSpec, columns: Columns, evaluation: Evaluation, arrays: Arrays
) -> np.ndarray:
    if spec.case.ad_mode.is_value:
        return evaluations.values(evaluation, arrays)[:, :, None]
    if not isinstance(columns, slice):
        if spec.reduction.sums_outputs:
            evaluation = evaluations.with_summed_outputs(evaluation)
        return evaluations.jacobian_columns(evaluation, arrays, columns)
    J = evaluations.jacobian(evaluation, arrays)
    if spec.sizes.summed and spec.workload.reduce is not None:
        J = J.sum(axis=1, keepdims=True)
    return reduce_reference(spec, Jacobians(J), None, arrays)[0]


def _expected_sum(spec: ReferenceSpec, evaluation: Evaluation, arrays: Arrays) -> np.ndarray:
    """Return the derivative, summed over k of the n points and multiplied by sqrt(n / k): (1, inputs).

    The factor scales the rounding error, which grows with the square root of the number of terms.
    """
    summed = evaluations.with_summed_outputs(evaluation)
    by_point = evaluations.jacobian_columns(summed, arrays, np.arange(spec.sizes.inputs))[:, 0]
    return np.asarray(by_point.sum(axis=0, keepdims=True) * np.sqrt(spec.case.points / len(by_point)))
