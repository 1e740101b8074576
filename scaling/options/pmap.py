"""Implement `api=pmap`: run a function on all devices with `jax.pmap`.

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
from scaling.core.derivative import DevicePosition, NamedArrays
from scaling.core.layout import Argument, OnDevice


def wrap_in_pmap(
    case: Case, on_device: OnDevice, arguments: Mapping[str, Argument], devices: Sequence[Any]
) -> tuple[Callable[..., Any], NamedArrays]:
    """Return a function that runs `on_device` on all devices with `jax.pmap`, and its abstract arguments.

    `arguments` maps the name of each argument to its shape and dtype on one device. The abstract arguments
    have the same names and an additional leading axis of devices.
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
