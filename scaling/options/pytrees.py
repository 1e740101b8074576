"""Workloads whose inputs or outputs are pytrees: each leaf of an input becomes an input, a result one array.

A leaf is named by its path, such as `params.w`. The leaves of an output are raveled and concatenated in the
order of `jax.tree.leaves`. Loaded for a workload that has pytrees, or one that must be refused.
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
    """An input that is a pytree: its name, its structure, and the names of its leaves in their order."""

    name: str
    structure: Any
    leaves: tuple[str, ...]


def flatten_inputs(name: str, made: Workload) -> Workload:
    """Return a workload with the leaves of its inputs as inputs, and with functions that take these.

    Refuse an input that is neither a draw nor a pytree of draws.
    """
    points, trees_of_points = _flatten_group(name, "points", made.points)
    shared, trees_of_shared = _flatten_group(name, "shared", made.shared)
    trees = trees_of_points + trees_of_shared
    wrap = lambda function: function and functools.partial(_call_with_trees, function, trees)  # noqa: E731
    by_block = lambda function: function and functools.partial(_call_on_block, function, trees)  # noqa: E731
    return dataclasses.replace(
        made,
        points=points,
        shared=shared,
        function=wrap(made.function),
        whole=wrap(made.whole),
        whole_modes={mode: wrap(function) for mode, function in made.whole_modes.items()},
        reference=by_block(made.reference),
        second=by_block(made.second),
        nonzeros=by_block(made.nonzeros),
    )


def _call_with_trees(
    function: Callable[..., Any], trees: tuple[InputTree, ...], /, *inputs: Any, **named: Any
) -> Any:
    """Call a function of pytrees with their leaves by name."""
    return function(*inputs, **_rebuild(trees, named))


def _call_on_block(
    function: Callable[..., Any], trees: tuple[InputTree, ...], named: Mapping[str, Any], /
) -> Any:
    """Call a reference, which takes its inputs in one mapping."""
    return function(_rebuild(trees, named))


def _rebuild(trees: tuple[InputTree, ...], named: Mapping[str, Any]) -> dict[str, Any]:
    """Return the inputs as the user's function takes them, with leaves put back into their pytrees."""
    whole = dict(named)
    for tree in trees:
        whole[tree.name] = jax.tree.unflatten(tree.structure, [whole.pop(leaf) for leaf in tree.leaves])
    return whole


def _flatten_group(
    workload: str, group: str, inputs: Any
) -> tuple[dict[str, InputSpec], tuple[InputTree, ...]]:
    """Return the draws of `points` or `shared` by the names of leaves, and the inputs that are pytrees."""
    if not isinstance(inputs, Mapping):
        example = f'{group}={{"x": normal(3)}}'
        words = f"must be a mapping from input names, such as {example}, not {describe(inputs)}"
        raise Refusal(f"{group} of {workload!r} {words}")
    draws: dict[str, InputSpec] = {}
    trees = []
    for name, value in inputs.items():
        if not isinstance(name, str) or not name.isidentifier():
            hint = "the function takes each input as a keyword argument"
            raise Refusal(f"input {name!r} of {workload!r} must have a name such as 'x' or 'params': {hint}")
        if isinstance(value, InputSpec):
            draws[name] = value
            continue
        tree, leaves = _flatten(workload, name, value)
        trees.append(tree)
        draws |= leaves
    return draws, tuple(trees)


def _flatten(workload: str, name: str, value: Any) -> tuple[InputTree, dict[str, InputSpec]]:
    """Return the structure and the draws of an input that is a pytree."""
    is_draw = lambda node: isinstance(node, InputSpec)  # noqa: E731
    paths, structure = jax.tree_util.tree_flatten_with_path(value, is_leaf=is_draw)
    draws: dict[str, InputSpec] = {}
    for path, leaf in paths:
        flat = ".".join([name, *(jax.tree_util.keystr((key,), simple=True) for key in path)])
        if not isinstance(leaf, InputSpec):
            raise _not_a_draw(workload, flat, leaf)
        if "+" in flat:
            words = "has '+' in its name, which joins the names of wrt: rename the key"
            raise Refusal(f"input {flat!r} of {workload!r} {words}")
        if flat in draws:
            words = f"have the same path {flat!r}: rename a key"
            raise Refusal(f"two leaves of input {name!r} of {workload!r} {words}")
        draws[flat] = leaf
    if not draws:
        raise _not_a_draw(workload, name, value)
    return InputTree(name, structure, tuple(draws)), draws


def _not_a_draw(workload: str, name: str, value: Any) -> Refusal:
    """Return the refusal of an input that is not a draw, with what to write instead."""
    hint = "a constant belongs inside the function"
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        hint = "register the dataclass with jax.tree_util.register_dataclass"
    elif callable(value):
        hint = "call it with the shape of the input"
    return Refusal(
        f"input {name!r} of {workload!r} is {describe(value)}: "
        f"write a Draw, such as normal(3), uniform(2, 3) or poisson(1.5), or a pytree of Draws; {hint}"
    )


def describe(value: Any) -> str:
    """Return what a value is, in a few words."""
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
    """Return a function's result, a pytree, as one array: (*leading axes, numbers) if it has several leaves.

    what: the function in the words of an error message. leading: the number of leading axes that all leaves
    share.
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
    """Refuse an output that is not an array of real floating-point numbers."""
    numeric = hasattr(leaf, "dtype") or isinstance(leaf, int | float | complex)
    if not numeric or not jnp.issubdtype(jnp.result_type(leaf), jnp.floating):
        found = f"numbers of dtype {jnp.result_type(leaf)}" if numeric else describe(leaf)
        where = f" as output {path!r}" if path else ""
        raise Refusal(f"{what} returns {found}{where}: every output must be an array of real numbers")


def concatenate_blocks(result: Any, what: str, columns: Sequence[int], per_point: bool = True) -> Any:
    """Return a derivative, a pytree by output of pytrees by input, as one array: (points, outputs, inputs).

    what: the function in the words of an error message. columns: how many numbers each input has. per_point:
    otherwise it is the derivative of a sum over points, (1, inputs).
    """
    leaves = [jnp.asarray(leaf) for leaf in jax.tree.leaves(result)]
    if len(leaves) == 1:
        return leaves[0]
    inputs = len(columns)
    widths = list(columns) * (len(leaves) // inputs)
    if not leaves or not _are_blocks(leaves, widths, inputs, per_point):
        shapes = ", ".join(str(a.shape) for a in leaves) or "nothing"
        words = f"which are no blocks of a derivative by inputs of {', '.join(map(str, columns))} numbers"
        raise Refusal(
            f"{what} returns {shapes}, {words}: return one array, or a pytree such as jax.jacrev returns"
        )
    if not per_point:
        return jnp.concatenate([a.reshape(1, n) for a, n in zip(leaves, widths, strict=True)], axis=1)
    blocks = [a.reshape(a.shape[0], -1, n) for a, n in zip(leaves, widths, strict=True)]
    rows = [jnp.concatenate(blocks[k : k + inputs], axis=2) for k in range(0, len(blocks), inputs)]
    return jnp.concatenate(rows, axis=1)


def _are_blocks(leaves: Sequence[Any], widths: Sequence[int], inputs: int, per_point: bool) -> bool:
    """Return whether arrays can be the blocks of a derivative, row by row. widths: of the input of each."""
    if len(widths) != len(leaves) or 0 in widths:
        return False
    if not per_point:
        return len(leaves) == inputs and all(a.size == n for a, n in zip(leaves, widths, strict=True))
    if any(
        a.ndim == 0 or not a.size or a.size % (a.shape[0] * n) for a, n in zip(leaves, widths, strict=True)
    ):
        return False
    heights = [a.size // (a.shape[0] * n) for a, n in zip(leaves, widths, strict=True)]
    rows = [set(heights[k : k + inputs]) for k in range(0, len(heights), inputs)]
    return len({a.shape[0] for a in leaves}) == 1 and all(len(row) == 1 for row in rows)
