"""Density-dependent diffusion with a bistable reaction, on a periodic grid of side x side cells.

    du/dt = D (the sum of u^2 over the four neighbours - 4 u^2) + u - u^3

with one unknown for each cell: the five-point Laplacian of u^2, as in the porous medium equation (J. L.
Vazquez, "The Porous Medium Equation", 2007), and the reaction of Allen and Cahn. The Jacobian has five
entries a row. All of them depend on the state, so that an entry read at a wrong place is a wrong number;
with a constant diffusivity four of them would be the same everywhere. One point is one state. Cells have
width one on any grid.
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


def _slices(flux):
    """Return the four neighbours of each cell, (side, side) each, by slices of one array and a choice
    between them.

    XLA makes one vectorised loop of these; `jnp.roll` along the last axis would make copies.
    """
    side = flux.shape[0]
    rows = jnp.concatenate([flux[-1:], flux, flux[:1]]).reshape(-1)
    column = jax.lax.broadcasted_iota(jnp.int32, flux.shape, 1)

    def shifted(by):
        return rows[side + by : side + by + side * side].reshape(flux.shape)

    left = jnp.where(column == 0, shifted(side - 1), shifted(-1))
    right = jnp.where(column == side - 1, shifted(1 - side), shifted(1))
    return shifted(-side), shifted(side), left, right


def _rolls(flux):
    """Return the same by rolling the grid."""
    return tuple(jnp.roll(flux, by, axis) for axis in (0, 1) for by in (1, -1))


def _rate(neighbours, u):
    """du/dt: (side, side)."""
    flux = DIFFUSION * u * u
    return sum(neighbours(flux)) - 4 * flux + u - u**3


@functools.lru_cache(maxsize=1)
def _pattern(side: int) -> tuple[np.ndarray, np.ndarray]:
    """Return rows and columns of the entries, row by row: (5 side^2,) int32 each."""
    cell = np.arange(side * side, dtype=np.int32).reshape(side, side)
    neighbours = [np.roll(cell, by, axis) for axis in (0, 1) for by in (1, -1)]
    columns = np.sort(np.stack([cell, *neighbours], axis=-1).reshape(-1, 5), axis=1)
    return np.repeat(cell.reshape(-1), 5), columns.reshape(-1)


def _by_hand(u):
    """Return for each number of the state the entries in its column off the diagonal, and the one on it."""
    return 2 * DIFFUSION * u, 1 - 8 * DIFFUSION * u - 3 * u * u


def _analytic(side: int, colored: bool, u):
    """(points, side, side) -> the entries, (points, entries), or the Jacobian."""
    rows, columns = _pattern(side)
    off, on = _by_hand(u.reshape(len(u), -1))
    if not colored:
        whole = jnp.zeros((*off.shape, side * side), u.dtype).at[:, rows, columns].set(off[:, columns])
        return whole.at[:, np.arange(side * side), np.arange(side * side)].set(on)
    diagonal = np.flatnonzero(rows == columns).astype(np.int32)
    entries = jnp.take(off, columns, axis=1, mode="clip")
    return entries.at[:, diagonal].set(
        on, indices_are_sorted=True, unique_indices=True, mode="promise_in_bounds"
    )


def _analytic_point(side: int, colored: bool, u):
    """Return the same for one state, entry by entry, or as a matrix and its diagonal."""
    rows, columns = _pattern(side)
    off, on = _by_hand(u.reshape(-1))
    entries = jnp.where(rows == columns, jnp.take(on, rows, mode="clip"), jnp.take(off, columns, mode="clip"))
    return entries if colored else jnp.zeros((off.size, off.size), u.dtype).at[rows, columns].add(entries)


def _nonzeros(side: int, inputs: Inputs) -> Reference:
    """Return the reference in NumPy float64, with the entries as derivative: (points, 1, entries)."""
    u = inputs["u"]
    rows, columns = _pattern(side)
    flux = DIFFUSION * u**2
    neighbours = sum(np.roll(flux, by, axis) for axis in (1, 2) for by in (1, -1))
    value = (neighbours - 4 * flux + u - u**3).reshape(len(u), -1)
    value_terms = (neighbours + 4 * flux + u + u**3).reshape(len(u), -1).max(axis=1)
    off, on = _by_hand(u.reshape(len(u), -1))
    derivative = np.where(rows == columns, on[:, rows], off[:, columns])
    terms = (1 + 8 * DIFFUSION * u + 3 * u**2).reshape(len(u), -1).max(axis=1)
    return Reference(value, derivative[:, None, :], value_terms, terms)


def _reference(side: int, inputs: Inputs) -> Reference:
    """Return the reference with the Jacobian as a matrix."""
    found = _nonzeros(side, inputs)
    whole = np.zeros((len(found.value), side * side, side * side))
    whole[:, *_pattern(side)] = found.derivative[:, 0]
    return found._replace(derivative=whole)


def workload(case: Case) -> Workload:
    """Return stencil on the grid of the case."""
    side, colored = case.sizes["side"], case.seeds == "colored"
    if side < 3:
        raise Refusal(
            f"sizes.side={side}: on a periodic grid of fewer than 3 x 3 cells neighbours are the same cell"
        )
    neighbours = {"slices": _slices, "rolls": _rolls}[case.formulation or FORMULATIONS[0]]
    return Workload(
        function=lambda u: _rate(neighbours, u),
        points={"u": uniform(side, side, low=0.5, high=1.5)},
        wrt="u",
        whole_modes={
            "analytic": lambda u: _analytic(side, colored, u),
            "analytic_vmap": lambda u: jax.vmap(lambda one: _analytic_point(side, colored, one))(u),
        },
        reference=lambda inputs: _reference(side, inputs),
        terms=7,
        pattern=lambda: _pattern(side),
        nonzeros=lambda inputs: _nonzeros(side, inputs),
    )
