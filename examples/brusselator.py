"""Right-hand side of the Brusselator, two reacting and diffusing fields on a periodic grid (sparse Jacobian).

    du/dt = 1 + u^2 v - (A + 1) u + (alpha / dx^2) L u        dv/dt = A u - u^2 v + (alpha / dx^2) L v

L is the five-point Laplacian. The parameters and the spacing dx = 1 / (side - 1) are those of the benchmark
of sparse derivatives in SciMLBenchmarks.jl, at t = 0, when its forcing is zero. A point is a state (2, side,
side) of u and v. Each row of the Jacobian has six nonzeros: five of the Laplacian and one of the reaction.
"""

import functools

import jax.numpy as jnp
import numpy as np

from scaling.workload import Reference, Workload, uniform

SIZES = {"side": 32}
A, ALPHA = 3.4, 10.0


def rate(state):
    """Return the rate of change (2, side, side) of a state (2, side, side)."""
    u, v = state
    near = [jnp.roll(state, shift, axis) for axis in (1, 2) for shift in (1, -1)]
    diffusion = ALPHA * (u.shape[0] - 1) ** 2 * (sum(near) - 4 * state)
    return diffusion + jnp.stack([1 + u * u * v - (A + 1) * u, A * u - u * u * v])


@functools.lru_cache(maxsize=4)
def columns(side):
    """Return the columns (n, 6) of the nonzeros of each row: the cell, four neighbors, the other field."""
    cell = np.arange(2 * side * side).reshape(2, side, side)
    near = [np.roll(cell, shift, axis) for axis in (1, 2) for shift in (1, -1)]
    return np.stack([cell, *near, cell[::-1]], axis=-1).reshape(-1, 6)


def pattern(side):
    """Return the rows and columns of the nonzeros of the Jacobian, row by row: int32 (nonzeros,) each."""
    sorted_columns = np.sort(columns(side), axis=1).astype(np.int32)
    return np.repeat(np.arange(len(sorted_columns), dtype=np.int32), 6), sorted_columns.ravel()


def nonzeros(side, inputs):
    """Return the rates (points, n) and the nonzeros of the Jacobians (points, 1, nonzeros) in float64."""
    state = inputs["state"]
    u, v = state[:, 0], state[:, 1]
    near = sum(np.roll(state, shift, axis) for axis in (2, 3) for shift in (1, -1))
    factor = ALPHA * (side - 1) ** 2
    value = factor * (near - 4 * state) + np.stack([1 + u * u * v - (A + 1) * u, A * u - u * u * v], axis=1)
    diagonal = np.stack([2 * u * v - (A + 1), -u * u], axis=1) - 4 * factor
    other = np.stack([u * u, A - 2 * u * v], axis=1)
    entries = np.stack([diagonal, *[np.full_like(state, factor)] * 4, other], axis=-1)
    order = np.argsort(columns(side), axis=1)
    entries = np.take_along_axis(entries.reshape(len(state), -1, 6), order[None], axis=2)
    terms = 8 * factor * np.abs(state).max(axis=(1, 2, 3))
    return Reference(value.reshape(len(state), -1), entries.reshape(len(state), 1, -1), terms)


def dense(side, inputs):
    """Return the rates (points, n) and the Jacobians (points, n, n) in float64."""
    reference = nonzeros(side, inputs)
    jacobian = np.zeros((len(reference.value), 2 * side * side, 2 * side * side))
    jacobian[:, *pattern(side)] = reference.derivative[:, 0]
    return reference._replace(derivative=jacobian)


def workload(case):
    side = case.sizes["side"]
    return Workload(
        rate,
        points={"state": uniform(2, side, side, low=0.5, high=1.5)},
        reference=lambda inputs: dense(side, inputs),
        pattern=lambda: pattern(side),
        nonzeros=lambda inputs: nonzeros(side, inputs),
        terms=9,
    )
