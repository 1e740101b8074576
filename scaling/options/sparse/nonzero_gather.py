"""Read the nonzeros of a Jacobian from its compressed slices on each device, and gather them on the host.

A compressed slice is the sum of the columns, or of the rows, of one color. The colors are divided among the
devices. Each device computes the slices of its colors and reads the nonzeros that they contain, so that no
communication is needed.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from scaling.core.jacobian import Slices, map_seeds
from scaling.core.layout import COLORS, POSITIONS
from scaling.core.shape import Coloring, DerivativeShape, LinearMapPart, ceil_div


@dataclass(frozen=True)
class GatherIndices:
    """The positions of nonzeros in the compressed slices of each device, and their indices in the pattern.

    `arguments` contains additional arguments of the compiled program by name: the colors, and the positions
    that each device reads. `entries` contains, for each linear map and each device, the indices of these
    nonzeros in the sparsity pattern.
    """

    arguments: dict[str, np.ndarray]
    entries: tuple[tuple[np.ndarray, ...], ...]


def gather_indices(sizes: DerivativeShape, devices: int) -> GatherIndices:
    """Return the indices with which each device reads nonzeros of a Jacobian from its compressed slices.

    `devices` is the number of devices among which the colors are divided.
    """
    coloring = sizes.coloring
    assert coloring is not None
    indices = [_indices_of_part(coloring, part, devices) for part in sizes.parts]
    colors = [coloring.columns if part.computes_columns else coloring.rows for part in sizes.parts]
    arguments = {f"{COLORS} {number}": np.asarray(x, np.int32) for number, x in enumerate(colors)}
    arguments |= {f"{POSITIONS} {number}": positions for number, (positions, _) in enumerate(indices)}
    return GatherIndices(arguments, tuple(entries for _, entries in indices))


def _indices_of_part(
    coloring: Coloring, part: LinearMapPart, devices: int
) -> tuple[np.ndarray, tuple[np.ndarray, ...]]:
    """Return the indices with which each device reads nonzeros from the slices of one linear map.

    Returns:
        An array of shape (devices, nonzeros): the positions of the nonzeros that each device reads, padded
            with zeros. A position is a flat index into the slices of the device, an array of shape (seeds,
            outputs) in forward mode or (seeds, inputs) in reverse mode.
        For each device, an array of the indices of these nonzeros in the sparsity pattern.
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
    return positions, tuple(entries[selected] for selected in by_device)


def read_entries(slices: Slices, colors: Any, positions: Any) -> Any:
    """Compute the compressed slices of a device, and return an array of the nonzeros in them.

    `colors` contains the color of each column or row, and `positions` the flat index of each nonzero.
    """
    compute = lambda: jax.tree.leaves(map_seeds(slices.compute, slices.seeds))  # noqa: E731
    # The condition is always true, but XLA cannot know that and does not fuse across a conditional. Without a
    # conditional, XLA fuses the slices into the gather and recomputes them for each entry. The conditional
    # reduces the time on a CPU with 1e6 unknowns from four times to twice that of a handwritten derivative.
    unused = [jnp.full(a.shape, jnp.nan, a.dtype) for a in jax.eval_shape(compute)]
    computed = jax.lax.cond(colors[0] >= -1, compute, lambda: unused)
    count = slices.seeds.count
    flat = computed[0] if len(computed) == 1 else jnp.hstack([a.reshape(count, -1) for a in computed])
    return jnp.take(flat.reshape(-1), positions, mode="clip")


def gather_entries(indices: GatherIndices, shape: tuple[int, int, int], result: Sequence[Any]) -> np.ndarray:
    """Return the nonzeros that all devices have read, in an array on the host ordered as the pattern.

    `shape` is the shape of this array, (points, 1, entries). `result` contains, for each linear map, an array
    of shape (point devices, seed devices, points per device, nonzeros).
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
