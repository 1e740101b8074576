"""Evaluate a function and its derivatives as the reference of the check.

Everything runs on the CPU, in float64 or in the dtype of a case, by forward mode in blocks of seeds. A
function whose rule is written for reverse mode alone (`jax.custom_vjp`) is pushed forward by transposing its
pullback. Knows functions and arrays; does not know cases, results or tolerances.
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

Named = Mapping[str, np.ndarray]
Map = Callable[[Any], jax.Array]

_NUMBERS = 2**22  # of the largest intermediate result of a call, over its points and seeds


@dataclass(frozen=True)
class Evaluation:
    """A function of one point, and how it is evaluated.

    function: takes every input by name, returns an array. names: the inputs to differentiate by, in the order
    of the columns. own: the inputs that differ from point to point; the others are shared. integers: the
    inputs that are int32. width: numbers of the largest intermediate result at one point. transposed: push
    forward by transposing the pullback.
    """

    function: Callable[..., Any]
    names: tuple[str, ...]
    own: frozenset[str]
    integers: frozenset[str]
    dtype: str
    width: int = 1
    transposed: bool = False


@contextlib.contextmanager
def evaluating(dtype: str) -> Iterator[None]:
    """Set JAX up to evaluate in `dtype` on the CPU, at the highest precision; only float64 needs x64.

    What a process traced with x64 off cannot be used with x64 on, and the other way round: JAX's caches mix
    up the integers of both (a function that indexes with NumPy's int64 arrays then fails). The caches are
    cleared at each change.
    """
    before = bool(jax.config.read("jax_enable_x64"))
    x64 = before or dtype == "float64"
    if x64 != before:
        jax.clear_caches()
    try:
        cpu = jax.local_devices(backend="cpu")[0]
        with jax.enable_x64(x64), jax.default_device(cpu), jax.default_matmul_precision("highest"):
            yield
    finally:
        if x64 != before:
            jax.clear_caches()


def values(of: Evaluation, named: Named) -> np.ndarray:
    """Return the function at a block of points: (points, outputs), float64."""
    return np.asarray(_compiled(of, "values")(*_typed(of, named)), np.float64)


def along(of: Evaluation, named: Named, direction: Named) -> np.ndarray:
    """Return the derivative of every output along a direction in the inputs: (points, outputs).

    direction: an array like each of the inputs to differentiate by.
    """
    tangents = {name: direction[name] for name in of.names}
    return np.asarray(_compiled(of, "along")(*_typed(of, named), *_typed(of, tangents)), np.float64)


def columns(of: Evaluation, named: Named, which: np.ndarray) -> np.ndarray:
    """Return these columns of the Jacobian of each point: (points, outputs, columns)."""
    return _evaluate_in_blocks(of, named, which, "columns", 2)


def rows(of: Evaluation, named: Named, which: np.ndarray) -> np.ndarray:
    """Return these rows of the Jacobian of each point, by reverse mode: (points, rows, inputs)."""
    return _evaluate_in_blocks(of, named, which, "rows", 1)


def gram_columns(of: Evaluation, named: Named, which: np.ndarray) -> np.ndarray:
    """Return these columns of J^T J of each point: (points, inputs, columns)."""
    return _evaluate_in_blocks(of, named, which, "gram_columns", 2)


def gram_along(of: Evaluation, named: Named, direction: np.ndarray) -> np.ndarray:
    """Return J^T J times one vector of the inputs, the same for all points: (points, inputs)."""
    flat = direction.astype(jnp.dtype(of.dtype))
    return np.asarray(_compiled(of, "gram_along")(*_typed(of, named), flat), np.float64)


def jacobian(of: Evaluation, named: Named) -> np.ndarray:
    """Return the whole Jacobian of each point: (points, outputs, inputs)."""
    return columns(of, named, np.arange(count_inputs(of, named)))


def count_inputs(of: Evaluation, named: Named) -> int:
    """Return how many numbers of one point the function is differentiated by."""
    return sum(int(np.prod(np.shape(named[name])[1 if name in of.own else 0 :])) for name in of.names)


def summed(of: Evaluation) -> Evaluation:
    """Return the same function, its outputs added up."""
    return dataclasses.replace(of, function=_summed(of.function))


@functools.lru_cache(maxsize=16)
def _summed(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda **named: jnp.sum(function(**named)).reshape(1)


def count_seeds(of: Evaluation, points: int) -> int:
    """Return how many seeds a call takes for a block of points."""
    return max(1, _NUMBERS // (points * of.width))


def is_defined(of: Evaluation, named: Named, what: str) -> bool:
    """Return whether JAX can differentiate the function for "columns" or for "rows"."""
    own, shared = _typed(of, {name: array[:1] if name in of.own else array for name, array in named.items()})
    try:
        jax.eval_shape(_compiled(of, what), own, shared, np.zeros(1, np.int32))
    except Exception:
        return False
    return True


def with_pushforward(of: Evaluation, named: Named) -> Evaluation | None:
    """Return the evaluation with the pushforward that is defined for the function; None if none is."""
    both = (of, dataclasses.replace(of, transposed=True))
    return next((each for each in both if is_defined(each, named, "columns")), None)


def _evaluate_in_blocks(of: Evaluation, named: Named, which: np.ndarray, what: str, axis: int) -> np.ndarray:
    """Call a kernel with one block of seeds after another, all of one size, so that it is compiled once."""
    own, shared = _typed(of, named)
    some = min(len(which), count_seeds(of, len(next(iter(own.values())))))
    parts = []
    for start in range(0, len(which), some):
        block = np.asarray(which[start : start + some], np.int32)
        padded = np.pad(block, (0, some - len(block)), "edge")
        part = np.asarray(_compiled(of, what)(own, shared, padded), np.float64)
        parts.append(part.take(range(len(block)), axis) if len(block) < some else part)
    return parts[0] if len(parts) == 1 else np.concatenate(parts, axis)


def _typed(of: Evaluation, named: Named) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Return the inputs in the dtype of the evaluation: those of the points, and those that they share."""
    typed = {
        name: np.asarray(array).astype(np.int32 if name in of.integers else jnp.dtype(of.dtype))
        for name, array in named.items()
    }
    shared = {name: array for name, array in typed.items() if name not in of.own}
    return {name: array for name, array in typed.items() if name in of.own}, shared


@functools.lru_cache(maxsize=64)
def _compiled(of: Evaluation, what: str) -> Callable[..., jax.Array]:
    """Return a kernel of a block of points, compiled at its first call: (own, shared, seeds) -> array."""
    kernel, mapped = _KERNELS[what]

    def of_point(own: dict[str, Any], shared: dict[str, Any], *seeds: Any) -> jax.Array:
        named = {**own, **shared}
        x, unravel = ravel_pytree([named.pop(name) for name in of.names])

        def f(z: jax.Array) -> jax.Array:
            return jnp.ravel(of.function(**named, **dict(zip(of.names, unravel(z), strict=True))))

        return kernel(of, f, x, *seeds)

    return jax.jit(jax.vmap(of_point, in_axes=(0, None, *mapped)))


def _along(of: Evaluation, f: Map, x: jax.Array, own: dict[str, Any], shared: dict[str, Any]) -> jax.Array:
    tangents = {**own, **shared}
    return _push(of, f, x)(ravel_pytree([tangents[name] for name in of.names])[0])


def _columns(of: Evaluation, f: Map, x: jax.Array, which: jax.Array) -> jax.Array:
    return jax.vmap(lambda i: _push(of, f, x)(_one_hot(i, x)), out_axes=1)(which)


def _rows(of: Evaluation, f: Map, x: jax.Array, which: jax.Array) -> jax.Array:
    y, pull = jax.vjp(f, x)
    return jax.vmap(lambda i: pull(_one_hot(i, y))[0])(which)


def _gram(of: Evaluation, f: Map, x: jax.Array, v: jax.Array) -> jax.Array:
    return jax.vjp(f, x)[1](_push(of, f, x)(v))[0]


# Each kernel (evaluation, flat function, x, seeds) -> array, and the axes of points of its seeds.
_KERNELS: dict[str, tuple[Callable[..., jax.Array], tuple[int | None, ...]]] = {
    "values": (lambda of, f, x: f(x), ()),
    "along": (_along, (0, None)),
    "columns": (_columns, (None,)),
    "rows": (_rows, (None,)),
    "gram_columns": (
        lambda of, f, x, which: jax.vmap(lambda i: _gram(of, f, x, _one_hot(i, x)), out_axes=1)(which),
        (None,),
    ),
    "gram_along": (_gram, (None,)),
}


def _push(of: Evaluation, f: Map, x: jax.Array) -> Map:
    """Return the linear map from a tangent of x to one of f(x)."""
    if not of.transposed:
        return lambda v: jax.jvp(f, (x,), (v,))[1]
    y, pull = jax.vjp(f, x)
    _, push = jax.vjp(lambda cotangent: pull(cotangent)[0], jnp.zeros_like(y))
    return lambda v: push(v)[0]


def _one_hot(i: Any, like: jax.Array) -> jax.Array:
    return (jnp.arange(like.size, dtype=jnp.int32) == i).astype(like.dtype)
