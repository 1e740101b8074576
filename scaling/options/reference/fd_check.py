"""Compare a derivative with fourth-order central differences of the function along random directions.

A wrong derivative rule of the function (`jax.custom_jvp`, `jax.custom_vjp`, `stop_gradient`) yields the same
wrong derivative in every dtype and AD mode. It can be detected only from the function values.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from scaling.core.inputs import InputArrays
from scaling.options.reference.evaluations import (
    Evaluation,
    directional_derivative,
    measure_with_noise,
    values,
)

_DIRECTIONS = 4  # the number of random directions
_MAX_GROUPS = 32  # the maximum number of inputs, or groups of inputs, that are also moved one at a time
_EVALUATIONS = 3  # evaluations with random rounding errors; a single one may change nothing by chance
# Step lengths relative to the size of an input, along the first axis of the arrays of differences.
_STEPS = np.reshape([2.0**-k for k in (4, 7, 10, 13, 16, 20, 24, 28, 32)], (-1, 1, 1))
_KINK_STEPS = tuple(2.0**-k for k in (10, 16, 22, 28))
_NOISE_STEPS = tuple(2.0**-k for k in range(26, 4, -2))  # in increasing order
_USED_NOISE_STEPS = 3  # the number of these steps that are used, the shortest that change the value
_RELATIVE_TOLERANCE = 1e-5  # relative to the size of a derivative, in addition to the error of a difference
_CONFIRMING_ERROR = 0.05  # relative to the size of a derivative; a larger error confirms nothing
_ROUNDINGS_OF_VALUE = 64  # the error of a derivative from rounding the value, in unit roundoffs of the value
SUSPICIOUS = 1e-5  # a larger result of `screen` is examined by `confirm`
_SCREENING_STEPS = (2.0**-9, 2.0**-13, 2.0**-17)
_LEAST_RELATIVE_SIZE = 1e-3  # the minimum size of an element, relative to the root mean square of its input

Groups = list[list[str]]  # names of inputs
ValuesAtStep = Callable[[float], np.ndarray]  # f(step along a direction) returns values (points, outputs)


@dataclass(frozen=True)
class Confirmation:
    """The result of comparing a derivative with finite differences.

    The size of a derivative is the root mean square over the random directions. Along the direction of a
    single input, it is the magnitude of the derivative. A larger finite difference replaces either value.
    """

    is_wrong: np.ndarray  # shape (points,): whether an output differs by more than rounding errors
    confirmed_share: float  # the fraction of nonzero derivatives that are confirmed within 5 %
    largest_difference: float  # the largest difference of a wrong derivative, relative to its size, or 0
    is_unresolved: bool  # whether an oscillation or jumps make finite differences contradict each other


class _MeasuredValues(NamedTuple):
    """Arrays of shape (points, outputs) with function values and estimates of the rounding errors."""

    center: np.ndarray
    # `roundoff` times the magnitude of the value, plus the largest change due to random rounding errors
    least_noise: np.ndarray
    # at least `least_noise` and the scaled fourth differences at short steps, which are rounding errors
    noise: np.ndarray


@np.errstate(invalid="ignore")  # at infinite values
def confirm(
    evaluation: Evaluation, arrays: InputArrays, roundoff: float, generator: np.random.Generator
) -> Confirmation:
    """Compare the derivatives of a function along random directions with finite differences.

    `roundoff` is the unit roundoff of the narrowest dtype of an intermediate result. Where a value is
    infinite, such as a log density outside of its support, the derivative is neither wrong nor confirmed.
    """
    directions = [random_direction(evaluation, arrays, generator) for _ in range(_DIRECTIONS)]
    if len(evaluation.names) > 1:
        directions += split_direction(directions[0], group_inputs(evaluation, arrays, generator))

    def derivatives_along(evaluation: Evaluation, arrays: InputArrays) -> np.ndarray:
        return np.array([directional_derivative(evaluation, arrays, direction) for direction in directions])

    derivatives, rounding = measure_with_noise(
        derivatives_along, evaluation, arrays, 4 * roundoff, generator, _EVALUATIONS
    )
    rounding = rounding.max(axis=0)
    norm = np.sqrt(np.mean(derivatives[:_DIRECTIONS] ** 2, axis=0))
    typical = [norm] * _DIRECTIONS + list(np.abs(derivatives[_DIRECTIONS:]))
    is_nonzero = norm > 8 * rounding
    measured = _measure_values(evaluation, arrays, roundoff, generator)
    # A derivative may contain the value of the function, for example for exp.
    value_rounding = _ROUNDINGS_OF_VALUE * roundoff * np.abs(measured.center)
    compared = []
    for direction, derivative, size in zip(directions, derivatives, typical, strict=True):
        values_at = functools.partial(_values_at, evaluation, arrays, direction)
        compared.append(_compare_along(values_at, derivative, size, measured, value_rounding, rounding))
    is_wrong, is_confirmed, is_unresolved, differences = map(np.array, zip(*compared, strict=True))
    share = float(np.mean(is_confirmed.max(axis=0)[is_nonzero])) if is_nonzero.any() else 1.0
    largest = float(np.max(differences, initial=0.0))
    return Confirmation(is_wrong.max(axis=(0, 2)), share, largest, bool(is_unresolved.any()))


def _compare_along(
    values_at: ValuesAtStep,
    derivative: np.ndarray,
    typical_size: np.ndarray,
    measured: _MeasuredValues,
    value_rounding: np.ndarray,
    rounding: np.ndarray,
) -> tuple[np.ndarray, ...]:
    """Compare the derivative along one direction with finite differences of `values_at`.

    Return four arrays of shape (points, outputs): whether the derivative is wrong, whether it is confirmed,
    whether it is unresolved, and the relative difference where it is wrong. `value_rounding` and `rounding`
    are the errors of the derivative from rounding the function value and from evaluating the derivative.
    """
    center, least_noise, noise = measured
    differences = _central_differences(values_at)
    difference, error = _select_difference(differences, np.maximum(noise, _smallest_jump(differences)))
    size = np.maximum(typical_size, np.abs(difference))
    allowed = _RELATIVE_TOLERANCE * size + value_rounding + 4 * rounding
    agrees = np.abs(derivative - difference) <= allowed + 4 * error
    is_right, agrees_once, is_refuted = _compare_steps(differences, derivative, allowed, least_noise)
    is_visible = 8 * value_rounding <= _CONFIRMING_ERROR * size * _STEPS
    changes = np.abs(np.diff(differences, axis=0)) > _CONFIRMING_ERROR * size
    jumps = np.any((is_visible[1:] & changes)[-3:], axis=0)  # the function is not smooth at short steps
    is_finite = np.isfinite(center)
    differs = is_finite & (is_refuted | ~(agrees | is_right))
    if differs.any():
        differs &= ~_is_between_one_sided_slopes(values_at, center, least_noise, derivative, allowed)
    unresolved = differs & (error > np.abs(difference))
    if unresolved.any():
        unresolved &= _oscillates(values_at, center, least_noise, noise)
    unresolved |= differs & (agrees | agrees_once | jumps)  # short and long steps contradict each other
    is_wrong = differs & ~unresolved
    is_confirmed = (4 * error <= _CONFIRMING_ERROR * size) & ~unresolved & is_finite
    is_counted = is_wrong & (size > 0)
    relative = np.divide(np.abs(derivative - difference), size, out=np.zeros_like(size), where=is_counted)
    return is_wrong, is_confirmed, unresolved, relative


def screen(
    evaluation: Evaluation,
    arrays: InputArrays,
    roundoff: float,
    generator: np.random.Generator,
    groups: Groups,
) -> np.ndarray:
    """Estimate the relative error of the derivative for each group of inputs by finite differences.

    The result has the shape (groups, points). `groups` is the result of `group_inputs`. For each output
    and step, the difference between the derivative and a finite difference, minus the effect of rounding, is
    divided by the sum of both magnitudes. The smallest ratio over the steps is the error of an output, and
    the largest error over the outputs is returned. NaN and infinity are ignored. At a kink, a derivative
    between the one-sided slopes is correct.
    """
    center, largest = values(evaluation, arrays), []
    noise = _ROUNDINGS_OF_VALUE * roundoff * np.abs(center)
    for direction in split_direction(random_direction(evaluation, arrays, generator), groups):
        derivative = directional_derivative(evaluation, arrays, direction)
        least, distance = np.full(derivative.shape, np.inf), np.full(derivative.shape, np.inf)
        for step in _SCREENING_STEPS:
            near, far = (_values_at(evaluation, arrays, direction, k) for k in (step, -step))
            with np.errstate(all="ignore"):
                slopes, longer = np.sort([(near - center) / step, (center - far) / step], axis=0), distance
                distance = slopes[1] - slopes[0]
                is_kink = distance > longer / 2  # the one-sided slopes do not approach each other
                difference = np.where(is_kink, np.clip(derivative, *slopes), np.mean(slopes, axis=0))
                excess = np.abs(difference - derivative) - noise / step
                relative = excess / (np.abs(difference) + np.abs(derivative))
            least = np.fmin(least, np.nan_to_num(relative, nan=0.0, posinf=0.0))
        largest.append(np.max(least, axis=1, initial=0.0))
    return np.array(largest)


def random_direction(
    evaluation: Evaluation, arrays: InputArrays, generator: np.random.Generator
) -> dict[str, np.ndarray]:
    """Return a dict from the name of each differentiated input to a random direction of the same shape.

    The elements for an input x are ±u max(|x|, 0.001 r), where u is uniform in [0.5, 1) and r is the root
    mean square of x. If r is 0, the elements are ±u.
    """
    direction = {}
    for name in evaluation.names:
        x = np.asarray(arrays[name], np.float64)
        least = _LEAST_RELATIVE_SIZE * float(np.sqrt(np.mean(x**2))) if x.size else 0.0
        size = np.where(np.abs(x) > least, np.abs(x), least or 1.0)
        direction[name] = size * generator.choice([-1.0, 1.0], x.shape) * generator.uniform(0.5, 1.0, x.shape)
    return direction


def group_inputs(evaluation: Evaluation, arrays: InputArrays, generator: np.random.Generator) -> Groups:
    """Return the groups of inputs that are moved together, usually one group for each input.

    In a common group, a large derivative with respect to one input could hide an error in a small derivative.
    If there are more than `_MAX_GROUPS` inputs, inputs with derivatives of similar size share a group.
    """
    names = [[name] for name in evaluation.names]
    if len(names) <= _MAX_GROUPS:
        return names
    singles = split_direction(random_direction(evaluation, arrays, generator), names)
    sizes = np.array(
        [np.linalg.norm(directional_derivative(evaluation, arrays, direction)) for direction in singles]
    )
    order = np.argsort(sizes)
    ratios = np.diff(np.log(np.maximum(sizes[order], 1e-300)))
    groups = np.split(np.array(evaluation.names)[order], np.sort(np.argsort(ratios)[1 - _MAX_GROUPS :]) + 1)
    return [group.tolist() for group in groups]


def split_direction(direction: dict[str, np.ndarray], groups: Groups) -> list[dict[str, np.ndarray]]:
    """Return one direction for each group of inputs, with zeros for all inputs that are not in the group."""
    zeros = {name: np.zeros_like(x) for name, x in direction.items()}
    return [zeros | {name: direction[name] for name in group} for group in groups]


def _measure_values(
    evaluation: Evaluation, arrays: InputArrays, roundoff: float, generator: np.random.Generator
) -> _MeasuredValues:
    """Return the values of a function and estimates of their rounding errors.

    Steps that do not change the value are ignored, because a function that rounds an intermediate result
    changes in jumps.
    """
    center, change = measure_with_noise(values, evaluation, arrays, 2 * roundoff, generator, _EVALUATIONS)
    least = roundoff * np.abs(center) + change
    direction = random_direction(evaluation, arrays, generator)
    largest, used_steps = np.zeros(center.shape), np.zeros(center.shape, int)
    for step in _NOISE_STEPS:
        moved = [_values_at(evaluation, arrays, direction, k * step) for k in (-2, -1, 1, 2)]
        difference = 6 * center - 4 * (moved[1] + moved[2]) + moved[0] + moved[3]
        is_used = used_steps < _USED_NOISE_STEPS
        largest = np.where(is_used, np.maximum(largest, np.nan_to_num(np.abs(difference)) / 2), largest)
        used_steps += np.any(np.array(moved) != center, axis=0)
    return _MeasuredValues(center, least, np.maximum(least, largest))


def _values_at(
    evaluation: Evaluation, arrays: InputArrays, direction: InputArrays, step: float
) -> np.ndarray:
    moved = {name: arrays[name] + step * direction[name] for name in evaluation.names}
    return values(evaluation, {**arrays, **moved})


def _central_differences(values_at: ValuesAtStep) -> np.ndarray:
    differences = []
    for step in _STEPS.flat:
        near, far = (values_at(k) - values_at(-k) for k in (step, 2 * step))
        differences.append((8 * near - far) / (12 * step))
    return np.nan_to_num(differences, nan=np.inf, posinf=np.inf, neginf=np.inf)


def _select_difference(differences: np.ndarray, noise: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the most accurate finite difference and its error as two arrays of shape (points, outputs).

    For each output, the step with the smallest estimated error is selected. The error is the effect of the
    rounding error `noise` of the values, plus the change of the difference from this step to the next shorter
    step. A larger change to any other shorter step, minus the effect of rounding, is used instead, because
    two steps can agree by chance near kinks. `differences` has the shape (steps, points, outputs).
    """
    best, least_error = np.zeros_like(noise), np.full_like(noise, np.inf)
    rounding = 1.5 * noise / _STEPS
    for k, difference in enumerate(differences[:-1]):
        with np.errstate(invalid="ignore"):
            change = np.nan_to_num(np.abs(difference - differences[k + 1]), nan=np.inf)
            unexplained = np.abs(difference - differences[k + 2 :]) - rounding[k + 2 :]
        unexplained[~np.isfinite(unexplained)] = 0.0
        error = np.maximum(change, unexplained.max(axis=0, initial=0.0)) + rounding[k]
        best, least_error = np.where(error < least_error, difference, best), np.minimum(error, least_error)
    return best, least_error


def _smallest_jump(differences: np.ndarray) -> np.ndarray:
    """Return the smallest nonzero change of each output among all steps, or 0 if there is none.

    The result has the shape (points, outputs). If the function rounds an intermediate result, its values
    change in jumps, and the smallest change estimates the height of a jump.
    """
    changes = np.abs(differences) * _STEPS
    least = np.min(np.where(changes > 0, changes, np.inf), axis=0)
    return np.where(np.isfinite(least), least, 0.0)


def _compare_steps(
    differences: np.ndarray, derivative: np.ndarray, allowed: np.ndarray, noise: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return whether a derivative is right at two consecutive steps, right at one or more, and refuted.

    A derivative is right at a step if it agrees with the difference within `allowed`. Steps with a larger
    rounding error are ignored. The test at two steps accepts correct derivatives near kinks, where
    `_select_difference` fails because fourth differences overestimate the rounding error of short steps. A
    derivative is refuted if it differs from the shortest two consecutive steps that agree with each other.
    """
    is_exact, distance = 1.5 * noise / _STEPS <= allowed, np.abs(differences - derivative)
    agrees, is_far = is_exact & (distance <= allowed), distance > 4 * allowed
    is_equal = is_exact[1:] & is_exact[:-1] & (np.abs(np.diff(differences, axis=0)) <= allowed)
    shortest = len(is_equal) - 1 - np.argmax(is_equal[::-1], axis=0)[None]
    refutes = np.take_along_axis(is_equal & is_far[1:] & is_far[:-1], shortest, axis=0)[0]
    return np.any(agrees[1:] & agrees[:-1], axis=0), agrees.any(axis=0), refutes


def _oscillates(
    values_at: ValuesAtStep, center: np.ndarray, least_noise: np.ndarray, noise: np.ndarray
) -> np.ndarray:
    """Return whether short steps change each output, beyond rounding, almost as much as the longest step.

    An oscillation that is shorter than all steps appears as noise, so that differences prove nothing.
    """
    change = np.max([np.abs(values_at(sign * _STEPS.flat[0]) - center) for sign in (-1, 1)], axis=0)
    return (noise > _ROUNDINGS_OF_VALUE * least_noise) & (16 * noise > change)


def _is_between_one_sided_slopes(
    values_at: ValuesAtStep,
    center: np.ndarray,
    noise: np.ndarray,
    derivative: np.ndarray,
    allowed: np.ndarray,
) -> np.ndarray:
    """Return whether each output has a kink, like `abs` at 0, and a derivative between the one-sided slopes.

    `center` contains the values without a step, and `noise` the rounding errors of these values.
    """
    is_between = np.zeros(derivative.shape, bool)
    for step in _KINK_STEPS:
        slopes = []
        for side in (step, -step):
            near, far = (values_at(k) for k in (side, 2 * side))
            slopes.append((4 * near - far - 3 * center) / (2 * side))
        error = allowed + 8 * noise / step
        low, high = np.minimum(*slopes) - error, np.maximum(*slopes) + error
        is_kink = np.abs(slopes[0] - slopes[1]) > 4 * error
        is_between |= is_kink & (derivative >= low) & (derivative <= high)
    return is_between
