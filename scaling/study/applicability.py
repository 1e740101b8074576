"""Find out why a case cannot run, for example because its AD mode is not defined for its target.

The case is complete: all defaults are filled in. Other modules raise `Refusal` for invalid input.
"""

from scaling.core import load_option
from scaling.core.case import AUTO, JAX, LAPLACIAN, SECOND
from scaling.core.derivative import Derivative
from scaling.core.modes import HESSIAN, MODES

_Rule = tuple[str, bool, str]  # (reason, whether the case is skipped for this reason, explanation)
_UNDEFINED = "not_defined"


def why_inapplicable(derivative: Derivative) -> tuple[str, str] | None:
    """Return (reason, explanation) if a completed case cannot run, or None if it can run.

    The reason is "not_defined", "not_offered", "indivisible" or "not_installed".
    """
    rules, case = _list_rules(derivative), derivative.case
    if case.engine == JAX:
        needs_asdex = case.seeds == "colored" and case.ad_mode.has_seeds
        missing = load_option("coloring").why_unavailable() if needs_asdex else ""
        rules += [("not_installed", bool(missing), missing), *_list_layout_rules(derivative)]
    first = next(((reason, text) for reason, applies, text in rules if applies), None)
    if first is None and case.engine != JAX:
        first = load_option("peers").why_not_offered(derivative)
    return first


def _list_rules(derivative: Derivative) -> list[_Rule]:
    """Return the possible reasons to skip a case that concern its mode, target, reduction or seeds.

    Each is a tuple (reason, applies, explanation). The first one that applies is recorded.
    """
    case, workload = derivative.case, derivative.workload
    mode, reduction, second = case.ad_mode, workload.reduction, case.target in SECOND
    name, sums, whole = case.workload, reduction.sums_points, case.batch == "whole"
    by_point = f"target={case.target} is computed for each point"
    targets = (LAPLACIAN,) if mode.laplacian_only else SECOND
    modes = [*HESSIAN, *(m for m in MODES if MODES[m].laplacian_only and case.target == LAPLACIAN)]
    kind = "the Laplacian" if mode.laplacian_only else "second derivatives"
    is_sum = derivative.summed or sums or (reduction.sums_outputs and not whole)
    is_sum |= workload.reduce is None and derivative.outputs == 1 and not whole
    per_point = [each for each in workload.names if each in workload.points]
    separable = len(per_point) == (len(workload.names) if derivative.summed and not sums else 0)
    whole_jacobian = whole and not mode.is_value and not sums
    colored, mixed = case.seeds == "colored" and not mode.is_value, bool(mode.parts)
    one_seed = "hvp" if case.target == "hvp" else mode.name if mode.single_seed else ""
    asked, fix = f"reduce={workload.reduce}", "reduce=whole"
    if case.target == LAPLACIAN:
        asked, fix = f"target={LAPLACIAN}", "target=hessian"
    by_input = mixed and case.seeds != "colored"
    of = f" of reduce={case.reduce}" if case.reduce else " of nonzeros" if case.seeds == "colored" else ""
    by = f" by {case.wrt}" if case.wrt else ""
    return [
        (_UNDEFINED, second and derivative.values != 1,
         f"target={case.target} needs a function with one output; {name} has {derivative.values}"),
        (_UNDEFINED, second and mode.has_seeds and mode.order != 2,
         f"mode={case.mode} computes first derivatives; target={case.target} needs {', '.join(modes)}"),
        (_UNDEFINED, second and case.split == "data",
         f"{by_point}, and split=data differentiates a sum over points"),
        (_UNDEFINED, second and whole, f"{by_point}; use batch=vmap"),
        (_UNDEFINED, mode.order == 2 and case.target not in targets,
         f"mode={case.mode} computes {kind}; use target={' or '.join(targets)}"),
        (_UNDEFINED, mode.single_seed and not is_sum,
         f"mode={case.mode} differentiates a sum over outputs, which {name} does not ask for"),
        (_UNDEFINED, sums and not mode.is_value and bool(per_point),
         "reduce=points needs wrt= inputs that all points share, "
         f"and each point has its own {' and '.join(per_point)}"),
        (_UNDEFINED, sums and mode.by_workload and case.points % case.mesh_shape[0] != 0,
         f"mode={case.mode} sums over the points of each device, and {case.points} points do not divide "
         f"evenly over {case.mesh_shape[0]} devices"),
        (_UNDEFINED, sums and case.storage == "host",
         "the sum over points is one Jacobian, which stays on the devices; "
         "use block to compute some points at a time"),
        (_UNDEFINED, whole_jacobian and reduction.products,
         f"reduce={reduction.name} is computed for each point; use batch=vmap"),
        (_UNDEFINED, whole_jacobian and derivative.summed and not reduction.linear_in_inputs,
         f"{name} with batch=whole returns one number, for which reduce={reduction.name} is undefined"),
        (_UNDEFINED, whole_jacobian and case.storage == "host",
         "storage=host computes some points at a time; use batch=vmap"),
        (_UNDEFINED, colored and workload.reduce is not None,
         f"seeds=colored returns the nonzeros of the whole Jacobian, not {asked}; use {fix}"),
        (_UNDEFINED, colored and whole, "seeds=colored is computed for each point; use batch=vmap"),
        (_UNDEFINED, colored and bool(one_seed), f"{one_seed} has one seed, which needs no coloring"),
        (_UNDEFINED, colored and not mode.has_seeds and workload.pattern is None,
         f"{name} has no sparsity pattern, so that {case.mode} cannot return the nonzeros alone"),
        (_UNDEFINED, mixed and whole, "mode=mixed is computed for each point; use batch=vmap"),
        (_UNDEFINED, by_input and reduction.products,
         f"reduce={reduction.name} needs the columns of all inputs, "
         f"and each part of mode={case.mode} has some of them; use jacfwd or jacrev"),
        (_UNDEFINED, by_input and len(workload.names) < 2,
         "mode=mixed needs several inputs, some forward and some in reverse, "
         f"and wrt={case.wrt} is one; with seeds=colored it can mix modes within one input"),
        ("not_offered", case.engine == JAX and mode.by_workload and case.mode not in workload.whole_modes,
         f"{name} offers no {case.mode}{by}{of}"),
        ("not_offered", whole and workload.whole is None, f"{name} does not offer batch=whole"),
        ("not_offered", whole and mode.has_seeds and not separable,
         f"{name} with batch=whole cannot be differentiated by wrt={case.wrt}"),
        (_UNDEFINED, whole and case.engine == JAX and case.mesh_shape[0] > 1 and not sums,
         "batch=whole cannot be partitioned over points; use split=seeds"),
    ]  # fmt: skip


def _list_layout_rules(derivative: Derivative) -> list[_Rule]:
    """Return the rules on devices, JAX API and compilation. A case that violates one is skipped."""
    case = derivative.case
    eager, split_seeds = not case.jit, case.split == "seeds" and case.seeds == "identity"
    uneven = [part.seeds for part in derivative.parts if part.seeds % case.devices]
    uncompiled = "needs compiled programs, and jit=false compiles none"
    return [
        (_UNDEFINED, not case.ad_mode.has_seeds and case.mesh_shape[1] > 1,
         f"mode={case.mode} has no seeds to partition; use split=points"),
        (_UNDEFINED, case.api == "jit" and case.devices > 1, "api=jit runs on one device only"),
        (_UNDEFINED, eager and case.api != "jit", "jit=false runs with api=jit only"),
        (_UNDEFINED, eager and case.chunk == AUTO, f"chunk=auto {uncompiled}"),
        (_UNDEFINED, eager and case.storage == "host", f"storage=host {uncompiled}"),
        ("indivisible", split_seeds and bool(uneven),
         f"{sum(uneven[:1])} seeds do not divide evenly over {case.devices} devices; "
         f"split=both with mesh=1x{case.devices} pads them"),
    ]  # fmt: skip
