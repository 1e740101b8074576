"""The Rosenbrock function in n variables, sum_i (1 - x_i)^2 + 100 (x_{i+1} - x_i^2)^2 (tridiagonal Hessian).

H. H. Rosenbrock, "An automatic method for finding the greatest or least value of a function" (1960), in the
form of the benchmark of asdex (n = 200).
"""

import jax.numpy as jnp
import numpy as np

from scaling.workload import Reference, Workload, uniform

SIZES = {"n": 200}


def value(x):
    """Return the value of the Rosenbrock function at a point x (n,), a scalar."""
    return jnp.sum((1 - x[:-1]) ** 2 + 100 * (x[1:] - x[:-1] ** 2) ** 2)


def gradient(inputs):
    """Return the values (points, 1) and the gradients (points, 1, n) in float64."""
    x = inputs["x"]
    a, b = x[:, :-1], x[:, 1:] - x[:, :-1] ** 2
    left = np.pad(-2 * (1 - a) - 400 * a * b, ((0, 0), (0, 1)))
    right = np.pad(200 * b, ((0, 0), (1, 0)))
    value = np.sum((1 - a) ** 2 + 100 * b**2, axis=1)
    return Reference(
        value[:, None], (left + right)[:, None], None, (np.abs(left) + np.abs(right)).max(axis=1)
    )


def hessian(inputs):
    """Return the values (points, 1) and the Hessians (points, n, n) in float64."""
    x = inputs["x"]
    n, a = x.shape[1], x[:, :-1]
    diagonal = np.pad(2 - 400 * (x[:, 1:] - 3 * a**2), ((0, 0), (0, 1)))
    diagonal += np.pad(np.full_like(a, 200.0), ((0, 0), (1, 0)))
    matrix = np.zeros((len(x), n, n))
    matrix[:, np.arange(n), np.arange(n)] = diagonal
    matrix[:, np.arange(n - 1), np.arange(1, n)] = matrix[:, np.arange(1, n), np.arange(n - 1)] = -400 * a
    terms = (400 * np.abs(x).max(axis=1) + 1200 * (x**2).max(axis=1)) + 202
    return gradient(inputs)._replace(derivative=matrix, derivative_terms=terms)


def workload(case):
    n = case.sizes["n"]
    return Workload(value, points={"x": uniform(n)}, reference=gradient, second=hessian, terms=n)
