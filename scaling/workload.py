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
from scaling.case import DTYPES, HESSIAN, SECOND, WHOLE, Case, Refusal, unknown
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
    reduce: "outputs" where the derivative asked for is summed over the outputs of each point.
    whole: the whole batch in one call, in JAX, per-point inputs with a leading axis: returns (points, *outputs), or one number,
        the sum over points. None where differentiating the batch at once is not offered.
    whole_modes: name of a whole mode -> function of the batch that returns the derivative asked for, in the order
        (points, outputs, inputs), each flattened as one likes.
    reference: NumPy float64 of a block of points; None asks for finite differences instead.
    second: the same for the Hessian of a function of one number, (points, inputs, inputs). Where the case's target is `hessian`
        or `hvp` (that Hessian times the point itself), whole_modes must give that.
    terms: how many numbers are added up to make one number of the answer; scales the tolerance.
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


def complete(case: Case) -> Case:
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
    batch = "vmap" if case.mode in WHOLE and case.mode != "value" else case.batch  # they take the batch as they like
    split = "points" if case.api == "jit" else case.split  # nothing is cut
    chunk = None if case.mode in (*WHOLE, "grad_of_sum") or target == "hvp" else case.chunk  # there is at most one seed
    formulation = None if case.mode in WHOLE and case.mode != "value" else formulation  # written by hand, as it is
    case = dataclasses.replace(case, target=target, variant=variant, formulation=formulation, sizes=sizes, points=points)
    case = dataclasses.replace(case, batch=batch, split=split, chunk=chunk)
    if case.engine != peer.JAX:
        case = dataclasses.replace(case, **peer.complete(case))
    return dataclasses.replace(case, wrt=None if case.mode == "value" else build(case).wrt)


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
    inputs = [*made.points, *made.shared]
    wrt = case.wrt or made.wrt or inputs[0]
    draws = {**made.points, **made.shared}
    for name in wrt.split("+"):
        if name not in inputs or draws[name].integer:
            raise unknown(f"input to differentiate {case.workload} by (wrt)", name, [k for k in inputs if not draws[k].integer])
    made = dataclasses.replace(made, wrt=wrt)
    if len(set(made.names)) != len(made.names):
        raise Refusal(f"wrt={wrt!r} names an input twice")
    if made.reduce not in (None, "outputs"):
        raise unknown("reduce", made.reduce, ["outputs"])
    if case.target not in SECOND:
        return made
    by_hand = made.whole_modes if made.second else {}  # of the first derivative, where nobody speaks of a second
    return dataclasses.replace(made, reference=made.second, whole_modes=by_hand, reduce=None)
