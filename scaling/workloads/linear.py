"""Define the workload `linear`: the Jacobian of a linear layer with respect to its weights.

The function is forward(X, W) = X @ W. The elements of X, of shape (n, p), and of W, of shape (p, o), are
uniformly random. A point (batch element) is one of the n rows of X. The Jacobian is summed over the outputs.
`batch: vmap` differentiates the function of each point. `batch: whole` differentiates the function of all
points in one call. An output X[i] @ W[:, j] depends on a single column of W. The mode `vmap_grad`
differentiates each output only with respect to this column.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from scaling.core.case import Case
from scaling.core.workload import Inputs, Reference, Workload, uniform

SIZES = {"p": 8, "o": 2}
TARGETS = ("jacobian",)
VALUE = "forward"


def forward(X, W):
    """Return X @ W for X of shape (..., p) and W of shape (p,), (p, o) or (..., p, o)."""
    return X @ W if len(W.shape) < 3 else (X[..., None, :] @ W)[..., 0, :]


def formula(case: Case, xp: Any) -> Callable[..., Any]:
    """Return the function X @ W of a case. `xp` is the array library, such as jax.numpy or torch."""
    return forward


def _vmap_grad(X, W):
    """Return the gradients of X[i] @ W[:, j] with respect to W[:, j], as an array of shape (n, p, o)."""
    by_column = jax.vmap(lambda x, w: jax.grad(forward, argnums=1)(x, w), in_axes=(None, -1), out_axes=-1)
    return jax.vmap(by_column, in_axes=(0, None))(X, W)


def _analytic(names, X, W):
    """Return the handwritten derivative of (x @ W).sum() for each of the n rows x of X.

    The derivative is with respect to the inputs `names`. The result has the shape (n, elements of these
    inputs).
    """
    n, (p, o) = X.shape[0], W.shape
    by_input = {
        "W": jnp.broadcast_to(X[:, :, None], (n, p, o)),
        "X": jnp.broadcast_to(jnp.sum(W, axis=1), (n, p)),
    }
    return jnp.concatenate([by_input[name].reshape(n, -1) for name in names], axis=1)


def _analytic_point(names, x, W):
    """Return the handwritten derivative of (x @ W).sum() with respect to the inputs `names`, as a vector."""
    by_input = {"W": x[:, None] * jnp.ones_like(W), "X": W @ jnp.ones(W.shape[1], W.dtype)}
    return jnp.concatenate([by_input[name].reshape(-1) for name in names])


def _reference(names: tuple[str, ...], inputs: Inputs) -> Reference:
    """Return the outputs X @ W and their Jacobians with respect to the inputs `names`, as a `Reference`."""
    X, W = inputs["X"], inputs["W"]
    n, o = len(X), W.shape[1]
    by_input = {
        "W": lambda: np.einsum("np,ok->nopk", X, np.eye(o)).reshape(n, o, -1),
        "X": lambda: np.broadcast_to(W.T, (n, *W.T.shape)),
    }
    return Reference(X @ W, np.concatenate([by_input[name]() for name in names], axis=2))


def workload(case: Case) -> Workload:
    """Return the `Workload` of a linear layer with p inputs and o outputs."""
    p, o = case.sizes["p"], case.sizes["o"]
    names = tuple((case.wrt or "W").split("+"))
    modes: dict[str, Callable] = {
        "analytic": functools.partial(_analytic, names),
        "analytic_vmap": lambda X, W: jax.vmap(lambda x: _analytic_point(names, x, W))(X),
    }
    if names == ("W",):
        modes["vmap_grad"] = _vmap_grad
    return Workload(
        function=forward,
        points={"X": uniform(p)},
        shared={"W": uniform(p, o)},
        wrt="W",
        reduce="outputs",
        whole=forward,
        whole_modes=modes,
        reference=functools.partial(_reference, names),
        terms=max(p, o),
    )
