"""Define the workload `residual`: data on 21 grid points minus a fitted Gaussian.

Let x = -10, -9, ..., 10 be the grid, and f = exp(-1.5 (x - m)^2) a Gaussian on the grid. The residual is
rs(d, m) = d - a f with the amplitude a = sum(d f) / sum(f f). A point (batch element) is a pair (d, m). The
data d are 21 values of a Gaussian with noise. The number m is close to the center of this Gaussian.

The derivative is with respect to m, d, or both (`wrt: d+m`). The workload is taken from a forum thread about
derivatives with respect to only some of the arguments (docs/sources.md). The variant `vector` differentiates
rs. The variant `scalar` differentiates sum(rs^2). The formulations `sum` and `dot` compute the sums with
`jnp.sum` and `jnp.dot`. The handwritten formulas accept NumPy arrays and JAX arrays.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from scaling.core.case import SECOND, Case
from scaling.core.workload import Inputs, InputSpec, Reference, Workload

TARGETS = ("jacobian",)
VARIANTS = ("vector", "scalar")
FORMULATIONS = ("sum", "dot")
VALUE = "residual"

_GRID = np.arange(-10.0, 11.0)


def _residual(xp, is_dot, is_scalar, d, m):
    """Return the residual: `d` minus a Gaussian with center `m` and fitted amplitude.

    If `is_scalar`, return the sum of the squares of the residual. If `is_dot`, compute inner products with
    `einsum`. `d` has the shape (..., 21), and `m` has the shape (...). `xp` is the array library.
    """
    f = xp.exp(-1.5 * (xp.asarray(_GRID, dtype=d.dtype) - m[..., None]) ** 2)
    inner_product = (
        functools.partial(xp.einsum, "...i,...i->...") if is_dot else lambda a, b: xp.sum(a * b, -1)
    )
    rs = d - (inner_product(d, f) / inner_product(f, f))[..., None] * f
    return xp.sum(rs**2, -1) if is_scalar else rs


def formula(case: Case, xp: Any) -> Callable[..., Any]:
    """Return the residual function of a case. `xp` is the array library, such as jax.numpy or torch."""
    return functools.partial(_residual, xp, case.formulation == "dot", case.variant == "scalar")


def _dot(a, b):
    return (a * b).sum(axis=1, keepdims=True)


def _fit(d, m):
    """Fit a Gaussian with center `m`, of shape (n,), to data `d`, of shape (n, 21). Return six arrays.

    f, df/dm, d^2f/dm^2    the Gaussian on the grid, and its derivatives, of shape (n, 21)
    h, a, da/dm            sum(f^2), the amplitude sum(d f) / h, and its derivative, of shape (n, 1)
    """
    xp = d.__array_namespace__()
    offset = xp.asarray(_GRID, dtype=d.dtype) - m[:, None]
    f = xp.exp(-1.5 * offset**2)
    f1, f2 = 3 * offset * f, (9 * offset**2 - 3) * f
    h = _dot(f, f)
    a = _dot(d, f) / h
    return f, f1, f2, h, a, (_dot(d, f1) - 2 * a * _dot(f, f1)) / h  # shapes (n, 21) and (n, 1)


def _jacobians(variant, names, d, m):
    """Return the Jacobians of the residual, or of the sum of its squares if `variant` is "scalar".

    The derivatives are with respect to the inputs `names`. The array has the shape (points, outputs, inputs).
    """
    xp = d.__array_namespace__()
    f, f1, _, h, a, a1 = _fit(d, m)
    by_m = -(a1 * f + a * f1)
    if variant == "scalar":
        rs = d - a * f  # orthogonal to f, so that the derivative with respect to d is 2 rs
        by_input = {"d": 2 * rs[:, None, :], "m": 2 * _dot(rs, by_m)[:, :, None]}
    else:
        by_d = xp.eye(_GRID.size, dtype=d.dtype) - f[:, :, None] * f[:, None, :] / h[:, :, None]
        by_input = {"d": by_d, "m": by_m[:, :, None]}
    return xp.concatenate([by_input[name] for name in names], axis=2)


def _reference(variant: str | None, names: tuple[str, ...], inputs: Inputs) -> Reference:
    """Return a `Reference` with the residual and its Jacobians with respect to the inputs `names`.

    If `variant` is "scalar", the sum of the squares replaces the residual.
    """
    d, m = inputs["d"], inputs["m"]
    f, _, _, _, a, _ = _fit(d, m)
    rs, magnitude = d - a * f, np.abs(d) + np.abs(a * f)
    derivative = _jacobians(variant, names, d, m)
    if variant != "scalar":
        return Reference(rs, derivative, np.max(magnitude, axis=1))
    by_m = np.abs(_jacobians("vector", ("m",), d, m)[:, :, 0])
    sizes = {"d": 2 * np.max(magnitude, axis=1), "m": 2 * np.sum(magnitude * by_m, axis=1)}
    derivative_terms = np.max([sizes[name] for name in names], axis=0)
    return Reference(_dot(rs, rs), derivative, np.sum(magnitude**2, axis=1), derivative_terms)


def _second_derivatives(d, m):
    """Return f, h, a, L_dm, L_mm and the magnitude of L_mm, for the loss L = sum((d - a f)^2).

    f, h, a       the Gaussian with center `m` on the grid, sum(f^2), and the fitted amplitude
    L_dm, L_mm    second derivatives with respect to the data `d` and the center `m`, and to `m` alone
    magnitude     the sum of the absolute values of the terms of L_mm
    """
    f, f1, f2, h, a, a1 = _fit(d, m)  # L = sum(d d) - a^2 h
    g1, h1 = _dot(d, f1), 2 * _dot(f, f1)
    g2, h2 = _dot(d, f2), 2 * (_dot(f1, f1) + _dot(f, f2))
    terms = [a**2 * h2, -2 * a * g2, -2 * g1**2 / h, 4 * a * g1 * h1 / h, -2 * (a * h1) ** 2 / h]
    return f, h, a, -2 * (a1 * f + a * f1), sum(terms), sum(map(abs, terms))  # the terms cancel


def _hessian(names, d, m):
    """Return the Hessian of the sum of squared residuals at each point with respect to the inputs `names`.

    The data `d` have the shape (points, 21). The centers `m` of the Gaussians have the shape (points,). The
    result has the shape (points, inputs, inputs).
    """
    xp = d.__array_namespace__()
    f, h, _, mixed, by_m, _ = _second_derivatives(d, m)
    by_d = 2 * xp.eye(_GRID.size, dtype=d.dtype) - 2 * f[:, :, None] * f[:, None, :] / h[:, :, None]
    blocks = {
        "d": {"d": by_d, "m": mixed[:, :, None]},
        "m": {"d": mixed[:, None, :], "m": by_m[:, :, None]},
    }
    rows = [xp.concatenate([blocks[row][column] for column in names], axis=2) for row in names]
    return xp.concatenate(rows, axis=1)


def _hessian_times_point(names, d, m):
    """Return H v at each point, where H is the Hessian of the sum of squared residuals.

    The Hessian is with respect to the inputs `names`. The vector v contains the values of these inputs: the
    data `d`, the center `m`, or both. The result has the shape (points, inputs).
    """
    f, _, a, mixed, by_m, _ = _second_derivatives(d, m)
    m = m[:, None]
    products = {"d": {"d": 2 * d - 2 * a * f, "m": mixed * m}, "m": {"d": _dot(mixed, d), "m": by_m * m}}
    return jnp.concatenate([sum(products[row][column] for column in names) for row in names], axis=1)


def _second_order_reference(names: tuple[str, ...], inputs: Inputs) -> Reference:
    """Return the sum of the squared residuals at each point, and its Hessian, as a `Reference`.

    The Hessian is with respect to the inputs `names`. If they contain "m", `derivative_terms` is set, because
    the terms of the second derivative with respect to "m" cancel.
    """
    value = _reference("scalar", names, inputs).value
    *_, magnitude = _second_derivatives(**inputs)
    return Reference(value, _hessian(names, **inputs), None, magnitude[:, 0] if "m" in names else None)


def _centers(rows: np.ndarray) -> np.ndarray:
    """Return the center of the Gaussian, between -2 and 2, at the points with the indices `rows`."""
    return 4 * ((rows * 0.6180339887498949) % 1.0) - 2  # a golden-ratio sequence from -2 to 2


def _draw_profile(rng: np.random.Generator, rows: np.ndarray) -> np.ndarray:
    """Return the data d, a Gaussian plus noise, at the points with the indices `rows`."""
    clean = np.exp(-1.5 * (_GRID - _centers(rows)[:, None]) ** 2)
    return clean + 0.05 * rng.standard_normal(clean.shape)


def workload(case: Case) -> Workload:
    """Return the `Workload` of the residuals, or of the sum of their squares if variant=scalar."""
    names = tuple((case.wrt or "m").split("+"))

    def derivative(d, m):
        if case.target not in SECOND:
            return _jacobians(case.variant, names, d, m)
        if case.target == "hvp":
            return _hessian_times_point(names, d, m)
        hessian = _hessian(names, d, m)
        return hessian if case.target == "hessian" else jnp.trace(hessian, axis1=1, axis2=2)

    return Workload(
        function=formula(case, jnp),
        points={
            "d": InputSpec((_GRID.size,), _draw_profile),
            "m": InputSpec((), lambda rng, rows: _centers(rows) + 0.3 * rng.standard_normal(len(rows))),
        },
        wrt="m",
        whole_modes={
            "analytic": derivative,
            "analytic_vmap": jax.vmap(lambda d, m: derivative(d[None], m[None])[0]),
        },
        reference=functools.partial(_reference, case.variant, names),
        second=functools.partial(_second_order_reference, names),
        terms=_GRID.size,
    )
