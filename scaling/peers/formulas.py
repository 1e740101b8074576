"""The functions of the workloads `rbf`, `linear`, `residual` and `poisson`, for any library with NumPy's API.

The functions accept a single point or a batch with a leading axis of points. `_linear` also accepts a
separate copy of W for each point. The argument `np` is the array library: numpy, autograd.numpy, torch or
jax.numpy.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from scaling.core.case import Case

KNOWN = ("rbf", "linear", "residual", "poisson")


def check_workload(case: Case) -> tuple[bool, str]:
    """Return (whether this module lacks the workload of a case, text that says so) for `first_reason`."""
    text = f"{case.engine} implements the functions {', '.join(KNOWN)}, not those in JAX"
    return case.workload not in KNOWN, text


def function(case: Case, np: Any, log_gamma: Callable | None = None) -> Callable[..., Any]:
    """Return the function to differentiate in a case. Its keyword arguments are the inputs of the workload.

    Args:
        case: a case with one of the workloads of this module.
        np: the array library, with NumPy's API.
        log_gamma: the logarithm of the gamma function in this library. Only the value of `poisson` needs it.
    """
    if case.workload == "rbf":
        functions = {
            ("source", "product"): _rbf_product, ("source", "rowwise"): _rbf_rowwise,
            ("squared", "product"): _rbf_squared_product, ("squared", "rowwise"): _rbf_squared,
        }  # fmt: skip
        default = "rowwise" if case.variant == "squared" else "product"
        return partial(functions[case.variant or "source", case.formulation or default], np)
    if case.workload == "residual":
        dot = _dot if case.formulation == "dot" else _dot_as_sum
        return partial(_residual_scalar if case.variant == "scalar" else _residual, np, dot)
    return partial(_linear, np) if case.workload == "linear" else partial(_poisson, np, log_gamma)


def _rbf_product(np, x, support):
    """Return exp(-(x + y - 2xy) / 2) of shape (..., m), for x of shape (..., 1) and y of shape (m, 1).

    The centers y are `support`, and xy is computed by a matrix product. The result is a radial basis function
    (RBF) only for x and y in {0, 1}, where x^2 = x and y^2 = y.
    """
    return np.exp(-0.5 * ((-2 * x @ support.T) + (x + support[:, 0])))


def _rbf_rowwise(np, x, support):
    y = support[:, 0]
    return np.exp(-0.5 * ((-2 * x * y) + (x + y)))


def _rbf_squared(np, x, support):
    """Return exp(-|x - y|^2 / 2) of shape (..., m), for x of shape (..., d) and y of shape (m, d)."""
    return np.exp(-0.5 * np.sum((x[..., None, :] - support) ** 2, -1))


def _rbf_squared_product(np, x, support):
    """Return the same values as `_rbf_squared`, computed with a matrix product."""
    return np.exp(x @ support.T - 0.5 * (np.sum(x**2, -1)[..., None] + np.sum(support**2, -1)))


def _linear(np, X, W):
    """Return X @ W of shape (..., o), for X of shape (..., p) and W of shape (p, o) or (..., p, o)."""
    return X @ W if len(W.shape) == 2 else (X[..., None, :] @ W)[..., 0, :]


def _dot_as_sum(np, a, b):
    return np.sum(a * b, -1)


def _dot(np, a, b):
    return np.einsum("...i,...i->...", a, b)


def _residual(np, dot, d, m):
    """Return d minus its least-squares fit by a Gaussian, for d of shape (..., 21) and m of shape (...).

    The Gaussian is exp(-1.5 (x - m)^2) on the grid x = -10, -9, ..., 10. Only its amplitude is fitted.
    """
    f = np.exp(-1.5 * (_grid(np, d) - m[..., None]) ** 2)
    return d - (dot(np, d, f) / dot(np, f, f))[..., None] * f


def _grid(np, like):
    grid = np.arange(-10.0, 11.0)
    return grid.to(like) if hasattr(grid, "to") else grid.astype(like.dtype)


def _residual_scalar(np, dot, d, m):
    return np.sum(_residual(np, dot, d, m) ** 2, -1)


def _poisson(np, log_gamma, c, lam):
    """Return the logarithm of the Poisson probability of the count c with the rate lam, elementwise.

    The term log(c!) is omitted if `log_gamma` is None.
    """
    log_factorial = log_gamma(c + 1.0) if log_gamma else 0.0
    return c * np.log(lam) - lam - log_factorial
