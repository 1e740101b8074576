"""Draws: random inputs in which any slice of rows comes from (seed, name, row) alone.

The same row holds the same numbers whatever the number of devices, processes or slices. Rows are drawn in blocks, each block
from a Philox generator of its own. Knows NumPy; does not know what the numbers are for.
"""

import math
import zlib
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

_BLOCK = 2**12  # numbers that share a generator; part of what is drawn, so never changed
_SMALLEST = 2.0**-24  # keeps the open interval open after rounding to float32 and bfloat16


@dataclass(frozen=True)
class Draw:
    """An input: the shape of one row, and how rows are made: `make(generator, rows)` -> float64 (len(rows), *shape)."""

    shape: tuple[int, ...]
    make: Callable[[np.random.Generator, np.ndarray], np.ndarray]
    integer: bool = False  # kept as int32 instead of being rounded to the case's dtype


def uniform(*shape: int, low: float = 0.0, high: float = 1.0) -> Draw:
    """Uniform on the open interval (low, high)."""
    return Draw(shape, lambda rng, rows: low + (high - low) * np.maximum(rng.random((len(rows), *shape)), _SMALLEST))


def normal(*shape: int, mean: float = 0.0, deviation: float = 1.0) -> Draw:
    """Normal with this mean and standard deviation."""
    return Draw(shape, lambda rng, rows: mean + deviation * rng.standard_normal((len(rows), *shape)))


def poisson(rate: float) -> Draw:
    """Poisson counts, one integer a row."""
    return Draw((), lambda rng, rows: rng.poisson(rate, len(rows)), integer=True)


def take(draw: Draw, seed: int, name: str, start: int, stop: int) -> np.ndarray:
    """Rows `start` to `stop` of the input `name`: float64, (stop - start, *shape)."""
    block_rows = max(1, _BLOCK // max(1, math.prod(draw.shape)))
    taken = np.empty((stop - start, *draw.shape))
    for block in range(start // block_rows, -(-stop // block_rows)):
        generator = np.random.Generator(np.random.Philox(np.random.SeedSequence([seed, zlib.crc32(name.encode()), block])))
        first = block * block_rows
        made = draw.make(generator, np.arange(first, first + block_rows))
        if np.shape(made)[1:] != draw.shape:
            raise ValueError(f"the draw of {name!r} makes rows of {np.shape(made)[1:]}, where {draw.shape} is due")
        low, high = max(start, first), min(stop, first + block_rows)
        taken[low - start : high - start] = made[low - first : high - first]
    return taken
