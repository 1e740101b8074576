"""Peer: HIPS autograd (JVPs and VJPs by tracing NumPy calls) on a single core.

JVPs are computed with respect to one input at a time, because autograd would also propagate the zero tangents
of the other inputs. VJPs are computed with respect to all inputs at once, because most of the backward pass
is common to the inputs. The mode `linearize` computes a JVP as the VJP of a VJP (autograd's
`make_jvp_reversemode`), so that all tangents use the same forward pass.
"""

from typing import Any

import numpy as np

from scaling.core.case import Case
from scaling.core.modes import HESSIAN, TANGENT
from scaling.peers import _seeds
from scaling.peers.interface import Prepared

PACKAGES = ("autograd", "numpy", "scipy")
MODES = ("value", "jacfwd", "linearize", "jacrev", "grad_of_sum", *HESSIAN)


def reason_to_skip(case: Case, workload: Any, sizes: Any) -> str | None:
    return _seeds.why_not_offered(case, workload, sizes, MODES)


def prepare(case: Case, workload: Any, sizes: Any, arrays: dict[str, np.ndarray], threads: int) -> Prepared:
    """Return a `Prepared` object that computes the derivative. Each derivative traces the function again."""
    import autograd.numpy
    from autograd.scipy.special import gammaln

    batch = _seeds.make_batch(case, workload, sizes, arrays, autograd.numpy, gammaln)
    if case.ad_mode.is_value:
        return Prepared(lambda: batch.function(*batch.x), np.asarray)
    if case.ad_mode.order == 2:
        return Prepared(lambda: _hessian(batch), batch.collect, passes=sizes.passes)
    differentiate = _columns if case.ad_mode.seed == TANGENT else _rows
    return Prepared(lambda: differentiate(batch), batch.collect, passes=sizes.passes)


def _columns(batch: _seeds.Batch) -> list[np.ndarray]:
    """Compute the columns of the Jacobian by JVPs, and return them in the form of `Batch.columns`."""
    from autograd import make_jvp
    from autograd.differential_operators import make_jvp_reversemode

    linearize = batch.case.mode == "linearize"
    transform = make_jvp_reversemode if linearize else make_jvp
    jvps = [transform(batch.function, index)(*batch.x) for index in range(len(batch.x))]
    if linearize:
        return batch.columns(lambda index, seed: jvps[index](seed))
    return batch.columns(lambda index, seed: jvps[index](seed)[1])


def _rows(batch: _seeds.Batch) -> list[np.ndarray]:
    """Compute the rows of the Jacobian by VJPs, and return them in the form of `Batch.rows`."""
    from autograd import make_vjp

    vjp, y = make_vjp(lambda x: batch.function(*x))(batch.x)
    if batch.case.ad_mode.single_seed:
        return [row[None] for row in vjp(np.ones_like(y))]
    return batch.rows(vjp, y)


def _hessian(batch: _seeds.Batch) -> list[np.ndarray]:
    """Return the columns of the Hessian H at each point x, or the products H x if the target is `hvp`.

    The result is a list in the form of `Batch.columns`. The function is differentiated as a sum over the
    points. Because the points are independent, the gradient of the sum consists of the gradients of the
    points.
    """
    x = batch.x
    hvp = _make_hvp(batch.case.mode, lambda x: batch.function(*x), x)

    def flatten(gradient: tuple) -> np.ndarray:
        return np.concatenate([a.reshape(batch.case.points, -1) for a in gradient], axis=1)

    if batch.case.target == "hvp":
        return [flatten(hvp(x))[None]]
    zeros = [np.zeros_like(a) for a in x]
    return batch.columns(lambda index, seed: flatten(hvp((*zeros[:index], seed, *zeros[index + 1 :]))))


def _make_hvp(mode: str, f: Any, x: tuple) -> Any:
    """Return the function v -> H v, where H is the Hessian of sum(f) at x.

    x, v and H v are tuples of arrays. `mode` is the AD mode, such as "fwd_over_rev".
    """
    from autograd import make_jvp, make_vjp

    def gradient(f: Any) -> Any:
        def gradient_at(x: Any) -> Any:
            vjp, y = make_vjp(f)(x)
            return vjp(np.ones(y.shape, y.dtype))

        return gradient_at

    def derivative_along(v: tuple) -> Any:
        return lambda x: make_jvp(f)(x)(v)[1]

    if mode == "fwd_over_rev":
        jvp = make_jvp(gradient(f))(x)
        return lambda v: jvp(v)[1]
    if mode == "rev_over_rev":
        return make_vjp(gradient(f))(x)[0]
    if mode == "rev_over_fwd":
        return lambda v: gradient(derivative_along(v))(x)

    def fwd_over_fwd(v: tuple) -> tuple:
        jvp, zeros, products = make_jvp(derivative_along(v))(x), [np.zeros_like(a) for a in x], []
        for index, a in enumerate(x):
            tangents = ((*zeros[:index], seed, *zeros[index + 1 :]) for seed in _seeds.unit_seeds(a, len(a)))
            products.append(np.stack([jvp(tangent)[1].reshape(-1) for tangent in tangents], axis=1))
        return tuple(products)

    return fwd_over_fwd
