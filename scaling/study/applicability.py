"""Find why a valid case cannot run, by rules on its target, reduction, seeds, workload and layout.

The functions expect a completed case, in which all defaults are filled in. A case that cannot run is skipped,
with a reason. For an invalid case, other modules raise `Refusal`.
"""

from scaling.core import load_option
from scaling.core.case import AUTO, JAX, LAPLACIAN, SECOND
from scaling.core.derivative import Derivative
from scaling.core.modes import HESSIAN, MODES

# (reason, whether the case violates the rule, explanation). The first violated rule is recorded.
_Rule = tuple[str, bool, str]
_UNDEFINED = "not_defined"


def why_inapplicable(derivative: Derivative) -> tuple[str, str] | None:
    """Return (reason, explanation) if the case of `derivative` cannot run, or None if it can run.

    The reason is "not_defined", "not_offered", "indivisible" or "not_installed" (see `core.record.SKIPPED`).
    """
    case = derivative.case
    rules = [
        *_list_target_rules(derivative), *_list_reduction_rules(derivative),
        *_list_seed_rules(derivative), *_list_workload_rules(derivative),
    ]  # fmt: skip
    if case.engine == JAX:
        needs_asdex = case.seeds == "colored" and case.ad_mode.has_seeds
        missing = load_option("coloring").why_unavailable() if needs_asdex else ""
        rules += [("not_installed", bool(missing), missing), *_list_layout_rules(derivative)]
    first = next(((reason, text) for reason, applies, text in rules if applies), None)
    if first is None and case.engine != JAX:
        first = load_option("peers").why_not_offered(derivative)
    return first


def _list_target_rules(derivative: Derivative) -> list[_Rule]:
    """Return (reason, is_violated, explanation) for each rule on the target of a case, such as "hessian"."""
    case, workload, mode = derivative.case, derivative.workload, derivative.case.ad_mode
    second_order, whole_batch, name = case.target in SECOND, case.batch == "whole", case.workload
    per_point = f"target={case.target} is computed for each point"
    valid_targets = (LAPLACIAN,) if mode.laplacian_only else SECOND
    second_order_modes = [name for name, mode in MODES.items() if mode.order == 2]
    valid_modes = second_order_modes if case.target == LAPLACIAN else HESSIAN
    mode_computes = "the Laplacian" if mode.laplacian_only else "second derivatives"
    reduction = workload.reduction
    is_sum = derivative.summed or reduction.sums_points or (reduction.sums_outputs and not whole_batch)
    is_sum |= workload.reduce is None and derivative.outputs == 1 and not whole_batch
    return [
        (_UNDEFINED, second_order and derivative.values != 1,
         f"target={case.target} needs a function with one output; {name} has {derivative.values}"),
        (_UNDEFINED, second_order and mode.has_seeds and mode.order != 2,
         f"mode={case.mode} computes first derivatives; target={case.target} needs {', '.join(valid_modes)}"),
        (_UNDEFINED, second_order and case.split == "data",
         f"{per_point}, and split=data differentiates a sum over points"),
        (_UNDEFINED, second_order and whole_batch, f"{per_point}; use batch=vmap"),
        (_UNDEFINED, mode.order == 2 and case.target not in valid_targets,
         f"mode={case.mode} computes {mode_computes}; use target={' or '.join(valid_targets)}"),
        (_UNDEFINED, mode.single_seed and not is_sum,
         f"mode={case.mode} differentiates a sum over outputs, which {name} does not ask for"),
    ]  # fmt: skip


def _list_reduction_rules(derivative: Derivative) -> list[_Rule]:
    """Return (reason, is_violated, explanation) for each rule on reduce=points and batch=whole.

    With reduce=points, the result is summed over the points. With batch=whole, the case differentiates one
    function of all points (`Workload.whole`).
    """
    case, workload, mode = derivative.case, derivative.workload, derivative.case.ad_mode
    reduction, on_host = workload.reduction, case.storage == "host"
    sums_points, point_devices = reduction.sums_points, case.mesh_shape[0]
    point_inputs = _list_point_inputs(derivative)
    whole_jacobian = case.batch == "whole" and not mode.is_value and not sums_points
    return [
        (_UNDEFINED, sums_points and not mode.is_value and bool(point_inputs),
         "reduce=points needs wrt= inputs that all points share, "
         f"and each point has its own {' and '.join(point_inputs)}"),
        (_UNDEFINED, sums_points and mode.by_workload and case.points % point_devices != 0,
         f"mode={case.mode} sums over the points of each device, and {case.points} points do not divide "
         f"evenly over {point_devices} devices"),
        (_UNDEFINED, sums_points and on_host,
         "the sum over points is one Jacobian, which stays on the devices; "
         "use block to compute some points at a time"),
        (_UNDEFINED, whole_jacobian and reduction.products,
         f"reduce={reduction.name} is computed for each point; use batch=vmap"),
        (_UNDEFINED, whole_jacobian and derivative.summed and not reduction.linear_in_inputs,
         f"{case.workload} with batch=whole returns one number, "
         f"for which reduce={reduction.name} is undefined"),
        (_UNDEFINED, whole_jacobian and on_host,
         "storage=host computes some points at a time; use batch=vmap"),
    ]  # fmt: skip


def _list_point_inputs(derivative: Derivative) -> list[str]:
    workload = derivative.workload
    return [name for name in workload.names if name in workload.points]


def _list_seed_rules(derivative: Derivative) -> list[_Rule]:
    """Return (reason, is_violated, explanation) for each rule on seeds=colored and mode=mixed."""
    case, workload, mode = derivative.case, derivative.workload, derivative.case.ad_mode
    whole_batch, colored = case.batch == "whole", case.seeds == "colored" and not mode.is_value
    one_seed = "hvp" if case.target == "hvp" else mode.name if mode.single_seed else ""
    requested, fix = f"reduce={workload.reduce}", "reduce=whole"
    if case.target == LAPLACIAN:
        requested, fix = f"target={LAPLACIAN}", "target=hessian"
    is_mixed, mixes_inputs = bool(mode.parts), bool(mode.parts) and case.seeds != "colored"
    return [
        (_UNDEFINED, colored and workload.reduce is not None,
         f"seeds=colored returns the nonzeros of the whole Jacobian, not {requested}; use {fix}"),
        (_UNDEFINED, colored and whole_batch, "seeds=colored is computed for each point; use batch=vmap"),
        (_UNDEFINED, colored and bool(one_seed), f"{one_seed} has one seed, which needs no coloring"),
        (_UNDEFINED, colored and not mode.has_seeds and workload.pattern is None,
         f"{case.workload} has no sparsity pattern, so that {case.mode} cannot return the nonzeros alone"),
        (_UNDEFINED, is_mixed and whole_batch, "mode=mixed is computed for each point; use batch=vmap"),
        (_UNDEFINED, mixes_inputs and workload.reduction.products,
         f"reduce={workload.reduction.name} needs the columns of all inputs, "
         f"and each part of mode={case.mode} has some of them; use jacfwd or jacrev"),
        (_UNDEFINED, mixes_inputs and len(workload.names) < 2,
         "mode=mixed needs several inputs that are not empty, some forward and some in reverse, and "
         f"wrt={case.wrt} has {len(workload.names)}; with seeds=colored it can mix modes within one input"),
    ]  # fmt: skip


def _list_workload_rules(derivative: Derivative) -> list[_Rule]:
    """Return (reason, is_violated, explanation) for each rule on what the workload of a case supports.

    The rules concern the fields `mode` and `batch`. With batch=whole, the case differentiates one function of
    all points (`Workload.whole`).
    """
    case, workload, mode = derivative.case, derivative.workload, derivative.case.ad_mode
    name, whole_batch, sums_points = case.workload, case.batch == "whole", workload.reduction.sums_points
    suffix = f" of reduce={case.reduce}" if case.reduce else " of nonzeros" if case.seeds == "colored" else ""
    by_inputs = f" by {case.wrt}" if case.wrt else ""
    needed_inputs = len(workload.names) if derivative.summed and not sums_points else 0
    separable = len(_list_point_inputs(derivative)) == needed_inputs
    return [
        ("not_offered", case.engine == JAX and mode.by_workload and case.mode not in workload.whole_modes,
         f"{name} offers no {case.mode}{by_inputs}{suffix}"),
        ("not_offered", whole_batch and workload.whole is None, f"{name} does not offer batch=whole"),
        ("not_offered", whole_batch and mode.has_seeds and not separable,
         f"{name} with batch=whole cannot be differentiated by wrt={case.wrt}; use batch=vmap"),
        (_UNDEFINED, whole_batch and case.engine == JAX and case.mesh_shape[0] > 1 and not sums_points,
         "batch=whole cannot be partitioned over points; use split=seeds"),
    ]  # fmt: skip


def _list_layout_rules(derivative: Derivative) -> list[_Rule]:
    """Return (reason, is_violated, explanation) for each rule on the device mesh, `api` and jit=false."""
    case = derivative.case
    eager, split_seeds = not case.jit, case.split == "seeds" and case.seeds == "identity"
    indivisible_seeds = [part.seeds for part in derivative.parts if part.seeds % case.devices]
    uncompiled = "needs compiled programs, and jit=false compiles none"
    return [
        (_UNDEFINED, not case.ad_mode.has_seeds and case.mesh_shape[1] > 1,
         f"mode={case.mode} has no seeds to partition; use split=points"),
        (_UNDEFINED, case.api == "jit" and case.devices > 1, "api=jit runs on one device only"),
        (_UNDEFINED, eager and case.api != "jit", "jit=false runs with api=jit only"),
        (_UNDEFINED, eager and case.chunk == AUTO, f"chunk=auto {uncompiled}"),
        (_UNDEFINED, eager and case.storage == "host", f"storage=host {uncompiled}"),
        ("indivisible", split_seeds and bool(indivisible_seeds),
         f"{sum(indivisible_seeds[:1])} seeds do not divide evenly over {case.devices} devices; "
         f"split=both with mesh=1x{case.devices} pads them"),
    ]  # fmt: skip
