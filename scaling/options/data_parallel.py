"""The value or the derivative of a sum over points, by shared inputs: a loss over data and its gradient.

Each device sums over its points; with split=data all devices add up, so that each has the whole.
"""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from scaling.core.case import Case
from scaling.core.jacobian import DevicePosition, SeedRange, apply_linear_map, reduce_slices, sum_over_seeds
from scaling.core.shape import DerivativeShape, LinearMapPart, ceil_div
from scaling.core.workload import Workload

Named = Mapping[str, Any]
Total = Callable[..., Any]  # a sum over some points, a number, as a function of the shared inputs
OverPoints = Callable[[Callable[[Total], Any]], Any]
_PIECES = 4  # of a gradient with overlap=true: each is sent while the next is computed
_PIECE = "piece of an input"


def sum_derivative(
    case: Case, workload: Workload, sizes: DerivativeShape, points: Named, shared: Named, here: DevicePosition
) -> Any:
    """Return the sum itself with mode=value, otherwise one entry for each linear map.

    An entry has the seeds last, or an array for each input.
    """
    count = ceil_div(case.points, case.axes[0])
    padded = count * case.axes[0] != case.points

    def over_points(of: Callable[[Total], Any]) -> Any:
        """Return `of` the sum over this device's points, added up over blocks, then over all devices."""

        def block(numbers: Any) -> Any:
            cut = lambda x: jax.lax.dynamic_slice_in_dim(x, numbers[0], len(numbers)) if case.block else x  # noqa: E731
            some = {name: cut(x) for name, x in points.items()}
            real = here.points * count + numbers < case.points if padded else None
            return of(lambda **shared: _total(case, workload, some, shared, real))

        return here.sum_over_devices(sum_over_seeds(block, SeedRange(0, count, case.block)))

    if case.ad_mode.is_value:
        return over_points(lambda total: total(**shared))
    if case.overlap:
        return tuple(_in_pieces(case, part, over_points, shared, here) for part in sizes.parts)
    return over_points(
        lambda total: tuple(
            reduce_slices(apply_linear_map(case, part, total, shared, here)) for part in sizes.parts
        )
    )


def _total(case: Case, workload: Workload, points: Named, shared: Named, real: Any) -> Any:
    """Return the sum of the function over points and outputs. real: which points are not padding, or None."""
    if case.batch == "whole" and workload.whole is not None and real is None:
        return jnp.sum(workload.whole(**points, **shared))
    values = jax.vmap(lambda one: workload.function(**one, **shared))(points)
    if real is not None:
        values = jnp.where(real.reshape(-1, *[1] * (values.ndim - 1)), values, 0)
    return jnp.sum(values)


def _in_pieces(
    case: Case, part: LinearMapPart, over_points: OverPoints, shared: Named, here: DevicePosition
) -> Any:
    """Return the derivative computed piece by piece, each all-reduced as soon as it is computed."""
    if part.computes_columns:
        compute = functools.partial(_along_seeds, case, part, shared, here)
        pieces = _cut(ceil_div(part.seeds, case.axes[1]))
        return jnp.concatenate([over_points(functools.partial(compute, *piece)) for piece in pieces])
    by_input = []
    for name in part.names:
        compute = functools.partial(_by_numbers, case, part, shared, here, name)
        made = [over_points(functools.partial(compute, *piece)) for piece in _cut(shared[name].size)]
        by_input.append(jnp.concatenate(made).reshape(shared[name].shape))
    return by_input


def _cut(count: int) -> list[tuple[int, int]]:
    """Return the ends of the pieces of a range, which are about equal."""
    ends = [count * k // _PIECES for k in range(_PIECES + 1)]
    return [(start, stop) for start, stop in itertools.pairwise(ends) if start < stop]


def _along_seeds(
    case: Case, part: LinearMapPart, shared: Named, here: DevicePosition, start: int, stop: int, total: Total
) -> Any:
    """Return the derivative along some of the seeds: (seeds,)."""
    slices = apply_linear_map(case, part, total, shared, here)
    some = SeedRange(slices.seeds.first + start, stop - start, slices.seeds.chunk)
    return reduce_slices(slices._replace(seeds=some)).reshape(-1)


def _by_numbers(
    case: Case,
    part: LinearMapPart,
    shared: Named,
    here: DevicePosition,
    name: str,
    start: int,
    stop: int,
    total: Total,
) -> Any:
    """Return the derivative by some numbers of one input: (numbers,)."""
    whole = shared[name].reshape(-1)

    def total_by_piece(**named: Any) -> Any:
        flat = jnp.concatenate([whole[:start], named.pop(_PIECE), whole[stop:]])
        return total(**named | {name: flat.reshape(shared[name].shape)})

    given = dict(shared) | {_PIECE: whole[start:stop]}
    piece = dataclasses.replace(part, names=(_PIECE,))
    return reduce_slices(apply_linear_map(case, piece, total_by_piece, given, here))[0]
