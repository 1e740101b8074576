"""Workload `arrowhead`: a Jacobian that is nonzero only in its first row, its first column and its diagonal.

    y_0 = sum_j x_j^3 / 3        y_i = x_i^2 / 2 + x_0 x_i for i > 0

A point (batch element) is a vector x of n elements, and every nonzero depends on x. The first row and the
first column of the Jacobian are dense. A coloring of columns only, or of rows only, therefore needs n colors.
A coloring of both needs three colors: one for the first row, one for the first column, and one for all other
columns. Those columns overlap only in the first row. T. F. Coleman and A. Verma use this matrix as an example
of bicoloring in SIAM J. Sci. Comput. 19(4), 1998.
"""

import jax
import jax.numpy as jnp
import numpy as np

from scaling.core.case import Case, Refusal
from scaling.core.shape import Pattern, to_dense
from scaling.core.workload import Inputs, Reference, Workload, uniform

SIZES = {"n": 64}
TARGETS = ("jacobian",)


def _function(x):
    """Return the outputs y at one point x. Both are arrays of shape (n,)."""
    tail = x[1:]
    return jnp.concatenate([jnp.sum(x**3, keepdims=True) / 3, tail**2 / 2 + x[0] * tail])


def _pattern(n: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the row and column indices of the nonzeros of an n x n arrowhead matrix, sorted by row.

    Both are int32 arrays of shape (3 n - 2,).
    """
    index = np.arange(1, n, dtype=np.int32)
    pairs = np.stack([np.zeros_like(index), index], axis=1)
    rows = np.concatenate([np.zeros(n, np.int32), np.repeat(index, 2)])
    return rows, np.concatenate([np.arange(n, dtype=np.int32), pairs.reshape(-1)])


def _analytic(colored: bool, x):
    """Return the Jacobians of a batch x of shape (points, n) by a handwritten formula.

    The result has the shape (points, n, n) or, if `colored` is true, the shape (points, 3 n - 2) with the
    nonzeros only.
    """
    first, tail = x[:, :1], x[:, 1:]
    if colored:
        return jnp.concatenate([x**2, jnp.stack([tail, first + tail], axis=2).reshape(len(x), -1)], axis=1)
    index = np.arange(1, x.shape[1])
    J = jnp.zeros((*x.shape, x.shape[1]), x.dtype).at[:, 0].set(x**2).at[:, 1:, 0].set(tail)
    return J.at[:, index, index].set(first + tail)


def _analytic_point(colored: bool, x):
    """Return the Jacobian of one point x of shape (n,) by a handwritten formula.

    The result has the shape (n, n) or, if `colored` is true, the shape (3 n - 2,) with the nonzeros only.
    Each nonzero is computed from its row and column index.
    """
    n = x.size
    rows, columns = _pattern(n)
    x_at_row, x_at_column = jnp.take(x, rows, mode="clip"), jnp.take(x, columns, mode="clip")
    entries = jnp.where(rows == 0, x_at_column**2, jnp.where(columns == 0, x_at_row, x[0] + x_at_row))
    return entries if colored else jnp.zeros((n, n), x.dtype).at[rows, columns].set(entries)


def _nonzeros(inputs: Inputs) -> Reference:
    """Return the expected outputs, of shape (points, n), and the nonzeros of the Jacobian of each point.

    The nonzeros have the shape (points, 1, 3 n - 2), in the order of the pattern.

    `inputs` is a dict with the array "x" of shape (points, n).
    """
    x = inputs["x"]
    first, tail = x[:, :1], x[:, 1:]
    value = np.concatenate([np.sum(x**3, axis=1, keepdims=True) / 3, tail**2 / 2 + first * tail], axis=1)
    n = x.shape[1]
    derivative = np.empty((len(x), 3 * n - 2))
    derivative[:, :n], derivative[:, n::2], derivative[:, n + 1 :: 2] = x**2, tail, first + tail
    return Reference(value, derivative[:, None, :])


def _reference(inputs: Inputs) -> Reference:
    """Return the expected outputs of shape (points, n) and Jacobians of shape (points, n, n).

    `inputs` is a dict with the array "x" of shape (points, n).
    """
    reference, n = _nonzeros(inputs), inputs["x"].shape[1]
    return reference._replace(derivative=to_dense(Pattern(*_pattern(n), n, n), reference.derivative[:, 0]))


def workload(case: Case) -> Workload:
    """Return the `Workload` of a function whose Jacobian is an n x n arrowhead matrix."""
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
            "analytic": lambda x: _analytic(colored, x),
            "analytic_vmap": lambda x: jax.vmap(lambda point: _analytic_point(colored, point))(x),
        },
        reference=_reference,
        terms=n if has_long_sum else 2,
        pattern=lambda: _pattern(n),
        nonzeros=_nonzeros,
    )
