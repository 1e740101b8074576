"""The Jacobian of the last layer of a classifier, by its weights.

Thread: aleximmer/Laplace#138, https://github.com/aleximmer/Laplace/issues/138 (2023): 128 features and 3,100
labels, 15 GB and ten seconds for one sample with diagonal weights. With Kronecker factors it does not fit on
the GPU.

The Jacobian has 3,100 x 399,900 entries. A label depends on its own 129 weights only, so that all rows share
a seed: seeds=colored.
"""

import jax
import numpy as np

from scaling.workload import Reference, Workload, normal

SIZES = {"features": 3, "labels": 4}
THREAD = {"features": 128, "labels": 3100}
REPORT = {
    "thread": "aleximmer/Laplace#138", "asked": "Jacobian, 3,100 x 399,900", "needed": "15 GB",
    "machine": "GPU, not stated",
}  # fmt: skip


def logits(features, weights, bias):
    """Return the logits (labels,) for features (features,), weights (labels, features), bias (labels,)."""
    return weights @ features + bias


def reported_call(sizes):
    """Return (function, JAX transformation, dict from input to shape) of the call in the GitHub thread."""
    features, labels = sizes["features"], sizes["labels"]
    by_weights = lambda parameters, x: logits(x, *parameters)  # noqa: E731
    return by_weights, jax.jacrev, {"parameters": [(labels, features), (labels,)], "x": (features,)}


def pattern(features, labels):
    """Return the rows and columns of the nonzeros of the Jacobian: the weights and bias of each label."""
    label = np.arange(labels)[:, None]
    columns = np.concatenate([label * features + np.arange(features), labels * features + label], axis=1)
    return np.repeat(label, features + 1).astype(np.int32), columns.reshape(-1).astype(np.int32)


def nonzeros(inputs):
    """Return logits and the entries of their Jacobians in float64: (points, labels), (points, 1, entries)."""
    x = inputs["features"]
    row = np.concatenate([x, np.ones((len(x), 1))], axis=1)
    return Reference(x @ inputs["weights"].T + inputs["bias"], np.tile(row, len(inputs["bias"]))[:, None])


def workload(case):
    features, labels = case.sizes["features"], case.sizes["labels"]
    return Workload(
        logits, points={"features": normal(features)}, wrt="weights+bias", terms=1,
        shared={"weights": normal(labels, features), "bias": normal(labels)},
        pattern=lambda: pattern(features, labels), nonzeros=nonzeros,
    )  # fmt: skip
