"""Detect and color the sparsity pattern of a case: of its function (Jacobian) or its gradient (Hessian)."""

import importlib.util
from typing import Any

import jax
import jax.numpy as jnp

from scaling.core.case import Case
from scaling.core.modes import BOTH, TANGENT, ravel
from scaling.core.pattern import Coloring
from scaling.core.shape import point_structs
from scaling.core.workload import Workload
from scaling.options.sparse import sparsity
from scaling.options.sparse.nonzero_gather import gather_entries, gather_indices, read_entries

__all__ = ["detect_coloring", "gather_entries", "gather_indices", "read_entries", "why_unavailable"]


def why_unavailable() -> str | None:
    """Return an error message if asdex, which detects sparsity patterns, is not installed, otherwise None."""
    is_installed = importlib.util.find_spec("asdex") is not None
    return None if is_installed else "asdex is not installed; pip install 'ad-scaling[sparse]'"


def detect_coloring(case: Case, workload: Workload) -> Coloring:
    """Return the coloring of the Jacobian or Hessian of a case, which is the same at every point.

    A point is a batch element. Columns are colored in forward mode, rows in reverse mode, and both for the
    combination of these modes (`mode=mixed`).
    """
    mode = case.ad_mode
    structs = point_structs(case, workload)
    others = [name for name in structs if name not in workload.names]  # inputs of any value
    names = [*workload.names, *others]

    def function(*x: Any) -> Any:
        return workload.function(**dict(zip(names, x, strict=True)))

    def gradient(*x: Any) -> Any:
        argnums = tuple(range(len(workload.names)))
        return ravel(jax.grad(lambda *z: jnp.sum(function(*z)), argnums)(*x))

    is_hessian = mode.order == 2
    problem = (case.workload, case.target, case.variant, case.formulation, *case.sizes.items(), case.wrt)
    key = (*problem, case.dtype, is_hessian)
    compress = {BOTH: "both", TANGENT: "columns"}.get(mode.seed or "", "rows")
    x, y = (tuple(structs[name] for name in group) for group in (workload.names, others))
    coloring = sparsity.find_coloring(key, gradient if is_hessian else function, x, compress, y)
    sparsity.validate_coloring(coloring)
    return coloring
