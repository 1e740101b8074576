"""Slices: what one linear map computes of the seeds of a device, reduced as it is computed.

With `chunk` no more of a Jacobian is ever there than so many of its slices. Does not know points, beyond a
batch that is one function.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from scaling.core import seeds
from scaling.core.case import Case
from scaling.core.modes import MODES
from scaling.core.reductions import WHOLE, Reduction
from scaling.core.seeds import SeedRange
from scaling.core.shape import LinearMapPart, ceil_div

Named = Mapping[str, Any]


class DevicePosition(NamedTuple):
    """The position of a device along points and seeds, the first seed of this step, and the sum over all
    devices.
    """

    points: Any = 0
    seeds: Any = 0
    start: Any = 0
    over_all: Callable[[Any], Any] = lambda tree: tree


class SeedMap(NamedTuple):
    """A part of a derivative: the function seed number -> slice, the seed numbers of this device, and the
    inputs.
    """

    part: LinearMapPart
    at: Callable[[Any], Any]
    some: SeedRange
    x: tuple[Any, ...]


def linear_map(
    case: Case,
    part: LinearMapPart,
    function: Callable[..., Any],
    named: Named,
    colors: Any,
    here: DevicePosition,
) -> SeedMap:
    """Return a part of the derivative of a function at its inputs. colors: of its columns or rows; None for
    identity seeds.
    """
    x, mode = tuple(named[name] for name in part.names), MODES[part.mode]

    def f(*z: Any) -> Any:
        y = function(**{**named, **dict(zip(part.names, z, strict=True))})
        return jnp.sum(y) if mode.sums_outputs else y

    if case.remat and mode.uses_reverse:
        f = jax.checkpoint(f, policy=getattr(jax.checkpoint_policies, case.remat))
    assert mode.linear_map is not None
    apply = mode.linear_map(f, x)
    if part.along:
        return SeedMap(part, lambda _: apply(x), SeedRange(0, 1), x)
    like = x if part.columns else (jax.eval_shape(f, *x),)
    row = seeds.identity_seeds(like) if colors is None else seeds.colored_seeds(like, colors)
    count, b = ceil_div(part.seeds, case.axes[1]), case.axes[1]
    only = (
        b == 1 and sum(a.size for a in like) == 1
    )  # then there is nothing to look up, and XLA need not multiply by it

    def at(number: Any) -> Any:
        seed = tuple(jnp.ones(a.shape, a.dtype) for a in like) if only else row(number)
        return apply(seed) if part.columns else apply(*seed)

    chunk = case.chunk if isinstance(case.chunk, int) else None
    return SeedMap(part, at, SeedRange(here.start + here.seeds * count, count, chunk), x)


def reduce_columns(
    of: SeedMap, reduction: Reduction = WHOLE, batch: int | None = None, inputs: int = 0
) -> Any:
    """Return columns, seeds last; their sum over seeds; or this device's rows of the products with the
    columns of all inputs.

    batch: the points that the function's outputs are those of; None where it is one point's.
    """
    flat = lambda column: column.reshape(-1) if batch is None else column.reshape(batch, -1)  # noqa: E731
    if of.part.along:
        return flat(of.at(0))
    step = reduction.columns
    if step.products:
        return _multiply_columns(lambda r: flat(of.at(r)), of.some, inputs)
    each = step.each
    kept = of.at if each is None else lambda r: each(flat(of.at(r)))
    if of.some.count == 1:  # a batch of one seed costs up to four times the one call that it stands for
        return kept(of.some.first)
    if step.added:
        return seeds.sum_over_seeds(lambda rows: jnp.sum(jax.vmap(kept)(rows), axis=0), of.some)
    return seeds.map_seeds(kept, of.some, axis=-1)


def _multiply_columns(column: Callable[[Any], Any], some: SeedRange, inputs: int) -> Any:
    """Return (columns of this device, inputs). In chunks, all columns are computed again with each chunk of
    this device's."""
    if some.at_once and some.count >= inputs:
        C = jax.vmap(column)(some.rows)
        return C @ C.T
    length = min(some.chunk or some.count, some.count)

    def block(number: Any) -> Any:
        C = jax.vmap(column)(some.first + number * length + jnp.arange(length))
        return seeds.map_seeds(lambda r: C @ column(r), SeedRange(0, inputs, some.chunk), axis=-1)

    blocks = ceil_div(some.count, length)
    return jax.lax.map(block, jnp.arange(blocks)).reshape(blocks * length, -1)[: some.count]


def reduce_rows(of: SeedMap, reduction: Reduction = WHOLE, batch: int | None = None, outputs: int = 1) -> Any:
    """Return rows, seeds first, an array for each input; their sum; the sum of their products; or one number
    for each row.

    batch: as above, and how many outputs each of its points has.
    """
    step = reduction.rows
    if step.products:
        return seeds.sum_over_seeds(lambda some: (R := _matrix(jax.vmap(of.at)(some))).T @ R, of.some)
    each = step.each
    kept = of.at if each is None else lambda r: each(of.at(r), of.x)
    if step.added:
        leaves = lambda r: jax.tree.leaves(kept(r))  # noqa: E731
        if batch is not None:
            return _by_point(leaves, of.some, batch, outputs)
        if of.some.count == 1:
            return leaves(of.some.first)
        return seeds.sum_over_seeds(
            lambda some: [jnp.sum(a, axis=0) for a in jax.vmap(leaves)(some)], of.some
        )
    if of.some.count == 1:
        return kept(of.some.first)
    return seeds.map_seeds(kept, of.some)


def _by_point(at: Callable[..., Any], some: SeedRange, batch: int, outputs: int) -> list[Any]:
    """Return the rows of a batch summed for each point; seeds run over the outputs of one point after
    another.
    """
    if some.at_once and some.count == batch * outputs:
        return [jnp.sum(a.reshape(batch, outputs, *a.shape[1:]), axis=1) for a in jax.vmap(at)(some.rows)]

    def total(numbers: Any) -> list[Any]:
        add = lambda a: jnp.zeros((batch, *a.shape[1:]), a.dtype).at[numbers // outputs].add(a, mode="drop")  # noqa: E731
        return [add(a) for a in jax.vmap(at)(numbers)]

    totals: list[Any] = seeds.sum_over_seeds(total, some)
    return totals


def _matrix(slices: Any) -> Any:
    """Return rows, one array for each input, as a matrix: (seeds, inputs)."""
    return jnp.concatenate([a.reshape(a.shape[0], -1) for a in slices], axis=1)
