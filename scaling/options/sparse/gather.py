"""Where the nonzeros of a coloured Jacobian lie in its compressed slices, device by device.

Each device has some of the colours, and reads the entries that these hold off its own slices, so that nothing
is sent.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from scaling.core.jacobian import Slices, map_seeds
from scaling.core.layout import COLORS, POSITIONS
from scaling.core.shape import DerivativeShape, LinearMapPart, ceil_div


@dataclass(frozen=True)
class GatherIndices:
    """What the devices read of a coloured derivative.

    arguments: of the program, by name: the colours, and for each part the positions that each device reads.
    numbers: for each part and device, the numbers of these entries in the pattern.
    """

    arguments: dict[str, np.ndarray]
    numbers: tuple[tuple[np.ndarray, ...], ...]


def gather_indices(sizes: DerivativeShape, devices: int) -> GatherIndices:
    """Return the gather indices of a coloured derivative whose colours are divided over devices."""
    coloring = sizes.coloring
    assert coloring is not None
    found = [_indices_of_part(sizes, part, devices) for part in sizes.parts]
    colors = [coloring.columns if part.computes_columns else coloring.rows for part in sizes.parts]
    arguments = {f"{COLORS} {number}": np.asarray(x, np.int32) for number, x in enumerate(colors)}
    arguments |= {f"{POSITIONS} {number}": at for number, (at, _) in enumerate(found)}
    return GatherIndices(arguments, tuple(numbers for _, numbers in found))


def _indices_of_part(
    sizes: DerivativeShape, part: LinearMapPart, devices: int
) -> tuple[np.ndarray, tuple[np.ndarray, ...]]:
    """Return the positions that each device reads in its slices, and the numbers of these entries.

    positions: (devices, most), flat in (seeds, outputs) or (seeds, inputs), padded with zeros.
    """
    coloring = sizes.coloring
    assert coloring is not None
    pattern, here = coloring.pattern, ceil_div(part.seeds, devices)
    entries = np.flatnonzero(coloring.by_row != part.computes_columns)
    rows, cols = pattern.rows[entries], pattern.cols[entries]
    if part.computes_columns:
        colors, line, along, length = coloring.columns, cols, rows, pattern.outputs
    else:
        colors, line, along, length = coloring.rows, rows, cols, pattern.inputs
    assert colors is not None
    device, seed = np.divmod(colors[line], here)
    at = seed.astype(np.int64) * length + along
    each = [np.flatnonzero(device == number) for number in range(devices)]
    dtype = np.int32 if at.max(initial=0) < 2**31 else np.int64
    positions = np.zeros((devices, max(len(some) for some in each)), dtype)
    for number, some in enumerate(each):
        positions[number, : len(some)] = at[some]
    return positions, tuple(entries[some] for some in each)


def read_entries(slices: Slices, colors: Any, at: Any) -> Any:
    """Return the entries that a device reads off its slices: (entries,). at: their flat positions."""
    compute = lambda: jax.tree.leaves(map_seeds(slices.compute, slices.seeds))  # noqa: E731
    # XLA would compute the slices again for each entry that is read off them. It does not look into a branch,
    # even one that is always taken. On a CPU, at 1e6 unknowns, four times the time of a derivative written by
    # hand becomes two.
    nothing = [jnp.full(a.shape, jnp.nan, a.dtype) for a in jax.eval_shape(compute)]
    made = jax.lax.cond(colors[0] >= -1, compute, lambda: nothing)
    count = slices.seeds.count
    flat = made[0] if len(made) == 1 else jnp.concatenate([a.reshape(count, -1) for a in made], axis=1)
    return jnp.take(flat.reshape(-1), at, mode="clip")


def gather_entries(entries: GatherIndices, shape: tuple[int, int, int], result: Sequence[Any]) -> np.ndarray:
    """Return the entries of the pattern, in its order, from what each device read: (points, 1, entries)."""
    parts = [np.asarray(part) for part in result]
    join = lambda a: a.reshape(a.shape[0] * a.shape[1], -1)[: shape[0]]  # noqa: E731
    if len(parts) == 1 and len(entries.numbers[0]) == 1:
        whole: np.ndarray = join(parts[0][:, 0]).reshape(shape)
        return whole
    found = np.zeros((shape[0], shape[2]), parts[0].dtype)
    for part, numbers_of_part in zip(parts, entries.numbers, strict=True):
        for device, numbers in enumerate(numbers_of_part):
            found[:, numbers] = join(part[:, device])[:, : len(numbers)]
    return found.reshape(shape)
