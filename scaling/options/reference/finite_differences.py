"""Compare a derivative along one direction with accurate finite differences, for verification.py.

`compare_along` uses fourth-order central differences with several step lengths, because a short step has a
large rounding error, and a long step may reach a kink. All arrays have the shape (points, outputs).
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

# Step lengths relative to the size of an input, along the first axis of the arrays of differences.
_STEPS = np.reshape([2.0**-k for k in (4, 7, 10, 13, 16, 20, 24, 28, 32)], (-1, 1, 1))
_KINK_STEPS = tuple(2.0**-k for k in (10, 16, 22, 28))
_RELATIVE_TOLERANCE = 1e-5  # relative to the size of a derivative, in addition to the error of a difference
CONFIRMING_ERROR = 0.05  # relative to the size of a derivative; a larger error confirms nothing
_BOUNDING_ERROR = 0.3  # relative to the typical size; with a larger error, a derivative is not bounded

ValuesAtStep = Callable[[float], np.ndarray]  # f(step along a direction) returns values (points, outputs)


class DerivativeComparison(NamedTuple):
    """The result of comparing derivatives with finite differences, as arrays of shape (points, outputs)."""

    is_wrong: np.ndarray
    is_confirmed: np.ndarray
    is_bounded: np.ndarray  # whether the error is less than 30 % of the typical size, also over the points
    is_unresolved: np.ndarray
    is_nonzero: np.ndarray  # whether the finite difference exceeds its error
    expected: np.ndarray  # the finite difference
    # The size of the derivative: its root mean square over the random directions, its magnitude along the
    # direction of a group of inputs, or the magnitude of the finite difference if that is larger.
    size: np.ndarray
    allowed: np.ndarray  # the error that is allowed


class MeasuredValues(NamedTuple):
    """Function values of shape (points, outputs), with estimates of their rounding errors."""

    center: np.ndarray  # the values at step 0
    # the lower estimate: roundoff times |value|, plus the range due to random rounding, plus `finfo.tiny`
    least_noise: np.ndarray
    # the upper estimate: the larger of `least_noise` and half the fourth differences at short steps
    noise: np.ndarray


def compare_along(
    values_at: ValuesAtStep,
    derivative: np.ndarray,
    typical_size: np.ndarray,
    measured: MeasuredValues,
    value_rounding: np.ndarray,
    rounding: np.ndarray,
) -> DerivativeComparison:
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
    least_change = np.maximum(CONFIRMING_ERROR * np.abs(differences), 8 * value_rounding / _STEPS)
    jumps = np.any((np.abs(np.diff(differences, axis=0)) > least_change[1:])[-3:], axis=0)
    is_finite = np.isfinite(center)  # at an infinite value, a derivative is neither wrong nor confirmed
    differs, has_kink = is_finite & (is_refuted | ~(agrees | agrees_twice)), np.zeros(center.shape, bool)
    if differs.any():
        is_between, has_kink = _compare_one_sided_slopes(values_at, measured, derivative, allowed)
        differs &= ~is_between
    # The steps contradict each other, or several kinks meet at a point, or random rounding errors give NaN.
    unresolved = differs & (agrees | agrees_once | jumps | has_kink | ~np.isfinite(allowed + noise))
    is_wrong = differs & ~unresolved
    is_confirmed = (allowed + 4 * error <= CONFIRMING_ERROR * size) & ~unresolved & is_finite
    typical_over_points = np.sqrt(np.mean(np.where(is_finite, size, 0.0) ** 2, axis=0))
    is_bounded = allowed + 4 * error <= _BOUNDING_ERROR * np.maximum(size, typical_over_points)
    is_nonzero = np.abs(difference) > 8 * error + value_rounding
    return DerivativeComparison(
        is_wrong, is_confirmed, is_bounded, unresolved, is_nonzero, difference, size, allowed
    )


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
    values_at: ValuesAtStep, measured: MeasuredValues, derivative: np.ndarray, allowed: np.ndarray
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
