"""Peer: NumPy on a single core, with function values, finite differences and handwritten derivatives.

The run times show what derivatives cost without an automatic differentiation system.
"""

from typing import Any

import numpy as np

from scaling.core.case import Case
from scaling.core.modes import STEPS
from scaling.peers import _seeds
from scaling.peers.interface import Prepared

PACKAGES = ("numpy", "scipy")
MODES = ("value", "finite_difference", "analytic")


def reason_to_skip(case: Case, workload: Any, sizes: Any) -> str | None:
    return _seeds.why_not_offered(case, workload, sizes, MODES)


def prepare(case: Case, workload: Any, sizes: Any, arrays: dict[str, np.ndarray], threads: int) -> Prepared:
    """Return a `Prepared` object whose `call` computes the derivative. Nothing is compiled."""
    from scipy.special import gammaln

    batch = _seeds.make_batch(case, workload, sizes, arrays, np, gammaln)
    if case.ad_mode.is_value:
        return Prepared(lambda: batch.function(*batch.x), np.asarray)
    if case.ad_mode.finite_step:
        return Prepared(lambda: _finite_differences(batch), batch.collect, passes=sizes.passes)
    inputs = {name: array.astype(case.dtype) for name, array in arrays.items()}
    return Prepared(lambda: _analytic(case, workload, inputs), np.asarray)


def _finite_differences(batch: _seeds.Batch) -> list[np.ndarray]:
    """Return the forward differences (f(x + h e) - f(x)) / h for each unit vector e of the inputs x.

    The result has the form of `Batch.columns`. The step h depends on the dtype.
    """
    step, x = STEPS[batch.case.dtype], batch.x
    y = batch.function(*x)

    def push(index: int, shift: np.ndarray) -> np.ndarray:
        return (batch.function(*x[:index], x[index] + shift, *x[index + 1 :]) - y) / step

    return batch.columns(push, step)


def _analytic(case: Case, workload: Any, inputs: dict[str, np.ndarray]) -> np.ndarray:
    # The elements are in the order (points, outputs, inputs), but axes of length one may be omitted.
    if case.workload == "rbf":
        return _rbf(case.variant, workload.reduce is not None, **inputs)
    if case.workload == "poisson":
        return inputs["c"] / inputs["lam"] - 1
    by_input = _linear(**inputs) if case.workload == "linear" else _residual(case.variant, **inputs)
    parts = [by_input[name] for name in workload.names]
    return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=-1)


def _rbf(variant: str | None, is_summed: bool, x: np.ndarray, support: np.ndarray) -> np.ndarray:
    """Return the derivative of the workload `rbf` with respect to x, an array of shape (points, m, d).

    If `is_summed` is true, the axis m is summed. If the variant is not `squared`, the axis d is omitted.
    """
    if variant == "squared":
        value = np.exp(-0.5 * np.sum((x[:, None, :] - support) ** 2, axis=-1))
        if is_summed:
            return value @ support - x * np.sum(value, axis=1, keepdims=True)
        return (support - x[:, None, :]) * value[:, :, None]
    y = support[:, 0]
    value = np.exp(-0.5 * (x + y - 2 * x * y))
    return value @ (y - 0.5) if is_summed else (y - 0.5) * value


def _linear(X: np.ndarray, W: np.ndarray) -> dict[str, np.ndarray]:
    """Return the derivatives of (X @ W).sum(axis=1) with respect to W and to X, as a dict by input name.

    Each derivative is an array of shape (points, inputs). The derivative with respect to W[i, j] is X[:, i],
    and the derivative with respect to X[:, i] is the sum of W[i, :].
    """
    return {"W": np.repeat(X, W.shape[1], axis=1), "X": np.tile(W.sum(axis=1), (len(X), 1))}


def _residual(variant: str | None, d: np.ndarray, m: np.ndarray) -> dict[str, np.ndarray]:
    """Return the derivatives of the residual rs with respect to d and m, as a dict by input name.

    The residual is rs = d - a f with f = exp(-1.5 (x - m)^2) and a = sum(d f) / sum(f f). The arrays have the
    shape (points, 21, inputs). For the variant `scalar`, they contain the derivatives of sum(rs^2) and have
    the shape (points, inputs). These formulas are simplified, because rs is orthogonal to f.
    """
    offset = np.arange(-10.0, 11.0).astype(d.dtype) - m[:, None]
    f = np.exp(-1.5 * offset**2)
    slope = 3 * offset * f
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
