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
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from scaling import peer
from scaling.case import AUTO, DTYPES, HESSIAN, MIXED, REDUCTIONS, REVERSE, SECOND, WHOLE, Case, Refusal, unknown
from scaling.draws import Draw, normal, poisson, uniform

__all__ = ["Draw", "Reference", "Workload", "normal", "poisson", "uniform"]

Inputs = Mapping[str, Any]


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


def is_built_in(case: Case) -> bool:
    """Whether neither the workload nor the engine of a case is a user's own module."""
    return case.workload in built_in() and case.engine.partition("/")[0] in (peer.JAX, *peer.built_in())


def module(name: str) -> ModuleType:
    """The module of a workload: one of ours by its short name, or any import path."""
    path = f"scaling.workloads.{name}" if name in built_in() else name
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


def digest(name: str) -> str | None:
    """A hash of the source of a user's workload; None for ours, which the package's own version covers."""
    if name in built_in():
        return None
    file = getattr(module(name), "__file__", None)
    return hashlib.sha256(Path(file).read_bytes()).hexdigest()[:16] if file else None


Make = Callable[[Case], Any]


def make(case: Case) -> Any:
    """Call `workload(case)` of a case's module."""
    return module(case.workload).workload(case)


def complete(case: Case, make: Make = make) -> Case:
    """The same case with every choice that was left to the workload written out."""
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
    defaults = dict(getattr(of, "SIZES", {}))
    for name in case.sizes:
        if name not in defaults:
            raise unknown(f"size of {case.workload}", name, defaults or ["none"])
    sizes = {k: case.points if v == "points" else v for k, v in defaults.items()} | dict(case.sizes)
    points = 1 if target in getattr(of, "SINGLE", ()) else case.points
    formulation = None if case.mode in WHOLE and case.mode != "value" else formulation  # written by hand, as it is
    case = dataclasses.replace(case, target=target, variant=variant, formulation=formulation, sizes=sizes, points=points)
    case = dataclasses.replace(case, **_laid_out(case))
    if case.engine != peer.JAX:
        case = dataclasses.replace(case, **peer.complete(case))
    made = build(case, make)
    asked = case.reduce if case.reduce != (made.own or "whole") else None
    return dataclasses.replace(case, reduce=asked, wrt=None if case.mode == "value" else made.wrt)


def _laid_out(case: Case) -> dict[str, Any]:
    """The fields that say how a case is computed, without those that have no meaning in it."""
    whole, plain = case.mode in WHOLE, case.api == "jit"  # nothing is cut by jit
    reduce = "points" if case.split == "data" else None if case.target in SECOND else case.reduce
    if case.mode == "value" and reduce != "points":
        reduce = None
    if case.split == "both" and not plain:
        _fits(case)
    one = whole or case.mode == "grad_of_sum" or case.target == "hvp"  # there is at most one seed
    backwards = case.mode in (*REVERSE, *HESSIAN, *MIXED) and case.mode != "fwd_over_fwd"
    batch = "vmap" if whole and case.mode != "value" else case.batch  # they take the batch as they like
    auto = case.chunk == AUTO and not whole
    return {
        "batch": batch,
        "split": "points" if plain else case.split,
        "mesh": case.mesh if case.split == "both" and not plain else None,
        "chunk": None if (one and not auto) or whole else case.chunk,
        "block": None if whole or auto or (batch == "whole" and reduce != "points") else case.block,
        "seeds": "identity" if case.mode == "value" else case.seeds,
        "storage": None if whole or (case.storage == "device" and not auto) else case.storage,
        "reduce": reduce,
        "remat": case.remat if backwards else None,
        "forward": case.forward if case.mode in MIXED and case.seeds == "identity" else None,
        "overlap": case.overlap and case.split == "data" and case.devices > 1 and not plain and not whole,
    }


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


def build(case: Case, make: Make = make) -> Workload:
    """The workload of a case, with `wrt` settled and checked."""
    own = dataclasses.replace(case, formulation=None) if case.formulation in peer.formulations(case) else case
    made = make(own)
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
