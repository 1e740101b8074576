"""Finite differences in float64, on the CPU: the truth about a function that has no closed form, and the bound on a step's error.

Looks at values only, so a wrong rule for a derivative cannot agree with it by being used on both sides. Does not know results:
probes.py compares them.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

from scaling.case import SECOND, Case
from scaling.measuring import inputs
from scaling.measuring.modes import STEPS, ravel
from scaling.measuring.shape import Shape
from scaling.workload import Draw, Inputs, Reference, Workload

_COORDINATES = 64  # at most, when the curvature along the inputs is estimated; fewer of a point with very many numbers
_LOOKED_AT = 2**24  # numbers in all of them
_NUMBERS = 2**20  # of the points that are evaluated at once when every input is moved by itself
# Unit roundoff of one operation.
ROUNDOFF = {"float64": 2.0**-53, "float32": 2.0**-24, "bfloat16": 2.0**-8}

Exact = Mapping[str, np.ndarray]


def closed(case: Case, workload: Workload) -> Callable[[Inputs], Reference] | None:
    """What gives a value in NumPy at the least cost, if anything does: a Jacobian of a known pattern need not be written out."""
    return workload.nonzeros if workload.nonzeros is not None and case.target not in SECOND else workload.reference


def values(case: Case, workload: Workload, named: Exact) -> np.ndarray:
    """What is differentiated, at a block of points in float64, on the CPU: the function, or its gradient. (points, outputs)."""
    reference = closed(case, workload)
    if reference is not None:
        return reference(named).value
    return evaluate(workload, gradient(workload) if case.target in SECOND else workload.function, named)


def evaluate(workload: Workload, function: Callable, named: Exact) -> np.ndarray:
    """A function of one point at a block of points, in float64, on the CPU: (points, outputs)."""
    with jax.enable_x64(True), jax.default_device(jax.local_devices(backend="cpu")[0]), jax.default_matmul_precision("highest"):
        draws = {**workload.points, **workload.shared}
        typed = {name: jax.numpy.asarray(named[name], np.int32 if draw.integer else np.float64) for name, draw in draws.items()}
        rows = {name: typed.pop(name) for name in workload.points}
        out = _batched(function)(rows, typed)
        return np.asarray(out, np.float64).reshape(len(out), -1)


def gradient(workload: Workload) -> Callable:
    """The function that a Hessian is the derivative of: (inputs,)."""
    return _gradient(workload.function, workload.names)


@functools.lru_cache(maxsize=8)
def _gradient(function: Callable, names: tuple[str, ...]) -> Callable:
    def gradient(**named: Any) -> Any:
        f = lambda *z: jax.numpy.sum(function(**{**named, **dict(zip(names, z, strict=True))}))  # noqa: E731
        return ravel(jax.grad(f, argnums=tuple(range(len(names))))(*[named[name] for name in names]))

    return gradient


@functools.lru_cache(maxsize=8)
def _batched(function: Callable) -> Callable:
    return jax.jit(lambda rows, rest: jax.vmap(lambda one: function(**one, **rest))(rows))


def joined(workload: Workload, sizes: Shape, outputs: np.ndarray) -> np.ndarray:
    """(points, outputs, ...) of the function whose Jacobian is asked for: after the sum over outputs, where there is one."""
    return outputs.sum(axis=1, keepdims=True) if workload.reduce == "outputs" or sizes.summed else outputs


def together(workload: Workload, sizes: Shape, outputs: np.ndarray) -> np.ndarray:
    """(points, outputs) -> (points,): the size of all outputs where these are added up, that of the largest elsewhere."""
    added = workload.reduce in ("outputs", "points") or sizes.summed
    return np.abs(outputs).sum(axis=1) if added else np.abs(outputs).max(axis=1)


def moved(workload: Workload, named: Exact, direction: Exact, by: float) -> Exact:
    """The inputs to differentiate by moved along a direction, the others as they are."""
    return {**named, **{name: named[name] + by * direction[name] for name in workload.names}}


def along(case: Case, workload: Workload, named: Exact, direction: Exact, step: float) -> np.ndarray:
    """The derivative of every output along a direction, to fourth order in the step: (points, outputs)."""
    return _fourth_order(lambda by: values(case, workload, moved(workload, named, direction, by * step)), step)


def _fourth_order(at: Callable[[float], np.ndarray], step: float) -> np.ndarray:
    return (8 * (at(1) - at(-1)) - (at(2) - at(-2))) / (12 * step)


def noise(value: Any, step: Any) -> Any:
    """How far the rounding of values, added up, may move a derivative along a direction."""
    return 8 * ROUNDOFF["float64"] * value / step


def own_sizes(workload: Workload, named: Exact) -> dict[str, np.ndarray]:
    """The size of every number to differentiate by, and no less than a thousandth of what is typical of its input."""
    sizes = {}
    for name in workload.names:
        x = named[name]
        typical = float(np.sqrt(np.mean(x**2))) if x.size else 0.0
        sizes[name] = np.abs(x) + (1e-3 * typical or 1.0)
    return sizes


def direction(workload: Workload, named: Exact, generator: np.random.Generator) -> Exact:
    """A random direction in which each input moves in proportion to its size, so that it stays in its domain."""
    return {
        name: own * generator.choice([-1.0, 1.0], own.shape) * generator.uniform(0.5, 1.0, own.shape)
        for name, own in own_sizes(workload, named).items()
    }


def flat(workload: Workload, direction: Exact, points: int) -> np.ndarray:
    """The inputs to differentiate by, or a direction in them, as a matrix, a row a point: (points, inputs)."""
    parts = []
    for name in workload.names:
        x = direction[name]
        parts.append(x.reshape(points, -1) if name in workload.points else np.broadcast_to(x.reshape(1, -1), (points, x.size)))
    return np.concatenate(parts, axis=1)


def columns(case: Case, workload: Workload, sizes: Shape, named: Exact, step: float) -> np.ndarray:
    """The whole Jacobian, every input moved by itself by `step` times its size: (points, outputs, inputs).

    This takes four evaluations of the function for each input of each point.
    """
    points = len(named[next(iter(workload.points))])
    # What the points share is moved for each of them, so that it becomes their own.
    alone = {name: (workload.points | workload.shared)[name] for name in (*workload.points, *workload.names)}  # type: ignore[operator]
    rest = {name: draw for name, draw in workload.shared.items() if name not in alone}
    spread = dataclasses.replace(workload, points=alone, shared=rest)
    x, h = flat(workload, named, points), step * flat(workload, own_sizes(workload, named), points)
    numbers = points * (sizes.values + sum(int(np.prod(draw.shape)) for draw in alone.values()))
    some = max(1, _NUMBERS // numbers)

    def block(first: int) -> np.ndarray:
        numbers = np.arange(first, min(first + some, x.shape[1]))

        def at(by: float) -> np.ndarray:
            there = np.repeat(x[None], len(numbers), axis=0)
            there[np.arange(len(numbers)), :, numbers] += by * h[:, numbers].T
            tiled = {k: np.tile(named[k], (len(numbers), *[1] * (named[k].ndim - 1))) for k in workload.points}
            tiled |= _unflat(workload, there.reshape(-1, x.shape[1])) | {name: named[name] for name in rest}
            return values(case, spread, tiled).reshape(len(numbers), points, -1)

        return joined(workload, sizes, _fourth_order(at, 1.0).transpose(1, 2, 0)) / h[:, None, numbers]

    return np.concatenate([block(first) for first in range(0, x.shape[1], some)], axis=2)


def _unflat(workload: Workload, rows: np.ndarray) -> dict[str, np.ndarray]:
    """The opposite of `flat`, where every input is a point's own."""
    shapes = [draw_of(workload, name).shape for name in workload.names]
    ends = np.cumsum([int(np.prod(shape)) for shape in shapes])[:-1]
    parts = zip(workload.names, np.split(rows, ends, axis=1), shapes, strict=True)
    return {name: part.reshape(len(rows), *shape) for name, part, shape in parts}


def step_bound(case: Case, workload: Workload, sizes: Shape, start: int, stop: int, terms: int) -> np.ndarray:
    """How far a forward difference with the mode's step may lie from the derivative, by each input: (points, inputs).

    Truncation: half the step times the curvature along the input, the larger of both ends. Rounding: of the two values, and of
    the sum x + h, over the step. Of a sum over outputs or points it is the bound of all that is added up; of J x, which is one
    difference along x, it is (points, 1).
    """
    named, step = inputs.exact(case, workload, start, stop), STEPS[case.dtype]
    added = _values_added(case, workload, sizes, named)
    places = [(name, i) for name in workload.names for i in range(int(np.prod(draw_of(workload, name).shape)))]
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
    if workload.reduce == "vector":
        at = lambda by: values(case, workload, moved(workload, named, named, by))  # noqa: E731
        _, curvature = _bend(workload, sizes, np.ones(()), at, step)
        all_moves = moves.sum(axis=1) * len(places) / len(looked_at)
        found = step / 2 * curvature + ROUNDOFF[case.dtype] * (4 * np.sqrt(terms) * added + all_moves) / step
        return (1.5 if every else 2.0) * found[:, None]
    found = truncation + ROUNDOFF[case.dtype] * (4 * np.sqrt(terms) * added[:, None] + moves) / step
    if every:
        return 1.5 * found
    return np.broadcast_to(2 * found.max(axis=1, keepdims=True), (stop - start, len(places)))


def _values_added(case: Case, workload: Workload, sizes: Shape, named: Exact) -> np.ndarray:
    """The size of what is added up to make a value that is differenced: (points,)."""
    added = together(workload, sizes, values(case, workload, named))
    if sizes.summed and workload.reduce != "points":  # of those, the bounds of the points are added up
        everywhere = values(case, workload, inputs.exact(case, workload, 0, case.points))
        return np.full(len(added), np.abs(everywhere).sum())
    reference = closed(case, workload)
    if reference is None or (terms_size := reference(named).value_terms) is None:
        return added
    return np.maximum(added, terms_size * (sizes.values if workload.reduce in ("outputs", "points") else 1))


def _number(case: Case, workload: Workload, named: Exact, name: str, i: int) -> tuple[np.ndarray, Callable]:
    """The i-th number of an input, (points,) or () where they share it, and the values after it has moved."""
    lead = (-1,) if name in workload.shared else (len(named[name]), -1)

    def at(by: Any) -> np.ndarray:
        there = named[name].reshape(lead).copy()
        there[..., i] += by
        return values(case, workload, {**named, name: there.reshape(named[name].shape)})

    return named[name].reshape(lead)[..., i], at


def _bend(workload: Workload, sizes: Shape, x: np.ndarray, at: Callable, step: float) -> tuple[np.ndarray, ...]:
    """The larger slope and curvature, at both ends of a step from x, of values by how far x has moved: two (points,)."""
    slope, curvature = np.zeros(()), np.zeros(())
    for end in (0.0, step):
        reach = 1e-3 * np.where(x + end == 0, 1.0, np.abs(x + end))
        behind, here, ahead = at(end - reach), at(end), at(end + reach)
        slope = np.maximum(slope, together(workload, sizes, ahead - behind) / (2 * reach))
        curvature = np.maximum(curvature, together(workload, sizes, ahead - 2 * here + behind) / reach**2)
    return np.nan_to_num(slope, nan=np.inf), np.nan_to_num(curvature, nan=np.inf)


def draw_of(workload: Workload, name: str) -> Draw:
    """How an input is drawn."""
    return workload.points[name] if name in workload.points else workload.shared[name]


def over(off: np.ndarray, size: np.ndarray) -> np.ndarray:
    """off / size, where nothing over nothing is no error and something over nothing an infinite one."""
    off, size = np.broadcast_arrays(off, size)
    return np.divide(off, size, out=np.where(off == 0, 0.0, np.inf), where=size > 0)
