"""Define the workload `poisson`: a Poisson log-likelihood and its gradient with respect to the rates.

The function is loss(c, lam) = sum_i log pmf(c_i; lam_i). The counts c have the distribution Poisson(1.2). The
rates lam are uniform on the open interval (0, 1). A point (batch element) is a pair (c_i, lam_i). `batch:
vmap` differentiates each term of the sum. `batch: whole` differentiates the sum in one call, as in the forum
thread "Speeding up gradient of logpdf". The workload is taken from this thread (docs/sources.md).
"""

from collections.abc import Callable, Mapping

import jax.numpy as jnp
import numpy as np
from jax.scipy.stats.poisson import logpmf
from scipy.special import gammaln

from scaling.core.case import Case
from scaling.core.workload import Inputs, Reference, Workload, poisson, uniform

TARGETS = ("gradient",)
VALUE = "loss"


def term(c, lam):
    """Return the log-probability of a count c in a Poisson distribution of rate lam."""
    return logpmf(c, lam)


def loss(c, lam):
    """Return the sum of the log-probabilities of all counts c with their rates lam."""
    return jnp.sum(logpmf(c, lam))


def _reference(inputs: Inputs) -> Reference:
    """Return the log-probabilities and their derivatives with respect to the rates, as a `Reference`.

    The field `value_terms` contains the sum of the absolute values of the terms of each log-probability.
    `derivative_terms` contains the same sum for each derivative.
    """
    c, lam = inputs["c"], inputs["lam"]
    log_power, log_factorial = c * np.log(lam), gammaln(c + 1)
    value = log_power - lam - log_factorial
    # The logarithm of the factorial is itself a sum of terms of magnitude one, hence the additional 1.
    value_terms = 1 + np.abs(log_power) + lam + log_factorial
    return Reference(value[:, None], (c / lam - 1)[:, None, None], value_terms, c / lam + 1)


def _second_order_reference(inputs: Inputs) -> Reference:
    """Return log-probabilities and their second derivatives with respect to the rates."""
    c, lam = inputs["c"], inputs["lam"]
    return _reference(inputs)._replace(derivative=(-c / lam**2)[:, None, None], derivative_terms=c / lam**2)


def _analytic_modes(target: str | None) -> Mapping[str, Callable]:
    """Return {AD mode: function that computes `target` with a handwritten formula}.

    `target` is "gradient", "hessian", "laplacian" or "hvp". None means "gradient". The arguments of a
    function are the counts c and the rates lam of all points.
    """
    if target in ("hessian", "laplacian"):  # both targets are equal, because a term has a single rate
        return {"analytic": lambda c, lam: -c / lam**2, "analytic_vmap": lambda c, lam: -c / lam / lam}
    if target == "hvp":
        return {"analytic": lambda c, lam: -c / lam, "analytic_vmap": lambda c, lam: -c / lam**2 * lam}
    return {"analytic": lambda c, lam: c / lam - 1, "analytic_vmap": lambda c, lam: (c - lam) / lam}


def workload(case: Case) -> Workload:
    """Return the `Workload` of a Poisson log-likelihood, a sum of one term per point."""
    return Workload(
        function=term,
        points={"c": poisson(1.2), "lam": uniform()},
        wrt="lam",
        whole=loss,
        whole_modes=_analytic_modes(case.target),
        reference=_reference,
        second=_second_order_reference,
    )
