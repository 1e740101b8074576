"""A workload: a function family with sizes, and how to find one by name.

A workload is a module, ours or anybody's, with a function `workload(case) -> Workload` and, where they apply,
the constants

    SIZES     {name: default}; a default of "points" means as many as the case has points
    TARGETS   names of what can be computed, the first being the default
    SINGLE    targets that have one point, whatever `points` says
    VARIANTS  names of functions of the family, the first being the default
    FORMULATIONS  names of ways to write the same function, the first being the default; or such a tuple by
    variant VALUE     the target that is the function itself, without a derivative; or several, where there
    are only values DTYPES    the dtypes it has a meaning in

Does not know modes, devices, or how anything is timed.
"""

import dataclasses
import functools
import hashlib
import importlib
import importlib.util
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from scaling.core import extensions
from scaling.core.case import JAX, SECOND, Case, Refusal, built_in, unknown_name
from scaling.core.inputs import InputSpec, normal, poisson, uniform
from scaling.core.reductions import REDUCTIONS, WHOLE, Reduction

__all__ = ["InputSpec", "Reference", "Workload", "normal", "poisson", "uniform"]

Inputs = Mapping[str, Any]


class Reference(NamedTuple):
    """The value and the derivative in float64, for a block of points.

    value: (points, outputs). derivative: (points, outputs, inputs), before any sum over outputs; (points,
    inputs, inputs) for a Hessian. value_terms, derivative_terms: (points,), the magnitude of the terms that
    the function adds up, where they cancel; None where nothing cancels, and the result's own size counts.
    """

    value: np.ndarray
    derivative: np.ndarray
    value_terms: np.ndarray | None = None
    derivative_terms: np.ndarray | None = None


@dataclass(frozen=True)
class Workload:
    """The function of a case, its inputs, and what its derivative is checked against.

    function: one point, in JAX: takes every input by name; returns an array, or a pytree of arrays, which are
        raveled and concatenated in the order of `jax.tree.leaves`.
    points: the inputs that differ from point to point. shared: the inputs that all points share. Both by
        name: a `Draw`, or a pytree of them. `build` makes each leaf of a pytree an input of its own, named by
        its path, such as `params.w`.
    wrt: the inputs to differentiate by, joined by "+", unless the case says otherwise. `params` means all
        real leaves of that input in the order of the tree, `params.w` one of them.
    reduce: what is computed from each point's Jacobian, a name in reductions.REDUCTIONS, such as "outputs":
        the sum over the outputs. None asks for the whole Jacobian.
    whole: the whole batch in one call, in JAX, per-point inputs with a leading axis: returns (points,
        *outputs), a pytree of such arrays, or one number, the sum over points. None where the batch cannot be
        differentiated at once.
    whole_modes: name of a whole mode -> function of the batch that returns its derivative, in the order
        (points, outputs, inputs), each axis in any shape; or a pytree as `jax.vmap(jax.jacrev(...))` returns
        it.
    reference: NumPy float64 of a block of points; None asks for the function's own derivative in float64. It
        takes pytrees as `points` and `shared` have them, and returns plain arrays: outputs and inputs each
        flat, in the order of the leaves.
    second: the same for the Hessian of a function of one number, (points, inputs, inputs). Where the target
        of the case is `hessian` or `hvp` (that Hessian times the point itself), whole_modes must give that.
    terms: how many numbers are added up to make one number of the result; scales the tolerance.
    pattern: where the Jacobian of a point may be other than zero, known by hand: (rows, columns), int32, row
        by row. Where the seeds of the case are `colored`, whole_modes must give these entries, (points,
        entries).
    nonzeros: like reference, with a derivative of (points, 1, entries): checks a Jacobian that is too large
        to be written out.
    default_reduce, reduces_whole_modes: set by `build`, which sets `reduce` to what the case asks for: the
        workload's first `reduce`, and whether the results of whole_modes still have to be reduced.
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
    default_reduce: str | None = None
    reduces_whole_modes: bool = False

    @property
    def inputs(self) -> dict[str, InputSpec]:
        """All inputs by name."""
        return {**self.points, **self.shared}

    @property
    def reduction(self) -> Reduction:
        """What is computed from each point's Jacobian, as a value."""
        return REDUCTIONS[self.reduce] if self.reduce else WHOLE

    @property
    def names(self) -> tuple[str, ...]:
        """The inputs to differentiate by, with the leaves of pytrees one by one."""
        return tuple(leaf for name in self.wrt.split("+") for leaf in real_leaves(name, self.inputs))


def real_leaves(name: str, inputs: Mapping[str, InputSpec]) -> list[str]:
    """Return the real inputs that a name means: an input, a leaf of it, or all leaves below a node."""
    leaves = [name] if name in inputs else [leaf for leaf in inputs if leaf.startswith(f"{name}.")]
    return [leaf for leaf in leaves if not inputs[leaf].integer]


def module(name: str) -> ModuleType:
    """Return the module of a workload: a built-in one by its short name, or any import path."""
    known = sorted(built_in("workloads"))
    path = f"scaling.workloads.{name}" if name in known else name
    try:
        found = importlib.import_module(path)
    except Refusal as error:
        raise Refusal(f"workload {name!r}: {error}") from None
    except ModuleNotFoundError as error:
        if error.name and (path == error.name or path.startswith(f"{error.name}.")):
            words = unknown_name("workload", name, known)
            raise Refusal(f"{words}, or give the import path of a module of your own") from None
        raise Refusal(f"workload {name!r} cannot be imported: {error}") from None
    except Exception as error:
        raise Refusal(f"workload {name!r} cannot be imported: {type(error).__name__}: {error}") from None
    if not callable(getattr(found, "workload", None)):
        hint = "see README.md, 'A function of your own'"
        raise Refusal(f"workload {name!r} has no function workload(case) -> Workload; {hint}")
    return found


def digest(name: str) -> str | None:
    """Return a hash of the source of a user's workload; None for a built-in one.

    The version of the package covers built-in workloads.
    """
    if name in built_in("workloads"):
        return None
    file = getattr(module(name), "__file__", None)
    return hashlib.sha256(Path(file).read_bytes()).hexdigest()[:16] if file else None


Make = Callable[[Case], Any]


def make(case: Case) -> Any:
    """Call `workload(case)` of a case's module."""
    return module(case.workload).workload(case)


def build(case: Case, make: Make = make) -> Workload:
    """Return the workload of a case, ready to compute with.

    Its `wrt` and `reduce` are those of the case, each leaf of a pytree is an input, and its functions return
    one array.
    """
    of_peer = case.engine != JAX and case.formulation in extensions.load("peers").formulations(case)
    made = make(dataclasses.replace(case, formulation=None) if of_peer else case)
    made = _flatten(case, made)
    if case.target in SECOND:  # whole_modes are those of the first derivative where there is no `second`
        by_hand = made.whole_modes if made.second else {}
        return dataclasses.replace(made, reference=made.second, whole_modes=by_hand, reduce=None)
    reduce = {None: made.reduce, "whole": None}.get(case.reduce, case.reduce)
    built = dataclasses.replace(made, reduce=reduce, default_reduce=made.reduce)
    if reduce == made.reduce or case.ad_mode.is_value:
        return built
    if made.reduce is None and reduce != "points":  # whole Jacobians by hand can be reduced, a sum cannot
        return dataclasses.replace(built, reduces_whole_modes=True)
    return dataclasses.replace(built, whole_modes={})


def _flatten(case: Case, made: Workload) -> Workload:
    """Return a user's workload with flat inputs and with functions that return one array."""
    name = case.workload
    if not (_is_flat(made.points) and _is_flat(made.shared)):
        made = extensions.load("pytrees").flatten_inputs(name, made)
    if twice := set(_top_level(made.points)) & set(_top_level(made.shared)):
        raise Refusal(f"inputs of {name!r} are both per point and shared: {', '.join(sorted(twice))}")
    if not made.points:
        raise Refusal(f"workload {name!r} has no input that each point has its own of")
    made = dataclasses.replace(made, wrt=_settle_wrt(case, made))
    columns = tuple(math.prod(made.inputs[leaf].shape) for leaf in made.names)
    by_hand = {
        mode: functools.partial(
            _join_blocks, function, f"{mode} of {name!r}", columns, made.reduce != "points"
        )
        for mode, function in made.whole_modes.items()
    }
    return dataclasses.replace(
        made,
        function=functools.partial(_join_leaves, made.function, f"the function of {name!r}", 0),
        whole=made.whole and functools.partial(_join_leaves, made.whole, f"whole of {name!r}", 1),
        whole_modes=by_hand,
    )


def _join_leaves(function: Callable[..., Any], what: str, leading: int, /, *inputs: Any, **named: Any) -> Any:
    """Return the result of a function as one array. what, leading: see pytrees.concatenate_leaves."""
    result = function(*inputs, **named)
    if hasattr(result, "shape"):
        return result
    return extensions.load("pytrees").concatenate_leaves(result, what, leading)


def _join_blocks(
    function: Callable[..., Any], what: str, columns: tuple[int, ...], per_point: bool, /, **named: Any
) -> Any:
    """Return the derivative that a function returns as one array, see pytrees.concatenate_blocks."""
    result = function(**named)
    if hasattr(result, "shape"):
        return result
    return extensions.load("pytrees").concatenate_blocks(result, what, columns, per_point)


def _is_flat(inputs: Any) -> bool:
    """Return whether inputs are draws by name; otherwise they are pytrees, or a mistake."""
    return isinstance(inputs, Mapping) and all(
        isinstance(name, str) and name.isidentifier() and isinstance(spec, InputSpec)
        for name, spec in inputs.items()
    )


def _top_level(names: Iterable[str]) -> list[str]:
    """Return the names of the user's inputs, each once, from the names of their leaves."""
    return list(dict.fromkeys(name.partition(".")[0] for name in names))


def _settle_wrt(case: Case, made: Workload) -> str:
    """Return the inputs to differentiate by, as the user names them.

    They come from the case, else from the workload, else the first input is used.
    """
    wrt = case.wrt or made.wrt or _top_level(made.inputs)[0]
    leaves = _require_leaves(case, wrt, made.inputs)
    shared = _top_level(leaf for leaf in made.shared if not made.shared[leaf].integer)
    if case.wrt is None and case.reduce == "points" and shared and not leaves <= set(made.shared):
        return "+".join(shared)  # a sum over points is differentiated by what they share
    return wrt


def _require_leaves(case: Case, wrt: str, inputs: Mapping[str, InputSpec]) -> set[str]:
    """Return the inputs that `wrt` means; refuse an unknown name, or an input that is named twice."""
    found: list[str] = []
    for name in wrt.split("+"):
        leaves = real_leaves(name, inputs)
        if not leaves:
            real = [leaf for leaf in inputs if not inputs[leaf].integer]
            known = dict.fromkeys([*_top_level(real), *real])
            raise unknown_name(f"input to differentiate {case.workload} by (wrt)", name, known)
        found += leaves
    if len(set(found)) != len(found):
        raise Refusal(f"wrt={wrt!r} names an input twice")
    return set(found)
