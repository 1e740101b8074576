"""The derivative that one device computes: seeds -> slices -> its part of the result.

A seeded mode maps (f, x) to a linear map from a seed to one slice of the Jacobian of f at x: a column in
forward mode, a row in reverse mode. A Jacobian is that map applied to a matrix of seeds, whose rows are those
of the identity, or their sums by colour. Distributing it is choosing which axis to partition: a device has
some of the points, and some rows of the matrix of seeds. It reduces its slices as they are computed; with
`chunk` it never holds more than that many. Does not know meshes or apis (layout.py), nor how parts are put
together (gather.py).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from scaling.core import extensions
from scaling.core.case import Case
from scaling.core.modes import MODES
from scaling.core.reductions import WHOLE, Reduction
from scaling.core.shape import DerivativeShape, LinearMapPart, ceil_div
from scaling.core.workload import Workload

Named = Mapping[str, Any]


class DevicePosition(NamedTuple):
    """Where a device is along points and seeds, the first seed of this step, and the sum over all devices."""

    points: Any = 0
    seeds: Any = 0
    start: Any = 0
    over_all: Callable[[Any], Any] = lambda tree: tree


@dataclass(frozen=True)
class SeedRange:
    """Rows `first` to `first + count` of the matrix of seeds, at most `chunk` at a time, None for all."""

    first: Any
    count: int
    chunk: int | None = None

    @property
    def rows(self) -> Any:
        """The numbers of the rows."""
        return self.first + jnp.arange(self.count)

    @property
    def at_once(self) -> bool:
        """Whether all rows are taken without a loop."""
        return self.chunk is None or self.chunk >= self.count


class Slices(NamedTuple):
    """The slices of a linear map on one device: seed number -> slice, and the numbers of its seeds.

    x: the inputs that the map differentiates by.
    """

    part: LinearMapPart
    at: Callable[[Any], Any]
    seeds: SeedRange
    x: tuple[Any, ...]


def local_derivative(
    case: Case, workload: Workload, sizes: DerivativeShape
) -> Callable[[Named, Named, Named, DevicePosition], Any]:
    """Return the function (per-point inputs, shared inputs, coloring, position) -> part of this device.

    A seeded derivative is a tuple with an entry for each linear map; with coloured seeds, of the entries of
    the pattern that this device reads.
    """

    def compute(points: Named, shared: Named, coloring: Named, here: DevicePosition) -> Any:
        with jax.default_matmul_precision(case.precision):
            if case.mode in workload.whole_modes:
                return _derivative_by_hand(case, workload, sizes, {**points, **shared}, here)
            if workload.reduction.sums_points:
                option = extensions.load("data_parallel")
                return option.sum_derivative(case, workload, sizes, points, shared, here)
            if case.batch == "whole":
                assert workload.whole is not None
                return evaluate(workload.whole, {**points, **shared}, coloring, here)
            at_point = lambda one: evaluate(workload.function, {**one, **shared}, coloring, here)  # noqa: E731
            if case.block is None:
                return jax.vmap(at_point)(points)
            return jax.lax.map(at_point, points, batch_size=case.block)

    def evaluate(function: Callable[..., Any], named: Named, coloring: Named, here: DevicePosition) -> Any:
        if case.ad_mode.is_value:
            return function(**named)
        return _jacobian(case, workload, sizes, function, named, coloring, here)

    return compute


def _jacobian(
    case: Case,
    workload: Workload,
    sizes: DerivativeShape,
    function: Callable[..., Any],
    named: Named,
    coloring: Named,
    here: DevicePosition,
) -> tuple[Any, ...]:
    """Return this device's slices of one Jacobian, reduced, one entry for each linear map."""
    batch = case.points if case.batch == "whole" and not sizes.summed else None
    made = []
    for number, part in enumerate(sizes.parts):
        colors = coloring.get("columns" if part.columns else "rows")
        slices = apply_linear_map(case, part, function, named, here, colors)
        if colors is None:
            made.append(reduce_slices(slices, workload.reduction, sizes, batch))
        else:
            made.append(extensions.load("sparse").read_entries(slices, colors, coloring[f"entries {number}"]))
    return tuple(made)


def _derivative_by_hand(
    case: Case, workload: Workload, sizes: DerivativeShape, named: Named, here: DevicePosition
) -> Any:
    """Return the derivative that the workload itself computes, reduced where it is a whole Jacobian."""
    result = workload.whole_modes[case.mode](**named)
    if workload.reduction.sums_points:
        return here.over_all(result)
    if not workload.reduces_whole_modes:
        return result
    points = next(named[name].shape[0] for name in workload.points)
    leading = [named[name] if name in workload.points else named[name][None] for name in workload.names]
    x = [jnp.broadcast_to(a.reshape(a.shape[0], -1), (points, a[0].size)) for a in leading]
    J = result.reshape(points, sizes.outputs, sizes.inputs)
    return workload.reduction.of_jacobians(J, jnp.concatenate(x, axis=1))


def apply_linear_map(
    case: Case,
    part: LinearMapPart,
    function: Callable[..., Any],
    named: Named,
    here: DevicePosition,
    colors: Any = None,
) -> Slices:
    """Return the slices of a function's derivative at its inputs that a device computes.

    colors: of the columns or rows of the Jacobian; None for the rows of the identity as seeds.
    """
    x, mode = tuple(named[name] for name in part.names), MODES[part.mode]

    def f(*z: Any) -> Any:
        y = function(**{**named, **dict(zip(part.names, z, strict=True))})
        return jnp.sum(y) if mode.sums_outputs else y

    if case.remat and mode.uses_reverse:
        f = jax.checkpoint(f, policy=getattr(jax.checkpoint_policies, case.remat))
    assert mode.linear_map is not None
    linear_map = mode.linear_map(f, x)
    if part.along:
        return Slices(part, lambda _: linear_map(x), SeedRange(0, 1), x)
    like = x if part.columns else (jax.eval_shape(f, *x),)
    # XLA need not multiply by a seed that is the number one.
    only = case.axes[1] == 1 and sum(a.size for a in like) == 1

    def at(number: Any) -> Any:
        seed = tuple(jnp.ones(a.shape, a.dtype) for a in like) if only else make_seed(like, number, colors)
        return linear_map(seed) if part.columns else linear_map(*seed)

    count, chunk = ceil_div(part.seeds, case.axes[1]), case.chunk if isinstance(case.chunk, int) else None
    return Slices(part, at, SeedRange(here.start + here.seeds * count, count, chunk), x)


def make_seed(like: tuple[Any, ...], number: Any, colors: Any = None) -> tuple[Any, ...]:
    """Return a row of the identity, or with colors the sum of its rows of that color, as arrays like these.

    The seed is zero beyond the last row, and for a color without rows.
    """
    seed, start = [], 0
    for a in like:
        stop = start + a.size
        rows = number == start + jnp.arange(a.size) if colors is None else colors[start:stop] == number
        seed.append(rows.astype(a.dtype).reshape(a.shape))
        start = stop
    return tuple(seed)


def map_seeds(each: Callable[[Any], Any], seeds: SeedRange, axis: int = 0) -> Any:
    """Apply a function of a seed number to all seeds, and stack the results along an axis."""
    if seeds.at_once:
        return jax.vmap(each, out_axes=axis)(seeds.rows)
    made = jax.lax.map(each, seeds.rows, batch_size=seeds.chunk)
    return jax.tree.map(lambda a: jnp.moveaxis(a, 0, axis), made)


def sum_over_seeds(total_of: Callable[[Any], Any], seeds: SeedRange) -> Any:
    """Return the sum over all seeds. total_of: adds up the seeds whose numbers it is given."""
    if seeds.at_once:
        return total_of(seeds.rows)
    chunk = seeds.chunk
    assert chunk is not None
    loops, rest = divmod(seeds.count, chunk)

    def total_from(start: Any, length: int) -> Any:
        """Return the sum over some seeds; a long sum is not kept in the 8 bits of bfloat16."""
        total = total_of(seeds.first + start + jnp.arange(length))
        return jax.tree.map(lambda a: a.astype(jnp.promote_types(a.dtype, jnp.float32)), total)

    add = lambda a, b: jax.tree.map(jnp.add, a, b)  # noqa: E731
    total = total_from(0, chunk)
    if loops > 1:
        total = jax.lax.fori_loop(1, loops, lambda k, total: add(total, total_from(k * chunk, chunk)), total)
    total = add(total, total_from(loops * chunk, rest)) if rest else total
    like = jax.eval_shape(lambda: total_of(seeds.first + jnp.arange(chunk)))
    return jax.tree.map(lambda a, b: a.astype(b.dtype), total, like)


def reduce_slices(
    slices: Slices,
    reduction: Reduction = WHOLE,
    sizes: DerivativeShape | None = None,
    batch: int | None = None,
) -> Any:
    """Return the slices of a device, or what its reduction keeps of them.

    batch: the points whose outputs the function returns at once; None where it returns those of one point.
    """
    if slices.part.columns:
        return _reduce_columns(slices, reduction, sizes.inputs if sizes else 0, batch)
    return _reduce_rows(slices, reduction, sizes.outputs if sizes else 1, batch)


def _reduce_columns(slices: Slices, reduction: Reduction, inputs: int, batch: int | None) -> Any:
    """Return columns, seeds last; their sum; or their products with the columns of all inputs."""
    shape = (-1,) if batch is None else (batch, -1)
    flat = lambda number: slices.at(number).reshape(shape)  # noqa: E731
    step, seeds = reduction.columns, slices.seeds
    if slices.part.along:
        return flat(0)
    if step.products:
        return _multiply_columns(flat, seeds, inputs)
    each = step.each
    kept = slices.at if each is None else lambda number: each(flat(number))
    if seeds.count == 1:  # a batch of one seed costs up to four times as much as one call
        return kept(seeds.first)
    if step.added:
        return sum_over_seeds(lambda rows: jnp.sum(jax.vmap(kept)(rows), axis=0), seeds)
    return map_seeds(kept, seeds, axis=-1)


def _multiply_columns(column: Callable[[Any], Any], seeds: SeedRange, inputs: int) -> Any:
    """Return the products of this device's columns with all: (columns of this device, inputs).

    In chunks, all columns are computed again with each chunk of this device's.
    """
    if seeds.at_once and seeds.count >= inputs:
        C = jax.vmap(column)(seeds.rows)
        return C @ C.T
    length = min(seeds.chunk or seeds.count, seeds.count)

    def block(number: Any) -> Any:
        C = jax.vmap(column)(seeds.first + number * length + jnp.arange(length))
        return map_seeds(lambda r: C @ column(r), SeedRange(0, inputs, seeds.chunk), axis=-1)

    blocks = ceil_div(seeds.count, length)
    return jax.lax.map(block, jnp.arange(blocks)).reshape(blocks * length, -1)[: seeds.count]


def _reduce_rows(slices: Slices, reduction: Reduction, outputs: int, batch: int | None) -> Any:
    """Return rows, seeds first, an array for each input; their sum; that of their products; or numbers.

    outputs: of each point.
    """
    step, seeds = reduction.rows, slices.seeds
    if step.products:
        return sum_over_seeds(lambda some: _multiply_rows(jax.vmap(slices.at)(some)), seeds)
    each = step.each
    kept = slices.at if each is None else lambda number: each(slices.at(number), slices.x)
    if step.added:
        leaves = lambda number: jax.tree.leaves(kept(number))  # noqa: E731
        if batch is not None:
            return _sum_by_point(leaves, seeds, batch, outputs)
        if seeds.count == 1:
            return leaves(seeds.first)
        return sum_over_seeds(lambda some: [jnp.sum(a, axis=0) for a in jax.vmap(leaves)(some)], seeds)
    return kept(seeds.first) if seeds.count == 1 else map_seeds(kept, seeds)


def _sum_by_point(at: Callable[..., Any], seeds: SeedRange, batch: int, outputs: int) -> Any:
    """Return the rows of a batch summed by point; seeds run over the outputs of one point after another."""
    if seeds.at_once and seeds.count == batch * outputs:
        return [jnp.sum(a.reshape(batch, outputs, *a.shape[1:]), axis=1) for a in jax.vmap(at)(seeds.rows)]

    def total(numbers: Any) -> list[Any]:
        add = lambda a: jnp.zeros((batch, *a.shape[1:]), a.dtype).at[numbers // outputs].add(a, mode="drop")  # noqa: E731
        return [add(a) for a in jax.vmap(at)(numbers)]

    return sum_over_seeds(total, seeds)


def _multiply_rows(rows: Any) -> Any:
    """Return the products of all pairs of inputs, summed over rows that are an array for each input."""
    R = jnp.concatenate([a.reshape(a.shape[0], -1) for a in rows], axis=1)
    return R.T @ R
