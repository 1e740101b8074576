"""The Laplacian of a network by its inputs, as in physics-informed networks and variational Monte Carlo.

The network is that of Dangel et al. (arXiv:2505.13644): 50-768-768-512-512-1 with tanh. `sizes.inputs`,
`sizes.wide` and `sizes.narrow` make it smaller.
"""

import itertools

import jax.numpy as jnp
import numpy as np

from scaling.workload import Reference, Workload, normal, uniform

SIZES = {"inputs": 50, "wide": 768, "narrow": 512}
TARGETS = ("laplacian",)


def network(x, weights, biases):
    """Return the output u(x) of the network, a scalar, for one point x (inputs,)."""
    for w, b in zip(weights[:-1], biases, strict=True):
        x = jnp.tanh(x @ w + b)
    return (x @ weights[-1])[0]


def laplacian(x, weights, biases):
    """Return the Laplacians (points,) of the network at all points x (points, inputs), derived by hand.

    Layer by layer, D (points, inputs, width) contains the first derivatives of the units h by the inputs, and
    L (points, width) the sums of their second derivatives.
    """
    h, D, L = x, None, 0.0
    for w, b in zip(weights[:-1], biases, strict=True):
        h = jnp.tanh(h @ w + b)
        D, L = (w[None], L) if D is None else (D @ w, L @ w)
        slope = 1 - h**2
        L = slope * (L - 2 * h * (D**2).sum(axis=1))
        D = slope[:, None] * D
    return (L @ weights[-1])[:, 0]


def hessian(inputs):
    """Return the values (points, 1) and the Hessians (points, inputs, inputs) of the network in NumPy.

    The layers are traversed in reverse order. `by_layer` is the derivative of the output by a layer.
    """
    h, D, layers = inputs["x"], None, []
    *hidden, last = inputs["weights"]
    for w, b in zip(hidden, inputs["biases"], strict=True):
        h, D = np.tanh(h @ w + b), w[None] if D is None else D @ w
        layers.append((w, h, D))
        D = (1 - h**2)[:, None] * D
    H, by_layer = 0.0, last[:, 0]
    for w, h, D in reversed(layers):
        curvature = -2 * h * (1 - h**2) * by_layer
        H = H + (D * curvature[:, None]) @ np.swapaxes(D, 1, 2)
        by_layer = ((1 - h**2) * by_layer) @ w.T
    return Reference((layers[-1][1] @ last), H)


def workload(case):
    """Return the workload: the network, with `laplacian` as mode `analytic` and `hessian` as reference."""
    n, wide, narrow = (case.sizes.get(name, size) for name, size in SIZES.items())
    widths = [n, wide, wide, narrow, narrow, 1]
    pairs = list(itertools.pairwise(widths))
    return Workload(
        network,
        points={"x": uniform(n)},
        shared={
            "weights": [normal(a, b, deviation=a**-0.5) for a, b in pairs],
            "biases": [normal(b, deviation=0.1) for _, b in pairs[:-1]],
        },
        wrt="x",
        second=hessian,
        whole_modes={"analytic": laplacian} if case.target == "laplacian" else {},
        terms=sum(widths),
    )
