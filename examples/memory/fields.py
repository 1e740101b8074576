"""The Jacobian of a root-finding problem for a field of six million numbers.

Thread: patrick-kidger/optimistix#93, https://github.com/patrick-kidger/optimistix/issues/93 (2024): a complex
field of shape (1000, 1, 1000, 3), 77 TB requested by Newton's method. The thread does not show its function.
This one has that shape: waves in three polarizations, whose phase turns with their intensity.

A Newton step that is solved by conjugate gradients or GMRES needs products of the Jacobian and a vector only.
reduce=vector is such a product, with the point itself. In forward mode it is one JVP.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from scaling.workload import Reference, Workload, uniform

SIZES = {"steps": 4, "times": 3, "polarizations": 2}
THREAD = {"steps": 1000, "times": 1000, "polarizations": 3}
REPORT = {
    "thread": "patrick-kidger/optimistix#93", "asked": "Jacobian of 3,000,000 complex inputs", "needed": "77 TB",
    "machine": "not stated",
}  # fmt: skip


def residual(field):
    """Return a field (steps, times, polarizations, 2) minus half its propagated previous step.

    The last axis has the real and the imaginary part.
    """
    real, imaginary = field[..., 0], field[..., 1]
    phase = 0.1 * (real**2 + imaginary**2)
    cosine, sine = jnp.cos(phase), jnp.sin(phase)
    turned = jnp.stack([real * cosine - imaginary * sine, real * sine + imaginary * cosine], axis=-1)
    return field - 0.5 * jnp.roll(turned, 1, axis=0)


def reported_call(sizes):
    """Return (function, JAX transformation, dict from input to shape) of the call in the GitHub thread."""
    shape = (sizes["steps"], sizes["times"], sizes["polarizations"], 2)
    return residual, jax.jacfwd, {"field": shape}


@functools.lru_cache(maxsize=1)
def pattern(shape):
    """Return the rows, columns and kinds of the nonzeros of the Jacobian, three in each row.

    `kinds` (rows, 3) orders them by column: kind 0 is the diagonal, kinds 1 and 2 are of the previous step.
    """
    own = np.arange(np.prod(shape), dtype=np.int32).reshape(-1, 2)
    before = np.roll(own.reshape(shape), 1, axis=0).reshape(-1, 1, 2)
    columns = np.concatenate([own[..., None], before.repeat(2, axis=1)], axis=2).reshape(-1, 3)
    kinds = np.argsort(columns, axis=1)
    return np.arange(own.size, dtype=np.int32).repeat(3), np.take_along_axis(columns, kinds, 1).ravel(), kinds


def nonzeros(inputs):
    """Return residuals and the entries of their Jacobians in float64."""
    field = inputs["field"]
    real, imaginary = field[..., 0], field[..., 1]
    phase = 0.1 * (real**2 + imaginary**2)
    cosine, sine = np.cos(phase), np.sin(phase)
    one, other = real * cosine - imaginary * sine, real * sine + imaginary * cosine
    value = field - 0.5 * np.roll(np.stack([one, other], axis=-1), 1, axis=1)
    by_real = np.stack([cosine - 0.2 * real * other, sine + 0.2 * real * one], axis=-1)
    by_imaginary = np.stack([-sine - 0.2 * imaginary * other, cosine + 0.2 * imaginary * one], axis=-1)
    before = -0.5 * np.roll(np.stack([by_real, by_imaginary], axis=-1), 1, axis=1)
    entries = np.concatenate([np.ones((*field.shape, 1)), before], axis=-1).reshape(len(field), -1, 3)
    entries = np.take_along_axis(entries, pattern(field.shape[1:])[2][None], axis=2)
    return Reference(value.reshape(len(field), -1), entries.reshape(len(field), 1, -1))


def workload(case):
    shape = (case.sizes["steps"], case.sizes["times"], case.sizes["polarizations"], 2)
    return Workload(
        residual, points={"field": uniform(shape, low=-1.0)}, wrt="field", terms=8,
        pattern=lambda: pattern(shape)[:2], nonzeros=nonzeros,
    )  # fmt: skip
