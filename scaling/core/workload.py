"""A workload: a function family with sizes, and how to find one by name.

A workload is a module, ours or anybody's, with a function `workload(case) -> Workload` and, where they apply,
the constants

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
import math
import os
import pkgutil
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from scaling.core import extensions, pytrees, unused_fields
from scaling.core.case import AUTO, DTYPES, JAX, SECOND, Case, Refusal, defaults, unknown_name
from scaling.core.input_sampling import InputSpec, normal, poisson, uniform
from scaling.core.modes import MODES
from scaling.core.reductions import REDUCTIONS, WHOLE, Reduction

__all__ = ["InputSpec", "Reference", "Workload", "normal", "poisson", "uniform"]

Inputs = Mapping[str, Any]
_WORKLOAD = re.compile(
    r"^(def|class)\s+workload\b|^workload\s*[:=]|^from\s.*\bimport\b.*\bworkload\b", re.MULTILINE
)


class Reference(NamedTuple):
    """The value and the derivative in float64, for a block of points.

    value: (points, outputs). derivative: (points, outputs, inputs), before any sum over outputs; (points,
    inputs, inputs) for a Hessian. value_terms, derivative_terms: (points,), the size of what is added up on
    the way where that cancels; None where nothing does, and the result's own size counts.
    """

    value: np.ndarray
    derivative: np.ndarray
    value_terms: np.ndarray | None = None
    derivative_terms: np.ndarray | None = None


@dataclass(frozen=True)
class Workload:
    """The function of a case, its inputs, and what its derivative is checked against.

    function: one point, in JAX: takes every input by name, returns an array, or a pytree of arrays, which are
    raveled and
        concatenated in the order of `jax.tree.leaves`.
    points: inputs that each point has its own of; shared: inputs that all points share. Both by name: a
    `Draw`, or a pytree of
        them. `build` makes each leaf of a pytree an input of its own, named by its path, such as `params.w`.
    wrt: the inputs to differentiate by, joined by "+", unless the case says otherwise. `params` stands for
    all real leaves of
        that input in the order of the tree, `params.w` for one of them.
    reduce: what is computed from each point's Jacobian, a name in reductions.REDUCTIONS, such as "outputs":
    the sum over the
        outputs. None asks for the whole Jacobian.
    whole: the whole batch in one call, in JAX, per-point inputs with a leading axis: returns (points,
    *outputs), a pytree of
        such arrays, or one number, the sum over points. None where differentiating the batch at once is not offered.
    whole_modes: name of a whole mode -> function of the batch that returns the derivative asked for, in the
    order
        (points, outputs, inputs), each flattened as one likes; or a pytree of arrays as `jax.vmap(jax.jacrev(...))` returns it.
    reference: NumPy float64 of a block of points; None asks for the function's own derivative in float64. It
    takes pytrees as
        `points` and `shared` have them, and returns plain arrays: outputs and inputs each flat, in the order of the leaves.
    second: the same for the Hessian of a function of one number, (points, inputs, inputs). Where the case's
    target is `hessian`
        or `hvp` (that Hessian times the point itself), whole_modes must give that.
    terms: how many numbers are added up to make one number of the answer; scales the tolerance.
    pattern: where the Jacobian of a point may be other than zero, known by hand: (rows, columns), int32, row
    by row. Where the
        case's seeds are `colored`, whole_modes must give these entries, (points, entries).
    nonzeros: like reference, with a derivative of (points, 1, entries): checks a Jacobian that is too large
    to be written out.
    own, left: set by `build`, which sets `reduce` to what the case asks for: the workload's own reduction,
    and the one that
        whole_modes leave to be done.
    """

    function: Callable[..., Any]
    points: Mapping[str, InputSpec]
    shared: Mapping[str, InputSpec] = field(default_factory=dict)
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
    def reduction(self) -> Reduction:
        """What is computed from each point's Jacobian, as a value."""
        return REDUCTIONS[self.reduce] if self.reduce else WHOLE

    @property
    def names(self) -> tuple[str, ...]:
        """The inputs to differentiate by, with the leaves of pytrees one by one."""
        draws = {**self.points, **self.shared}
        return tuple(
            leaf for name in self.wrt.split("+") for leaf in pytrees.names_under(name, draws) or [name]
        )


@functools.cache
def built_in() -> list[str]:
    """Return the names of the workloads that come with the package."""
    return sorted(m.name for m in pkgutil.iter_modules([str(Path(__file__).parents[1] / "workloads")]))


def is_built_in(case: Case) -> bool:
    """Return whether neither the workload nor the engine of a case is a user's own module."""
    peer = case.engine.partition("/")[0]
    return case.workload in built_in() and (peer == JAX or peer in extensions.load("peers").built_in())


def module(name: str) -> ModuleType:
    """Return the module of a workload: a built-in one by its short name, or any import path."""
    path = f"scaling.workloads.{name}" if name in built_in() else name
    _refuse_file(name)
    if name in built_in():
        _refuse_shadowed(name)
    try:
        found = importlib.import_module(path)
    except Refusal as error:
        raise Refusal(f"workload {name!r}: {error}") from None
    except ModuleNotFoundError as error:
        if error.name and (path == error.name or path.startswith(f"{error.name}.")):
            raise Refusal(
                f"{unknown_name('workload', name, built_in())}, or give the import path of a module of your own"
            ) from None
        raise Refusal(f"workload {name!r} cannot be imported: {error}") from None
    except Exception as error:
        raise Refusal(f"workload {name!r} cannot be imported: {type(error).__name__}: {error}") from None
    if not callable(getattr(found, "workload", None)):
        raise Refusal(
            f"workload {name!r} has no function workload(case) -> Workload; see README.md, 'A function of your own'"
        )
    return found


def _refuse_file(name: str) -> None:
    """Refuse a path of a file in the place of an import path, with the import path to write."""
    if not (name.endswith(".py") or "/" in name or "\\" in name):
        return
    *folders, file = [part for part in name.replace("\\", "/").split("/") if part not in ("", ".")] or [name]
    stem = file.removesuffix(".py") or "NAME"
    if not name.startswith(("/", "~")) and all(each.isidentifier() for each in folders):
        fix = f"write workload={'.'.join([*folders, stem])}"
    else:
        folder = name[: name.rindex(file)].rstrip("/") or "/"
        fix = f"write workload={stem}, with PYTHONPATH={folder} in front of the command"
    raise Refusal(f"workload {name!r} is a file, and a module is named by its import path: {fix}")


def _refuse_shadowed(name: str) -> None:
    """Refuse the name of a workload of ours where a user's own module has it as well, with a function
    workload()."""
    ours = Path(__file__).parents[1] / "workloads"
    for folder in (".", *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))):
        for file in (Path(folder) / f"{name}.py", Path(folder) / name / "__init__.py"):
            if (
                file.is_file()
                and file.resolve().parent != ours.resolve()
                and _WORKLOAD.search(file.read_text(errors="replace"))
            ):
                raise Refusal(
                    f"workload={name} is built in, and {file} has the same name: "
                    f"rename that file, such as my_{name}.py, and write workload=my_{name}"
                )


def digest(name: str) -> str | None:
    """Return a hash of the source of a user's workload; None for a built-in one, which the package version
    covers.
    """
    if name in built_in():
        return None
    file = getattr(module(name), "__file__", None)
    return hashlib.sha256(Path(file).read_bytes()).hexdigest()[:16] if file else None


Make = Callable[[Case], Any]


def make(case: Case) -> Any:
    """Call `workload(case)` of a case's module."""
    return module(case.workload).workload(case)


def complete(case: Case, make: Make = make) -> Case:
    """Return the case with every choice that it left to the workload written out."""
    case = _settled(case)
    case = dataclasses.replace(case, **_laid_out(case))
    if case.engine != JAX:
        case = dataclasses.replace(case, **extensions.load("peers").complete_case(case))
    made = build(case, make)
    asked = case.reduce if case.reduce != (made.own or "whole") else None
    return dataclasses.replace(case, reduce=asked, wrt=None if case.ad_mode.is_value else made.wrt)


def unused(case: Case) -> dict[str, unused_fields.UnusedField]:
    """Return the fields of a case, as a study states it, that have no effect: what `complete` drops, and what
    nothing reads."""
    settled, found = _settled(case), dict[str, unused_fields.UnusedField]()
    if settled.mode != case.mode:
        found["mode"] = unused_fields.UnusedField(
            f"with target={settled.target}, which is the function itself", ("target",)
        )
    if case.target not in (None, settled.target):
        found["target"] = unused_fields.UnusedField(
            f"with mode=value, which computes {settled.target}", ("mode",)
        )
    if settled.points != case.points and case.points not in settled.sizes.values():
        found["points"] = unused_fields.UnusedField(
            f"with target={settled.target}, which has one point", ("target",)
        )
    dropped = unused_fields.unused_fields(settled)
    result = defaults(dropped) | _laid_out(settled)
    found |= {
        name: why for name, why in dropped.items() if getattr(settled, name) != result[name]
    } | unused_fields.ignored_fields(settled)
    if case.formulation is not None and settled.formulation is None and "formulation" in dropped:
        found["formulation"] = dropped["formulation"]
    if case.engine != JAX:
        why = unused_fields.UnusedField(
            f"with engine={case.engine}, which is called in its own way", ("engine",)
        )
        own = extensions.load("peers").complete_case(settled) | {"cache": None}
        found |= {name: why for name, value in own.items() if getattr(settled, name) != value}
    return found


def _settled(case: Case) -> Case:
    """Return a case with its target, mode, variant, formulation, sizes and points; a name the workload lacks
    is refused."""
    of = module(case.workload)
    value = getattr(of, "VALUE", "value")
    values = (value,) if isinstance(value, str) else tuple(value)
    targets = tuple(getattr(of, "TARGETS", ("jacobian",)))
    first = values[0] if case.ad_mode.is_value else SECOND[0] if case.ad_mode.order == 2 else targets[0]
    target = case.target or first
    known = tuple(dict.fromkeys((*targets, *values, *SECOND)))
    if target not in known:
        raise unknown_name(f"target of {case.workload}", target, known)
    if (
        target in values or case.ad_mode.is_value
    ):  # the function itself has one mode, and that mode no other target
        case = dataclasses.replace(case, mode="value")
        target = target if target in values else values[0]
    variant = _chosen(case, "variant", tuple(getattr(of, "VARIANTS", ())))
    written = getattr(of, "FORMULATIONS", ())
    written = tuple(written.get(variant, ()) if isinstance(written, Mapping) else written)
    formulation = _chosen(case, "formulation", written, _peer_formulations(case))
    formulation = (
        None if formulation in written[:1] else formulation
    )  # its own first choice goes without saying
    dtypes = tuple(getattr(of, "DTYPES", DTYPES))
    if case.dtype not in dtypes:
        raise unknown_name(f"dtype for {case.workload}", case.dtype, dtypes)
    own = dict(getattr(of, "SIZES", {}))
    for name in case.sizes:
        if name not in own:
            raise unknown_name(f"size of {case.workload}", name, own or ["none"])
    sizes = {k: case.points if v == "points" else v for k, v in own.items()} | dict(case.sizes)
    points = 1 if target in getattr(of, "SINGLE", ()) else case.points
    formulation = None if case.ad_mode.by_workload else formulation  # written by hand, as it is
    return dataclasses.replace(
        case, target=target, variant=variant, formulation=formulation, sizes=sizes, points=points
    )


def _peer_formulations(case: Case) -> tuple[str, ...]:
    """Return the formulations of a workload that only the peer of a case has."""
    return () if case.engine == JAX else tuple(extensions.load("peers").formulations(case))


def _laid_out(case: Case) -> dict[str, Any]:
    """Return the fields that say how a case is computed, without those that have no effect in it."""
    if case.split == "both" and case.api != "jit":
        _fits(case)
    found = defaults(set(unused_fields.unused_fields(case)) - {"wrt"})
    if case.split == "data":
        found["reduce"] = "points"
        if case.api == "jit":  # one device has all of them
            found["split"] = "points"
    if case.storage == "device" and case.chunk != AUTO:
        found["storage"] = None
    return found


def _fits(case: Case) -> None:
    """Refuse a mesh that does not have as many devices as the case."""
    every = [f"{n}x{case.devices // n}" for n in range(case.devices, 0, -1) if case.devices % n == 0]
    if case.mesh not in every:
        given = "no mesh" if case.mesh is None else f"mesh={case.mesh}"
        choices = f"choose from {', '.join(every)}, or mesh=all for each of them"
        raise Refusal(f"split=both with {given} on devices={case.devices}: {choices}")


def _chosen(case: Case, what: str, own: tuple[str, ...], more: tuple[str, ...] = ()) -> str | None:
    """Return the case's choice from a list of names, or the workload's first one."""
    value = getattr(case, what) or (own[0] if own else None)
    if value is not None and value not in own + more:
        raise unknown_name(f"{what} of {case.workload}", value, own + more or ["none"])
    return value


def build(case: Case, make: Make = make) -> Workload:
    """Return the workload of a case with `wrt` settled and pytrees flattened: leaves are inputs, a result is
    one array.
    """
    own = (
        dataclasses.replace(case, formulation=None) if case.formulation in _peer_formulations(case) else case
    )
    made = make(own)
    if not isinstance(made, Workload):
        raise Refusal(
            f"workload(case) of {case.workload!r} must return a scaling.workload.Workload, not {type(made).__name__}"
        )
    made = _flattened(case, made)
    if case.target in SECOND:
        by_hand = (
            made.whole_modes if made.second else {}
        )  # of the first derivative, where nobody speaks of a second
        return dataclasses.replace(made, reference=made.second, whole_modes=by_hand, reduce=None, own=None)
    asked = made.reduce if case.reduce is None else None if case.reduce == "whole" else case.reduce
    left, by_hand = None, made.whole_modes
    if (
        asked != made.reduce and not case.ad_mode.is_value
    ):  # a whole Jacobian written by hand can still be reduced, a sum cannot
        left, by_hand = asked, by_hand if made.reduce is None and asked != "points" else {}
    return dataclasses.replace(made, reduce=asked, own=made.reduce, left=left, whole_modes=by_hand)


def _flattened(case: Case, made: Workload) -> Workload:
    """Return a user's workload, checked, with flat inputs and with functions that take these and return one
    array."""
    name = case.workload
    points, trees_of_points = pytrees.flatten_inputs(name, "points", made.points)
    shared, trees_of_shared = pytrees.flatten_inputs(name, "shared", made.shared)
    if twice := set(pytrees.top_level(points)) & set(pytrees.top_level(shared)):
        raise Refusal(f"inputs of {name!r} are both per point and shared: {', '.join(sorted(twice))}")
    if not points:
        raise Refusal(f"workload {name!r} has no input that each point has its own of")
    _check_functions(name, made)
    made = dataclasses.replace(made, points=points, shared=shared)
    made = dataclasses.replace(made, wrt=_by(case, made))
    trees = trees_of_points + trees_of_shared
    columns = tuple(math.prod({**points, **shared}[leaf].shape) for leaf in made.names)
    per_point = made.reduce != "points"
    by_hand = {
        mode: pytrees.ReturnsDerivative(function, trees, f"{mode} of {name!r}", columns, per_point)
        for mode, function in made.whole_modes.items()
    }
    references = {
        field: pytrees.TakesBlocks(function, trees)
        for field in ("reference", "second", "nonzeros")
        if trees and (function := getattr(made, field)) is not None
    }
    whole = None if made.whole is None else pytrees.ReturnsArray(made.whole, trees, f"whole of {name!r}", 1)
    function = pytrees.ReturnsArray(made.function, trees, f"the function of {name!r}")
    return dataclasses.replace(made, function=function, whole=whole, whole_modes=by_hand, **references)  # type: ignore[arg-type]


def _check_functions(name: str, made: Workload) -> None:
    """Refuse a workload whose other fields are not what they should be."""
    reductions = [name for name in REDUCTIONS if name != WHOLE.name]
    if made.reduce not in (None, *reductions):
        raise unknown_name("reduce", made.reduce, reductions)
    if not isinstance(made.wrt, str):
        raise Refusal(
            f"wrt of {name!r} must be names joined by '+', such as 'x+params', not {pytrees.describe(made.wrt)}"
        )
    if not isinstance(made.whole_modes, Mapping):
        words = "a mapping from modes to functions, such as {'analytic': derivative}"
        raise Refusal(f"whole_modes of {name!r} must be {words}, not {pytrees.describe(made.whole_modes)}")
    for mode in made.whole_modes:
        if mode not in (known := [each.name for each in MODES.values() if not each.has_seeds]):
            raise unknown_name(f"mode in whole_modes of {name!r}", mode, known)
    functions = {
        field: getattr(made, field) for field in ("whole", "reference", "second", "pattern", "nonzeros")
    }
    given = {field: value for field, value in functions.items() if value is not None} | {
        "function": made.function
    }
    for what, value in {**given, **made.whole_modes}.items():
        if not callable(value):
            raise Refusal(f"{what} of {name!r} must be a function, not {pytrees.describe(value)}")


def _by(case: Case, made: Workload) -> str:
    """Return the inputs to differentiate by, as the user names them: those of the case, of the workload, or
    the first.
    """
    draws = {**made.points, **made.shared}
    real = [leaf for leaf in draws if not draws[leaf].integer]
    wrt = case.wrt or made.wrt or pytrees.top_level(draws)[0]
    shared = pytrees.top_level(leaf for leaf in made.shared if leaf in real)
    if (
        case.wrt is None
        and case.reduce == "points"
        and shared
        and not _leaves(case, wrt, draws) <= set(made.shared)
    ):
        wrt = "+".join(shared)  # of a sum over points, by what these share
    _leaves(case, wrt, draws)
    return wrt


def _leaves(case: Case, wrt: str, draws: Mapping[str, InputSpec]) -> set[str]:
    """Return the flat names that wrt stands for; an unknown name, or an input that is named twice, is a
    `Refusal`."""
    found: list[str] = []
    for name in wrt.split("+"):
        leaves = [leaf for leaf in pytrees.names_under(name, draws) if not draws[leaf].integer]
        if not leaves:
            real = [leaf for leaf in draws if not draws[leaf].integer]
            known = dict.fromkeys([*pytrees.top_level(real), *real])
            raise unknown_name(f"input to differentiate {case.workload} by (wrt)", name, known)
        found += leaves
    if len(set(found)) != len(found):
        raise Refusal(f"wrt={wrt!r} names an input twice")
    return set(found)
