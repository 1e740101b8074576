"""Fill in the defaults of a case, find fields and blocks without effect, and say why a case cannot run.

Cases that describe the same computation are equal after `complete`. A completed case that cannot
run is skipped, with a reason (`why_inapplicable`). For an invalid case, the functions raise `Refusal`.
"""

import dataclasses
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any, NamedTuple

from scaling.core import load_option, workload
from scaling.core.case import (
    AUTO,
    CHOSEN_FIELDS,
    DTYPES,
    JAX,
    LAPLACIAN,
    SECOND,
    Case,
    Refusal,
    check_names,
    default_values,
)
from scaling.core.derivative import Derivative, ceil_div
from scaling.core.modes import HESSIAN, MODES
from scaling.peers import interface as peers
from scaling.study.grid import list_meshes
from scaling.study.user_workload import (
    check_direction,
    check_workload,
    declared_names,
    declared_sizes,
    find_module,
)

_EffectRule = tuple[str, bool, str, tuple[str, ...]]  # field, whether it has no effect, reason, causes
# Reason and explanation of the record of a skipped case, and between them whether the rule skips the case.
_SkipRule = tuple[str, bool, str]
_UNDEFINED = "not_defined"


class Unused(NamedTuple):
    """Why a field has no effect."""

    reason: str  # text after "mesh=2x4 has no effect", such as "without split=both"
    causes: tuple[str, ...]  # names of the fields that make the field ineffective, such as "split"


def complete(case: Case, make_workload: Callable[[Case], Any] = workload.make_from_module) -> Case:
    """Return a copy of a case in which defaults are filled in and fields without an effect are reset.

    `make_workload` returns the `Workload` of a case. Raise `Refusal` if a field has an invalid value.
    """
    case = _resolve_names(case)
    case = dataclasses.replace(case, **_reset_values(case))
    if case.engine != JAX:
        case = dataclasses.replace(case, **peers.complete_case(case))
    user_workload = check_workload(case.workload, make_workload(case))
    built = workload.build(case, lambda _: user_workload)
    if case.target == "hvp" or built.reduction.along_point:
        check_direction(case.workload, built)
    reduce = None if case.reduce == (user_workload.reduce or "whole") else case.reduce
    return dataclasses.replace(case, reduce=reduce, wrt=None if case.ad_mode.is_value else built.wrt)


def unused_fields(case: Case) -> dict[str, Unused]:
    """Return the fields that a case sets although they have no effect, with the reasons."""
    resolved = _resolve_names(case)
    unused = fields_without_effect(resolved)
    completed = default_values(unused) | _reset_values(resolved)
    peer_fields = {} if case.engine == JAX else peers.complete_case(resolved) | {"cache": None}
    target, one_point = f"with target={resolved.target}", resolved.points != case.points
    # `_resolve_names` resets a formulation already, so that `case` is compared, not `resolved`.
    reset_fields = {name for name in completed if getattr(case, name) != completed[name]}
    by_engine = f"with engine={case.engine}, which ignores it", ("engine",)
    uncompiled = "with jit=false, which compiles nothing", ("jit",)
    compile_fields = [name for name in ("cache", "memory_limit") if getattr(case, name) is not None]
    # (field, whether it is unused, reason, names of the fields that cause it)
    return _first_reasons([
        *((name, getattr(resolved, name) != value, *by_engine) for name, value in peer_fields.items()),
        *((name, not case.jit, *uncompiled) for name in compile_fields),
        *((name, name in reset_fields, *why) for name, why in unused.items()),
        ("mode", resolved.mode != case.mode, f"{target}, which is the value of the function", ("target",)),
        ("target", case.target not in (None, resolved.target),
         f"with mode=value, which computes {resolved.target}", ("mode",)),
        # A size may be the number of points.
        ("points", one_point and case.points not in resolved.sizes.values(),
         f"{target}, which has one point", ("target",)),
    ])  # fmt: skip


def _first_reasons(rules: Sequence[_EffectRule]) -> dict[str, Unused]:
    """Return the fields without effect, each with the reason of the first rule that applies to it."""
    return {name: Unused(why, causes) for name, is_unused, why, causes in reversed(rules) if is_unused}


def _resolve_names(case: Case) -> Case:
    """Return a copy of a case with its target, mode, variant, formulation, sizes and points filled in."""
    module = find_module(case.workload)
    mode, target = _resolve_target(case, module)
    variant = _choose_name(case, "variant", declared_names(module, "VARIANTS"))
    formulations = declared_names(module, "FORMULATIONS", variant)
    formulation = _choose_name(case, "formulation", formulations)
    dtypes = declared_names(module, "DTYPES") or DTYPES
    check_names(f"dtype in DTYPES of {case.workload}", dtypes, DTYPES)
    check_names(f"dtype for {case.workload}", [case.dtype], dtypes)
    declared = declared_sizes(case.workload, module, case.sizes)
    sizes = {name: case.points if size == "points" else size for name, size in declared.items()}
    formulation = None if formulation in formulations[:1] else formulation  # the first is the default
    points = 1 if target in declared_names(module, "SINGLE") else case.points
    resolved = dataclasses.replace(
        case, target=target, mode=mode, variant=variant, formulation=formulation,
        sizes=sizes | dict(case.sizes), points=points,
    )  # fmt: skip
    return dataclasses.replace(resolved, formulation=None) if resolved.ad_mode.by_workload else resolved


def _resolve_target(case: Case, module: ModuleType) -> tuple[str, str]:
    """Return the AD mode and the target of a case. If the target is not a derivative, the mode is "value"."""
    value = getattr(module, "VALUE", "value")
    values = (value,) if isinstance(value, str) else declared_names(module, "VALUE")
    targets = declared_names(module, "TARGETS") if hasattr(module, "TARGETS") else ("jacobian",)
    if not targets or not values:
        raise Refusal(f"TARGETS or VALUE of {case.workload} is empty: name quantities, or omit it")
    mode = case.ad_mode
    second = LAPLACIAN if mode.laplacian_only else SECOND[0]
    target = case.target or (values[0] if mode.is_value else second if mode.order == 2 else targets[0])
    check_names(f"target of {case.workload}", [target], tuple(dict.fromkeys((*targets, *values, *SECOND))))
    if target in values:
        return "value", target
    return case.mode, (values[0] if mode.is_value else target)


def _choose_name(case: Case, field: str, names: tuple[str, ...]) -> str | None:
    """Return the value of the case field `field`, such as "variant", or its default if it is not set.

    `names` are the valid values. The default is the first of them, or None if there are none. Raise `Refusal`
    if the value is not valid.
    """
    value = getattr(case, field) or (names[0] if names else None)
    check_names(f"{field} of {case.workload}", [value] if value else [], names)
    return value


def _reset_values(case: Case) -> dict[str, Any]:
    """Return the fields of a case that `complete` changes, as a dict that maps names to new values.

    Fields without an effect get their defaults, except `wrt`. With split=data, `reduce` becomes "points".
    With split=data and api=jit, `split` also becomes "points". storage=device becomes None unless chunk=auto.
    Raise `Refusal` if split=both has no valid `mesh`, except with api=jit.
    """
    needs_mesh = case.split == "both" and case.api != "jit"
    if needs_mesh and case.mesh not in (meshes := list_meshes(case.devices)):
        given_mesh = "no mesh" if case.mesh is None else f"mesh={case.mesh}"
        valid_meshes = f"choose from {', '.join(meshes)}, or mesh=all for each of them"
        raise Refusal(f"split=both with {given_mesh} on devices={case.devices}: {valid_meshes}")
    changed = default_values(set(fields_without_effect(case)) - {"wrt"})
    if case.split == "data":
        changed["reduce"] = "points"
        if case.api == "jit":  # a single device holds all points
            changed["split"] = "points"
    if case.storage == "device" and case.chunk != AUTO:
        changed["storage"] = None
    return changed


def fields_without_effect(case: Case) -> dict[str, Unused]:
    """Return all fields that have no effect in a case, whether it sets them or not, with the reasons."""
    mode, with_jit = case.ad_mode, case.api == "jit"
    seedless, handwritten = not mode.has_seeds, mode.by_workload
    with_mode, unchunked = f"with mode={mode.name}", seedless or mode.single_seed or case.target == "hvp"
    sums_points = case.split == "data" or (case.reduce == "points" and case.target not in SECOND)
    single_block = case.batch == "whole" and not handwritten and not sums_points
    value_only, one_device = mode.is_value and case.reduce != "points", case.devices == 1 or with_jit
    one_seed = f"{'with target=hvp' if case.target == 'hvp' else with_mode}, which uses one seed"
    mode_and_target = ("mode", "target")
    by_auto = case.mode == AUTO, "with mode=auto, which chooses it", ("mode",)
    rules = [
        *((name, *by_auto) for name in CHOSEN_FIELDS[1:]),
        ("mesh", case.split != "both", "without split=both", ("split",)),
        ("mesh", with_jit, "with api=jit, which runs on one device", ("api",)),
        ("split", with_jit and case.split != "data", "with api=jit, which runs on one device", ("api",)),
        ("reduce", case.split == "data", "with split=data, which sums over the points", ("split",)),
        ("reduce", case.target in SECOND, f"with target={case.target}", ("target", "mode")),
        ("reduce", value_only, "with mode=value, which has no Jacobian", mode_and_target),
        ("batch", handwritten, with_mode, ("mode",)),
        ("chunk", seedless, f"{with_mode}, which has no seeds", mode_and_target),
        ("chunk", unchunked and case.chunk != AUTO, one_seed, mode_and_target),
        ("block", seedless, with_mode, mode_and_target),
        ("block", case.chunk == AUTO, "with chunk=auto, which chooses the blocks", ("chunk",)),
        ("block", single_block, "with batch=whole, which computes all points at once", ("batch",)),
        ("seeds", mode.is_value, "with mode=value, which has no seeds", mode_and_target),
        ("storage", seedless, with_mode, mode_and_target),
        ("remat", not mode.uses_reverse, f"{with_mode}, which has no reverse mode", ("mode",)),
        ("forward", not mode.parts, f"{with_mode}; it is an option of mode=mixed", ("mode",)),
        ("forward", case.seeds != "identity", f"with seeds={case.seeds}", ("seeds",)),
        ("overlap", case.split != "data", "without split=data", ("split",)),
        ("overlap", one_device, "on one device; it needs devices=2 or more", ("devices", "api")),
        ("overlap", seedless, with_mode, ("mode",)),
        ("formulation", handwritten, f"{with_mode}, which is written by hand", ("mode",)),
        ("wrt", mode.is_value, "with mode=value, which has no derivative", mode_and_target),
    ]
    return _first_reasons(rules)


def without_trivial_blocks(derivative: Derivative) -> Derivative:
    """Return a copy of a derivative in which `chunk` and `block` are None if they have no effect.

    `chunk` (seeds at a time) has no effect if it holds all seeds of a device. `block` (points at a time) has
    no effect if it holds all points of a device, except with storage=host.
    """
    case, (point_devices, seed_devices) = derivative.case, derivative.case.mesh_shape
    points = ceil_div(case.points, point_devices)
    seeds = max((ceil_div(part.seeds, seed_devices) for part in derivative.parts), default=None)
    # A chunk or block of all seeds or points does not change the compiled program.
    if isinstance(case.chunk, int) and seeds is not None and case.chunk >= seeds:
        case = dataclasses.replace(case, chunk=None)
    if case.block is not None and case.block >= points and case.storage != "host":
        case = dataclasses.replace(case, block=None)
    return dataclasses.replace(derivative, case=case)


def why_inapplicable(derivative: Derivative) -> tuple[str, str] | None:
    """Return the reason and an explanation if the case of `derivative` cannot run, or None if it can run.

    The reason is "not_defined", "not_offered", "indivisible" or "not_installed" (see `core.record.SKIPPED`).
    """
    case = derivative.case
    rules = [*_list_target_rules(derivative), *_list_seed_rules(derivative), *_list_batch_rules(derivative)]
    if case.engine == JAX:
        needs_asdex = case.seeds == "colored" and case.ad_mode.has_seeds
        missing = load_option("coloring").why_unavailable() if needs_asdex else ""
        rules += [("not_installed", bool(missing), missing), *_list_layout_rules(derivative)]
    first = next(((reason, text) for reason, applies, text in rules if applies), None)
    if first is None and case.engine != JAX:
        first = load_option("peers").why_not_offered(derivative)
    return first


def _list_target_rules(derivative: Derivative) -> list[_SkipRule]:
    """Return the rules that skip cases because of their target, such as "hessian"."""
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


def _list_seed_rules(derivative: Derivative) -> list[_SkipRule]:
    """Return the rules that skip cases with seeds=colored or mode=mixed."""
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


def _list_batch_rules(derivative: Derivative) -> list[_SkipRule]:
    """Return the rules that skip cases because of reduce=points, batch=whole, or their mode."""
    case, workload, mode = derivative.case, derivative.workload, derivative.case.ad_mode
    name, reduction, sums_points = case.workload, workload.reduction, workload.reduction.sums_points
    whole_batch, on_host, point_devices = case.batch == "whole", case.storage == "host", case.mesh_shape[0]
    whole_jacobian = whole_batch and not mode.is_value and not sums_points
    point_inputs = [name for name in workload.names if name in workload.points]
    needed_inputs = len(workload.names) if derivative.summed and not sums_points else 0
    suffix = f" of reduce={case.reduce}" if case.reduce else " of nonzeros" if case.seeds == "colored" else ""
    by_inputs = f" by {case.wrt}" if case.wrt else ""
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
         f"{name} with batch=whole returns one number, for which reduce={reduction.name} is undefined"),
        (_UNDEFINED, whole_jacobian and on_host,
         "storage=host computes some points at a time; use batch=vmap"),
        ("not_offered", case.engine == JAX and mode.by_workload and case.mode not in workload.whole_modes,
         f"{name} offers no {case.mode}{by_inputs}{suffix}"),
        ("not_offered", whole_batch and workload.whole is None, f"{name} does not offer batch=whole"),
        ("not_offered", whole_batch and mode.has_seeds and len(point_inputs) != needed_inputs,
         f"{name} with batch=whole cannot be differentiated by wrt={case.wrt}; use batch=vmap"),
        (_UNDEFINED, whole_batch and case.engine == JAX and point_devices > 1 and not sums_points,
         "batch=whole cannot be partitioned over points; use split=seeds"),
    ]  # fmt: skip


def _list_layout_rules(derivative: Derivative) -> list[_SkipRule]:
    """Return the rules that skip cases because of their device mesh, their `api` or jit=false."""
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
