"""Fields that have no effect in a case, and why.

Knows how modes, targets, layouts and `jit` leave fields of a case unused. Does not know workloads, grids or
JAX.
"""

from typing import NamedTuple

from scaling.core.case import AUTO, SECOND, Case


class UnusedField(NamedTuple):
    """Why a field has no effect: in words, and by which other fields."""

    words: str
    because: tuple[str, ...]


def unused_fields(case: Case) -> dict[str, UnusedField]:
    """Return the fields that the layout and the settled target and mode of a case leave unused."""
    found: dict[str, UnusedField] = {}
    for name, holds, words, because in _rules(case):
        if holds:
            found.setdefault(name, UnusedField(words, because))
    return found


def _rules(case: Case) -> list[tuple[str, bool, str, tuple[str, ...]]]:
    """Return (field, whether it is unused, words, because of these fields); the first that holds counts."""
    mode, plain = case.ad_mode, case.api == "jit"
    whole, by_hand = not mode.has_seeds, mode.by_workload
    with_mode, seedless = f"with mode={mode.name}", whole or mode.single_seed or case.target == "hvp"
    adds_points = case.split == "data" or (case.reduce == "points" and case.target not in SECOND)
    all_points = case.batch == "whole" and not by_hand and not adds_points
    value_only, alone = mode.is_value and case.reduce != "points", case.devices == 1 or plain
    which = ("mode", "target")
    return [
        ("mesh", case.split != "both", "without split=both", ("split",)),
        ("mesh", plain, "with api=jit, which runs on one device", ("api",)),
        ("split", plain and case.split != "data", "with api=jit, which runs on one device", ("api",)),
        ("reduce", case.split == "data", "with split=data, which adds up the points", ("split",)),
        ("reduce", case.target in SECOND, f"with target={case.target}", ("target", "mode")),
        ("reduce", value_only, "with mode=value, which has no Jacobian", which),
        ("batch", by_hand, with_mode, ("mode",)),
        ("chunk", whole, f"{with_mode}, which has no seeds", which),
        ("chunk", seedless and case.chunk != AUTO, _one_seed(case), which),
        ("block", whole, with_mode, which),
        ("block", case.chunk == AUTO, "with chunk=auto, which chooses the blocks", ("chunk",)),
        ("block", all_points, "with batch=whole, which takes all points at once", ("batch",)),
        ("seeds", mode.is_value, "with mode=value, which has no seeds", which),
        ("storage", whole, with_mode, which),
        ("remat", not mode.uses_reverse, f"{with_mode}, which has no reverse mode", ("mode",)),
        ("forward", not mode.parts, f"{with_mode}; it is an option of mode=mixed", ("mode",)),
        ("forward", case.seeds != "identity", f"with seeds={case.seeds}", ("seeds",)),
        ("overlap", case.split != "data", "without split=data", ("split",)),
        ("overlap", alone, "on one device; it takes devices=2 or more", ("devices", "api")),
        ("overlap", whole, with_mode, ("mode",)),
        ("formulation", by_hand, f"{with_mode}, which is written by hand", ("mode",)),
        ("wrt", mode.is_value, "with mode=value, which has no derivative", which),
    ]


def ignored_fields(case: Case) -> dict[str, UnusedField]:
    """Return the fields that `jit` leaves unused, although they stay a part of the case's key."""
    if case.jit:
        return {}
    because = UnusedField("with jit=false, which compiles nothing", ("jit",))
    return {name: because for name in ("cache", "memory_limit") if getattr(case, name) is not None}


def _one_seed(case: Case) -> str:
    """Return the words for a case that has a single seed."""
    return f"with {'target=hvp' if case.target == 'hvp' else f'mode={case.mode}'}, which takes one seed"
