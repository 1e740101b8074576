"""A function whose Jacobian is zero except for its first row, its first column and its diagonal.

    y_0 = the sum of x_j^3 / 3        y_i = x_i^2 / 2 + x_0 x_i for i > 0

The first row has an entry in every column, and the first column one in every row, so that a coloring of
columns alone, or of rows alone, needs n colours. A coloring of both needs three: one for the first row,
one for the first column, and one for all other columns, which meet in the first row only. An example of
bicolouring since T. F. Coleman and A. Verma, SIAM J. Sci. Comput. 19(4), 1998. One point is one x, on
which every entry depends.
"""

import jax
import jax.numpy as jnp
import numpy as np

from scaling.core.case import Case, Refusal
from scaling.core.workload import Inputs, Reference, Workload, uniform

SIZES = {"n": 64}
TARGETS = ("jacobian",)


def _function(x):
    """(n,) -> (n,)."""
    rest = x[1:]
    return jnp.concatenate([jnp.sum(x**3, keepdims=True) / 3, rest**2 / 2 + x[0] * rest])


def _pattern(n: int) -> tuple[np.ndarray, np.ndarray]:
    """Return rows and columns of the entries, row by row: (3 n - 2,) int32 each. After the first row, each
    has two.
    """
    down = np.arange(1, n, dtype=np.int32)
    pairs = np.stack([np.zeros_like(down), down], axis=1)
    rows = np.concatenate([np.zeros(n, np.int32), np.repeat(down, 2)])
    return rows, np.concatenate([np.arange(n, dtype=np.int32), pairs.reshape(-1)])


def _analytic(colored: bool, x):
    """(points, n) -> the entries, (points, 3 n - 2), or the Jacobian, (points, n, n)."""
    first, rest = x[:, :1], x[:, 1:]
    if colored:
        return jnp.concatenate([x**2, jnp.stack([rest, first + rest], axis=2).reshape(len(x), -1)], axis=1)
    down = np.arange(1, x.shape[1])
    whole = jnp.zeros((*x.shape, x.shape[1]), x.dtype).at[:, 0].set(x**2).at[:, 1:, 0].set(rest)
    return whole.at[:, down, down].set(first + rest)


def _analytic_point(colored: bool, x):
    """Return the same for one point, selected entry by entry."""
    n = x.size
    if colored:
        entry = jnp.arange(3 * n - 2)
        i = jnp.where(entry < n, entry, (entry - n) // 2 + 1)
        column, on = (entry >= n) & ((entry - n) % 2 == 0), (entry >= n) & ((entry - n) % 2 == 1)
    else:
        row, i = jnp.indices((n, n))
        column, on = (row > 0) & (i == 0), (row > 0) & (i == row)
        i = jnp.where(column, row, i)
    at = jnp.take(x, i, mode="clip")
    elsewhere = at**2 if colored else jnp.where(row == 0, at**2, 0)
    return jnp.where(column, at, jnp.where(on, x[0] + at, elsewhere))


def _nonzeros(inputs: Inputs) -> Reference:
    """Return the reference in NumPy float64, with the entries as derivative: (points, 1, 3 n - 2)."""
    x = inputs["x"]
    first, rest = x[:, :1], x[:, 1:]
    value = np.concatenate([np.sum(x**3, axis=1, keepdims=True) / 3, rest**2 / 2 + first * rest], axis=1)
    n = x.shape[1]
    derivative = np.empty((len(x), 3 * n - 2))
    derivative[:, :n], derivative[:, n::2], derivative[:, n + 1 :: 2] = x**2, rest, first + rest
    return Reference(value, derivative[:, None, :])


def _reference(inputs: Inputs) -> Reference:
    """Return the reference with the Jacobian as a matrix."""
    found, n = _nonzeros(inputs), inputs["x"].shape[1]
    whole = np.zeros((len(found.value), n, n))
    whole[:, *_pattern(n)] = found.derivative[:, 0]
    return found._replace(derivative=whole)


def workload(case: Case) -> Workload:
    """Return arrowhead with n unknowns."""
    n, colored = case.sizes["n"], case.seeds == "colored"
    if n < 2:
        raise Refusal(f"sizes.n={n}: an arrowhead has at least two unknowns")
    # The sum of the first output; no derivative adds up more than two numbers.
    adds_up = case.ad_mode.is_value or case.ad_mode.finite_step
    return Workload(
        function=_function,
        points={"x": uniform(n, low=0.5, high=1.5)},
        wrt="x",
        whole_modes={
            "analytic": lambda x: _analytic(colored, x),
            "analytic_vmap": lambda x: jax.vmap(lambda one: _analytic_point(colored, one))(x),
        },
        reference=_reference,
        terms=n if adds_up else 2,
        pattern=lambda: _pattern(n),
        nonzeros=_nonzeros,
    )
