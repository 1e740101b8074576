"""Random inputs: any slice of rows is made from (seed, name, row) alone.

The same row holds the same numbers whatever the number of devices, processes or slices. Rows are drawn in
blocks, each block from a Philox generator of its own. Knows NumPy; does not know what the numbers are for.
"""

import math
import operator
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from scaling.core.case import Refusal

_BLOCK = 2**12  # numbers that share a generator; part of what is drawn, so never changed
_SMALLEST = 2.0**-24  # keeps the open interval open after rounding to float32 and bfloat16


@dataclass(frozen=True)
class InputSpec:
    """An input: the shape of one row, and `make(generator, rows)`, which returns float64 (len(rows),
    *shape)."""

    shape: tuple[int, ...]
    make: Callable[[np.random.Generator, np.ndarray], np.ndarray]
    integer: bool = False  # kept as int32 instead of being rounded to the case's dtype

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", _shape("Draw", (self.shape,)))
        if not callable(self.make):
            raise Refusal(
                f"the second argument of Draw must be a function make(generator, rows), not {self.make!r}"
            )


def _shape(function: str, sizes: tuple[Any, ...], hint: str = "") -> tuple[int, ...]:
    """Return the shape that a function was given, as separate sizes or as one tuple; a bad size is a
    `Refusal`."""
    sizes = tuple(sizes[0]) if len(sizes) == 1 and isinstance(sizes[0], tuple | list) else sizes
    shape = []
    for size in sizes:
        try:
            whole = operator.index(size)
        except TypeError:
            whole = -1
        if isinstance(size, bool | np.bool_) or whole < 0:
            raise Refusal(f"the sizes of {function}(...) must be integers, zero or more, not {size!r}{hint}")
        shape.append(whole)
    return tuple(shape)


def _require_finite(function: str, **numbers: Any) -> None:
    """Refuse a parameter of a distribution that is not a finite number, or an array of them."""
    for name, value in numbers.items():
        try:
            finite = bool(np.all(np.isfinite(np.asarray(value, np.float64))))
        except (TypeError, ValueError):
            finite = False
        if not finite:
            raise Refusal(f"{name} of {function}(...) must be a finite number, not {value!r}")


def uniform(*shape: int, low: float = 0.0, high: float = 1.0) -> InputSpec:
    """Return an input that is uniform on the open interval (low, high). Give its shape as sizes, `uniform(2,
    3)`, or as a tuple.
    """
    shape = _shape("uniform", shape, "; the interval is given by name, such as uniform(3, low=0.5, high=2.0)")
    _require_finite("uniform", low=low, high=high)
    if not np.all(np.less(low, high)):
        raise Refusal(f"low of uniform(...) must be less than high, not low={low!r} and high={high!r}")
    return InputSpec(
        shape, lambda rng, rows: low + (high - low) * np.maximum(rng.random((len(rows), *shape)), _SMALLEST)
    )


def normal(*shape: int, mean: float = 0.0, deviation: float = 1.0) -> InputSpec:
    """Return an input that is normal with this mean and standard deviation. Give its shape as for
    `uniform`."""
    shape = _shape(
        "normal", shape, "; the distribution is given by name, such as normal(3, mean=1.0, deviation=0.1)"
    )
    _require_finite("normal", mean=mean, deviation=deviation)
    if not np.all(np.greater_equal(deviation, 0)):
        raise Refusal(f"deviation of normal(...) must be zero or more, not {deviation!r}")
    return InputSpec(shape, lambda rng, rows: mean + deviation * rng.standard_normal((len(rows), *shape)))


def poisson(rate: float) -> InputSpec:
    """Return an input of Poisson counts, one integer for each row."""
    _require_finite("poisson", rate=rate)
    if np.ndim(rate) or rate < 0:
        raise Refusal(f"rate of poisson(...) must be one number, zero or more, not {rate!r}")
    return InputSpec((), lambda rng, rows: rng.poisson(rate, len(rows)), integer=True)


def draw_block(draw: InputSpec, seed: int, name: str, start: int, stop: int) -> np.ndarray:
    """Return rows `start` to `stop` of the input `name`: float64, (stop - start, *shape)."""
    block_rows = max(1, _BLOCK // max(1, math.prod(draw.shape)))
    taken = np.empty((stop - start, *draw.shape))
    for block in range(start // block_rows, -(-stop // block_rows)):
        generator = np.random.Generator(
            np.random.Philox(np.random.SeedSequence([seed, zlib.crc32(name.encode()), block]))
        )
        first = block * block_rows
        made = draw.make(generator, np.arange(first, first + block_rows))
        if np.shape(made)[1:] != draw.shape:
            raise ValueError(
                f"the draw of {name!r} makes rows of {np.shape(made)[1:]}, where {draw.shape} is due"
            )
        low, high = max(start, first), min(stop, first + block_rows)
        taken[low - start : high - start] = made[low - first : high - first]
    return taken
