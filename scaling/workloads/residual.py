"""Workload `residual`: data on 21 grid points minus a fitted Gaussian, and the derivatives of this residual.

Let x = -10, -9, ..., 10 be the grid and f = exp(-1.5 (x - m)^2) a Gaussian on it. The residual is rs(d, m) =
d - (sum(d f) / sum(f f)) f. A point (batch element) is a pair (d, m). The data d are 21 values of a Gaussian
with noise, and the number m is close to the center of this Gaussian. The derivative is with respect to m, d,
or both (`wrt: d+m`), as in a published question on `argnums` in JAX. The variant `vector` differentiates rs,
and the variant `scalar` differentiates sum(rs^2). The formulation `sum` computes the sums with `jnp.sum`, and
the formulation `dot` computes them with `jnp.dot`.
"""

import dataclasses
from collections.abc import Callable, Mapping

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


def residual(d, m):
    """Return the residual d - (sum(d f) / sum(f f)) f, where f is the Gaussian with center m on the grid.

    d and the result have the shape (21,), and m is a scalar.
    """
    f = jnp.exp(-1.5 * (jnp.asarray(_GRID, d.dtype) - m) ** 2)
    return d - (jnp.sum(d * f) / jnp.sum(f * f)) * f


def _residual_by_dot(d, m):
    """Return the residual d - (d.f / f.f) f, where f is the Gaussian with center m on the grid.

    d and the result have the shape (21,), and m is a scalar. The sums are computed by dot products.
    """
    f = jnp.exp(-1.5 * (jnp.asarray(_GRID, d.dtype) - m) ** 2)
    return d - (jnp.dot(d, f) / jnp.dot(f, f)) * f


def _fit_gaussian(numpy, d, m):
    """Return the residual rs, its derivative d rs/dm, the Gaussian f, sum(f f), and the fitted Gaussian.

    For n points, sum(f f) is an array of shape (n, 1). The other arrays have the shape (n, 21).

    Args:
        numpy: the array library, NumPy or jax.numpy.
        d: the data, an array of shape (n, 21).
        m: the centers of the Gaussians, an array of shape (n,).
    """
    f, slope, _ = _gaussian_derivatives(numpy, d, m)
    dot = lambda a, b: numpy.sum(a * b, axis=1, keepdims=True)  # noqa: E731
    ff = dot(f, f)
    a = dot(d, f) / ff
    a_slope = (dot(d, slope) - 2 * a * dot(f, slope)) / ff
    return d - a * f, -(a_slope * f + a * slope), f, ff, a * f


def _jacobians(numpy, variant, rs, by_m, f, ff):
    """Return a dict from input name, "d" or "m", to the Jacobians of n points with respect to this input.

    The shapes are (n, o, 21) for d and (n, o, 1) for m. The function is rs with o = 21 outputs or, in the
    variant `scalar`, sum(rs^2) with o = 1.

    Args:
        numpy: the array library, NumPy or jax.numpy.
        rs, by_m, f, ff: the first four results of `_fit_gaussian`.
    """
    if variant == "scalar":  # rs is orthogonal to f, so that the derivative is 2 rs
        return {"d": 2 * rs[:, None, :], "m": 2 * numpy.sum(rs * by_m, axis=1)[:, None, None]}
    return {
        "d": numpy.eye(_GRID.size, dtype=rs.dtype) - f[:, :, None] * f[:, None, :] / ff[:, :, None],
        "m": by_m[:, :, None],
    }


def _analytic(variant, names, d, m):
    """Return the Jacobians of a batch by a handwritten formula, an array of shape (n, o, inputs).

    The Jacobians are with respect to the inputs in `names`: "d", "m" or both.
    """
    by_input = _jacobians(jnp, variant, *_fit_gaussian(jnp, d, m)[:4])
    return jnp.concatenate([by_input[name] for name in names], axis=2)


def _reference(variant: str, names: tuple[str, ...], inputs: Inputs) -> Reference:
    """Return the expected outputs of shape (n, o) and Jacobians of shape (n, o, inputs) for n points.

    The Jacobians are with respect to the inputs in `names`: "d", "m" or both. The magnitudes of the terms are
    also returned, because the terms of the sums cancel.
    """
    rs, by_m, f, ff, fit = _fit_gaussian(np, inputs["d"], inputs["m"])
    by_input = _jacobians(np, variant, rs, by_m, f, ff)
    derivative = np.concatenate([by_input[name] for name in names], axis=2)
    magnitude = np.abs(inputs["d"]) + np.abs(fit)  # rs is a difference, and its sums cancel again
    if variant == "vector":
        return Reference(rs, derivative, np.max(magnitude, axis=1))
    value, value_terms = np.sum(rs**2, axis=1)[:, None], np.sum(magnitude**2, axis=1)
    sizes = {"d": 2 * np.max(magnitude, axis=1), "m": 2 * np.sum(magnitude * np.abs(by_m), axis=1)}
    return Reference(value, derivative, value_terms, np.max([sizes[name] for name in names], axis=0))


def _gaussian_derivatives(numpy, d, m):
    """Return f, df/dm and d^2f/dm^2 for the Gaussian f with center m on the grid, arrays of shape (n, 21).

    Args:
        numpy: the array library, NumPy or jax.numpy.
        d: an array with the dtype of the results.
        m: the centers at n points, an array of shape (n,).
    """
    offset = numpy.asarray(_GRID, d.dtype) - m[:, None]
    f = numpy.exp(-1.5 * offset**2)
    return f, 3 * offset * f, (9 * offset**2 - 3) * f


def _second_derivatives(numpy, d, m):
    """Return the parts of the Hessian of sum(rs^2) = |d|^2 - g^2 / h, where g = sum(d f) and h = sum(f f).

    The block of the Hessian for d and d is 2 I - 2 f f^T / h. The arguments are those of `_fit_gaussian`.

    Returns:
        f, a, h: the Gaussian f of shape (n, 21), and a = g / h and h of shape (n, 1).
        mixed: the block of the Hessian for d and m, an array of shape (n, 21).
        by_m, size: the second derivative with respect to m, and the magnitude of its terms, of shape (n, 1).
    """
    f, f1, f2 = _gaussian_derivatives(numpy, d, m)
    dot = lambda a, b: numpy.sum(a * b, axis=1)[:, None]  # noqa: E731
    g, g1, g2 = dot(d, f), dot(d, f1), dot(d, f2)
    h, h1, h2 = dot(f, f), 2 * dot(f, f1), 2 * (dot(f1, f1) + dot(f, f2))
    a, a1 = g / h, g1 / h - g * h1 / h**2  # g / h and its derivative
    mixed = -2 * (a1 * f + a * f1)
    by_m = -(2 * (g1**2 + g * g2) / h - 4 * g * g1 * h1 / h**2 - g**2 * h2 / h**2 + 2 * g**2 * h1**2 / h**3)
    curvature = g**2 * (numpy.abs(h2) + 2 * h1**2 / h) / h**2
    size = 2 * (g1**2 + numpy.abs(g * g2)) / h + 4 * numpy.abs(g * g1 * h1) / h**2 + curvature
    return f, a, h, mixed, by_m, size


def _hessian(numpy, names, d, m):
    """Return the Hessians of sum(rs^2), and the magnitude of the terms in the second derivative by m.

    For n points and the inputs in `names` ("d", "m" or both) with k elements in total, the Hessians are an
    array of shape (n, k, k). The magnitude is an array of shape (n,).
    """
    f, _, h, mixed, by_m, size = _second_derivatives(numpy, d, m)
    by_d = 2 * numpy.eye(_GRID.size, dtype=d.dtype) - 2 * f[:, :, None] * f[:, None, :] / h[:, :, None]
    blocks = {
        ("d", "d"): by_d, ("d", "m"): mixed[:, :, None], ("m", "d"): mixed[:, None, :],
        ("m", "m"): by_m[:, :, None],
    }  # fmt: skip
    rows = [numpy.concatenate([blocks[a, b] for b in names], axis=2) for a in names]
    return numpy.concatenate(rows, axis=1), size[:, 0]


def _hessian_times_point(names, d, m):
    """Return the product of the Hessian of sum(rs^2) and the point (d, m), without computing the Hessian.

    `names` contains the inputs of the Hessian: "d", "m" or both. For n points and inputs with k elements in
    total, the product is an array of shape (n, k).
    """
    f, a, _, mixed, by_m, _ = _second_derivatives(jnp, d, m)
    m = m[:, None]
    products = {
        "d": {"d": 2 * d - 2 * a * f, "m": mixed * m},
        "m": {"d": jnp.sum(mixed * d, axis=1, keepdims=True), "m": by_m * m},
    }
    return jnp.concatenate([sum(products[row][column] for column in names) for row in names], axis=1)


def _second_order_reference(names: tuple[str, ...], inputs: Inputs) -> Reference:
    """Return the expected values of sum(rs^2), and its Hessians with respect to the inputs in `names`."""
    hessian, terms = _hessian(np, names, inputs["d"], inputs["m"])
    return Reference(
        _reference("scalar", names, inputs).value, hessian, None, terms if "m" in names else None
    )


def _analytic_modes(case: Case, names: tuple[str, ...]) -> Mapping[str, Callable]:
    """Return a dict from AD mode to a function (d, m) that evaluates a handwritten derivative of a batch.

    The derivative is with respect to the inputs in `names`. The mode `analytic` evaluates the batch in one
    call. The mode `analytic_vmap` applies `jax.vmap` to a function of one point.
    """

    def batch(d, m):
        if case.target not in SECOND:
            return _analytic(case.variant, names, d, m)
        if case.target == "hvp":
            return _hessian_times_point(names, d, m)
        hessian = _hessian(jnp, names, d, m)[0]
        return hessian if case.target == "hessian" else jnp.trace(hessian, axis1=1, axis2=2)

    return {
        "analytic": batch,
        "analytic_vmap": lambda d, m: jax.vmap(lambda d, m: batch(d[None], m[None])[0])(d, m),
    }


def _centers(rows: np.ndarray) -> np.ndarray:
    """Return the center of the Gaussian in the data of each point, an array of shape (points,).

    `rows` contains the indices of the points. The centers are a golden-ratio sequence, evenly distributed on
    the interval from -2 to 2.
    """
    return 4 * ((rows * 0.6180339887498949) % 1.0) - 2


def _draw_profile(rng: np.random.Generator, rows: np.ndarray) -> np.ndarray:
    """Return Gaussians with random noise at the points with the indices `rows`, of shape (points, 21)."""
    clean = np.exp(-1.5 * (_GRID - _centers(rows)[:, None]) ** 2)
    return clean + 0.05 * rng.standard_normal(clean.shape)


def workload(case: Case) -> Workload:
    """Return the `Workload` of the residual rs of a fitted Gaussian or, with variant=scalar, of sum(rs^2)."""
    variant, rs = case.variant or "vector", _residual_by_dot if case.formulation == "dot" else residual
    names = tuple((case.wrt or "m").split("+"))
    return Workload(
        function=(lambda d, m: jnp.sum(rs(d, m) ** 2)) if variant == "scalar" else rs,
        points={
            "d": InputSpec((_GRID.size,), _draw_profile),
            "m": InputSpec((), lambda rng, rows: _centers(rows) + 0.3 * rng.standard_normal(len(rows))),
        },
        wrt="m",
        whole_modes=_analytic_modes(dataclasses.replace(case, variant=variant), names),
        reference=lambda inputs: _reference(variant, names, inputs),
        second=lambda inputs: _second_order_reference(names, inputs),
        terms=_GRID.size,
    )
