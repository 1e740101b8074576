"""Where the nonzeros of a coloured Jacobian lie in its compressed slices, device by device.

Each device has some of the colours, and reads the entries that these hold off its own slices, so that nothing
is sent.
"""

import numpy as np

from scaling.core.pattern import GatherIndices
from scaling.core.shape import DerivativeShape, LinearMapPart, ceil_div


def gather_indices(sizes: DerivativeShape, devices: int) -> GatherIndices:
    """Return the gather indices of a coloured derivative whose colours are divided over devices."""
    found = [_of_part(sizes, part, devices) for part in sizes.parts]
    return GatherIndices(tuple(at for at, _ in found), tuple(places for _, places in found))


def _of_part(
    sizes: DerivativeShape, part: LinearMapPart, devices: int
) -> tuple[np.ndarray, tuple[np.ndarray, ...]]:
    coloring = sizes.coloring
    assert coloring is not None
    pattern, here = coloring.pattern, ceil_div(part.seeds, devices)
    mine = np.flatnonzero(coloring.by_row != part.columns)
    if part.columns:
        assert coloring.columns is not None
        device, seed = np.divmod(coloring.columns[pattern.cols[mine]], here)
        at = seed.astype(np.int64) * pattern.outputs + pattern.rows[mine]
    else:
        assert coloring.rows is not None
        device, seed = np.divmod(coloring.rows[pattern.rows[mine]], here)
        at = seed.astype(np.int64) * pattern.inputs + pattern.cols[mine]
    each = [np.flatnonzero(device == number) for number in range(devices)]
    filled = np.zeros(
        (devices, max(len(some) for some in each)), np.int32 if at.max(initial=0) < 2**31 else np.int64
    )
    for number, some in enumerate(each):
        filled[number, : len(some)] = at[some]
    return filled, tuple(mine[some] for some in each)
