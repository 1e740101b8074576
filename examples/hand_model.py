"""A generated hand for `examples.hand_tracking`: 22 bones with rest poses, vertices, and their skinning weights."""

import numpy as np

BONES = 22  # wrist, four for each finger, forearm
PARENTS = [-1, *(0 if joint == 0 else 4 * finger + joint for finger in range(5) for joint in range(4)), 0]


def make_model(vertices, measured):
    """Return (hand model as a dict of arrays, int array (measured, 3) with the vertices of each triangle)."""
    rng, relative = np.random.default_rng(0), np.tile(np.eye(4), (BONES, 1, 1))
    relative[:, :3, 3] = rng.normal([0, 1, 0], 0.2, (BONES, 3))
    absolute, bone = relative.copy(), rng.integers(0, BONES, vertices)
    for child, parent in enumerate(PARENTS[1:], 1):
        absolute[child] = absolute[parent] @ relative[child]
    weights, share = np.zeros((vertices, BONES)), rng.uniform(0.5, 1.0, vertices)
    weights[np.arange(vertices), np.maximum(np.array(PARENTS)[bone], 0)] = 1 - share
    weights[np.arange(vertices), bone] += share
    base = np.ones((vertices, 4))
    base[:, :3] = absolute[bone, :3, 3] + rng.normal(0, 0.3, (vertices, 3))
    model = {"relative": relative, "inverse": np.linalg.inv(absolute), "weights": weights, "base": base}
    return model, rng.integers(0, vertices - 2, (measured, 1)) + np.arange(3)
