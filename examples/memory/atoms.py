"""The Hessian of a sum of distances between atoms, by their positions.

Thread: jax-ml/jax#787, https://github.com/jax-ml/jax/issues/787 (2019): 2,483 atoms, 551,102,853,132 bytes
requested, on CPU and GPU. Distances of zero, whose derivative the thread leaves undefined, are left out here.

The call of the thread needs a tangent of the distances of all pairs for each of 7,449 coordinates. The rows
of the Hessian that belong to one atom are the Jacobian of the force on it. So a point is an atom here, and
its force depends on one row of pairs.
"""

import jax
import jax.numpy as jnp
import numpy as np

from scaling.workload import InputSpec, Reference, Workload, uniform

SIZES = {"atoms": "points"}
SMALL = {"atoms": 12, "points": 12}
THREAD = {"atoms": 2483, "points": 2483}
REPORT = {
    "thread": "jax-ml/jax#787", "asked": "Hessian of 7,449 inputs", "needed": "551 GB",
    "machine": "CPU and GPU, not stated",
}  # fmt: skip


def energy(x):
    """Return the sum of the distances of all ordered pairs of atoms x (atoms, 3), plus 1 per atom."""
    squared = jnp.sum((x[None] - x[:, None]) ** 2, axis=-1)
    return jnp.sum(jnp.sqrt(squared + jnp.eye(len(x))))  # so that it can be differentiated on the diagonal


def force(i, x):
    """Return the derivative of the energy by the position of atom i: (3,)."""
    difference = x[i] - x
    squared = jnp.sum(difference**2, axis=-1)
    return 2 * jnp.sum(difference / jnp.sqrt(squared + (jnp.arange(len(x)) == i))[:, None], axis=0)


def reported_call(sizes):
    """Return (function, JAX transformation, dict from input to shape) of the call in the GitHub thread."""
    return energy, jax.hessian, {"x": (sizes["atoms"], 3)}


def reference(inputs):
    """Return forces and blocks of rows of the Hessian in float64: (points, 3), (points, 3, 3 atoms)."""
    x, i = inputs["x"], inputs["i"].astype(int)
    difference = x[i][:, None] - x
    squared = np.sum(difference**2, axis=2)
    length = np.sqrt(np.where(squared > 0, squared, 1))[..., None, None]
    outer = difference[..., None] * difference[..., None, :]
    blocks = -2 * (np.eye(3) / length - outer / length**3)  # (points, atoms, 3, 3)
    points = np.arange(len(i))
    blocks[points, i] = 0
    blocks[points, i] = -np.sum(blocks, axis=1)
    value = 2 * np.sum(difference / length[..., 0], axis=1)
    return Reference(value, blocks.transpose(0, 2, 1, 3).reshape(len(i), 3, -1))


def workload(case):
    i = InputSpec((), lambda generator, rows: rows, integer=True)
    atoms = case.sizes["atoms"]
    return Workload(
        force, points={"i": i}, shared={"x": uniform(atoms, 3)}, wrt="x", reference=reference, terms=atoms
    )
