"""Convert a user's function of pytrees to a function that takes one array per leaf and returns one array.

A leaf is named by its path, such as `params.w`. The leaves of an output are raveled and concatenated in the
order of `jax.tree.leaves`. Inputs and outputs that are not valid pytrees are rejected with an error message.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from scaling.core.case import Refusal
from scaling.core.workload import InputSpec, Workload


@dataclass(frozen=True)
class InputTree:
    """An input of a workload that is a pytree.

    Attributes:
        name: the name of the input.
        structure: its tree structure, a `jax.tree_util.PyTreeDef`.
        leaves: the names of its leaves, in the order of `jax.tree.leaves`.
    """

    name: str
    structure: Any
    leaves: tuple[str, ...]


def flatten_inputs(name: str, workload: Workload) -> Workload:
    """Return a workload whose inputs are the leaves of the inputs of the given workload.

    The functions of the new workload take the leaves as keyword arguments, or in a dict for a reference.
    Raise `Refusal` if an input is neither an `InputSpec` nor a pytree of `InputSpec`. The name of the
    workload is used in error messages.
    """
    points, point_trees = _flatten_group(name, "points", workload.points)
    shared, shared_trees = _flatten_group(name, "shared", workload.shared)
    trees = point_trees + shared_trees
    wrap = lambda function: function and functools.partial(_call_with_trees, function, trees)  # noqa: E731
    by_mapping = lambda form: form and functools.partial(_call_reference, form, trees)  # noqa: E731
    return dataclasses.replace(
        workload,
        points=points,
        shared=shared,
        function=wrap(workload.function),
        whole=wrap(workload.whole),
        whole_modes={mode: wrap(function) for mode, function in workload.whole_modes.items()},
        reference=by_mapping(workload.reference),
        second=by_mapping(workload.second),
        nonzeros=by_mapping(workload.nonzeros),
    )


def _call_with_trees(
    function: Callable[..., Any], trees: tuple[InputTree, ...], /, *inputs: Any, **named: Any
) -> Any:
    """Call a function that takes pytrees, after combining leaves given as keyword arguments into pytrees."""
    return function(*inputs, **_unflatten(trees, named))


def _call_reference(
    function: Callable[..., Any], trees: tuple[InputTree, ...], named: Mapping[str, Any], /
) -> Any:
    """Call a reference function that takes a dict of pytrees, after combining the leaves into pytrees."""
    return function(_unflatten(trees, named))


def _unflatten(trees: tuple[InputTree, ...], named: Mapping[str, Any]) -> dict[str, Any]:
    """Return the inputs as a dict from name to value, in which leaves are combined into their pytrees.

    `named` contains the leaves by name, and the inputs that are not pytrees.
    """
    inputs = dict(named)
    for tree in trees:
        inputs[tree.name] = jax.tree.unflatten(tree.structure, [inputs.pop(leaf) for leaf in tree.leaves])
    return inputs


def _flatten_group(
    workload: str, group: str, inputs: Any
) -> tuple[dict[str, InputSpec], tuple[InputTree, ...]]:
    """Flatten the inputs in one of the fields "points" and "shared" of a workload.

    Args:
        workload: the name of the workload, for error messages.
        group: the name of the field.
        inputs: the value of the field, a mapping from input name to `InputSpec` or pytree.

    Returns:
        A dict from name to `InputSpec` of the leaves of pytrees and of all other inputs.
        An `InputTree` for each input that is a pytree.
    """
    if not isinstance(inputs, Mapping):
        example = f'{group}={{"x": normal(3)}}'
        words = f"must be a mapping from input names, such as {example}, not {describe(inputs)}"
        raise Refusal(f"{group} of {workload!r} {words}")
    specs: dict[str, InputSpec] = {}
    trees = []
    for name, value in inputs.items():
        if not isinstance(name, str) or not name.isidentifier():
            hint = "the function takes each input as a keyword argument"
            raise Refusal(f"input {name!r} of {workload!r} must have a name such as 'x' or 'params': {hint}")
        if isinstance(value, InputSpec):
            specs[name] = value
            continue
        tree, leaves = _flatten_tree(workload, name, value)
        trees.append(tree)
        specs |= leaves
    return specs, tuple(trees)


def _flatten_tree(workload: str, name: str, value: Any) -> tuple[InputTree, dict[str, InputSpec]]:
    """Return the `InputTree` of an input that is a pytree, and a dict from leaf name to `InputSpec`."""
    is_spec = lambda node: isinstance(node, InputSpec)  # noqa: E731
    paths, structure = jax.tree_util.tree_flatten_with_path(value, is_leaf=is_spec)
    specs: dict[str, InputSpec] = {}
    for path, leaf in paths:
        leaf_name = ".".join([name, *(jax.tree_util.keystr((key,), simple=True) for key in path)])
        if not isinstance(leaf, InputSpec):
            raise _invalid_input(workload, leaf_name, leaf)
        if "+" in leaf_name:
            words = "has '+' in its name, which joins the names of wrt: rename the key"
            raise Refusal(f"input {leaf_name!r} of {workload!r} {words}")
        if leaf_name in specs:
            words = f"have the same path {leaf_name!r}: rename a key"
            raise Refusal(f"two leaves of input {name!r} of {workload!r} {words}")
        specs[leaf_name] = leaf
    if not specs:
        raise _invalid_input(workload, name, value)
    return InputTree(name, structure, tuple(specs)), specs


def _invalid_input(workload: str, name: str, value: Any) -> Refusal:
    hint = "a constant belongs inside the function"
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        hint = "register the dataclass with jax.tree_util.register_dataclass"
    elif callable(value):
        hint = "call it with the shape of the input"
    return Refusal(
        f"input {name!r} of {workload!r} is {describe(value)}: "
        "write an InputSpec, such as normal(3), uniform(2, 3) or poisson(1.5), or a pytree of InputSpecs; "
        f"{hint}"
    )


def describe(value: Any) -> str:
    """Return a short description of a value for an error message, such as "the number 3"."""
    if value is None or isinstance(value, bool):
        return repr(value)
    if isinstance(value, int | float | complex):
        return f"the number {value!r}"
    if isinstance(value, str):
        return f"the text {value!r}"
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        kind = "a NumPy array" if isinstance(value, np.ndarray | np.generic) else "an array"
        return f"{kind} of shape {tuple(value.shape)} and dtype {value.dtype}"
    if isinstance(value, Mapping | Sequence) and not value:
        return f"an empty {type(value).__name__}"
    if callable(value):
        kind = "class" if isinstance(value, type) else "function"
        return f"the {kind} {getattr(value, '__name__', type(value).__name__)}"
    return f"an instance of {type(value).__name__}"


def concatenate_leaves(result: Any, what: str, leading: int = 0) -> Any:
    """Return the leaves of a function's result, which may be a pytree, as one array.

    A single leaf is returned unchanged. Of several leaves, all axes after the leading ones are raveled, and
    the leaves are concatenated: (*leading axes, elements). Raise `Refusal` if a leaf is not an array of real
    numbers, or if the lengths of the leading axes differ.

    Args:
        what: the name of the function in error messages.
        leading: the number of leading axes, such as 1 if every leaf has an axis of points.
    """
    paths, _ = jax.tree_util.tree_flatten_with_path(result)
    if not paths:
        words = "it must return an array of real numbers, or a pytree of them"
        raise Refusal(f"{what} returns {describe(result)}: {words}")
    for path, leaf in paths:
        _require_real(what, jax.tree_util.keystr(path, simple=True, separator="."), leaf)
    arrays = [jnp.asarray(leaf) for _, leaf in paths]
    if len(arrays) == 1:
        return arrays[0]
    if len({a.shape[:leading] for a in arrays}) > 1 or arrays[0].ndim < leading:
        shapes = ", ".join(str(a.shape) for a in arrays)
        words = "all of them must lead with the axis of the points"
        raise Refusal(f"{what} returns arrays of shapes {shapes}: {words}")
    return jnp.concatenate([a.reshape(*a.shape[:leading], -1) for a in arrays], axis=leading)


def _require_real(what: str, path: str, leaf: Any) -> None:
    numeric = hasattr(leaf, "dtype") or isinstance(leaf, int | float | complex)
    if not numeric or not jnp.issubdtype(jnp.result_type(leaf), jnp.floating):
        found = f"numbers of dtype {jnp.result_type(leaf)}" if numeric else describe(leaf)
        where = f" as output {path!r}" if path else ""
        raise Refusal(f"{what} returns {found}{where}: every output must be an array of real numbers")


def concatenate_blocks(result: Any, what: str, columns: Sequence[int], per_point: bool = True) -> Any:
    """Concatenate the blocks of a derivative, as `jax.jacrev` returns them for pytrees, into one array.

    A block is the derivative of one output leaf with respect to one input leaf. Raise `Refusal` if the shapes
    of the blocks do not fit together.

    Args:
        result: the blocks, a pytree like the output in which each leaf is a pytree like the inputs.
        what: the name of the function in error messages.
        columns: the number of elements of each input leaf.
        per_point: whether the array is a Jacobian for each point, (points, outputs, inputs). Otherwise it is
            the derivative of a sum over points, (1, inputs).
    """
    leaves = [jnp.asarray(leaf) for leaf in jax.tree.leaves(result)]
    if len(leaves) == 1:
        return leaves[0]
    inputs = len(columns)
    widths = list(columns) * (len(leaves) // inputs)
    if not leaves or not _are_blocks(leaves, widths, inputs, per_point):
        shapes = ", ".join(str(a.shape) for a in leaves) or "nothing"
        words = f"which are not blocks of a derivative by inputs of {', '.join(map(str, columns))} elements"
        raise Refusal(
            f"{what} returns {shapes}, {words}: return one array, or a pytree such as jax.jacrev returns"
        )
    if not per_point:
        return jnp.concatenate([a.reshape(1, n) for a, n in zip(leaves, widths, strict=True)], axis=1)
    blocks = [a.reshape(a.shape[0], -1, n) for a, n in zip(leaves, widths, strict=True)]
    block_rows = [jnp.concatenate(blocks[k : k + inputs], axis=2) for k in range(0, len(blocks), inputs)]
    return jnp.concatenate(block_rows, axis=1)


def _are_blocks(leaves: Sequence[Any], widths: Sequence[int], inputs: int, per_point: bool) -> bool:
    """Return whether arrays have the shapes of blocks that together form one derivative.

    Args:
        leaves: the arrays, block row by block row.
        widths: the number of columns that each array must have.
        inputs: the number of arrays in each block row.
        per_point: whether the arrays have a leading axis of points.
    """
    if len(widths) != len(leaves) or 0 in widths:
        return False
    sized = list(zip(leaves, widths, strict=True))
    if not per_point:
        return len(leaves) == inputs and all(a.size == n for a, n in sized)
    if any(a.ndim == 0 or not a.size or a.size % (a.shape[0] * n) for a, n in sized):
        return False
    heights = [a.size // (a.shape[0] * n) for a, n in sized]
    block_rows = [set(heights[k : k + inputs]) for k in range(0, len(heights), inputs)]
    return len({a.shape[0] for a in leaves}) == 1 and all(len(row) == 1 for row in block_rows)
