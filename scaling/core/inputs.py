"""Draw the random values of the inputs of a case, and return their shapes and dtypes as `ShapeDtypeStruct`.

A row is the value of an input at one point (batch element). A row depends only on the random seed, the name
of the input and the number of the row.
"""

import functools
import math
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from scaling.core.case import Case, Refusal
from scaling.core.workload import InputSpec, Workload, cached, fingerprint

InputArrays = Mapping[str, np.ndarray]  # input name -> its values at some points, or its shared value
_GROUP_SIZE = 2**12  # elements that one generator draws. Do not change it, because the values depend on it.


def draw_rows(spec: InputSpec, seed: int, name: str, start: int, stop: int) -> np.ndarray:
    """Return random values of an input at the points [start, stop), of shape (stop - start, *spec.shape)."""
    group_rows = max(1, _GROUP_SIZE // max(1, math.prod(spec.shape)))
    rows = np.empty((stop - start, *spec.shape))
    for group in range(start // group_rows, -(-stop // group_rows)):
        seed_sequence = np.random.SeedSequence([seed, zlib.crc32(name.encode()), group])
        generator = np.random.Generator(np.random.Philox(seed_sequence))
        first = group * group_rows
        first_kept, stop_kept = max(start, first), min(stop, first + group_rows)
        drawn = spec.make(generator, np.arange(first, first + group_rows))
        if np.iscomplexobj(drawn):
            raise Refusal(f"the InputSpec of {name!r} draws {drawn.dtype} numbers: draw real numbers")
        shape = np.shape(drawn)
        if shape[1:] != spec.shape or shape[:1] < (stop_kept - first,):  # NumPy would broadcast a single row
            text = f"draws an array of shape {shape}, not {(group_rows, *spec.shape)}"
            raise Refusal(f"the InputSpec of {name!r} {text}")
        rows[first_kept - start : stop_kept - start] = drawn[first_kept - first : stop_kept - first]
    return rows


def point_rows(case: Case, workload: Workload, name: str, start: int, stop: int) -> np.ndarray:
    """Return the values of a per-point input at the points [start, stop), as int32 or in the case's dtype."""
    return _draw_rounded(workload.points[name], case.data_seed, name, case.dtype, start, stop)


def shared_input(case: Case, workload: Workload, name: str) -> np.ndarray:
    """Return the value of the shared input `name`, as int32 or in the dtype of the case."""
    arguments = workload.shared[name], case.data_seed, name, case.dtype, 0, 1
    cache_key = *arguments, fingerprint(arguments[0].bounds)
    draw = functools.partial(_draw_rounded, *arguments)
    # Each range of points uses all shared inputs. Another case has its own `InputSpec`s.
    rows: np.ndarray = cached("shared input", cache_key, draw, max_values=len(workload.shared))
    return np.asarray(rows[0])


def _draw_rounded(spec: InputSpec, seed: int, name: str, dtype: str, start: int, stop: int) -> np.ndarray:
    from jax.numpy import dtype as jax_dtype  # includes bfloat16

    rows = draw_rows(spec, seed, name, start, stop)
    with np.errstate(invalid="ignore", over="ignore"):  # checked below
        rounded = rows.astype(jax_dtype("int32" if spec.integer else dtype))
    changed = rounded != rows if spec.integer else np.isinf(rounded) & np.isfinite(rows)
    if changed.any():
        fix = "integers under 2**31, or leave out integer=True" if spec.integer else "smaller numbers"
        text = f"draws {rows[changed][0]}, which {rounded.dtype} cannot represent: draw {fix}"
        raise Refusal(f"the InputSpec of {name!r} {text}")
    # Values of wider dtypes are not clipped, to keep the values of earlier versions.
    return _clip_inside(rounded, *spec.bounds) if spec.bounds and rounded.itemsize == 2 else rounded


def _clip_inside(rows: np.ndarray, low: Any, high: Any) -> np.ndarray:
    """Return `rows`, clipped to the numbers of its dtype in the open interval (low, high)."""
    low, high = np.asarray(low, np.float64), np.asarray(high, np.float64)
    lowest, highest = low.astype(rows.dtype), high.astype(rows.dtype)
    lowest = np.where(lowest <= low, np.nextafter(lowest, highest), lowest)
    highest = np.where(highest >= high, np.nextafter(highest, lowest), highest)
    return np.asarray(np.minimum(np.maximum(rows, lowest), highest))


def input_arrays(case: Case, workload: Workload, start: int = 0, stop: int | None = None) -> InputArrays:
    """Return the inputs at the points [start, stop), by default at all points, as arrays by input name."""
    stop = case.points if stop is None else stop
    points = {name: point_rows(case, workload, name, start, stop) for name in workload.points}
    return points | {name: shared_input(case, workload, name) for name in workload.shared}


def exact_inputs(case: Case, workload: Workload, start: int, stop: int) -> dict[str, np.ndarray]:
    """Return the inputs at the points [start, stop) by name, as float64 arrays.

    Their values are rounded to the dtype of the case.
    """
    return {name: np.asarray(x, np.float64) for name, x in input_arrays(case, workload, start, stop).items()}


def point_structs(case: Case, workload: Workload) -> dict[str, Any]:
    """Return the shape and dtype of each input at one point, as a `jax.ShapeDtypeStruct` by input name."""
    import jax

    dtypes = {False: jax.numpy.dtype(case.dtype), True: jax.numpy.dtype("int32")}
    return {name: jax.ShapeDtypeStruct(x.shape, dtypes[x.integer]) for name, x in workload.inputs.items()}


def input_structs(case: Case, workload: Workload) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the shapes and dtypes of the per-point inputs and of the shared inputs, as two dicts by name."""
    structs = point_structs(case, workload)
    points = {
        name: structs[name].update(shape=(case.points, *structs[name].shape)) for name in workload.points
    }
    return points, {name: structs[name] for name in workload.shared}
