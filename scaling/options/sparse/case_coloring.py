"""What seeds=colored needs: the colouring of a Jacobian, and where its entries are read and gathered."""

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
from scaling.options.sparse.gather import gather_entries, gather_indices, read_entries

__all__ = ["detect_coloring", "gather_entries", "gather_indices", "read_entries", "why_unavailable"]


def why_unavailable() -> str | None:
    """Return why no pattern can be detected, or None."""
    installed = importlib.util.find_spec("asdex") is not None
    return None if installed else "asdex is not installed; pip install 'ad-scaling[sparse]'"


def detect_coloring(case: Case, workload: Workload) -> Coloring:
    """Return the colouring of the Jacobian, or of the Hessian, of one point."""
    mode = case.ad_mode
    one = point_structs(case, workload)
    fixed = {name: jnp.ones(x.shape, x.dtype) for name, x in one.items() if name not in workload.names}

    def function(*x: Any) -> Any:
        return workload.function(**fixed, **dict(zip(workload.names, x, strict=True)))

    def gradient(*x: Any) -> Any:
        return ravel(jax.grad(lambda *z: jnp.sum(function(*z)), argnums=tuple(range(len(x))))(*x))

    second_order = mode.order == 2
    problem = (case.workload, case.target, case.variant, case.formulation, *case.sizes.items(), case.wrt)
    key = (*problem, case.dtype, second_order)
    compress = {BOTH: "both", TANGENT: "columns"}.get(mode.seed or "", "rows")
    structs = tuple(one[name] for name in workload.names)
    found = sparsity.find_coloring(key, gradient if second_order else function, structs, compress)
    sparsity.validate_coloring(found)
    return found
