"""Decide which cases are skipped because their combination of options is undefined or not offered.

Every rule gives the reason that is recorded for a skipped case, such as `not_defined`, `not_offered`,
`indivisible` or `not_installed`. Invalid input raises `Refusal` in other modules.
"""

from scaling.core import option_modules
from scaling.core.case import AUTO, JAX, LAPLACIAN, SECOND, Case
from scaling.core.modes import HESSIAN, MODES
from scaling.core.shape import DerivativeShape
from scaling.core.workload import Workload

_Rule = tuple[str, bool, str]  # (reason, whether the rule applies, text)
_UNDEFINED = "not_defined"


def why_inapplicable(case: Case, workload: Workload, sizes: DerivativeShape) -> tuple[str, str] | None:
    """Return the (reason, text) to record for a case that cannot run, or None if the case can run.

    The reason is a code such as "not_defined", and the text explains it.

    Args:
        case: The case (one configuration to run), with its defaults filled in by completion.py.
        workload: The workload of the case, which contains the function to differentiate.
        sizes: The numbers of outputs, inputs and seeds of the derivative.
    """
    rules = [
        *_mode_rules(case, workload, sizes), *_reduction_rules(case, workload, sizes),
        *_coloring_rules(case, workload), *_mixed_rules(case, workload), *_offer_rules(case, workload, sizes),
    ]  # fmt: skip
    if case.engine == JAX:
        needs_asdex = case.seeds == "colored" and case.ad_mode.has_seeds
        missing = option_modules.load("sparse").why_unavailable() if needs_asdex else ""
        rules += [("not_installed", bool(missing), missing), *_layout_rules(case, sizes)]
    found = next(((reason, text) for reason, applies, text in rules if applies), None)
    if found is None and case.engine != JAX:
        found = option_modules.load("peers").why_not_offered(case, workload, sizes)
    return found


def _mode_rules(case: Case, workload: Workload, sizes: DerivativeShape) -> list[_Rule]:
    mode, second, reduction = case.ad_mode, case.target in SECOND, workload.reduction
    targets = (LAPLACIAN,) if mode.laplacian_only else SECOND
    modes = [*HESSIAN, *(m for m in MODES if MODES[m].laplacian_only and case.target == LAPLACIAN)]
    kind = "the Laplacian" if mode.laplacian_only else "second derivatives"
    by_point = f"target={case.target} is computed for each point"
    is_sum = sizes.summed or reduction.sums_points or (reduction.sums_outputs and case.batch == "vmap")
    is_sum |= workload.reduce is None and sizes.outputs == 1 and case.batch == "vmap"
    return [
        (_UNDEFINED, second and sizes.values != 1,
         f"target={case.target} needs a function with one output; {case.workload} has {sizes.values}"),
        (_UNDEFINED, second and mode.has_seeds and mode.order != 2,
         f"mode={case.mode} computes first derivatives; target={case.target} needs {', '.join(modes)}"),
        (_UNDEFINED, second and case.split == "data",
         f"{by_point}, and split=data differentiates a sum over points"),
        (_UNDEFINED, second and case.batch == "whole", f"{by_point}; use batch=vmap"),
        (_UNDEFINED, mode.order == 2 and case.target not in targets,
         f"mode={case.mode} computes {kind}; use target={' or '.join(targets)}"),
        (_UNDEFINED, mode.single_seed and not is_sum,
         f"mode={case.mode} differentiates a sum over outputs, which {case.workload} does not ask for"),
    ]  # fmt: skip


def _reduction_rules(case: Case, workload: Workload, sizes: DerivativeShape) -> list[_Rule]:
    mode, reduction, on_host = case.ad_mode, workload.reduction, case.storage == "host"
    sums = reduction.sums_points
    per_point = [name for name in workload.names if name in workload.points]
    whole = case.batch == "whole" and not mode.is_value and not sums
    return [
        (_UNDEFINED, sums and not mode.is_value and bool(per_point),
         "reduce=points needs wrt= inputs that all points share, "
         f"and each point has its own {' and '.join(per_point)}"),
        (_UNDEFINED, sums and mode.by_workload and case.points % case.axes[0] != 0,
         f"mode={case.mode} sums over the points of each device, and {case.points} points do not divide "
         f"evenly over {case.axes[0]} devices"),
        (_UNDEFINED, sums and on_host,
         "the sum over points is one Jacobian, which stays on the devices; "
         "use block to compute some points at a time"),
        (_UNDEFINED, whole and reduction.products,
         f"reduce={reduction.name} is computed for each point; use batch=vmap"),
        (_UNDEFINED, whole and sizes.summed and not reduction.linear_in_inputs,
         f"{case.workload} with batch=whole returns one number, "
         f"for which reduce={reduction.name} is undefined"),
        (_UNDEFINED, whole and on_host, "storage=host computes some points at a time; use batch=vmap"),
    ]  # fmt: skip


def _coloring_rules(case: Case, workload: Workload) -> list[_Rule]:
    mode, colored = case.ad_mode, case.seeds == "colored" and not case.ad_mode.is_value
    one_seed = "hvp" if case.target == "hvp" else mode.name if mode.single_seed else ""
    asked, fix = f"reduce={workload.reduce}", "reduce=whole"
    if case.target == LAPLACIAN:
        asked, fix = f"target={LAPLACIAN}", "target=hessian"
    return [
        (_UNDEFINED, colored and workload.reduce is not None,
         f"seeds=colored returns the nonzeros of the whole Jacobian, not {asked}; use {fix}"),
        (_UNDEFINED, colored and case.batch == "whole",
         "seeds=colored is computed for each point; use batch=vmap"),
        (_UNDEFINED, colored and bool(one_seed), f"{one_seed} has one seed, which needs no coloring"),
        (_UNDEFINED, colored and not mode.has_seeds and workload.pattern is None,
         f"{case.workload} has no sparsity pattern, so that {case.mode} cannot return the nonzeros alone"),
    ]  # fmt: skip


def _mixed_rules(case: Case, workload: Workload) -> list[_Rule]:
    mixed, reduction = bool(case.ad_mode.parts), workload.reduction
    by_input = mixed and case.seeds != "colored"
    return [
        (_UNDEFINED, mixed and case.batch == "whole",
         "mode=mixed is computed for each point; use batch=vmap"),
        (_UNDEFINED, by_input and reduction.products,
         f"reduce={reduction.name} needs the columns of all inputs, "
         f"and each part of mode={case.mode} has some of them; use jacfwd or jacrev"),
        (_UNDEFINED, by_input and len(workload.names) < 2,
         "mode=mixed needs several inputs, some forward and some in reverse, "
         f"and wrt={case.wrt} is one; with seeds=colored it can mix modes within one input"),
    ]  # fmt: skip


def _offer_rules(case: Case, workload: Workload, sizes: DerivativeShape) -> list[_Rule]:
    ours, whole, sums = case.engine == JAX, case.batch == "whole", workload.reduction.sums_points
    of = f" of reduce={case.reduce}" if case.reduce else " of nonzeros" if case.seeds == "colored" else ""
    by = f" by {case.wrt}" if case.wrt else ""
    per_point = [name in workload.points for name in workload.names]
    separable = all(per_point) if sizes.summed and not sums else not any(per_point)
    return [
        ("not_offered", ours and case.ad_mode.by_workload and case.mode not in workload.whole_modes,
         f"{case.workload} offers no {case.mode}{by}{of}"),
        ("not_offered", whole and workload.whole is None, f"{case.workload} does not offer batch=whole"),
        ("not_offered", whole and case.ad_mode.has_seeds and not separable,
         f"{case.workload} with batch=whole cannot be differentiated by wrt={case.wrt}"),
        (_UNDEFINED, whole and ours and case.axes[0] > 1 and not sums,
         "batch=whole cannot be partitioned over points; use split=seeds"),
    ]  # fmt: skip


def _layout_rules(case: Case, sizes: DerivativeShape) -> list[_Rule]:
    eager, split_seeds = not case.jit, case.split == "seeds" and case.seeds == "identity"
    uneven = [part.seeds for part in sizes.parts if part.seeds % case.devices]
    return [
        (_UNDEFINED, not case.ad_mode.has_seeds and case.axes[1] > 1,
         f"mode={case.mode} has no seeds to partition; use split=points"),
        (_UNDEFINED, case.api == "jit" and case.devices > 1, "api=jit runs on one device only"),
        (_UNDEFINED, eager and case.api != "jit", "jit=false runs with api=jit only"),
        (_UNDEFINED, eager and case.chunk == AUTO,
         "chunk=auto needs compiled programs, and jit=false compiles none"),
        (_UNDEFINED, eager and case.storage == "host",
         "storage=host needs compiled programs, and jit=false compiles none"),
        ("indivisible", split_seeds and bool(uneven),
         f"{sum(uneven[:1])} seeds do not divide evenly over {case.devices} devices; "
         f"split=both with mesh=1x{case.devices} pads them"),
    ]  # fmt: skip
