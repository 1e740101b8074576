"""The value or the derivative of a sum over points, by shared inputs: a loss over data and its gradient.

Each device sums over its own points, and with split=data all devices add up, so that each has the whole. Does
not know how.
"""

import dataclasses
import itertools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from scaling.core import seeds, slices
from scaling.core.case import Case
from scaling.core.seeds import SeedRange
from scaling.core.shape import DerivativeShape, LinearMapPart, ceil_div
from scaling.core.slices import DevicePosition
from scaling.core.workload import Workload

Named = Mapping[str, Any]
_PIECES = 4  # of a gradient, each sent as soon as it is there, where that overlaps with computing the next
_PIECE = "piece of an input"


class _Piece(NamedTuple):
    """Some numbers of one input, or some of the seeds."""

    name: str
    start: int
    stop: int


def sum_derivative(
    case: Case, workload: Workload, sizes: DerivativeShape, points: Named, shared: Named, here: DevicePosition
) -> Any:
    """Return one entry for each part: seeds last, or an array for each input; with mode=value the sum
    itself."""
    count = ceil_div(case.points, case.axes[0])
    padded = count * case.axes[0] != case.points

    def over_points(of: Callable[[Callable], Any]) -> Any:
        """`of` a sum over points, as a function of what they share; added up over blocks of points."""

        def block(numbers: Any) -> Any:
            cut = lambda x: jax.lax.dynamic_slice_in_dim(x, numbers[0], len(numbers)) if case.block else x  # noqa: E731
            some = {name: cut(x) for name, x in points.items()}
            real = here.points * count + numbers < case.points if padded else None
            return of(lambda **shared: _total(case, workload, some, shared, real))

        return seeds.sum_over_seeds(block, SeedRange(0, count, case.block))

    if case.ad_mode.is_value:
        return here.over_all(over_points(lambda total: total(**shared)))
    if not case.overlap:
        whole = over_points(lambda total: tuple(_of(case, part, total, shared, here) for part in sizes.parts))
        return here.over_all(whole)
    return tuple(_in_pieces(case, part, over_points, shared, here) for part in sizes.parts)


def _total(case: Case, workload: Workload, points: Named, shared: Named, real: Any) -> Any:
    """Return the sum of the function over points and outputs: a number."""
    if case.batch == "whole" and workload.whole is not None and real is None:
        return jnp.sum(workload.whole(**points, **shared))
    return jnp.sum(_masked(jax.vmap(lambda one: workload.function(**one, **shared))(points), real))


def _masked(values: Any, real: Any) -> Any:
    """Return values with zeros for the padding of the points."""
    return values if real is None else jnp.where(real.reshape(-1, *[1] * (values.ndim - 1)), values, 0)


def _of(case: Case, part: LinearMapPart, total: Callable, shared: Named, here: DevicePosition) -> Any:
    """Return the derivative of a number."""
    of = slices.linear_map(case, part, total, shared, None, here)
    return slices.reduce_columns(of) if part.columns else slices.reduce_rows(of)


def _in_pieces(
    case: Case, part: LinearMapPart, over_points: Callable, shared: Named, here: DevicePosition
) -> Any:
    """Return the derivative computed piece by piece, each all-reduced as soon as it is computed."""
    spans = (
        [("", ceil_div(part.seeds, case.axes[1]))]
        if part.columns
        else [(name, shared[name].size) for name in part.names]
    )
    pieces = [_Piece(name, *ends) for name, size in spans for ends in _cuts(size)]
    compute = _some_seeds if part.columns else _some_numbers
    made = [
        here.over_all(over_points(lambda total, piece=piece: compute(case, part, total, shared, here, piece)))
        for piece in pieces
    ]
    if part.columns:
        return jnp.concatenate(made)
    by_name = {
        name: [a for piece, a in zip(pieces, made, strict=True) if piece.name == name] for name in part.names
    }
    return [jnp.concatenate(by_name[name]).reshape(shared[name].shape) for name in part.names]


def _cuts(size: int) -> list[tuple[int, int]]:
    ends = [size * k // _PIECES for k in range(_PIECES + 1)]
    return [(a, b) for a, b in itertools.pairwise(ends) if a < b]


def _some_seeds(
    case: Case, part: LinearMapPart, total: Callable, shared: Named, here: DevicePosition, piece: _Piece
) -> Any:
    """Return the derivative along some of the seeds: (seeds,)."""
    of = slices.linear_map(case, part, total, shared, None, here)
    some = SeedRange(of.some.first + piece.start, piece.stop - piece.start, of.some.chunk)
    return slices.reduce_columns(of._replace(some=some)).reshape(-1)


def _some_numbers(
    case: Case, part: LinearMapPart, total: Callable, shared: Named, here: DevicePosition, piece: _Piece
) -> Any:
    """Return the derivative by some numbers of one input: (numbers,)."""
    whole = shared[piece.name].reshape(-1)

    def by_piece(**named: Any) -> Any:
        flat = jnp.concatenate([whole[: piece.start], named.pop(_PIECE), whole[piece.stop :]])
        return total(**named | {piece.name: flat.reshape(shared[piece.name].shape)})

    given = dict(shared) | {_PIECE: whole[piece.start : piece.stop]}
    return _of(case, dataclasses.replace(part, names=(_PIECE,)), by_piece, given, here)[0]
