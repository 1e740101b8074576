"""The Hessians of many regressions at once, of which only the diagonal blocks are different from zero.

Thread: tensorflow/tensorflow#20570, https://github.com/tensorflow/tensorflow/issues/20570 (2018): parameters
of shape (5, 10000), five for each of 10,000 genes, and Hessians of shape (5, 10000, 5, 10000), of which the
author wants the 5 x 5 blocks or the diagonal. They never ended. The thread does not show the model or the
number of cells. This one is a Poisson regression of 100 cells.

A gene does not depend on the parameters of another one. So a point is a gene here.
"""

import jax
import jax.numpy as jnp
import numpy as np

from scaling.workload import InputSpec, Reference, Workload, normal

SIZES = {"cells": 7, "covariates": 2}
SMALL = {"cells": 7, "covariates": 2, "points": 3}
THREAD = {"cells": 100, "covariates": 5, "points": 10000}
REPORT = {
    "thread": "tensorflow/tensorflow#20570", "asked": "blocks of a Hessian of 50,000 inputs", "needed": "does not end",
    "machine": "not stated",
}  # fmt: skip


def loss(beta, counts, design):
    """Return minus the log-likelihood of a gene with coefficients beta (covariates,) and counts (cells,)."""
    predictor = design @ beta
    return jnp.sum(jnp.exp(predictor) - counts * predictor)


def total(beta, counts, design):
    """Return the sum of the losses of all genes, which are the last axis of `beta` and `counts`."""
    return jnp.sum(jax.vmap(loss, (1, 1, None))(beta, counts, design))


def reported_call(sizes):
    """Return (function, JAX transformation, dict from input to shape) of the call in the GitHub thread."""
    cells, covariates, genes = sizes["cells"], sizes["covariates"], sizes["points"]
    shapes = {"beta": (covariates, genes), "counts": (cells, genes), "design": (cells, covariates)}
    return total, jax.hessian, shapes


def hessian(inputs):
    """Return values and Hessians in float64: (points, 1), (points, covariates, covariates)."""
    design = inputs["design"]
    predictor = inputs["beta"] @ design.T
    mean = np.exp(predictor)
    value = np.sum(mean - inputs["counts"] * predictor, axis=1, keepdims=True)
    return Reference(value, np.einsum("pc,ci,cj->pij", mean, design, design))


def workload(case):
    cells, covariates = case.sizes["cells"], case.sizes["covariates"]
    counts = InputSpec((cells,), lambda generator, rows: generator.poisson(2.0, (len(rows), cells)))
    return Workload(
        loss, points={"beta": normal(covariates, deviation=0.3), "counts": counts}, wrt="beta",
        shared={"design": normal(cells, covariates)}, second=hessian, terms=cells,
    )  # fmt: skip
