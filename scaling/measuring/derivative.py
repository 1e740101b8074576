"""The derivative of a batch of points, as one function of its inputs: a mode's linear map applied to a matrix of seeds.

`local` is what one device computes from its part of the points or of the seeds; `collect` puts the parts' results into one
order, whatever the mode, (points, outputs, inputs). Does not know meshes, devices or apis.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from scaling import peer
from scaling.case import FORWARD, HESSIAN, SECOND, WHOLE, Case, Refusal
from scaling.measuring.modes import SEEDED
from scaling.workload import Workload

Named = Mapping[str, Any]
_COLUMNS = FORWARD + HESSIAN  # modes whose seeds are tangents and whose slices are columns


@dataclass(frozen=True)
class Shape:
    """The sizes of a derivative. A Hessian has as many outputs as inputs: it is the derivative of the gradient."""

    outputs: int  # of one point
    inputs: int  # of one point, those that the derivative is by; 1 for a Hessian times a vector
    seeds: int  # that one linear map takes; 0 for a whole mode
    passes: int  # JVPs and VJPs that these take
    rank: int  # of what is differentiated: one point's outputs, or the batch's
    summed: bool  # the batch is one number, the sum over points
    values: int  # numbers that the function itself gives at one point


def inputs(case: Case, workload: Workload) -> tuple[Named, Named]:
    """Shapes and dtypes of the per-point inputs, points leading, and of the shared ones; nothing is allocated."""

    def struct(draw, *leading: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((*leading, *draw.shape), jnp.int32 if draw.integer else jnp.dtype(case.dtype))

    points = {name: struct(draw, case.points) for name, draw in workload.points.items()}
    return points, {name: struct(draw) for name, draw in workload.shared.items()}


def shape(case: Case, workload: Workload) -> Shape:
    """The sizes of the derivative of a case, by abstract evaluation; a function that cannot be evaluated is a `Refusal`."""
    points, shared = inputs(case, workload)
    one = {name: jax.ShapeDtypeStruct(x.shape[1:], x.dtype) for name, x in points.items()}
    one |= shared
    out = _abstract(case, workload.function, one)
    columns = sum(one[name].size for name in workload.names)
    if not out.size or not columns:
        raise Refusal(f"workload {case.workload!r} has nothing to differentiate: {columns} inputs, {out.size} outputs")
    differentiated, by = out, one
    if case.batch == "whole" and workload.whole is not None:
        by = {**points, **shared}
        differentiated = _abstract(case, workload.whole, by)
        if differentiated.shape not in ((), (case.points, *out.shape)):
            raise Refusal(
                f"whole of {case.workload} must return {(case.points, *out.shape)} or one number, not {differentiated.shape}"
            )
    if case.target in SECOND:
        width = columns if case.target == "hessian" else 1
        seeds = 0 if case.mode in WHOLE else width
        return Shape(columns, width, seeds, seeds * (columns if case.mode == "fwd_over_fwd" else 1), 1, False, out.size)
    forward_seeds = sum(by[name].size for name in workload.names)
    seeds = 0 if case.mode in WHOLE else forward_seeds if case.mode in FORWARD else differentiated.size
    seeds = 1 if case.mode == "grad_of_sum" else seeds
    summed = case.batch == "whole" and differentiated.shape == () != (case.points, *out.shape)
    return Shape(out.size, columns, seeds, seeds, len(differentiated.shape), summed, out.size)


def unchunked(case: Case, sizes: Shape) -> Case:
    """The same case without `chunk` where it takes all of a device's seeds at once, which is the same program."""
    here = sizes.seeds // (case.devices if case.split == "seeds" else 1)
    return dataclasses.replace(case, chunk=None) if case.chunk is not None and case.chunk >= here else case


def due(case: Case, workload: Workload, sizes: Shape) -> tuple[int, int, int]:
    """The shape of a result on the host: (points, outputs, inputs).

    outputs is 1 after a sum over them, inputs 1 for a value. One number, the sum of a value over the points, is (1, 1, 1).
    """
    if case.mode == "value":
        return (1, 1, 1) if sizes.summed else (case.points, sizes.outputs, 1)
    return case.points, 1 if sizes.summed or workload.reduce else sizes.outputs, sizes.inputs


def _abstract(case: Case, function: Callable, named: Named) -> jax.ShapeDtypeStruct:
    try:
        out = jax.eval_shape(lambda named: function(**named), dict(named))
    except Exception as error:
        first = (str(error).strip().splitlines() or [""])[0]
        raise Refusal(f"workload {case.workload!r} fails on abstract inputs: {type(error).__name__}: {first}") from None
    if not isinstance(out, jax.ShapeDtypeStruct) or not jnp.issubdtype(out.dtype, jnp.floating):
        raise Refusal(f"workload {case.workload!r} must return one array of real numbers, not {out}")
    return out


def local(case: Case, workload: Workload, sizes: Shape) -> Callable[[Named, Named, Any], Any]:
    """(per-point inputs, shared inputs, first seed) -> this device's part of the derivative."""

    def compute(points: Named, shared: Named, first_seed: Any) -> Any:
        if case.mode in workload.whole_modes:
            return workload.whole_modes[case.mode](**points, **shared)
        if case.batch == "whole":
            assert workload.whole is not None
            if case.mode == "value":
                value = workload.whole(**points, **shared)
                return value[None] if sizes.summed else value
            return _jacobian(case, workload, sizes, workload.whole, {**points, **shared}, first_seed)
        if case.mode == "value":
            return jax.vmap(lambda one: workload.function(**one, **shared))(points)
        part = jax.vmap(lambda one: _jacobian(case, workload, sizes, workload.function, {**one, **shared}, first_seed))(points)
        return jax.tree.map(lambda x: x[None], part) if _partial_sums(case, workload) else part

    def with_precision(points: Named, shared: Named, first_seed: Any) -> Any:
        with jax.default_matmul_precision(case.precision):
            return compute(points, shared, first_seed)

    return with_precision


def _partial_sums(case: Case, workload: Workload) -> bool:
    """Whether each device ends with its own part of a sum over seeds; adding the parts up would be an all-reduce."""
    return case.split == "seeds" and case.batch == "vmap" and case.mode not in FORWARD and workload.reduce == "outputs"


def _jacobian(case: Case, workload: Workload, sizes: Shape, function: Callable, named: Named, first_seed: Any) -> Any:
    """This device's slices of one Jacobian. Forward: an array, seeds last. Reverse: an array per input, seeds first."""
    x = tuple(named[name] for name in workload.names)

    def f(*z: Any) -> Any:
        y = function(**{**named, **dict(zip(workload.names, z, strict=True))})
        return jnp.sum(y) if case.mode in (*HESSIAN, "grad_of_sum") else y  # of one number, for a Hessian

    linear_map = SEEDED[case.mode](f, x)
    if case.target == "hvp":
        return linear_map(x)[:, None]
    here = sizes.seeds // (case.devices if case.split == "seeds" else 1)
    batch = case.batch == "whole"  # the outputs of every point, or of one
    if case.mode in _COLUMNS:

        def column(*seed: Any) -> Any:
            slice_ = linear_map(seed)
            if workload.reduce is None:
                return slice_
            return jnp.sum(slice_.reshape(slice_.shape[0], -1), axis=1) if batch else jnp.sum(slice_)

        return _over_seeds(case, column, x, sizes.seeds, first_seed, here, -1)
    like = (jax.eval_shape(f, *x),)
    if workload.reduce and case.chunk and not batch:
        return list(_sum_over_seeds(linear_map, like, first_seed, here, case.chunk))
    rows = _over_seeds(case, linear_map, like, sizes.seeds, first_seed, here, 0)
    if workload.reduce is None or (sizes.seeds == 1 and not batch):
        return rows
    if batch:
        return [jnp.sum(row.reshape(-1, sizes.outputs, *row.shape[1:]), axis=1) for row in rows]
    return [jnp.sum(row, axis=0) for row in rows]


def _over_seeds(case: Case, linear_map: Callable, like: tuple, total: int, first: Any, count: int, axis: int) -> Any:
    """The linear map applied to rows `first` to `first + count` of the identity, its slices stacked along `axis`."""
    if total == 1:  # a batch of one seed costs up to four times the one call that it stands for
        slices = linear_map(*[jnp.ones(a.shape, a.dtype) for a in like])
        # Even an axis of one costs a copy of the result, where XLA puts it in another order.
        return slices if case.batch == "vmap" else jax.tree.map(lambda slice_: jnp.expand_dims(slice_, axis), slices)
    at = _at_row(linear_map, like)
    rows = first + jnp.arange(count)
    if case.chunk is None or case.chunk >= count:
        return jax.vmap(at, out_axes=axis)(rows)
    slices = jax.lax.map(at, rows, batch_size=case.chunk)
    return jax.tree.map(lambda a: jnp.moveaxis(a, 0, axis), slices)


def _at_row(linear_map: Callable, like: tuple) -> Callable[[Any], Any]:
    """The linear map by the number of a row of the identity."""

    def at(row: Any) -> Any:
        seed, start = [], 0
        for a in like:
            seed.append((row == start + jnp.arange(a.size)).astype(a.dtype).reshape(a.shape))
            start += a.size
        return linear_map(*seed)

    return at


def _sum_over_seeds(linear_map: Callable, like: tuple, first: Any, count: int, chunk: int) -> Any:
    """The sum of the slices of rows `first` to `first + count`, of which no more than `chunk` are there at a time."""
    some = jax.vmap(_at_row(linear_map, like))

    def summed(start: Any, length: int) -> Any:
        return jax.tree.map(lambda a: jnp.sum(a, axis=0), some(start + jnp.arange(length)))

    chunk = min(chunk, count)
    whole, rest = divmod(count, chunk)
    total = summed(first, chunk)
    if whole > 1:
        add = lambda k, total: jax.tree.map(jnp.add, total, summed(first + k * chunk, chunk))  # noqa: E731
        total = jax.lax.fori_loop(1, whole, add, total)
    return jax.tree.map(jnp.add, total, summed(first + whole * chunk, rest)) if rest else total


def cut_axis(case: Case, workload: Workload, sizes: Shape) -> int:
    """The axis, in every array of the result, along which the devices' parts follow each other."""
    if case.split == "points" or sizes.seeds == 1:
        return 0
    leading = 1 if case.batch == "vmap" else 0
    if case.mode in _COLUMNS:
        return 1 if workload.reduce else leading + sizes.rank
    return 0 if workload.reduce else leading


def collect(case: Case, workload: Workload, sizes: Shape, result: Any) -> np.ndarray:
    """The whole result, on the host, in the shape that is due."""
    parts = [np.asarray(part) for part in jax.tree.leaves(result)]
    shape = due(case, workload, sizes)
    if case.mode in WHOLE:
        if parts[0].size != math.prod(shape):
            raise Refusal(f"{case.mode} of {case.workload} returns {parts[0].shape}, where {shape} is due")
        return parts[0].reshape(shape)
    if _partial_sums(case, workload):
        parts = [part.astype(np.float64).sum(axis=0) for part in parts]
    if sizes.summed and case.mode in FORWARD:  # the seeds run over every point of one input, then of the next
        ends = np.cumsum([case.points * math.prod(workload.points[name].shape) for name in workload.names])
        parts = np.split(parts[0], ends[:-1])
    return np.concatenate([part.reshape(*shape[:2], -1) for part in parts], axis=2)


def _undefined(case: Case, workload: Workload, sizes: Shape) -> str | None:
    """Why a mode and a target do not belong together."""
    if case.target in SECOND:
        if sizes.values != 1:
            return f"a Hessian is that of one number, and {case.workload} has {sizes.values} outputs"
        if case.mode in SEEDED and case.mode not in HESSIAN:
            return f"{case.mode} differentiates once; the modes of target={case.target} are {', '.join(HESSIAN)}"
        if case.batch == "whole":
            return f"target={case.target} is taken point by point; batch=vmap is that"
    elif case.mode in HESSIAN:
        return f"{case.mode} differentiates twice; its targets are {' and '.join(SECOND)}"
    added = workload.reduce and case.batch == "vmap"
    if case.mode == "grad_of_sum" and not (added or sizes.summed or (sizes.outputs == 1 and case.batch == "vmap")):
        return f"the derivative of {case.workload} asked for is not one of a sum over outputs"
    return None


def unfit(case: Case, workload: Workload, sizes: Shape) -> tuple[str, str] | None:
    """Why a case cannot run by its nature, as (reason, words); None if it can."""
    seeded = case.mode in SEEDED
    if words := _undefined(case, workload, sizes):
        return "not_defined", words
    ours = case.engine == peer.JAX
    if ours and case.mode in WHOLE and case.mode != "value" and case.mode not in workload.whole_modes:
        return "not_offered", f"{case.workload} offers no {case.mode}" + (f" by {case.wrt}" if case.wrt else "")
    if case.batch == "whole":
        if workload.whole is None:
            return "not_offered", f"{case.workload} does not offer batch=whole"
        per_point = [name in workload.points for name in workload.names]
        if seeded and not (all(per_point) if sizes.summed else not any(per_point)):
            return "not_offered", f"{case.workload} with batch=whole is not differentiated by {case.wrt}"
        if ours and case.devices > 1 and case.split == "points":
            return "not_defined", "a batch taken at once is not cut over points; split=seeds cuts its seeds"
    if not ours:
        return peer.unfit(case, workload, sizes)
    if case.mode in WHOLE and case.split == "seeds":
        return "not_defined", f"{case.mode} has no seeds to cut; split=points cuts it"
    if case.api == "jit" and case.devices > 1:
        return "not_defined", "api=jit is the plain program on one device"
    if not case.jit and case.api != "jit":
        return "not_defined", "jit=false runs with api=jit only"
    if case.split == "seeds" and sizes.seeds % case.devices:
        return "indivisible", f"{sizes.seeds} seeds do not share out over {case.devices} devices"
    if case.split == "seeds" and case.batch == "whole" and workload.reduce and case.points % case.devices:
        return "indivisible", f"the outputs of {case.points} points do not share out over {case.devices} devices"
    return None
