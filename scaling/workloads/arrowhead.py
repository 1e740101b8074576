"""Define the workload `arrowhead`. Its Jacobian is zero outside the first row, first column and diagonal.

    y_0 = sum_j x_j^3 / 3        y_i = x_i^2 / 2 + x_0 x_i for i > 0

A point (batch element) is a vector x of n elements. The first row and the first column of the Jacobian are
dense. Therefore a coloring of columns only, or of rows only, needs n colors. A coloring of rows and columns
needs three: one for the first row, one for the first column, and one for all other columns, which overlap
only in row 0. T. F. Coleman and A. Verma use this matrix as an example of bicoloring in SIAM J. Sci. Comput.
19(4), 1998.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from scaling.core.case import Case, Refusal
from scaling.core.workload import Inputs, Reference, Workload, uniform

SIZES = {"n": 64}
TARGETS = ("jacobian",)


def _function(x):
    tail = x[1:]
    return jnp.concatenate([jnp.sum(x**3, keepdims=True) / 3, tail**2 / 2 + x[0] * tail])


def _pattern(n: int) -> tuple[np.ndarray, np.ndarray]:
    """Return (row indices, column indices) of the 3 n - 2 nonzeros of the Jacobian, sorted by row."""
    index = np.arange(1, n, dtype=np.int32)
    pairs = np.stack([np.zeros_like(index), index], axis=1)
    rows = np.concatenate([np.zeros(n, np.int32), np.repeat(index, 2)])
    return rows, np.concatenate([np.arange(n, dtype=np.int32), pairs.reshape(-1)])


def _analytic(colored: bool, x):
    """Return the Jacobians at points x of shape (points, n), or only their nonzeros if `colored`."""
    (rows, columns), first, tail = _pattern(x.shape[1]), x[:, :1], x[:, 1:]
    entries = jnp.concatenate([x**2, jnp.stack([tail, first + tail], axis=2).reshape(len(x), -1)], axis=1)
    dense_shape = *x.shape, x.shape[1]
    return entries if colored else jnp.zeros(dense_shape, x.dtype).at[:, rows, columns].set(entries)


def _analytic_point(colored: bool, x):
    """Return the Jacobian at one point x of shape (n,), or only its nonzeros if `colored`."""
    rows, columns = _pattern(x.size)
    x_at_row, x_at_column = jnp.take(x, rows, mode="clip"), jnp.take(x, columns, mode="clip")
    entries = jnp.where(rows == 0, x_at_column**2, jnp.where(columns == 0, x_at_row, x[0] + x_at_row))
    return entries if colored else jnp.zeros((x.size, x.size), x.dtype).at[rows, columns].set(entries)


def _nonzeros(inputs: Inputs) -> Reference:
    """Return a `Reference` with the outputs and the row-sorted nonzeros of the Jacobian at each point."""
    x = inputs["x"]
    n, first, tail = x.shape[1], x[:, :1], x[:, 1:]
    value = np.concatenate([np.sum(x**3, axis=1, keepdims=True) / 3, tail**2 / 2 + first * tail], axis=1)
    derivative = np.empty((len(x), 1, 3 * n - 2))
    derivative[:, 0, :n] = x**2  # the first row
    derivative[:, 0, n::2] = tail  # the first column of the other rows
    derivative[:, 0, n + 1 :: 2] = first + tail  # the diagonal of the other rows
    return Reference(value, derivative)


def workload(case: Case) -> Workload:
    """Return the `Workload` whose Jacobian is an n x n arrowhead matrix. Raise `Refusal` if n < 2."""
    n, colored = case.sizes["n"], case.seeds == "colored"
    if n < 2:
        raise Refusal(f"sizes.n={n}: arrowhead needs at least 2 unknowns")
    # The first output is a sum of n terms. An entry of the Jacobian is a sum of at most two terms.
    has_long_sum = case.ad_mode.is_value or case.ad_mode.finite_step
    return Workload(
        function=_function,
        points={"x": uniform(n, low=0.5, high=1.5)},
        wrt="x",
        whole_modes={
            "analytic": functools.partial(_analytic, colored),
            "analytic_vmap": jax.vmap(functools.partial(_analytic_point, colored)),
        },
        terms=n if has_long_sum else 2,
        pattern=functools.partial(_pattern, n),
        nonzeros=_nonzeros,
    )
