"""The Jacobian of a product of a diagonal matrix, a matrix and a vector.

Thread: martinResearch/MatlabAutoDiff#1, https://github.com/martinResearch/MatlabAutoDiff/issues/1 (2020):
diag(x.^2)*A*x for a matrix A of 3,000 x 3,000, an array of 73.0 GB requested. A has a density of 0.2 there,
and is dense here.

The maintainer's answer is to write brackets, so that no matrix is differentiated. Advice cannot rewrite a
function: it reduces the memory of the product as written, but not its operations.
"""

import jax
import jax.numpy as jnp
import numpy as np

from scaling.workload import Reference, Workload, uniform

SIZES = {"n": 6}
THREAD = {"n": 3000}
REPORT = {
    "thread": "martinResearch/MatlabAutoDiff#1", "asked": "Jacobian, 3,000 x 3,000", "needed": "73.0 GB",
    "machine": "not stated",
}  # fmt: skip
DTYPE = "float64"
FORMULATIONS = ("brackets", "diagonal")


def with_diagonal(x, A):
    """Return (diag(x**2) A) x, (n,), for x (n,) and A (n, n), with a product of two matrices."""
    return jnp.diag(x**2) @ A @ x


def with_brackets(x, A):
    """Return (diag(x**2) A) x, (n,), as x**2 * (A x), without a product of two matrices."""
    return x**2 * (A @ x)


def reported_call(sizes):
    """Return (function, JAX transformation, dict from input to shape) of the call in the GitHub thread."""
    return with_diagonal, jax.jacfwd, {"x": (sizes["n"],), "A": (sizes["n"], sizes["n"])}


def reference(inputs):
    """Return values and Jacobians in float64: (points, n), (points, n, n)."""
    x, A = inputs["x"], inputs["A"]
    product = x @ A.T
    J = x[:, :, None] ** 2 * A
    J[:, np.arange(len(A)), np.arange(len(A))] += 2 * x * product
    return Reference(x**2 * product, J)


def workload(case):
    n = case.sizes["n"]
    function = with_diagonal if case.formulation == "diagonal" else with_brackets
    A, x = uniform(n, n), uniform(n)
    return Workload(function, points={"x": x}, shared={"A": A}, wrt="x", reference=reference, terms=n)
