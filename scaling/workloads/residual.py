"""A profile minus its fit by a known shape, after a forum thread on differentiating by some of the
arguments.

On x = -10..10, f(m) = exp(-1.5 (x - m)^2) and rs(d, m) = d - (sum(d f) / sum(f f)) f. One point is a pair
(d, m): the profile d (21 numbers) is a shifted one with noise, m lies near its centre. The derivative is
by the shift m alone, by d alone, or by both (`wrt: d+m`); the variant `scalar` differentiates sum(rs^2).
`formulation`: with sums or with dot products.
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
    """rs(d, m): (21,)."""
    f = jnp.exp(-1.5 * (jnp.asarray(_GRID, d.dtype) - m) ** 2)
    return d - (jnp.sum(d * f) / jnp.sum(f * f)) * f


def _with_dot(d, m):
    """rs(d, m) by dot products, as an early version of the thread had it."""
    f = jnp.exp(-1.5 * (jnp.asarray(_GRID, d.dtype) - m) ** 2)
    return d - (jnp.dot(d, f) / jnp.dot(f, f)) * f


def _parts(numpy, d, m):
    """Return rs (n, 21), its derivative by m (n, 21), f (n, 21), sum(f f) (n, 1) and the fitted part a f
    (n, 21), by hand.
    """
    away = numpy.asarray(_GRID, d.dtype) - m[:, None]
    f = numpy.exp(-1.5 * away**2)
    slope = 3 * away * f
    ff = numpy.sum(f * f, axis=1, keepdims=True)
    a = numpy.sum(d * f, axis=1, keepdims=True) / ff
    mixed = numpy.sum(d * slope, axis=1, keepdims=True) - 2 * a * numpy.sum(f * slope, axis=1, keepdims=True)
    a_slope = mixed / ff
    return d - a * f, -(a_slope * f + a * slope), f, ff, a * f


def _blocks(numpy, variant, rs, by_m, f, ff):
    """Return the derivative by each input, outputs by inputs: {"d": (n, o, 21), "m": (n, o, 1)}."""
    if variant == "scalar":  # rs is orthogonal to f, so that the derivative by d is 2 rs
        return {"d": 2 * rs[:, None, :], "m": 2 * numpy.sum(rs * by_m, axis=1)[:, None, None]}
    return {
        "d": numpy.eye(_GRID.size, dtype=rs.dtype) - f[:, :, None] * f[:, None, :] / ff[:, :, None],
        "m": by_m[:, :, None],
    }


def _analytic(variant, names, d, m):
    rs, by_m, f, ff, _ = _parts(jnp, d, m)
    blocks = _blocks(jnp, variant, rs, by_m, f, ff)
    return jnp.concatenate([blocks[name] for name in names], axis=2)


def _reference(variant: str, names: tuple[str, ...], inputs: Inputs) -> Reference:
    rs, by_m, f, ff, fitted = _parts(np, inputs["d"], inputs["m"])
    blocks = _blocks(np, variant, rs, by_m, f, ff)
    derivative = np.concatenate([blocks[name] for name in names], axis=2)
    added = np.abs(inputs["d"]) + np.abs(fitted)  # rs is their difference, and its sums cancel again
    if variant == "vector":
        return Reference(rs, derivative, np.max(added, axis=1))
    sizes = {"d": 2 * np.max(added, axis=1), "m": 2 * np.sum(added * np.abs(by_m), axis=1)}
    derivative_terms = np.max([sizes[name] for name in names], axis=0)
    return Reference(np.sum(rs**2, axis=1)[:, None], derivative, np.sum(added**2, axis=1), derivative_terms)


def _profile_derivatives(numpy, d, m):
    """Return f (n, 21) and its first and second derivative by m."""
    away = numpy.asarray(_GRID, d.dtype) - m[:, None]
    f = numpy.exp(-1.5 * away**2)
    return f, 3 * away * f, (9 * away**2 - 3) * f


def _hessian(numpy, names, d, m):
    """Return the Hessian of sum(rs^2) = |d|^2 - g^2 / h, with g = d f and h = f f (n, k, k), and the size
    of its terms by m (n,).
    """
    f, f1, f2 = _profile_derivatives(numpy, d, m)
    dot = lambda a, b: numpy.sum(a * b, axis=1)[:, None]  # noqa: E731
    g, g1, g2 = dot(d, f), dot(d, f1), dot(d, f2)
    h, h1, h2 = dot(f, f), 2 * dot(f, f1), 2 * (dot(f1, f1) + dot(f, f2))
    q1 = g1 / h - g * h1 / h**2  # of g / h
    by_d = 2 * numpy.eye(_GRID.size, dtype=d.dtype) - 2 * f[:, :, None] * f[:, None, :] / h[:, :, None]
    mixed = (-2 * (q1 * f + g / h * f1))[:, :, None]
    by_m = -(2 * (g1**2 + g * g2) / h - 4 * g * g1 * h1 / h**2 - g**2 * h2 / h**2 + 2 * g**2 * h1**2 / h**3)
    by = {
        ("d", "d"): by_d, ("d", "m"): mixed, ("m", "d"): mixed.transpose(0, 2, 1),
        ("m", "m"): by_m[:, :, None],
    }  # fmt: skip
    hessian = numpy.concatenate([numpy.concatenate([by[a, b] for b in names], axis=2) for a in names], axis=1)
    cross, bend = numpy.abs(g * g1 * h1) / h**2, g**2 * (numpy.abs(h2) + 2 * h1**2 / h) / h**2
    return hessian, (2 * (g1**2 + numpy.abs(g * g2)) / h + 4 * cross + bend)[:, 0]


def _hessian_times(names, d, m):
    """Return the Hessian times the point itself, without the Hessian: (n, k)."""
    f, f1, f2 = _profile_derivatives(jnp, d, m)
    dot = lambda a, b: jnp.sum(a * b, axis=1)[:, None]  # noqa: E731
    g, g1, h, h1 = dot(d, f), dot(d, f1), dot(f, f), 2 * dot(f, f1)
    a, a1 = g / h, g1 / h - g * h1 / h**2  # g / h, and by m
    mixed = -2 * (a1 * f + a * f1)
    by_d = (2 * d - 2 * a * f if "d" in names else 0) + (mixed * m[:, None] if "m" in names else 0)
    if names == ("d",):
        return by_d
    # of -g^2 / h, twice by m
    bend = -2 * (a1 * g1 + a * dot(d, f2)) + 2 * a * a1 * h1 + 2 * a**2 * (dot(f1, f1) + dot(f, f2))
    by_m = bend * m[:, None] + (dot(mixed, d) if "d" in names else 0)
    return jnp.concatenate([{"d": by_d, "m": by_m}[name] for name in names], axis=1)


def _second(names: tuple[str, ...], inputs: Inputs) -> Reference:
    hessian, terms = _hessian(np, names, inputs["d"], inputs["m"])
    return Reference(
        _reference("scalar", names, inputs).value, hessian, None, terms if "m" in names else None
    )


def _by_hand(case: Case, names: tuple[str, ...]) -> Mapping[str, Callable]:
    """Return the derivative of a batch in two formulations: for all pairs at once, and for one pair,
    vmapped.
    """

    def batch(d, m):
        if case.target not in SECOND:
            return _analytic(case.variant, names, d, m)
        return _hessian(jnp, names, d, m)[0] if case.target == "hessian" else _hessian_times(names, d, m)

    return {
        "analytic": batch,
        "analytic_vmap": lambda d, m: jax.vmap(lambda d, m: batch(d[None], m[None])[0])(d, m),
    }


def _centre(rows: np.ndarray) -> np.ndarray:
    """Return the centre of the profile of each row: spread evenly over (-2, 2) by the golden ratio."""
    return 4 * ((rows * 0.6180339887498949) % 1.0) - 2


def _profile(rng: np.random.Generator, rows: np.ndarray) -> np.ndarray:
    clean = np.exp(-1.5 * (_GRID - _centre(rows)[:, None]) ** 2)
    return clean + 0.05 * rng.standard_normal(clean.shape)


def workload(case: Case) -> Workload:
    """Return residual, or the sum of its squares, by the inputs that the case names."""
    variant, rs = case.variant or "vector", _with_dot if case.formulation == "dot" else residual
    names = tuple((case.wrt or "m").split("+"))
    return Workload(
        function=(lambda d, m: jnp.sum(rs(d, m) ** 2)) if variant == "scalar" else rs,
        points={
            "d": InputSpec((_GRID.size,), _profile),
            "m": InputSpec((), lambda rng, rows: _centre(rows) + 0.3 * rng.standard_normal(len(rows))),
        },
        wrt="m",
        whole_modes=_by_hand(dataclasses.replace(case, variant=variant), names),
        reference=lambda inputs: _reference(variant, names, inputs),
        second=lambda inputs: _second(names, inputs),
        terms=_GRID.size,
    )
