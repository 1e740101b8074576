"""Log-densities of two Bayesian regressions, by all unknowns: 10 observations, 10 covariates and an intercept.

They are the functions "ppl_simple_reg" (variant=simple: logistic likelihood, normal prior) and
"ppl_robust_reg" (variant=robust: Student's t with unknown degrees of freedom and scales) of the benchmark
functional_autograd_benchmark of PyTorch. A point is a value of the unknowns. PyTorch's robust density adds
the log-likelihood once for each element of the unknowns that it scores, hence the factor.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.stats import expon, gamma, norm, t

from scaling.workload import Reference, Workload, normal, uniform

SIZES = {"n": 10, "k": 10}
VARIANTS = ("simple", "robust")


def simple(beta, x, y):
    """Return the log-density of the coefficients (k + 1,), given x (n, k + 1) and y (n,) in (0, 1)."""
    score = x @ beta
    return jnp.sum(y * score - jax.nn.softplus(score)) + jnp.sum(norm.logpdf(beta))


def robust(nu, log_scale, beta, x, y, nu_shape, nu_rate, scale_rate, mean, deviation):
    """Return the log-density of degrees of freedom nu (), log-scales (n,) and coefficients beta (k + 1,).

    The other arguments are the observations x (n, k + 1) and y (n,), and the parameters of the priors.
    """
    scale = jnp.exp(log_scale)
    likelihood = jnp.sum(t.logpdf(y, nu, x @ beta, scale))
    prior = gamma.logpdf(nu, nu_shape, scale=1 / nu_rate) + jnp.sum(norm.logpdf(beta, mean, deviation))
    prior += jnp.sum(expon.logpdf(scale, scale=1 / scale_rate) + log_scale)
    return (1 + log_scale.size + beta.size) * likelihood + prior


def by_hand(inputs):
    """Return the simple log-density (points, 1) and its gradient (points, 1, k + 1) in float64."""
    beta, x, y = (inputs[name] for name in ("beta", "x", "y"))
    score = beta @ x.T
    value = np.sum(y * score - np.logaddexp(0, score), axis=1)
    value += np.sum(-(beta**2) / 2 - np.log(2 * np.pi) / 2, axis=1)
    slope = y - 1 / (1 + np.exp(-score))
    terms = np.sum(np.abs(score) + 1, axis=1) + np.sum(beta**2 / 2 + 1, axis=1)
    derivative_terms = (np.abs(slope) @ np.abs(x) + np.abs(beta)).max(axis=1)
    return Reference(value[:, None], (slope @ x - beta)[:, None], terms, derivative_terms)


def hessian_by_hand(inputs):
    """Return the simple log-density (points, 1) and its Hessian (points, k + 1, k + 1) in float64."""
    x, score = inputs["x"], inputs["beta"] @ inputs["x"].T
    weight = 1 / (2 + np.exp(score) + np.exp(-score))
    second = -np.einsum("pi,ij,ik->pjk", weight, x, x) - np.eye(x.shape[1])
    return by_hand(inputs)._replace(derivative=second, derivative_terms=np.abs(second).max(axis=(1, 2)))


def workload(case):
    n, k = case.sizes["n"], case.sizes["k"] + 1
    data = {"x": uniform(n, k), "y": uniform(n)}
    if case.variant != "robust":
        return Workload(simple, {"beta": normal(k)}, data, reference=by_hand, second=hessian_by_hand, terms=n)
    unknowns = {"nu": uniform(low=1.0, high=5.0), "log_scale": normal(n), "beta": normal(k)}
    prior = {"nu_shape": uniform(), "nu_rate": uniform(), "scale_rate": uniform(n)}
    prior |= {"mean": uniform(k), "deviation": uniform(k, low=0.1)}
    return Workload(robust, unknowns, data | prior, wrt="nu+log_scale+beta", terms=n)
