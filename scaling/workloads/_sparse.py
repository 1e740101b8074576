"""The derivatives of the workloads `arrowhead` and `stencil`: nonzeros, and dense Jacobians made from them."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from scaling.core.case import Case
from scaling.core.shape import Pattern, to_dense
from scaling.core.workload import Inputs, Reference


def derivative_fields(
    case: Case, n: int, pattern: Callable, nonzeros: Callable, entries: Callable, at_point: Callable
) -> dict[str, Any]:
    """Return the fields of a `Workload` that describe an n x n Jacobian, given formulas of its nonzeros.

    `nonzeros` is the reference. `entries` and `at_point` are handwritten JAX functions that return the
    nonzeros of a batch, of shape (points, nonzeros), and of one point.
    """

    def reference(inputs: Inputs) -> Reference:
        rows, columns = pattern()
        sparse = nonzeros(inputs)
        return sparse._replace(derivative=to_dense(Pattern(rows, columns, n, n), sparse.derivative[:, 0]))

    def scatter(formula: Callable) -> Callable:
        def jacobian(**inputs: Any) -> Any:
            values = formula(**inputs)
            rows, columns = pattern()
            return jnp.zeros((*values.shape[:-1], n, n), values.dtype).at[..., rows, columns].set(values)

        return jacobian

    if case.seeds != "colored":
        entries, at_point = scatter(entries), scatter(at_point)
    modes = {"analytic": entries, "analytic_vmap": jax.vmap(at_point)}
    return {"pattern": pattern, "nonzeros": nonzeros, "reference": reference, "whole_modes": modes}
