"""Enzyme-JAX, which differentiates the compiler's program instead of JAX's; on the CPU, one core.

It has no vmap. It gets the function of the whole batch, and one pass gives a column, or a row, of every
point's Jacobian; a loop in the same program goes over the seeds. Takes any workload in JAX for which
Enzyme has rules: LAPACK, sorting and running products fail with Enzyme's message. Nested it fails too, so
there is no Hessian.
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
UNROLLED = (
    8  # rows of a sum in one iteration of a loop: the compiler adds them up without memory access between
)


def unfit(case: Case, workload: Any, sizes: Any) -> str | None:
    """Return why Enzyme does not offer a case; None if it does."""
    return _seeds.refused(case, workload, sizes, MODES)


def prepare(case: Case, workload: Any, sizes: Any, arrays: dict[str, np.ndarray], threads: int) -> Prepared:
    """Return the derivative as one XLA program, compiled ahead of time."""
    import jax

    with (
        jax.default_device(jax.local_devices(backend="cpu")[0]),
        jax.default_matmul_precision(case.precision),
    ):
        function, x, rest = _batch(case, workload, arrays)
        batch = _seeds.Batch(case, workload, sizes, function, x)
        derivative = {"value": _value, "jacfwd": _columns}.get(case.mode, _rows)
        program = jax.jit(lambda x, rest: derivative(batch, lambda *z: function(*z, *rest), x))
        began = time.perf_counter()
        compiled = program.lower(x, rest).compile()
        seconds = time.perf_counter() - began

    def collect(result: Any) -> np.ndarray:
        return np.asarray(result) if case.ad_mode.is_value else batch.collect(map(np.asarray, result))

    return Prepared(lambda: jax.block_until_ready(compiled(x, rest)), collect, seconds, sizes.passes or None)


def _batch(case: Case, workload: Any, arrays: dict[str, np.ndarray]) -> tuple[Callable, tuple, tuple]:
    """Return the function of all points by position, the inputs by which it is differentiated, and the
    others.
    """
    import jax
    import jax.numpy as jnp
    from enzyme_ad.jax import enzyme_jax_ir

    order = [*workload.names, *(name for name in arrays if name not in workload.names)]
    named = {name: jnp.asarray(array) for name, array in arrays.items()}
    copied = _seeds.copied(case, workload)
    for name in copied:
        named[name] = jnp.broadcast_to(named[name], (case.points, *named[name].shape))
    whole = case.batch == "whole"
    by_name = workload.whole if whole else workload.function
    function = lambda *z: by_name(**dict(zip(order, z, strict=True)))  # noqa: E731
    if not whole:
        axes = [0 if name in workload.points or name in copied else None for name in order]
        function = jax.vmap(function, axes)
    given = [named[name] for name in order]
    x, rest = tuple(given[: len(workload.names)]), tuple(given[len(workload.names) :])
    if not case.ad_mode.is_value and " sort[" in str(jax.make_jaxpr(function)(*x, *rest)):
        raise NotImplementedError("Enzyme's derivative of a sort ends the process")  # enzyme_ad 0.0.16
    return enzyme_jax_ir()(function), x, rest


def _value(batch: _seeds.Batch, f: Callable, x: tuple) -> Any:
    return f(*x)


def _columns(batch: _seeds.Batch, f: Callable, x: tuple) -> list[Any]:
    """Return the columns by each input, columns leading: one JVP for each seed, by one input at a time."""
    import jax
    import jax.numpy as jnp

    def column(index: int, k: Any) -> Any:
        by_one = lambda a: f(*x[:index], a, *x[index + 1 :])  # noqa: E731
        slice_ = jax.jvp(by_one, (x[index],), (_seed(x[index], batch.common_seeds(index), k),))[1]
        return slice_.reshape(batch.case.points, -1).sum(axis=1) if batch.workload.reduce else slice_

    return [
        jax.lax.map(functools.partial(column, index), jnp.arange(a.size // batch.common_seeds(index)))
        for index, a in enumerate(x)
    ]


def _rows(batch: _seeds.Batch, f: Callable, x: tuple) -> list[Any]:
    """Return the rows by each input, rows leading, added up where the outputs are: one VJP for each seed."""
    import jax
    import jax.numpy as jnp

    y, pull = jax.vjp(f, *x)
    if batch.case.ad_mode.single_seed:
        return [row[None] for row in pull(jnp.ones_like(y))]
    common, per_sum = 1 if batch.case.batch == "whole" else batch.case.points, batch.rows_per_sum

    def row(k: Any) -> tuple:
        return pull(_seed(y, common, k))

    def row_of_sum(group: Any) -> tuple:
        zeros = tuple(jnp.zeros_like(a) for a in x)
        add = lambda k, sums: tuple(map(operator.add, sums, row(group * per_sum + k)))  # noqa: E731
        return jax.lax.fori_loop(0, per_sum, add, zeros, unroll=min(per_sum, UNROLLED))

    return jax.lax.map(row if per_sum == 1 else row_of_sum, jnp.arange(y.size // common // per_sum))


def _seed(like: Any, common: int, k: Any) -> Any:
    """Return seed k of an array whose `common` leading entries have the same."""
    import jax.numpy as jnp

    width = like.size // common
    return jnp.broadcast_to((jnp.arange(width) == k).astype(like.dtype), (common, width)).reshape(like.shape)
