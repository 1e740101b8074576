"""Write the Python code that `scaling.advise` prints: a derivative function that needs only JAX and NumPy.

The function has the name of the target, such as `jacobian` or `hvp`, and takes a batch of points
(`Advice.jacobian` describes its arguments). plain_code.py.jinja is the template of the code.
"""

import base64
import re
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from scaling.advice.candidates import CODED
from scaling.advice.problem import PRODUCTS, TARGETS, Problem
from scaling.core.case import Case
from scaling.options.coloring import Coloring

_IMPORT_LINES = {  # regular expression for a name that the code uses -> import line that the name needs
    r"\bos\.": "import os\n",
    r"\bbase64\.": "import base64\nimport zlib\n",
    r"\bjax\.": "import jax",
    r"\bjnp\.": "import jax.numpy as jnp",
    r"\bnp\.": "import numpy as np",
    r"\bravel_pytree": "from jax.flatten_util import ravel_pytree",
    r"\bMesh\(": "from jax.sharding import Mesh, PartitionSpec as P",
}
_TEMPLATE = Path(__file__).with_name("plain_code.py.jinja").read_text()
_WITHOUT_JINJA = re.sub(r"\{[{%#].*?[}%#]\}", " ", _TEMPLATE)
_RESERVED_NAMES = {  # names that the code defines or uses; a function or argument with such a name is renamed
    *re.findall(r"\w+", " ".join([_WITHOUT_JINJA, *_IMPORT_LINES.values()])),
    *TARGETS,
    *("bool", "sum", "function"),
}
_MIN_SCATTERED = 2**13  # least number of entries for which scattering nonzeros is faster than masking


def write_code(
    problem: Problem,
    case: Case,
    coloring: Coloring | None = None,
    xla_options: Mapping[str, str] | None = None,
) -> str:
    """Return Python code that defines the derivative of `problem.function` for a batch of points.

    `case` determines the AD mode, the chunk, the block and the number of devices. With mode=vmap_grad,
    `coloring` compresses the Jacobian. If `xla_options` is None, the code changes no settings. Otherwise, it
    adds `xla_options` to XLA_FLAGS, enables float64 if this process does, and sets the number of CPU devices
    if it uses several.
    """
    import jinja2

    coloring = coloring if case.mode == CODED else None
    structs = problem.output_structs(), problem.input_structs()
    output_size, input_size = (sum(leaf.size for leaf in jax.tree.leaves(tree)) for tree in structs)
    # The derivative of an array with respect to an array is an array.
    is_array = len(problem.wrt) == 1 and jax.tree_util.all_leaves([structs[0], *structs[1]])
    template = jinja2.Template(
        _TEMPLATE, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    code = template.render(
        **_describe_function(problem, case),
        **_describe_settings(case, xla_options),
        case=case,
        coloring=coloring and _describe_coloring(coloring),
        is_array=is_array,
        is_reverse=coloring.row_count if coloring else case.mode in ("jacrev", "rev_over_rev"),
        transform_by_shape="jacfwd" if input_size <= output_size else "jacrev",
    )
    imports = [line for use, line in _IMPORT_LINES.items() if re.search(use, code)]
    return "\n".join([*imports, code])


def execute_code(problem: Problem, code: str) -> Callable[..., Any]:
    """Execute the code that `write_code` returned, and return the derivative function that it defines."""
    namespace: dict[str, Any] = {name_in_code(problem): problem.function}
    if problem.import_line:
        code = code.replace(problem.import_line, "#", 1)
    exec(code, namespace)
    function: Callable[..., Any] = namespace[problem.target]
    return function


def name_in_code(problem: Problem) -> str:
    """Return the name of the user's function in the code that `write_code` returns.

    The name is "function" if the code defines or uses the original name for something else.
    """
    return "function" if problem.name in _RESERVED_NAMES else problem.name


def _describe_function(problem: Problem, case: Case) -> dict[str, Any]:
    """Return values for the template: the function, its inputs and its derivative, as pieces of code."""
    user_function, names = name_in_code(problem), list(problem.arguments)
    if (_RESERVED_NAMES | {user_function}) & set(names):
        names = [f"argument_{k}" for k in range(len(names))]
    wrt, is_product = [names[k] for k in problem.argnums], problem.target in PRODUCTS
    is_single = len(wrt) == 1
    argnums = str(problem.argnums[0] if is_single else problem.argnums)
    function = user_function
    if problem.target == "hessian":
        function = f"jax.{'jacfwd' if case.mode == 'fwd_over_fwd' else 'jacrev'}({function}, {argnums})"
    in_z = {name: "z" if is_single else f"z[{k}]" for k, name in enumerate(wrt)}
    value = f"{function}({', '.join(in_z.get(name, name) for name in names)})"
    if problem.target == "hvp" and getattr(problem.output_structs(), "shape", None) != ():
        value = f"sum(map(jnp.sum, jax.tree.leaves({value})))"  # a pytree or array with one number
    has_points_axis = dict(zip(names, (name in problem.points for name in problem.arguments), strict=True))
    has_points_axis |= {"v": True} if is_product else {}
    mapped = [name for name, has_axis in has_points_axis.items() if has_axis]
    in_block = {name: f"p[{k}]" for k, name in enumerate(mapped)}
    forward = tuple(problem.wrt.index(name) for name in (case.forward or "").split("+") if name)
    reverse = tuple(k for k in range(len(wrt)) if k not in forward)
    import_line = problem.import_line
    if import_line and user_function != problem.name:
        import_line += f" as {user_function}"
    return {
        "import_line": import_line, "user_function": user_function, "function": function,
        "target": problem.target, "is_product": is_product, "parameters": list(has_points_axis),
        "argnums": argnums, "value": value, "point": wrt[0] if is_single else f"({', '.join(wrt)})",
        "axes": str(tuple(0 if has_axis else None for has_axis in has_points_axis.values())),
        "specs": ['P("points")' if has_axis else "P()" for has_axis in has_points_axis.values()],
        "mapped": mapped, "block_arguments": ", ".join(in_block.get(name, name) for name in has_points_axis),
        "forward": forward, "reverse": reverse, "order": np.argsort([*forward, *reverse]).tolist(),
    }  # fmt: skip


def _describe_settings(case: Case, xla_options: Mapping[str, str] | None) -> dict[str, Any]:
    """Return values for the template: the XLA flags, float64, and the number of CPU devices."""
    settings: dict[str, Any] = {}
    if xla_options is not None and jax.config.values["jax_enable_x64"]:
        settings["jax_enable_x64"] = True
    if xla_options is not None and case.devices > 1 and jax.default_backend() == "cpu":
        settings["jax_num_cpu_devices"] = jax.device_count()
    flags = " ".join(f"--{name}={value}" for name, value in (xla_options or {}).items())
    return {"xla_flags": flags, "settings": settings}


def _describe_coloring(coloring: Coloring) -> dict[str, Any]:
    """Return values for the template: a coloring and its sparsity pattern.

    `colors` is NumPy code for the color of each column or row, and `count` the number of colors. `nonzero` is
    NumPy code for the sparsity pattern, a Boolean array of shape (outputs, inputs).
    """
    pattern, colors = coloring.pattern, coloring.columns if coloring.column_count else coloring.rows
    mask = np.zeros((pattern.outputs, pattern.inputs), bool)
    mask[pattern.rows, pattern.cols] = True
    bits = _array_expression(np.packbits(mask))
    return {
        "colors": _array_expression(np.asarray(colors, np.int32)),
        "nonzero": f"np.unpackbits({bits})[:{mask.size}].reshape({mask.shape}).astype('bool')",
        "count": coloring.column_count or coloring.row_count,
        "is_scattered": mask.size >= _MIN_SCATTERED,
    }


def _array_expression(array: np.ndarray) -> str:
    """Return NumPy code that evaluates to `array`. It contains the elements as compressed text."""
    text = base64.b64encode(zlib.compress(array.tobytes(), 9)).decode()
    return f"np.frombuffer(zlib.decompress(base64.b64decode({text!r})), np.{array.dtype})"
