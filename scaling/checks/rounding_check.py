"""Evaluate entries with large errors again in blocks, and decide whether rounding explains the errors.

Each such entry is evaluated several times in the dtype of the case, with different random rounding errors in
all intermediate results (jaxpr_interpreter.py). The range of the values (maximum minus minimum) estimates the
rounding error. An entry is correct if its error is at most the tolerance plus a multiple of this range.
"""

import dataclasses
import functools
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from scaling.checks import evaluations
from scaling.checks.computed_reference import native_evaluation
from scaling.checks.evaluations import Evaluation
from scaling.core import inputs
from scaling.core.check import CheckProgress, EntryComparison, PointsComparison
from scaling.core.inputs import InputArrays, point_structs
from scaling.core.reductions import WHOLE, Jacobians
from scaling.core.reference import ReferenceSpec, closed_form, reduce_reference, relative_error
from scaling.programs.jaxpr_properties import has_custom_rule

_REEVALUATIONS = 16  # the number of evaluations with random rounding errors
_MANY_REEVALUATIONS = 64  # the number of evaluations where these do not explain all errors
_MAX_POINTS = 256  # the largest number of points of a block that are evaluated 64 times
_FEW_REEVALUATIONS = 4  # the number of evaluations at points where they explain all errors
_PERTURBATION_ROUNDINGS = 2  # the change of the inputs in each evaluation, in unit roundoffs
_RANGES = 3  # the estimated rounding error, as a multiple of the range of the evaluated values
_MAX_COLUMNS = 32  # limit on the number of columns of a block
_MIN_POINTS = 8  # a block may have this number of points even with more than _MAX_ENTRIES entries
_MAX_ENTRIES = 2**18  # limit on the number of entries of a block of more than _MIN_POINTS points
_BUDGET_SECONDS = 60.0  # after this time (`_seconds_since`), no further block is evaluated
_MIN_INPUTS_PER_OUTPUT = 8  # the minimum ratio for computing a Jacobian by rows, in reverse mode

Columns = np.ndarray | slice


@dataclass(frozen=True)
class _Suspect:
    """A comparison with errors over the tolerance, and what is needed to evaluate its entries again."""

    spec: ReferenceSpec
    native: Evaluation  # the function of the case in the dtype of the case
    arrays: InputArrays  # the inputs at the compared points
    points: PointsComparison  # this comparison and the others at the same points
    comparison: EntryComparison


class _EntrySizes(NamedTuple):
    """Three sizes of each entry, to compute relative errors even if the entry is 0 at single points."""

    typical: np.ndarray  # the size of the entry or, if larger, its root mean square over the points
    in_row: np.ndarray  # the largest typical size in the row if whole Jacobians are compared, else `typical`
    # With one point, the size of the entry or, if larger, the root mean square over the outputs.
    among_outputs: np.ndarray  # with several points, `typical`


def reevaluate_failures(progress: CheckProgress) -> None:
    """Evaluate the entries with errors over the tolerance again, and record their errors in `progress`.

    Entries that are not evaluated before the time limit are counted as skipped.
    """
    spec, start = progress.spec, (time.monotonic(), time.process_time())
    native = spec.computed.native if spec.computed else native_evaluation(spec)
    for points, comparison in progress.suspects:
        arrays = inputs.exact_inputs(spec.case, spec.workload, points.start, points.stop)
        _reevaluate_suspect(progress, _Suspect(spec, native, arrays, points, comparison), start)
    progress.suspects.clear()
    progress.reevaluation_seconds += _seconds_since(start)


def _seconds_since(start: tuple[float, float]) -> float:
    """Return the elapsed wall time or CPU time in seconds, whichever is shorter.

    `start` is the pair (wall time, CPU time) at the start. Other processes increase only the wall time.
    Parallel threads of this process increase only the CPU time.
    """
    return min(time.monotonic() - start[0], time.process_time() - start[1])


def _reevaluate_suspect(progress: CheckProgress, suspect: _Suspect, start: tuple[float, float]) -> None:
    """Evaluate the entries of a comparison again until one is wrong, or rounding explains all errors."""
    spec, comparison, points = suspect.spec, suspect.comparison, suspect.points
    sizes = _entry_sizes(spec, comparison)
    tolerance = min(spec.tolerance, spec.max_tolerance)
    error_limit = np.maximum(tolerance * sizes.among_outputs, spec.tolerance * comparison.scale)
    difference = np.abs(comparison.result - comparison.expected)
    own_limit = np.broadcast_to(spec.tolerance * comparison.scale, difference.shape)
    is_pending, is_wrong = ~(difference <= own_limit), np.zeros(difference.shape, bool)
    error = np.where(is_pending, 0.0, np.minimum(relative_error(difference, sizes.typical), tolerance))
    while is_pending.any() and not is_wrong.any() and progress.first_wrong is None:
        if progress.reevaluation_seconds + _seconds_since(start) > _BUDGET_SECONDS:
            progress.skipped_entries += int(is_pending.sum())
            break
        points_of_block, columns = _choose_block(suspect, is_pending)
        *axes, last_axis = map(np.arange, difference.shape[1:])
        block = np.ix_(points_of_block, *axes, last_axis[columns])
        excess = difference[block] - own_limit[block]
        divisor = sizes.typical[block]
        rounding, note = _rounding_of_block(suspect, points_of_block, columns, divisor, excess)
        points = points._replace(note=points.note + note)
        is_wrong[block] = ~(difference[block] <= error_limit[block] + rounding)
        allowed = spec.tolerance + relative_error(rounding, divisor)
        # If rounding hides a small or zero derivative, its error is relative to derivatives for other inputs.
        is_hidden = ~(allowed <= spec.max_tolerance)
        if (is_hidden & ~is_wrong[block]).any():
            estimated_size = _estimate_size(suspect, points_of_block, divisor.shape)
            divisor = np.where(is_hidden, np.maximum(sizes.in_row[block], estimated_size), divisor)
        errors = relative_error(difference[block], divisor)
        # Rounding may not explain an error that is small only compared with the entry at other points.
        is_undecided = (is_hidden & ~(errors <= tolerance) | (excess > rounding)) & ~is_wrong[block]
        progress.undecided_entries += int(is_undecided.sum())
        is_allowed = ~is_hidden & (errors > tolerance)
        progress.allowed = max(progress.allowed, float(np.max(allowed, where=is_allowed, initial=0.0)))
        error[block], is_pending[block] = np.where(is_undecided, 0.0, errors), False
    progress.record_errors(points, comparison, error, is_wrong)


def _entry_sizes(spec: ReferenceSpec, comparison: EntryComparison) -> _EntrySizes:
    """Return the sizes of the entries, as arrays of the shape of `comparison.expected`."""
    scale, shape = comparison.scale, comparison.expected.shape
    typical = np.maximum(scale, np.sqrt(np.mean(scale**2, axis=0)))
    in_row = among_outputs = typical
    if comparison.measure is None and spec.reduction.linear_in_inputs:
        in_row = typical.max(axis=-1, keepdims=True)
    if len(scale) == 1 and scale.ndim > 1:
        among_outputs = np.maximum(scale, np.sqrt(np.mean(scale**2, axis=1, keepdims=True)))
    return _EntrySizes(*(np.broadcast_to(array, shape) for array in (typical, in_row, among_outputs)))


def describe_first_wrong(spec: ReferenceSpec, comparison: EntryComparison, is_wrong: np.ndarray) -> str:
    """Return text with the computed and the expected value of the worst entry at the first wrong point.

    `is_wrong` has the shape of the entries, or the shape (points,).
    """
    expected = comparison.expected
    is_wrong = is_wrong.reshape(is_wrong.shape + (1,) * (expected.ndim - is_wrong.ndim))
    point = int(np.argmax(is_wrong.any(axis=tuple(range(1, expected.ndim)))))
    error = relative_error(np.abs(comparison.result - expected), comparison.scale)
    ranked = np.where(is_wrong, np.nan_to_num(error, nan=np.inf), -1.0)[point]
    index = [int(k) for k in np.unravel_index(np.argmax(ranked), ranked.shape)]
    entry = f"entry {index}{_name_input(spec, index)}" if comparison.measure is None else "a sampled entry"
    values = (array[(point, *index)] for array in (comparison.result, expected))
    text = "; {} is {:.7g}, expected {:.7g}".format(entry, *values)
    structs = point_structs(spec.case, spec.workload)
    if spec.case.ad_mode.has_seeds and has_custom_rule(spec.workload.function, structs):
        text += "; a custom_jvp, custom_vjp or custom_vmap of the function may be wrong in this mode or dtype"
    return text


def _name_input(spec: ReferenceSpec, index: Sequence[int]) -> str:
    """Return the input element for a column of a dense Jacobian as text, such as " (x[3])".

    `index` is (output, column). If the result is not a dense Jacobian, return "".
    """
    is_product = spec.case.ad_mode.is_value or spec.case.target == "hvp"
    if spec.pattern is not None or spec.reduction is not WHOLE or is_product:
        return ""
    column = index[-1]
    for name in spec.workload.names:
        shape = spec.workload.inputs[name].shape
        if column < math.prod(shape):
            return f" ({name}{[int(k) for k in np.unravel_index(column, shape)] if shape else ''})"
        column -= math.prod(shape)
    return ""


def _rounding_of_block(
    suspect: _Suspect, points: np.ndarray, columns: Columns, size: np.ndarray, excess: np.ndarray
) -> tuple[np.ndarray, str]:
    """Return the rounding error of each entry of a block, and a note.

    The note is "" if the errors are known. If the evaluation with rounding errors raises an exception, the
    errors are unknown. They are then returned as 0, and the note contains the exception. The arguments are
    the same as for `_explain_block`.
    """
    try:
        return _explain_block(suspect, points, columns, size, excess), ""
    except Exception as failure:  # of the function, or of JAX
        message = f"{type(failure).__name__}: {failure}".strip().splitlines()[0][:120]
        return np.zeros(size.shape), f"; its rounding error is unknown ({message})"


def _explain_block(
    suspect: _Suspect, points: np.ndarray, columns: Columns, size: np.ndarray, excess: np.ndarray
) -> np.ndarray:
    """Return an estimate of the rounding error of each entry of a block.

    `size` contains the typical magnitudes of the entries, and `excess` their errors minus the tolerance. If a
    few evaluations do not explain an error, the entries at this point are evaluated more often.
    """
    spec = suspect.spec
    rounding = _estimate_rounding(suspect, points, columns, size, _FEW_REEVALUATIONS)
    # More evaluations can only increase the estimate: by less than a factor of 2 if errors are normal.
    allowed = spec.tolerance + relative_error(2 * rounding, size)
    is_explained = (excess <= rounding) & (allowed <= spec.max_tolerance)
    if len(rest := np.flatnonzero(~is_explained.reshape(len(points), -1).all(axis=1))):
        rounding[rest] = _estimate_rounding(suspect, points[rest], columns, size[rest], _REEVALUATIONS)
    # An entry with few possible values, as where elements tie, may be constant by chance at some points.
    rest = np.flatnonzero((excess > rounding).reshape(len(points), -1).any(axis=1))[:_MAX_POINTS]
    if len(rest):
        if spec.computed:  # in float64, in which few elements tie
            wide = dataclasses.replace(spec.computed.evaluation, least_rounding=spec.roundoff)
            suspect = dataclasses.replace(suspect, native=wide)
        rounding[rest] = np.maximum(  # the range of 64 normal errors is 4/3 of that of 16
            rounding[rest],
            0.75 * _estimate_rounding(suspect, points[rest], columns, size[rest], _MANY_REEVALUATIONS),
        )
    # A rounding error that exceeds the size of an entry may vary by orders of magnitude, as in chaos.
    exceeds_size = (rounding > size) & np.isfinite(rounding)
    return np.where(exceeds_size, np.max(rounding, axis=0, where=exceeds_size, initial=0.0), rounding)


def _estimate_rounding(
    suspect: _Suspect, points: np.ndarray, columns: Columns, size: np.ndarray, count: int
) -> np.ndarray:
    """Return an estimate of the rounding error of each entry of a block, in the shape of `size`.

    Each entry is evaluated `count` times with random rounding errors. The estimate is infinite if any
    evaluated value is infinite or NaN.
    """
    spec, native = suspect.spec, suspect.native
    padded_points = _pad_indices(points)
    padded_columns = columns if isinstance(columns, slice) else _pad_indices(columns)
    measure = functools.partial(_evaluate_columns, spec, padded_columns)
    if suspect.comparison.measure is not None:
        measure = functools.partial(suspect.comparison.measure, points=padded_points)
    arrays, relative = _select_points(suspect, padded_points), _PERTURBATION_ROUNDINGS * spec.roundoff
    with evaluations.evaluation_context(native.dtype):
        range_ = evaluations.rounding_range(measure, native, arrays, relative, count)
    # The padding is removed. All copies of a sum over points have the same range.
    kept_columns = columns if isinstance(columns, slice) else slice(len(columns))
    range_ = np.broadcast_to(range_[: len(points), ..., kept_columns], size.shape)
    return np.nan_to_num(_RANGES * range_, nan=np.inf, posinf=np.inf)


def _choose_block(suspect: _Suspect, is_pending: np.ndarray) -> tuple[np.ndarray, Columns]:
    """Return the indices of the points and of the columns of the next block of entries to evaluate again.

    `is_pending` is true for the entries that remain. If single columns cannot be evaluated, the indices of
    the columns are `slice(None)`.
    """
    spec, comparison = suspect.spec, suspect.comparison
    has_columns = comparison.measure is None and spec.case.target != "hvp" and not spec.case.ad_mode.is_value
    has_columns &= spec.reduction.linear_in_inputs and not spec.reduction.sums_points
    has_columns &= _MIN_INPUTS_PER_OUTPUT * spec.derivative.outputs > spec.derivative.inputs
    entries_per_point = is_pending[0, ..., : _MAX_COLUMNS if has_columns else None].size
    points = np.flatnonzero(is_pending.reshape(len(is_pending), -1).any(axis=1))
    points = points[: max(_MIN_POINTS, _MAX_ENTRIES // entries_per_point)]
    if not has_columns:
        return points, slice(None)
    is_pending_column = is_pending[points].reshape(-1, is_pending.shape[-1]).any(axis=0)
    return points, np.flatnonzero(is_pending_column)[:_MAX_COLUMNS]


def _pad_indices(indices: np.ndarray) -> np.ndarray:
    """Return the indices, repeated until their number is a power of 2, so that few programs are compiled."""
    return np.resize(indices, 2 ** (len(indices) - 1).bit_length())


def _select_points(suspect: _Suspect, points_of_block: np.ndarray) -> InputArrays:
    """Return the inputs at the points of a block, or at all points if the result is a sum over points."""
    arrays, per_point = suspect.arrays, suspect.native.per_point
    if suspect.spec.reduction.sums_points:
        return arrays
    return {name: x[points_of_block] if name in per_point else x for name, x in arrays.items()}


def _estimate_size(suspect: _Suspect, points_of_block: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Estimate the magnitude of the entries from function values: |f(x)| / |x| for a derivative.

    The result can be broadcast to `shape`, the shape of the block.
    """
    spec, native, arrays = suspect.spec, suspect.native, _select_points(suspect, points_of_block)
    with evaluations.evaluation_context(native.dtype):
        value = np.nan_to_num(np.abs(evaluations.values(native, arrays)), nan=0.0, posinf=0.0)
    value = np.maximum(value, np.sqrt(np.mean(value**2, axis=0)))  # an output may cross zero at a point
    is_product = spec.case.ad_mode.is_value or spec.reduction.along_point or spec.case.target == "hvp"
    typical_input = np.sqrt(np.mean([np.mean(arrays[name] ** 2) for name in native.names])) or 1.0
    if (terms := _terms_of_zeros(suspect, arrays, value.shape)) is not None:
        value = np.maximum(value, terms * (1.0 if spec.case.ad_mode.is_value else typical_input))
    size = value if is_product else (value / typical_input) ** spec.reduction.degree
    if spec.reduction.sums_points:
        return np.full((1,) * len(shape), size.sum())
    if shape[1:2] != size.shape[1:]:
        size = size.max(axis=1, keepdims=True)
    return size.reshape(*size.shape, *[1] * (len(shape) - 2))


def _terms_of_zeros(suspect: _Suspect, arrays: InputArrays, shape: tuple[int, ...]) -> np.ndarray | None:
    """Return the magnitudes of the summed terms of each output that is expected to be 0 at all points.

    The terms of such an output cancel, and its error is relative to their magnitude. The result has the shape
    (points, outputs), and is 0 for all other outputs. Return None if the closed form of the workload does not
    compute magnitudes of terms.
    """
    is_value = suspect.spec.case.ad_mode.is_value
    form = closed_form(suspect.spec.case, suspect.spec.workload)
    assert form is not None  # a reference that JAX computes is a form without terms
    terms = form(arrays).value_terms if is_value else form(arrays).derivative_terms
    if terms is None:
        return None
    is_zero = ~suspect.comparison.expected.any(axis=(0, 2))
    is_zero = is_zero if is_zero.shape == shape[1:] else is_zero.all()
    return np.broadcast_to(terms[:, None] * is_zero, shape)


def _evaluate_columns(
    spec: ReferenceSpec, columns: Columns, evaluation: Evaluation, arrays: InputArrays
) -> np.ndarray:
    """Compute the given columns of the result of a case, or the function values if mode=value.

    Axis 0 of the array is the axis of points. If the result is a sum over points, return the sum over the
    points in `arrays`, multiplied by a factor. The factor makes its rounding error about as large as for the
    sum over all points of the case.
    """
    if spec.case.ad_mode.is_value:
        return evaluations.values(evaluation, arrays)[:, :, None]
    if spec.reduction.sums_points:
        summed = dataclasses.replace(evaluation, summed=True)
        gradients = _jacobian_in_few_passes(summed, arrays, outputs=1)
        # The rounding error of a sum grows with the square root of its number of terms.
        return np.asarray(gradients.sum(axis=0, keepdims=True) * np.sqrt(spec.case.points / len(gradients)))
    if not isinstance(columns, slice):
        evaluation = dataclasses.replace(evaluation, summed=spec.reduction.sums_outputs)
        return evaluations.slices(evaluation, arrays, "columns", columns)
    J = _jacobian_in_few_passes(evaluation, arrays, spec.derivative.outputs)
    if spec.derivative.summed and spec.workload.reduce is not None:
        J = J.sum(axis=1, keepdims=True)
    return reduce_reference(spec, Jacobians(J), lambda: arrays)[0]


def _jacobian_in_few_passes(evaluation: Evaluation, arrays: InputArrays, outputs: int) -> np.ndarray:
    """Return the Jacobians as an array of shape (points, outputs, inputs).

    They are computed in reverse mode if there are far fewer outputs than inputs and JAX supports it.
    """
    has_few_rows = _MIN_INPUTS_PER_OUTPUT * outputs <= evaluation.inputs
    if has_few_rows and evaluations.is_traceable(evaluation, arrays, "rows"):
        return evaluations.slices(evaluation, arrays, "rows", np.arange(outputs))
    return evaluations.jacobian(evaluation, arrays)
