"""residual: what is left of a profile after fitting one of known shape, after a forum thread on differentiating by a subset.

On x = -10..10, f(m) = exp(-1.5 (x - m)^2) and rs(d, m) = d - (sum(d f) / sum(f f)) f. One point is a pair (d, m): the profile d
(21 numbers) is a shifted one with noise, m lies near its centre. The derivative asked for is by the shift m alone, by d alone,
or by both (`wrt: d+m`); the variant `scalar` differentiates sum(rs^2).
"""

import jax.numpy as jnp
import numpy as np

from scaling.case import Case
from scaling.workload import Draw, Inputs, Reference, Workload

TARGETS = ("jacobian",)
VARIANTS = ("vector", "scalar")
VALUE = "residual"

_GRID = np.arange(-10.0, 11.0)


def residual(d, m):
    """rs(d, m): (21,)."""
    f = jnp.exp(-1.5 * (jnp.asarray(_GRID, d.dtype) - m) ** 2)
    return d - (jnp.sum(d * f) / jnp.sum(f * f)) * f


def scalar(d, m):
    """sum(rs^2)."""
    return jnp.sum(residual(d, m) ** 2)


def _parts(numpy, d, m):
    """rs (n, 21), its derivative by m (n, 21), f (n, 21), sum(f f) (n, 1) and the fitted part a f (n, 21), by hand."""
    away = numpy.asarray(_GRID, d.dtype) - m[:, None]
    f = numpy.exp(-1.5 * away**2)
    slope = 3 * away * f
    ff = numpy.sum(f * f, axis=1, keepdims=True)
    a = numpy.sum(d * f, axis=1, keepdims=True) / ff
    a_slope = (numpy.sum(d * slope, axis=1, keepdims=True) - 2 * a * numpy.sum(f * slope, axis=1, keepdims=True)) / ff
    return d - a * f, -(a_slope * f + a * slope), f, ff, a * f


def _blocks(numpy, variant, rs, by_m, f, ff):
    """The derivative by each input, outputs by inputs: {"d": (n, o, 21), "m": (n, o, 1)}."""
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


def _centre(rows: np.ndarray) -> np.ndarray:
    """Where the profile of each row sits: spread evenly over (-2, 2) by the golden ratio."""
    return 4 * ((rows * 0.6180339887498949) % 1.0) - 2


def _profile(rng: np.random.Generator, rows: np.ndarray) -> np.ndarray:
    clean = np.exp(-1.5 * (_GRID - _centre(rows)[:, None]) ** 2)
    return clean + 0.05 * rng.standard_normal(clean.shape)


def workload(case: Case) -> Workload:
    """residual, or the sum of its squares, by the inputs that the case names."""
    variant = case.variant or "vector"
    names = tuple((case.wrt or "m").split("+"))
    return Workload(
        function=scalar if variant == "scalar" else residual,
        points={
            "d": Draw((_GRID.size,), _profile),
            "m": Draw((), lambda rng, rows: _centre(rows) + 0.3 * rng.standard_normal(len(rows))),
        },
        wrt="m",
        whole_modes={"analytic": lambda d, m: _analytic(variant, names, d, m)},
        reference=lambda inputs: _reference(variant, names, inputs),
        terms=_GRID.size,
    )
