"""The Hessian of the energy of many atoms that interact with their neighbors only.

Thread: libAtoms/matscipy#46, https://github.com/libAtoms/matscipy/pull/46 (2020): the Hessian of 50,933
atoms, 152,799 x 152,799 entries, of which a program for the embedded-atom potential stores the blocks of
neighbors, with a peak of 55 GB before and 14 GB after that change. The atoms form a chain here, and 12
neighbors of each interact.

The force on an atom depends on its neighbors. So a point is an atom here, with its position and theirs.
"""

import jax
import jax.numpy as jnp
import numpy as np

from scaling.workload import Reference, Workload, normal

SIZES = {"reach": 1}
SMALL = {"reach": 1, "points": 4}
THREAD = {"reach": 6, "points": 50933}
REPORT = {
    "thread": "libAtoms/matscipy#46", "asked": "Hessian of 152,799 inputs", "needed": "55 GB",
    "machine": "not stated",
}  # fmt: skip
DTYPE = "float64"


def energy(x, reach):
    """Return the energy of a periodic chain whose atoms interact with `reach` others on either side."""
    return sum(
        jnp.sum(jnp.exp(-jnp.sum((x - jnp.roll(x, k, 0)) ** 2, axis=1) / 2)) for k in range(1, reach + 1)
    )


def force(own, others):
    """Return the derivative (3,) of the energy by the position of an atom; neighbors are (2 reach, 3)."""
    difference = own - others
    return -jnp.exp(-jnp.sum(difference**2, axis=1) / 2) @ difference


def reported_call(sizes):
    """Return (function, JAX transformation, dict from input to shape) of the call in the GitHub thread."""
    reach = sizes["reach"]
    return lambda x: energy(x, reach), jax.hessian, {"x": (sizes["points"], 3)}


def reference(inputs):
    """Return forces and blocks of rows of the Hessian in float64: (points, 3), (points, 3, 3 + 6 reach)."""
    difference = inputs["own"][:, None] - inputs["others"]
    pair = np.exp(-np.sum(difference**2, axis=2) / 2)[..., None]
    outer = difference[..., None] * difference[..., None, :]
    blocks = pair[..., None] * (np.eye(3) - outer)  # (points, others, 3, 3)
    blocks = np.concatenate([-blocks.sum(axis=1, keepdims=True), blocks], axis=1)
    value = -np.sum(pair * difference, axis=1)
    return Reference(value, blocks.transpose(0, 2, 1, 3).reshape(len(value), 3, -1))


def workload(case):
    others = normal(2 * case.sizes["reach"], 3)
    return Workload(
        force, points={"own": normal(3), "others": others}, wrt="own+others", reference=reference,
        terms=2 * case.sizes["reach"],
    )  # fmt: skip
