"""The Hessian that an optimizer allocated, although its method uses gradients only.

Thread: SciML/Optimization.jl#893, https://github.com/SciML/Optimization.jl/issues/893 (2025): the sum of
squares of so many numbers in float64 that their Hessian exceeds the memory of the machine, which is not
stated. With 24 GB that is 2 sqrt(24e9 / 8) = 109,544 numbers.

Conjugate gradients need the gradient, whose memory is that of the point.
"""

import jax
import jax.numpy as jnp
import numpy as np

from scaling.workload import Reference, Workload, normal

SIZES = {"n": 10}
THREAD = {"n": 109544}
REPORT = {
    "thread": "SciML/Optimization.jl#893", "asked": "gradient of 109,544 inputs", "needed": "out of memory",
    "machine": "not stated",
}  # fmt: skip
DTYPE = "float64"


def loss(u):
    """Return half the sum of the squares of u (n,), a scalar."""
    return jnp.sum(u**2) / 2


def reported_call(sizes):
    """Return (function, JAX transformation, dict from input to shape) of the call in the GitHub thread."""
    return loss, jax.hessian, {"u": (sizes["n"],)}


def reference(inputs):
    """Return values and gradients in float64: (points, 1), (points, 1, n)."""
    u = inputs["u"]
    return Reference(np.sum(u**2, axis=1, keepdims=True) / 2, u[:, None])


def workload(case):
    n = case.sizes["n"]
    return Workload(loss, points={"u": normal(n)}, wrt="u", reference=reference, terms=n)
