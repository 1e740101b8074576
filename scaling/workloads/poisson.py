"""The log-likelihood of counts and its gradient by the rates, after a forum thread on speeding up a
logpdf.

loss(c, lam) = sum_i log pmf(c_i; lam_i) with c ~ Poisson(1.2) and lam uniform on the open interval (0, 1).
One point is a term (c_i, lam_i). `batch: vmap` differentiates term by term, `batch: whole` the sum at
once, as the thread does.
"""

import math
from collections.abc import Callable, Mapping

import jax.numpy as jnp
import numpy as np
from jax.scipy.stats.poisson import logpmf

from scaling.core.case import Case
from scaling.core.workload import Inputs, Reference, Workload, poisson, uniform

TARGETS = ("gradient",)
VALUE = "loss"


def term(c, lam):
    """Return log pmf(c; lam)."""
    return logpmf(c, lam)


def loss(c, lam):
    """Return the sum over terms."""
    return jnp.sum(logpmf(c, lam))


def _reference(inputs: Inputs) -> Reference:
    c, lam = inputs["c"], inputs["lam"]
    log_factorial = np.array([math.lgamma(k + 1) for k in range(int(c.max(initial=0)) + 1)])
    parts = c * np.log(lam), lam, log_factorial[c.astype(int)]
    value = parts[0] - parts[1] - parts[2]
    # The logarithm of a factorial is itself a sum of numbers about one.
    value_terms = 1 + sum(np.abs(part) for part in parts)
    return Reference(value[:, None], (c / lam - 1)[:, None, None], value_terms, c / lam + 1)


def _second(inputs: Inputs) -> Reference:
    c, lam = inputs["c"], inputs["lam"]
    return _reference(inputs)._replace(derivative=(-c / lam**2)[:, None, None], derivative_terms=c / lam**2)


def _by_hand(target: str | None) -> Mapping[str, Callable]:
    """Return the derivative in two formulations; elementwise, so that they take a term or a batch."""
    if target == "hessian":
        return {"analytic": lambda c, lam: -c / lam**2, "analytic_vmap": lambda c, lam: -c / lam / lam}
    if target == "hvp":
        return {"analytic": lambda c, lam: -c / lam, "analytic_vmap": lambda c, lam: -c / lam**2 * lam}
    return {"analytic": lambda c, lam: c / lam - 1, "analytic_vmap": lambda c, lam: (c - lam) / lam}


def workload(case: Case) -> Workload:
    """Return poisson, term by term and as a sum."""
    return Workload(
        function=term,
        points={"c": poisson(1.2), "lam": uniform()},
        wrt="lam",
        whole=loss,
        whole_modes=_by_hand(case.target),
        reference=_reference,
        second=_second,
    )
