"""Workload `examples.gmm`: the log-posterior of a Gaussian mixture, by all its parameters (GradBench, ADBench).

    sum_i logsumexp_k(alpha_k + sum(q_k) - |Q_k (x_i - mu_k)|^2 / 2) - n logsumexp(alpha)
        - sum_k (|exp(q_k)|^2 + |lower_k|^2) / 2

Q_k is lower triangular with the diagonal exp(q_k) and, column by column, lower_k below it. The last sum is a
Wishart prior with gamma = 1 and m = 0. Constants are omitted. Source: F. Srajer, Z. Kukelova, A. Fitzgibbon,
"A benchmark of selected algorithmic differentiation tools", 2018, section 4.1. A point is one set of parameters.
"""

import jax
import jax.numpy as jnp
import numpy as np

from scaling.workload import Reference, Workload, normal, uniform

SIZES = {"d": 3, "k": 4, "n": 20}  # dimensions, components, data
TARGETS = ("gradient",)
VALUE = "log_posterior"
INPUTS = ("alpha", "mu", "q", "lower")


def lower_triangles(q, lower):
    """Return the lower triangular matrices Q_k, (k, d, d). Slices and pads are faster than a scatter."""
    d = q.shape[1]
    below = jnp.split(lower, np.cumsum(np.arange(d - 1, 0, -1)), axis=1)  # the last one is empty
    columns = [
        jnp.pad(jnp.concatenate([diagonal, column], axis=1), ((0, 0), (j, 0)))
        for j, (diagonal, column) in enumerate(zip(jnp.split(jnp.exp(q), d, axis=1), below, strict=True))
    ]
    return jnp.stack(columns, axis=2)


def log_posterior(alpha, mu, q, lower, x):
    """Return the log-posterior, a scalar. Shapes (k,), (k, d), (k, d), (k, d (d - 1) / 2) and (n, d)."""
    (k, d), n = mu.shape, len(x)
    Q = lower_triangles(q, lower)
    y = Q.reshape(k * d, d) @ x.T - jnp.einsum("kij,kj->ki", Q, mu).reshape(-1, 1)  # Q_k (x_i - mu_k)
    squares = jnp.sum(y.reshape(k, d, n) ** 2, axis=1)
    terms = (alpha + jnp.sum(q, axis=1))[:, None] - squares / 2
    likelihood = jnp.sum(jax.nn.logsumexp(terms, axis=0)) - n * jax.nn.logsumexp(alpha)
    return likelihood - (jnp.sum(jnp.exp(2 * q)) + jnp.sum(lower**2)) / 2


def gradient(alpha, mu, q, lower, x):
    """Return (log-posterior, gradient (inputs,)) at one point, derived by hand, in NumPy."""
    (k, d), n = mu.shape, len(x)
    columns, rows = np.triu_indices(d, 1)  # the packed order
    Q = np.zeros((k, d, d))
    Q[:, rows, columns], Q[:, range(d), range(d)] = lower, np.exp(q)
    centered = x - mu[:, None]
    y = centered @ Q.transpose(0, 2, 1)  # (k, n, d)
    terms = (alpha + q.sum(axis=1))[:, None] - np.sum(y**2, axis=2) / 2
    largest = terms.max(axis=0)
    sums = np.exp(terms - largest).sum(axis=0)
    share = np.exp(terms - largest) / sums  # of component k in datum i
    prior = np.exp(alpha - alpha.max()) / np.exp(alpha - alpha.max()).sum()
    by_Q = -(share[:, :, None] * y).transpose(0, 2, 1) @ centered
    by_mu = np.einsum("kn,kni,kij->kj", share, y, Q, optimize=True)
    by_q = share.sum(axis=1)[:, None] + by_Q[:, range(d), range(d)] * np.exp(q) - np.exp(2 * q)
    by_l = by_Q[:, rows, columns] - lower
    log_sum = np.log(np.exp(alpha - alpha.max()).sum()) + alpha.max()
    value = np.sum(np.log(sums) + largest) - n * log_sum - (np.exp(2 * q).sum() + (lower**2).sum()) / 2
    return value, np.concatenate([share.sum(axis=1) - n * prior, by_mu.ravel(), by_q.ravel(), by_l.ravel()])


def workload(case):
    d, k, n = (case.sizes[name] for name in ("d", "k", "n"))

    def reference(inputs):
        points = zip(*(inputs[name] for name in INPUTS), strict=True)
        values, gradients = zip(*(gradient(*point, inputs["x"]) for point in points), strict=True)
        return Reference(np.array(values)[:, None], np.array(gradients)[:, None])

    packed = d * (d - 1) // 2
    parameters = {"alpha": normal(k), "mu": uniform(k, d), "q": normal(k, d), "lower": normal(k, packed)}
    return Workload(
        log_posterior, parameters, {"x": normal(n, d)}, wrt="+".join(INPUTS), reference=reference, terms=n
    )
