"""Flatten pytree inputs of a workload into one `InputSpec` per leaf, and pytree results into one array.

A leaf is named by its path, such as `params.w`. The leaves of an output are raveled and concatenated in the
order of `jax.tree.leaves`.
"""

import dataclasses
import reprlib
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from scaling.core.case import Refusal
from scaling.core.workload import InputSpec, Workload


def with_flat_inputs(name: str, workload: Workload) -> Workload:
    """Return a copy of a workload in which each leaf of a pytree input is a separate input.

    `name` is the name of the workload. Raise `Refusal` if the inputs are not a mapping, a leaf is not an
    `InputSpec`, or a name is invalid.
    """
    points = _flatten_group(name, "points", workload.points)
    shared = _flatten_group(name, "shared", workload.shared)
    inputs = OrderedDict([*workload.points.items(), *workload.shared.items()])  # a dict would be sorted
    structure, leaf_names = jax.tree.structure(inputs, is_leaf=_is_spec), (*points, *shared)

    def unflatten(leaves: Mapping[str, Any]) -> dict[str, Any]:
        return dict(jax.tree.unflatten(structure, [leaves[leaf] for leaf in leaf_names]))

    def by_keyword(function: Any) -> Any:
        return function and (lambda *inputs, **leaves: function(*inputs, **unflatten(leaves)))

    def by_mapping(function: Any) -> Any:
        return function and (lambda leaves: function(unflatten(leaves)))

    return dataclasses.replace(
        workload,
        points=points,
        shared=shared,
        function=by_keyword(workload.function),
        whole=by_keyword(workload.whole),
        whole_modes={mode: by_keyword(function) for mode, function in workload.whole_modes.items()},
        reference=by_mapping(workload.reference),
        second=by_mapping(workload.second),
        nonzeros=by_mapping(workload.nonzeros),
    )


def _is_spec(node: Any) -> bool:
    return isinstance(node, InputSpec)


def _flatten_group(workload: str, group: str, inputs: Any) -> dict[str, InputSpec]:
    """Return {leaf name: `InputSpec`} for the inputs in the field `group` ("points" or "shared")."""
    if not isinstance(inputs, Mapping):
        raise Refusal(
            f"{group} of {workload!r} must be a mapping from input names, "
            f'such as {group}={{"x": normal(3)}}, not {describe(inputs)}'
        )
    specs: dict[str, InputSpec] = {}
    for name, input_tree in inputs.items():
        if not isinstance(name, str) or not name.isidentifier():
            raise Refusal(
                f"input {name!r} of {workload!r} must have a name such as 'x' or 'params': "
                "the function takes each input as a keyword argument"
            )
        paths, _ = jax.tree_util.tree_flatten_with_path(input_tree, is_leaf=_is_spec)
        for path, leaf in paths or [((), input_tree)]:  # an empty pytree is refused as a leaf
            leaf_name = ".".join([name, *(jax.tree_util.keystr((key,), simple=True) for key in path)])
            leaf_text = f"input {leaf_name!r} of {workload!r}"
            if not isinstance(leaf, InputSpec):
                raise Refusal(
                    f"{leaf_text} is {describe(leaf)}: write an InputSpec, such as normal(3), uniform(2, 3) "
                    "or poisson(1.5), or a pytree of InputSpecs; a constant belongs inside the function, and "
                    "a dataclass must be registered with jax.tree_util.register_dataclass"
                )
            if "+" in leaf_name or leaf_name in specs:
                raise Refusal(f"{leaf_text} has '+' in its name or the path of another leaf: rename the key")
            specs[leaf_name] = leaf
    return specs


def describe(value: Any) -> str:
    """Return a short description of a value and its type for an error message, such as "3 (int)"."""
    if isinstance(getattr(value, "shape", None), tuple) and hasattr(value, "dtype"):
        return f"an array of shape {value.shape} and dtype {value.dtype}"
    text = reprlib.aRepr.repr_instance(value, 1)  # not `reprlib.repr`, which fails for a class named array
    return f"{' '.join(text.split())} ({type(value).__name__})"


def concatenate_leaves(result: Any, function_name: str, leading: int) -> Any:
    """Return the result of a function, an array or a pytree of arrays, as one array.

    Several leaves are concatenated. Their axes after the first `leading` axes are flattened. Raise `Refusal`
    if a leaf is not an array of real numbers, or if the leading axes differ. The message contains
    `function_name`.
    """
    paths, _ = jax.tree_util.tree_flatten_with_path(result)
    for path, leaf in paths or [((), result)]:  # an empty pytree is refused as a leaf
        numeric = hasattr(leaf, "dtype") or isinstance(leaf, int | float | complex)
        if not numeric or not jnp.issubdtype(jnp.result_type(leaf), jnp.floating):
            returned = f"numbers of dtype {jnp.result_type(leaf)}" if numeric else describe(leaf)
            leaf_path = jax.tree_util.keystr(path, simple=True, separator=".")
            output = f" as output {leaf_path!r}" if leaf_path else ""
            raise Refusal(
                f"{function_name} returns {returned}{output}: every output must be an array of real numbers; "
                "omit it, or convert it, such as y.astype(float), or the parts y.real and y.imag"
            )
    arrays = [jnp.asarray(leaf) for _, leaf in paths]
    if len(arrays) == 1:
        return arrays[0]
    if len({a.shape[:leading] for a in arrays}) > 1 or arrays[0].ndim < leading:
        shapes = ", ".join(str(a.shape) for a in arrays)
        raise Refusal(
            f"{function_name} returns arrays of shapes {shapes}: "
            "the first axis of every array must be that of the points"
        )
    return jnp.concatenate([a.reshape(*a.shape[:leading], -1) for a in arrays], axis=leading)


def concatenate_blocks(result: Any, function_name: str, input_sizes: Sequence[int]) -> Any:
    """Return the blocks of a derivative, such as the pytree that `jax.jacrev` returns, as one array.

    The blocks are NumPy or JAX arrays with a leading axis of points. Several blocks are concatenated to an
    array of shape (points, outputs, inputs). A single block is returned unchanged. `input_sizes` contains the
    number of elements of each input leaf. Raise `Refusal`, with `function_name` in the message, if the shapes
    of the blocks are inconsistent.
    """
    leaves = [block for block in jax.tree.leaves(result) if np.size(block)]
    if len(leaves) == 1:
        return leaves[0]
    library = np if all(isinstance(block, np.ndarray) for block in leaves) else jnp
    try:
        rows = []
        for k in range(0, len(leaves), len(input_sizes)):
            sized = zip(leaves[k : k + len(input_sizes)], input_sizes, strict=True)
            blocks = [library.reshape(block, (block.shape[0], -1, size)) for block, size in sized]
            rows.append(library.concatenate(blocks, axis=-1))
        return library.concatenate(rows, axis=1)
    except (AttributeError, IndexError, TypeError, ValueError, ZeroDivisionError):  # they do not fit together
        shapes = ", ".join(str(np.shape(a)) for a in leaves) or "nothing"
        raise Refusal(
            f"{function_name} returns {shapes}, which are not blocks of a derivative with respect to "
            f"inputs of sizes {', '.join(map(str, input_sizes))}: "
            "return one array, or a pytree as jax.jacrev does"
        ) from None
