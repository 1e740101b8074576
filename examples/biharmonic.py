"""The biharmonic of a network by its inputs, as for thin plates: the Laplacian of its Laplacian.

The network is that of examples/laplacian.py. The function is its Laplacian, by hand or by nested
differentiation (`variant`), and `target: laplacian` differentiates it twice more.
"""

import dataclasses

import jax
import jax.numpy as jnp

from examples import laplacian

SIZES = laplacian.SIZES | {"inputs": 5}
TARGETS = ("laplacian",)
VARIANTS = ("by_hand", "nested")


def by_hand(x, weights, biases):
    """Return the Laplacian of the network at one point x (inputs,) in one forward pass, a scalar."""
    return laplacian.laplacian(x[None], weights, biases)[0]


def nested(x, weights, biases):
    """Return the Laplacian of the network at one point x (inputs,) as the trace of its Hessian, a scalar."""
    return jnp.trace(jax.hessian(laplacian.network)(x, weights, biases))


def workload(case):
    """Return the workload of the network, with its Laplacian as the function."""
    sizes = SIZES | case.sizes
    network = laplacian.workload(dataclasses.replace(case, sizes=sizes))
    function = nested if case.variant == "nested" else by_hand
    return dataclasses.replace(network, function=function, second=None, whole_modes={})
