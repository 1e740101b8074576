"""Write the derivative program of a candidate as Python code with JAX and NumPy only, and execute it.

The code defines a function with the name of the target. Its arguments are the inputs of the differentiated
function. Inputs that differ by point have a leading axis of points.

`jacobian` and `hessian` return the pytree of arrays that `jax.vmap(jax.jacfwd(function))` and
`jax.vmap(jax.hessian(function))` return. `hvp` and `gauss_newton` have an additional last argument `v`: a
direction for each point, as a pytree with the structure of the differentiated inputs. `hvp` returns the
product of the Hessian and `v`, and `gauss_newton` the product of J^T J and `v`, where J is the Jacobian. Both
products are pytrees with the structure of `v`.
"""

import base64
import re
import zlib
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from scaling.advice.candidates import CODED
from scaling.advice.problem import PRODUCTS, TARGETS, Problem
from scaling.core.case import Case
from scaling.options.sparse.coloring import Coloring

_IMPORTS = {  # regular expression of the use of a name -> line
    r"\bbase64\.": "import base64\nimport zlib\n",
    r"\bjax\.": "import jax",
    r"\bjnp\.": "import jax.numpy as jnp",
    r"\bnp\.": "import numpy as np",
    r"\bravel_pytree": "from jax.flatten_util import ravel_pytree",
    r"\bMesh\(": "from jax.sharding import Mesh, PartitionSpec as P",
}
_FORWARD = """\
    y = jax.eval_shape(g, z)
    flat, unravel = ravel_pytree(z)
    column = lambda i: ravel_pytree(jax.jvp(g, (z,), (unravel({seed}),))[1])[0]
    J = {stacked}.T  # (outputs, inputs)
"""
_REVERSE = """\
    y, pullback = jax.vjp(g, z)
    flat, unravel = ravel_pytree(y)
    row = lambda i: ravel_pytree(pullback(unravel({seed}))[0])[0]
    J = {stacked}  # (outputs, inputs)
"""
_PRODUCTS = {  # of the Hessian of g at z and the direction v, by AD mode
    "fwd_over_rev": "jax.jvp(jax.grad(g), (z,), (v,))[1]",
    "rev_over_fwd": "jax.grad(lambda z: jax.jvp(g, (z,), (v,))[1])(z)",
    "rev_over_rev": "jax.vjp(jax.grad(g), z)[1](v)[0]",
}
_GAUSS_NEWTON = """\
    y, pullback = jax.vjp(g, z)
    return pullback(jax.jvp(g, (z,), (v,))[1])[0]


"""
_EXPLICIT_GAUSS_NEWTON = """\
    flat, unravel = ravel_pytree(z)
    J = jax.{jacobian}(lambda p: ravel_pytree(g(unravel(p)))[0])(flat)
    return unravel(J.T @ (J @ ravel_pytree(v)[0]))


"""
_SPLIT = '''\
def split(J, inputs, outputs):
    """Split a Jacobian of (outputs, inputs) elements into the tree that jax.jacfwd returns."""
    unravel, (leaves, tree) = ravel_pytree(inputs)[1], jax.tree.flatten(outputs)
    rows = np.split(np.arange(J.shape[0]), np.cumsum([leaf.size for leaf in leaves])[:-1])
    blocks = [
        jax.tree.map(lambda a: a.reshape(leaf.shape + a.shape[1:]), jax.vmap(unravel)(J[index]))
        for leaf, index in zip(leaves, rows)
    ]
    return jax.tree.unflatten(tree, blocks)


'''
_MIXED = """\
def derivative({arguments}):
    columns = jax.jacfwd({name}, {forward})({arguments})
    rows = jax.jacrev({name}, {reverse})({arguments})
    y = jax.eval_shape({name}, {arguments})
    return jax.tree.map(lambda _, a, b: tuple((a + b)[k] for k in {order}), y, columns, rows)


"""
_RESERVED = {  # names that the code defines or uses, so that no function or argument may have them
    *re.findall(
        r"\w+", " ".join([_FORWARD, _REVERSE, _GAUSS_NEWTON, _EXPLICIT_GAUSS_NEWTON, _SPLIT, _MIXED])
    ),
    *re.findall(r"\w+", " ".join([*_PRODUCTS.values(), *_IMPORTS.values()])),
    *TARGETS,
    *("function", "p", "v", "colors", "nonzero", "batch", "mesh", "sum", "map", "lambda"),
}


def write_code(problem: Problem, case: Case, coloring: Coloring | None = None) -> str:
    """Return Python code that computes the derivative of a function with the mode and layout of a candidate.

    Args:
        case: the candidate.
        coloring: the coloring with which the candidate compresses the Jacobian, or None.
    """
    names = list(problem.arguments)
    if (_RESERVED | {_name_in_code(problem)}) & set(names):
        names = [f"argument_{k}" for k in range(len(names))]
    definitions, expression = _write_derivative(problem, case, coloring, names)
    per_point = [name in problem.points for name in problem.arguments]
    if problem.target in PRODUCTS:
        names, per_point = [*names, "v"], [*per_point, True]
    if case.block is None:
        expression = f"jax.vmap({expression}, {tuple(0 if each else None for each in per_point)})"
    else:
        mapped = [name for name, each in zip(names, per_point, strict=True) if each]
        inner = [f"p[{mapped.index(name)}]" if name in mapped else name for name in names]
        call, inputs = f"{expression}({', '.join(inner)})", f"({', '.join(mapped)},)"
        loop = f"jax.lax.map(lambda p: {call}, {inputs}, batch_size={case.block})"
        definitions += f"def batch({', '.join(names)}):\n    return {loop}\n\n\n"
        expression = "batch"
    if case.devices > 1:
        definitions += f'mesh = Mesh(np.array(jax.devices()[:{case.devices}]), ("points",))\n'
        specs = ", ".join('P("points")' if each else "P()" for each in per_point)
        options = f'mesh=mesh, in_specs=({specs},), out_specs=P("points"), check_vma=False'
        expression = f"jax.shard_map({expression}, {options})"
    text = f"{definitions}{problem.target} = jax.jit({expression})"
    imports = [line for use, line in _IMPORTS.items() if re.search(use, text)]
    given = list(filter(None, [problem.import_line]))
    if _name_in_code(problem) != problem.name:  # before the imports, which may define the same name
        given, imports = [*given, f"{_name_in_code(problem)} = {problem.name}", "", *imports], []
    return "\n".join([*imports, *given, "", text])


def execute_code(problem: Problem, code: str) -> Callable[..., Any]:
    """Execute the code from `write_code`, and return the derivative function that the code defines."""
    namespace: dict[str, Any] = {problem.name: problem.function}
    exec("\n".join(line for line in code.splitlines() if line != problem.import_line), namespace)
    function: Callable[..., Any] = namespace[problem.target]
    return function


def _name_in_code(problem: Problem) -> str:
    """Return the name of the differentiated function, or "function" if the code reserves that name."""
    return "function" if problem.name in _RESERVED else problem.name


def _write_derivative(
    problem: Problem, case: Case, coloring: Coloring | None, names: list[str]
) -> tuple[str, str]:
    """Return code that defines the derivative at one point as a function, and an expression for the function.

    The code is "" if the expression needs no definition.
    """
    single = len(problem.wrt) == 1
    argnums: Any = problem.argnums[0] if single else problem.argnums
    inner, is_reverse = _name_in_code(problem), case.mode in ("jacrev", "rev_over_rev")
    if problem.target == "hessian":
        inner = f"jax.{'jacfwd' if case.mode == 'fwd_over_fwd' else 'jacrev'}({inner}, {argnums})"
    if case.mode == "mixed":
        forward = tuple(problem.arguments.index(name) for name in (case.forward or "").split("+"))
        reverse = tuple(k for k in problem.argnums if k not in forward)
        order = [(*forward, *reverse).index(k) for k in problem.argnums]
        fill = {"name": inner, "forward": forward, "reverse": reverse, "order": order}
        return _MIXED.format(arguments=", ".join(names), **fill), "derivative"
    if coloring is None and case.chunk is None and problem.target not in PRODUCTS:
        return "", f"jax.{'jacrev' if is_reverse else 'jacfwd'}({inner}, {argnums})"
    values = [f"z[{problem.wrt.index(name)}]" if name in problem.wrt else None for name in problem.arguments]
    call = ", ".join(
        "z" if value and single else value or name for value, name in zip(values, names, strict=True)
    )
    wrt, structs = [names[k] for k in problem.argnums], problem.structs_at_point()
    inputs = [structs[k] for k in problem.argnums]
    point = wrt[0] if single else f"({', '.join(wrt)})"
    if problem.target == "hvp":
        value = f"{inner}({call})"
        if getattr(problem.output_structs(), "shape", None) != ():  # an array or a pytree of one number
            value = f"sum(map(jnp.sum, jax.tree.leaves({value})))"
        body = f"    g, z = lambda z: {value}, {point}\n    return {_PRODUCTS[case.mode]}\n\n\n"
        return f"def derivative({', '.join([*names, 'v'])}):\n{body}", "derivative"
    body = f"    g, z = lambda z: {inner}({call}), {point}\n"
    if problem.target == "gauss_newton":
        is_tall = _count_elements(problem.output_structs()) >= _count_elements(inputs)
        explicit = _EXPLICIT_GAUSS_NEWTON.format(jacobian="jacfwd" if is_tall else "jacrev")
        body += explicit if case.mode == CODED else _GAUSS_NEWTON
        return f"def derivative({', '.join([*names, 'v'])}):\n{body}", "derivative"
    if coloring is None:
        slices = "row" if is_reverse else "column"
        seed = "jax.nn.one_hot(i, flat.size, dtype=flat.dtype)"
        stacked = f"jax.lax.map({slices}, jnp.arange(flat.size), batch_size={case.chunk})"
    else:
        is_reverse, count = coloring.columns is None, coloring.column_count or coloring.row_count
        seed = "jnp.asarray(colors == i, flat.dtype)"
        stacked = f"jax.vmap({'row' if is_reverse else 'column'})(jnp.arange({count}))[colors]"
    body += (_REVERSE if is_reverse else _FORWARD).format(seed=seed, stacked=stacked)
    # The product with 0 is nan where the dense Jacobian contains nan.
    body += "" if coloring is None else "    J = J * nonzero\n"
    # The derivative of an array with respect to an array is an array. A gradient is like its inputs.
    outputs = [problem.output_structs()] if problem.target == "jacobian" else []
    is_plain = single and jax.tree_util.all_leaves([*outputs, *inputs])
    body += f"    return {'J.reshape(y.shape + z.shape)' if is_plain else 'split(J, z, y)'}\n\n\n"
    head = "" if coloring is None else _write_coloring(coloring)
    return f"{head}{'' if is_plain else _SPLIT}def derivative({', '.join(names)}):\n{body}", "derivative"


def _count_elements(tree: Any) -> int:
    return sum(leaf.size for leaf in jax.tree.leaves(tree))


def _write_coloring(coloring: Coloring) -> str:
    pattern, colors = coloring.pattern, coloring.rows if coloring.columns is None else coloring.columns
    mask = np.zeros((pattern.outputs, pattern.inputs), bool)
    mask[pattern.rows, pattern.cols] = True
    text = lambda array: base64.b64encode(zlib.compress(array.tobytes(), 9)).decode()  # noqa: E731
    unpack = "np.frombuffer(zlib.decompress(base64.b64decode({!r})), np.{})"
    packed = unpack.format(text(np.packbits(mask)), "uint8")
    return (
        f"colors = {unpack.format(text(np.asarray(colors, np.int32)), 'int32')}\n"
        f"nonzero = np.unpackbits({packed})[:{mask.size}].reshape{mask.shape}.astype(bool)\n\n\n"
    )
