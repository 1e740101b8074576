"""Workload `examples.bundle_adjustment`: residual of an observation, by camera, point and weight.

    w (project(camera, x) - feature) and 1 - w^2

The camera has 11 parameters: rotation r (axis times angle), center c, focal length f, principal point p and
radial distortion k. It projects x to f distort(u) + p, where u is the first two coordinates of R(r) (x - c) over
the third, and distort(u) = u (1 + k_0 |u|^2 + k_1 |u|^4). The Jacobian has a block of 2 x 15, with two zeros, and
one of 1 x 1. Source: F. Srajer, Z. Kukelova, A. Fitzgibbon, "A benchmark of selected algorithmic differentiation
tools", 2018, section 4.2. A point (batch element) is one observation, with its camera and its point in space.
"""

import jax
import jax.numpy as jnp
import numpy as np

from scaling.workload import Workload, normal, uniform

SIZES = {}
VALUE = "residual"
CAMERA = np.array([0.1, 0.2, -0.1, 0.0, 0.0, -5.0, 500.0, 320.0, 240.0, -0.1, 0.01])
SPREAD = np.array([0.1, 0.1, 0.1, 0.3, 0.3, 0.3, 10.0, 5.0, 5.0, 0.01, 0.001])


def residual(camera, x, w, feature, keep=lambda arrays: arrays):
    """Return the residual (3,) of an observation: camera (11,), point x (3,), weight w () and feature (2,).

    Each number may also be an array over observations. `keep` is applied to values that are used repeatedly.
    """
    r, v = camera[:3], [x[i] - camera[3 + i] for i in range(3)]
    angle = jnp.sqrt(r[0] * r[0] + r[1] * r[1] + r[2] * r[2])
    a, cos, sin = keep(([component / angle for component in r], jnp.cos(angle), jnp.sin(angle)))
    along = (a[0] * v[0] + a[1] * v[1] + a[2] * v[2]) * (1 - cos)
    cross = [a[i - 2] * v[i - 1] - a[i - 1] * v[i - 2] for i in range(3)]
    turned = keep([v[i] * cos + cross[i] * sin + a[i] * along for i in range(3)])  # Rodrigues
    u = [turned[0] / turned[2], turned[1] / turned[2]]
    square = u[0] * u[0] + u[1] * u[1]
    scale = camera[6] * (1 + camera[9] * square + camera[10] * square * square)
    return jnp.stack([*(w * (scale * u[i] + camera[7 + i] - feature[i]) for i in range(2)), 1 - w * w])


def pattern():
    """Return the rows and columns, int32 (29,) each, of the nonzeros of the Jacobian of an observation."""
    rows = np.repeat([0, 1, 2], [14, 14, 1])
    columns = np.concatenate([np.delete(np.arange(15), 8), np.delete(np.arange(15), 7), [14]])
    return rows.astype(np.int32), columns.astype(np.int32)


def gradients_by_row(camera, x, w, feature):
    """Return the nonzeros of the Jacobians of a batch, (points, 29), by a VJP for each of the first two rows.

    XLA would compute the function again in the loop of each result. The conditional in `keep` prevents that,
    because XLA does not fuse loops across a conditional.
    """

    def keep(arrays):
        return jax.lax.cond(
            jnp.isnan(w[0]), lambda z: jax.tree.map(lambda a: a * jnp.nan, z), lambda z: z, arrays
        )

    f = lambda *z: residual(z[:11], z[11:14], z[14], feature.T, keep)[:2]  # noqa: E731
    _, pullback = jax.vjp(f, *camera.T, *x.T, w)
    seeds = jnp.eye(2, dtype=w.dtype)[:, :, None] * jnp.ones_like(w)
    blocks = [pullback(seeds[0]), pullback(seeds[1]), [None] * 14 + [-2 * w]]
    return jnp.stack([blocks[i][j] for i, j in zip(*pattern(), strict=True)], axis=1)


def workload(case):
    is_colored = case.seeds == "colored" and case.wrt in (None, "camera+x+w")
    return Workload(
        residual,
        points={
            "camera": normal(11, mean=CAMERA, deviation=SPREAD),
            "x": uniform(3, low=-1.0),
            "w": uniform(low=0.5, high=1.5),
            "feature": normal(2, mean=[320.0, 240.0], deviation=50.0),
        },
        wrt="camera+x+w",
        terms=16,
        **({"pattern": pattern, "whole_modes": {"vmap_grad": gradients_by_row}} if is_colored else {}),
    )
