"""Peer: HIPS autograd (JVPs and VJPs by tracing NumPy calls) on a single core.

JVPs are computed with respect to one input at a time, because autograd would also propagate the zero tangents
of the other inputs. VJPs are computed with respect to all inputs at once, because most of the backward pass
is common to the inputs. Each derivative traces the function again.
"""

from typing import Any

import numpy as np

from scaling.core.case import Case
from scaling.core.modes import TANGENT
from scaling.peers import _seeds
from scaling.peers.interface import Prepared

PACKAGES = ("autograd", "numpy", "scipy")
MODES = ("value", "jacfwd", "jacrev", "grad_of_sum")


def reason_to_skip(case: Case, workload: Any, sizes: Any) -> str | None:
    return _seeds.why_not_offered(case, workload, sizes, MODES)


def prepare(case: Case, workload: Any, sizes: Any, arrays: dict[str, np.ndarray], threads: int) -> Prepared:
    """Return a `Prepared` object whose `call` traces the function and differentiates it with autograd."""
    import autograd.numpy
    from autograd.scipy.special import gammaln

    batch = _seeds.make_batch(case, workload, sizes, arrays, autograd.numpy, gammaln)
    if case.ad_mode.is_value:
        return Prepared(lambda: batch.function(*batch.x), np.asarray)
    differentiate = _columns if case.ad_mode.seed == TANGENT else _rows
    return Prepared(lambda: differentiate(batch), batch.collect, passes=sizes.passes)


def _columns(batch: _seeds.Batch) -> list[np.ndarray]:
    """Compute the columns of the Jacobian by JVPs, and return them in the form of `Batch.columns`."""
    from autograd import make_jvp

    jvps = [make_jvp(batch.function, index)(*batch.x) for index in range(len(batch.x))]
    return batch.columns(lambda index, seed: jvps[index](seed)[1])


def _rows(batch: _seeds.Batch) -> list[np.ndarray]:
    """Compute the rows of the Jacobian by VJPs, and return them in the form of `Batch.rows`."""
    from autograd import make_vjp

    vjp, y = make_vjp(lambda x: batch.function(*x))(batch.x)
    if batch.case.ad_mode.single_seed:
        return [row[None] for row in vjp(np.ones_like(y))]
    return batch.rows(vjp, y)
