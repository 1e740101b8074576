"""Finite differences in float64, on the CPU: the truth about a function that has no closed form, and the bound on a step's error.

Looks at values only, so a wrong rule for a derivative cannot agree with it by being used on both sides.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

from scaling.case import SECOND, Case
from scaling.measuring import inputs
from scaling.measuring.derivative import Shape
from scaling.measuring.modes import STEPS, ravel
from scaling.workload import Draw, Workload

_PROBES = 2  # random directions a point; each sees every entry of the Jacobian
_STEPS = (1e-3, 1e-4, 1e-6)  # a kink spoils the long ones, rounding the short: a right derivative agrees with one of them
_COORDINATES = 64  # at most, when the curvature along the inputs is estimated
# Unit roundoff of one operation.
ROUNDOFF = {"float64": 2.0**-53, "float32": 2.0**-24, "bfloat16": 2.0**-8}

Exact = Mapping[str, np.ndarray]


def values(case: Case, workload: Workload, named: Exact) -> np.ndarray:
    """What is differentiated, at a block of points in float64, on the CPU: the function, or its gradient. (points, outputs)."""
    if workload.reference is not None:
        return workload.reference(named).value
    return _evaluate(
        workload, _gradient(workload.function, workload.names) if case.target in SECOND else workload.function, named
    )


def _evaluate(workload: Workload, function: Callable, named: Exact) -> np.ndarray:
    with jax.enable_x64(True), jax.default_device(jax.local_devices(backend="cpu")[0]), jax.default_matmul_precision("highest"):
        draws = {**workload.points, **workload.shared}
        typed = {name: jax.numpy.asarray(named[name], np.int32 if draw.integer else np.float64) for name, draw in draws.items()}
        rows = {name: typed.pop(name) for name in workload.points}
        out = _batched(function)(rows, typed)
        return np.asarray(out, np.float64).reshape(len(out), -1)


@functools.lru_cache(maxsize=8)
def _gradient(function: Callable, names: tuple[str, ...]) -> Callable:
    """The function that a Hessian is the derivative of: (inputs,)."""

    def gradient(**named: Any) -> Any:
        f = lambda *z: jax.numpy.sum(function(**{**named, **dict(zip(names, z, strict=True))}))  # noqa: E731
        return ravel(jax.grad(f, argnums=tuple(range(len(names))))(*[named[name] for name in names]))

    return gradient


@functools.lru_cache(maxsize=8)
def _batched(function: Callable) -> Callable:
    return jax.jit(lambda rows, rest: jax.vmap(lambda one: function(**one, **rest))(rows))


def _asked(case: Case, workload: Workload, named: Exact) -> np.ndarray:
    """The function whose derivative is asked for: after the sum over outputs, where there is one. (points, outputs)."""
    value = values(case, workload, named)
    return value.sum(axis=1, keepdims=True) if workload.reduce and case.mode != "value" else value


def _moved(workload: Workload, named: Exact, direction: Exact, by: float) -> Exact:
    return {**named, **{name: named[name] + by * direction[name] for name in workload.names}}


def _along(case: Case, workload: Workload, named: Exact, direction: Exact, step: float) -> np.ndarray:
    """The derivative along a direction, to fourth order in the step: (points, outputs)."""
    at = lambda by: _asked(case, workload, _moved(workload, named, direction, by * step))  # noqa: E731
    return (8 * (at(1) - at(-1)) - (at(2) - at(-2))) / (12 * step)


def _direction(workload: Workload, named: Exact, generator: np.random.Generator) -> Exact:
    """A random direction in which each input moves in proportion to its size, so that it stays in its domain."""
    direction = {}
    for name in workload.names:
        x = named[name]
        typical = float(np.sqrt(np.mean(x**2))) if x.size else 0.0
        own = np.abs(x) + (1e-3 * typical or 1.0)
        direction[name] = own * generator.choice([-1.0, 1.0], x.shape) * generator.uniform(0.5, 1.0, x.shape)
    return direction


def flat(workload: Workload, direction: Exact, points: int) -> np.ndarray:
    """The inputs to differentiate by, or a direction in them, as a matrix, a row a point: (points, inputs)."""
    parts = []
    for name in workload.names:
        x = direction[name]
        parts.append(x.reshape(points, -1) if name in workload.points else np.broadcast_to(x.reshape(1, -1), (points, x.size)))
    return np.concatenate(parts, axis=1)


def compare(
    case: Case, workload: Workload, sizes: Shape, got: np.ndarray, start: int, stop: int, terms: int
) -> tuple[np.ndarray, np.ndarray]:
    """The error of each point, and what the differences' own rounding allows on top of the table: two (points,)."""
    named = inputs.exact(case, workload, start, stop)
    generator = np.random.default_rng([case.data_seed, start])
    if case.mode == "value":
        want = values(case, workload, named)
        nudge = _nudged(workload, named, generator)
        size = np.abs(want).max(axis=1) + np.abs(values(case, workload, nudge) - want).max(axis=1) / 1e-4
        size = np.maximum(size, np.sqrt(np.mean(want**2)))
        return over(np.abs(got[:, :, 0] - want).max(axis=1), size), np.full(stop - start, 1e-12)
    bound = step_bound(case, workload, sizes, start, stop, terms) if case.mode == "finite_difference" else np.zeros((1, 1))
    # A Hessian is the difference of gradients, whose rounding it inherits however small it is itself.
    floor = np.abs(values(case, workload, named)).max(axis=1) / np.sqrt(terms) if case.target in SECOND else np.zeros(len(got))
    results = [_probe(case, workload, named, got, bound, floor, generator) for _ in range(_PROBES)]
    if case.target in SECOND:  # differences of a gradient that is itself wrong would prove nothing
        gradient = _evaluate(workload, _gradient(workload.function, workload.names), named)[:, None, :]
        first = dataclasses.replace(case, target=None)
        results += [_probe(first, workload, named, gradient, bound, 0 * floor, generator) for _ in range(_PROBES)]
    errors, extras = np.array([error for error, _ in results]), np.array([extra for _, extra in results])
    worst = np.argmax(errors - extras, axis=0)[None]
    return np.take_along_axis(errors, worst, 0)[0], np.take_along_axis(extras, worst, 0)[0]


def _probe(
    case: Case,
    workload: Workload,
    named: Exact,
    got: np.ndarray,
    bound: np.ndarray,
    floor: np.ndarray,
    generator: np.random.Generator,
) -> tuple[np.ndarray, np.ndarray]:
    """Compare along one random direction, at the step that suits each point best. floor: the least size of a point."""
    if case.target == "hvp":  # a Hessian times the point itself is a derivative along it
        direction, rows = named, np.ones((len(got), 1))
    else:
        direction = _direction(workload, named, generator)
        rows = flat(workload, direction, len(got))
    terms = got.astype(np.float64) * rows[:, None, :]
    size = np.maximum(floor, _size(case, workload, named, direction, generator, np.abs(terms).sum(axis=2).max(axis=1)))
    value = np.abs(values(case, workload, named)).sum(axis=1)
    best, extra, least = np.full(len(got), np.inf), np.zeros(len(got)), np.full(len(got), np.inf)
    for step in _STEPS:
        off = np.abs(terms.sum(axis=2) - _along(case, workload, named, direction, step)).max(axis=1)
        error = over(np.nan_to_num(off, nan=np.inf), size)
        noise = 1e-8 + over(8 * ROUNDOFF["float64"] * value / step + (np.abs(rows) * bound).sum(axis=1), size)
        # The step that says most: little deviation and little noise. Not relative, for the size may be nothing.
        doubt = np.nan_to_num(off, nan=np.inf) + 8 * ROUNDOFF["float64"] * value / step
        better = ~(least <= doubt)
        least = np.where(better, doubt, least)
        best, extra = np.where(better, error, best), np.where(better, noise, extra)
    return best, extra


def _nudged(workload: Workload, named: Exact, generator: np.random.Generator) -> Exact:
    """Every real input a ten-thousandth up or down."""
    real = [name for name in named if not _draw(workload, name).integer]
    return {**named, **{name: named[name] * (1 + 1e-4 * generator.choice([-1.0, 1.0], named[name].shape)) for name in real}}


def _size(
    case: Case, workload: Workload, named: Exact, direction: Exact, generator: np.random.Generator, terms: np.ndarray
) -> np.ndarray:
    """The size of a directional derivative: its terms, or what it moves by, relatively, when every input does: (points,)."""
    here = _along(case, workload, named, direction, 1e-4)
    size = np.maximum(np.nan_to_num(np.abs(here).max(axis=1)), terms)
    moved = np.zeros_like(size)
    for _ in range(3):
        there = _along(case, workload, _nudged(workload, named, generator), direction, 1e-4)
        moved = np.maximum(moved, np.nan_to_num(np.abs(there - here).max(axis=1)) / 1e-4)
    return np.maximum(size, np.minimum(moved, 1e4 * size))


def step_bound(case: Case, workload: Workload, sizes: Shape, start: int, stop: int, terms: int) -> np.ndarray:
    """How far a forward difference with the mode's step may lie from the derivative, by each input: (points, inputs).

    Truncation: half the step times the curvature along the input, the larger of both ends. Rounding: of the two values, and of
    the sum x + h, over the step.
    """
    named, step = inputs.exact(case, workload, start, stop), STEPS[case.dtype]
    added = _together(workload, values(case, workload, named))
    if sizes.summed:
        everywhere = values(case, workload, inputs.exact(case, workload, 0, case.points))
        added = np.full(stop - start, np.abs(everywhere).sum())
    elif workload.reference is not None and (terms_size := workload.reference(named).value_terms) is not None:
        added = np.maximum(added, terms_size)
    columns = [(name, i) for name in workload.names for i in range(int(np.prod(_draw(workload, name).shape)))]
    looked_at = np.unique(np.linspace(0, len(columns) - 1, _COORDINATES).astype(int))
    truncation, moves = np.zeros((2, stop - start, len(looked_at)))
    for k, column in enumerate(looked_at):
        name, i = columns[column]
        x, slope, curvature = _bend(case, workload, named, name, i, step)
        truncation[:, k] = step / 2 * curvature
        moves[:, k] = (np.abs(x) + step) * slope
    added = np.maximum(added, moves.max(axis=1))
    found = truncation + ROUNDOFF[case.dtype] * (4 * np.sqrt(terms) * added[:, None] + moves) / step
    if len(looked_at) == len(columns):
        return 1.5 * found
    return np.broadcast_to(2 * found.max(axis=1, keepdims=True), (stop - start, len(columns)))


def _bend(case: Case, workload: Workload, named: Exact, name: str, i: int, step: float) -> tuple[np.ndarray, ...]:
    """An input's i-th number, and the larger slope and curvature along it at both ends of a step: three (points,) or ()."""
    lead = (-1,) if name in workload.shared else (len(named[name]), -1)
    x = named[name].reshape(lead)[..., i]
    slope, curvature = np.zeros(()), np.zeros(())
    for end in (0.0, step):
        reach = 1e-3 * np.where(x + end == 0, 1.0, np.abs(x + end))

        def at(by: Any) -> np.ndarray:
            moved = named[name].reshape(lead).copy()
            moved[..., i] += by
            return values(case, workload, {**named, name: moved.reshape(named[name].shape)})

        behind, here, ahead = at(end - reach), at(end), at(end + reach)
        slope = np.maximum(slope, _together(workload, ahead - behind) / (2 * reach))
        curvature = np.maximum(curvature, _together(workload, ahead - 2 * here + behind) / reach**2)
    return x, np.nan_to_num(slope, nan=np.inf), np.nan_to_num(curvature, nan=np.inf)


def _together(workload: Workload, outputs: np.ndarray) -> np.ndarray:
    """(points, outputs) -> (points,): added up where the derivative is, the largest elsewhere."""
    return np.abs(outputs).sum(axis=1) if workload.reduce else np.abs(outputs).max(axis=1)


def _draw(workload: Workload, name: str) -> Draw:
    return workload.points[name] if name in workload.points else workload.shared[name]


def over(off: np.ndarray, size: np.ndarray) -> np.ndarray:
    """off / size, where nothing over nothing is no error and something over nothing an infinite one."""
    return np.divide(off, size, out=np.where(off == 0, 0.0, np.inf), where=size > 0)
