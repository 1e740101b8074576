"""The numbers that a case runs on: NumPy rows for the check, arrays on devices for the program."""

import functools
from collections.abc import Iterable, Mapping
from typing import Any

import jax
import numpy as np

from scaling.core.case import Case
from scaling.core.input_sampling import InputSpec, draw_block
from scaling.core.layout import ENTRIES, Program
from scaling.core.shape import ceil_div
from scaling.core.workload import Workload


def point_rows(case: Case, workload: Workload, name: str, start: int, stop: int) -> np.ndarray:
    """Return points `start` to `stop` of a per-point input, rounded to the case's dtype: (stop - start,
    ...)."""
    draw = workload.points[name]
    return draw_block(draw, case.data_seed, name, start, stop).astype(
        np.int32 if draw.integer else jax.numpy.dtype(case.dtype)
    )


def shared_inputs(case: Case, workload: Workload, name: str) -> np.ndarray:
    """Return a shared input, rounded to the case's dtype."""
    return _shared(workload.shared[name], case.data_seed, name, case.dtype)


@functools.lru_cache(maxsize=4)  # a check asks for it once a block
def _shared(draw: InputSpec, seed: int, name: str, dtype: str) -> np.ndarray:
    row = draw_block(draw, seed, name, 0, 1)[0]
    return np.asarray(row.astype(np.int32 if draw.integer else jax.numpy.dtype(dtype)))


def exact_inputs(case: Case, workload: Workload, start: int, stop: int) -> Mapping[str, np.ndarray]:
    """Return the inputs of a block of points by name, as float64, for a reference."""
    named = {name: point_rows(case, workload, name, start, stop) for name in workload.points}
    named |= {name: shared_inputs(case, workload, name) for name in workload.shared}
    return {name: np.asarray(array, np.float64) for name, array in named.items()}


def input_arrays(case: Case, workload: Workload) -> dict[str, np.ndarray]:
    """Return all inputs on the host by name, points leading, for a peer."""
    points = {name: point_rows(case, workload, name, 0, case.points) for name in workload.points}
    return points | {name: shared_inputs(case, workload, name) for name in workload.shared}


def place_inputs(
    case: Case,
    workload: Workload,
    program: Program,
    host: Mapping[str, np.ndarray] | None = None,
    names: Iterable[str] | None = None,
) -> list[jax.Array]:
    """Place the arguments of a program, or those with these names, on its devices; each device makes its own
    rows.

    host: per-point inputs that are there already, as many points as the case has.
    """
    structs = program.arguments if names is None else {name: program.arguments[name] for name in names}
    return [_place_one(case, workload, program, name, struct, host) for name, struct in structs.items()]


def _place_one(
    case: Case,
    workload: Workload,
    program: Program,
    name: str,
    struct: jax.ShapeDtypeStruct,
    host: Mapping[str, np.ndarray] | None,
) -> jax.Array:
    a, b = case.axes
    each = ceil_div(case.points, a)

    def points(start: int, stop: int) -> np.ndarray:
        """Return rows; the last point is repeated as padding."""
        ends = min(start, case.points - 1), min(stop, case.points)
        real = point_rows(case, workload, name, *ends) if host is None else host[name][slice(*ends)]
        missing = stop - start - len(real)
        return np.concatenate([real, np.repeat(real[-1:], missing, axis=0)]) if missing else real

    def of_device(device: int) -> np.ndarray:
        if name in workload.points:
            return points(device // b * each, device // b * each + each)
        if name in workload.shared:
            return shared_inputs(case, workload, name)
        return program.given[name][device % b, None] if name.startswith(ENTRIES) else program.given[name]

    def part(index: Any) -> np.ndarray:
        start, stop, _ = index[0].indices(struct.shape[0]) if index else (0, 1, 1)
        if case.api == "pmap":  # devices lead, and each has its own points, or all of them
            return np.stack([of_device(device) for device in range(start, stop)])
        if name in workload.points:
            return points(start, stop)
        whole = shared_inputs(case, workload, name) if name in workload.shared else program.given[name]
        return np.asarray(whole[index])

    if case.api == "jit":
        placed: jax.Array = jax.device_put(part((slice(None),) if struct.shape else ()), struct.sharding)
        return placed
    return jax.make_array_from_callback(struct.shape, struct.sharding, part)
