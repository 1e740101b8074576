"""Peer: NumPy on a single core, with function values and finite differences.

The run times show what derivatives cost without an automatic differentiation system.
"""

from typing import Any

import numpy as np

from scaling.core.case import Case
from scaling.core.modes import STEPS
from scaling.peers import _seeds
from scaling.peers.interface import Prepared

PACKAGES = ("numpy", "scipy")
MODES = ("value", "finite_difference")


def reason_to_skip(case: Case, workload: Any, sizes: Any) -> str | None:
    return _seeds.why_not_offered(case, workload, sizes, MODES)


def prepare(case: Case, workload: Any, sizes: Any, arrays: dict[str, np.ndarray], threads: int) -> Prepared:
    """Return a `Prepared` object whose `call` computes the derivative. Nothing is compiled."""
    from scipy.special import gammaln

    batch = _seeds.make_batch(case, workload, sizes, arrays, np, gammaln)
    if case.ad_mode.is_value:
        return Prepared(lambda: batch.function(*batch.x), np.asarray)
    return Prepared(lambda: _finite_differences(batch), batch.collect, passes=sizes.passes)


def _finite_differences(batch: _seeds.Batch) -> list[np.ndarray]:
    """Return the forward differences (f(x + h e) - f(x)) / h for each unit vector e of the inputs x.

    The result has the form of `Batch.columns`. The step h depends on the dtype.
    """
    step, x = STEPS[batch.case.dtype], batch.x
    y = batch.function(*x)

    def push(index: int, shift: np.ndarray) -> np.ndarray:
        return (batch.function(*x[:index], x[index] + shift, *x[index + 1 :]) - y) / step

    return batch.columns(push, step)
