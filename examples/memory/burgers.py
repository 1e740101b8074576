"""The Jacobian of an implicit step of Burgers' equation on a grid.

Thread: jejjohnson/somax#131, https://github.com/jejjohnson/somax/pull/131 (2026): 65,536 unknowns on a grid
of 256 x 256, some 17 GB in float32 for the dense Jacobian. Out of memory.

The Jacobian has five entries in each row: seeds=colored computes these only. A solver without a matrix needs
products with vectors: reduce=vector.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from scaling.workload import Reference, Workload, uniform

SIZES = {"side": 5}
THREAD = {"side": 256}
REPORT = {
    "thread": "jejjohnson/somax#131", "asked": "Jacobian, 65,536 x 65,536", "needed": "some 17 GB",
    "machine": "not stated",
}  # fmt: skip
STEP, VISCOSITY = 0.1, 0.5


def residual(u):
    """Return u - STEP du/dt with du/dt = VISCOSITY (u_xx + u_yy) - u (u_x + u_y): (side, side)."""
    north, south, west, east = (jnp.roll(u, shift, axis) for axis in (0, 1) for shift in (1, -1))
    diffusion = VISCOSITY * (north + south + west + east - 4 * u)
    return u - STEP * (diffusion - u * (south - north + east - west) / 2)


def reported_call(sizes):
    """Return (function, JAX transformation, dict from input to shape) of the call in the GitHub thread."""
    return residual, jax.jacfwd, {"u": (sizes["side"], sizes["side"])}


@functools.lru_cache(maxsize=1)
def pattern(side):
    """Return the rows, columns and kinds of the nonzeros of the Jacobian in row-major order.

    `kinds` (cells, 5) are 0 for the diagonal, and 1 to 4 for the four neighbors.
    """
    cell = np.arange(side * side).reshape(side, side)
    columns = np.stack([cell, *(np.roll(cell, shift, axis) for axis in (0, 1) for shift in (1, -1))], axis=-1)
    columns = columns.reshape(-1, 5)
    kinds = np.argsort(columns, axis=1)
    columns = np.take_along_axis(columns, kinds, axis=1)
    return np.repeat(np.arange(side * side), 5), columns.reshape(-1), kinds


def nonzeros(inputs):
    """Return residuals and the entries of their Jacobians in float64: (points, n), (points, 1, 5 n)."""
    u = inputs["u"]
    points, side = u.shape[:2]
    north, south, west, east = (np.roll(u, shift, axis) for axis in (1, 2) for shift in (1, -1))
    slope = (south - north + east - west) / 2
    value = u - STEP * (VISCOSITY * (north + south + west + east - 4 * u) - u * slope)
    diagonal = 1 + STEP * (4 * VISCOSITY + slope)
    before, after = -STEP * (VISCOSITY + u / 2), -STEP * (VISCOSITY - u / 2)
    entries = np.stack([diagonal, before, after, before, after], axis=-1).reshape(points, -1, 5)
    entries = np.take_along_axis(entries, pattern(side)[2][None], axis=2)
    return Reference(value.reshape(points, -1), entries.reshape(points, 1, -1))


def workload(case):
    side = case.sizes["side"]
    return Workload(
        residual, points={"u": uniform(side, side)}, wrt="u", terms=8, nonzeros=nonzeros,
        pattern=lambda: tuple(a.astype(np.int32) for a in pattern(side)[:2]),
    )  # fmt: skip
