"""Modes: ways to differentiate, each a linear map from a seed to a slice of the derivative.

A seeded mode is `f, x -> (seed -> slice)`, with x a tuple of arrays. Forward modes take a tangent (a tuple like x) to a column
(like f(x)); reverse modes take a cotangent (like f(x)) to a row (a tuple like x). A Jacobian is that map applied to a matrix of
seeds. Does not know points, batches, devices, or where the seeds come from.
"""

from collections.abc import Callable
from typing import Any

import jax

# Steps for finite differences: the source's own in float64, near the square root of the unit roundoff elsewhere.
STEPS = {"float64": 1e-6, "float32": 2.0**-11, "bfloat16": 2.0**-4}

LinearMap = Callable[[Any], Any]


def jacfwd(f: Callable, x: tuple) -> LinearMap:
    """One JVP per seed."""
    return lambda v: jax.jvp(f, x, v)[1]


def jacrev(f: Callable, x: tuple) -> LinearMap:
    """One VJP per seed, after one forward pass that they share."""
    return jax.vjp(f, *x)[1]


def linearize(f: Callable, x: tuple) -> LinearMap:
    """One JVP per seed, after one forward pass that they share."""
    _, jvp = jax.linearize(f, *x)
    return lambda v: jvp(*v)


def finite_difference(f: Callable, x: tuple) -> LinearMap:
    """(f(x + h v) - f(x)) / h: one evaluation per seed, after one that they share."""
    y, step = f(*x), STEPS[str(x[0].dtype)]
    return lambda v: (f(*[a + step * b for a, b in zip(x, v, strict=True)]) - y) / step


# A new mode is one function above, one line here, and its name in case.py (FORWARD or REVERSE says what its seeds are).
SEEDED: dict[str, Callable[[Callable, tuple], LinearMap]] = {
    "jacfwd": jacfwd,
    "jacrev": jacrev,
    "linearize": linearize,
    "finite_difference": finite_difference,
}
