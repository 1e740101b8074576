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

Named = Mapping[str, np.ndarray]

_NUMBERS = 2**22  # of the largest intermediate result of a call, over its points and seeds


@dataclass(frozen=True)
class Evaluation:
    """A function of one point, and how it is evaluated.

    function: takes every input by name, returns an array. names: the inputs to differentiate by, in the order
    of the columns.
    own: the inputs that each point has its own of; the others are shared. integers: the inputs that are
    int32. width: numbers of the largest intermediate result at one point. transposed: push forward by
    transposing the pullback.
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
    """Set JAX up to evaluate in `dtype` on the CPU, at the highest precision. Other dtypes than float64 leave
    x64 as it is.

    What a process traced with x64 off cannot be used with x64 on, and the other way round: JAX's caches mix
    up the integers of both (a function that indexes with NumPy's int64 arrays then fails). The caches are
    cleared at each change.
    """
    before = bool(jax.config.read("jax_enable_x64"))
    x64 = before or dtype == "float64"
    changes = x64 != before
    if changes:
        jax.clear_caches()
    try:
        cpu = jax.local_devices(backend="cpu")[0]
        with jax.enable_x64(x64), jax.default_device(cpu), jax.default_matmul_precision("highest"):
            yield
    finally:
        if changes:
            jax.clear_caches()


def values(of: Evaluation, named: Named) -> np.ndarray:
    """Return the function at a block of points: (points, outputs), float64."""
    return np.asarray(_compiled(of, "values")(*_typed(of, named)), np.float64)


def along(of: Evaluation, named: Named, direction: Named) -> np.ndarray:
    """Return the derivative of every output along a direction in the inputs: (points, outputs).

    direction: an array like each of the inputs to differentiate by.
    """
    moved = {name: np.asarray(direction[name]).astype(jnp.dtype(of.dtype)) for name in of.names}
    own = {name: array for name, array in moved.items() if name in of.own}
    rest = {name: array for name, array in moved.items() if name not in of.own}
    return np.asarray(_compiled(of, "along")(*_typed(of, named), own, rest), np.float64)


def columns(of: Evaluation, named: Named, which: np.ndarray) -> np.ndarray:
    """Return these columns of the Jacobian of each point: (points, outputs, columns)."""
    return _in_blocks(of, named, np.asarray(which, np.int32), "columns", 2)


def rows(of: Evaluation, named: Named, which: np.ndarray) -> np.ndarray:
    """Return these rows of the Jacobian of each point, by reverse mode: (points, rows, inputs)."""
    return _in_blocks(of, named, np.asarray(which, np.int32), "rows", 1)


def gram_columns(of: Evaluation, named: Named, which: np.ndarray) -> np.ndarray:
    """Return these columns of J^T J of each point, a pushforward and a pullback each: (points, inputs,
    columns)."""
    return _in_blocks(of, named, np.asarray(which, np.int32), "columns_of_products", 2)


def gram_along(of: Evaluation, named: Named, direction: np.ndarray) -> np.ndarray:
    """Return J^T J times one vector of the inputs, the same for all points: (points, inputs)."""
    return np.asarray(_compiled(of, "gram_along")(*_typed(of, named), direction), np.float64)


def jacobian(of: Evaluation, named: Named) -> np.ndarray:
    """Return the whole Jacobian of each point: (points, outputs, inputs)."""
    return columns(of, named, np.arange(number_of_inputs(of, named)))


def number_of_inputs(of: Evaluation, named: Named) -> int:
    """Return how many numbers of one point the function is differentiated by."""
    return sum(int(np.prod(np.shape(named[name])[1 if name in of.own else 0 :])) for name in of.names)


def summed(of: Evaluation) -> Evaluation:
    """Return the same function, its outputs added up."""
    return dataclasses.replace(of, function=_summed(of.function))


@functools.lru_cache(maxsize=16)
def _summed(function: Callable) -> Callable:
    return lambda **named: jnp.sum(function(**named)).reshape(1)


def seeds_at_once(of: Evaluation, points: int) -> int:
    """Return how many seeds a call takes for a block of points."""
    return max(1, _NUMBERS // (points * of.width))


def can_pull_back(of: Evaluation, named: Named) -> bool:
    """Return whether reverse mode is defined for the function."""
    own, rest = _typed(of, {name: array[:1] if name in of.own else array for name, array in named.items()})
    try:
        jax.eval_shape(_compiled(of, "rows"), own, rest, np.zeros(1, np.int32))
    except Exception:
        return False
    return True


def differentiable(of: Evaluation, named: Named) -> Evaluation | None:
    """Return the evaluation with the pushforward that is defined for the function; None where there is
    none."""
    own, rest = _typed(of, {name: array[:1] if name in of.own else array for name, array in named.items()})
    for transposed in (False, True):
        tried = dataclasses.replace(of, transposed=transposed)
        try:
            jax.eval_shape(_compiled(tried, "columns"), own, rest, np.zeros(1, np.int32))
        except Exception:
            continue
        return tried
    return None


def _in_blocks(of: Evaluation, named: Named, which: np.ndarray, what: str, axis: int) -> np.ndarray:
    """Call a kernel with a block of seeds after the other, all of one size, so that it is compiled once."""
    own, rest = _typed(of, named)
    points = len(next(iter(own.values())))
    some = min(len(which), seeds_at_once(of, points))
    parts = []
    for start in range(0, len(which), some):
        block = which[start : start + some]
        padded = np.concatenate([block, np.repeat(block[-1:], some - len(block))])
        part = np.asarray(_compiled(of, what)(own, rest, padded), np.float64)
        parts.append(part.take(range(len(block)), axis) if len(block) < some else part)
    return parts[0] if len(parts) == 1 else np.concatenate(parts, axis)


def _typed(of: Evaluation, named: Named) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Return the inputs in the dtype of the evaluation: those of the points, and those that they share."""
    typed = {
        name: np.asarray(array).astype(np.int32 if name in of.integers else jnp.dtype(of.dtype))
        for name, array in named.items()
    }
    rest = {name: array for name, array in typed.items() if name not in of.own}
    return {name: array for name, array in typed.items() if name in of.own}, rest


@functools.lru_cache(maxsize=64)
def _compiled(of: Evaluation, what: str) -> Callable:
    """Return a kernel of a block of points, compiled at its first call: (own, rest, ...) -> array."""
    kernels: dict[str, Callable[..., Any]] = {
        "values": lambda f, x: f(x),
        "along": lambda f, x, own, rest: _push(of, f, x)({**own, **rest}),
        "columns": lambda f, x, which: jax.vmap(lambda i: _push(of, f, x)(_unit(of, x, i)), out_axes=1)(
            which
        ),
        "rows": lambda f, x, which: jax.vmap(
            lambda i: _pull(of, f, x)(lambda y: _one_hot(i, y.size, y.dtype))
        )(which),
        "columns_of_products": lambda f, x, which: jax.vmap(
            lambda i: _normal(of, f, x)(_unit(of, x, i)), out_axes=1
        )(which),
        "gram_along": lambda f, x, direction: _normal(of, f, x)(
            _split(of, x, direction.astype(jnp.dtype(of.dtype)))
        ),
    }
    kernel = kernels[what]

    def of_one(own: dict[str, Any], rest: dict[str, Any], *more: Any) -> Any:
        named = {**own, **rest}
        x = {name: named.pop(name) for name in of.names}
        return kernel(lambda z: jnp.ravel(of.function(**named, **z)), x, *more)

    axes = {"along": (0, None, 0, None), "values": (0, None)}.get(what, (0, None, None))
    return jax.jit(jax.vmap(of_one, in_axes=axes))


def _push(of: Evaluation, f: Callable, x: dict[str, Any]) -> Callable:
    """Return the linear map from a tangent of x to one of f(x)."""
    if not of.transposed:
        return lambda v: jax.jvp(f, (x,), (v,))[1]
    y, pull = jax.vjp(f, x)
    _, push = jax.vjp(lambda cotangent: pull(cotangent)[0], jnp.zeros_like(y))
    return lambda v: push(v)[0]


def _pull(of: Evaluation, f: Callable, x: dict[str, Any]) -> Callable:
    """Return the map from a cotangent, made of f(x), to a row, flat."""
    y, pull = jax.vjp(f, x)
    return lambda make: _flat(of, pull(make(y))[0])


def _normal(of: Evaluation, f: Callable, x: dict[str, Any]) -> Callable:
    """Return the linear map v -> J^T J v, flat."""
    return lambda v: _pull(of, f, x)(lambda y: _push(of, f, x)(v))


def _unit(of: Evaluation, x: dict[str, Any], i: Any) -> dict[str, Any]:
    """Return the i-th unit vector of the inputs, as a tangent like x."""
    return _split(of, x, _one_hot(i, sum(x[name].size for name in of.names), jnp.dtype(of.dtype)))


def _one_hot(i: Any, size: int, dtype: Any) -> jax.Array:
    return (jnp.arange(size, dtype=jnp.int32) == i).astype(dtype)


def _split(of: Evaluation, x: dict[str, Any], flat: jax.Array) -> dict[str, Any]:
    """Return a flat vector of the inputs as arrays like x."""
    ends = np.cumsum([x[name].size for name in of.names])[:-1]
    parts = jnp.split(flat, ends)
    return {name: part.reshape(x[name].shape) for name, part in zip(of.names, parts, strict=True)}


def _flat(of: Evaluation, x: dict[str, Any]) -> jax.Array:
    return jnp.concatenate([x[name].reshape(-1) for name in of.names])
