"""The Jacobian of a linear layer by its weights, after an article on JAX's autodiff options.

forward(W, X) = X @ W with X (n, p) and W (p, o), uniform random; the Jacobian by W is summed over the
outputs. One point is a sample x_i. `batch: vmap` differentiates sample by sample, `batch: whole` all
samples at once; `vmap_grad` uses the structure: each output needs its own column of W only.
"""

import jax
import jax.numpy as jnp
import numpy as np

from scaling.core.case import Case
from scaling.core.workload import Inputs, Reference, Workload, uniform

SIZES = {"p": 8, "o": 2}
TARGETS = ("jacobian",)
VALUE = "forward"


def forward(X, W):
    """Return one sample (p,) or all of them (n, p), times the weights."""
    return X @ W


def _vmap_grad(X, W):
    """Return one gradient per sample and output column: (n, p, o)."""
    by_column = jax.vmap(lambda x, w: jax.grad(forward, argnums=1)(x, w), in_axes=(None, -1), out_axes=-1)
    return jax.vmap(by_column, in_axes=(0, None))(X, W)


def _analytic(names, X, W):
    """Return the derivative summed over the outputs: by W X_ij in every column, by X the sum of the row of
    W: (n, inputs).
    """
    n, (p, o) = X.shape[0], W.shape
    by = {"W": jnp.broadcast_to(X[:, :, None], (n, p, o)), "X": jnp.broadcast_to(jnp.sum(W, axis=1), (n, p))}
    if len(names) == 1:
        return by[names[0]]
    return jnp.concatenate([by[name].reshape(n, -1) for name in names], axis=1)


def _analytic_point(names, x, W):
    """Return the same for one sample, flat, by products with ones: (inputs,)."""
    by = {"W": x[:, None] * jnp.ones_like(W), "X": W @ jnp.ones(W.shape[1], W.dtype)}
    return jnp.concatenate([by[name].reshape(-1) for name in names])


def _reference(names: tuple[str, ...], inputs: Inputs) -> Reference:
    X, W = inputs["X"], inputs["W"]
    n, o = len(X), W.shape[1]
    by = {
        "W": lambda: np.einsum("np,ok->nopk", X, np.eye(o)).reshape(n, o, -1),
        "X": lambda: np.broadcast_to(W.T, (n, *W.T.shape)),
    }
    return Reference(X @ W, np.concatenate([by[name]() for name in names], axis=2))


def workload(case: Case) -> Workload:
    """Return linear with p inputs and o outputs."""
    p, o = case.sizes["p"], case.sizes["o"]
    names = tuple((case.wrt or "W").split("+"))
    by_hand = {
        "analytic": lambda X, W: _analytic(names, X, W),
        "analytic_vmap": lambda X, W: jax.vmap(lambda x: _analytic_point(names, x, W))(X),
    }
    return Workload(
        function=forward,
        points={"X": uniform(p)},
        shared={"W": uniform(p, o)},
        wrt="W",
        reduce="outputs",
        whole=forward,
        whole_modes=by_hand | ({"vmap_grad": _vmap_grad} if names == ("W",) else {}),
        reference=lambda inputs: _reference(names, inputs),
        terms=max(p, o),
    )
