"""Seeds: the rows of the matrix that a linear map is applied to, made one at a time, and loops over them.

A seed is a tuple of arrays like the map's argument. Does not know what becomes of the slices.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

SeedFunction = Callable[[Any], tuple[Any, ...]]


@dataclass(frozen=True)
class SeedRange:
    """Rows `first` to `first + count`, of which at most `chunk` are held at a time; None takes all at
    once."""

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


def identity_seeds(like: tuple[Any, ...]) -> SeedFunction:
    """Return the function number -> row of the identity; zero beyond the last row."""

    def row(number: Any) -> tuple[Any, ...]:
        seed, start = [], 0
        for a in like:
            seed.append((number == start + jnp.arange(a.size)).astype(a.dtype).reshape(a.shape))
            start += a.size
        return tuple(seed)

    return row


def colored_seeds(like: tuple[Any, ...], colors: Any) -> SeedFunction:
    """Return the function color -> sum of the identity's rows of that color; zero for a color without
    rows."""

    def row(number: Any) -> tuple[Any, ...]:
        seed, start = [], 0
        for a in like:
            seed.append((colors[start : start + a.size] == number).astype(a.dtype).reshape(a.shape))
            start += a.size
        return tuple(seed)

    return row


def map_seeds(each: Callable[[Any], Any], some: SeedRange, axis: int = 0) -> Any:
    """Apply a function of a seed number to all rows, and stack the results along an axis."""
    if some.at_once:
        return jax.vmap(each, out_axes=axis)(some.rows)
    made = jax.lax.map(each, some.rows, batch_size=some.chunk)
    return jax.tree.map(lambda a: jnp.moveaxis(a, 0, axis), made)


def sum_over_seeds(total_of: Callable[[Any], Any], some: SeedRange) -> Any:
    """Return the sum over all rows. total_of: adds up the rows whose numbers it is given."""
    if some.at_once:
        return total_of(some.rows)
    assert some.chunk is not None
    loops, rest = divmod(some.count, some.chunk)
    widened = lambda a: a.astype(jnp.promote_types(a.dtype, jnp.float32))  # noqa: E731 - a long sum is not kept in 8 bits
    at = lambda start, length: jax.tree.map(widened, total_of(some.first + start + jnp.arange(length)))  # noqa: E731
    add = lambda a, b: jax.tree.map(jnp.add, a, b)  # noqa: E731
    total = at(0, some.chunk)
    if loops > 1:
        total = jax.lax.fori_loop(
            1, loops, lambda k, total: add(total, at(k * some.chunk, some.chunk)), total
        )
    total = add(total, at(loops * some.chunk, rest)) if rest else total
    like = jax.eval_shape(lambda: total_of(some.first + jnp.arange(some.chunk)))
    return jax.tree.map(lambda a, b: a.astype(b.dtype), total, like)
