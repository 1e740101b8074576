"""The Jacobian of the residuals of a kernel expansion, by its centers and its length scale.

Thread: pytorch/functorch#1058, https://github.com/pytorch/functorch/issues/1058 (2022): 10,000 residuals by
1,001 inputs in float64, 38.00 GiB requested by jacrev, on a GPU with 23.69 GiB. 38.00 GiB are 10,000 x 10,000
x 51 numbers. The thread uses a kernel of GPyTorch. This one has as many residuals and inputs: 20 centers in
50 dimensions, and a scale.

A residual depends on one datum. So a point is a datum here, and its Jacobian is one row.
"""

import jax
import jax.numpy as jnp
import numpy as np

from scaling.workload import Reference, Workload, normal, uniform

SIZES = {"centers": 2, "dimensions": 3}
SMALL = {"centers": 2, "dimensions": 3, "points": 5}
THREAD = {"centers": 20, "dimensions": 50, "points": 10000}
REPORT = {
    "thread": "pytorch/functorch#1058", "asked": "Jacobian, 10,000 x 1,001", "needed": "38.00 GiB",
    "machine": "GPU of 23.69 GiB",
}  # fmt: skip
DTYPE = "float64"


def residual(x, y, centers, scale):
    """Return the residual, a scalar, of a datum x (dimensions,), y (), by centers (centers, dimensions)."""
    return jnp.sum(jnp.exp(-jnp.sum((x - centers) ** 2, axis=-1) / (2 * scale**2))) - y


def residuals(inputs, x, y):
    """Return the residuals (points,) of all data x (points, dimensions), y (points,).

    `inputs` are the raveled centers and the length scale, (centers * dimensions + 1,).
    """
    centers = inputs[:-1].reshape(-1, x.shape[1])
    squared = jnp.sum(x**2, axis=1)[:, None] + jnp.sum(centers**2, axis=1) - 2 * x @ centers.T
    return jnp.sum(jnp.exp(-squared / (2 * inputs[-1] ** 2)), axis=1) - y


def reported_call(sizes):
    """Return (function, JAX transformation, dict from input to shape) of the call in the GitHub thread."""
    points, dimensions = sizes["points"], sizes["dimensions"]
    inputs = (sizes["centers"] * dimensions + 1,)
    return residuals, jax.jacrev, {"inputs": inputs, "x": (points, dimensions), "y": (points,)}


def reference(inputs):
    """Return residuals and their Jacobians in float64: (points, 1), (points, 1, centers * dimensions + 1)."""
    scale, difference = inputs["scale"], inputs["x"][:, None] - inputs["centers"]
    squared = np.sum(difference**2, axis=2)
    kernel = np.exp(-squared / (2 * scale**2))
    by_centers = (kernel[..., None] * difference / scale**2).reshape(len(squared), -1)
    by_scale = np.sum(kernel * squared, axis=1, keepdims=True) / scale**3
    value = kernel.sum(axis=1, keepdims=True) - inputs["y"][:, None]
    return Reference(value, np.concatenate([by_centers, by_scale], axis=1)[:, None])


def workload(case):
    centers, dimensions = case.sizes["centers"], case.sizes["dimensions"]
    return Workload(
        residual, points={"x": normal(dimensions), "y": uniform()}, wrt="centers+scale", reference=reference,
        shared={"centers": normal(centers, dimensions), "scale": uniform(low=5.0, high=6.0)},
        terms=centers * dimensions,
    )  # fmt: skip
