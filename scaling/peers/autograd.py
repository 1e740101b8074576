"""HIPS autograd, which records NumPy calls on a tape; one core.

A JVP is by one input at a time, since it would push the zeros of the others too; a VJP is by all inputs,
which share most of the backward pass. `linearize` is autograd's VJP of a VJP: linear in its seed, after
one forward pass for all seeds.
"""

from typing import Any

import numpy as np

from scaling.core.case import Case
from scaling.core.modes import HESSIAN, TANGENT
from scaling.peers import _seeds
from scaling.peers.interface import Prepared

PACKAGES = ("autograd", "numpy", "scipy")
MODES = ("value", "jacfwd", "linearize", "jacrev", "grad_of_sum", *HESSIAN)


def unfit(case: Case, workload: Any, sizes: Any) -> str | None:
    """Return why autograd does not offer a case; None if it does."""
    return _seeds.unfit(case, workload, sizes, MODES)


def prepare(case: Case, workload: Any, sizes: Any, arrays: dict[str, np.ndarray], threads: int) -> Prepared:
    """Return the derivative; every call records its tape again, as autograd does."""
    import autograd.numpy
    from autograd.scipy.special import gammaln

    batch = _seeds.batch(case, workload, sizes, arrays, autograd.numpy, gammaln)
    if case.ad_mode.is_value:
        return Prepared(lambda: batch.function(*batch.x), np.asarray)
    if case.ad_mode.order == 2:
        return Prepared(lambda: _hessian(batch), batch.collect, passes=sizes.passes)
    differentiate = _columns if case.ad_mode.seed == TANGENT else _rows
    return Prepared(lambda: differentiate(batch), batch.collect, passes=sizes.passes)


def _columns(batch: _seeds.Batch) -> list[np.ndarray]:
    from autograd import make_jvp
    from autograd.differential_operators import make_jvp_reversemode

    linearize = batch.case.mode == "linearize"
    transform = make_jvp_reversemode if linearize else make_jvp
    maps = [transform(batch.function, index)(*batch.x) for index in range(len(batch.x))]
    if linearize:
        return batch.columns(lambda index, seed: maps[index](seed))
    return batch.columns(lambda index, seed: maps[index](seed)[1])


def _rows(batch: _seeds.Batch) -> list[np.ndarray]:
    from autograd import make_vjp

    pull, y = make_vjp(lambda x: batch.function(*x))(batch.x)
    if batch.case.ad_mode.single_seed:
        return [row[None] for row in pull(np.ones_like(y))]
    return batch.rows(pull, y)


def _hessian(batch: _seeds.Batch) -> list[np.ndarray]:
    """Return columns of the Hessian, or its product with the point: points do not mix in the gradient of
    their sum.
    """
    x = batch.x
    product = _product(batch.case.mode, lambda x: batch.function(*x), x)

    def flat(gradient: tuple) -> np.ndarray:
        return np.concatenate([a.reshape(batch.case.points, -1) for a in gradient], axis=1)

    if batch.case.target == "hvp":
        return [flat(product(x))[None]]
    zeros = [np.zeros_like(a) for a in x]
    return batch.columns(lambda index, seed: flat(product((*zeros[:index], seed, *zeros[index + 1 :]))))


def _product(mode: str, f: Any, x: tuple) -> Any:
    """Return the map from a tangent like x to the Hessian times it, like x."""
    from autograd import make_jvp, make_vjp

    def gradient(f: Any) -> Any:
        def gradient_at(x: Any) -> Any:
            pull, y = make_vjp(f)(x)
            return pull(np.ones(y.shape, y.dtype))

        return gradient_at

    def derivative_along(v: tuple) -> Any:
        return lambda x: make_jvp(f)(x)(v)[1]

    if mode == "fwd_over_rev":
        push = make_jvp(gradient(f))(x)
        return lambda v: push(v)[1]
    if mode == "rev_over_rev":
        return make_vjp(gradient(f))(x)[0]
    if mode == "rev_over_fwd":
        return lambda v: gradient(derivative_along(v))(x)

    def fwd_over_fwd(v: tuple) -> tuple:
        inner, zeros, out = make_jvp(derivative_along(v))(x), [np.zeros_like(a) for a in x], []
        for index, a in enumerate(x):
            units = ((*zeros[:index], e, *zeros[index + 1 :]) for e in _seeds.seeds(a, len(a)))
            out.append(np.stack([inner(unit)[1].reshape(-1) for unit in units], axis=1))
        return tuple(out)

    return fwd_over_fwd
