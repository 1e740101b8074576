"""Bound the error of a finite difference: how far the step of mode=finite_difference may move a derivative.

Looks at values in float64 only. Does not know results.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from scaling.core import inputs
from scaling.core.modes import STEPS, ravel
from scaling.core.reference import Arrays, ReferenceSpec, closed_form, reference_jacobians
from scaling.core.tolerances import ROUNDOFF, Jacobians
from scaling.core.workload import Reference, Workload

_INPUTS = 64  # at most, along which the curvature is estimated; fewer of a point with very many numbers
_EVALUATED = 2**24  # numbers in all of them

Move = Callable[[Any], np.ndarray]  # how far -> the values there


def gradient(workload: Workload) -> Callable[..., Any]:
    """Return the function whose derivative is the Hessian: (inputs,)."""
    return _gradient(workload.function, workload.names)


@functools.lru_cache(maxsize=8)
def _gradient(function: Callable[..., Any], names: tuple[str, ...]) -> Callable[..., Any]:
    def gradient(**named: Any) -> Any:
        f = lambda *z: jax.numpy.sum(function(**{**named, **dict(zip(names, z, strict=True))}))  # noqa: E731
        return ravel(jax.grad(f, argnums=tuple(range(len(names))))(*[named[name] for name in names]))

    return gradient


def result_bounds(spec: ReferenceSpec, start: int, stop: int) -> np.ndarray:
    """Return how far the finite step may move the result of a block of points: (points,)."""
    bounds = input_bounds(spec, start, stop, spec.rounding.terms)
    J = Jacobians(np.zeros((stop - start, 1, 1)))
    if spec.reduction.degree > 1:  # otherwise the bound does not depend on the Jacobian
        J, _ = reference_jacobians(spec, start, stop)
    return np.asarray(spec.reduction.step_bound(J, bounds))


def input_bounds(spec: ReferenceSpec, start: int, stop: int, terms: int) -> np.ndarray:
    """Return how far a forward difference may lie from the derivative, by input: (points, inputs).

    Truncation: half the step times the curvature along the input, the larger of both ends. Rounding: of the
    two values, and of the sum x + h, over the step. Of a sum over outputs or points it is the bound of all
    that is added up; of J x, which is one difference along x, it is (points, 1).
    """
    workload, points = spec.workload, stop - start
    named, step = inputs.exact_inputs(spec.case, workload, start, stop), STEPS[spec.case.dtype]
    roundoff, rounded = ROUNDOFF[spec.case.dtype], _values_added(spec, named)
    counts = {name: named[name].size // (points if name in workload.points else 1) for name in workload.names}
    numbers = [(name, i) for name, count in counts.items() for i in range(count)]
    some = min(_INPUTS, max(8, _EVALUATED // (points * spec.sizes.values)))
    chosen = np.unique(np.linspace(0, len(numbers) - 1, some).astype(int))
    truncation, moves = np.zeros((2, points, len(chosen)))
    for k, number in enumerate(chosen):
        x, move = _move_of_number(spec, named, *numbers[number])
        slope, curvature = _bend(spec, x, move, step)
        truncation[:, k] = step / 2 * curvature
        moves[:, k] = (np.abs(x) + step) * slope
    rounded = 4 * np.sqrt(terms) * np.maximum(rounded, moves.max(axis=1))
    safety = 1.5 if len(chosen) == len(numbers) else 2.0
    if workload.reduction.along_point:

        def move(by: Any) -> np.ndarray:
            along = {name: named[name] + by * named[name] for name in workload.names}
            return _evaluate(spec, {**named, **along}).value

        _, curvature = _bend(spec, np.ones(()), move, step)
        all_moves = moves.sum(axis=1) * len(numbers) / len(chosen)
        return safety * (step / 2 * curvature + roundoff * (rounded + all_moves) / step)[:, None]
    bounds = safety * (truncation + roundoff * (rounded[:, None] + moves) / step)
    if len(chosen) == len(numbers):
        return bounds
    return np.broadcast_to(bounds.max(axis=1, keepdims=True), (points, len(numbers)))


def _evaluate(spec: ReferenceSpec, named: Arrays) -> Reference:
    """Evaluate the reference at a block of points."""
    form = closed_form(spec.case, spec.workload)
    assert form is not None
    return form(named)


def _values_added(spec: ReferenceSpec, named: Arrays) -> np.ndarray:
    """Return the size of what is added up to compute a value that is differenced: (points,)."""
    found = _evaluate(spec, named)
    added, reduction = _join(spec, found.value), spec.workload.reduction
    if spec.sizes.summed and not reduction.sums_points:  # of those, the bounds of the points are added up
        every = _evaluate(spec, inputs.exact_inputs(spec.case, spec.workload, 0, spec.case.points))
        return np.full(len(added), np.abs(every.value).sum())
    if found.value_terms is None:
        return added
    return np.maximum(added, found.value_terms * (spec.sizes.values if reduction.sums_outputs else 1))


def _join(spec: ReferenceSpec, outputs: np.ndarray) -> np.ndarray:
    """Return the size of all outputs where they are summed, otherwise that of the largest: (points,)."""
    added = spec.workload.reduction.sums_outputs or spec.sizes.summed
    return np.abs(outputs).sum(axis=1) if added else np.abs(outputs).max(axis=1)


def _move_of_number(spec: ReferenceSpec, named: Arrays, name: str, i: int) -> tuple[np.ndarray, Move]:
    """Return a number of an input, (points,) or () where it is shared, and the values where it is moved."""
    lead = (-1,) if name in spec.workload.shared else (len(named[name]), -1)

    def move(by: Any) -> np.ndarray:
        there = named[name].reshape(lead).copy()
        there[..., i] += by
        return _evaluate(spec, {**named, name: there.reshape(named[name].shape)}).value

    return named[name].reshape(lead)[..., i], move


def _bend(spec: ReferenceSpec, x: np.ndarray, move: Move, step: float) -> tuple[np.ndarray, np.ndarray]:
    """Return the larger slope and curvature of values at both ends of a step from x: two (points,)."""
    slope = curvature = np.zeros(())
    for end in (0.0, step):
        reach = 1e-3 * np.where(x + end == 0, 1.0, np.abs(x + end))
        behind, here, ahead = move(end - reach), move(end), move(end + reach)
        slope = np.maximum(slope, _join(spec, ahead - behind) / (2 * reach))
        curvature = np.maximum(curvature, _join(spec, ahead - 2 * here + behind) / reach**2)
    return np.nan_to_num(slope, nan=np.inf), np.nan_to_num(curvature, nan=np.inf)
