"""Verify the derivative of a computed reference by finite differences of the function (`find_objection`).

`_confirm_at` confirms or refutes derivatives at a few points, with fourth-order central differences along
random directions. `_screen` estimates the errors at many points, with second-order differences, to find
suspicious points. The function may have rounding errors and kinks. A wrong derivative rule of the function
(`jax.custom_jvp`, `jax.custom_vjp`, `stop_gradient`) yields the same wrong derivative in every dtype and AD
mode. Only the function values can reveal the error. core/check.py compares the results of cases instead.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import numpy as np

from scaling.core import inputs
from scaling.core.case import Case
from scaling.core.formatting import list_first
from scaling.core.inputs import InputArrays, point_structs
from scaling.core.reference import ROUNDOFF, flatten_inputs
from scaling.core.workload import Workload
from scaling.options.jaxpr_properties import has_custom_rules
from scaling.options.reference import evaluations
from scaling.options.reference.evaluations import Evaluation, Groups, rounding_range, values

_MIN_CONFIRMED_SHARE = 0.1  # the minimum fraction of confirmed derivatives; tiny ones are not confirmed
_MAX_VERIFIED_ELEMENTS = 2**18  # limit on the size of an intermediate result at the less suspicious points
_MAX_ELEMENTS_PER_CALL = 2**20  # limit on the size of an intermediate result at all points of a call
_MAX_SCREENED_ELEMENTS = 2**26  # limit on the sum of these sizes over all calls that screen points
_DIRECTIONS = 4  # the number of random directions
_MAX_COLUMNS = 32  # limit on the number of columns of a Jacobian whose columns are confirmed
_NOISE_RUNS = 3  # evaluations with random rounding errors; a single one may change nothing by chance
# Step lengths relative to the size of an input, along the first axis of the arrays of differences.
_STEPS = np.reshape([2.0**-k for k in (4, 7, 10, 13, 16, 20, 24, 28, 32)], (-1, 1, 1))
_KINK_STEPS = tuple(2.0**-k for k in (10, 16, 22, 28))
_NOISE_STEPS = tuple(2.0**-k for k in range(26, 4, -2))  # in increasing order
_USED_NOISE_STEPS = 3  # only this number of noise steps is used: the shortest that change the value
_RELATIVE_TOLERANCE = 1e-5  # relative to the size of a derivative, in addition to the error of a difference
_CONFIRMING_ERROR = 0.05  # relative to the size of a derivative; a larger error confirms nothing
_HIDING_ERROR = 0.01  # relative to the largest value at a point; a larger error may hide a derivative
# An output with at least this number of nonzero derivatives has a confirmed share of its own.
_LEAST_NONZEROS = 10
_ROUNDINGS_OF_VALUE = 64  # the error of a derivative from rounding the value, in unit roundoffs of the value
_SCREENING_THRESHOLD = 1e-5  # a larger result of `_screen` is examined by `_confirm_at`
_SCREENING_STEPS = (2.0**-9, 2.0**-15, 2.0**-21)
_SHIFT = 2.0**-19  # the distance to a nearby point, relative to the size of an input
_SHIFTS = 3  # the number of nearby points; where three elements tie, two points may have the same slopes

ValuesAtStep = Callable[[float], np.ndarray]  # f(step along a direction) returns values (points, outputs)


@dataclass(frozen=True)
class _Confirmation:
    """The result of comparing a derivative with finite differences at several points."""

    is_wrong: np.ndarray  # shape (points,): whether an output differs by more than rounding errors
    # The fraction of the nonzero derivatives that are confirmed within 5 %, for all outputs or for the worst
    # output, whichever is smaller. At least 0.5 if those of refuted outputs are.
    confirmed_share: float
    worst: str  # a description of the wrong derivative with the largest relative error, or ""
    unresolved: int | None  # the first point at which finite differences contradict each other, as at a kink


class _Comparison(NamedTuple):
    """The result of comparing derivatives with finite differences, as arrays of shape (points, outputs)."""

    is_wrong: np.ndarray
    is_confirmed: np.ndarray
    is_unresolved: np.ndarray
    is_nonzero: np.ndarray  # whether the finite difference exceeds its error
    expected: np.ndarray  # the finite difference
    # The size of the derivative: its root mean square over the random directions, its magnitude along the
    # direction of a group of inputs, or the magnitude of the finite difference if that is larger.
    size: np.ndarray
    allowed: np.ndarray  # the error that is allowed


class _MeasuredValues(NamedTuple):
    """Function values of shape (points, outputs), with estimates of their rounding errors."""

    center: np.ndarray  # the values at step 0
    # the lower estimate: roundoff times |value|, plus the range due to random rounding, plus `finfo.tiny`
    least_noise: np.ndarray
    # the upper estimate: the larger of `least_noise` and half the fourth differences at short steps
    noise: np.ndarray


def find_objection(
    evaluation: Evaluation,
    case: Case,
    workload: Workload,
    sampled: InputArrays,
    output_name: str,
    float64_obstacle: str | None,
) -> dict[str, Any]:
    """Return {"wrong": message} or {"unsure": message} if a derivative is or may be wrong, else {}.

    The derivative is compared with finite differences at some points of a case. It is trusted if it is
    computed in float64 and the function has no custom derivative rules, such as `jax.custom_jvp`.

    result                          trusted derivative     other derivative
    confirmed                       {}                     {}
    neither confirmed nor refuted   {}                     {"unsure": message}
    refuted                         {"unsure": message}    {"wrong": message}

    `sampled` contains the inputs at the sampled points. `output_name` names the differentiated quantity in
    the message, such as "output". `float64_obstacle` is the reason why the dtype is not float64, or None.
    """
    result = _confirm(evaluation, case, workload, sampled, output_name)
    is_wrong = result.is_wrong.any()
    is_unsure = result.confirmed_share < _MIN_CONFIRMED_SHARE or (
        result.unresolved is not None and not is_wrong
    )
    if not (is_unsure or is_wrong):
        return {}
    # In low precision, rounding can make finite differences wrong at some points.
    max_wrong_share = 0.0 if evaluation.roundoff <= ROUNDOFF["float64"] else 0.5
    is_refuted = not is_unsure and np.mean(result.is_wrong) > max_wrong_share
    structs = point_structs(dataclasses.replace(case, dtype=evaluation.dtype), workload)
    may_be_wrong = evaluation.dtype != "float64" or has_custom_rules(workload.function, structs)
    if is_refuted and may_be_wrong:
        rule = "a derivative rule of the function (custom_jvp, custom_vjp, stop_gradient, primitive) is wrong"
        others = "it uses more than its inputs (such as a counter), or a solver in it stops at a tolerance"
        return {"wrong": f"{rule}, {others}: {result.worst}"}
    if not (is_refuted or may_be_wrong):  # only a custom rule can be wrong, and the function has none
        return {}
    outcome = "refute" if is_refuted else "do not confirm"
    differences = f"finite differences in {evaluation.dtype} {outcome} the derivative that JAX computes"
    if result.unresolved is not None and not is_refuted:
        cause = "as at a kink or a jump, or because of rounding errors"
        differences += f" at point {result.unresolved}, where they depend on the step, {cause}"
    obstacle = f"{float64_obstacle}, and " if float64_obstacle else ""
    return {"unsure": f"{obstacle}{differences}; add a reference to the workload"}


def _confirm(
    evaluation: Evaluation, case: Case, workload: Workload, sampled: InputArrays, output_name: str
) -> _Confirmation:
    """Return a comparison of a derivative with finite differences at some points.

    `sampled` contains the inputs at the sampled points. The points that `_screen_points` returns are also
    compared. `output_name` names the differentiated quantity in error messages, such as "output".
    """
    generator = np.random.default_rng(case.data_seed)
    confirm = functools.partial(_confirm_at, evaluation, generator, output_name)
    result = confirm(evaluations.sample_points(case), sampled)
    is_settled = result.is_wrong.any() or result.confirmed_share < _MIN_CONFIRMED_SHARE
    if is_settled or case.points <= evaluations.SAMPLED_POINTS:
        return result
    suspicious = _screen_points(evaluation, case, workload, sampled, generator)
    if not suspicious.size:
        return result
    # The sampled points are included, because the step lengths depend on the typical size of the inputs.
    points = np.union1d(evaluations.sample_points(case), suspicious[: evaluations.SAMPLED_POINTS])
    suspicious_result = confirm(points, evaluations.inputs_at(case, workload, points))
    # Cancellation also makes points suspicious, so that many points may rank before a wrong derivative.
    other_points = suspicious[evaluations.SAMPLED_POINTS :][: _MAX_VERIFIED_ELEMENTS // evaluation.width]
    if other_points.size and not suspicious_result.is_wrong.any():
        other_result = confirm(other_points, evaluations.inputs_at(case, workload, other_points))
        suspicious_result = other_result if other_result.is_wrong.any() else suspicious_result
    # The suspicious points are not a random sample, so that the share of the sampled points is kept.
    return dataclasses.replace(suspicious_result, confirmed_share=result.confirmed_share)


def _screen_points(
    evaluation: Evaluation,
    case: Case,
    workload: Workload,
    sampled: InputArrays,
    generator: np.random.Generator,
) -> np.ndarray:
    """Return the indices of the points where the derivative seems to be wrong, worst first.

    At these points, its relative difference from finite differences exceeds `_SCREENING_THRESHOLD`.
    `sampled` contains the inputs at some points.
    """
    count = min(case.points, max(1, _MAX_SCREENED_ELEMENTS // (evaluation.width * len(evaluation.names))))
    block_size = max(1, min(count, _MAX_ELEMENTS_PER_CALL // evaluation.width))
    starts = np.linspace(0, case.points - block_size, -(-count // block_size)).astype(int)
    blocks = (inputs.exact_inputs(case, workload, int(start), int(start) + block_size) for start in starts)
    groups = evaluations.group_inputs(evaluation, sampled, generator)
    by_block = [_screen(evaluation, generator, arrays, groups) for arrays in blocks]
    difference, points = np.concatenate(by_block, axis=1), (starts[:, None] + np.arange(block_size)).ravel()
    order = np.argsort(-difference, axis=1, kind="stable")
    is_suspicious = np.take_along_axis(difference, order, axis=1) > _SCREENING_THRESHOLD
    return np.array(list(dict.fromkeys(points[order].T[is_suspicious.T])), int)


@np.errstate(invalid="ignore", over="ignore")  # at infinite values
def _confirm_at(
    evaluation: Evaluation,
    generator: np.random.Generator,
    output_name: str,
    points: np.ndarray,
    arrays: InputArrays,
) -> _Confirmation:
    """Return a comparison of derivatives along random directions with finite differences.

    `output_name` names the differentiated quantity in error messages, such as "output". `arrays` contains the
    inputs at some points. `points` contains the indices of these points in the batch.
    """
    directions = [evaluations.random_direction(evaluation, arrays, generator) for _ in range(_DIRECTIONS)]
    if len(evaluation.names) > 1:
        groups = evaluations.group_inputs(evaluation, arrays, generator)
        directions += evaluations.split_direction(directions[0], groups)
    small = evaluations.keep_small_elements(directions[0], arrays)
    directions += [small] if any(x.any() for x in small.values()) else []
    directions.append(evaluations.random_direction(evaluation, arrays, generator, is_relative=True))
    compare = functools.partial(_compare_along_all, evaluation, directions)
    derivatives, comparison, is_nonzero = compare(arrays)
    if comparison.is_wrong.any():
        shifts = [
            evaluations.random_direction(evaluation, arrays, generator, is_relative=True)
            for _ in range(_SHIFTS)
        ]
        nearby = [{**arrays, **{x: arrays[x] + _SHIFT * shift[x] for x in shift}} for shift in shifts]
        comparison = _exempt_ties(comparison, [compare(shifted)[:2] for shifted in nearby])
    is_confirmed = np.asarray(comparison.is_confirmed.any(axis=0))
    share = float(np.mean(is_confirmed[is_nonzero])) if is_nonzero.any() else 1.0
    # An output with enough points has a share of its own, because other outputs must not hide it.
    nonzeros = is_nonzero.sum(axis=0)
    shares = (is_nonzero & is_confirmed).sum(axis=0) / np.maximum(nonzeros, 1)
    share = float(np.min(shares, where=nonzeros >= min(_LEAST_NONZEROS, len(points)), initial=share))
    # Nor must outputs that rounding hides. The limit of one half excludes chaotic outputs.
    refuted = is_nonzero & comparison.is_wrong.any(axis=(0, 1))
    share = max(share, 0.5) if refuted.any() and np.mean(is_confirmed[refuted]) > 0.5 else share
    names = [[name for name, x in direction.items() if x.any()] for direction in directions]
    is_wrong = comparison.is_wrong.max(axis=(0, 2))
    worst = _describe_worst(output_name, names, points, derivatives, comparison) if is_wrong.any() else ""
    is_unresolved = comparison.is_unresolved.any(axis=(0, 2))
    unresolved = int(points[np.argmax(is_unresolved)]) if is_unresolved.any() else None
    return _Confirmation(is_wrong, share, worst, unresolved)


def _exempt_ties(comparison: _Comparison, nearby: Sequence[tuple[np.ndarray, _Comparison]]) -> _Comparison:
    """Return `comparison`, with wrong derivatives marked as unresolved where the slopes jump nearby.

    Where elements tie, as in a median, the function is not differentiable. `nearby` contains the derivatives
    and their comparison at several nearby points.
    """
    least_change = _CONFIRMING_ERROR * comparison.size
    jumps = np.any([np.abs(slopes - comparison.expected) > least_change for slopes, _ in nearby], axis=(0, 1))
    is_wrong_nearby = np.all([compared.is_wrong.any(axis=0) for _, compared in nearby], axis=0)
    is_wrong = comparison.is_wrong & (is_wrong_nearby | ~jumps)
    is_unresolved = comparison.is_unresolved | comparison.is_wrong & ~is_wrong
    return comparison._replace(is_wrong=is_wrong, is_unresolved=is_unresolved)


def _compare_along_all(
    evaluation: Evaluation, directions: Sequence[InputArrays], arrays: InputArrays
) -> tuple[np.ndarray, _Comparison, np.ndarray]:
    """Compare the derivatives along each direction with finite differences.

    Return (derivatives, comparison, is_nonzero). `derivatives` and the arrays in `comparison` have the shape
    (directions, points, outputs). `is_nonzero`, of shape (points, outputs), is true where the derivative
    along a direction is much larger than its error, or where rounding errors may hide it. It is false where
    the function is not finite, unless the function is finite nowhere.

    The first `_DIRECTIONS` directions must be random. The root mean square of the derivatives along these
    directions is used as the typical size of a derivative. The last direction must be a result of
    `random_direction` with `is_relative=True`.
    """
    differentiate = functools.partial(_differentiate_along, directions)
    derivatives = differentiate(evaluation, arrays)
    # The range excludes the derivatives themselves, because a rule that is wrong only at 1 would increase it.
    noise = rounding_range(differentiate, evaluation, arrays, 4 * evaluation.roundoff, _NOISE_RUNS)
    # Along the last direction, the derivative and its error may be much smaller (inputs of all magnitudes).
    rounding = [noise[:-1].max(axis=0)] * (len(directions) - 1) + [noise[-1]]
    rms = np.sqrt(np.mean(derivatives[:_DIRECTIONS] ** 2, axis=0))
    typical_sizes = [rms] * _DIRECTIONS + list(np.abs(derivatives[_DIRECTIONS:]))
    measured = _measure_values(evaluation, arrays, directions[0])
    # A derivative may contain the value of the function, for example for exp.
    value_rounding = _ROUNDINGS_OF_VALUE * evaluation.roundoff * np.abs(measured.center)
    comparisons = []
    for direction, derivative, size, error in zip(
        directions, derivatives, typical_sizes, rounding, strict=True
    ):
        values_at = functools.partial(_values_at, evaluation, arrays, direction)
        comparisons.append(_compare_along(values_at, derivative, size, measured, value_rounding, error))
    stacked = _Comparison(*map(np.array, zip(*comparisons, strict=True)))
    is_nonzero = (rms > 8 * rounding[0]) | stacked.is_nonzero.any(axis=0) | _is_hidden(evaluation, measured)
    is_finite = np.isfinite(measured.center)
    return derivatives, stacked, is_nonzero & (is_finite | ~is_finite.any())


def _differentiate_along(
    directions: Sequence[InputArrays], evaluation: Evaluation, arrays: InputArrays
) -> np.ndarray:
    """Return the derivatives along each direction, of shape (directions, points, outputs).

    They are JVPs. If the Jacobian has few columns, the first one is the product of the Jacobian and the first
    direction. It reveals a rule for tangents that is wrong only for unit vectors.
    """
    derivatives = [
        evaluations.directional_derivative(evaluation, arrays, direction) for direction in directions
    ]
    if evaluation.inputs <= _MAX_COLUMNS and not evaluation.rounding_key:
        J = evaluations.jacobian(evaluation, arrays)
        flat = flatten_inputs(evaluation.names, evaluation.per_point, directions[0], len(J))
        derivatives[0] = (J @ flat[:, :, None])[:, :, 0]
    return np.array(derivatives)


def _describe_worst(
    output_name: str, names: Groups, points: np.ndarray, derivatives: np.ndarray, comparison: _Comparison
) -> str:
    """Return text for an error message about the wrong derivative with the largest relative error.

    Derivatives along a direction that changes a single group of inputs take precedence, because the text then
    names the wrong input. Derivatives along the last direction of `_compare_along_all` come last.
    `output_name` is the name of the differentiated quantity, such as "output". `names[k]` are the names of
    the inputs that direction k changes. `points` contains the indices of the points. The other arrays have
    the shape (directions, points, outputs).
    """
    is_wrong, size = comparison.is_wrong, comparison.size
    first = _DIRECTIONS if is_wrong[_DIRECTIONS:-1].any() else 0
    stop = -1 if is_wrong[:-1].any() else None
    errors, tolerances = (
        np.divide(x, size, out=np.zeros_like(size), where=size > 0)
        for x in (np.abs(derivatives - comparison.expected), comparison.allowed)
    )
    ranked = np.where(is_wrong, np.nan_to_num(errors, nan=np.inf), -1.0)[first:stop]
    k, point, output = (int(index) for index in np.unravel_index(np.argmax(ranked), ranked.shape))
    k += first
    arrays = (derivatives, comparison.expected, errors, tolerances)
    derivative, expected, error, tolerance = (float(array[k, point, output]) for array in arrays)
    return (
        f"at point {points[point]}, the derivative of {output_name} {output} with respect to "
        f"{list_first(names[k], 3)} in a random direction is {derivative:.7g}, but finite differences give "
        f"{expected:.7g} (relative error {error:.3g}, tolerance {tolerance:.2g})"
    )


def _compare_along(
    values_at: ValuesAtStep,
    derivative: np.ndarray,
    typical_size: np.ndarray,
    measured: _MeasuredValues,
    value_rounding: np.ndarray,
    rounding: np.ndarray,
) -> _Comparison:
    """Return a comparison of the derivative along one direction with finite differences of `values_at`.

    `values_at(step)` returns the function values at x + step * direction, where x contains the inputs.
    `measured` contains the values at step 0 and their rounding errors. `typical_size` is the typical
    magnitude of the derivative, and `rounding` is its rounding error. The tolerance also includes
    `value_rounding`, the rounding error of the function value, because a derivative may contain this value,
    as for exp. All arrays have the shape (points, outputs).
    """
    center, least_noise, noise = measured
    differences = _central_differences(values_at)
    difference, error = _select_difference(differences, np.maximum(noise, _smallest_jump(differences)))
    size = np.maximum(typical_size, np.abs(difference))
    allowed = _RELATIVE_TOLERANCE * size + value_rounding + 4 * rounding
    agrees = np.abs(derivative - difference) <= allowed + 4 * error
    # Only short steps resolve a ripple of small amplitude. They agree with its derivative, long steps do not.
    agrees_twice, agrees_once, is_refuted = _compare_steps(differences, derivative, allowed, least_noise)
    # The function jumps or oscillates if differences of short steps change by more than rounding errors.
    least_change = np.maximum(_CONFIRMING_ERROR * np.abs(differences), 8 * value_rounding / _STEPS)
    jumps = np.any((np.abs(np.diff(differences, axis=0)) > least_change[1:])[-3:], axis=0)
    is_finite = np.isfinite(center)  # at an infinite value, a derivative is neither wrong nor confirmed
    differs, has_kink = is_finite & (is_refuted | ~(agrees | agrees_twice)), np.zeros(center.shape, bool)
    if differs.any():
        is_between, has_kink = _compare_one_sided_slopes(values_at, measured, derivative, allowed)
        differs &= ~is_between
    # The steps contradict each other, or several kinks meet at a point, or random rounding errors give NaN.
    unresolved = differs & (agrees | agrees_once | jumps | has_kink | ~np.isfinite(allowed + noise))
    is_wrong = differs & ~unresolved
    is_confirmed = (allowed + 4 * error <= _CONFIRMING_ERROR * size) & ~unresolved & is_finite
    is_nonzero = np.abs(difference) > 8 * error + value_rounding
    return _Comparison(is_wrong, is_confirmed, unresolved, is_nonzero, difference, size, allowed)


def _screen(
    evaluation: Evaluation, generator: np.random.Generator, arrays: InputArrays, groups: Groups
) -> np.ndarray:
    """Return estimates of the relative errors of directional derivatives, of shape (groups + 2, points).

    Row k is for a direction that changes only the inputs in `groups[k]`. The next row is for a direction that
    changes only small elements. The last row is for a direction that changes all inputs, each element in
    proportion to its magnitude.

    The relative error of a derivative d is max(0, |d - f| - rounding error) / (|d| + |f|), where f is a
    finite difference. The step size with the smallest error is used. At a kink, the error is 0 if d is
    between the one-sided slopes. The error at a point is the largest error of all outputs.
    """
    center, errors_by_group = values(evaluation, arrays), []
    noise = _ROUNDINGS_OF_VALUE * evaluation.roundoff * np.abs(center)
    random = evaluations.random_direction(evaluation, arrays, generator)
    directions = [
        *evaluations.split_direction(random, groups),
        evaluations.keep_small_elements(random, arrays),
    ]
    for direction in [
        *directions,
        evaluations.random_direction(evaluation, arrays, generator, is_relative=True),
    ]:
        derivative = evaluations.directional_derivative(evaluation, arrays, direction)
        smallest_error, error_at_kink, distance = np.full((3, *derivative.shape), np.inf)
        for step in _SCREENING_STEPS:
            near, far = (_values_at(evaluation, arrays, direction, k) for k in (step, -step))
            with np.errstate(all="ignore"):
                slopes, previous = np.sort([(near - center) / step, (center - far) / step], axis=0), distance
                distance = slopes[1] - slopes[0]
                mean, nearest = np.mean(slopes, axis=0), np.clip(derivative, *slopes)
                size = np.abs(mean) + np.abs(derivative)
                excess = np.abs([mean - derivative, nearest - derivative]) - noise / step
                errors = excess / np.where(size > 0, size, 1.0)  # of two zeros, the error is 0
                error, error_to_slopes = np.where(np.isfinite(errors), errors, np.inf)
                # At a kink, the distance between the one-sided slopes hardly depends on the step.
                is_kink = (distance > previous / 2) & (distance < 2 * previous)
                is_precise = (step == _SCREENING_STEPS[0]) | (noise / step <= _SCREENING_THRESHOLD * size)
            smallest_error = np.where(is_precise, np.minimum(smallest_error, error), smallest_error)
            error_at_kink = np.where(is_precise, np.where(is_kink, error_to_slopes, np.inf), error_at_kink)
        error = np.minimum(smallest_error, error_at_kink)
        # An output without a precise step is ignored.
        errors_by_group.append(np.max(error, axis=1, initial=0.0, where=np.isfinite(error)))
    return np.array(errors_by_group)


def _measure_values(evaluation: Evaluation, arrays: InputArrays, direction: InputArrays) -> _MeasuredValues:
    """Evaluate a function at the inputs `arrays`, and estimate the rounding errors of its values.

    The estimate includes the differences of the values at short steps along `direction`.
    """
    roundoff = evaluation.roundoff
    center = values(evaluation, arrays)
    change = rounding_range(values, evaluation, arrays, 2 * roundoff, _NOISE_RUNS)
    underflow = float(jax.numpy.finfo(evaluation.dtype).tiny)
    least_noise = roundoff * np.abs(center) + change + underflow
    largest, used_steps = np.zeros(center.shape), np.zeros(center.shape, int)
    for step in _NOISE_STEPS:
        stepped = [_values_at(evaluation, arrays, direction, k * step) for k in (-2, -1, 1, 2)]
        difference = 6 * center - 4 * (stepped[1] + stepped[2]) + stepped[0] + stepped[3]
        is_used = used_steps < _USED_NOISE_STEPS
        largest = np.where(is_used, np.maximum(largest, np.nan_to_num(np.abs(difference)) / 2), largest)
        # If the function rounds an intermediate result, the shortest steps may leave the value unchanged.
        used_steps += np.any(np.array(stepped) != center, axis=0)
    return _MeasuredValues(center, least_noise, np.maximum(least_noise, largest))


def _is_hidden(evaluation: Evaluation, measured: _MeasuredValues) -> np.ndarray:
    """Return a boolean array of shape (points, outputs), true where rounding may hide changes of an output.

    This is possible if the rounding error exceeds a fraction of the largest |output| at the point. It is also
    possible if the output is not zero, but so small that this fraction of it underflows.
    """
    fraction = max(_HIDING_ERROR, _ROUNDINGS_OF_VALUE * evaluation.roundoff)
    size, underflow = np.abs(measured.center), float(jax.numpy.finfo(evaluation.dtype).tiny)
    largest = np.max(size, axis=1, keepdims=True, initial=0.0)
    is_tiny = (size > 0) & (fraction * size < underflow)
    return is_tiny | (measured.least_noise > np.maximum(fraction * largest, 2 * underflow))


def _values_at(
    evaluation: Evaluation, arrays: InputArrays, direction: InputArrays, step: float
) -> np.ndarray:
    shifted = {name: arrays[name] + step * direction[name] for name in evaluation.names}
    return values(evaluation, {**arrays, **shifted})


def _central_differences(values_at: ValuesAtStep) -> np.ndarray:
    differences = []
    for step in _STEPS.flat:
        near, far = (values_at(k) - values_at(-k) for k in (step, 2 * step))
        differences.append((8 * near - far) / (12 * step))
    return np.nan_to_num(differences, nan=np.inf, posinf=np.inf, neginf=np.inf)


def _select_difference(differences: np.ndarray, noise: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the most accurate finite difference for each output, and an estimate of its error.

    Both results have the shape (points, outputs). `differences` has the shape (steps, points, outputs).
    `noise` contains the rounding errors of the function values.
    """
    best, least_error = np.zeros_like(noise), np.full_like(noise, np.inf)
    rounding = 1.5 * noise / _STEPS
    for k, difference in enumerate(differences[:-1]):
        with np.errstate(invalid="ignore"):
            change = np.nan_to_num(np.abs(difference - differences[k + 1]), nan=np.inf)
            unexplained = np.abs(difference - differences[k + 2 :]) - rounding[k + 2 :]
        # Two consecutive steps can agree by chance near a kink, so that all shorter steps are compared.
        unexplained[~np.isfinite(unexplained)] = 0.0
        error = np.maximum(change, unexplained.max(axis=0, initial=0.0)) + rounding[k]
        best, least_error = np.where(error < least_error, difference, best), np.minimum(error, least_error)
    return best, least_error


def _smallest_jump(differences: np.ndarray) -> np.ndarray:
    """Return the smallest nonzero change of each output among all steps, or 0 if an output never changes.

    `differences` has the shape (steps, points, outputs). The result has the shape (points, outputs).
    """
    # An output changes in such jumps if it is rounded, or if its terms cancel, as in 1 - cos(x / 100).
    changes = np.abs(differences) * _STEPS  # the differences are divided by the steps
    return np.nan_to_num(np.min(changes, axis=0, where=changes > 0, initial=np.inf), posinf=0.0)


def _compare_steps(
    differences: np.ndarray, derivative: np.ndarray, allowed: np.ndarray, noise: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return (agrees_twice, agrees_once, is_refuted) as boolean arrays of shape (points, outputs).

    The error of a step is |derivative - finite difference with this step|. Two consecutive steps are
    consistent if their finite differences differ by at most `allowed`.

    agrees_twice    the errors of two consecutive steps are at most `allowed`
    agrees_once     the error of a step is at most `allowed`
    is_refuted      both errors of the shortest two consistent steps are more than 4 times `allowed`

    A step is ignored if the rounding error of its finite difference exceeds `allowed`. `differences` has the
    shape (steps, points, outputs). `noise` contains the rounding errors of the function values.
    """
    is_exact, distance = 1.5 * noise / _STEPS <= allowed, np.abs(differences - derivative)
    agrees, is_far = is_exact & (distance <= allowed), distance > 4 * allowed
    is_equal = is_exact[1:] & is_exact[:-1] & (np.abs(np.diff(differences, axis=0)) <= allowed)
    shortest = len(is_equal) - 1 - np.argmax(is_equal[::-1], axis=0)[None]
    refutes = np.take_along_axis(is_equal & is_far[1:] & is_far[:-1], shortest, axis=0)[0]
    return np.any(agrees[1:] & agrees[:-1], axis=0), agrees.any(axis=0), refutes


def _compare_one_sided_slopes(
    values_at: ValuesAtStep, measured: _MeasuredValues, derivative: np.ndarray, allowed: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return (is_between, has_kink) as boolean arrays of shape (points, outputs).

    is_between    whether the derivative is between the slopes on both sides of the point, within `allowed`
    has_kink      whether these slopes differ
    """
    is_between, has_kink = np.zeros((2, *derivative.shape), bool)
    for step in _KINK_STEPS:
        slopes = []
        for signed_step in (step, -step):
            near, far = (values_at(k) for k in (signed_step, 2 * signed_step))
            slopes.append((4 * near - far - 3 * measured.center) / (2 * signed_step))
        rounding = 8 * measured.least_noise / step
        error = allowed + rounding
        lower, upper = np.minimum(*slopes) - error, np.maximum(*slopes) + error
        is_kink = np.abs(slopes[0] - slopes[1]) > 4 * error
        is_inside, is_precise = (derivative >= lower) & (derivative <= upper), rounding <= allowed
        # A precise short step overrides longer steps, because a long step may reach a distant kink.
        is_between = np.where(is_precise, is_inside, is_between | is_kink & is_inside)
        has_kink = np.where(is_precise, is_kink, has_kink)
    return is_between, has_kink
