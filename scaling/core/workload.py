"""Define `Workload`, `InputSpec` and `Reference`, build one from its module, and cache values by their keys.

A workload module, built-in or user-defined, has a function `workload(case) -> Workload` and, optionally,
these constants:

    SIZES         dict from the name of a size to its default, a number or "points" (the number of points).
    TARGETS       names of the quantities that the workload can compute. The first is the default.
    SINGLE        targets that always use a single point (batch element), regardless of `points`.
    VARIANTS      names of the functions that the module provides. The first is the default.
    FORMULATIONS  names of the implementations of the same function, in a tuple or in a dict from variant to
                  tuple. The first is the default.
    VALUE         the target, or a tuple of targets, whose result is a function value, not a derivative.
    DTYPES        the dtypes that the workload supports.
"""

import dataclasses
import functools
import hashlib
import importlib
import math
import operator
import os
import types
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from scaling.core import load_option
from scaling.core.case import CEILING, LAPLACIAN, SECOND, Case, Refusal, TooLarge, module_names, unknown_name
from scaling.core.formatting import format_location
from scaling.core.reductions import REDUCTIONS, TRACE, WHOLE, Reduction

Inputs = Mapping[str, Any]
_LEAST_UNIFORM = 2.0**-24  # excludes 0 after rounding to float32 and bfloat16, which matters for low=0
_EMPTY_CELL = types.CellType()  # equal to the cell of a captured variable that was deleted
_cached_values: dict[str, dict[Hashable, Any]] = {}


@dataclass(frozen=True)
class InputSpec:
    """The shape of an input at one point (batch element), and a function that draws random values of it."""

    shape: tuple[int, ...]  # the shape of one row, the value at one point
    # Maps a generator and an array of row numbers to random values of shape (len(rows), *shape).
    make: Callable[[np.random.Generator, np.ndarray], np.ndarray]
    integer: bool = False  # whether the input is int32 and not differentiated
    # Numbers or arrays (low, high) between which the values must lie after rounding to 16 bits, or None.
    bounds: tuple[Any, Any] | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", _parse_shape("InputSpec", (self.shape,)))
        if not callable(self.make):
            text = "the second argument of InputSpec must be a function make(generator, rows)"
            raise Refusal(f"{text}, not {self.make!r}")


def _parse_shape(function: str, sizes: tuple[Any, ...], hint: str = "") -> tuple[int, ...]:
    if len(sizes) == 1 and isinstance(sizes[0], tuple | list):
        sizes = tuple(sizes[0])
    shape = []
    for size in sizes:
        try:  # accepts an integer array without axes, such as jnp.prod(...), too
            length = -1 if isinstance(size, bool | np.bool_) else operator.index(size)
        except TypeError:
            length = -1
        if length < 0:
            raise Refusal(f"the sizes of {function}(...) must be integers, zero or more, not {size!r}{hint}")
        shape.append(length)
    return tuple(shape)


def _require_finite(function: str, **parameters: Any) -> None:
    for name, value in parameters.items():
        try:
            finite = bool(np.all(np.isfinite(np.asarray(value, np.float64))))
        except (TypeError, ValueError):
            finite = False
        if not finite:
            raise Refusal(f"{name} of {function}(...) must be a finite number, not {value!r}")


def uniform(*shape: int, low: float = 0.0, high: float = 1.0) -> InputSpec:
    """Return an input of uniform random numbers between low and high. `shape` is its shape at each point."""
    hint = "; pass the interval by keyword, such as uniform(3, low=0.5, high=2.0)"
    shape = _parse_shape("uniform", shape, hint)
    _require_finite("uniform", low=low, high=high)
    if not np.all(np.less(low, high)):
        raise Refusal(f"low of uniform(...) must be less than high, not low={low!r} and high={high!r}")

    def make(rng: np.random.Generator, rows: np.ndarray) -> np.ndarray:
        return low + (high - low) * np.maximum(rng.random((len(rows), *shape)), _LEAST_UNIFORM)

    return InputSpec(shape, make, bounds=(low, high))


def normal(*shape: int, mean: float = 0.0, deviation: float = 1.0) -> InputSpec:
    """Return an input of normally distributed random numbers. `shape` is its shape at each point."""
    hint = "; pass mean and deviation by keyword, such as normal(3, mean=1.0, deviation=0.1)"
    shape = _parse_shape("normal", shape, hint)
    _require_finite("normal", mean=mean, deviation=deviation)
    if not np.all(np.greater_equal(deviation, 0)):
        raise Refusal(f"deviation of normal(...) must be zero or more, not {deviation!r}")
    return InputSpec(shape, lambda rng, rows: mean + deviation * rng.standard_normal((len(rows), *shape)))


def poisson(rate: float) -> InputSpec:
    """Return a scalar integer input with Poisson-distributed random numbers of mean `rate`."""
    _require_finite("poisson", rate=rate)
    if np.ndim(rate) or rate < 0:
        raise Refusal(f"rate of poisson(...) must be one number, zero or more, not {rate!r}")
    return InputSpec((), lambda rng, rows: rng.poisson(rate, len(rows)), integer=True)


class Reference(NamedTuple):
    """The function values and the derivative at some points (batch elements), in float64.

    Attributes:
        value: the function values, of shape (points, outputs).
        derivative: the Jacobians, of shape (points, outputs, inputs), or the Hessians.
        value_terms: an array of shape (points,), or None if the terms of the outputs do not cancel. At each
            point, it contains the sum of the absolute values of the terms of an output, or the largest sum
            of several outputs. An error is relative to the value or this sum, whichever is larger.
        derivative_terms: like `value_terms`, for the entries of the derivative.
    """

    value: np.ndarray
    derivative: np.ndarray
    value_terms: np.ndarray | None = None
    derivative_terms: np.ndarray | None = None


@dataclass(frozen=True)
class Workload:
    """A function to differentiate, its inputs, and its reference. A point is a batch element.

    Attributes:
        function: the JAX function of one point. It takes the inputs as keyword arguments. It returns an array
            or a pytree of arrays, which are concatenated in the order of `jax.tree.leaves`.
        points: the inputs with a separate value for each point, a dict from name to `InputSpec` or pytree
            of `InputSpec`. Each leaf of a pytree becomes an input named by its path, such as `params.w`.
        shared: the inputs with one value for all points, as a dict of the same form.
        wrt: the inputs to differentiate with respect to by default, joined by "+". For a pytree, `params`
            means all floating-point leaves of the input `params`, in tree order. `params.w` means one leaf.
        reduce: the reduction, a key of `reductions.REDUCTIONS`. None means the whole Jacobian.
        whole: a JAX function of the whole batch. Per-point inputs have a leading axis of points. The result
            is a scalar (the sum over the points), or an array or pytree of shape (points, *outputs).
        whole_modes: a dict from an AD mode without seeds, such as analytic or vmap_grad, to a JAX function of
            the batch. It returns the derivative in the shape (points, *outputs, *inputs), or as a pytree like
            `jax.vmap(jax.jacrev(...))`. For target=hessian, hvp or laplacian, it returns a Hessian, H v or
            Laplacian. For seeds=colored, it returns the nonzeros of `pattern`, of shape (points, nonzeros).
        reference: a NumPy function that takes a dict of float64 inputs, and returns the `Reference` with
            flattened inputs and outputs. If None, JAX differentiates `function` in float64.
        second: a function like `reference` for the Hessian of a scalar function.
        terms: the number of terms that are added in one entry of the derivative. It determines the tolerance.
        pattern: a function that returns the possible nonzeros of the Jacobian of one point. The result is two
            int32 arrays, the rows and the columns, sorted by row, then column.
        nonzeros: a function like `reference` for a Jacobian that is too large to be stored. Its derivative
            contains only the nonzeros of `pattern`, of shape (points, 1, nonzeros).
        direction: the names of the inputs that form the vector v of a product H v, or of J v in forward mode.
            There is one name per input in `wrt`, joined by "+". By default, the inputs in `wrt` form v.
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
    direction: str = ""

    @property
    def inputs(self) -> dict[str, InputSpec]:
        """Return all inputs as a dict from name to `InputSpec`."""
        return {**self.points, **self.shared}

    @property
    def reduction(self) -> Reduction:
        """Return the `Reduction` with the name `reduce`, or `WHOLE` (the whole Jacobian) if it is None."""
        return TRACE if self.reduce == TRACE.name else REDUCTIONS[self.reduce] if self.reduce else WHOLE

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of the differentiated inputs. A pytree has one name for each nonempty leaf."""
        return self._list_leaves(self.wrt)

    @property
    def direction_names(self) -> tuple[str, ...]:
        """Return the names of the inputs that form the vector v of a product H v or J v."""
        return self._list_leaves(self.direction or self.wrt)

    def _list_leaves(self, joined: str) -> tuple[str, ...]:
        nonempty = [leaf for leaf in _float_leaves(self.inputs) if math.prod(self.inputs[leaf].shape)]
        return tuple(leaf for name in joined.split("+") for leaf in _leaves_of(name, nonempty))


def _float_leaves(inputs: Mapping[str, InputSpec]) -> list[str]:
    return [leaf for leaf, spec in inputs.items() if not spec.integer]


def _leaves_of(name: str, leaves: Iterable[str]) -> list[str]:
    return [leaf for leaf in leaves if leaf == name or leaf.startswith(f"{name}.")]


def select_leaves(field_name: str, what: str, joined: str, leaves: Collection[str]) -> list[str]:
    """Return the input names that `joined`, such as "params+x", selects among `leaves`.

    The name of a pytree selects all its leaves. Raise `Refusal` if a name is unknown or a leaf is selected
    twice. The error messages contain `field_name`, a field of the case, or `what`, the kind of name.
    """
    selected: list[str] = []
    for name in joined.split("+"):
        if not (leaves_of_name := _leaves_of(name, leaves)):
            raise unknown_name(what, name, dict.fromkeys([*_top_level_names(leaves), *leaves]))
        selected += leaves_of_name
    if len(set(selected)) < len(selected):
        raise Refusal(f"{field_name}={joined!r} names an input twice")
    return selected


def import_named(what: str, name: str, path: str, valid_names: Iterable[str]) -> types.ModuleType:
    """Import and return the module `path`. Raise `Refusal` if this fails.

    The error message contains `name` and its kind, `what`. For an unknown name, it lists `valid_names`.
    """
    try:
        return importlib.import_module(path)
    except Refusal as error:
        raise Refusal(f"{what} {name!r}: {error}") from None
    except Exception as error:
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing and f"{path}.".startswith(f"{missing}."):
            raise unknown_name(what, name, valid_names) from None
        kind = "" if isinstance(error, ModuleNotFoundError) else f"{type(error).__name__}: "
        problem = f"{kind}{error}".removesuffix(": ") + format_location(error)
        raise Refusal(f"{what} {name!r} cannot be imported: {problem}") from None


def import_workload(name: str) -> types.ModuleType:
    """Import and return the module of a workload, given the name of a built-in one or an import path."""
    names = sorted(module_names("workloads") - {CEILING})
    path = f"scaling.workloads.{name}" if name in {*names, CEILING} else name
    imported = import_named("workload", name, path, [*names, "a module in this folder or on PYTHONPATH"])
    if not callable(getattr(imported, "workload", None)):
        text = "has no function workload(case) -> Workload; see README.md, 'A function of your own'"
        raise Refusal(f"workload {name!r} {text}")
    return imported


def source_digest(name: str) -> str | None:
    """Return a hash of the source of a user's workload and its imports, or None for a built-in workload."""
    if name in module_names("workloads") or not (file := getattr(import_workload(name), "__file__", None)):
        return None
    helpers = load_option("workload_sources").imported_sources(name)
    return hashlib.sha256(b"".join([Path(file).read_bytes(), *helpers])).hexdigest()[:16]


def make_from_module(case: Case) -> Any:
    """Call `workload(case)` in the workload module of a case, and return the result."""
    return import_workload(case.workload).workload(case)


def build(case: Case, make_workload: Callable[[Case], Any] = make_from_module) -> Workload:
    """Return the workload of a case, adapted to the fields `wrt`, `reduce` and `target` of the case.

    `make_workload(case)` returns the workload as the user wrote it. In the result, each leaf of a pytree is
    an input of its own, and the JAX functions return one array.
    """
    workload = _flatten_pytrees(case, make_workload(case))
    if case.target in SECOND:  # without `second`, whole_modes are first derivatives
        modes = workload.whole_modes if workload.second or case.ad_mode.has_seeds else {}
        reduce = TRACE.name if case.target == LAPLACIAN else None
        return dataclasses.replace(workload, reference=workload.second, whole_modes=modes, reduce=reduce)
    default = workload.reduce
    reduce = {None: default, "whole": None}.get(case.reduce, case.reduce)
    workload = dataclasses.replace(workload, reduce=reduce)
    is_reducible = default is None and reduce != "points"  # `reduction.of_jacobians` reduces a whole Jacobian
    if reduce == default or case.ad_mode.is_value or is_reducible:
        return workload
    return dataclasses.replace(workload, whole_modes={})


def _flatten_pytrees(case: Case, workload: Workload) -> Workload:
    name = case.workload
    if not (_has_only_specs(workload.points) and _has_only_specs(workload.shared)):
        workload = load_option("pytrees").with_flat_inputs(name, workload)
    if in_both := set(_top_level_names(workload.points)) & set(_top_level_names(workload.shared)):
        raise Refusal(f"inputs of {name!r} are both per point and shared: {', '.join(sorted(in_both))}")
    if not workload.points:
        raise Refusal(f"workload {name!r} has no per-point input: `points` is empty")
    workload = dataclasses.replace(workload, wrt=_wrt_or_default(case, workload))
    join = lambda function, *how: functools.partial(_call_and_join, function, *how)  # noqa: E731
    return dataclasses.replace(
        workload,
        function=join(workload.function, f"the function of {name!r}", 0),
        whole=workload.whole and join(workload.whole, f"`whole` of {name!r}", 1),
    )


def _call_and_join(function: Callable[..., Any], name: str, axes: int, /, *inputs: Any, **named: Any) -> Any:
    y = function(*inputs, **named)
    return y if hasattr(y, "dtype") else load_option("pytrees").concatenate_leaves(y, name, axes)


def join_blocks(case: Case, workload: Workload, result: Any) -> Any:
    """Return a handwritten derivative (an array or a pytree of blocks) as one array."""
    if hasattr(result, "dtype"):  # a class of the user's pytree may have a field `shape`
        return result
    sizes = [math.prod(workload.inputs[name].shape) for name in workload.names]
    return load_option("pytrees").concatenate_blocks(result, f"{case.mode} of {case.workload!r}", sizes)


def _has_only_specs(inputs: Any) -> bool:
    return isinstance(inputs, Mapping) and all(
        isinstance(name, str) and name.isidentifier() and isinstance(spec, InputSpec)
        for name, spec in inputs.items()
    )


def _top_level_names(names: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(name.partition(".")[0] for name in names))


def _wrt_or_default(case: Case, workload: Workload) -> str:
    wrt = case.wrt or workload.wrt or _top_level_names(workload.inputs)[0]
    what = f"floating-point input to differentiate {case.workload} with respect to (wrt, joined by +)"
    leaves = set(select_leaves("wrt", what, wrt, _float_leaves(workload.inputs)))
    shared = _top_level_names(_float_leaves(workload.shared))
    # A sum over points is differentiated with respect to all shared inputs by default.
    if case.wrt is None and case.reduce == "points" and shared and not leaves <= set(workload.shared):
        return "+".join(shared)
    return wrt


# Exception of JAX -> how to write the function instead.
_TRACER_FIXES = {
    "TracerBoolConversionError": "; write jnp.where(condition, a, b) or jax.lax.cond instead of if",
    "TracerArrayConversionError": "; call functions of jax.numpy instead of numpy",
    "ConcretizationTypeError": "; use jax.numpy arrays instead of float() and int()",
}


def evaluate_shape(case: Case, function: Callable[..., Any], inputs: Mapping[str, Any]) -> Any:
    """Return the shape and dtype of `function(**inputs)`. Raise `Refusal` or `TooLarge` if the call fails."""
    import jax

    try:
        out = jax.eval_shape(lambda named: function(**named), dict(inputs))
    except Refusal:
        raise
    except MemoryError as error:
        array_bytes = getattr(error, "_total_size", 0)  # an attribute of NumPy's MemoryError
        host_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        if array_bytes < host_bytes:
            raise  # the host has this memory, but it is in use
        raise TooLarge(f"the function of {case.workload} cannot be evaluated: MemoryError: {error}") from None
    except Exception as error:
        lengths = {*case.sizes.values(), *(length for array in inputs.values() for length in array.shape)}
        # JAX numbers the elements of an axis with int32.
        names_length = any(str(length) in str(error) for length in lengths if length >= 2**31)
        if isinstance(error, OverflowError) and names_length:
            raise TooLarge(f"the function of {case.workload} cannot be evaluated: {error}") from None
        first_line, location = (str(error).strip().splitlines() or [""])[0], format_location(error)
        what = "fails on abstract inputs (arrays that have a shape and a dtype, but no values)"
        fix = _TRACER_FIXES.get(type(error).__name__, "")
        if isinstance(error, TypeError) and " argument" in first_line and not location:  # other inputs
            fix = f"; its parameters must take the inputs by name: {', '.join(_top_level_names(inputs))}"
        text = f"{type(error).__name__}: {first_line}".removesuffix(": ") + location + fix
        raise Refusal(f"workload {case.workload!r} {what}: {text}") from None
    if not isinstance(out, jax.ShapeDtypeStruct) or not jax.numpy.issubdtype(out.dtype, jax.numpy.floating):
        returned = f"numbers of dtype {out.dtype}" if isinstance(out, jax.ShapeDtypeStruct) else repr(out)
        text = "must return an array of real numbers, or a pytree of them"
        fix = "convert it, such as y.astype(float), or return the parts y.real and y.imag"
        raise Refusal(f"workload {case.workload!r} {text}, not {returned}: {fix}")
    return out


def cached(kind: str, key: Hashable, compute: Callable[[], Any], max_values: int) -> Any:
    """Return the cached value of `key`, or compute and cache it. Each `kind` keeps `max_values` values."""
    values_of_kind = _cached_values.setdefault(kind, {})
    if key not in values_of_kind:
        computed = compute()
        while len(values_of_kind) >= max_values:
            values_of_kind.pop(next(iter(values_of_kind)))
        values_of_kind[key] = computed
    return values_of_kind[key]


def clear_cache() -> None:
    """Remove all cached values."""
    _cached_values.clear()


def fingerprint(value: Any, enclosing: tuple[Any, ...] = ()) -> Hashable:
    """Return a hashable cache key. Functions with equal code and equal captured values have equal keys."""
    import jax  # here, because commands that only name workloads do not need JAX

    for depth, outer in enumerate(enclosing):
        if value is outer:  # a recursive function captures itself
            return "recursive", depth
    inner = functools.partial(fingerprint, enclosing=(*enclosing, value))
    if isinstance(value, tuple | list):
        return (type(value), *map(inner, value))
    if isinstance(value, Mapping):
        return tuple((inner(key), inner(item)) for key, item in value.items())
    if isinstance(value, functools.partial):
        return inner((value.func, value.args, value.keywords))
    if isinstance(value, jax.Array) and jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key):
        return str(value.dtype), inner(jax.random.key_data(value))
    if hasattr(value, "__array__"):
        array = np.ascontiguousarray(value)
        return array.shape, str(array.dtype), hashlib.sha256(array.tobytes()).hexdigest()
    if code := getattr(value, "__code__", None):
        cells = [_EMPTY_CELL if c == _EMPTY_CELL else c.cell_contents for c in value.__closure__ or ()]
        bound_to = getattr(value, "__self__", None)  # of a method
        return code, inner((value.__defaults__, value.__kwdefaults__, cells, bound_to))
    try:
        hash(value)
    except TypeError:
        return _Identity(value)
    return value  # type: ignore[no-any-return]


@dataclass(frozen=True, eq=False)
class _Identity:
    """A cache key that is equal only to a key of the same object."""

    value: Any  # kept alive, so that its id stays unique

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Identity) and self.value is other.value

    def __hash__(self) -> int:
        return id(self.value)
