"""Partition a derivative over devices with `pmap` (`api=pmap`), and place its inputs.

The devices have the single axis POINTS, along which the index over seeds varies fastest. It is the first axis
of every argument and of every result.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from scaling.core.case import Case
from scaling.core.jacobian import DevicePosition
from scaling.core.layout import POINTS, POSITIONS, Argument, OnDevice, sum_over_devices
from scaling.core.shape import Named, ceil_div


def wrap(
    case: Case, on_device: OnDevice, arguments: Mapping[str, Argument], devices: Sequence[Any]
) -> tuple[Callable[..., Any], Named]:
    """Return the function that `jax.pmap` runs on all devices, and its abstract arguments by name."""

    def on_axis(*arrays: Any) -> Any:
        device, seed_devices = jax.lax.axis_index(POINTS), case.axes[1]
        position = DevicePosition(device // seed_devices, device % seed_devices, 0, sum_over_devices(case))
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
    """Return an argument as an array on the devices.

    Args:
        rows: a function that returns the rows [start, stop) of a per-point input, otherwise None.
        global_array: a function that returns the array of any other argument.
    """
    point_devices, seed_devices = case.axes
    count = ceil_div(case.points, point_devices)

    def device_row(device: int) -> np.ndarray:
        if rows is not None:
            start = device // seed_devices * count
            return rows(start, start + count)
        return global_array()[device % seed_devices, None] if name.startswith(POSITIONS) else global_array()

    def shard(index: Any) -> np.ndarray:
        start, stop, _ = index[0].indices(struct.shape[0])
        return np.stack([device_row(device) for device in range(start, stop)])

    return jax.make_array_from_callback(struct.shape, struct.sharding, shard)
