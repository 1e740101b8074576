"""Bound the error of a finite difference: how far the step of mode=finite_difference may move a derivative.

Looks at values in float64 only. Does not know results.
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

from scaling.core import inputs
from scaling.core.case import Case
from scaling.core.modes import STEPS, ravel
from scaling.core.question import closed_form
from scaling.core.shape import DerivativeShape
from scaling.core.tolerances import ROUNDOFF
from scaling.core.workload import InputSpec, Workload

_COORDINATES = (
    64  # at most, when the curvature along the inputs is estimated; fewer of a point with very many numbers
)
_LOOKED_AT = 2**24  # numbers in all of them
Exact = Mapping[str, np.ndarray]


def values(case: Case, workload: Workload, named: Exact) -> np.ndarray:
    """Return the function at a block of points in float64: (points, outputs). The workload must have a
    reference."""
    reference = closed_form(case, workload)
    assert reference is not None
    return reference(named).value


def gradient(workload: Workload) -> Callable:
    """Return the function whose derivative is the Hessian: (inputs,)."""
    return _gradient(workload.function, workload.names)


@functools.lru_cache(maxsize=8)
def _gradient(function: Callable, names: tuple[str, ...]) -> Callable:
    def gradient(**named: Any) -> Any:
        f = lambda *z: jax.numpy.sum(function(**{**named, **dict(zip(names, z, strict=True))}))  # noqa: E731
        return ravel(jax.grad(f, argnums=tuple(range(len(names))))(*[named[name] for name in names]))

    return gradient


def together(workload: Workload, sizes: DerivativeShape, outputs: np.ndarray) -> np.ndarray:
    """Return the size of all outputs where they are summed, otherwise that of the largest: (points,)."""
    added = workload.reduction.sums_outputs or sizes.summed
    return np.abs(outputs).sum(axis=1) if added else np.abs(outputs).max(axis=1)


def moved(workload: Workload, named: Exact, direction: Exact, by: float) -> Exact:
    """Return the inputs with those to differentiate by moved along a direction."""
    return {**named, **{name: named[name] + by * direction[name] for name in workload.names}}


def step_bound(
    case: Case, workload: Workload, sizes: DerivativeShape, start: int, stop: int, terms: int
) -> np.ndarray:
    """Return how far a forward difference with the mode's step may lie from the derivative, by input:
    (points, inputs).

    Truncation: half the step times the curvature along the input, the larger of both ends. Rounding: of the
    two values, and of the sum x + h, over the step. Of a sum over outputs or points it is the bound of all
    that is added up; of J x, which is one difference along x, it is (points, 1).
    """
    named, step = inputs.exact_inputs(case, workload, start, stop), STEPS[case.dtype]
    added = _values_added(case, workload, sizes, named)
    places = [
        (name, i) for name in workload.names for i in range(int(np.prod(draw_of(workload, name).shape)))
    ]
    some = min(_COORDINATES, max(8, _LOOKED_AT // ((stop - start) * sizes.values)))
    looked_at = np.unique(np.linspace(0, len(places) - 1, some).astype(int))
    truncation, moves = np.zeros((2, stop - start, len(looked_at)))
    for k, place in enumerate(looked_at):
        x, at = _number(case, workload, named, *places[place])
        slope, curvature = _bend(workload, sizes, x, at, step)
        truncation[:, k] = step / 2 * curvature
        moves[:, k] = (np.abs(x) + step) * slope
    added = np.maximum(added, moves.max(axis=1))
    every = len(looked_at) == len(places)
    if workload.reduction.along_point:
        at = lambda by: values(case, workload, moved(workload, named, named, by))  # noqa: E731
        _, curvature = _bend(workload, sizes, np.ones(()), at, step)
        all_moves = moves.sum(axis=1) * len(places) / len(looked_at)
        found = step / 2 * curvature + ROUNDOFF[case.dtype] * (4 * np.sqrt(terms) * added + all_moves) / step
        return (1.5 if every else 2.0) * found[:, None]
    found = truncation + ROUNDOFF[case.dtype] * (4 * np.sqrt(terms) * added[:, None] + moves) / step
    if every:
        return 1.5 * found
    return np.broadcast_to(2 * found.max(axis=1, keepdims=True), (stop - start, len(places)))


def _values_added(case: Case, workload: Workload, sizes: DerivativeShape, named: Exact) -> np.ndarray:
    """Return the size of what is added up to compute a value that is differenced: (points,)."""
    added = together(workload, sizes, values(case, workload, named))
    if sizes.summed and not workload.reduction.sums_points:  # of those, the bounds of the points are added up
        everywhere = values(case, workload, inputs.exact_inputs(case, workload, 0, case.points))
        return np.full(len(added), np.abs(everywhere).sum())
    reference = closed_form(case, workload)
    if reference is None or (terms_size := reference(named).value_terms) is None:
        return added
    return np.maximum(added, terms_size * (sizes.values if workload.reduction.sums_outputs else 1))


def _number(case: Case, workload: Workload, named: Exact, name: str, i: int) -> tuple[np.ndarray, Callable]:
    """Return the i-th number of an input, (points,) or () where it is shared, and the function that gives the
    moved values.
    """
    lead = (-1,) if name in workload.shared else (len(named[name]), -1)

    def at(by: Any) -> np.ndarray:
        there = named[name].reshape(lead).copy()
        there[..., i] += by
        return values(case, workload, {**named, name: there.reshape(named[name].shape)})

    return named[name].reshape(lead)[..., i], at


def _bend(
    workload: Workload, sizes: DerivativeShape, x: np.ndarray, at: Callable, step: float
) -> tuple[np.ndarray, ...]:
    """Return the larger slope and curvature of values at both ends of a step from x: two (points,)."""
    slope, curvature = np.zeros(()), np.zeros(())
    for end in (0.0, step):
        reach = 1e-3 * np.where(x + end == 0, 1.0, np.abs(x + end))
        behind, here, ahead = at(end - reach), at(end), at(end + reach)
        slope = np.maximum(slope, together(workload, sizes, ahead - behind) / (2 * reach))
        curvature = np.maximum(curvature, together(workload, sizes, ahead - 2 * here + behind) / reach**2)
    return np.nan_to_num(slope, nan=np.inf), np.nan_to_num(curvature, nan=np.inf)


def draw_of(workload: Workload, name: str) -> InputSpec:
    """Return the specification of an input."""
    return workload.points[name] if name in workload.points else workload.shared[name]
