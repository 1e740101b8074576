"""Inputs: the numbers that a case runs on, as NumPy rows for the check and as arrays on devices for the program."""

import functools
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from scaling.case import Case
from scaling.draws import Draw, take
from scaling.measuring.spmd import Program
from scaling.workload import Workload


def rows(case: Case, workload: Workload, name: str, start: int, stop: int) -> np.ndarray:
    """Points `start` to `stop` of a per-point input, rounded to the case's dtype: (stop - start, ...)."""
    draw = workload.points[name]
    return take(draw, case.data_seed, name, start, stop).astype(np.int32 if draw.integer else jax.numpy.dtype(case.dtype))


def shared(case: Case, workload: Workload, name: str) -> np.ndarray:
    """A shared input, rounded likewise."""
    return _shared(workload.shared[name], case.data_seed, name, case.dtype)


@functools.lru_cache(maxsize=4)  # a check asks for it once a block
def _shared(draw: Draw, seed: int, name: str, dtype: str) -> np.ndarray:
    return take(draw, seed, name, 0, 1)[0].astype(np.int32 if draw.integer else jax.numpy.dtype(dtype))


def exact(case: Case, workload: Workload, start: int, stop: int) -> Mapping[str, np.ndarray]:
    """The same numbers for a block of points, per-point and shared inputs by name, as float64: what a reference is given."""
    named = {name: rows(case, workload, name, start, stop) for name in workload.points}
    named |= {name: shared(case, workload, name) for name in workload.shared}
    return {name: np.asarray(array, np.float64) for name, array in named.items()}


def arrays(case: Case, workload: Workload) -> dict[str, np.ndarray]:
    """All inputs on the host, by name, points leading: what a peer is given."""
    points = {name: rows(case, workload, name, 0, case.points) for name in workload.points}
    return points | {name: shared(case, workload, name) for name in workload.shared}


def place(case: Case, workload: Workload, program: Program) -> list[jax.Array]:
    """The arguments of a program on its devices; each device's part is made from its own rows."""
    return [_place_one(case, workload, name, struct) for name, struct in program.arguments.items()]


def _place_one(case: Case, workload: Workload, name: str, struct: jax.ShapeDtypeStruct) -> jax.Array:
    stacked = case.api == "pmap"  # devices lead, and each has its own points, or all of them
    each = case.points // (case.devices if case.split == "points" else 1)

    def part(index: Any) -> np.ndarray:
        start, stop, _ = index[0].indices(struct.shape[0]) if index else (0, 1, 1)
        if name in workload.shared:
            array = shared(case, workload, name)
            return np.broadcast_to(array, (stop - start, *array.shape)) if stacked else array[index]
        if not stacked:
            return rows(case, workload, name, start, stop)
        firsts = [device * each if case.split == "points" else 0 for device in range(start, stop)]
        return np.stack([rows(case, workload, name, first, first + each) for first in firsts])

    return jax.make_array_from_callback(struct.shape, struct.sharding, part)
