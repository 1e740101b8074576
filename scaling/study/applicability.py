"""Say why a case cannot run by its nature, so that it is skipped. Bad input is refused elsewhere."""

from scaling.core import extensions
from scaling.core.case import AUTO, JAX, SECOND, Case
from scaling.core.modes import HESSIAN
from scaling.core.shape import DerivativeShape
from scaling.core.workload import Workload


def why_inapplicable(case: Case, workload: Workload, sizes: DerivativeShape) -> tuple[str, str] | None:
    """Return why a case cannot run, as (reason, text), or None if it can."""
    ours = case.engine == JAX
    for words in (
        _mode(case, workload, sizes),
        _reduction(case, workload, sizes),
        _colors(case, workload),
        _mixed(case, workload),
    ):
        if words:
            return "not_defined", words
    if ours and case.ad_mode.by_workload and case.mode not in workload.whole_modes:
        return "not_offered", f"{case.workload} offers no {case.mode}" + (
            f" by {case.wrt}" if case.wrt else ""
        ) + _of(case)
    if case.batch == "whole" and (found := _batch(case, workload, sizes)):
        return found
    if not ours:
        why: tuple[str, str] | None = extensions.load("peers").why_not_offered(case, workload, sizes)
        return why
    if (
        case.seeds == "colored"
        and case.ad_mode.has_seeds
        and (words := extensions.load("sparse").why_unavailable())
    ):
        return "not_installed", words
    return _layout(case, workload, sizes)


def _of(case: Case) -> str:
    return f" of reduce={case.reduce}" if case.reduce else " of nonzeros" if case.seeds == "colored" else ""


def _mode(case: Case, workload: Workload, sizes: DerivativeShape) -> str | None:
    """Return why the mode cannot compute the target, or None."""
    if case.target in SECOND:
        if sizes.values != 1:
            return f"a Hessian is that of one number, and {case.workload} has {sizes.values} outputs"
        if case.ad_mode.has_seeds and case.ad_mode.order != 2:
            return (
                f"{case.mode} differentiates once; the modes of target={case.target} are {', '.join(HESSIAN)}"
            )
        if case.batch == "whole" or case.split == "data":
            what = (
                "split=data differentiates a sum over points"
                if case.split == "data"
                else "batch=vmap is that"
            )
            return f"target={case.target} is taken point by point; {what}"
    elif case.ad_mode.order == 2:
        return f"{case.mode} differentiates twice; its targets are {' and '.join(SECOND)}"
    added = workload.reduction.sums_points or (workload.reduction.sums_outputs and case.batch == "vmap")
    alone = workload.reduce is None and sizes.outputs == 1 and case.batch == "vmap"
    if case.ad_mode.single_seed and not (added or sizes.summed or alone):
        return f"the derivative of {case.workload} asked for is not one of a sum over outputs"
    return None


def _reduction(case: Case, workload: Workload, sizes: DerivativeShape) -> str | None:
    """Return why the reduction is not defined for the case, or None."""
    reduction = workload.reduction
    if reduction.sums_points:
        own = [name for name in workload.names if name in workload.points]
        if not case.ad_mode.is_value and own:
            return f"a sum over points is differentiated by what these share, and each has its own {' and '.join(own)}"
        if case.ad_mode.by_workload and case.points % case.axes[0]:
            return f"{case.mode} adds up whole points, and {case.points} do not share out over {case.axes[0]} devices"
        if case.storage == "host":
            return "a sum over points is one Jacobian, which stays on the devices; block takes some of the points at a time"
        return None
    if case.batch == "whole" and not case.ad_mode.is_value:
        if reduction.products:
            return f"reduce={reduction.name} is taken point by point; batch=vmap is that"
        if sizes.summed and not reduction.linear_in_inputs:
            return f"batch=whole of {case.workload} is one number, of which reduce={reduction.name} has no meaning"
        if case.storage == "host":
            return "storage=host takes some points at a time; batch=vmap is that"
    return None


def _colors(case: Case, workload: Workload) -> str | None:
    """Return why the seeds cannot be coloured, or None."""
    if case.seeds != "colored" or case.ad_mode.is_value:
        return None
    if workload.reduce is not None:
        return f"seeds=colored gives the nonzeros of the whole Jacobian, not its reduce={workload.reduce}; reduce=whole is that"
    if case.batch == "whole":
        return "seeds=colored is taken point by point; batch=vmap is that"
    if case.ad_mode.single_seed or case.target == "hvp":
        return f"{case.target if case.target == 'hvp' else case.mode} takes one seed, which is not coloured"
    if not case.ad_mode.has_seeds and workload.pattern is None:
        return f"{case.workload} does not say which of its entries are not zero, which {case.mode} would give"
    return None


def _mixed(case: Case, workload: Workload) -> str | None:
    """Return why mode=mixed is not defined for the case, or None."""
    if not case.ad_mode.parts:
        return None
    if case.batch == "whole":
        return "mode=mixed is taken point by point; batch=vmap is that"
    if case.seeds == "colored":
        return None
    if workload.reduction.products:
        why = f"reduce={workload.reduction.name} multiplies columns by all inputs"
        return f"{why}, of which each half of mode={case.mode} has some; jacfwd and jacrev have all"
    if len(workload.names) < 2:
        words = f"mode=mixed takes some inputs forward and others in reverse, and {case.wrt} is one"
        return f"{words}; seeds=colored mixes within one"
    return None


def _batch(case: Case, workload: Workload, sizes: DerivativeShape) -> tuple[str, str] | None:
    """Return why the batch cannot be differentiated at once, or None."""
    if workload.whole is None:
        return "not_offered", f"{case.workload} does not offer batch=whole"
    per_point = [name in workload.points for name in workload.names]
    if case.ad_mode.has_seeds and not (
        all(per_point) if sizes.summed and not workload.reduction.sums_points else not any(per_point)
    ):
        return "not_offered", f"{case.workload} with batch=whole is not differentiated by {case.wrt}"
    if case.engine == JAX and case.axes[0] > 1 and not workload.reduction.sums_points:
        return "not_defined", "a batch taken at once is not cut over points; split=seeds cuts its seeds"
    return None


def _layout(case: Case, workload: Workload, sizes: DerivativeShape) -> tuple[str, str] | None:
    """Return why the case cannot be laid out over its devices, or computed in blocks, or None."""
    if not case.ad_mode.has_seeds and case.axes[1] > 1:
        return "not_defined", f"{case.mode} has no seeds to cut; split=points cuts it"
    if case.api == "jit" and case.devices > 1:
        return "not_defined", "api=jit is the plain program on one device"
    if not case.jit and case.api != "jit":
        return "not_defined", "jit=false runs with api=jit only"
    if not case.jit and (case.chunk == AUTO or case.storage == "host"):
        what = (
            "chunk=auto is found by compiling"
            if case.chunk == AUTO
            else "storage=host runs compiled programs"
        )
        return "not_defined", f"{what}, which jit=false does not do"
    if case.split == "seeds" and case.seeds == "identity":
        for part in sizes.parts:
            if part.seeds % case.devices:
                words = f"{part.seeds} seeds do not share out over {case.devices} devices"
                return "indivisible", f"{words}; split=both with mesh=1x{case.devices} fills them up"
    return None
