"""Implement `api=pmap`: run a function on all devices with `jax.pmap`, and copy its arguments to the devices.

The devices form a single axis named POINTS, which is the first axis of every argument and every result. Each
device computes one part of the points and one part of the seeds. The index of the seed part varies fastest.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from scaling.core.case import POINTS, Case
from scaling.core.derivative import DevicePosition, NamedArrays, ceil_div
from scaling.core.layout import POSITIONS, Argument, OnDevice


def wrap_in_pmap(
    case: Case, on_device: OnDevice, arguments: Mapping[str, Argument], devices: Sequence[Any]
) -> tuple[Callable[..., Any], NamedArrays]:
    """Return (function, structs). The function runs `on_device` on all devices with `jax.pmap`.

    `arguments` contains the shapes on one device. `structs` maps the name of each argument to an abstract
    array with an additional leading axis of devices.
    """

    def on_axis(*arrays: Any) -> Any:
        device, seed_devices = jax.lax.axis_index(POINTS), case.mesh_shape[1]
        position = DevicePosition(device // seed_devices, device % seed_devices)
        return on_device(position, arrays)

    sharding = NamedSharding(Mesh(np.array(devices), (POINTS,)), P(POINTS))
    structs = {
        name: jax.ShapeDtypeStruct((case.devices, *x.shape), x.dtype, sharding=sharding)
        for name, x in arguments.items()
    }
    return jax.pmap(on_axis, POINTS, devices=list(devices)), structs


def place(
    case: Case,
    struct: jax.ShapeDtypeStruct,
    name: str,
    rows: Callable[[int, int], np.ndarray] | None,
    global_array: Callable[[], np.ndarray],
) -> jax.Array:
    """Return an argument of a `jax.pmap` function as an array that is partitioned over the devices.

    `struct` is the abstract array, with devices along the first axis. `rows(start, stop)` returns rows of a
    per-point input. For any other argument, `rows` is None and `global_array()` returns the whole array.
    """
    point_devices, seed_devices = case.mesh_shape
    count = ceil_div(case.points, point_devices)

    def shard(index: Any) -> np.ndarray:
        device = index[0].start or 0  # each device has one row of the array
        if rows is not None:
            start = device // seed_devices * count
            return rows(start, start + count)[None]
        whole = global_array()
        if name.startswith(POSITIONS):  # one row for each seed device
            whole = whole[device % seed_devices, None]
        return whole[None]

    return jax.make_array_from_callback(struct.shape, struct.sharding, shard)
