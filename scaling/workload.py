"""A workload: a function family with sizes, and how to find one by name.

A workload is a module, ours or anybody's, with a function `workload(case) -> Workload` and, where they apply, the constants

    SIZES     {name: default}; a default of "points" means as many as the case has points
    TARGETS   names of what can be computed, the first being the default
    SINGLE    targets that have one point, whatever `points` says
    VARIANTS  names of functions of the family, the first being the default
    FORMULATIONS  names of ways to write the same function, the first being the default; or a tuple of them for each variant
    VALUE     the target that is the function itself, without a derivative; or several, where there is nothing but values
    DTYPES    the dtypes it has a meaning in

Does not know modes, devices, or how anything is timed.
"""

import dataclasses
import functools
import hashlib
import importlib
import importlib.util
import os
import pkgutil
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from scaling import effects, peer
from scaling.case import AUTO, DTYPES, HESSIAN, REDUCTIONS, SECOND, WHOLE, Case, Refusal, defaults, unknown
from scaling.draws import Draw, normal, poisson, uniform

__all__ = ["Draw", "Reference", "Workload", "normal", "poisson", "uniform"]

Inputs = Mapping[str, Any]
_WORKLOAD = re.compile(r"^(def|class)\s+workload\b|^workload\s*[:=]|^from\s.*\bimport\b.*\bworkload\b", re.MULTILINE)


class Reference(NamedTuple):
    """What NumPy says in float64, for a block of points.

    value: (points, outputs). derivative: (points, outputs, inputs), before any sum over outputs; (points, inputs, inputs) for a
    Hessian. value_terms, derivative_terms:
    (points,), the size of what is added up on the way where that cancels; None where nothing does, and the result's own size
    counts.
    """

    value: np.ndarray
    derivative: np.ndarray
    value_terms: np.ndarray | None = None
    derivative_terms: np.ndarray | None = None


@dataclass(frozen=True)
class Workload:
    """The function of a case, its inputs, and what its derivative is checked against.

    function: one point, in JAX: takes every input by name, returns an array.
    points: inputs that each point has its own of; shared: inputs that all points share. Both by name.
    wrt: the inputs to differentiate by, joined by "+", unless the case says otherwise.
    reduce: what is made of each point's Jacobian, one of case.REDUCTIONS; None asks for all of it. "outputs": summed over the
        outputs of each point.
    whole: the whole batch in one call, in JAX, per-point inputs with a leading axis: returns (points, *outputs), or one number,
        the sum over points. None where differentiating the batch at once is not offered.
    whole_modes: name of a whole mode -> function of the batch that returns the derivative asked for, in the order
        (points, outputs, inputs), each flattened as one likes.
    reference: NumPy float64 of a block of points; None asks for finite differences instead.
    second: the same for the Hessian of a function of one number, (points, inputs, inputs). Where the case's target is `hessian`
        or `hvp` (that Hessian times the point itself), whole_modes must give that.
    terms: how many numbers are added up to make one number of the answer; scales the tolerance.
    pattern: where the Jacobian of a point may be other than zero, known by hand: (rows, columns), int32, row by row. Where the
        case's seeds are `colored`, whole_modes must give these entries, (points, entries).
    nonzeros: like reference, with a derivative of (points, 1, entries): checks a Jacobian that is too large to be written out.
    own, left: set by `build`, which sets `reduce` to what the case asks for: the workload's own reduction, and the one that
        whole_modes leave to be done.
    """

    function: Callable[..., Any]
    points: Mapping[str, Draw]
    shared: Mapping[str, Draw] = field(default_factory=dict)
    wrt: str = ""
    reduce: str | None = None
    whole: Callable[..., Any] | None = None
    whole_modes: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    reference: Callable[[Inputs], Reference] | None = None
    second: Callable[[Inputs], Reference] | None = None
    terms: int = 1
    pattern: Callable[[], tuple[np.ndarray, np.ndarray]] | None = None
    nonzeros: Callable[[Inputs], Reference] | None = None
    own: str | None = None
    left: str | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """The inputs to differentiate by."""
        return tuple(self.wrt.split("+"))


@functools.cache
def built_in() -> list[str]:
    """The names of the workloads that come with the package."""
    return sorted(m.name for m in pkgutil.iter_modules([str(Path(__file__).parent / "workloads")]))


def module(name: str) -> ModuleType:
    """The module of a workload: one of ours by its short name, or any import path."""
    path = f"scaling.workloads.{name}" if name in built_in() else name
    if name in built_in():
        _refuse_shadowed(name)
    try:
        found = importlib.import_module(path)
    except ModuleNotFoundError as error:
        if error.name and (path == error.name or path.startswith(f"{error.name}.")):
            raise Refusal(f"{unknown('workload', name, built_in())}, or give the import path of a module of your own") from None
        raise Refusal(f"workload {name!r} cannot be imported: {error}") from None
    except Exception as error:
        raise Refusal(f"workload {name!r} cannot be imported: {type(error).__name__}: {error}") from None
    if not callable(getattr(found, "workload", None)):
        raise Refusal(f"workload {name!r} has no function workload(case) -> Workload; see README.md, 'A function of your own'")
    return found


def _refuse_shadowed(name: str) -> None:
    """Refuse the name of a workload of ours where a user's own module has it as well, with a function workload()."""
    ours = Path(__file__).parent / "workloads"
    for folder in (".", *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))):
        for file in (Path(folder) / f"{name}.py", Path(folder) / name / "__init__.py"):
            if file.is_file() and file.resolve().parent != ours.resolve() and _WORKLOAD.search(file.read_text(errors="replace")):
                raise Refusal(
                    f"workload={name} is built in, and {file} has the same name: "
                    f"rename that file, such as my_{name}.py, and write workload=my_{name}"
                )


def digest(name: str) -> str | None:
    """A hash of the source of a user's workload; None for ours, which the package's own version covers."""
    if name in built_in():
        return None
    file = getattr(module(name), "__file__", None)
    return hashlib.sha256(Path(file).read_bytes()).hexdigest()[:16] if file else None


def complete(case: Case) -> Case:
    """The same case with every choice that was left to the workload written out."""
    case = _settled(case)
    case = dataclasses.replace(case, **_laid_out(case))
    if case.engine != peer.JAX:
        case = dataclasses.replace(case, **peer.complete(case))
    made = build(case)
    asked = case.reduce if case.reduce != (made.own or "whole") else None
    return dataclasses.replace(case, reduce=asked, wrt=None if case.mode == "value" else made.wrt)


def unused(case: Case) -> dict[str, effects.Unused]:
    """Return the fields of a case, as a study states it, that have no effect: what `complete` drops, and what nothing reads."""
    settled, found = _settled(case), dict[str, effects.Unused]()
    if settled.mode != case.mode:
        found["mode"] = effects.Unused(f"with target={settled.target}, which is the function itself", ("target",))
    if case.target not in (None, settled.target):
        found["target"] = effects.Unused(f"with mode=value, which computes {settled.target}", ("mode",))
    if settled.points != case.points and case.points not in settled.sizes.values():
        found["points"] = effects.Unused(f"with target={settled.target}, which has one point", ("target",))
    dropped = effects.unused(settled)
    result = defaults(dropped) | _laid_out(settled)
    found |= {name: why for name, why in dropped.items() if getattr(settled, name) != result[name]} | effects.ignored(settled)
    if case.formulation is not None and settled.formulation is None and "formulation" in dropped:
        found["formulation"] = dropped["formulation"]
    if case.engine != peer.JAX:
        why = effects.Unused(f"with engine={case.engine}, which is called in its own way", ("engine",))
        own = peer.complete(settled) | {"cache": None}
        found |= {name: why for name, value in own.items() if getattr(settled, name) != value}
    return found


def _settled(case: Case) -> Case:
    """Return a case with its target, mode, variant, formulation, sizes and points; a name the workload lacks is refused."""
    of = module(case.workload)
    value = getattr(of, "VALUE", "value")
    values = (value,) if isinstance(value, str) else tuple(value)
    targets = tuple(getattr(of, "TARGETS", ("jacobian",)))
    first = values[0] if case.mode == "value" else SECOND[0] if case.mode in HESSIAN else targets[0]
    target = case.target or first
    known = tuple(dict.fromkeys((*targets, *values, *SECOND)))
    if target not in known:
        raise unknown(f"target of {case.workload}", target, known)
    if target in values or case.mode == "value":  # the function itself has one mode, and that mode no other target
        case = dataclasses.replace(case, mode="value")
        target = target if target in values else values[0]
    variant = _chosen(case, "variant", tuple(getattr(of, "VARIANTS", ())))
    written = getattr(of, "FORMULATIONS", ())
    written = tuple(written.get(variant, ()) if isinstance(written, Mapping) else written)
    formulation = _chosen(case, "formulation", written, peer.formulations(case))
    formulation = None if formulation in written[:1] else formulation  # its own first choice goes without saying
    dtypes = tuple(getattr(of, "DTYPES", DTYPES))
    if case.dtype not in dtypes:
        raise unknown(f"dtype for {case.workload}", case.dtype, dtypes)
    own = dict(getattr(of, "SIZES", {}))
    for name in case.sizes:
        if name not in own:
            raise unknown(f"size of {case.workload}", name, own or ["none"])
    sizes = {k: case.points if v == "points" else v for k, v in own.items()} | dict(case.sizes)
    points = 1 if target in getattr(of, "SINGLE", ()) else case.points
    formulation = None if case.mode in WHOLE and case.mode != "value" else formulation  # written by hand, as it is
    return dataclasses.replace(case, target=target, variant=variant, formulation=formulation, sizes=sizes, points=points)


def _laid_out(case: Case) -> dict[str, Any]:
    """The fields that say how a case is computed, without those that have no meaning in it."""
    if case.split == "both" and case.api != "jit":
        _fits(case)
    found = defaults(set(effects.unused(case)) - {"wrt"})
    if case.split == "data":
        found["reduce"] = "points"
        if case.api == "jit":  # one device has all of them
            found["split"] = "points"
    if case.storage == "device" and case.chunk != AUTO:
        found["storage"] = None
    return found


def _fits(case: Case) -> None:
    """Refuse a mesh that is not one of so many devices."""
    every = [f"{n}x{case.devices // n}" for n in range(case.devices, 0, -1) if case.devices % n == 0]
    if case.mesh not in every:
        given = "no mesh" if case.mesh is None else f"mesh={case.mesh}"
        choices = f"choose from {', '.join(every)}, or mesh=all for each of them"
        raise Refusal(f"split=both with {given} on devices={case.devices}: {choices}")


def _chosen(case: Case, what: str, own: tuple[str, ...], more: tuple[str, ...] = ()) -> str | None:
    """The case's choice from a list of names, or the first of the workload's own."""
    value = getattr(case, what) or (own[0] if own else None)
    if value is not None and value not in own + more:
        raise unknown(f"{what} of {case.workload}", value, own + more or ["none"])
    return value


def build(case: Case) -> Workload:
    """The workload of a case, with `wrt` settled and checked."""
    own = dataclasses.replace(case, formulation=None) if case.formulation in peer.formulations(case) else case
    made = module(case.workload).workload(own)
    if not isinstance(made, Workload):
        raise Refusal(f"workload(case) of {case.workload!r} must return a scaling.workload.Workload, not {type(made).__name__}")
    if twice := set(made.points) & set(made.shared):
        raise Refusal(f"inputs of {case.workload!r} are both per point and shared: {', '.join(sorted(twice))}")
    if not made.points:
        raise Refusal(f"workload {case.workload!r} has no input that each point has its own of")
    if made.reduce not in (None, *REDUCTIONS[1:]):
        raise unknown("reduce", made.reduce, REDUCTIONS[1:])
    made = dataclasses.replace(made, wrt=_by(case, made))
    if case.target in SECOND:
        by_hand = made.whole_modes if made.second else {}  # of the first derivative, where nobody speaks of a second
        return dataclasses.replace(made, reference=made.second, whole_modes=by_hand, reduce=None, own=None)
    asked = made.reduce if case.reduce is None else None if case.reduce == "whole" else case.reduce
    left, by_hand = None, made.whole_modes
    if asked != made.reduce and case.mode != "value":  # a whole Jacobian written by hand can still be reduced, a sum cannot
        left, by_hand = asked, by_hand if made.reduce is None and asked != "points" else {}
    return dataclasses.replace(made, reduce=asked, own=made.reduce, left=left, whole_modes=by_hand)


def _by(case: Case, made: Workload) -> str:
    """The inputs to differentiate by, checked: the case's, the workload's own, or the first."""
    inputs = [*made.points, *made.shared]
    draws = {**made.points, **made.shared}
    wrt = case.wrt or made.wrt or inputs[0]
    real = [name for name in made.shared if not draws[name].integer]
    if case.wrt is None and case.reduce == "points" and real and not set(wrt.split("+")) <= set(made.shared):
        wrt = "+".join(real)  # of a sum over points, by what these share
    for name in wrt.split("+"):
        if name not in inputs or draws[name].integer:
            raise unknown(f"input to differentiate {case.workload} by (wrt)", name, [k for k in inputs if not draws[k].integer])
    names = wrt.split("+")
    if len(set(names)) != len(names):
        raise Refusal(f"wrt={wrt!r} names an input twice")
    return wrt
