"""Create compile-only JAX devices for machines that are not present, with `jax.experimental.topologies`."""

import json
from collections.abc import Mapping
from typing import Any

import jax
from jax.experimental import topologies


def devices(platform: str, count: int, target: Any, slice_shape: tuple[int, ...], per_host: int) -> list[Any]:
    """Return compile-only devices of a platform ("cpu", "gpu" or "tpu"), without access to such devices.

    For a TPU, the devices form a complete slice. A single device is an exception: it is taken from the
    smallest slice that libtpu supports (2 x 2).

    Args:
        count: Number of devices.
        target: GPU target configuration, or the libtpu name of a TPU.
        slice_shape: Shape of the TPU slice in chips.
        per_host: Number of devices per host.
    """
    if platform == "cpu":
        return jax.devices("cpu")[:count]
    if platform == "gpu":
        name = f"1x{max(1, count // per_host)}x{min(count, per_host)}"
        platform, options = "cuda", {"topology": name, "target_config": _to_text_proto(target)}
    else:
        chips = slice_shape if count > 1 else [2 if axis < 2 else 1 for axis in range(len(slice_shape))]
        name, options = f"{target}:{'x'.join(map(str, chips))}", {}
    description = topologies.get_topology_desc(platform=platform, topology_name=name, **options)
    return list(description.devices)[:count]


def _to_text_proto(fields: Mapping[str, Any]) -> str:
    return " ".join(
        f"{name} {{ {_to_text_proto(value)} }}"
        if isinstance(value, Mapping)
        else f"{name}: {json.dumps(value)}"
        for name, value in fields.items()
    )
