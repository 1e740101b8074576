"""autograd: HIPS autograd, which records NumPy calls on a tape; one core.

A JVP is by one input at a time, since the zeros of the others would be pushed through too; a VJP is by all of them, which share
most of the way back. `linearize` is autograd's VJP of a VJP: linear in its seed, after one forward pass that the seeds share.
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
    """Why autograd does not offer a case."""
    return _seeds.unfit(case, workload, sizes, MODES)


def prepare(case: Case, workload: Any, sizes: Any, arrays: dict[str, np.ndarray], threads: int) -> Prepared:
    """Every call records its tape again, as autograd does."""
    import autograd.numpy
    from autograd.scipy.special import gammaln

    batch = _seeds.batch(case, workload, sizes, arrays, autograd.numpy, gammaln)
    if case.ad_mode.is_value:
        return Prepared(lambda: batch.function(*batch.x), np.asarray)
    if case.ad_mode.order == 2:
        return Prepared(lambda: _hessian(batch), batch.collect, passes=sizes.passes)
    how = _columns if case.ad_mode.seed == TANGENT else _rows
    return Prepared(lambda: how(batch), batch.collect, passes=sizes.passes)


def _columns(batch: _seeds.Batch) -> list[np.ndarray]:
    from autograd import make_jvp
    from autograd.differential_operators import make_jvp_reversemode

    if batch.case.mode == "linearize":
        maps = [make_jvp_reversemode(batch.function, place)(*batch.x) for place in range(len(batch.x))]
        return batch.columns(lambda place, seed: maps[place](seed))
    maps = [make_jvp(batch.function, place)(*batch.x) for place in range(len(batch.x))]
    return batch.columns(lambda place, seed: maps[place](seed)[1])


def _rows(batch: _seeds.Batch) -> list[np.ndarray]:
    from autograd import make_vjp

    pull, y = make_vjp(lambda x: batch.function(*x))(batch.x)
    if batch.case.ad_mode.single_seed:
        return [row[None] for row in pull(np.ones_like(y))]
    return batch.rows(pull, y)


def _hessian(batch: _seeds.Batch) -> list[np.ndarray]:
    """Columns of the Hessian, or that times the point: the gradient of a sum over points keeps them apart."""
    x, product = batch.x, _product(batch.case.mode, lambda x: batch.function(*x), batch.x)

    def flat(gradient: tuple) -> np.ndarray:
        return np.concatenate([a.reshape(batch.case.points, -1) for a in gradient], axis=1)

    if batch.case.target == "hvp":
        return [flat(product(x))[None]]
    zeros = [np.zeros_like(a) for a in x]
    return batch.columns(lambda place, seed: flat(product((*zeros[:place], seed, *zeros[place + 1 :]))))


def _product(mode: str, f: Any, x: tuple) -> Any:
    """A tangent like x -> the Hessian times it, like x."""
    from autograd import make_jvp, make_vjp

    def gradient(f: Any) -> Any:
        def of(x: Any) -> Any:
            pull, y = make_vjp(f)(x)
            return pull(np.ones(y.shape, y.dtype))

        return of

    def along(v: tuple) -> Any:
        return lambda x: make_jvp(f)(x)(v)[1]

    if mode == "fwd_over_rev":
        push = make_jvp(gradient(f))(x)
        return lambda v: push(v)[1]
    if mode == "rev_over_rev":
        return make_vjp(gradient(f))(x)[0]
    if mode == "rev_over_fwd":
        return lambda v: gradient(along(v))(x)

    def entries(v: tuple) -> tuple:
        inner = make_jvp(along(v))(x)
        zeros = [np.zeros_like(a) for a in x]
        out = []
        for place, a in enumerate(x):
            each = _seeds.seeds(a, len(a))
            out.append(
                np.stack(
                    [inner((*zeros[:place], e, *zeros[place + 1 :]))[1].reshape(-1) for e in each], axis=1
                )
            )
        return tuple(out)

    return entries
