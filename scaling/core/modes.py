"""Modes: ways to differentiate, each a linear map from a seed to a slice of the derivative.

A seeded mode is `f, x -> (seed -> slice)`, with x a tuple of arrays. Forward modes take a tangent (a tuple like x) to a column
(like f(x)); reverse modes take a cotangent (like f(x)) to a row (a tuple like x). A Jacobian is that map applied to a matrix of
seeds. Hessian modes are handed a function of one number and give columns of its Hessian, flat. Does not know points, batches,
devices, or where the seeds come from.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from scaling.core.case import FORWARD, HESSIAN, REVERSE

# Steps for finite differences: the source's own in float64, near the square root of the unit roundoff elsewhere.
STEPS = {"float64": 1e-6, "float32": 2.0**-11, "bfloat16": 2.0**-4}

LinearMap = Callable[[Any], Any]


def jacfwd(f: Callable, x: tuple) -> LinearMap:
    """One JVP per seed."""
    return lambda v: jax.jvp(f, x, v)[1]


def jacrev(f: Callable, x: tuple) -> LinearMap:
    """One VJP per seed, after one forward pass that they share."""
    return jax.vjp(f, *x)[1]


def grad_of_sum(f: Callable, x: tuple) -> LinearMap:
    """One VJP, for f that is handed over already summed over its outputs."""
    return jacrev(f, x)


def linearize(f: Callable, x: tuple) -> LinearMap:
    """One JVP per seed, after one forward pass that they share."""
    _, jvp = jax.linearize(f, *x)
    return lambda v: jvp(*v)


def finite_difference(f: Callable, x: tuple) -> LinearMap:
    """(f(x + h v) - f(x)) / h: one evaluation per seed, after one that they share."""
    y, step = f(*x), STEPS[str(x[0].dtype)]
    return lambda v: (f(*[a + step * b for a, b in zip(x, v, strict=True)]) - y) / step


def _gradient(f: Callable) -> Callable:
    """x -> the gradient of f, a number, by reverse mode, flat: (inputs,)."""
    return lambda *x: ravel(jax.grad(f, argnums=tuple(range(len(x))))(*x))


def ravel(x: tuple) -> jax.Array:
    """A tuple of arrays as one vector."""
    return jnp.concatenate([a.reshape(-1) for a in x])


def fwd_over_rev(f: Callable, x: tuple) -> LinearMap:
    """The JVP of the gradient: one of each per seed."""
    return jacfwd(_gradient(f), x)


def rev_over_fwd(f: Callable, x: tuple) -> LinearMap:
    """The gradient of the JVP along the seed."""
    return lambda v: _gradient(lambda *z: jax.jvp(f, z, v)[1])(*x)


def rev_over_rev(f: Callable, x: tuple) -> LinearMap:
    """The VJP of the gradient, whose forward pass the seeds share; a Hessian is symmetric, so that a row is a column."""
    _, vjp = jax.vjp(_gradient(f), *x)
    return lambda v: ravel(vjp(ravel(v)))


def fwd_over_fwd(f: Callable, x: tuple) -> LinearMap:
    """JVPs of JVPs: for each seed as many as there are inputs."""
    gradient = lambda *z: ravel(jax.jacfwd(f, argnums=tuple(range(len(z))))(*z))  # noqa: E731
    return jacfwd(gradient, x)


# A new mode is one function above, and its name in case.py, whose list says what its seeds are.
SEEDED: dict[str, Callable[[Callable, tuple], LinearMap]] = {name: globals()[name] for name in FORWARD + REVERSE + HESSIAN}
