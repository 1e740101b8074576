"""Check the function and the inputs of `scaling.advise` (`Problem`), and register a temporary workload.

A function that is defined in a notebook cannot be imported by name. Therefore, `registered` adds a temporary
module to `sys.modules`.
"""

import contextlib
import dataclasses
import inspect
import itertools
import keyword
import re
import sys
import types
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from scaling.core.case import DTYPES, SECOND, Case, Refusal, check_names
from scaling.core.formatting import list_first
from scaling.core.workload import InputSpec, Workload, clear_cache, uniform
from scaling.options.pytrees import describe
from scaling.study.user_workload import ADVISED

TARGETS = ("jacobian", "hessian", "hvp", "gauss_newton")
PRODUCTS = ("hvp", "gauss_newton")  # targets with an additional argument, a direction for each point
_workload_numbers = itertools.count(1)  # distinguishes the workloads of functions with equal names
_UNREADABLE = {  # type of a value that cannot be an input -> what to use instead
    jax.core.Tracer: "call scaling.advise outside of jit, vmap and grad, or use a jax.ShapeDtypeStruct",
    np.ma.MaskedArray: "JAX would ignore its mask; use x.filled(0), and the mask as another input",
}
_is_floating = lambda array: jnp.issubdtype(array.dtype, jnp.floating)  # noqa: E731
_leaf_name = lambda path: jax.tree_util.keystr(path, simple=True, separator=".")  # noqa: E731


@dataclass(frozen=True)
class Problem:
    """A function of one point (an element of a batch) to differentiate, and its inputs for a whole batch."""

    function: Callable[..., Any]
    arguments: tuple[str, ...]  # names of the inputs, in the order of the parameters of the function
    # Input name -> pytree of arrays or `jax.ShapeDtypeStruct`. The arrays in `points` have an axis of points.
    points: Mapping[str, Any]
    shared: Mapping[str, Any]
    wrt: tuple[str, ...]  # names of the differentiated inputs
    target: str  # one of `TARGETS`
    dtype: str  # the dtype of all floating-point inputs
    import_line: str = ""  # line of code that imports the function, or ""

    @property
    def name(self) -> str:
        """Return the name that `import_line` imports. Without that line, return the function's own name.

        Return "f" if this name is not a valid identifier, as for a lambda.
        """
        name = self.import_line.rpartition(" ")[2] or getattr(self.function, "__name__", "f")
        return name if name.isidentifier() and not keyword.iskeyword(name) else "f"

    @property
    def argnums(self) -> tuple[int, ...]:
        """Return the indices of the differentiated inputs in `arguments`."""
        return tuple(self.arguments.index(name) for name in self.wrt)

    def structs_at_point(self) -> list[Any]:
        """Return a pytree of `jax.ShapeDtypeStruct` (shapes and dtypes) for each argument at one point."""
        per_point = lambda a: jax.ShapeDtypeStruct(a.shape[1:], a.dtype)  # noqa: E731
        shapes = {**jax.tree.map(per_point, dict(self.points)), **self.shared}
        return [jax.eval_shape(lambda tree: tree, shapes[name]) for name in self.arguments]

    def input_structs(self) -> list[Any]:
        """Return a pytree of `jax.ShapeDtypeStruct` for each differentiated input at one point."""
        structs = self.structs_at_point()
        return [structs[k] for k in self.argnums]

    def output_structs(self) -> Any:
        """Return a pytree of `jax.ShapeDtypeStruct` (shapes and dtypes) for the result at one point."""
        return jax.eval_shape(self.function, *self.structs_at_point())


def make_problem(
    function: Callable[..., Any],
    points: Mapping[str, Any],
    shared: Mapping[str, Any] | None = None,
    wrt: str | None = None,
    target: str = "jacobian",
    import_line: str = "",
) -> Problem:
    """Check the arguments of `scaling.advise`, and return a `Problem`. Raise `Refusal` if one is invalid."""
    if not callable(function):
        raise Refusal(f"the function to advise on is {describe(function)}: give a function of one point")
    if inspect.iscoroutinefunction(function):
        raise Refusal(
            "the function to advise on is defined by `async def`, which JAX cannot trace: use `def`"
        )
    if not isinstance(import_line, str):
        example = "such as 'from my_model import f'"
        raise Refusal(f"import_line must be a line of code, {example}, not {describe(import_line)}")
    check_names("target", [target], TARGETS)
    points = _read_inputs("points", points)
    shared = _read_inputs("shared", {} if shared is None else shared)
    _check_points(points, shared)
    inputs = {**points, **shared}
    names = _read_wrt(next(iter(points)) if wrt is None else wrt, inputs)
    dtypes = {str(a.dtype) for a in jax.tree.leaves(inputs) if _is_floating(a)}
    if len(dtypes) > 1 or not dtypes <= set(DTYPES):
        raise Refusal(
            f"the inputs have the dtypes {', '.join(sorted(dtypes))}: use one of {', '.join(DTYPES)} for all"
        )
    arguments = _order_arguments(function, inputs)
    return Problem(function, arguments, points, shared, names, target, dtypes.pop(), import_line)


def _check_points(points: Mapping[str, Any], shared: Mapping[str, Any]) -> None:
    """Raise `Refusal` unless the arrays in `points` have leading axes of the same length, at least 1.

    Also raise it if `points` is empty, or if an input is in both `points` and `shared`.
    """
    if not points or set(points) & set(shared):
        both = ", ".join(sorted(set(points) & set(shared)))
        raise Refusal(
            f"each input is in points or in shared, and one at least in points (in both: {both or 'none'})"
        )
    leaves = jax.tree_util.tree_leaves_with_path(points)
    lengths = {_leaf_name(path): leaf.shape[0] if leaf.shape else 0 for path, leaf in leaves}
    if len(set(lengths.values())) > 1 or 0 in lengths.values():
        text = list_first([f"{name} has {length:,}" for name, length in lengths.items()], 4)
        raise Refusal(
            f"points must have leading axes of one length, at least 1: {text}; an input without one belongs "
            "in shared, and a list of numbers is no array: use np.array(list)"
        )


def _read_inputs(group: str, inputs: Any) -> dict[str, Any]:
    """Return `inputs` with all leaves converted to arrays of JAX dtypes.

    Raise `Refusal` if a leaf cannot be converted. `group` is "points" or "shared".
    """
    if not isinstance(inputs, Mapping) or not all(isinstance(name, str) for name in inputs):
        raise Refusal(
            f"{group} must be a dict such as {{'x': x}} by names of parameters, not {describe(inputs)}"
        )
    try:
        jax.tree.structure(dict(inputs))
    except ValueError as error:  # such as keys that JAX cannot sort
        fix = "use strings as the keys of dicts"
        raise Refusal(f"{group} contains no pytree of JAX ({error}): {fix}") from None
    arrays = jax.tree_util.tree_map_with_path(_read_leaf, dict(inputs))
    for name in inputs:
        if not jax.tree.leaves(arrays[name]):
            text = f"input {name!r} is {describe(inputs[name])}"
            raise Refusal(f"{text}: an input is an array or a pytree of arrays")
    return {name: arrays[name] for name in inputs}  # JAX sorts the keys


def _read_leaf(path: Any, leaf: Any) -> Any:
    """Return a leaf of an input as an array of a JAX dtype. Raise `Refusal` if it cannot be converted.

    `path` is the path of the leaf in its pytree.
    """
    subject = f"input {_leaf_name(path)!r}"
    for kind, fix in _UNREADABLE.items():
        if isinstance(leaf, kind):
            raise Refusal(f"{subject} is a {kind.__name__}: {fix}")
    is_abstract = isinstance(leaf, jax.ShapeDtypeStruct)
    try:
        array = leaf if is_abstract else np.asarray(leaf)
    except Exception as error:  # such as a tensor of PyTorch that requires a gradient, or a jax.random.key
        text = " ".join(str(error).split())
        raise Refusal(f"{subject} cannot be converted to an array of NumPy ({text})") from None
    if not any(jnp.issubdtype(array.dtype, kind) for kind in (jnp.floating, jnp.integer, jnp.bool_)):
        raise Refusal(
            f"{subject} is {describe(leaf)}: inputs are arrays of real numbers; "
            "bind other values by functools.partial; a dataclass must be registered with "
            "jax.tree_util.register_dataclass"
        )
    is_wide = not is_abstract and array.size and array.dtype in (np.int64, np.uint64)
    if is_wide and not -(2**31) <= int(array.min()) <= int(array.max()) < 2**31:
        excess = f"has integers from {array.min()} to {array.max()}, but integers have 32 bits here"
        raise Refusal(f"{subject} {excess}: use smaller ones, or floating point")
    dtype = jax.dtypes.canonicalize_dtype(array.dtype)
    return jax.ShapeDtypeStruct(array.shape, dtype) if is_abstract else array.astype(dtype)


def _read_wrt(wrt: Any, inputs: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names in `wrt` as a tuple, such as ("x", "y") for "x+y".

    Raise `Refusal` if an input is unknown or not floating point.
    """
    if not isinstance(wrt, str) or "," in wrt:
        raise Refusal(f"wrt must be names joined by '+', such as {'+'.join(inputs)}, not {describe(wrt)}")
    names = tuple(wrt.split("+"))
    for name in names:
        check_names("input to differentiate with respect to (wrt)", [name], inputs)
        if dtypes := [str(a.dtype) for a in jax.tree.leaves(inputs[name]) if not _is_floating(a)]:
            fix = "convert it to floating point, or give it in another input"
            raise Refusal(f"wrt={name} contains {dtypes[0]}, which has no derivative: {fix}")
    return names


def _order_arguments(function: Callable[..., Any], inputs: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names of the inputs in the order of the parameters of the function.

    Raise `Refusal` if the inputs and the parameters do not match.
    """
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # a built-in function has no signature
        return tuple(inputs)
    with contextlib.suppress(TypeError):  # more or fewer parameters than inputs
        names = tuple(signature.bind(*inputs).arguments)
        if set(names) == set(inputs):
            return names
    raise Refusal(
        f"the function takes {signature}, but the inputs are {', '.join(inputs)}: give "
        "each positional parameter in points or in shared, and bind others by functools.partial or a lambda"
    )


@contextlib.contextmanager
def registered(
    problem: Problem,
    write: Callable[[Case], Callable[..., Any]] | None = None,
    other_modes: Sequence[str] = (),
) -> Iterator[Case]:
    """Register a problem as a temporary workload, yield a `Case` of it, and remove it on exit.

    By default, core/ computes the derivative. If `write` is given, `write(case)` returns a function that
    computes the derivative at all points by the AD mode of `case`. `other_modes` are further AD modes that
    only this function supports.
    """
    module = types.ModuleType(f"{ADVISED}{problem.name}_{next(_workload_numbers)}")
    module.workload = _define_workload(problem, write, other_modes)  # type: ignore[attr-defined]
    sys.modules[module.__name__] = module
    count, is_second = jax.tree.leaves(dict(problem.points))[0].shape[0], problem.target in SECOND
    try:
        yield Case(
            module.__name__, problem.target if is_second else None, points=count, dtype=problem.dtype,
            api="jit", mode="fwd_over_rev" if is_second else "jacfwd", precision="default",
        )  # fmt: skip
    except Refusal as error:
        text = name_user_function(str(error))
        has_number = any(a.shape == () and not _is_floating(a) for a in jax.tree.leaves(dict(problem.shared)))
        if "on abstract inputs" in text and has_number:
            text += "; bind a size, an axis or a flag by functools.partial"
        raise Refusal(text) from None
    finally:
        del sys.modules[module.__name__]
        clear_cache()


def _define_workload(
    problem: Problem, write: Callable[[Case], Callable[..., Any]] | None, other_modes: Sequence[str]
) -> Callable[[Case], Workload]:
    """Return the function `workload(case)` of a temporary module. `registered` documents the arguments."""
    directions: dict[str, Any] = {}  # name -> specs, for the directions of each differentiated input
    if problem.target in PRODUCTS:
        names = [_name_copy(problem, name, "direction") for name in problem.wrt]
        directions = dict(zip(names, map(_make_specs, names, problem.input_structs()), strict=True))
    workload = Workload(
        lambda **inputs: problem.function(*_order_inputs(problem, inputs)),
        points={name: _make_specs(name, value, 1) for name, value in problem.points.items()} | directions,
        shared={name: _make_specs(name, value) for name, value in problem.shared.items()},
        wrt="+".join(problem.wrt),
        direction="+".join(directions),
    )
    if problem.target == "gauss_newton":
        workload = _gauss_newton_workload(problem, workload)

    def make_workload(case: Case) -> Workload:
        def differentiate(**inputs: Any) -> Any:
            assert write is not None
            v = tuple(inputs[name] for name in directions)
            return write(case)(*_order_inputs(problem, inputs), *([v] if len(v) > 1 else v))

        modes = () if write is None else (case.mode, *other_modes)
        return dataclasses.replace(workload, whole_modes=dict.fromkeys(modes, differentiate))

    return make_workload


def name_user_function(text: str) -> str:
    """Replace the name of a temporary module in an error message by the name of the user's function."""
    text = text.removesuffix("; add a reference to the workload")
    return re.sub(r"((workload|the function of) )?'?advised\.(\w+)_\d+'?", r"the function '\3'", text)


def _order_inputs(problem: Problem, inputs: Mapping[str, Any]) -> list[Any]:
    """Return the values of `inputs` in the order of the parameters of the user's function.

    Integer and boolean arrays are converted back to the dtypes that the user passed.
    """
    restore_dtype = lambda a, user: a if _is_floating(user) else a.astype(user.dtype)  # noqa: E731
    user_inputs = {**problem.points, **problem.shared}
    return [jax.tree.map(restore_dtype, inputs[name], user_inputs[name]) for name in problem.arguments]


def _name_copy(problem: Problem, name: str, kind: str) -> str:
    """Return a new name for a copy of the input `name`, such as "x_direction_" for "x".

    `kind` describes the copy. In this example, it is "direction".
    """
    return f"{name}_{kind}" + "_" * max(map(len, problem.arguments))  # longer than all existing names


def _gauss_newton_workload(problem: Problem, workload: Workload) -> Workload:
    """Return a workload whose directional derivative is a Gauss-Newton product J^T J v.

    `workload` evaluates a function f, and J is its Jacobian. The returned workload evaluates g(z) = J(x)^T
    f(z). The additional input x has the same values as z. The derivative of g with respect to z in direction
    v is J^T J v.
    """
    copies = {_name_copy(problem, name, "fixed"): name for name in problem.wrt}

    def pull_back(**inputs: Any) -> Any:
        f = lambda *x: workload.function(**inputs | dict(zip(problem.wrt, x, strict=True)))  # noqa: E731
        _, pullback = jax.vjp(f, *(inputs[name] for name in copies))
        return pullback(f(*(inputs[name] for name in problem.wrt)))

    add_copies = lambda specs: specs | {c: specs[n] for c, n in copies.items() if n in specs}  # noqa: E731
    return dataclasses.replace(
        workload, function=pull_back, points=add_copies(workload.points), shared=add_copies(workload.shared),
        reduce="vector",
    )  # fmt: skip


def _make_specs(name: str, arrays: Any, point_axes: int = 0) -> Any:
    """Return a pytree with an `InputSpec`, which produces values, for each array of an input.

    `name` is the name of the input, and `arrays` is its pytree. For a `jax.ShapeDtypeStruct`, the values are
    random numbers, or zeros for an integer dtype. `point_axes` is 1 if the arrays have a leading axis of
    points, otherwise 0.
    """

    def make_spec(path: Any, array: Any) -> InputSpec:
        shape, integer = tuple(array.shape[point_axes:]), not _is_floating(array)
        seed = zlib.crc32(f"{name}{_leaf_name(path)}".encode())

        def make_rows(_: Any, rows: np.ndarray) -> np.ndarray:
            if not isinstance(array, jax.ShapeDtypeStruct):
                batch = array if point_axes else array[None]
                selected = batch[rows % len(batch)]
                return np.asarray(selected.astype(np.int32) if integer else selected, np.float64)
            generator = np.random.default_rng([seed, int(rows[0])])
            return np.zeros((len(rows), *shape)) if integer else uniform(*shape).make(generator, rows)

        return InputSpec(shape, make_rows, integer)

    return jax.tree_util.tree_map_with_path(make_spec, arrays)
