"""Verify a derivative by fourth-order finite differences of the function values along random directions.

A wrong derivative rule of the function (`jax.custom_jvp`, `jax.custom_vjp`, `stop_gradient`) yields the same
wrong derivative in every dtype and AD mode. It can be detected only from the values of the function.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from scaling.options.reference.evaluation import (
    Arrays,
    Evaluation,
    directional_derivative,
    values,
    with_rounding,
)

_DIRECTIONS = 4
_EVALUATIONS = 3  # evaluations with random rounding errors; a single one may change nothing by chance
_STEPS = tuple(2.0**-k for k in (4, 7, 10, 13, 16, 20, 24, 28, 32))  # relative to the size of an input
_AGREEING_STEPS = 2  # consecutive steps whose differences confirm a derivative, see _agrees_at_several_steps
_KINK_STEPS = tuple(2.0**-k for k in (10, 16, 22, 28))
_NOISE_STEPS = tuple(2.0**-k for k in range(26, 4, -2))  # in increasing order
_NONZERO_NOISE_STEPS = 3  # the number of noise steps with a nonzero difference that are used
_RELATIVE_TOLERANCE = 1e-5  # of the size of a derivative, in addition to the estimated error of a difference
_CONFIRMING_ERROR = 0.05  # of the size of a derivative; a difference with a larger error confirms nothing
_ROUNDINGS_OF_VALUE = 64
SUSPICIOUS = 1e-5  # a larger result of `screen` is examined by `confirm`
_SCREENING_STEPS = (2.0**-9, 2.0**-13, 2.0**-17)
_LEAST_RELATIVE_SIZE = 1e-3  # of an element, relative to the root mean square of its input


@dataclass(frozen=True)
class Confirmation:
    """The result of comparing a derivative with finite differences.

    The size of the derivative of an output is its root mean square over the random directions, or the
    magnitude of the finite difference if that is larger.
    """

    # A boolean array of shape (points,): whether the derivative of any output differs from the finite
    # difference by more than rounding and truncation errors explain.
    is_wrong: np.ndarray
    # Among the outputs with a nonzero derivative, the fraction for which a finite difference has an error of
    # at most 5 % of the size of the derivative.
    confirmed_share: float
    # The largest difference of a wrong output, divided by the size of the derivative. It is 0 if no output is
    # wrong.
    largest_difference: float


def confirm(
    evaluation: Evaluation, arrays: Arrays, roundoff: float, generator: np.random.Generator
) -> Confirmation:
    """Compare derivatives of a function along random directions with finite differences at some points.

    Args:
        evaluation: the function and how to differentiate it.
        arrays: the inputs at the points.
        roundoff: the unit roundoff of the narrowest dtype inside the function.
        generator: generates the random directions, and the perturbations of the inputs.
    """
    directions = [random_direction(evaluation, arrays, generator) for _ in range(_DIRECTIONS)]
    derivatives = _derivatives(evaluation, arrays, directions)
    norm = np.sqrt(np.mean(derivatives**2, axis=0))
    perturbed = [
        _derivatives(*pair, directions)
        for pair in with_rounding(evaluation, arrays, 4 * roundoff, generator, _EVALUATIONS)
    ]
    rounding = np.max(np.abs(np.array(perturbed) - derivatives), axis=(0, 1))
    is_nonzero = norm > 8 * rounding
    least_noise, noise = _value_noise(evaluation, arrays, roundoff, generator)
    # A derivative may contain the value of the function, for example that of exp.
    value_rounding = _ROUNDINGS_OF_VALUE * roundoff * np.abs(values(evaluation, arrays))
    is_wrong, is_confirmed, largest = np.zeros(norm.shape, bool), np.zeros(norm.shape, bool), 0.0
    for direction, exact in zip(directions, derivatives, strict=True):
        differences = _central_differences(evaluation, arrays, direction)
        difference, error = _select_difference(differences, np.maximum(noise, _least_jump(differences)))
        size = np.maximum(norm, np.abs(difference))
        allowed = _RELATIVE_TOLERANCE * size + value_rounding + 4 * rounding
        differs = ~(np.abs(exact - difference) <= allowed + 4 * error)
        differs &= ~_agrees_at_several_steps(differences, exact, allowed, least_noise)
        if differs.any():
            differs &= ~_is_between_one_sided(evaluation, arrays, direction, least_noise, exact, allowed)
        is_wrong |= differs
        is_confirmed |= 4 * error <= _CONFIRMING_ERROR * size
        is_counted = differs & (size > 0)
        relative = np.divide(np.abs(exact - difference), size, out=np.zeros_like(size), where=is_counted)
        largest = max(largest, float(np.max(relative)))
    share = float(np.mean(is_confirmed[is_nonzero])) if is_nonzero.any() else 1.0
    return Confirmation(np.any(is_wrong, axis=1), share, largest)


def screen(
    evaluation: Evaluation, arrays: Arrays, roundoff: float, generator: np.random.Generator
) -> np.ndarray:
    """Return how much the derivative at each point differs from finite differences, of shape (points,).

    Both are computed along one random direction. The part of their difference that rounding does not explain
    is divided by the sum of their magnitudes. The ratio of an output is the smallest over all steps, and the
    result is the largest ratio of an output. An output that is not finite does not count.
    """
    direction = random_direction(evaluation, arrays, generator)
    exact = directional_derivative(evaluation, arrays, direction)
    noise = _ROUNDINGS_OF_VALUE * roundoff * np.abs(values(evaluation, arrays))
    least = np.full(exact.shape, np.inf)
    for step in _SCREENING_STEPS:
        near, far = (_values_at(evaluation, arrays, direction, k) for k in (step, -step))
        with np.errstate(all="ignore"):
            difference = (near - far) / (2 * step)
            excess = np.abs(difference - exact) - noise / step
            relative = excess / (np.abs(difference) + np.abs(exact))
        least = np.fmin(least, np.nan_to_num(relative, nan=0.0, posinf=0.0))
    return np.max(least, axis=1, initial=0.0)


def random_direction(
    evaluation: Evaluation, arrays: Arrays, generator: np.random.Generator
) -> dict[str, np.ndarray]:
    """Return a random direction: a dict from the name of each differentiated input to an array of its shape.

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


def _derivatives(evaluation: Evaluation, arrays: Arrays, directions: Sequence[Arrays]) -> np.ndarray:
    return np.array([directional_derivative(evaluation, arrays, direction) for direction in directions])


def _value_noise(
    evaluation: Evaluation, arrays: Arrays, roundoff: float, generator: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Return two estimates of the rounding error of the values, two arrays of shape (points, outputs).

    The first is the unit roundoff of the values plus their largest change by random rounding errors. The
    second is the larger of the first and the scaled fourth differences at short steps. At short steps, fourth
    differences consist of rounding errors only.
    """
    center = values(evaluation, arrays)
    perturbed = [
        values(*pair) for pair in with_rounding(evaluation, arrays, 2 * roundoff, generator, _EVALUATIONS)
    ]
    least = roundoff * np.abs(center) + np.max(np.abs(np.array(perturbed) - center), axis=0)
    direction = random_direction(evaluation, arrays, generator)
    largest, nonzero_steps = np.zeros(center.shape), np.zeros(center.shape, int)
    for step in _NOISE_STEPS:
        near, far = (
            _values_at(evaluation, arrays, direction, k) + _values_at(evaluation, arrays, direction, -k)
            for k in (step, 2 * step)
        )
        difference = np.nan_to_num(np.abs(6 * center - 4 * near + far)) / 2
        is_used = nonzero_steps < _NONZERO_NOISE_STEPS
        largest = np.where(is_used, np.maximum(largest, difference), largest)
        nonzero_steps += difference > 0
    return least, np.maximum(least, largest)


def _values_at(evaluation: Evaluation, arrays: Arrays, direction: Arrays, step: float) -> np.ndarray:
    moved = {name: arrays[name] + step * direction[name] for name in evaluation.names}
    return values(evaluation, {**arrays, **moved})


def _central_differences(evaluation: Evaluation, arrays: Arrays, direction: Arrays) -> list[np.ndarray]:
    differences: list[np.ndarray] = []
    for step in _STEPS:
        near, far = (
            _values_at(evaluation, arrays, direction, k) - _values_at(evaluation, arrays, direction, -k)
            for k in (step, 2 * step)
        )
        difference = (8 * near - far) / (12 * step)
        differences.append(np.nan_to_num(difference, nan=np.inf, posinf=np.inf, neginf=np.inf))
    return differences


def _select_difference(differences: Sequence[np.ndarray], noise: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the most accurate finite difference and its error, two arrays of shape (points, outputs).

    For each output, the step with the smallest estimated error is selected. The estimate is the change of the
    difference from this step to the next shorter step, plus the effect of the rounding error `noise`.
    """
    best, least_error = np.zeros_like(noise), np.full_like(noise, np.inf)
    for step, difference, shorter in zip(_STEPS[:-1], differences[:-1], differences[1:], strict=True):
        with np.errstate(invalid="ignore"):
            error = np.nan_to_num(np.abs(difference - shorter), nan=np.inf) + 1.5 * noise / step
        best, least_error = np.where(error < least_error, difference, best), np.minimum(error, least_error)
    return best, least_error


def _least_jump(differences: Sequence[np.ndarray]) -> np.ndarray:
    """Return the smallest nonzero change of each output over all steps, of shape (points, outputs).

    The change is 0 if an output changes at no step. If the function rounds an intermediate result, its values
    change in jumps, and the smallest change estimates the height of a jump.
    """
    changes = np.abs(differences) * np.reshape(_STEPS, (-1, 1, 1))
    least = np.min(np.where(changes > 0, changes, np.inf), axis=0)
    return np.where(np.isfinite(least), least, 0.0)


def _agrees_at_several_steps(
    differences: Sequence[np.ndarray], exact: np.ndarray, allowed: np.ndarray, noise: np.ndarray
) -> np.ndarray:
    """Return whether each derivative agrees with the differences of two consecutive steps.

    A step whose rounding error exceeds the allowed error does not count. This criterion accepts correct
    derivatives near kinks, where `_select_difference` fails. Near a kink, the fourth differences overestimate
    the rounding error of short steps, and two long steps can agree by chance.
    """
    agreeing, most = np.zeros(exact.shape, int), np.zeros(exact.shape, int)
    for step, difference in zip(_STEPS, differences, strict=True):
        agrees = (np.abs(difference - exact) <= allowed) & (1.5 * noise / step <= allowed)
        agreeing = np.where(agrees, agreeing + 1, 0)
        most = np.maximum(most, agreeing)
    return most >= _AGREEING_STEPS


def _is_between_one_sided(
    evaluation: Evaluation,
    arrays: Arrays,
    direction: Arrays,
    noise: np.ndarray,
    exact: np.ndarray,
    allowed: np.ndarray,
) -> np.ndarray:
    """Return whether each output has a kink, like `abs` at 0, and a derivative between the two slopes."""
    center, is_between = values(evaluation, arrays), np.zeros(exact.shape, bool)
    for step in _KINK_STEPS:
        slopes = []
        for side in (step, -step):
            near, far = (_values_at(evaluation, arrays, direction, k) for k in (side, 2 * side))
            slopes.append((4 * near - far - 3 * center) / (2 * side))
        error = allowed + 8 * noise / step
        low, high = np.minimum(*slopes) - error, np.maximum(*slopes) + error
        is_kink = np.abs(slopes[0] - slopes[1]) > 4 * error
        is_between |= is_kink & (exact >= low) & (exact <= high)
    return is_between
