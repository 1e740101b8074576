"""Confirm the derivative of a function by finite differences of its values, along random directions.

A rule for a derivative that is wrong (`jax.custom_jvp`, `jax.custom_vjp`, `stop_gradient`) is wrong in every
dtype and every mode; only the values of the function can tell. Knows functions; does not know cases or
results.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from scaling.options.reference import float64
from scaling.options.reference.float64 import Evaluation, Named

_DIRECTIONS = 4
_NUDGES = 3  # along each of them: one alone may by chance move the rounding of a derivative by nothing
_STEPS = tuple(2.0**-k for k in (4, 7, 10, 13, 16, 20, 24, 28, 32))  # times the size of an input
_KINK_STEPS = tuple(2.0**-k for k in (10, 16, 22, 28))
_MOVED_STEPS = 3  # at which the values move at all
_NOISE_STEPS = tuple(2.0**-k for k in range(26, 4, -2))  # from the shortest on
_RELATIVE = 1e-5  # of the 2-norm of a row: what a difference may be off by on top of its own estimate
SURE = 0.05  # of the 2-norm of a row: the largest error with which a difference confirms anything
_ROUNDINGS_OF_VALUE = 64
_ZERO = 1e-3  # the least size of an input, relative to what is typical of all its numbers


@dataclass(frozen=True)
class Confirmation:
    """What finite differences show of a derivative.

    wrong: (points,), whether an output of a point differs by more than the differences' own error. sure: the
    share of outputs, of those that change at all, that differences of at most 5 % error confirm. off: the
    largest difference over the 2-norm of the row.
    """

    wrong: np.ndarray
    sure: float
    off: float


def confirm(of: Evaluation, named: Named, roundoff: float, generator: np.random.Generator) -> Confirmation:
    """Compare the pushforward of a function with finite differences at a block of points.

    roundoff: the unit roundoff of the values; that of the narrowest dtype inside the function.
    """
    directions = [random_direction(of, named, generator) for _ in range(_DIRECTIONS)]
    pushed = _push(of, named, directions)
    norm = np.sqrt(np.mean(pushed**2, axis=0))
    nudged = [_push(of, nudge(of, named, 4 * roundoff, generator), directions) for _ in range(_NUDGES)]
    changes = norm > 8 * np.max(np.abs(np.array(nudged) - pushed), axis=(0, 1))  # more than rounding explains
    least, noise = _noise(of, named, roundoff, generator)
    of_value = _ROUNDINGS_OF_VALUE * roundoff * np.abs(float64.values(of, named))  # a derivative may hold it
    wrong, sure, off = np.zeros(norm.shape, bool), np.zeros(norm.shape, bool), 0.0
    for direction, exact in zip(directions, pushed, strict=True):
        found, error = _differences(of, named, direction, noise)
        size = np.maximum(norm, np.abs(found))
        allowed = _RELATIVE * size + of_value
        far = ~(np.abs(exact - found) <= allowed + 4 * error)
        if far.any():
            far &= ~_between_one_sided(of, named, direction, least, exact, allowed)
        wrong |= far
        sure |= 4 * error <= SURE * size
        relative = np.divide(np.abs(exact - found), size, out=np.zeros_like(size), where=far & (size > 0))
        off = max(off, float(np.max(relative)))
    share = float(np.mean(sure[changes])) if changes.any() else 1.0
    return Confirmation(np.any(wrong, axis=1), share, off)


def random_direction(of: Evaluation, named: Named, generator: np.random.Generator) -> dict[str, np.ndarray]:
    """Return a direction in which each input moves by half to all of its size, up or down.

    The size of a small number is a thousandth of what is typical of its input.
    """
    direction = {}
    for name in of.names:
        x = np.asarray(named[name], np.float64)
        typical = float(np.sqrt(np.mean(x**2))) if x.size else 0.0
        size = np.where(np.abs(x) > _ZERO * typical, np.abs(x), _ZERO * typical or 1.0)
        direction[name] = size * generator.choice([-1.0, 1.0], x.shape) * generator.uniform(0.5, 1.0, x.shape)
    return direction


def nudge(
    of: Evaluation, named: Named, relative: float, generator: np.random.Generator
) -> dict[str, np.ndarray]:
    """Return the inputs, every real number moved up or down by this part of itself."""
    nudged = dict(named)
    for name in named:
        if name not in of.integers:
            nudged[name] = named[name] * (1 + relative * generator.choice([-1.0, 1.0], named[name].shape))
    return nudged


def _push(of: Evaluation, named: Named, directions: Sequence[Named]) -> np.ndarray:
    """Return the derivatives along some directions: (directions, points, outputs)."""
    return np.array([float64.along(of, named, direction) for direction in directions])


def _noise(
    of: Evaluation, named: Named, roundoff: float, generator: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Return how far rounding moves the values, two (points, outputs), the second one no less than the first.

    By nudges of the inputs; and also by fourth differences at short steps, in which only rounding is left:
    where a function adds one to a small number, a nudge of that number moves nothing.
    """
    here = float64.values(of, named)
    nudged = [float64.values(of, nudge(of, named, 2 * roundoff, generator)) for _ in range(3)]
    least = roundoff * np.abs(here) + np.max(np.abs(np.array(nudged) - here), axis=0)
    direction = random_direction(of, named, generator)
    fourth, moved = np.zeros(here.shape), np.zeros(here.shape, int)
    for step in _NOISE_STEPS:
        near, far = (_at(of, named, direction, k) + _at(of, named, direction, -k) for k in (step, 2 * step))
        found = np.nan_to_num(np.abs(6 * here - 4 * near + far)) / 2
        fourth = np.where(moved < _MOVED_STEPS, np.maximum(fourth, found), fourth)
        moved += found > 0
    return least, np.maximum(least, fourth)


def _at(of: Evaluation, named: Named, direction: Named, by: float) -> np.ndarray:
    """Return the values at inputs that are moved along a direction."""
    return float64.values(of, {**named, **{name: named[name] + by * direction[name] for name in of.names}})


def _differences(
    of: Evaluation, named: Named, direction: Named, noise: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the derivative along a direction and its estimated error, two (points, outputs).

    Differences of fourth order, each at the step that suits it best. The error of a step is what the next one
    differs by, and what noise makes of it.
    """
    found = []
    for step in _STEPS:
        near, far = (_at(of, named, direction, k) - _at(of, named, direction, -k) for k in (step, 2 * step))
        found.append(np.nan_to_num((8 * near - far) / (12 * step), nan=np.inf, posinf=np.inf, neginf=np.inf))
    best, least = np.zeros_like(noise), np.full_like(noise, np.inf)
    for step, value, shorter in zip(_STEPS[:-1], found[:-1], found[1:], strict=True):
        with np.errstate(invalid="ignore"):
            error = np.nan_to_num(np.abs(value - shorter), nan=np.inf) + 1.5 * noise / step
        best, least = np.where(error < least, value, best), np.minimum(error, least)
    return best, least


def _between_one_sided(
    of: Evaluation, named: Named, direction: Named, noise: np.ndarray, exact: np.ndarray, allowed: np.ndarray
) -> np.ndarray:
    """Return where the function has a kink and the derivative lies between those of its two sides."""
    here, found = float64.values(of, named), np.zeros(exact.shape, bool)
    for step in _KINK_STEPS:
        slopes = []
        for side in (step, -step):
            near, far = _at(of, named, direction, side), _at(of, named, direction, 2 * side)
            slopes.append((4 * near - far - 3 * here) / (2 * side))
        error = allowed + 8 * noise / step
        low, high = np.minimum(*slopes) - error, np.maximum(*slopes) + error
        found |= (np.abs(slopes[0] - slopes[1]) > 4 * error) & (exact >= low) & (exact <= high)
    return found
