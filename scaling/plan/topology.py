"""Abstract devices of machines that are not here: programs compile for them, and nothing can be placed on
them.
"""

import json
from collections.abc import Mapping
from typing import Any

import jax
from jax.experimental import topologies


def devices(platform: str, count: int, target: Any, slice_shape: tuple[int, ...], per_host: int) -> list[Any]:
    """Return devices of a platform; of a TPU all of a slice, or one of the smallest slice that libtpu
    knows (2 x 2).
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
    """Return a mapping as the text of a protocol buffer."""
    return " ".join(
        f"{name} {{ {_to_text_proto(value)} }}"
        if isinstance(value, Mapping)
        else f"{name}: {json.dumps(value)}"
        for name, value in fields.items()
    )
