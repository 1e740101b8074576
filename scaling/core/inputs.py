"""Random inputs: any slice of rows is made from (seed, name, row) alone.

A row holds the same numbers whatever the number of devices, processes or slices. Rows are drawn in blocks,
each block from a Philox generator of its own. Does not know where an input is placed, or who computes with
it.
"""

import functools
import math
import operator
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from scaling.core.case import Case, Refusal

if TYPE_CHECKING:
    from scaling.core.workload import Workload

_BLOCK = 2**12  # numbers that share a generator; part of what is drawn, so never changed
_SMALLEST = 2.0**-24  # keeps the open interval open after rounding to float32 and bfloat16


@dataclass(frozen=True)
class InputSpec:
    """An input: the shape of a row, and a function that draws rows.

    `make(generator, rows)` returns float64 (len(rows), *shape).
    """

    shape: tuple[int, ...]
    make: Callable[[np.random.Generator, np.ndarray], np.ndarray]
    integer: bool = False  # kept as int32 instead of being rounded to the case's dtype

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", _parse_shape("Draw", (self.shape,)))
        if not callable(self.make):
            words = f"must be a function make(generator, rows), not {self.make!r}"
            raise Refusal(f"the second argument of Draw {words}")


def _parse_shape(function: str, sizes: tuple[Any, ...], hint: str = "") -> tuple[int, ...]:
    """Return a shape, given as separate sizes or as one tuple; refuse a bad size."""
    if len(sizes) == 1 and isinstance(sizes[0], tuple | list):
        sizes = tuple(sizes[0])
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
    """Return an input that is uniform on the open interval (low, high).

    Give its shape as sizes, `uniform(2, 3)`, or as a tuple.
    """
    hint = "; the interval is given by name, such as uniform(3, low=0.5, high=2.0)"
    shape = _parse_shape("uniform", shape, hint)
    _require_finite("uniform", low=low, high=high)
    if not np.all(np.less(low, high)):
        raise Refusal(f"low of uniform(...) must be less than high, not low={low!r} and high={high!r}")
    return InputSpec(
        shape, lambda rng, rows: low + (high - low) * np.maximum(rng.random((len(rows), *shape)), _SMALLEST)
    )


def normal(*shape: int, mean: float = 0.0, deviation: float = 1.0) -> InputSpec:
    """Return an input that is normal with this mean and standard deviation.

    Give its shape as for `uniform`.
    """
    hint = "; the distribution is given by name, such as normal(3, mean=1.0, deviation=0.1)"
    shape = _parse_shape("normal", shape, hint)
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


def draw_block(spec: InputSpec, seed: int, name: str, start: int, stop: int) -> np.ndarray:
    """Return rows `start` to `stop` of the input `name`: float64, (stop - start, *shape)."""
    block_rows = max(1, _BLOCK // max(1, math.prod(spec.shape)))
    taken = np.empty((stop - start, *spec.shape))
    for block in range(start // block_rows, -(-stop // block_rows)):
        entropy = np.random.SeedSequence([seed, zlib.crc32(name.encode()), block])
        first = block * block_rows
        drawn = spec.make(
            np.random.Generator(np.random.Philox(entropy)), np.arange(first, first + block_rows)
        )
        if np.shape(drawn)[1:] != spec.shape:
            words = f"makes rows of {np.shape(drawn)[1:]}, where {spec.shape} is expected"
            raise ValueError(f"the draw of {name!r} {words}")
        low, high = max(start, first), min(stop, first + block_rows)
        taken[low - start : high - start] = drawn[low - first : high - first]
    return taken


def point_rows(case: Case, workload: "Workload", name: str, start: int, stop: int) -> np.ndarray:
    """Return points `start` to `stop` of a per-point input, in the case's dtype: (stop - start, ...)."""
    return _round(workload.points[name], case.data_seed, name, case.dtype, start, stop)


def shared_input(case: Case, workload: "Workload", name: str) -> np.ndarray:
    """Return a shared input, in the case's dtype."""
    return _draw_shared(workload.shared[name], case.data_seed, name, case.dtype)


@functools.lru_cache(maxsize=4)  # a check asks for it with each block
def _draw_shared(spec: InputSpec, seed: int, name: str, dtype: str) -> np.ndarray:
    row: np.ndarray = _round(spec, seed, name, dtype, 0, 1)[0]
    return row


def _round(spec: InputSpec, seed: int, name: str, dtype: str, start: int, stop: int) -> np.ndarray:
    """Return rows of an input, rounded to a dtype."""
    from jax.numpy import dtype as dtype_of  # which knows bfloat16

    rows = draw_block(spec, seed, name, start, stop)
    return rows.astype(np.int32 if spec.integer else dtype_of(dtype))


def exact_inputs(case: Case, workload: "Workload", start: int, stop: int) -> Mapping[str, np.ndarray]:
    """Return the inputs of a block of points by name, as float64, for a reference."""
    return {name: np.asarray(x, np.float64) for name, x in input_arrays(case, workload, start, stop).items()}


def input_arrays(
    case: Case, workload: "Workload", start: int = 0, stop: int | None = None
) -> dict[str, np.ndarray]:
    """Return the inputs of a block of points, or of all, on the host by name, points leading."""
    stop = case.points if stop is None else stop
    points = {name: point_rows(case, workload, name, start, stop) for name in workload.points}
    return points | {name: shared_input(case, workload, name) for name in workload.shared}
