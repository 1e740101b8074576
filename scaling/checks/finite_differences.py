"""Compare derivatives along directions with finite differences of function values, with many step lengths.

`find_suspicious_points` compares the derivatives at many points with second-order finite differences, which
need few function values. `compare_along` uses fourth-order central differences with several step lengths,
because a short step has a large rounding error, and a long step may reach a kink. All arrays have the shape
(points, outputs), if nothing else is stated.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from scaling.checks import evaluations
from scaling.checks.evaluations import VALUE_ROUNDINGS, Evaluation, Groups, values, values_along
from scaling.core import inputs
from scaling.core.case import Case
from scaling.core.inputs import InputArrays
from scaling.core.workload import Workload

_MAX_ELEMENTS_PER_CALL = 2**20  # limit on the size of an intermediate result at all points of a call
_MAX_SCREENED_ELEMENTS = 2**26  # limit on the sum of these sizes over all calls
_THRESHOLD = 1e-5  # a derivative with a larger relative error is suspicious
_COARSE_STEPS = (2.0**-9, 2.0**-15, 2.0**-21)
# Step lengths relative to the size of an input, along the first axis of the arrays of differences.
_STEPS = np.reshape([2.0**-k for k in (4, 7, 10, 13, 16, 20, 24, 28, 32)], (-1, 1, 1))
_KINK_STEPS = tuple(2.0**-k for k in (10, 16, 22, 28))
_NOISE_CHANGES = 3  # the number of changes between short steps from which rounding errors are estimated
_RELATIVE_TOLERANCE = 1e-5  # relative to the size of a derivative, in addition to the error of a difference
CONFIRMING_ERROR = 0.05  # relative to the size of a derivative; a larger error confirms nothing
_BOUNDING_ERROR = 0.3  # relative to the typical size; with a larger error, a derivative is not bounded

ValuesAtStep = Callable[[float], np.ndarray]  # f(step along a direction) returns values (points, outputs)


class DerivativeComparison(NamedTuple):
    """A comparison of derivatives with finite differences, as arrays of shape (points, outputs)."""

    is_wrong: np.ndarray  # whether the finite differences refute the derivative
    is_confirmed: np.ndarray  # whether the error is known to be less than 5 % of the derivative
    is_bounded: np.ndarray  # whether the error is less than 30 % of the typical size, also over the points
    is_unresolved: np.ndarray  # whether the finite differences contradict each other, as at a kink
    is_nonzero: np.ndarray  # whether the finite difference exceeds its error
    expected: np.ndarray  # the finite difference
    # The size of the derivative: its root mean square over the random directions, its magnitude along the
    # direction of a group of inputs, or the magnitude of the finite difference if that is larger.
    size: np.ndarray
    allowed: np.ndarray  # the error that is allowed


def compare_along(
    values_at: ValuesAtStep,
    derivative: np.ndarray,
    typical_size: np.ndarray,
    center: np.ndarray,
    value_noise: np.ndarray,
    value_rounding: np.ndarray,
    rounding: np.ndarray,
) -> DerivativeComparison:
    """Compare the derivative along one direction with finite differences of `values_at`.

    A derivative is accepted if it agrees with the most accurate finite difference or with two consecutive
    steps, unless the shortest consistent steps refute it. A derivative between the slopes on both sides is
    always accepted. Any other derivative is unresolved if the finite differences contradict each other, and
    otherwise wrong.

    `values_at(step)` returns the function values at x + step * direction, where x contains the inputs.
    `center` contains the values at step 0, and `value_noise` their rounding errors. `typical_size` is the
    typical magnitude of the derivative, and `rounding` its rounding error. `value_rounding` is the additional
    error of a derivative that contains the function value, as for exp. All arrays have the shape (points,
    outputs).
    """
    differences = _central_differences(values_at)
    noise = np.maximum(value_noise, _noise_of_short_steps(differences))
    difference, error = _select_difference(differences, np.maximum(noise, _smallest_jump(differences)))
    size = np.maximum(typical_size, np.abs(difference))
    allowed = _RELATIVE_TOLERANCE * size + value_rounding + 4 * rounding
    agrees_with_best = np.abs(derivative - difference) <= allowed + 4 * error
    # Only short steps resolve a ripple of small amplitude. They agree with its derivative, long steps do not.
    agrees_twice, agrees_once, is_refuted = _compare_steps(differences, derivative, allowed, value_noise)
    jumps = _find_jumps(differences, value_rounding)
    is_finite = np.isfinite(center)  # at an infinite value, a derivative is neither wrong nor confirmed
    is_rejected = is_finite & (is_refuted | ~(agrees_with_best | agrees_twice))
    has_kink = np.zeros(center.shape, bool)
    if is_rejected.any():
        is_between, has_kink = _compare_one_sided_slopes(values_at, center, value_noise, derivative, allowed)
        is_rejected &= ~is_between
    # The steps contradict each other, or several kinks meet at a point, or random rounding errors give NaN.
    contradicts = agrees_with_best | agrees_once | jumps | has_kink | ~np.isfinite(allowed + noise)
    unresolved = is_rejected & contradicts
    wrong = is_rejected & ~unresolved
    confirmed = (allowed + 4 * error <= CONFIRMING_ERROR * size) & ~unresolved & is_finite
    typical_over_points = np.sqrt(np.mean(np.where(is_finite, size, 0.0) ** 2, axis=0))
    bounded = allowed + 4 * error <= _BOUNDING_ERROR * np.maximum(size, typical_over_points)
    nonzero = np.abs(difference) > 8 * error + value_rounding
    return DerivativeComparison(wrong, confirmed, bounded, unresolved, nonzero, difference, size, allowed)


def _central_differences(values_at: ValuesAtStep) -> np.ndarray:
    differences = []
    for step in _STEPS.flat:
        near, far = (values_at(k) - values_at(-k) for k in (step, 2 * step))
        differences.append((8 * near - far) / (12 * step))
    return np.nan_to_num(differences, nan=np.inf, posinf=np.inf, neginf=np.inf)


def _noise_of_short_steps(differences: np.ndarray) -> np.ndarray:
    """Estimate the rounding errors of the function values from the differences with the shortest steps."""
    changes = np.abs(np.diff(differences, axis=0)) * _STEPS[1:]  # the differences are divided by the steps
    return np.nan_to_num(changes[-_NOISE_CHANGES:], nan=0.0, posinf=0.0).max(axis=0)


def _find_jumps(differences: np.ndarray, value_rounding: np.ndarray) -> np.ndarray:
    """Return where an output jumps or oscillates, as a boolean array of shape (points, outputs).

    There, the finite differences of consecutive short steps differ by more than rounding errors.
    """
    least_change = np.maximum(CONFIRMING_ERROR * np.abs(differences), 8 * value_rounding / _STEPS)
    return np.any((np.abs(np.diff(differences, axis=0)) > least_change[1:])[-3:], axis=0)


def _select_difference(differences: np.ndarray, noise: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the finite difference of the most accurate step, and its estimated error.

    Both have the shape (points, outputs). `differences` has the shape (steps, points, outputs). `noise`
    contains the rounding errors of the function values.
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

    `differences` has the shape (steps, points, outputs), and the result the shape (points, outputs).
    """
    # An output changes in such jumps if it is rounded, or if its terms cancel, as in 1 - cos(x / 100).
    changes = np.abs(differences) * _STEPS  # the differences are divided by the steps
    return np.nan_to_num(np.min(changes, axis=0, where=changes > 0, initial=np.inf), posinf=0.0)


def _compare_steps(
    differences: np.ndarray, derivative: np.ndarray, allowed: np.ndarray, noise: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Compare a derivative with the finite difference of each step.

    Return three boolean arrays of shape (points, outputs). The error of a step is the distance between its
    finite difference and the derivative. Two consecutive steps are consistent if their finite differences
    differ by at most `allowed`.

    agrees_twice    two consecutive steps have errors of at most `allowed`
    agrees_once     one step has an error of at most `allowed`
    is_refuted      the two shortest consistent steps have errors of more than 4 times `allowed`

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
    values_at: ValuesAtStep,
    center: np.ndarray,
    noise: np.ndarray,
    derivative: np.ndarray,
    allowed: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """Compare a derivative with the slopes of the function on both sides of each point.

    Return two boolean arrays of shape (points, outputs):

    is_between    the derivative is between the two slopes, within `allowed`
    has_kink      the two slopes differ

    `center` contains the function values at the points, and `noise` their rounding errors.
    """
    is_between, has_kink = np.zeros((2, *derivative.shape), bool)
    for step in _KINK_STEPS:
        slopes = []
        for signed_step in (step, -step):
            near, far = (values_at(k) for k in (signed_step, 2 * signed_step))
            slopes.append((4 * near - far - 3 * center) / (2 * signed_step))
        rounding = 8 * noise / step
        error = allowed + rounding
        lower, upper = np.minimum(*slopes) - error, np.maximum(*slopes) + error
        is_kink = np.abs(slopes[0] - slopes[1]) > 4 * error
        is_inside, is_precise = (derivative >= lower) & (derivative <= upper), rounding <= allowed
        # A precise short step overrides longer steps, because a long step may reach a distant kink.
        is_between = np.where(is_precise, is_inside, is_between | is_kink & is_inside)
        has_kink = np.where(is_precise, is_kink, has_kink)
    return is_between, has_kink


def find_suspicious_points(
    evaluation: Evaluation,
    case: Case,
    workload: Workload,
    groups: Groups,
    generator: np.random.Generator,
) -> np.ndarray:
    """Return the indices of the points where the derivative seems to be wrong, the worst first.

    At these points, the relative difference between the derivative and a coarse finite difference exceeds
    `_THRESHOLD`. The inputs of each group of `groups` are changed together.
    """
    count = min(case.points, max(1, _MAX_SCREENED_ELEMENTS // (evaluation.width * len(evaluation.names))))
    block_size = max(1, min(count, _MAX_ELEMENTS_PER_CALL // evaluation.width))
    starts = np.linspace(0, case.points - block_size, -(-count // block_size)).astype(int)
    blocks = (inputs.exact_inputs(case, workload, int(start), int(start) + block_size) for start in starts)
    by_block = [_estimate_errors(evaluation, generator, arrays, groups) for arrays in blocks]
    difference, points = np.concatenate(by_block, axis=1), (starts[:, None] + np.arange(block_size)).ravel()
    order = np.argsort(-difference, axis=1, kind="stable")
    is_suspicious = np.take_along_axis(difference, order, axis=1) > _THRESHOLD
    return np.array(list(dict.fromkeys(points[order].T[is_suspicious.T])), int)


def _estimate_errors(
    evaluation: Evaluation, generator: np.random.Generator, arrays: InputArrays, groups: Groups
) -> np.ndarray:
    """Return the estimated relative error of the derivative along each direction, for the worst output.

    The directions are chosen by `choose_directions`. The result has the shape (directions, points).
    """
    center = values(evaluation, arrays)
    directions = evaluations.choose_directions(evaluation, arrays, generator, groups)
    errors = [_estimate_error_along(evaluation, arrays, direction, center) for direction in directions]
    # An output without a precise step is ignored.
    return np.array([np.max(error, axis=1, initial=0.0, where=np.isfinite(error)) for error in errors])


def _estimate_error_along(
    evaluation: Evaluation, arrays: InputArrays, direction: InputArrays, center: np.ndarray
) -> np.ndarray:
    """Return the estimated relative error of the derivative along a direction.

    The result has the shape (points, outputs). The error of a derivative d is (|d - f| - rounding error) /
    (|d| + |f|), where f is a finite difference. It is computed for several steps, and the smallest error is
    returned. At a kink, the error is 0 if d is between the one-sided slopes. The error is infinite if d or
    all f are not finite. `center` contains the function values.
    """
    noise = VALUE_ROUNDINGS * evaluation.roundoff * np.abs(center)
    derivative = evaluations.directional_derivative(evaluation, arrays, direction)
    smallest_error, error_at_kink, distance = np.full((3, *derivative.shape), np.inf)
    for step in _COARSE_STEPS:
        near, far = (values_along(evaluation, arrays, direction, k) for k in (step, -step))
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
            is_precise = (step == _COARSE_STEPS[0]) | (noise / step <= _THRESHOLD * size)
        smallest_error = np.where(is_precise, np.minimum(smallest_error, error), smallest_error)
        error_at_kink = np.where(is_precise, np.where(is_kink, error_to_slopes, np.inf), error_at_kink)
    return np.minimum(smallest_error, error_at_kink)
