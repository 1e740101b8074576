"""poisson: the log-likelihood of counts and its gradient by the rates, after a forum thread on speeding up a logpdf.

loss(c, lam) = sum_i log pmf(c_i; lam_i) with c ~ Poisson(1.2) and lam uniform on the open interval (0, 1). One point is a term
(c_i, lam_i). `batch: vmap` differentiates term by term, `batch: whole` the sum at once, as the thread does.
"""

import math

import jax.numpy as jnp
import numpy as np
from jax.scipy.stats.poisson import logpmf

from scaling.case import Case
from scaling.workload import Inputs, Reference, Workload, poisson, uniform

TARGETS = ("gradient",)
VALUE = "loss"


def term(c, lam):
    """log pmf(c; lam)."""
    return logpmf(c, lam)


def loss(c, lam):
    """The sum over terms."""
    return jnp.sum(logpmf(c, lam))


def _reference(inputs: Inputs) -> Reference:
    c, lam = inputs["c"], inputs["lam"]
    log_factorial = np.array([math.lgamma(k + 1) for k in range(int(c.max(initial=0)) + 1)])
    parts = c * np.log(lam), lam, log_factorial[c.astype(int)]
    value = parts[0] - parts[1] - parts[2]
    # The logarithm of a factorial is itself a sum of numbers about one.
    value_terms = 1 + sum(np.abs(part) for part in parts)
    return Reference(value[:, None], (c / lam - 1)[:, None, None], value_terms, c / lam + 1)


def workload(case: Case) -> Workload:
    """poisson, term by term and as a sum."""
    return Workload(
        function=term,
        points={"c": poisson(1.2), "lam": uniform()},
        wrt="lam",
        whole=loss,
        whole_modes={"analytic": lambda c, lam: c / lam - 1},
        reference=_reference,
    )
