"""Diffusion on a line with zero at both ends, f(u)_i = u_{i-1} - 2 u_i + u_{i+1} (tridiagonal Jacobian).

The benchmarks of asdex (n = 200) and of SciMLBenchmarks.jl (n = 1,000) differentiate this function.
"""

import jax.numpy as jnp
import numpy as np

from scaling.workload import Reference, Workload, uniform

SIZES = {"n": 200}


def rate(u):
    """Return the rate of change (n,) of a state u (n,)."""
    padded = jnp.pad(u, 1)
    return padded[:-2] - 2 * u + padded[2:]


def pattern(n):
    """Return the rows and columns of the nonzeros of the Jacobian, row by row: int32 (3 n - 2,) each."""
    rows, columns = np.repeat(np.arange(n), 3), (np.arange(n)[:, None] + [-1, 0, 1]).ravel()
    inside = (columns >= 0) & (columns < n)
    return rows[inside].astype(np.int32), columns[inside].astype(np.int32)


def nonzeros(n, inputs):
    """Return the rates (points, n) and the nonzeros of the Jacobians (points, 1, 3 n - 2) in float64."""
    u = inputs["u"]
    padded = np.pad(u, ((0, 0), (1, 1)))
    rows, columns = pattern(n)
    entries = np.where(rows == columns, -2.0, 1.0)
    terms = padded[:, :-2] + 2 * u + padded[:, 2:]
    value = padded[:, :-2] - 2 * u + padded[:, 2:]
    return Reference(value, np.tile(entries, (len(u), 1, 1)), terms.max(axis=1))


def dense(n, inputs):
    """Return the rates (points, n) and the Jacobians (points, n, n) in float64."""
    jacobian = np.eye(n, k=-1) - 2 * np.eye(n) + np.eye(n, k=1)
    return nonzeros(n, inputs)._replace(derivative=np.tile(jacobian, (len(inputs["u"]), 1, 1)))


def workload(case):
    n = case.sizes["n"]
    return Workload(
        rate,
        points={"u": uniform(n)},
        reference=lambda inputs: dense(n, inputs),
        pattern=lambda: pattern(n),
        nonzeros=lambda inputs: nonzeros(n, inputs),
        terms=4,
    )
