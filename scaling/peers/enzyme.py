"""enzyme: Enzyme-JAX, which differentiates the compiler's program instead of JAX's; on the CPU, one core.

It has no vmap. The function of the whole batch is handed to it, and one pass gives a column, or a row, of every point's Jacobian;
a loop in the same program goes over the seeds. Takes any workload that is written in JAX, as far as Enzyme has rules for it: one
with LAPACK, sorting or running products fails, in Enzyme's own words. Nested it fails too, so that there is no Hessian.
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
UNROLLED = 8  # rows of a sum that the compiler is shown at once: it adds them up without going to memory between them


def unfit(case: Case, workload: Any, sizes: Any) -> str | None:
    """Why Enzyme does not offer a case."""
    return _seeds.refused(case, workload, sizes, MODES)


def prepare(case: Case, workload: Any, sizes: Any, arrays: dict[str, np.ndarray], threads: int) -> Prepared:
    """Traced, differentiated and compiled ahead of time, as one XLA program."""
    import jax

    with (
        jax.default_device(jax.local_devices(backend="cpu")[0]),
        jax.default_matmul_precision(case.precision),
    ):
        function, x, rest = _batch(case, workload, arrays)
        batch = _seeds.Batch(case, workload, sizes, function, x)
        derivative = {"value": _value, "jacfwd": _columns}.get(case.mode, _rows)
        began = time.perf_counter()
        compiled = (
            jax.jit(lambda x, rest: derivative(batch, lambda *z: function(*z, *rest), x))
            .lower(x, rest)
            .compile()
        )
        seconds = time.perf_counter() - began
    collect = (
        np.asarray
        if case.ad_mode.is_value
        else lambda parts: batch.collect([np.asarray(part) for part in parts])
    )
    return Prepared(lambda: jax.block_until_ready(compiled(x, rest)), collect, seconds, sizes.passes or None)


def _batch(case: Case, workload: Any, arrays: dict[str, np.ndarray]) -> tuple[Callable, tuple, tuple]:
    """(function of all points by position, differentiated by Enzyme; the inputs that it is differentiated by; the others)."""
    import jax
    import jax.numpy as jnp
    from enzyme_ad.jax import enzyme_jax_ir

    order = [*workload.names, *(name for name in arrays if name not in workload.names)]
    named = {name: jnp.asarray(array) for name, array in arrays.items()}
    copied = _seeds.copied(case, workload)
    for name in copied:
        named[name] = jnp.broadcast_to(named[name], (case.points, *named[name].shape))
    if case.batch == "whole":
        function = lambda *z: workload.whole(**dict(zip(order, z, strict=True)))  # noqa: E731
    else:
        axes = [0 if name in workload.points or name in copied else None for name in order]
        function = jax.vmap(lambda *z: workload.function(**dict(zip(order, z, strict=True))), axes)
    x, rest = (
        tuple(named[name] for name in names) for names in (workload.names, order[len(workload.names) :])
    )
    if not case.ad_mode.is_value and " sort[" in str(jax.make_jaxpr(function)(*x, *rest)):
        raise NotImplementedError("Enzyme's derivative of a sort ends the process")  # enzyme_ad 0.0.16
    return enzyme_jax_ir()(function), x, rest


def _value(batch: _seeds.Batch, f: Callable, x: tuple) -> Any:
    return f(*x)


def _columns(batch: _seeds.Batch, f: Callable, x: tuple) -> list[Any]:
    """One JVP a seed, by one input at a time: for every input its columns, columns leading."""
    import jax
    import jax.numpy as jnp

    def column(place: int, rows: int, k: Any) -> Any:
        by_one = lambda a: f(*x[:place], a, *x[place + 1 :])  # noqa: E731
        slice_ = jax.jvp(by_one, (x[place],), (_seed(x[place], rows, k),))[1]
        return slice_.reshape(batch.case.points, -1).sum(axis=1) if batch.workload.reduce else slice_

    parts = []
    for place, a in enumerate(x):
        rows = batch.sharing(place)
        parts.append(jax.lax.map(functools.partial(column, place, rows), jnp.arange(a.size // rows)))
    return parts


def _rows(batch: _seeds.Batch, f: Callable, x: tuple) -> list[Any]:
    """One VJP a seed: for every input its rows, rows leading, those of one sum added up."""
    import jax
    import jax.numpy as jnp

    y, pull = jax.vjp(f, *x)
    if batch.case.ad_mode.single_seed:
        return [row[None] for row in pull(jnp.ones_like(y))]
    rows = 1 if batch.case.batch == "whole" else batch.case.points

    def row(k: Any) -> tuple:
        return pull(_seed(y, rows, k))

    def added(group: Any) -> tuple:
        first, zeros = group * batch.together, tuple(jnp.zeros_like(a) for a in x)
        add = lambda k, sums: tuple(map(operator.add, sums, row(first + k)))  # noqa: E731
        return jax.lax.fori_loop(0, batch.together, add, zeros, unroll=min(batch.together, UNROLLED))

    one = row if batch.together == 1 else added
    return jax.lax.map(one, jnp.arange(y.size // rows // batch.together))


def _seed(like: Any, rows: int, k: Any) -> Any:
    """Seed k of an array whose `rows` leading entries have theirs together."""
    import jax.numpy as jnp

    width = like.size // rows
    return jnp.broadcast_to((jnp.arange(width) == k).astype(like.dtype), (rows, width)).reshape(like.shape)
