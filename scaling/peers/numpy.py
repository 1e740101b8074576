"""Compute function values and finite differences with NumPy on a single core.

The run times show how much derivatives cost without automatic differentiation.
"""

from typing import Any

import numpy as np

from scaling.core.case import Case
from scaling.core.modes import STEPS
from scaling.peers import formulas
from scaling.peers.formulas import Batch
from scaling.peers.interface import Prepared

PACKAGES = ("numpy", "scipy")
MODES = ("value", "finite_difference")


def reason_to_skip(case: Case, workload: Any, sizes: Any) -> str | None:
    return formulas.reason_to_skip_numpy(case, MODES)


def prepare(case: Case, workload: Any, sizes: Any, arrays: dict[str, np.ndarray], threads: int) -> Prepared:
    """Return functions that compute the value or the finite differences of a case with NumPy."""
    from scipy.special import gammaln

    return formulas.prepare(case, workload, sizes, arrays, np, gammaln, _finite_differences)


def _finite_differences(batch: Batch) -> list[np.ndarray]:
    """Return the forward differences (f(x + h e) - f(x)) / h for every unit vector e.

    The step h is the value of `STEPS` for the dtype of the case. There is one array for each input.
    """
    step, x = STEPS[batch.case.dtype], batch.x
    y = batch.function(*x)

    def compute_difference(index: int, scaled_unit_vector: np.ndarray) -> np.ndarray:
        return (batch.function(*x[:index], x[index] + scaled_unit_vector, *x[index + 1 :]) - y) / step

    return batch.columns(compute_difference, step)
