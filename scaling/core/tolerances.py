"""Tolerances: how far rounding may move the result of a case, from one table."""

import jax
import numpy as np

from scaling.core.case import Case

ROUNDOFF = {"float64": 2.0**-53, "float32": 2.0**-24, "bfloat16": 2.0**-8}  # unit roundoff of one operation
# Unit roundoff of a product in float32 where an accelerator shortens its factors.
PRODUCT_ROUNDOFF = {
    ("gpu", "default"): 2.0**-11,  # TF32
    ("gpu", "high"): 2.0**-11,
    ("tpu", "default"): 2.0**-8,  # bfloat16
    ("tpu", "high"): 2.0**-14,  # three of them
}
ROUNDINGS = 8  # in each term; what needs more is looked at again
_UNDERFLOWS = 2.0**10  # of the smallest normal number: what lies below may be lost in a product


def tolerance(case: Case, terms: int, platform: str, inside: float = 0.0) -> float:
    """Return what rounding may do to an answer that adds up `terms` numbers: some roundings a term, a random
    walk over the sum.

    inside: the unit roundoff of the narrowest dtype in the function.
    """
    return ROUNDINGS * unit_roundoff(case, platform, inside) * float(np.sqrt(terms))


def least_size(case: Case) -> float:
    """Return the size below which numbers of a dtype lose their digits: what is divided by is no smaller."""
    return _UNDERFLOWS * float(jax.numpy.finfo(case.dtype).tiny) / ROUNDOFF[case.dtype]


def unit_roundoff(case: Case, platform: str, inside: float) -> float:
    """Return the unit roundoff of the least exact operation. inside: that of the narrowest dtype in the
    function."""
    roundoff = ROUNDOFF[case.dtype]
    if case.dtype == "float32":
        roundoff = max(roundoff, PRODUCT_ROUNDOFF.get((platform, case.precision), 0.0))
    return max(roundoff, inside)


def relative_error(difference: np.ndarray, size: np.ndarray) -> np.ndarray:
    """Return difference / size, where 0 / 0 is no error and anything else over 0 an infinite one."""
    difference, size = np.broadcast_arrays(difference, size)
    unequal = np.where(difference == 0, 0.0, np.inf)
    return np.asarray(np.divide(difference, size, out=unequal, where=size > 0))
