"""Run cases with HIPS autograd on a single core.

`make_jvp` computes columns of the Jacobian, and `make_vjp` computes rows. Each JVP is computed with respect
to one input, because autograd would also propagate the zero tangents of the other inputs. A VJP is computed
with respect to all inputs, because the inputs share most of the backward pass. The NumPy calls of the
function are traced again for each derivative.
"""

from typing import Any

import numpy as np

from scaling.core.case import Case
from scaling.core.modes import TANGENT
from scaling.peers import formulas
from scaling.peers.formulas import Batch
from scaling.peers.interface import Prepared

PACKAGES = ("autograd", "numpy", "scipy")
MODES = ("value", "jacfwd", "jacrev", "grad_of_sum")


def reason_to_skip(case: Case, workload: Any, sizes: Any) -> str | None:
    return formulas.reason_to_skip_numpy(case, MODES)


def prepare(case: Case, workload: Any, sizes: Any, arrays: dict[str, np.ndarray], threads: int) -> Prepared:
    """Return functions that compute the value or derivative of a case with HIPS autograd."""
    import autograd.numpy
    from autograd.scipy.special import gammaln

    differentiate = _columns if case.ad_mode.seed == TANGENT else _rows
    return formulas.prepare(case, workload, sizes, arrays, autograd.numpy, gammaln, differentiate)


def _columns(batch: Batch) -> list[np.ndarray]:
    from autograd import make_jvp

    jvps = [make_jvp(batch.function, index)(*batch.x) for index in range(len(batch.x))]
    return batch.columns(lambda index, seed: jvps[index](seed)[1])


def _rows(batch: Batch) -> list[np.ndarray]:
    from autograd import make_vjp

    vjp, y = make_vjp(lambda x: batch.function(*x))(batch.x)
    if batch.case.ad_mode.single_seed:
        return [row[None] for row in vjp(np.ones_like(y))]
    return batch.rows(vjp, y)
