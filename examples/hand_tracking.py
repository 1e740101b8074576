"""Workload `examples.hand_tracking`: distances of a hand model to measured points, by the pose of the hand.

The pose theta (26,) is a rotation (axis times angle), a translation, and for each of five fingers two angles of
the second bone and one angle of the third and the fourth. A vertex is moved by its bones, weighted (linear blend
skinning), and then by rotation and translation. A measured point y_q belongs to the spot u_q of a triangle, and
its residual is y_q - (u_q0 v_i + u_q1 v_j + (1 - u_q0 - u_q1) v_k). Source: F. Srajer, Z. Kukelova, A. Fitzgibbon,
"A benchmark of selected algorithmic differentiation tools", 2018, section 4.3. A point is one pose.
"""

import jax
import jax.numpy as jnp
import numpy as np

from examples.hand_model import make_model
from scaling.workload import InputSpec, Workload, normal, uniform

SIZES = {"vertices": 40, "measured": 6}
VALUE = "residual"


def bone_transforms(angles, relative, inverse):
    """Return the affine transforms (22, 3, 4) of the bones from rest to a pose with finger angles (5, 4)."""
    x, z = angles[:, jnp.array([0, 2, 3])], jnp.pad(angles[:, 1:2], ((0, 0), (0, 2)))
    cx, sx, cz, sz, o = jnp.cos(x), jnp.sin(x), jnp.cos(z), jnp.sin(z), jnp.zeros_like(x)
    entries = [cz, -sz * cx, sz * sx, o, sz, cz * cx, -cz * sx, o, o, sx, cx, o, o, o, o, o + 1]
    joints = jnp.stack(entries, axis=-1).reshape(5, 3, 4, 4)
    fingers = relative[1:-1].reshape(5, 4, 4, 4)
    chain = [relative[0] @ fingers[:, 0]]
    for joint in range(3):
        chain.append(chain[-1] @ (fingers[:, joint + 1] @ joints[:, joint]))
    moved = jnp.stack(chain, axis=1).reshape(20, 4, 4)
    return jnp.concatenate([relative[:1], moved, relative[:1] @ relative[-1:]])[:, :3] @ inverse


def rotation_matrix(r):
    """Return the matrix (3, 3) of the rotation about the axis r (3,) by the angle |r|."""
    angle = jnp.sqrt(jnp.sum(r**2))
    a, b, c = r / angle
    cross = jnp.array([[0 * a, -c, b], [c, 0 * a, -a], [-b, a, 0 * a]])
    return jnp.eye(3) + jnp.sin(angle) * cross + (1 - jnp.cos(angle)) * (cross @ cross)


def residual(theta, u, relative, inverse, weights, base, triangles, y):
    """Return the residuals (measured, 3) of a pose theta (26,) and positions u (measured, 2) in triangles."""
    # The corners of a triangle are combined before the bones move them, which needs fewer operations.
    shares = jnp.stack([u[:, 0], u[:, 1], 1 - u[:, 0] - u[:, 1]])[:, :, None, None]
    corners = weights[triangles.T][:, :, :, None] * base[triangles.T][:, :, None]  # (3, measured, 22, 4)
    spots = jnp.sum(shares * corners, axis=0).reshape(len(y), -1)
    transforms = bone_transforms(theta[6:].reshape(5, 4), relative, inverse).transpose(1, 0, 2)
    turned = rotation_matrix(theta[:3]) @ transforms.reshape(3, -1)
    return y - spots @ turned.T - theta[3:6]


def columns_by_block(theta, u, **shared):
    """Return the nonzeros of the Jacobian, (1, nonzeros), by forward mode: 26 JVPs by theta, and two by u."""
    by_pose = jax.jacfwd(residual)(theta[0], u[0], **shared)  # (measured, 3, 26)
    along = [(jnp.zeros_like(u[0]).at[:, i].set(1),) for i in range(2)]
    by_spot = [jax.jvp(lambda u: residual(theta[0], u, **shared), (u[0],), tangent)[1] for tangent in along]
    blocks = jnp.concatenate([by_pose, jnp.stack(by_spot, axis=-1)], axis=-1)
    return blocks.reshape(1, -1)


def workload(case):
    measured = case.sizes["measured"]
    model, triangles = make_model(case.sizes["vertices"], measured)
    is_colored = case.seeds == "colored" and case.wrt in (None, "theta+u")

    def constant(a, integer=False):
        return InputSpec(a.shape, lambda _, rows: np.broadcast_to(a, (len(rows), *a.shape)), integer)

    def pattern():
        columns = [[*range(26), 26 + row // 3 * 2, 27 + row // 3 * 2] for row in range(3 * measured)]
        return np.repeat(np.arange(3 * measured, dtype=np.int32), 28), np.array(columns, np.int32).reshape(-1)

    shared = {name: constant(array) for name, array in model.items()}
    shared |= {"triangles": constant(triangles, True), "y": normal(measured, 3)}
    points = {"theta": normal(26, deviation=0.3), "u": uniform(measured, 2, high=0.5)}
    sparse = {"pattern": pattern, "whole_modes": {"vmap_grad": columns_by_block}} if is_colored else {}
    return Workload(residual, points, shared, "theta+u", terms=48, **sparse)
