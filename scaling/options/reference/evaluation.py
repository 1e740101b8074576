"""Evaluate functions and derivatives by JAX on the CPU for the check: values, JVPs, Jacobians and J^T J.

J is the Jacobian at one point (batch element). The dtype is float64 or that of a case. Derivatives are
computed in forward mode, in blocks of seeds (tangents). If a function has a rule for reverse mode only
(`jax.custom_vjp`), its JVP is computed as the transpose of its VJP.

The inputs `arrays` of the functions below are dicts from input name to array. The first axis of a per-point
input is the axis of the points.
"""

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from scaling.options.reference.rounding import with_random_rounding

Arrays = Mapping[str, np.ndarray]
ArrayFunction = Callable[[Any], jax.Array]

_MAX_ELEMENTS = 2**22  # limit on the size of an intermediate result for all points and seeds of a call
_MIN_INPUTS_PER_OUTPUT = 8  # of a function whose Jacobian is computed by rows


@dataclass(frozen=True)
class Evaluation:
    """A function of one point (batch element), and the dtype and AD transformation that evaluate it.

    Attributes:
        function: takes every input as a keyword argument and returns an array.
        names: the inputs to differentiate with respect to, in the order of the columns of the Jacobian.
        per_point: the inputs that have a separate value for each point. The other inputs are shared.
        integers: the inputs with the dtype int32.
        dtype: the dtype of the other inputs.
        width: the number of elements of the largest intermediate result at one point.
        transposed: whether the JVP is computed as the transpose of the VJP.
        rounding_key: the seed of random rounding errors in all intermediate results, or 0 for none.
    """

    function: Callable[..., Any]
    names: tuple[str, ...]
    per_point: frozenset[str]
    integers: frozenset[str]
    dtype: str
    width: int = 1
    transposed: bool = False
    rounding_key: int = 0


@contextlib.contextmanager
def evaluation_context(dtype: str) -> Iterator[None]:
    """Return a context manager in which JAX computes in `dtype` on the CPU with the highest matmul precision.

    `jax_enable_x64` is enabled for float64. JAX's caches are cleared when this setting changes, because
    functions that were traced with the other setting can fail. The caches do not distinguish int32 and int64,
    for example in a function that indexes with int64 arrays of NumPy.
    """
    was_enabled = bool(jax.config.read("jax_enable_x64"))
    x64 = was_enabled or dtype == "float64"
    if x64 != was_enabled:
        jax.clear_caches()
    try:
        cpu = jax.local_devices(backend="cpu")[0]
        with jax.enable_x64(x64), jax.default_device(cpu), jax.default_matmul_precision("highest"):
            yield
    finally:
        if x64 != was_enabled:
            jax.clear_caches()


def values(evaluation: Evaluation, arrays: Arrays) -> np.ndarray:
    """Return the values of the function at each point, a float64 array of shape (points, outputs)."""
    return np.asarray(_jitted(evaluation, "values")(*_cast(evaluation, arrays)), np.float64)


def directional_derivative(evaluation: Evaluation, arrays: Arrays, direction: Arrays) -> np.ndarray:
    """Return the JVP of the function at each point, a float64 array of shape (points, outputs).

    `direction` is the tangent: a dict from the name of each differentiated input to an array of its shape.
    """
    tangents = [np.asarray(direction[name]).astype(jnp.dtype(evaluation.dtype)) for name in evaluation.names]
    return np.asarray(_jitted(evaluation, "jvp")(*_cast(evaluation, arrays), tangents), np.float64)


def jacobian_columns(evaluation: Evaluation, arrays: Arrays, indices: np.ndarray) -> np.ndarray:
    """Return some columns of the Jacobian at each point, an array of shape (points, outputs, columns)."""
    return _evaluate_in_blocks(evaluation, arrays, "columns", np.asarray(indices, np.int32), 2)


def jacobian_rows(evaluation: Evaluation, arrays: Arrays, indices: np.ndarray) -> np.ndarray:
    """Return some rows of the Jacobian at each point, an array of shape (points, rows, inputs)."""
    return _evaluate_in_blocks(evaluation, arrays, "rows", np.asarray(indices, np.int32), 1)


def gram_products(evaluation: Evaluation, arrays: Arrays, vectors: np.ndarray) -> np.ndarray:
    """Return the products of J^T J with each row of `vectors`, an array of shape (points, inputs, vectors).

    J is the Jacobian at one point. `vectors` has the shape (vectors, inputs).
    """
    return _evaluate_in_blocks(evaluation, arrays, "gram", vectors.astype(jnp.dtype(evaluation.dtype)), 2)


def jacobian(evaluation: Evaluation, arrays: Arrays) -> np.ndarray:
    """Return the Jacobian at each point, an array of shape (points, outputs, inputs)."""
    return jacobian_columns(evaluation, arrays, np.arange(count_inputs(evaluation, arrays)))


def jacobian_in_few_passes(evaluation: Evaluation, arrays: Arrays) -> np.ndarray:
    """Return the Jacobian at each point, an array of shape (points, outputs, inputs).

    The Jacobian is computed by rows if the function has far fewer outputs than inputs, otherwise by columns.
    """
    outputs = jax.eval_shape(_jitted(evaluation, "values"), *_cast(evaluation, arrays)).shape[1]
    has_few_rows = _MIN_INPUTS_PER_OUTPUT * outputs <= count_inputs(evaluation, arrays)
    if has_few_rows and is_traceable(evaluation, arrays, "rows"):
        return jacobian_rows(evaluation, arrays, np.arange(outputs))
    return jacobian(evaluation, arrays)


def count_inputs(evaluation: Evaluation, arrays: Arrays) -> int:
    """Return the number of elements of the differentiated inputs at one point."""
    shapes = (np.shape(arrays[name])[1 if name in evaluation.per_point else 0 :] for name in evaluation.names)
    return sum(int(np.prod(shape)) for shape in shapes)


def with_summed_outputs(evaluation: Evaluation) -> Evaluation:
    """Return a copy of an evaluation whose function returns the sum of all outputs, of shape (1,)."""
    return dataclasses.replace(evaluation, function=_sum_of_outputs(evaluation.function))


@functools.lru_cache(maxsize=16)
def _sum_of_outputs(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda **arrays: jnp.sum(function(**arrays)).reshape(1)


def seeds_per_call(evaluation: Evaluation, points: int) -> int:
    """Return the number of tangents or cotangents that fit into the memory limit of one call.

    `points` is the number of points of the call.
    """
    return max(1, _MAX_ELEMENTS // (points * evaluation.width))


def is_traceable(evaluation: Evaluation, arrays: Arrays, kernel: str) -> bool:
    """Return whether JAX can trace the computation of "columns" or "rows" (`kernel`) of the Jacobian."""
    first_point = {name: x[:1] if name in evaluation.per_point else x for name, x in arrays.items()}
    try:
        jax.eval_shape(_jitted(evaluation, kernel), *_cast(evaluation, first_point), np.zeros(1, np.int32))
    except Exception:
        return False
    return True


def with_pushforward(evaluation: Evaluation, arrays: Arrays) -> Evaluation | None:
    """Return a copy of an evaluation whose JVP is defined, or None if JAX cannot differentiate the function.

    The JVP is computed in forward mode or, if JAX has no rule for it, as the transpose of the VJP.
    """
    for candidate in (evaluation, dataclasses.replace(evaluation, transposed=True)):
        if is_traceable(candidate, arrays, "columns"):
            return candidate
    return None


def with_rounding(
    evaluation: Evaluation, arrays: Arrays, relative: float, generator: np.random.Generator, count: int
) -> Iterator[tuple[Evaluation, Arrays]]:
    """Yield `count` pairs: an evaluation with random rounding errors, and randomly perturbed inputs.

    All intermediate results of the evaluation have rounding errors. Each floating-point element of the inputs
    is multiplied by 1 + relative or 1 - relative. `generator` chooses the sign.
    """
    for seed in range(1, count + 1):
        perturbed = dict(arrays)
        for name, x in arrays.items():
            if name not in evaluation.integers:
                perturbed[name] = x * (1 + relative * generator.choice([-1.0, 1.0], x.shape))
        yield dataclasses.replace(evaluation, rounding_key=seed), perturbed


def _evaluate_in_blocks(
    evaluation: Evaluation, arrays: Arrays, kernel: str, seeds: np.ndarray, axis: int
) -> np.ndarray:
    """Return columns, rows or products of the Jacobians for all seeds, in blocks that fit into memory.

    `kernel` is "columns", "rows" or "gram". The results of the blocks are concatenated along `axis`.
    """
    per_point, shared = _cast(evaluation, arrays)
    size = min(len(seeds), seeds_per_call(evaluation, len(next(iter(per_point.values())))))
    parts = []
    for start in range(0, len(seeds), size):
        block = seeds[np.minimum(np.arange(start, start + size), len(seeds) - 1)]  # of equal sizes
        parts.append(np.asarray(_jitted(evaluation, kernel)(per_point, shared, block), np.float64))
    results = parts[0] if len(parts) == 1 else np.concatenate(parts, axis)
    return results if results.shape[axis] == len(seeds) else results.take(range(len(seeds)), axis)


def _cast(evaluation: Evaluation, arrays: Arrays) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Return the per-point inputs and the shared inputs, two dicts from name to array, in their dtypes."""
    cast = {
        name: np.asarray(x).astype(np.int32 if name in evaluation.integers else jnp.dtype(evaluation.dtype))
        for name, x in arrays.items()
    }
    shared = {name: x for name, x in cast.items() if name not in evaluation.per_point}
    return {name: x for name, x in cast.items() if name in evaluation.per_point}, shared


def _jitted(evaluation: Evaluation, kernel: str) -> Callable[..., jax.Array]:
    """Return a jitted function (per-point inputs, shared inputs, *seeds) -> array of shape (points, ...).

    `kernel` is a key of `_KERNELS`. Evaluations that differ only in a nonzero rounding key share a program.
    """
    key = evaluation.rounding_key
    compiled = _compiled(dataclasses.replace(evaluation, rounding_key=min(1, key)), kernel)
    return functools.partial(compiled, np.uint32(key))


@functools.lru_cache(maxsize=64)
def _compiled(evaluation: Evaluation, kernel: str) -> Callable[..., jax.Array]:
    """Return a jitted function (rounding key, per-point inputs, shared inputs, *seeds) -> array."""
    tangent_axes = [0 if name in evaluation.per_point else None for name in evaluation.names]
    seed_axes = {"values": (), "jvp": (tangent_axes,)}.get(kernel, (None,))

    def at_point(per_point: dict[str, Any], shared: dict[str, Any], *seeds: Any) -> jax.Array:
        arrays = {**per_point, **shared}
        x, unravel = ravel_pytree([arrays.pop(name) for name in evaluation.names])

        def f(z: jax.Array) -> jax.Array:
            named = dict(zip(evaluation.names, unravel(z), strict=True))
            return jnp.ravel(evaluation.function(**arrays, **named))

        return _KERNELS[kernel](f, x, _pushforward(evaluation, f, x), *seeds)

    batched = jax.vmap(at_point, in_axes=(0, None, *seed_axes))

    def at_points(key: Any, *arguments: Any) -> jax.Array:
        function = with_random_rounding(batched, key) if evaluation.rounding_key else batched
        return function(*arguments)

    return jax.jit(at_points)


def _pushforward(evaluation: Evaluation, f: ArrayFunction, x: jax.Array) -> ArrayFunction:
    """Return the function v -> J v, where J is the Jacobian of f at x."""
    if not evaluation.transposed:
        return lambda v: jax.jvp(f, (x,), (v,))[1]
    y, pullback = jax.vjp(f, x)
    _, pushforward = jax.vjp(lambda cotangent: pullback(cotangent)[0], jnp.zeros_like(y))
    return lambda v: pushforward(v)[0]


def _columns(f: ArrayFunction, x: jax.Array, push: ArrayFunction, indices: jax.Array) -> jax.Array:
    return jax.vmap(lambda i: push(_one_hot(i, x)), out_axes=1)(indices)


def _rows(f: ArrayFunction, x: jax.Array, push: ArrayFunction, indices: jax.Array) -> jax.Array:
    y, pullback = jax.vjp(f, x)
    return jax.vmap(lambda i: pullback(_one_hot(i, y))[0])(indices)


def _gram(f: ArrayFunction, x: jax.Array, push: ArrayFunction, vectors: jax.Array) -> jax.Array:
    return jax.vmap(lambda v: jax.vjp(f, x)[1](push(v))[0], out_axes=1)(vectors)


def _one_hot(i: Any, like: jax.Array) -> jax.Array:
    """Return the unit vector with a one at index i, in the size and dtype of the vector `like`."""
    return (jnp.arange(like.size, dtype=jnp.int32) == i).astype(like.dtype)


# Name of a kernel -> function (f, x, push, *seeds) -> array. x is flat, f is a function of x, and push is the
# function v -> J v.
_KERNELS: dict[str, Callable[..., jax.Array]] = {
    "values": lambda f, x, push: f(x),
    "jvp": lambda f, x, push, tangents: push(ravel_pytree(tangents)[0]),
    "columns": _columns,
    "rows": _rows,
    "gram": _gram,
}
