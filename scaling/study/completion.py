"""Fill in the defaults that a case takes from its workload, and reset the fields that have no effect.

A completed case has the target, the variant, the sizes and the inputs that its workload defines. A field that
has no effect with the mode, target or layout of the case has its default value. applicability.py decides
whether a completed case can run.
"""

import dataclasses
from collections.abc import Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Any

from scaling.core import workload
from scaling.core.case import (
    AUTO,
    CHOSEN_FIELDS,
    DTYPES,
    JAX,
    LAPLACIAN,
    SECOND,
    Case,
    Refusal,
    defaults,
    unknown_name,
)
from scaling.peers import interface as peers
from scaling.study.grid import UnusedField, list_meshes
from scaling.study.user_workload import check_workload, find_module

if TYPE_CHECKING:
    from scaling.core.shape import DerivativeShape


def complete(case: Case, make: workload.MakeWorkload = workload.make_user_workload) -> Case:
    """Return a case of a study with its defaults filled in, and with the fields that have no effect reset.

    `make` returns the `Workload` of a case. Raise `Refusal` if a value in the case is invalid.
    """
    case = _resolve_names(case)
    case = dataclasses.replace(case, **_reset_values(case))
    if case.engine != JAX:
        case = dataclasses.replace(case, **peers.complete_case(case))
    built = workload.build(case, lambda case: check_workload(case.workload, make(case)))
    reduce = None if case.reduce == (built.default_reduce or "whole") else case.reduce
    return dataclasses.replace(case, reduce=reduce, wrt=None if case.ad_mode.is_value else built.wrt)


def unused_fields(case: Case) -> dict[str, UnusedField]:
    """Return the fields that are set in a case but have no effect, as a dict from field name to reason."""
    settled, found = _resolve_names(case), dict[str, UnusedField]()
    target = f"with target={settled.target}"
    if settled.mode != case.mode:
        found["mode"] = UnusedField(f"{target}, which is the value of the function", ("target",))
    if case.target not in (None, settled.target):
        found["target"] = UnusedField(f"with mode=value, which computes {settled.target}", ("mode",))
    if settled.points != case.points and case.points not in settled.sizes.values():
        found["points"] = UnusedField(f"{target}, which has one point", ("target",))
    unused = unused_in_layout(settled)
    kept = defaults(unused) | _reset_values(settled)
    found |= {name: why for name, why in unused.items() if getattr(settled, name) != kept[name]}
    if not case.jit:  # both fields remain part of the key of the case
        because = UnusedField("with jit=false, which compiles nothing", ("jit",))
        found |= {name: because for name in ("cache", "memory_limit") if getattr(case, name) is not None}
    if case.formulation is not None and settled.formulation is None and "formulation" in unused:
        found["formulation"] = unused["formulation"]
    if case.engine != JAX:
        because = UnusedField(f"with engine={case.engine}, which ignores it", ("engine",))
        fixed = peers.complete_case(settled) | {"cache": None}
        found |= {name: because for name, value in fixed.items() if getattr(settled, name) != value}
    return found


def _resolve_names(case: Case) -> Case:
    """Return the case with the defaults of its workload for target, mode, variant, formulation and sizes.

    Raise `Refusal` if a field has a value that the workload does not offer.
    """
    module = find_module(case.workload)
    mode, target = _resolve_target(case, module)
    variant = _choose_name(case, "variant", tuple(getattr(module, "VARIANTS", ())))
    written = getattr(module, "FORMULATIONS", ())
    written = tuple(written.get(variant, ()) if isinstance(written, Mapping) else written)
    formulation = _choose_name(case, "formulation", written, peers.formulations(case))
    dtypes = tuple(getattr(module, "DTYPES", DTYPES))
    if case.dtype not in dtypes:
        raise unknown_name(f"dtype for {case.workload}", case.dtype, dtypes)
    sizes = dict(getattr(module, "SIZES", {}))
    if unknown := [name for name in case.sizes if name not in sizes]:
        raise unknown_name(f"size of {case.workload}", unknown[0], sizes or ["none"])
    settled = dataclasses.replace(
        case,
        target=target,
        mode=mode,
        variant=variant,
        formulation=None if formulation in written[:1] else formulation,  # the first is the default
        sizes={k: case.points if v == "points" else v for k, v in sizes.items()} | dict(case.sizes),
        points=1 if target in getattr(module, "SINGLE", ()) else case.points,
    )
    return dataclasses.replace(settled, formulation=None) if settled.ad_mode.by_workload else settled


def _resolve_target(case: Case, module: ModuleType) -> tuple[str, str]:
    """Return the AD mode and the target of a case, with the default target filled in.

    If the mode or the target selects the function value, the other one is set accordingly.
    """
    value = getattr(module, "VALUE", "value")
    values = (value,) if isinstance(value, str) else tuple(value)
    targets = tuple(getattr(module, "TARGETS", ("jacobian",)))
    mode = case.ad_mode
    second = LAPLACIAN if mode.laplacian_only else SECOND[0]
    target = case.target or (values[0] if mode.is_value else second if mode.order == 2 else targets[0])
    known = tuple(dict.fromkeys((*targets, *values, *SECOND)))
    if target not in known:
        raise unknown_name(f"target of {case.workload}", target, known)
    if target in values:
        return "value", target
    return case.mode, values[0] if mode.is_value else target


def _choose_name(case: Case, field: str, names: tuple[str, ...], others: tuple[str, ...] = ()) -> str | None:
    """Return the value of a field such as `variant`, by default the first of `names`.

    Raise `Refusal` if the value is neither in `names` nor in `others`.
    """
    value = getattr(case, field) or (names[0] if names else None)
    if value is not None and value not in names + others:
        raise unknown_name(f"{field} of {case.workload}", value, names + others or ["none"])
    return value


def _reset_values(case: Case) -> dict[str, Any]:
    """Return the fields to reset in a case, as a dict from field name to new value, mostly the default.

    Raise `Refusal` if the case needs a mesh (split=both) but has none that matches its number of devices.
    """
    needs_mesh = case.split == "both" and case.api != "jit"
    if needs_mesh and case.mesh not in (meshes := list_meshes(case.devices)):
        given = "no mesh" if case.mesh is None else f"mesh={case.mesh}"
        choices = f"choose from {', '.join(meshes)}, or mesh=all for each of them"
        raise Refusal(f"split=both with {given} on devices={case.devices}: {choices}")
    changed = defaults(set(unused_in_layout(case)) - {"wrt"})
    if case.split == "data":
        changed["reduce"] = "points"
        if case.api == "jit":  # a single device holds all points
            changed["split"] = "points"
    if case.storage == "device" and case.chunk != AUTO:
        changed["storage"] = None
    return changed


def unused_in_layout(case: Case) -> dict[str, UnusedField]:
    """Return the fields without effect due to mode, target or layout, as a dict from field name to reason."""
    mode, plain = case.ad_mode, case.api == "jit"
    whole, by_hand = not mode.has_seeds, mode.by_workload
    with_mode, seedless = f"with mode={mode.name}", whole or mode.single_seed or case.target == "hvp"
    adds_points = case.split == "data" or (case.reduce == "points" and case.target not in SECOND)
    all_points = case.batch == "whole" and not by_hand and not adds_points
    value_only, alone = mode.is_value and case.reduce != "points", case.devices == 1 or plain
    one_seed = f"{'with target=hvp' if case.target == 'hvp' else with_mode}, which uses one seed"
    which = ("mode", "target")
    # (field, whether it has no effect, reason, fields that cause this). The first rule of a field counts.
    rules = [
        *(
            (name, case.mode == AUTO, "with mode=auto, which chooses it", ("mode",))
            for name in CHOSEN_FIELDS[1:]
        ),
        ("mesh", case.split != "both", "without split=both", ("split",)),
        ("mesh", plain, "with api=jit, which runs on one device", ("api",)),
        ("split", plain and case.split != "data", "with api=jit, which runs on one device", ("api",)),
        ("reduce", case.split == "data", "with split=data, which sums over the points", ("split",)),
        ("reduce", case.target in SECOND, f"with target={case.target}", ("target", "mode")),
        ("reduce", value_only, "with mode=value, which has no Jacobian", which),
        ("batch", by_hand, with_mode, ("mode",)),
        ("chunk", whole, f"{with_mode}, which has no seeds", which),
        ("chunk", seedless and case.chunk != AUTO, one_seed, which),
        ("block", whole, with_mode, which),
        ("block", case.chunk == AUTO, "with chunk=auto, which chooses the blocks", ("chunk",)),
        ("block", all_points, "with batch=whole, which computes all points at once", ("batch",)),
        ("seeds", mode.is_value, "with mode=value, which has no seeds", which),
        ("storage", whole, with_mode, which),
        ("remat", not mode.uses_reverse, f"{with_mode}, which has no reverse mode", ("mode",)),
        ("forward", not mode.parts, f"{with_mode}; it is an option of mode=mixed", ("mode",)),
        ("forward", case.seeds != "identity", f"with seeds={case.seeds}", ("seeds",)),
        ("overlap", case.split != "data", "without split=data", ("split",)),
        ("overlap", alone, "on one device; it needs devices=2 or more", ("devices", "api")),
        ("overlap", whole, with_mode, ("mode",)),
        ("formulation", by_hand, f"{with_mode}, which is written by hand", ("mode",)),
        ("wrt", mode.is_value, "with mode=value, which has no derivative", which),
    ]
    return {name: UnusedField(words, because) for name, holds, words, because in reversed(rules) if holds}


def without_trivial_blocks(case: Case, sizes: "DerivativeShape") -> Case:
    """Return the case without a `chunk` of all seeds of a device and without a `block` of all its points.

    They do not change the compiled program. With storage=host, the block is kept.
    """
    from scaling.core.shape import ceil_div

    a, b = case.axes
    seeds = max((ceil_div(part.seeds, b) for part in sizes.parts), default=None)
    if isinstance(case.chunk, int) and seeds is not None and case.chunk >= seeds:
        case = dataclasses.replace(case, chunk=None)
    if case.block is not None and case.block >= ceil_div(case.points, a) and case.storage != "host":
        case = dataclasses.replace(case, block=None)
    return case
