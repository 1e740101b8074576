"""Write the Python code that `scaling.advise` prints: a derivative function that uses only JAX and NumPy.

The code defines one function with the name of the target, such as `jacobian` or `hvp`, for a batch of points.
`Advice.jacobian` executes the code, and describes its arguments and its result.
"""

import base64
import re
import zlib
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

from scaling.advice.candidates import CODED
from scaling.advice.problem import PRODUCTS, TARGETS, Problem
from scaling.core.case import Case
from scaling.options.coloring import Coloring

_IMPORT_LINES = {  # regular expression for a name that the code uses -> import line that the name needs
    r"\bbase64\.": "import base64\nimport zlib\n",
    r"\bjax\.": "import jax",
    r"\bjnp\.": "import jax.numpy as jnp",
    r"\bnp\.": "import numpy as np",
    r"\bravel_pytree": "from jax.flatten_util import ravel_pytree",
    r"\bMesh\(": "from jax.sharding import Mesh, PartitionSpec as P",
}
_FLAGS = """\
os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " {flags}"  # before JAX starts"""
_FLAGS_IN_0_10 = """
if jax.__version__.startswith("0.10."):  # it computes some sums wrongly on a CPU without this flag
    """
_DERIVATIVE = """\
def derivative({parameters}):
    g, z = lambda z: {value}, {point}
{body}

"""
_COLUMNS = """\
    y = jax.eval_shape(g, z)
    flat, unravel = ravel_pytree(z)
    column = lambda i: ravel_pytree(jax.jvp(g, (z,), (unravel({seed}),))[1])[0]
"""
_ROWS = """\
    y, pullback = jax.vjp(g, z)
    flat, unravel = ravel_pytree(y)
    row = lambda i: ravel_pytree(pullback(unravel({seed}))[0])[0]
"""
_CHUNKED = """\
    J = jax.lax.map({function}, jnp.arange(flat.size), batch_size={chunk}){transposed}  # (outputs, inputs)"""
_MIN_SCATTERED = 2**13  # least number of entries for which scattering nonzeros is faster than masking
# The product with 0 is nan where the compressed Jacobian is not finite, as in the result of `jax.jacfwd`.
_MASKED = """\
    expanded = jax.vmap({function})(jnp.arange({count}))[colors]
    J = expanded{transposed} * nonzero"""
_SCATTERED = """\
    rows, cols = np.nonzero(nonzero)
    compressed = jax.vmap({function})(jnp.arange({count}))
    J = jnp.zeros({shape}, compressed.dtype).at[rows, cols].set(compressed[{index}])"""
_PRODUCT_CODE = {  # (target, AD mode) -> code that returns the product of the matrix and the direction v
    ("hvp", "fwd_over_rev"): "    return jax.jvp(jax.grad(g), (z,), (v,))[1]",
    ("hvp", "rev_over_fwd"): "    return jax.grad(lambda z: jax.jvp(g, (z,), (v,))[1])(z)",
    ("hvp", "rev_over_rev"): "    return jax.vjp(jax.grad(g), z)[1](v)[0]",
    ("gauss_newton", "jacfwd"): """\
    y, pullback = jax.vjp(g, z)
    return pullback(jax.jvp(g, (z,), (v,))[1])[0]""",
    ("gauss_newton", CODED): """\
    flat, unravel = ravel_pytree(z)
    J = jax.{transform}(lambda p: ravel_pytree(g(unravel(p)))[0])(flat)
    return unravel(J.T @ (J @ ravel_pytree(v)[0]))""",
}
_SPLIT = '''\
def split(J, inputs, outputs):
    """Split a Jacobian of (outputs, inputs) elements into the tree that jax.jacfwd returns."""
    unravel, (leaves, tree) = ravel_pytree(inputs)[1], jax.tree.flatten(outputs)
    rows = np.split(np.arange(J.shape[0]), np.cumsum([np.size(leaf) for leaf in leaves])[:-1])
    blocks = [
        jax.tree.map(lambda a: a.reshape(np.shape(leaf) + a.shape[1:]), jax.vmap(unravel)(J[index]))
        for leaf, index in zip(leaves, rows)
    ]
    return jax.tree.unflatten(tree, blocks)


'''
_MIXED = """\
    h = lambda *z: g(z)
    columns, rows = jax.jacfwd(h, {forward})(*z), jax.jacrev(h, {reverse})(*z)
    y = jax.eval_shape(g, z)
    return jax.tree.map(lambda _, a, b: tuple((a + b)[k] for k in {order}), y, columns, rows)"""
_REVERSE_MODES = ("jacrev", "rev_over_rev")
_TEMPLATES = (_DERIVATIVE, _COLUMNS, _ROWS, _CHUNKED, _MASKED, _SCATTERED, _SPLIT, _MIXED)
_RESERVED_NAMES = {  # names that the code defines or uses; a function or argument with such a name is renamed
    *re.findall(r"\w+", " ".join([*_TEMPLATES, *_PRODUCT_CODE.values(), *_IMPORT_LINES.values()])),
    *TARGETS,
    *("function", "colors", "batch", "mesh", "os", "sum", "map"),
}


def write_code(
    problem: Problem,
    case: Case,
    coloring: Coloring | None = None,
    xla_options: Mapping[str, str] | None = None,
) -> str:
    """Return Python code that defines the derivative of `problem.function` for a batch of points.

    `case` determines the AD mode, the chunk, the block and the number of devices. `coloring` determines how
    mode=vmap_grad compresses the columns or rows of the Jacobian. The code adds `xla_options` to XLA_FLAGS.
    It also adds the number of CPU devices, if this process takes the number from XLA_FLAGS. If `xla_options`
    is None, the code adds neither.
    """
    names, function_name = list(problem.arguments), name_in_code(problem)
    if (_RESERVED_NAMES | {function_name}) & set(names):
        names = [f"argument_{k}" for k in range(len(names))]
    coloring = coloring if case.mode == CODED else None
    definitions, derivative = _write_derivative(problem, case, coloring, names)
    is_batched = [argument in problem.points for argument in problem.arguments]
    has_points_axis = dict(zip(names, is_batched, strict=True))
    if problem.target in PRODUCTS:
        has_points_axis["v"] = True
    batch_definitions, function = _write_batch(case, has_points_axis, derivative)
    text = f"{definitions}{batch_definitions}{problem.target} = jax.jit({function})"
    imports = [line for use, line in _IMPORT_LINES.items() if re.search(use, text)]
    settings = _write_settings(case.devices > 1, xla_options)
    if "os." in settings:
        imports.insert(0, "import os\n")
    definition = f"# {function_name} is your function of one point"
    if problem.import_line:
        alias = f" as {function_name}" if function_name != problem.name else ""
        definition = problem.import_line + alias
    return "\n".join([*imports, *filter(None, [settings]), definition, "", text])


def execute_code(problem: Problem, code: str) -> Callable[..., Any]:
    """Execute the code that `write_code` returned, and return the derivative function that it defines."""
    namespace: dict[str, Any] = {name_in_code(problem): problem.function}
    if problem.import_line:
        code = code.replace(problem.import_line, "#", 1)
    exec(code, namespace)
    function: Callable[..., Any] = namespace[problem.target]
    return function


def _write_settings(uses_several_devices: bool, xla_options: Mapping[str, str] | None) -> str:
    """Return code that sets `xla_options` and the JAX settings of this process, or "" if it sets nothing.

    The settings are `jax_enable_x64` and, if `uses_several_devices` is true, the number of CPU devices.
    """
    cpu_devices = jax.config.values["jax_num_cpu_devices"] if uses_several_devices else 0
    settings = {"jax_enable_x64": jax.config.values["jax_enable_x64"], "jax_num_cpu_devices": cpu_devices}
    lines = [f'jax.config.update("{name}", {value})' for name, value in settings.items() if value > 0]
    is_cpu = jax.default_backend() == "cpu" and jax.device_count() > 1
    if uses_several_devices and xla_options is not None and is_cpu and cpu_devices < 1:
        count = {"xla_force_host_platform_device_count": str(jax.device_count())}  # it came from XLA_FLAGS
        lines.insert(0, _FLAGS.format(flags=_as_flags(count)))
    if xla_options:
        lines.insert(0, _FLAGS_IN_0_10 + _FLAGS.format(flags=_as_flags(xla_options)))
    return "\n".join(lines)


def _as_flags(xla_options: Mapping[str, str]) -> str:
    return " ".join(f"--{name}={value}" for name, value in xla_options.items())


def name_in_code(problem: Problem) -> str:
    """Return the name of the user's function in the code that `write_code` returns.

    The name is "function" if the code defines or uses the original name for something else.
    """
    return "function" if problem.name in _RESERVED_NAMES else problem.name


def _write_batch(case: Case, has_points_axis: Mapping[str, bool], derivative: str) -> tuple[str, str]:
    """Return code for a function of all points as (definitions, expression).

    The expression evaluates to the function. The definitions are statements that it needs, or "".
    `derivative` is an expression for a function that computes the derivative at one point. `has_points_axis`
    states for each argument whether it has an axis of points.
    """
    definitions = ""
    function = f"jax.vmap({derivative}, {tuple(0 if axis else None for axis in has_points_axis.values())})"
    if case.block is not None:
        mapped = [name for name, axis in has_points_axis.items() if axis]
        arguments = [f"p[{mapped.index(name)}]" if name in mapped else name for name in has_points_axis]
        point = f"{derivative}({', '.join(arguments)})"
        loop = f"jax.lax.map(lambda p: {point}, ({', '.join(mapped)},), batch_size={case.block})"
        definitions, function = f"def batch({', '.join(has_points_axis)}):\n    return {loop}\n\n\n", "batch"
    if case.devices > 1:
        definitions += (
            f'mesh = Mesh(np.array(jax.devices()[:{case.devices}]).reshape({case.devices}), ("points",))\n'
        )
        specs = ", ".join('P("points")' if axis else "P()" for axis in has_points_axis.values())
        options = f'mesh=mesh, in_specs=({specs},), out_specs=P("points"), check_vma=False'
        function = f"jax.shard_map({function}, {options})"
    return definitions, function


def _write_derivative(
    problem: Problem, case: Case, coloring: Coloring | None, names: list[str]
) -> tuple[str, str]:
    """Return code for a function that computes the derivative at one point, as (definitions, expression).

    The expression evaluates to the function. The definitions are statements that it needs, or "". `names` are
    the names of the inputs in the code.
    """
    is_single, function = len(problem.wrt) == 1, name_in_code(problem)
    argnums: Any = problem.argnums[0] if is_single else problem.argnums
    if problem.target == "hessian":
        function = f"jax.{'jacfwd' if case.mode == 'fwd_over_fwd' else 'jacrev'}({function}, {argnums})"
    z = {name: "z" if is_single else f"z[{k}]" for k, name in enumerate(problem.wrt)}
    call = ", ".join(z.get(argument, name) for argument, name in zip(problem.arguments, names, strict=True))
    value, wrt = f"{function}({call})", [names[k] for k in problem.argnums]
    definitions, parameters = "", names
    if problem.target in PRODUCTS:
        if problem.target == "hvp" and getattr(problem.output_structs(), "shape", None) != ():
            value = f"sum(map(jnp.sum, jax.tree.leaves({value})))"  # a pytree or array with one number
        parameters, body = [*names, "v"], _write_product(problem, case)
    elif case.mode == "mixed":
        forward = tuple(problem.wrt.index(name) for name in (case.forward or "").split("+"))
        reverse = tuple(k for k in range(len(problem.wrt)) if k not in forward)
        order = np.argsort([*forward, *reverse]).tolist()
        body = _MIXED.format(forward=forward, reverse=reverse, order=order)
    elif coloring is not None or case.chunk is not None:
        definitions, body = _write_jacobian(problem, case, coloring)
    else:
        return "", f"jax.{'jacrev' if case.mode in _REVERSE_MODES else 'jacfwd'}({function}, {argnums})"
    point = wrt[0] if is_single else f"({', '.join(wrt)})"
    text = _DERIVATIVE.format(parameters=", ".join(parameters), value=value, point=point, body=body)
    return definitions + text, "derivative"


def _write_product(problem: Problem, case: Case) -> str:
    structs = problem.input_structs(), problem.output_structs()
    inputs, outputs = (sum(leaf.size for leaf in jax.tree.leaves(tree)) for tree in structs)
    by_shape = problem.transforms[0 if inputs <= outputs else -1]  # the same if only one is possible
    return _PRODUCT_CODE[problem.target, case.mode].format(transform=by_shape)


def _write_jacobian(problem: Problem, case: Case, coloring: Coloring | None) -> tuple[str, str]:
    """Return code for a function that computes a Jacobian, as (definitions before the function, body).

    The body uses `coloring` if it is not None. Otherwise, it computes the Jacobian in chunks.
    """
    is_reverse, definitions = case.mode in _REVERSE_MODES, ""
    seed, template = "jax.nn.one_hot(i, flat.size, dtype=flat.dtype)", _CHUNKED
    values: dict[str, Any] = {"chunk": case.chunk}
    if coloring is not None:
        is_reverse, definitions = not coloring.column_count, _write_coloring(coloring)
        shape = (coloring.pattern.outputs, coloring.pattern.inputs)
        template = _SCATTERED if shape[0] * shape[1] >= _MIN_SCATTERED else _MASKED
        index = "colors[rows], cols" if is_reverse else "colors[cols], rows"
        values = {"shape": shape, "count": coloring.column_count or coloring.row_count, "index": index}
        seed = "jnp.asarray(colors == i, flat.dtype)"
    function, transposed = ("row", "") if is_reverse else ("column", ".T")
    result = template.format(function=function, transposed=transposed, **values)
    body = (_ROWS if is_reverse else _COLUMNS).format(seed=seed) + result
    # The derivative of an array with respect to an array is an array.
    if len(problem.wrt) == 1 and jax.tree_util.all_leaves(
        [problem.output_structs(), *problem.input_structs()]
    ):
        return definitions, f"{body}\n    return J.reshape(y.shape + z.shape)"
    return definitions + _SPLIT, f"{body}\n    return split(J, z, y)"


def _write_coloring(coloring: Coloring) -> str:
    """Return code that defines the arrays `colors` and `nonzero` with NumPy.

    `colors` contains the color of each column or row of the Jacobian. `nonzero` is the sparsity pattern, a
    Boolean array of shape (outputs, inputs).
    """
    pattern, colors = coloring.pattern, coloring.columns if coloring.column_count else coloring.rows
    mask = np.zeros((pattern.outputs, pattern.inputs), bool)
    mask[pattern.rows, pattern.cols] = True
    encode = lambda array: base64.b64encode(zlib.compress(array.tobytes(), 9)).decode()  # noqa: E731
    unpacking = "np.frombuffer(zlib.decompress(base64.b64decode({!r})), np.{})"
    bits = unpacking.format(encode(np.packbits(mask)), "uint8")
    return (
        f"colors = {unpacking.format(encode(np.asarray(colors, np.int32)), 'int32')}\n"
        f"nonzero = np.unpackbits({bits})[:{mask.size}].reshape({mask.shape}).astype('bool')\n\n\n"
    )
