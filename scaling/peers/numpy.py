"""NumPy alone, on one core: the function, its finite differences, and its derivative written by hand.

The alternative to a differentiation system, and the baseline for the cost of one.
"""

from typing import Any

import numpy as np

from scaling.core.case import Case
from scaling.core.modes import STEPS
from scaling.peers import _seeds
from scaling.peers.interface import Prepared

PACKAGES = ("numpy", "scipy")
MODES = ("value", "finite_difference", "analytic")


def unfit(case: Case, workload: Any, sizes: Any) -> str | None:
    """Return why NumPy does not offer a case; None if it does."""
    return _seeds.unfit(case, workload, sizes, MODES)


def prepare(case: Case, workload: Any, sizes: Any, arrays: dict[str, np.ndarray], threads: int) -> Prepared:
    """Return the derivative; nothing is compiled."""
    from scipy.special import gammaln

    batch = _seeds.batch(case, workload, sizes, arrays, np, gammaln)
    if case.ad_mode.is_value:
        return Prepared(lambda: batch.function(*batch.x), np.asarray)
    if case.ad_mode.finite_step:
        return Prepared(lambda: _differences(batch), batch.collect, passes=sizes.passes)
    named = {name: array.astype(case.dtype) for name, array in arrays.items()}
    return Prepared(lambda: _by_hand(case, workload, named), np.asarray)


def _differences(batch: _seeds.Batch) -> list[np.ndarray]:
    """Return (f(x + h e) - f(x)) / h: one input is shifted at a time, by the same step at every point."""
    step, x = STEPS[batch.case.dtype], batch.x
    y = batch.function(*x)

    def push(index: int, shift: np.ndarray) -> np.ndarray:
        return (batch.function(*x[:index], x[index] + shift, *x[index + 1 :]) - y) / step

    return batch.columns(push, step)


def _by_hand(case: Case, workload: Any, named: dict[str, np.ndarray]) -> np.ndarray:
    """Return (points, outputs, inputs), or (points, inputs) for the derivative of the sum over the
    outputs.
    """
    if case.workload == "rbf":
        return _rbf(case.variant, workload.reduce is not None, **named)
    if case.workload == "poisson":
        return named["c"] / named["lam"] - 1
    blocks = _linear(**named) if case.workload == "linear" else _residual(case.variant, **named)
    parts = [blocks[name] for name in workload.names]
    return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=-1)


def _rbf(variant: str | None, added: bool, x: np.ndarray, support: np.ndarray) -> np.ndarray:
    """Return the derivative by x; the sum over the support is a product with it."""
    if variant == "squared":
        value = np.exp(-0.5 * np.sum((x[:, None, :] - support) ** 2, axis=-1))
        if added:
            return value @ support - x * np.sum(value, axis=1, keepdims=True)
        return (support - x[:, None, :]) * value[:, :, None]
    y = support[:, 0]
    value = np.exp(-0.5 * (x + y - 2 * x * y))
    return value @ (y - 0.5) if added else (y - 0.5) * value


def _linear(X: np.ndarray, W: np.ndarray) -> dict[str, np.ndarray]:
    """Return the derivative of the sum over outputs: by W X_ij in every column, by X the sums of the rows
    of W.
    """
    return {"W": np.repeat(X, W.shape[1], axis=1), "X": np.tile(W.sum(axis=1), (len(X), 1))}


def _residual(variant: str | None, d: np.ndarray, m: np.ndarray) -> dict[str, np.ndarray]:
    """Return the derivatives of rs = d - a f, with f = exp(-1.5 (x - m)^2) and a = (d f) / (f f).

    The scalar is (rs rs), and rs is orthogonal to f.
    """
    away = np.arange(-10.0, 11.0).astype(d.dtype) - m[:, None]
    f = np.exp(-1.5 * away**2)
    slope = 3 * away * f
    dot = lambda u, v: np.einsum("ni,ni->n", u, v)[:, None]  # noqa: E731
    ff = dot(f, f)
    a = dot(d, f) / ff
    rs = d - a * f
    if variant == "scalar":
        return {"d": 2 * rs, "m": -2 * a * dot(rs, slope)}
    by_m = -(dot(d, slope) - 2 * a * dot(f, slope)) / ff * f - a * slope
    by_d = f[:, :, None] * (-f / ff)[:, None, :]
    np.einsum("nii->ni", by_d)[...] += 1  # a view of the diagonals
    return {"d": by_d, "m": by_m[:, :, None]}
