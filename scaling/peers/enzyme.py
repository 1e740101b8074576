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
from scaling.peers import _batch
from scaling.peers.interface import Prepared, first_reason

PACKAGES = ("enzyme_ad",)
JIT = (True,)
MODES = ("value", "jacfwd", "jacrev", "grad_of_sum")
_UNROLLED_ROWS = 8  # rows per loop iteration, so that the compiler sums them without memory accesses


def reason_to_skip(case: Case, workload: Any, sizes: Any) -> str | None:
    return first_reason(
        (not case.ad_mode.is_value and _has_sort(case, workload),
         "Enzyme crashes when it differentiates a sort"),  # enzyme_ad 0.0.16
        (case.mode not in MODES, f"{case.engine} offers {', '.join(MODES)}"),
        *_batch.checks(case, workload, sizes),
    )  # fmt: skip


def _has_sort(case: Case, workload: Any) -> bool:
    """Return whether the traced function of a case sorts an array."""
    import jax

    from scaling.core.shape import point_structs

    structs = point_structs(case, workload)
    return " sort[" in str(jax.make_jaxpr(lambda inputs: workload.function(**inputs))(structs))


def prepare(case: Case, workload: Any, sizes: Any, arrays: dict[str, np.ndarray], threads: int) -> Prepared:
    """Differentiate the function of a case with Enzyme, and compile the derivative with XLA."""
    import jax

    with (
        jax.default_device(jax.local_devices(backend="cpu")[0]),
        jax.default_matmul_precision(case.precision),
    ):
        function, x, constants = _batch_function(case, workload, arrays)
        batch = _batch.Batch(case, workload, sizes, function, x)
        differentiate = _columns if case.mode == "jacfwd" else _rows

        def derivative(x: tuple, constants: dict) -> Any:
            f = lambda *z: function(z, constants)  # noqa: E731
            return f(*x) if case.ad_mode.is_value else differentiate(jax, batch, f, x)

        start = time.perf_counter()
        compiled = jax.jit(derivative).lower(x, constants).compile()
        seconds = time.perf_counter() - start

    def collect(result: Any) -> np.ndarray:
        return np.asarray(result) if case.ad_mode.is_value else batch.collect(map(np.asarray, result))

    call = lambda: jax.block_until_ready(compiled(x, constants))  # noqa: E731
    return Prepared(call, collect, seconds, sizes.passes or None)


def _batch_function(case: Case, workload: Any, arrays: dict[str, np.ndarray]) -> tuple[Callable, tuple, dict]:
    """Return (function, x, constants), where function(x, constants) evaluates the whole batch.

    `x` is a tuple of the differentiated inputs, and `constants` is a dict of the other inputs by name.
    """
    import jax
    from enzyme_ad.jax import enzyme_jax_ir

    inputs = {name: jax.numpy.asarray(array) for name, array in arrays.items()}
    copied = _batch.copied_inputs(case, workload)
    for name in copied:
        inputs[name] = jax.numpy.broadcast_to(inputs[name], (case.points, *inputs[name].shape))

    def function(x: tuple, constants: dict) -> Any:
        named = constants | dict(zip(workload.names, x, strict=True))
        if case.batch == "whole":
            return workload.whole(**named)
        axes = {name: 0 if name in {*workload.points, *copied} else None for name in named}
        return jax.vmap(lambda one_point: workload.function(**one_point), (axes,))(named)

    x = tuple(inputs.pop(name) for name in workload.names)
    return enzyme_jax_ir()(function), x, inputs


def _columns(jax: Any, batch: _batch.Batch, f: Callable, x: tuple) -> list[Any]:
    """Compute the columns of the Jacobian by JVPs, and return them in the form of `Batch.columns`."""

    def column(index: int, k: Any) -> Any:
        by_input = lambda a: f(*x[:index], a, *x[index + 1 :])  # noqa: E731
        seed = _unit_seed(jax, x[index], batch.points_per_tangent(index), k)
        tangent = jax.jvp(by_input, (x[index],), (seed,))[1]
        return tangent.reshape(batch.case.points, -1).sum(axis=1) if batch.workload.reduce else tangent

    counts = [a.size // batch.points_per_tangent(index) for index, a in enumerate(x)]
    return [
        jax.lax.map(functools.partial(column, index), jax.numpy.arange(count))
        for index, count in enumerate(counts)
    ]


def _rows(jax: Any, batch: _batch.Batch, f: Callable, x: tuple) -> list[Any]:
    """Compute the rows of the Jacobian by VJPs, and return them in the form of `Batch.rows`."""
    y, vjp = jax.vjp(f, *x)
    if batch.case.ad_mode.single_seed:
        return [row[None] for row in vjp(jax.numpy.ones_like(y))]
    points, per_sum = batch.points_per_cotangent, batch.rows_per_sum

    def sum_of_rows(group: Any) -> tuple:
        zeros = tuple(jax.numpy.zeros_like(a) for a in x)
        row = lambda k: vjp(_unit_seed(jax, y, points, group * per_sum + k))  # noqa: E731
        add = lambda k, sums: tuple(map(operator.add, sums, row(k)))  # noqa: E731
        return jax.lax.fori_loop(0, per_sum, add, zeros, unroll=min(per_sum, _UNROLLED_ROWS))

    return jax.lax.map(sum_of_rows, jax.numpy.arange(y.size // points // per_sum))


def _unit_seed(jax: Any, like: Any, points: int, k: Any) -> Any:
    """Return an array with the shape of `like` in which element k of every point is 1 and all others 0."""
    width = like.size // points
    seed = (jax.numpy.arange(width) == k).astype(like.dtype)
    return jax.numpy.broadcast_to(seed, (points, width)).reshape(like.shape)
