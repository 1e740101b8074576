"""Workload `stencil`: nonlinear diffusion with a bistable reaction on a periodic grid (sparse Jacobian).

    du/dt = D (sum of u^2 over the four neighbors - 4 u^2) + u - u^3

A point (batch element) is a state u: an array of shape (side, side) with one value per cell of a square grid.
The cells have width one. The function returns du/dt. The first term is the five-point Laplacian of u^2, as in
the porous medium equation (J. L. Vazquez, "The Porous Medium Equation", 2007). The rest is the reaction term
of the Allen-Cahn equation. The Jacobian has five nonzeros in each row. All of them depend on u, so that an
entry read from a wrong position has a wrong value. With a constant diffusivity, all off-diagonal nonzeros
would be equal.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from scaling.core.case import Case, Refusal
from scaling.core.shape import Pattern, to_dense
from scaling.core.workload import Inputs, Reference, Workload, uniform

SIZES = {"side": 16}
TARGETS = ("jacobian",)
FORMULATIONS = ("slices", "rolls")
VALUE = "rate"

DIFFUSION = 0.3


def _neighbors_by_slices(flux):
    """Return the flux at the upper, lower, left and right neighbors of each cell of the periodic grid.

    `flux` and the four results are arrays of shape (side, side). The results are slices of a padded array.
    XLA compiles the slices to a single vectorized loop, whereas `jnp.roll` along the last axis makes copies.
    """
    side = flux.shape[0]
    rows = jnp.concatenate([flux[-1:], flux, flux[:1]]).reshape(-1)
    column = jax.lax.broadcasted_iota(jnp.int32, flux.shape, 1)

    def shifted(offset):
        return rows[side + offset : side + offset + side * side].reshape(flux.shape)

    left = jnp.where(column == 0, shifted(side - 1), shifted(-1))
    right = jnp.where(column == side - 1, shifted(1 - side), shifted(1))
    return shifted(-side), shifted(side), left, right


def _neighbors_by_rolls(flux):
    """Return the flux at the upper, lower, left and right neighbors of each cell, computed with `jnp.roll`.

    `flux` and the four results are arrays of shape (side, side).
    """
    return tuple(jnp.roll(flux, shift, axis) for axis in (0, 1) for shift in (1, -1))


def _rate(neighbors, u):
    """Return du/dt for one state u. Both are arrays of shape (side, side).

    `neighbors` returns the values of an array at the four neighbors of each cell.
    """
    flux = DIFFUSION * u * u
    return sum(neighbors(flux)) - 4 * flux + u - u**3


@functools.lru_cache(maxsize=1)
def _pattern(side: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the row and column indices of the nonzeros of the Jacobian, sorted by row.

    Both are int32 arrays of shape (5 side^2,).
    """
    cell = np.arange(side * side, dtype=np.int32).reshape(side, side)
    neighbors = [np.roll(cell, shift, axis) for axis in (0, 1) for shift in (1, -1)]
    columns = np.sort(np.stack([cell, *neighbors], axis=-1).reshape(-1, 5), axis=1)
    return np.repeat(cell.reshape(-1), 5), columns.reshape(-1)


def _entries_of_columns(u):
    """Return the off-diagonal nonzeros and the diagonal entries of the Jacobian, arrays of the shape of u.

    All off-diagonal nonzeros in one column of the Jacobian have the same value. Each array contains one
    element for each column.
    """
    return 2 * DIFFUSION * u, 1 - 8 * DIFFUSION * u - 3 * u * u


def _analytic(side: int, colored: bool, u):
    """Return the Jacobians of a batch u of shape (points, side, side) by a handwritten formula.

    The result has the shape (points, n, n) with n = side^2 or, if `colored` is true, the shape (points, 5 n)
    with the nonzeros only.
    """
    rows, columns = _pattern(side)
    off_diagonal, diagonal = _entries_of_columns(u.reshape(len(u), -1))
    n = side * side
    if not colored:
        J = jnp.zeros((len(u), n, n), u.dtype).at[:, rows, columns].set(off_diagonal[:, columns])
        return J.at[:, np.arange(n), np.arange(n)].set(diagonal)
    indices = np.flatnonzero(rows == columns).astype(np.int32)
    entries = jnp.take(off_diagonal, columns, axis=1, mode="clip")
    return entries.at[:, indices].set(
        diagonal, indices_are_sorted=True, unique_indices=True, mode="promise_in_bounds"
    )


def _analytic_point(side: int, colored: bool, u):
    """Return the Jacobian of one state u of shape (side, side) by a handwritten formula.

    The result has the shape (n, n) with n = side^2 or, if `colored` is true, the shape (5 n,) with the
    nonzeros only. Each nonzero is computed from its row and column index.
    """
    rows, columns = _pattern(side)
    off_diagonal, diagonal = _entries_of_columns(u.reshape(-1))
    diagonal_at_row, off_diagonal_at_column = (
        jnp.take(diagonal, rows, mode="clip"),
        jnp.take(off_diagonal, columns, mode="clip"),
    )
    entries = jnp.where(rows == columns, diagonal_at_row, off_diagonal_at_column)
    n = side * side
    return entries if colored else jnp.zeros((n, n), u.dtype).at[rows, columns].add(entries)


def _nonzeros(side: int, inputs: Inputs) -> Reference:
    """Return the expected du/dt of shape (points, n) and nonzeros of shape (points, 1, 5 n), n = side^2.

    `inputs` is a dict with the array "u" of shape (points, side, side).
    """
    u = inputs["u"]
    rows, columns = _pattern(side)
    flux = DIFFUSION * u**2
    neighbors = sum(np.roll(flux, shift, axis) for axis in (1, 2) for shift in (1, -1))
    value = (neighbors - 4 * flux + u - u**3).reshape(len(u), -1)
    value_terms = (neighbors + 4 * flux + u + u**3).reshape(len(u), -1).max(axis=1)
    off_diagonal, diagonal = _entries_of_columns(u.reshape(len(u), -1))
    derivative = np.where(rows == columns, diagonal[:, rows], off_diagonal[:, columns])
    terms = (1 + 8 * DIFFUSION * u + 3 * u**2).reshape(len(u), -1).max(axis=1)
    return Reference(value, derivative[:, None, :], value_terms, terms)


def _reference(side: int, inputs: Inputs) -> Reference:
    """Return the expected du/dt of shape (points, n) and Jacobians of shape (points, n, n), n = side^2.

    `inputs` is a dict with the array "u" of shape (points, side, side).
    """
    reference, n = _nonzeros(side, inputs), side * side
    return reference._replace(derivative=to_dense(Pattern(*_pattern(side), n, n), reference.derivative[:, 0]))


def workload(case: Case) -> Workload:
    """Return the `Workload` of a reaction-diffusion equation on a periodic grid of side x side cells."""
    side, colored = case.sizes["side"], case.seeds == "colored"
    if side < 3:
        raise Refusal(
            f"sizes.side={side}: stencil needs side >= 3, because the neighbors of a cell must differ"
        )
    neighbors = {"slices": _neighbors_by_slices, "rolls": _neighbors_by_rolls}[
        case.formulation or FORMULATIONS[0]
    ]
    return Workload(
        function=lambda u: _rate(neighbors, u),
        points={"u": uniform(side, side, low=0.5, high=1.5)},
        wrt="u",
        whole_modes={
            "analytic": lambda u: _analytic(side, colored, u),
            "analytic_vmap": lambda u: jax.vmap(lambda state: _analytic_point(side, colored, state))(u),
        },
        reference=lambda inputs: _reference(side, inputs),
        terms=7,
        pattern=lambda: _pattern(side),
        nonzeros=lambda inputs: _nonzeros(side, inputs),
    )
