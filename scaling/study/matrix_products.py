"""Whether a function multiplies matrices, so that `precision` has an effect on it. Does not know devices or platforms."""

from typing import Any

import jax

from scaling.core import shape
from scaling.core.case import Case
from scaling.core.workload import Workload
from scaling.options.program.jaxpr_flops import ELEMENTWISE, subjaxprs


def multiplies(case: Case, workload: Workload) -> bool:
    """Return false only where neither the function of a case nor its reduction can multiply matrices."""
    if workload.reduction.products or case.ad_mode.by_workload:
        return True  # or written by hand, in a function that is not traced here
    at_once = case.batch == "whole" and workload.whole is not None
    function = workload.whole if at_once else workload.function
    points, shared = shape.input_structs(case, workload)
    named = {**points, **shared} if at_once else shape.point_structs(case, workload)
    assert function is not None
    return _multiplies(jax.make_jaxpr(lambda named: function(**named))(named).jaxpr)


def _multiplies(jaxpr: Any) -> bool:
    """Return whether any operation of a jaxpr may multiply matrices: all that is not known to be something else."""
    for equation in jaxpr.eqns:
        name, inner = equation.primitive.name, subjaxprs(equation)
        if name not in ELEMENTWISE and (not inner or name.startswith("custom")):
            return True
        if any(_multiplies(getattr(each, "jaxpr", each)) for each in inner):
            return True
    return False
