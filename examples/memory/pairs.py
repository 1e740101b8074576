"""The Hessian of a function of several thousand parameters, for a Newton method.

Thread: rfeinman/pytorch-minimize#39, https://github.com/rfeinman/pytorch-minimize/issues/39 (2025): up to
some 8,000 parameters in float64, 3,732 GiB requested, on a GPU with 24 GB. The thread does not show its
function. 3,732 GiB are 7,942 cubed numbers of 8 bytes, so this function has that many parameters, and an
intermediate value for each pair of them: parameters are strengths, and the loss is that of all comparisons of
two of them.

Methods that solve the Newton equations by conjugate gradients (newton-cg, trust-ncg) need products of the
Hessian and a vector only: target=hvp.
"""

import jax
import jax.numpy as jnp
import numpy as np

from scaling.workload import Reference, Workload, normal

SIZES = {"n": 20}
THREAD = {"n": 7942}
REPORT = {
    "thread": "rfeinman/pytorch-minimize#39", "asked": "Hessian of some 8,000 inputs", "needed": "3,732 GiB",
    "machine": "GPU of 24 GB",
}  # fmt: skip
DTYPE = "float64"


def loss(x):
    """Return the sum over all pairs of log(1 + exp(x_j - x_i)) / n, plus half the squares of x (n,)."""
    return jnp.sum(jax.nn.softplus(x[None] - x[:, None])) / len(x) + jnp.sum(x**2) / 2


def reported_call(sizes):
    """Return (function, JAX transformation, dict from input to shape) of the call in the GitHub thread."""
    return loss, jax.hessian, {"x": (sizes["n"],)}


def hessian(inputs):
    """Return values and Hessians in float64: (points, 1), (points, n, n)."""
    x = inputs["x"]
    n = x.shape[1]
    p = 1 / (1 + np.exp(x[:, :, None] - x[:, None]))  # (points, i, j): of x_j - x_i
    H = -2 * p * (1 - p) / n
    diagonal = np.arange(n)
    H[:, diagonal, diagonal] = 0
    H[:, diagonal, diagonal] = 1 - np.sum(H, axis=2)
    value = -np.log1p(-p).sum(axis=(1, 2)) / n + np.sum(x**2, axis=1) / 2
    return Reference(value[:, None], H)


def workload(case):
    n = case.sizes["n"]
    return Workload(loss, points={"x": normal(n)}, wrt="x", second=hessian, terms=n)
