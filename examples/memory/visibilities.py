"""The Jacobian of the phases that radio sources cause on baselines, by the positions of the sources.

Thread: jax-ml/jax#215, https://github.com/jax-ml/jax/issues/215 (2019): (10, 128, 16) outputs by (10, 2)
inputs, about 8 GB used by jacrev, on a laptop. Positions are drawn such that the square root is defined.

There are a thousand times as many outputs as inputs: forward mode. Each output depends on one source, so two
seeds are enough for all ten.
"""

import jax
import jax.numpy as jnp
import numpy as np

from scaling.workload import Reference, Workload, normal, uniform

SIZES = {"sources": 3, "baselines": 4, "channels": 2}
THREAD = {"sources": 10, "baselines": 128, "channels": 16}
REPORT = {
    "thread": "jax-ml/jax#215", "asked": "Jacobian, 20,480 x 20", "needed": "about 8 GB",
    "machine": "laptop",
}  # fmt: skip


def phases(lm, uvw, frequency):
    """Return the phases (sources, baselines, channels) of sources at lm (sources, 2) on baselines uvw."""
    n = jnp.sqrt(1 - lm[:, 0] ** 2 - lm[:, 1] ** 2) - 1
    paths = jnp.concatenate([lm, n[:, None]], axis=1) @ uvw.T
    return paths[..., None] * frequency


def reported_call(sizes):
    """Return (function, JAX transformation, dict from input to shape) of the call in the GitHub thread."""
    sources, baselines, channels = sizes["sources"], sizes["baselines"], sizes["channels"]
    return phases, jax.jacrev, {"lm": (sources, 2), "uvw": (baselines, 3), "frequency": (channels,)}


def reference(inputs):
    """Return phases and their Jacobians in float64."""
    lm, uvw, frequency = inputs["lm"], inputs["uvw"], inputs["frequency"]
    points, sources = lm.shape[:2]
    root = np.sqrt(1 - np.sum(lm**2, axis=2))
    paths = np.concatenate([lm, root[..., None] - 1], axis=2) @ uvw.T
    by_lm = uvw[:, :2] - (lm / root[..., None])[:, :, None] * uvw[:, 2:]  # (points, sources, baselines, 2)
    of_source = by_lm[..., None, :] * frequency[:, None]
    J = np.zeros((*of_source.shape[:4], sources, 2))
    for k in range(sources):
        J[:, k, :, :, k] = of_source[:, k]
    value = paths[..., None] * frequency
    terms = np.full(points, 2 * np.abs(frequency).max() * np.abs(uvw).max())
    return Reference(value.reshape(points, -1), J.reshape(points, -1, 2 * sources), None, terms)


def pattern(sources, outputs):
    """Return the rows and columns of the nonzeros of the Jacobian, for a number of outputs per source."""
    rows = np.arange(sources * outputs, dtype=np.int32)
    columns = 2 * (rows // outputs)[:, None] + np.arange(2, dtype=np.int32)
    return rows.repeat(2), columns.reshape(-1).astype(np.int32)


def workload(case):
    sources, baselines, channels = (case.sizes[name] for name in ("sources", "baselines", "channels"))
    shared = {"uvw": normal(baselines, 3), "frequency": uniform(channels, low=0.856e9, high=1.712e9)}
    lm = uniform(sources, 2, low=-0.5, high=0.5)
    return Workload(
        phases, points={"lm": lm}, shared=shared, wrt="lm", reference=reference, terms=4,
        pattern=lambda: pattern(sources, baselines * channels),
    )  # fmt: skip
