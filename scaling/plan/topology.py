"""Topology: devices to compile for, of machines that are not here; nothing can be placed on them.

Knows JAX's descriptions of TPU slices and hosts of GPUs; not what is compiled.
"""

import json
from collections.abc import Mapping
from typing import Any

import jax
from jax.experimental import topologies


def devices(platform: str, count: int, target: Any, shape: tuple[int, ...], per_host: int) -> list[Any]:
    """So many devices; of a TPU all of a slice of this shape, or one of the least slice that libtpu knows, two by two chips."""
    if platform == "cpu":
        return jax.devices("cpu")[:count]
    if platform == "gpu":
        hosts, each = max(1, count // per_host), min(count, per_host)
        name = f"1x{hosts}x{each}"
        return _described("cuda", name, topology=name, target_config=_as_text(target))
    if count == 1:
        shape = tuple(2 if place < 2 else 1 for place in range(len(shape)))
    return _described("tpu", f"{target}:{'x'.join(map(str, shape))}")[:count]


def _described(platform: str, name: str, **more: Any) -> list[Any]:
    return list(topologies.get_topology_desc(platform=platform, topology_name=name, **more).devices)


def _as_text(fields: Mapping[str, Any]) -> str:
    """A mapping as the text of a protocol buffer."""
    lines = [
        f"{name} {{ {_as_text(value)} }}" if isinstance(value, Mapping) else f"{name}: {json.dumps(value)}"
        for name, value in fields.items()
    ]
    return " ".join(lines)
