"""rbf: the derivative of a covariance function by its first argument, after a Julia and JAX forum thread.

The thread writes K(x, y) = exp(-(x + y - 2xy) / 2), without squares. That formula is the default, as a matrix product (`source`)
or row by row (`rowwise`); `squared` is the kernel that was meant, exp(-|x - y|^2 / 2), row by row, in d dimensions.
One point is an x_j; the support is shared. In the thread both are linspace(-1, 1, n).
"""

import jax.numpy as jnp
import numpy as np

from scaling.case import Case, Refusal
from scaling.workload import Draw, Inputs, Reference, Workload, uniform

SIZES = {"d": 1, "m": "points"}
TARGETS = ("grad_map", "grad")  # the row of every x_j summed; the row of x_1
SINGLE = ("grad",)
VARIANTS = ("source", "rowwise", "squared")
VALUE = "kernel"


def source(x, support):
    """k(x, support) as the thread computes it, through a matrix product: (m,)."""
    row, column = x.reshape(-1, 1), support.reshape(-1, 1)
    return jnp.exp(-0.5 * jnp.squeeze((-2 * row @ column.T) + (row + column.T), 0))


def rowwise(x, support):
    """The same numbers without the product: (m,)."""
    y = support[:, 0]
    return jnp.exp(-0.5 * ((-2 * x[0] * y) + (x[0] + y)))


def squared(x, support):
    """exp(-|x - y|^2 / 2): (m,)."""
    return jnp.exp(-0.5 * jnp.sum((x - support) ** 2, axis=-1))


def _reference(variant: str, inputs: Inputs) -> Reference:
    x, support = inputs["x"], inputs["support"]
    if variant == "squared":
        apart = x[:, None, :] - support[None]
        value = np.exp(-0.5 * np.sum(apart**2, axis=-1))
        return Reference(value, -apart * value[:, :, None])
    y = support[None, :, 0]
    value = np.exp(-0.5 * (x + y - 2 * x * y))
    return Reference(value, ((y - 0.5) * value)[:, :, None])


def _analytic(variant: str, summed: bool, x, support):
    """The derivative written by hand, row by row: (points, m, d), summed over m if asked."""
    if variant == "squared":
        value = jnp.exp(-0.5 * jnp.sum((x[:, None, :] - support) ** 2, axis=-1))
        if summed:  # sum_y (y - x) k, without the (points, m, d) array
            return value @ support - x * jnp.sum(value, axis=1, keepdims=True)
        return (support - x[:, None, :]) * value[:, :, None]
    y = support[:, 0]
    terms = (y - 0.5) * jnp.exp(-0.5 * (x + y - 2 * x * y))
    return jnp.sum(terms, axis=1) if summed else terms


def _line(count: int) -> Draw:
    """linspace(-1, 1, count), row by row."""
    return Draw((1,), lambda _, rows: (-1 + 2 * rows / max(count - 1, 1))[:, None])


def workload(case: Case) -> Workload:
    """rbf in the formulation and dimension of the case."""
    d, m, variant = case.sizes["d"], case.sizes["m"], case.variant or "source"
    if d > 1 and variant != "squared":
        raise Refusal(f"sizes.d={d} has a meaning in variant=squared only; the source's formula is one-dimensional")
    summed = case.target == "grad_map"
    support = _line(m) if d == 1 else uniform(d, low=-1.0)
    return Workload(
        function={"source": source, "rowwise": rowwise, "squared": squared}[variant],
        points={"x": _line(case.points) if d == 1 else uniform(d, low=-1.0)},
        shared={"support": Draw((m, d), lambda rng, _: support.make(rng, np.arange(m))[None])},
        wrt="x",
        reduce="outputs" if summed else None,
        whole_modes={"analytic": lambda x, support: _analytic(variant, summed, x, support)},
        reference=lambda inputs: _reference(variant, inputs),
        terms=max(m, d) if summed else d,
    )
