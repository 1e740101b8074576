"""Define the workload `stencil`: a reaction-diffusion equation on a periodic grid (sparse Jacobian).

    du/dt = D (sum of u^2 over the four neighbors - 4 u^2) + u - u^3

A point (batch element) is a state u: an array of shape (side, side) with one value per cell of a square grid.
The cells have width one. The function returns du/dt. The first term is the five-point Laplacian of u^2, as in
the porous medium equation (J. L. Vazquez, "The Porous Medium Equation", 2007). The rest is the reaction term
of the Allen-Cahn equation. The Jacobian has n = side^2 rows with five nonzeros each. The nonzeros depend on
u. Therefore an entry that is read from a wrong position has a wrong value.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from scaling.core.case import Case, Refusal
from scaling.core.workload import Inputs, Reference, Workload, uniform

SIZES = {"side": 16}
TARGETS = ("jacobian",)
FORMULATIONS = ("slices", "rolls")
VALUE = "rate"

DIFFUSION = 0.3


def _neighbors_by_slices(flux):
    """Return four arrays: the flux in each of the four neighbors of every cell, computed with slices."""
    # XLA compiles slices to one vectorized loop. `jnp.roll` along the last axis makes copies.
    side = flux.shape[0]
    rows = jnp.concatenate([flux[-1:], flux, flux[:1]]).reshape(-1)
    column = jax.lax.broadcasted_iota(jnp.int32, flux.shape, 1)

    def shifted(offset):
        return rows[side + offset : side + offset + side * side].reshape(flux.shape)

    left = jnp.where(column == 0, shifted(side - 1), shifted(-1))
    right = jnp.where(column == side - 1, shifted(1 - side), shifted(1))
    return shifted(-side), shifted(side), left, right


def _neighbors_by_rolls(flux):
    """Return four arrays: the flux in each of the four neighbors of every cell, computed with `jnp.roll`."""
    return tuple(jnp.roll(flux, shift, axis) for axis in (0, 1) for shift in (1, -1))


def _rate(neighbors, u):
    flux = DIFFUSION * u * u
    return sum(neighbors(flux)) - 4 * flux + u - u**3


@functools.lru_cache(maxsize=1)
def _pattern(side: int) -> tuple[np.ndarray, np.ndarray]:
    """Return (row indices, column indices) of the 5 * side^2 nonzeros of the Jacobian, sorted by row."""
    cell = np.arange(side * side, dtype=np.int32).reshape(side, side)
    neighbors = [np.roll(cell, shift, axis) for axis in (0, 1) for shift in (1, -1)]
    columns = np.sort(np.stack([cell, *neighbors], axis=-1).reshape(-1, 5), axis=1)
    return np.repeat(cell.reshape(-1), 5), columns.reshape(-1)


def _entries_of_columns(u):
    """Return the off-diagonal value and the diagonal entry of each Jacobian column at a state u."""
    return 2 * DIFFUSION * u, 1 - 8 * DIFFUSION * u - 3 * u * u


def _analytic(colored: bool, u):
    """Return the Jacobians at states u of shape (points, side, side), or only their nonzeros if `colored`."""
    rows, columns = _pattern(u.shape[-1])
    off_diagonal, diagonal = _entries_of_columns(u.reshape(len(u), -1))
    indices = np.flatnonzero(rows == columns).astype(np.int32)
    entries = jnp.take(off_diagonal, columns, axis=1, mode="clip")
    entries = entries.at[:, indices].set(
        diagonal, indices_are_sorted=True, unique_indices=True, mode="promise_in_bounds"
    )
    dense_shape = *diagonal.shape, diagonal.shape[1]
    return entries if colored else jnp.zeros(dense_shape, u.dtype).at[:, rows, columns].set(entries)


def _analytic_point(colored: bool, u):
    """Return the Jacobian at one state u of shape (side, side), or only its nonzeros if `colored`."""
    rows, columns = _pattern(u.shape[-1])
    off_diagonal, diagonal = _entries_of_columns(u.reshape(-1))
    diagonal_at_row = jnp.take(diagonal, rows, mode="clip")
    off_diagonal_at_column = jnp.take(off_diagonal, columns, mode="clip")
    entries = jnp.where(rows == columns, diagonal_at_row, off_diagonal_at_column)
    return entries if colored else jnp.zeros((u.size, u.size), u.dtype).at[rows, columns].set(entries)


def _nonzeros(inputs: Inputs) -> Reference:
    """Return du/dt and the nonzeros of the Jacobian at each point, as a `Reference`."""
    u = inputs["u"]
    rows, columns = _pattern(u.shape[-1])
    flux = DIFFUSION * u**2
    neighbors = sum(np.roll(flux, shift, axis) for axis in (1, 2) for shift in (1, -1))
    value = (neighbors - 4 * flux + u - u**3).reshape(len(u), -1)
    value_terms = (neighbors + 4 * flux + u + u**3).max(axis=(1, 2))
    off_diagonal, diagonal = _entries_of_columns(u.reshape(len(u), -1))
    derivative = np.where(rows == columns, diagonal[:, rows], off_diagonal[:, columns])
    derivative_terms = (1 + 8 * DIFFUSION * u + 3 * u**2).max(axis=(1, 2))
    return Reference(value, derivative[:, None, :], value_terms, derivative_terms)


def workload(case: Case) -> Workload:
    """Return the `Workload` of a reaction-diffusion equation on a periodic square grid."""
    side, colored = case.sizes["side"], case.seeds == "colored"
    if side < 3:
        raise Refusal(
            f"sizes.side={side}: stencil needs side >= 3, because the neighbors of a cell must differ"
        )
    neighbors = _neighbors_by_rolls if case.formulation == "rolls" else _neighbors_by_slices
    return Workload(
        function=functools.partial(_rate, neighbors),
        points={"u": uniform(side, side, low=0.5, high=1.5)},
        wrt="u",
        whole_modes={
            "analytic": functools.partial(_analytic, colored),
            "analytic_vmap": jax.vmap(functools.partial(_analytic_point, colored)),
        },
        terms=7,
        pattern=functools.partial(_pattern, side),
        nonzeros=_nonzeros,
    )
