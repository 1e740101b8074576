"""Pytrees: inputs that are pytrees of draws, and functions that return pytrees of arrays, made flat.

Each leaf of an input becomes an input of its own, named by its path, such as `params.w`. The leaves of an
output are raveled and concatenated in the order of `jax.tree.leaves`. Imports JAX only where a function runs
or an input is a pytree.
"""

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from scaling.core.case import Refusal
from scaling.core.input_sampling import InputSpec

Named = Mapping[str, Any]


@dataclass(frozen=True)
class Tree:
    """An input that is a pytree: its name, its structure, and the flat names of its leaves in the order of
    the tree."""

    name: str
    structure: Any
    leaves: tuple[str, ...]


@dataclass(frozen=True)
class TakesTrees:
    """A function of pytrees, called with their leaves by flat name; equal to another one of the same
    function."""

    function: Callable[..., Any]
    trees: tuple[Tree, ...]

    def __call__(self, /, *flat: Any, **named: Any) -> Any:
        return self.function(*flat, **rebuild(self.trees, named))


@dataclass(frozen=True)
class ReturnsArray(TakesTrees):
    """A function whose result may be a pytree of arrays: called, it returns one array.

    what: the function in the words of an error message. leading: the number of leading axes that all leaves
    share.
    """

    what: str = "function"
    leading: int = 0

    def __call__(self, /, *flat: Any, **named: Any) -> Any:
        return concatenate_leaves(super().__call__(*flat, **named), self.what, self.leading)


@dataclass(frozen=True)
class ReturnsDerivative(TakesTrees):
    """A function that returns a derivative, an array or a pytree such as `jax.jacrev` returns: called, it
    returns one array.

    columns: how many numbers each leaf of the inputs to differentiate by has. per_point: whether the points
    lead; otherwise the derivative is that of a sum over points.
    """

    what: str = "function"
    columns: tuple[int, ...] = ()
    per_point: bool = True

    def __call__(self, /, **named: Any) -> Any:
        return concatenate_blocks(super().__call__(**named), self.what, self.columns, self.per_point)


@dataclass(frozen=True)
class TakesBlocks(TakesTrees):
    """A reference in NumPy, which takes its inputs in one mapping."""

    def __call__(self, named: Named, /) -> Any:  # type: ignore[override, unused-ignore]
        return self.function(rebuild(self.trees, named))


def flatten_inputs(workload: str, group: str, inputs: Any) -> tuple[dict[str, InputSpec], tuple[Tree, ...]]:
    """Return the draws of `points` or `shared` by flat name, and the inputs among them that are pytrees.

    group: the argument of `Workload` that holds them. An input that is neither a draw nor a pytree of draws
    is a `Refusal`.
    """
    if not isinstance(inputs, Mapping):
        example = f'{group}={{"x": normal(3)}}'
        raise Refusal(
            f"{group} of {workload!r} must be a mapping from input names, such as {example}, not {describe(inputs)}"
        )
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


def _flatten(workload: str, name: str, value: Any) -> tuple[Tree, dict[str, InputSpec]]:
    """Return the structure and the draws of an input that is a pytree."""
    import jax

    paths, structure = jax.tree_util.tree_flatten_with_path(
        value, is_leaf=lambda node: isinstance(node, InputSpec)
    )
    draws: dict[str, InputSpec] = {}
    for path, leaf in paths:
        flat = ".".join([name, *(jax.tree_util.keystr((key,), simple=True) for key in path)])
        if not isinstance(leaf, InputSpec):
            raise _not_a_draw(workload, flat, leaf)
        if "+" in flat:
            raise Refusal(
                f"input {flat!r} of {workload!r} has '+' in its name, which joins the names of wrt: rename the key"
            )
        if flat in draws:
            raise Refusal(
                f"two leaves of input {name!r} of {workload!r} have the same path {flat!r}: rename a key"
            )
        draws[flat] = leaf
    if not draws:
        raise _not_a_draw(workload, name, value)
    return Tree(name, structure, tuple(draws)), draws


def _not_a_draw(workload: str, name: str, value: Any) -> Refusal:
    """Return the refusal of an input that is not a draw, with what to write instead."""
    hint = "a constant belongs inside the function"
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        hint = "register the dataclass with jax.tree_util.register_dataclass"
    elif callable(value):
        hint = "call it with the shape of the input"
    return Refusal(
        f"input {name!r} of {workload!r} is {describe(value)}: write a Draw, such as normal(3), uniform(2, 3) or "
        f"poisson(1.5), or a pytree of Draws; {hint}"
    )


def describe(value: Any) -> str:
    """Return what a value is, in a few words."""
    if value is None or isinstance(value, bool):
        return repr(value)
    if isinstance(value, int | float | complex):
        return f"the number {value!r}"
    if isinstance(value, str):
        return f"the text {value!r}"
    if isinstance(value, np.ndarray) or (hasattr(value, "shape") and hasattr(value, "dtype")):
        kind = "a NumPy array" if isinstance(value, np.ndarray | np.generic) else "an array"
        return f"{kind} of shape {tuple(value.shape)} and dtype {value.dtype}"
    if isinstance(value, Mapping | Sequence) and not value:
        return f"an empty {type(value).__name__}"
    if callable(value):
        return f"the {'class' if isinstance(value, type) else 'function'} {getattr(value, '__name__', type(value).__name__)}"
    return f"an instance of {type(value).__name__}"


def rebuild(trees: Iterable[Tree], named: Named) -> dict[str, Any]:
    """Return the inputs as the user's function takes them: leaves by flat name put back into their
    pytrees."""
    whole = dict(named)
    for tree in trees:
        import jax

        whole[tree.name] = jax.tree.unflatten(tree.structure, [whole.pop(leaf) for leaf in tree.leaves])
    return whole


def names_under(name: str, draws: Mapping[str, InputSpec]) -> list[str]:
    """Return the flat names that a name stands for: an input, a leaf of it, or all real leaves below a node
    of a pytree."""
    if name in draws:
        return [name]
    return [leaf for leaf, draw in draws.items() if leaf.startswith(f"{name}.") and not draw.integer]


def top_level(names: Iterable[str]) -> list[str]:
    """Return the names of the user's inputs, each once, from flat names."""
    return list(dict.fromkeys(name.partition(".")[0] for name in names))


def concatenate_leaves(result: Any, what: str, leading: int = 0) -> Any:
    """Return a function's result as one array: (*leading axes, numbers) where it is a pytree of several
    arrays."""
    if hasattr(result, "shape"):
        return result
    import jax
    import jax.numpy as jnp

    paths, _ = jax.tree_util.tree_flatten_with_path(result)
    if not paths:
        raise Refusal(
            f"{what} returns {describe(result)}: it must return an array of real numbers, or a pytree of them"
        )
    for path, leaf in paths:
        _require_real(what, jax.tree_util.keystr(path, simple=True, separator="."), leaf)
    arrays = [jnp.asarray(leaf) for _, leaf in paths]
    if len(arrays) == 1:
        return arrays[0]
    if len({a.shape[:leading] for a in arrays}) > 1 or arrays[0].ndim < leading:
        shapes = ", ".join(str(a.shape) for a in arrays)
        raise Refusal(
            f"{what} returns arrays of shapes {shapes}: all of them must lead with the axis of the points"
        )
    return jnp.concatenate([a.reshape(*a.shape[:leading], -1) for a in arrays], axis=leading)


def _require_real(what: str, path: str, leaf: Any) -> None:
    """Refuse an output that is not an array of real floating-point numbers."""
    import jax.numpy as jnp

    numeric = hasattr(leaf, "dtype") or isinstance(leaf, int | float | complex)
    if not numeric or not jnp.issubdtype(jnp.result_type(leaf), jnp.floating):
        found = f"numbers of dtype {jnp.result_type(leaf)}" if numeric else describe(leaf)
        where = f" as output {path!r}" if path else ""
        raise Refusal(f"{what} returns {found}{where}: every output must be an array of real numbers")


def concatenate_blocks(result: Any, what: str, columns: Sequence[int], per_point: bool = True) -> Any:
    """Return a derivative as one array: (points, outputs, inputs), or (1, inputs) of a sum over points.

    A pytree of it is one by output, of pytrees by input. columns: how many numbers each input has.
    """
    if hasattr(result, "shape"):
        return result
    import jax
    import jax.numpy as jnp

    leaves = [jnp.asarray(leaf) for leaf in jax.tree.leaves(result)]
    if len(leaves) == 1:
        return leaves[0]
    each = list(columns) * (len(leaves) // len(columns))
    if not leaves or not _are_blocks(leaves, each, len(columns), per_point):
        shapes = ", ".join(str(a.shape) for a in leaves) or "nothing"
        raise Refusal(
            f"{what} returns {shapes}, which are no blocks of a derivative by inputs of {', '.join(map(str, columns))} "
            f"numbers: return one array, or a pytree such as jax.jacrev returns"
        )
    if not per_point:
        return jnp.concatenate([a.reshape(1, n) for a, n in zip(leaves, each, strict=True)], axis=1)
    blocks = [a.reshape(a.shape[0], -1, n) for a, n in zip(leaves, each, strict=True)]
    rows = [
        jnp.concatenate(blocks[k : k + len(columns)], axis=2) for k in range(0, len(blocks), len(columns))
    ]
    return jnp.concatenate(rows, axis=1)


def _are_blocks(leaves: Sequence[Any], each: Sequence[int], inputs: int, per_point: bool) -> bool:
    """Return whether arrays can be the blocks of a derivative, row by row, the k-th by an input of `each[k]`
    numbers."""
    if len(each) != len(leaves) or any(n == 0 for n in each):
        return False
    if not per_point:
        return len(leaves) == inputs and all(a.size == n for a, n in zip(leaves, each, strict=True))
    if any(a.ndim == 0 or not a.size or a.size % (a.shape[0] * n) for a, n in zip(leaves, each, strict=True)):
        return False
    heights = [a.size // (a.shape[0] * n) for a, n in zip(leaves, each, strict=True)]
    rows = [set(heights[k : k + inputs]) for k in range(0, len(heights), inputs)]
    return len({a.shape[0] for a in leaves}) == 1 and all(len(row) == 1 for row in rows)
