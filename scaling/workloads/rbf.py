"""Define the workload `rbf`: the derivative of a kernel function K(x, y) with respect to x.

The workload is taken from the forum thread "Forward- and reverse-mode AD comparisons with JAX", which
docs/sources.md cites. The default variant `source` is K(x, y) = exp(-(x + y - 2xy) / 2), as written in the
thread. In this formula, the squares of x and y are missing. The variant `squared` is the radial basis
function (RBF) that was intended, K(x, y) = exp(-|x - y|^2 / 2) in d dimensions. Each variant has two
formulations. `product` uses a matrix product, as in the thread, and `rowwise` does not.

A point (batch element) is a vector x of d elements. The outputs are K(x, y) for m centers y. All points share
the centers, which are the input `support` of shape (m, d). If d is 1, the points and the centers are evenly
spaced on [-1, 1], as in the thread. Otherwise their elements are uniformly random between -1 and 1.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from scaling.core.case import Case, Refusal
from scaling.core.workload import Inputs, InputSpec, Reference, Workload, uniform

SIZES = {"d": 1, "m": "points"}
TARGETS = ("grad_map", "grad")  # grad_map: all points, summed over outputs; grad: one point, not summed
SINGLE = ("grad",)
VARIANTS = ("source", "squared")
FORMULATIONS = {"source": ("product", "rowwise"), "squared": ("rowwise", "product")}
VALUE = "kernel"


def _source_product(xp, x, support):
    return xp.exp(-0.5 * ((-2 * x @ support.T) + (x + support[:, 0])))


def _source_rowwise(xp, x, support):
    y = support[:, 0]
    return xp.exp(-0.5 * ((-2 * x * y) + (x + y)))


def _squared_rowwise(xp, x, support):
    return xp.exp(-0.5 * xp.sum((x[..., None, :] - support) ** 2, -1))


def _squared_product(xp, x, support):
    return xp.exp(x @ support.T - 0.5 * (xp.sum(x**2, -1)[..., None] + xp.sum(support**2, -1)))


# Functions of the points x, of shape (..., d), and the centers `support`, of shape (m, d). They return
# K(x, y), of shape (..., m). `xp` is the array library.
FUNCTIONS = {
    ("source", "product"): _source_product,
    ("source", "rowwise"): _source_rowwise,
    ("squared", "rowwise"): _squared_rowwise,
    ("squared", "product"): _squared_product,
}


def formula(case: Case, xp: Any) -> Callable[..., Any]:
    """Return the kernel function K of a case. `xp` is the array library, such as jax.numpy or torch."""
    variant = case.variant or "source"
    return functools.partial(FUNCTIONS[variant, case.formulation or FORMULATIONS[variant][0]], xp)


def _reference(variant: str, names: tuple[str, ...], inputs: Inputs) -> Reference:
    """Return a `Reference` with K(x, y) at all points x and centers y, and its Jacobians."""
    x, support = inputs["x"], inputs["support"]
    m, d = support.shape
    if variant == "squared":
        difference = x[:, None, :] - support[None]
        value = np.exp(-0.5 * np.sum(difference**2, axis=-1))
        by_x = -difference * value[:, :, None]
        by_support = -by_x  # with respect to the only center on which the output depends
    else:
        y = support[None, :, 0]
        value = np.exp(-0.5 * (x + y - 2 * x * y))
        by_x = ((y - 0.5) * value)[:, :, None]
        by_support = ((x - 0.5) * value)[:, :, None]
    by_input = {
        "x": lambda: by_x,
        "support": lambda: np.einsum("nmd,mk->nmkd", by_support, np.eye(m)).reshape(len(x), m, m * d),
    }
    return Reference(value, np.concatenate([by_input[name]() for name in names], axis=2))


def _analytic(variant: str, summed: bool, x, support):
    """Return handwritten derivatives dK(x, y)/dx at all points x and centers y (`support`).

    The result has the shape (points, m, d) for m centers in d dimensions. If `summed`, the derivatives are
    summed over the centers, and the shape is (points, d). With the variant `source`, the axis d is omitted.
    """
    if variant == "squared":
        value = jnp.exp(-0.5 * jnp.sum((x[:, None, :] - support) ** 2, axis=-1))
        if summed:  # the sum of (y - x) K(x, y) over y, without an array of shape (points, m, d)
            return value @ support - x * jnp.sum(value, axis=1, keepdims=True)
        return (support - x[:, None, :]) * value[:, :, None]
    y = support[:, 0]
    terms = (y - 0.5) * jnp.exp(-0.5 * (x + y - 2 * x * y))
    return jnp.sum(terms, axis=1) if summed else terms  # without the axis d


def _analytic_point(variant: str, summed: bool, x, support):
    """Return dK/dx at one point x for m centers, of shape (m, d), or summed over them, of shape (d,)."""
    if variant == "squared":
        difference = support - x
        terms = difference * jnp.exp(-0.5 * jnp.sum(difference**2, axis=-1, keepdims=True))
    else:
        y = support[:, :1]
        terms = (y - 0.5) * jnp.exp((x - 0.5) * y - 0.5 * x)
    return jnp.sum(terms, axis=0) if summed else terms


def _linspace_input(count: int) -> InputSpec:
    """Return an input whose values at `count` points are evenly spaced from -1 to 1."""
    return InputSpec((1,), lambda _, rows: (-1 + 2 * rows / max(count - 1, 1))[:, None])


def workload(case: Case) -> Workload:
    """Return the `Workload` of the kernel function K(x, y) with m centers y in d dimensions.

    Raise `Refusal` if d is greater than 1 and the variant is not "squared".
    """
    d, m, variant = case.sizes["d"], case.sizes["m"], case.variant or "source"
    if d > 1 and variant != "squared":
        raise Refusal(
            f"sizes.d={d} needs variant=squared, because the formula of variant=source is one-dimensional"
        )
    summed, names = case.target == "grad_map", tuple((case.wrt or "x").split("+"))
    at_point = functools.partial(_analytic_point, variant, summed)
    analytic_modes: dict[str, Callable] = {
        "analytic": functools.partial(_analytic, variant, summed),
        "analytic_vmap": lambda x, support: jax.vmap(at_point, in_axes=(0, None))(x, support),
    }
    support = _linspace_input(m) if d == 1 else uniform(d, low=-1.0)
    return Workload(
        function=formula(case, jnp),
        points={"x": _linspace_input(case.points) if d == 1 else uniform(d, low=-1.0)},
        shared={"support": InputSpec((m, d), lambda rng, _: support.make(rng, np.arange(m))[None])},
        wrt="x",
        reduce="outputs" if summed else None,
        whole_modes=analytic_modes if names == ("x",) else {},
        reference=functools.partial(_reference, variant, names),
        terms=max(m, d) if summed else d,
    )
