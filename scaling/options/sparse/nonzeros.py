"""Compute compressed slices on the devices, read the nonzeros from them, and gather the nonzeros on the host.

The colors are divided among the devices. Each device computes the compressed slices (sums of columns or rows)
of its colors, and reads the nonzeros in these slices. The host gathers the nonzeros of all devices. The
devices do not communicate.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from scaling.core.derivative import Derivative, LinearMapPart, Slices, ceil_div, map_seeds
from scaling.core.layout import COLORS, POSITIONS
from scaling.options.sparse.coloring import Coloring


@dataclass(frozen=True)
class GatherIndices:
    """The indices of each nonzero in the compressed slices of a device and in the sparsity pattern."""

    arguments: dict[str, np.ndarray]  # program arguments: the colors, and the positions for each device
    entries: list[list[np.ndarray]]  # for each linear map and device, the pattern indices of the nonzeros


def gather_indices(derivative: Derivative) -> GatherIndices:
    """Return the indices that each device uses to read nonzeros from its compressed slices."""
    indices, devices = GatherIndices({}, []), derivative.case.mesh_shape[1]
    for number, part in enumerate(derivative.parts):
        colors, positions, entries = _indices_of_part(derivative.coloring, part, devices)
        indices.arguments[f"{COLORS} {number}"] = colors
        indices.arguments[f"{POSITIONS} {number}"] = positions
        indices.entries.append(entries)
    return indices


def _indices_of_part(
    coloring: Coloring, part: LinearMapPart, devices: int
) -> tuple[np.ndarray, np.ndarray, list[np.ndarray]]:
    """Return the arrays that each device uses to read nonzeros from the slices of one linear map.

    The first array contains the color of each column or row. The second array, of shape (devices, nonzeros),
    contains the flat index of each nonzero in the slices of a device, padded with zeros. The slices have the
    shape (seeds, outputs) in forward mode and (seeds, inputs) in reverse mode. The third result is a list of
    one array for each device, which contains the pattern indices of the device's nonzeros.
    """
    pattern, seeds_per_device = coloring.pattern, ceil_div(part.seeds, devices)
    entries = np.flatnonzero(coloring.by_row != part.computes_columns)
    rows, cols = pattern.rows[entries], pattern.cols[entries]
    if part.computes_columns:
        colors, line, position, length = coloring.columns, cols, rows, pattern.outputs
    else:
        colors, line, position, length = coloring.rows, rows, cols, pattern.inputs
    assert colors is not None
    device, seed = np.divmod(colors[line], seeds_per_device)
    flat = seed.astype(np.int64) * length + position
    by_device = [np.flatnonzero(device == number) for number in range(devices)]
    dtype = np.int32 if flat.max(initial=0) < 2**31 else np.int64
    positions = np.zeros((devices, max(map(len, by_device))), dtype)
    for number, selected in enumerate(by_device):
        positions[number, : len(selected)] = flat[selected]
    return np.asarray(colors, np.int32), positions, [entries[selected] for selected in by_device]


def read_entries(slices: Slices, colors: Any, positions: Any) -> Any:
    """Compute the compressed slices of a device, and return the nonzeros at the given flat positions.

    `colors` contains the color of each column or row of the Jacobian.
    """
    compute = lambda: jax.tree.leaves(map_seeds(slices.compute, slices.seeds))  # noqa: E731
    # The condition is always true, but XLA cannot know that and does not fuse across a conditional. Without a
    # conditional, XLA fuses the slices into the gather and recomputes them for each entry. The conditional
    # reduces the time on a CPU with 1e6 unknowns from four times to twice the time of a handwritten one.
    unused = [jnp.full(a.shape, jnp.nan, a.dtype) for a in jax.eval_shape(compute)]
    computed = jax.lax.cond(colors[0] >= -1, compute, lambda: unused)
    count = slices.seeds.count
    flat = computed[0] if len(computed) == 1 else jnp.hstack([a.reshape(count, -1) for a in computed])
    return jnp.take(flat.reshape(-1), positions, mode="clip")


def gather_entries(indices: GatherIndices, shape: tuple[int, int, int], result: Sequence[Any]) -> np.ndarray:
    """Return the nonzeros of all devices as one array of the given shape, in the order of the pattern.

    `result` contains an array for each linear map, of shape (point devices, seed devices, points per device,
    nonzeros per device).
    """
    parts = [np.asarray(part) for part in result]
    join_points = lambda a: a.reshape(a.shape[0] * a.shape[1], -1)[: shape[0]]  # noqa: E731
    if len(parts) == 1 and len(indices.entries[0]) == 1:
        whole: np.ndarray = join_points(parts[0][:, 0]).reshape(shape)
        return whole
    gathered = np.zeros((shape[0], shape[2]), parts[0].dtype)
    for part, entries_by_device in zip(parts, indices.entries, strict=True):
        for device, entries in enumerate(entries_by_device):
            gathered[:, entries] = join_points(part[:, device])[:, : len(entries)]
    return gathered.reshape(shape)
