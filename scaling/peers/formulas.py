"""Define the functions of `rbf`, `linear`, `residual` and `poisson` for array libraries like NumPy and torch.

The functions accept a single point or a batch with a leading axis of points. `_linear` also accepts a
separate copy of W for each point. The argument `np` is the array library, such as numpy or torch.
"""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from scaling.core.case import Case
from scaling.peers.interface import Check

KNOWN = ("rbf", "linear", "residual", "poisson")


def checks(case: Case, modes: Iterable[str]) -> list[Check]:
    """Return checks for `first_reason` that refuse an unknown workload, or an AD mode not in `modes`."""
    functions = f"{case.engine} implements the functions {', '.join(KNOWN)}, not those in JAX"
    return [
        (case.workload not in KNOWN, functions),
        (case.mode not in modes, f"{case.engine} offers {', '.join(modes)}"),
    ]


def function(case: Case, np: Any, log_gamma: Callable | None = None) -> Callable[..., Any]:
    """Return the function to differentiate in a case. Its keyword arguments are the inputs of the workload.

    `log_gamma` is the logarithm of the gamma function. Only the value of `poisson` needs it.
    """
    if case.workload == "rbf":
        default = "rowwise" if case.variant == "squared" else "product"
        return partial(_RBF[case.variant or "source", case.formulation or default], np)
    if case.workload == "residual":
        dot = _dot_by_einsum if case.formulation == "dot" else _dot_by_sum
        return partial(_residual, np, dot, case.variant == "scalar")
    return partial(_linear, np) if case.workload == "linear" else partial(_poisson, np, log_gamma)


def _rbf_product(np, x, support):
    return np.exp(-0.5 * ((-2 * x @ support.T) + (x + support[:, 0])))


def _rbf_rowwise(np, x, support):
    y = support[:, 0]
    return np.exp(-0.5 * ((-2 * x * y) + (x + y)))


def _rbf_squared(np, x, support):
    return np.exp(-0.5 * np.sum((x[..., None, :] - support) ** 2, -1))


def _rbf_squared_product(np, x, support):
    return np.exp(x @ support.T - 0.5 * (np.sum(x**2, -1)[..., None] + np.sum(support**2, -1)))


# The kernel K(x, y), of shape (..., m), for x of shape (..., d) and the centers `support` of shape (m, d). It
# is exp(-(x + y - 2xy) / 2) with d = 1 in the variant `source`, and exp(-|x - y|^2 / 2) in `squared`.
_RBF = {
    ("source", "product"): _rbf_product,
    ("source", "rowwise"): _rbf_rowwise,
    ("squared", "product"): _rbf_squared_product,
    ("squared", "rowwise"): _rbf_squared,
}


def _linear(np, X, W):
    """Return X @ W of shape (..., o), for X of shape (..., p) and W of shape (p, o) or (..., p, o)."""
    return X @ W if len(W.shape) == 2 else (X[..., None, :] @ W)[..., 0, :]


def _dot_by_einsum(np, a, b):
    return np.einsum("...i,...i->...", a, b)


def _dot_by_sum(np, a, b):
    return np.sum(a * b, -1)


def _residual(np, dot, is_scalar, d, m):
    """Return d minus its least-squares fit by a Gaussian, for d of shape (..., 21) and m of shape (...).

    The Gaussian is exp(-1.5 (x - m)^2) on the grid x = -10, -9, ..., 10. Only its amplitude is fitted. If
    `is_scalar` is true, return the sum of the squares of this residual.
    """
    grid = np.arange(-10.0, 11.0)
    grid = grid.to(d) if hasattr(grid, "to") else grid.astype(d.dtype)
    f = np.exp(-1.5 * (grid - m[..., None]) ** 2)
    residual = d - (dot(np, d, f) / dot(np, f, f))[..., None] * f
    return np.sum(residual**2, -1) if is_scalar else residual


def _poisson(np, log_gamma, c, lam):
    """Return the logarithm of the Poisson probability of the count c with the rate lam, elementwise.

    The term log(c!) is omitted if `log_gamma` is None.
    """
    log_factorial = log_gamma(c + 1.0) if log_gamma else 0.0
    return c * np.log(lam) - lam - log_factorial
