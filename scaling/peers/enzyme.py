"""Peer: Enzyme-JAX (differentiation of the compiler IR, StableHLO, instead of the jaxpr) on one CPU core.

Enzyme-JAX has no vmap. It therefore differentiates the function of the whole batch: a single pass computes
one column or one row of the Jacobian of every point, and a loop in the same program iterates over the seeds.
All workloads in JAX are supported if their operations have derivative rules in Enzyme. Enzyme raises an error
for LAPACK, sorting, cumulative products, and nested differentiation. Hessians are therefore not offered.
"""

import functools
import operator
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from scaling.core.case import Case
from scaling.peers import _seeds
from scaling.peers.interface import Prepared

PACKAGES = ("enzyme_ad",)
JIT = (True,)
MODES = ("value", "jacfwd", "jacrev", "grad_of_sum")
_UNROLLED_ROWS = 8  # rows per loop iteration, so that the compiler sums them without memory accesses


def reason_to_skip(case: Case, workload: Any, sizes: Any) -> str | None:
    return _seeds.why_unsupported(case, workload, sizes, MODES)


def prepare(case: Case, workload: Any, sizes: Any, arrays: dict[str, np.ndarray], threads: int) -> Prepared:
    """Compile the derivative with XLA, and return a `Prepared` object whose `call` runs the program."""
    import jax

    with (
        jax.default_device(jax.local_devices(backend="cpu")[0]),
        jax.default_matmul_precision(case.precision),
    ):
        function, x, constants = _batch_function(case, workload, arrays)
        batch = _seeds.Batch(case, workload, sizes, function, x)
        differentiate = _columns if case.mode == "jacfwd" else _rows

        def derivative(x: tuple, constants: tuple) -> Any:
            f = lambda *z: function(*z, *constants)  # noqa: E731
            return f(*x) if case.ad_mode.is_value else differentiate(batch, f, x)

        start = time.perf_counter()
        compiled = jax.jit(derivative).lower(x, constants).compile()
        seconds = time.perf_counter() - start

    def call() -> Any:
        return jax.block_until_ready(compiled(x, constants))

    def collect(result: Any) -> np.ndarray:
        return np.asarray(result) if case.ad_mode.is_value else batch.collect(map(np.asarray, result))

    return Prepared(call, collect, seconds, sizes.passes or None)


def _batch_function(
    case: Case, workload: Any, arrays: dict[str, np.ndarray]
) -> tuple[Callable, tuple, tuple]:
    """Return (function of the whole batch, differentiated inputs, other inputs).

    The positional arguments of the function are the differentiated inputs followed by the other inputs.
    """
    import jax
    import jax.numpy as jnp
    from enzyme_ad.jax import enzyme_jax_ir

    order = [*workload.names, *(name for name in arrays if name not in workload.names)]
    inputs = {name: jnp.asarray(array) for name, array in arrays.items()}
    copied = _seeds.copied_inputs(case, workload)
    for name in copied:
        inputs[name] = jnp.broadcast_to(inputs[name], (case.points, *inputs[name].shape))
    is_whole = case.batch == "whole"
    by_name = workload.whole if is_whole else workload.function
    function = lambda *z: by_name(**dict(zip(order, z, strict=True)))  # noqa: E731
    if not is_whole:
        axes = [0 if name in workload.points or name in copied else None for name in order]
        function = jax.vmap(function, axes)
    arguments = [inputs[name] for name in order]
    x, constants = tuple(arguments[: len(workload.names)]), tuple(arguments[len(workload.names) :])
    if not case.ad_mode.is_value and " sort[" in str(jax.make_jaxpr(function)(*x, *constants)):
        raise NotImplementedError("Enzyme crashes when it differentiates a sort")  # enzyme_ad 0.0.16
    return enzyme_jax_ir()(function), x, constants


def _columns(batch: _seeds.Batch, f: Callable, x: tuple) -> list[Any]:
    """Compute the columns of the Jacobian by JVPs, and return them in the form of `Batch.columns`."""
    import jax
    import jax.numpy as jnp

    def column(index: int, k: Any) -> Any:
        by_input = lambda a: f(*x[:index], a, *x[index + 1 :])  # noqa: E731
        seed = _unit_seed(x[index], batch.points_per_seed(index), k)
        tangent = jax.jvp(by_input, (x[index],), (seed,))[1]
        return tangent.reshape(batch.case.points, -1).sum(axis=1) if batch.workload.reduce else tangent

    return [
        jax.lax.map(functools.partial(column, index), jnp.arange(a.size // batch.points_per_seed(index)))
        for index, a in enumerate(x)
    ]


def _rows(batch: _seeds.Batch, f: Callable, x: tuple) -> list[Any]:
    """Compute the rows of the Jacobian by VJPs, and return them in the form of `Batch.rows`."""
    import jax
    import jax.numpy as jnp

    y, vjp = jax.vjp(f, *x)
    if batch.case.ad_mode.single_seed:
        return [row[None] for row in vjp(jnp.ones_like(y))]
    points, per_sum = 1 if batch.case.batch == "whole" else batch.case.points, batch.rows_per_sum

    def row(k: Any) -> tuple:
        return vjp(_unit_seed(y, points, k))

    def sum_of_rows(group: Any) -> tuple:
        zeros = tuple(jnp.zeros_like(a) for a in x)
        add = lambda k, sums: tuple(map(operator.add, sums, row(group * per_sum + k)))  # noqa: E731
        return jax.lax.fori_loop(0, per_sum, add, zeros, unroll=min(per_sum, _UNROLLED_ROWS))

    return jax.lax.map(row if per_sum == 1 else sum_of_rows, jnp.arange(y.size // points // per_sum))


def _unit_seed(like: Any, points: int, k: Any) -> Any:
    """Return an array with the shape of `like` in which element k of every point is 1 and all others 0."""
    import jax.numpy as jnp

    width = like.size // points
    return jnp.broadcast_to((jnp.arange(width) == k).astype(like.dtype), (points, width)).reshape(like.shape)
