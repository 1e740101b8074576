"""Evaluate a function, its JVPs, and columns and rows of its Jacobian with JAX on the CPU, in any dtype.

Derivatives are computed in forward mode. If a function has only a rule for reverse mode (`jax.custom_vjp`),
its JVP is computed by transposing its VJP. The argument `arrays` of most functions is a dict from input name
to array. The first axis of a per-point input is the axis of points (batch elements). `random_direction`
chooses tangents, and `rounding_range` estimates the rounding errors of a quantity.
"""

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import metadata
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from scaling.core import environment, inputs
from scaling.core.case import Case
from scaling.core.inputs import InputArrays
from scaling.core.workload import Workload
from scaling.programs.jaxpr_interpreter import with_random_rounding

ArrayFunction = Callable[..., jax.Array]
Vmap = Callable[..., ArrayFunction]  # `jax.vmap`, or an equivalent loop
Groups = list[list[str]]  # groups of input names

SAMPLED_POINTS = 16  # the number of sample points
VALUE_ROUNDINGS = 64  # the error of a derivative from rounding the value, in unit roundoffs of the value
_MAX_ELEMENTS = 2**22  # limit on the size of an intermediate result for all points and seeds of a call
# Options to compile two to five times faster. jaxlib 0.11 has no fusion emitters, and refuses their option.
_UNOPTIMIZED: dict[str, Any] = {"xla_backend_optimization_level": 0}
if metadata.version("jaxlib").startswith("0.10."):
    _UNOPTIMIZED["xla_cpu_use_fusion_emitters"] = False
_MAX_GROUPS = 32  # the maximum number of inputs, or groups of inputs, that are also changed one at a time
_LEAST_RELATIVE_SIZE = 1e-3  # the minimum size of an element, relative to the root mean square of its input


@dataclass(frozen=True)
class Evaluation:
    """A function of one point, and the settings with which it and its derivatives are evaluated."""

    function: Callable[..., Any]  # takes every input as a keyword argument and returns an array
    names: tuple[str, ...]  # the differentiated inputs, in the order of the columns of the Jacobian
    per_point: frozenset[str]  # the inputs with a separate value for each point; the others are shared
    integers: frozenset[str]  # the inputs with the dtype int32
    dtype: str  # the dtype of the other inputs
    inputs: int  # the number of elements of the differentiated inputs at one point
    roundoff: float  # the unit roundoff of the narrowest dtype of an input or an intermediate result
    width: int  # the number of elements of the largest intermediate result at one point
    summed: bool = False  # whether the outputs are summed; the result then has the shape (1,)
    transposed: bool = False  # whether a JVP is computed from the VJP (for one output, from the gradient)
    rounding_key: int = 0  # if nonzero, the seed of random rounding errors in all intermediate results
    least_rounding: float = 0.0  # the least unit roundoff of these random errors
    one_by_one: bool = False  # whether points and seeds are evaluated in a loop, not by `vmap`
    optimized: bool = True  # whether LLVM optimizes the programs, which may take longer than to run them


@contextlib.contextmanager
def evaluation_context(dtype: str) -> Iterator[None]:
    """Return a context manager in which JAX computes on the CPU, in `dtype`, with full matmul precision."""
    was_enabled = bool(jax.config.read("jax_enable_x64"))
    x64 = was_enabled or dtype == "float64"
    if x64 != was_enabled:
        jax.clear_caches()  # they do not distinguish int32 from int64
    try:
        cpu = jax.local_devices(backend="cpu")[0]
        with jax.enable_x64(x64), jax.default_device(cpu), jax.default_matmul_precision("highest"):
            yield
    finally:
        if x64 != was_enabled:
            jax.clear_caches()


def values(evaluation: Evaluation, arrays: InputArrays) -> np.ndarray:
    """Return the function values at each point as a float64 array of shape (points, outputs)."""
    return _evaluate(evaluation, arrays, "values")


def values_along(
    evaluation: Evaluation, arrays: InputArrays, direction: InputArrays, step: float
) -> np.ndarray:
    """Return the function values at the inputs `arrays` + `step` * `direction`.

    The result is a float64 array of shape (points, outputs).
    """
    shifted = {name: arrays[name] + step * direction[name] for name in evaluation.names}
    return values(evaluation, {**arrays, **shifted})


def directional_derivative(evaluation: Evaluation, arrays: InputArrays, direction: InputArrays) -> np.ndarray:
    """Return the JVP at each point as a float64 array of shape (points, outputs).

    `arrays` are the inputs. `direction` is the tangent, a dict from input name to an array like the input.
    """
    tangents = [np.asarray(direction[name]).astype(jnp.dtype(evaluation.dtype)) for name in evaluation.names]
    return _evaluate(evaluation, arrays, "jvp", tangents)


def slices(evaluation: Evaluation, arrays: InputArrays, quantity: str, seeds: np.ndarray) -> np.ndarray:
    """Return some columns or rows of the Jacobian at each point as a float64 array.

    `quantity` is "columns" or "rows", and `seeds` contains their indices. The result has the shape (points,
    outputs, columns) or (points, rows, inputs).
    """
    points = len(arrays[next(iter(evaluation.per_point))])
    count, chunk = len(seeds), min(len(seeds), seeds_per_call(evaluation, points))
    chunks = np.resize(seeds.astype(np.int32), (-(-count // chunk), chunk))  # the last is padded with copies
    slices_by_chunk = [_evaluate(evaluation, arrays, quantity, seeds_of_chunk) for seeds_of_chunk in chunks]
    axis = 1 if quantity == "rows" else 2
    return np.concatenate(slices_by_chunk, axis=axis).take(range(count), axis=axis)


def jacobian(evaluation: Evaluation, arrays: InputArrays) -> np.ndarray:
    """Return the Jacobians as an array of shape (points, outputs, inputs), computed in forward mode."""
    return slices(evaluation, arrays, "columns", np.arange(evaluation.inputs))


def seeds_per_call(evaluation: Evaluation, points: int) -> int:
    """Return how many columns or rows one call may compute within the limit on memory, at least 1."""
    return max(1, _MAX_ELEMENTS // (points * evaluation.width))


def is_traceable(evaluation: Evaluation, arrays: InputArrays, quantity: str) -> bool:
    """Return whether JAX can trace the computation of "columns" or "rows" (`quantity`) of the Jacobian."""
    first_point = {name: x[:1] if name in evaluation.per_point else x for name, x in arrays.items()}
    key = min(1, evaluation.rounding_key)  # all keys but 0, which rounds nothing, have the same trace
    traced = dataclasses.replace(evaluation, optimized=True, rounding_key=key)
    arguments = np.uint32(key), *_cast(evaluation, first_point), np.zeros(1, np.int32)
    try:
        jax.eval_shape(_compiled(traced, quantity), *arguments)
    except Exception:
        return False
    return True


def with_supported_jvp(evaluation: Evaluation, arrays: InputArrays) -> Evaluation | None:
    """Return an `Evaluation` that computes JVPs with a method that JAX supports, or None.

    JVPs can be computed in forward mode or from VJPs. The method that `evaluation` selects is tried first.
    Return None if JAX supports neither method for the function.
    """
    candidates = evaluation, dataclasses.replace(evaluation, transposed=not evaluation.transposed)
    return next((candidate for candidate in candidates if is_traceable(candidate, arrays, "columns")), None)


@np.errstate(invalid="ignore")  # the range of infinite values is NaN
def rounding_range(
    measure: Callable[[Evaluation, InputArrays], np.ndarray],
    evaluation: Evaluation,
    arrays: InputArrays,
    relative: float,
    count: int,
    *others: np.ndarray,
) -> np.ndarray:
    """Return an estimate of the rounding error of each element of `measure(evaluation, arrays)`.

    `measure` is evaluated `count` times. Each time, different random rounding errors are added to its
    intermediate results, and each floating-point input element gets a relative error of `relative` or
    -`relative`. The estimate is the range (maximum minus minimum) of these results and of the arrays
    `others`.

    Input elements of equal magnitude get the same error, so that they remain equal. Otherwise, a derivative
    rule that is wrong only where elements are equal would look like a rounding error.
    """
    results, generator = list(others), np.random.default_rng(0)
    for seed in range(1, count + 1):
        rounded, frequency = dict(arrays), 1e15 * generator.uniform(1.0, 2.0)
        for name, x in arrays.items():
            if name not in evaluation.integers:
                rounded[name] = x * (1 + relative * np.sign(np.cos(frequency * np.frexp(x)[0])))
        results.append(measure(dataclasses.replace(evaluation, rounding_key=seed), rounded))
    return np.asarray(np.ptp(results, axis=0))


def sample_points(case: Case) -> np.ndarray:
    """Return the indices of at most `SAMPLED_POINTS` points of a case, evenly spaced."""
    return np.unique(np.linspace(0, case.points - 1, min(case.points, SAMPLED_POINTS)).astype(int))


def sample_inputs(case: Case, workload: Workload) -> dict[str, np.ndarray]:
    """Return the inputs at the `sample_points` of a case, as a dict from name to float64 array."""
    return inputs_at(case, workload, sample_points(case))


def inputs_at(case: Case, workload: Workload, points: np.ndarray) -> dict[str, np.ndarray]:
    """Return the inputs at the points with the indices `points`, as a dict from name to float64 array."""
    input_dicts = [inputs.exact_inputs(case, workload, int(i), int(i) + 1) for i in points]
    return {
        name: np.concatenate([point[name] for point in input_dicts]) if name in workload.points else first
        for name, first in input_dicts[0].items()
    }


def random_direction(
    evaluation: Evaluation,
    arrays: InputArrays,
    generator: np.random.Generator,
    is_relative: bool = False,
) -> dict[str, np.ndarray]:
    """Return a random tangent for the differentiated inputs, as a dict from input name to array.

    An element of the tangent has a random sign, and a random magnitude of 0.5 to 1 times the size of the
    input element (`element_sizes`). If `is_relative` is true, the size of a nonzero element is its absolute
    value, however small it is.
    """
    direction = {}
    for name in evaluation.names:
        x = np.asarray(arrays[name], np.float64)
        size = np.where(is_relative & (x != 0), np.abs(x), element_sizes(x))
        signs = generator.choice([-1.0, 1.0], size.shape)
        direction[name] = size * signs * generator.uniform(0.5, 1.0, size.shape)
    return direction


def choose_directions(
    evaluation: Evaluation, arrays: InputArrays, generator: np.random.Generator, groups: Groups
) -> list[dict[str, np.ndarray]]:
    """Return random directions along which a large derivative does not hide an error in a small one.

    The directions are, in this order:

    - for each group of `groups`, a direction that changes only the inputs of this group
    - a direction that changes only elements that are much smaller than others; 0 if there are none
    - a direction that changes each element in proportion to its magnitude
    """
    random = random_direction(evaluation, arrays, generator)
    is_small = {name: np.abs(arrays[name]) < element_sizes(arrays[name]) for name in random}
    small = {name: np.where(is_small[name], x, 0.0) for name, x in random.items()}
    relative = random_direction(evaluation, arrays, generator, is_relative=True)
    return [*split_direction(random, groups), small, relative]


def element_sizes(x: np.ndarray) -> np.ndarray:
    """Return the size of each element of x: |x| or, if that is larger, 0.001 times the root mean square of x.

    If all elements are zero, the sizes are 1.
    """
    if not x.size:
        return x
    smallest_size = _LEAST_RELATIVE_SIZE * np.sqrt(np.mean(x**2))
    return np.where(np.abs(x) > smallest_size, np.abs(x), np.where(smallest_size > 0, smallest_size, 1.0))


def group_inputs(evaluation: Evaluation, arrays: InputArrays, generator: np.random.Generator) -> Groups:
    """Divide the names of the differentiated inputs into at most `_MAX_GROUPS` groups.

    If there are at most `_MAX_GROUPS` inputs, each input is a group. Otherwise, inputs with derivatives of
    similar magnitude form a group.
    """
    names = [[name] for name in evaluation.names]
    if len(names) <= _MAX_GROUPS:
        return names
    # A group contains derivatives of similar size, because a large one could hide an error in a small one.
    directions = split_direction(random_direction(evaluation, arrays, generator), names)
    derivatives = (directional_derivative(evaluation, arrays, direction) for direction in directions)
    sizes = np.array(list(map(np.linalg.norm, derivatives)))
    order = np.argsort(sizes)
    ratios = np.diff(np.log(np.maximum(sizes[order], 1e-300)))
    groups = np.split(np.array(evaluation.names)[order], np.sort(np.argsort(ratios)[1 - _MAX_GROUPS :]) + 1)
    return [group.tolist() for group in groups]


def split_direction(direction: dict[str, np.ndarray], groups: Groups) -> list[dict[str, np.ndarray]]:
    """Return a copy of `direction` for each group, with zeros for all inputs outside the group."""
    zeros = {name: np.zeros_like(x) for name, x in direction.items()}
    return [zeros | {name: direction[name] for name in group} for group in groups]


def _evaluate(evaluation: Evaluation, arrays: InputArrays, quantity: str, *seeds: Any) -> np.ndarray:
    """Return a quantity at each point as a float64 array of shape (points, ...).

    `quantity` is a key of `_QUANTITIES`, such as "jvp". `seeds` are the tangents of "jvp", or the indices of
    "columns" or "rows".
    """
    key = evaluation.rounding_key  # all nonzero keys share one program, which takes the key as an argument
    jitted = _compiled(dataclasses.replace(evaluation, rounding_key=min(1, key)), quantity)
    return np.asarray(jitted(np.uint32(key), *_cast(evaluation, arrays), *seeds), np.float64)


def _cast(evaluation: Evaluation, arrays: InputArrays) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Return the per-point inputs and the shared inputs, cast to the dtypes of `evaluation`, as two dicts."""
    cast = {
        name: np.asarray(x).astype(np.int32 if name in evaluation.integers else evaluation.dtype, copy=False)
        for name, x in arrays.items()
    }
    per_point = {name: cast.pop(name) for name in arrays if name in evaluation.per_point}
    return per_point, cast


@functools.lru_cache(maxsize=64)
def _compiled(evaluation: Evaluation, quantity: str) -> Callable[..., jax.Array]:
    """Return a jitted function f(rounding_key, per_point, shared, *seeds) that computes a quantity.

    `quantity` is a key of `_QUANTITIES`, such as "jvp". `per_point` and `shared` are dicts of inputs. f adds
    random rounding errors with the seed `rounding_key`, unless `evaluation.rounding_key` is 0.
    """
    tangent_axes = [0 if name in evaluation.per_point else None for name in evaluation.names]
    seed_axes = {"values": (), "jvp": (tangent_axes,)}.get(quantity, (None,))

    def at_point(per_point: dict[str, Any], shared: dict[str, Any], *seeds: Any) -> jax.Array:
        arrays = {**per_point, **shared}
        x, unravel = ravel_pytree([arrays.pop(name) for name in evaluation.names])

        def f(z: jax.Array) -> jax.Array:
            named = dict(zip(evaluation.names, unravel(z), strict=True))
            y = evaluation.function(**arrays, **named)
            return jnp.ravel(jnp.sum(y) if evaluation.summed else y)

        return _QUANTITIES[quantity](f, x, _make_jvp(evaluation, f, x), vmap, *seeds)

    vmap = _vmap_in_loop if evaluation.one_by_one else jax.vmap
    batched = vmap(at_point, in_axes=(0, None, *seed_axes))

    def at_points(key: Any, *arguments: Any) -> jax.Array:
        rounded = with_random_rounding(batched, key, evaluation.least_rounding)
        return (rounded if evaluation.rounding_key else batched)(*arguments)

    xla_options = environment.fusion_options() | ({} if evaluation.optimized else _UNOPTIMIZED)
    return jax.jit(at_points, compiler_options=xla_options)


def _vmap_in_loop(function: ArrayFunction, **axes: Any) -> ArrayFunction:
    """Return `jax.vmap(function)` evaluated in a loop, so that rules of `jax.custom_batching` have no effect.

    `axes` are the keyword arguments of `jax.vmap`.
    """
    return jax.vmap(jax.custom_batching.sequential_vmap(function), **axes)


def _make_jvp(evaluation: Evaluation, f: ArrayFunction, x: jax.Array) -> ArrayFunction:
    """Return the function v -> J v, where J is the Jacobian of f at x."""
    if not evaluation.transposed:
        return lambda v: jax.jvp(f, (x,), (v,))[1]
    y, pullback = jax.vjp(f, x)
    if y.size == 1:  # a transposed VJP would hide an error in a rule for transposition
        return lambda v: jnp.vdot(pullback(jnp.ones_like(y))[0], v).reshape(1)
    _, pushforward = jax.vjp(lambda cotangent: pullback(cotangent)[0], jnp.zeros_like(y))
    return lambda v: pushforward(v)[0]


def _rows(f: ArrayFunction, x: jax.Array, jvp: ArrayFunction, vmap: Vmap, indices: jax.Array) -> jax.Array:
    y, pullback = jax.vjp(f, x)
    return vmap(lambda i: pullback(_one_hot(i, y))[0])(indices)


def _one_hot(i: Any, like: jax.Array) -> jax.Array:
    return (jnp.arange(like.size, dtype=jnp.int32) == i).astype(like.dtype)


# Functions (f, x, jvp, vmap, *seeds) that compute a quantity of a function f at the vector x, where jvp(v)
# returns J v for the Jacobian J of f, and `vmap` maps over the seeds.
_QUANTITIES: dict[str, ArrayFunction] = {
    "values": lambda f, x, jvp, vmap: f(x),
    "jvp": lambda f, x, jvp, vmap, tangents: jvp(ravel_pytree(tangents)[0]),
    "columns": lambda f, x, jvp, vmap, indices: vmap(lambda i: jvp(_one_hot(i, x)), out_axes=1)(indices),
    "rows": _rows,
}
