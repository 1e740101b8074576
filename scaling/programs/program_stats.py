"""Count the flops of a jaxpr and the jaxprs that it calls, and check the collectives of a compiled program.

Flops are counted in the equations of the jaxpr, before XLA optimizes the program. Equations with unused
results are not counted. The body of a loop is counted once per iteration. programs/kernel_work.py counts the
operations of the optimized program instead.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.dtypes import issubdtype
from jax.extend.core import ClosedJaxpr, Jaxpr
from jax.interpreters.partial_eval import dce_jaxpr

from scaling.core.case import CEILING, COMMUNICATING, Case
from scaling.core.compile_case import CompiledCase, trace_program
from scaling.core.derivative import Derivative, ceil_div
from scaling.programs import hlo

_PRIMITIVES_OF_RULE = {  # name of a counting rule -> the JAX primitives it applies to
    "free": """
        all_gather all_gather_invariant all_to_all axis_index bitcast_convert_type broadcast_in_dim
        concatenate convert_element_type copy copy_p debug_callback debug_print device_put dynamic_slice
        dynamic_update_slice empty eq eq_to gather ge get gt iota is_finite le le_to lt lt_to mesh_cast
        name ne optimization_barrier pad pbroadcast pmax pmin ppermute psum psum_invariant pvary
        reduce_precision reduce_scatter reshape reshard rev scatter select_n sharding_constraint slice
        sort split squeeze stack stop_gradient swap tile top_k transpose unstack zeros_like
    """,
    "per_result": "abs add add_any ceil clamp div floor max min mul neg nextafter rem round sign square sub",
    "transcendental": """
        acos acosh asin asinh atan atan2 atanh bessel_i0e bessel_i1e cbrt cos cosh digamma erf erf_inv
        erfc exp exp2 expm1 igamma igamma_grad_a igammac lgamma log log1p log2 logistic polygamma pow
        regularized_incomplete_beta rsqrt sin sinh sqrt tan tanh zeta
    """,
    "per_operand": "argmax argmin cummax cummin cumprod cumsum reduce_max reduce_min reduce_prod reduce_sum",
    "per_update": "scatter-add scatter-max scatter-min scatter-mul scatter-sub",
}
_RULE_OF = {primitive: rule for rule, names in _PRIMITIVES_OF_RULE.items() for primitive in names.split()}
TRANSCENDENTAL = frozenset(_PRIMITIVES_OF_RULE["transcendental"].split())


class OperationCounts(NamedTuple):
    """The numbers of flops and of transcendental function calls on one device. None means unknown."""

    flops: int | None
    transcendentals: int | None


def measure_work(compiled: CompiledCase, devices: Sequence[Any]) -> tuple[dict[str, Any], str | None]:
    """Return the work of a case as fields of `Record`, and an error message or None.

    The message says that the program has unexpected collectives, or lacks expected ones.
    """
    if compiled.stages.compiled is None:
        return program_work(compiled, devices, None), None
    program = hlo.read(compiled.stages.compiled.as_text())
    wrong = describe_wrong_collectives(compiled.derivative.case, program.collectives)
    return program_work(compiled, devices, program), wrong


def program_work(
    compiled: CompiledCase, devices: Sequence[Any], program: hlo.HloProgram | None
) -> dict[str, Any]:
    """Return the operations, memory traffic and collectives of one device as fields of `Record`.

    The operations and bytes are totals over all runs of the program that one result needs. "collectives" maps
    each kind of collective to its number of instructions. An unknown count is None. If `program` is None,
    only the operations are known. If `compiled` has no jaxpr, the program is traced for `devices`.
    """
    operations = count_operations(compiled.stages.jaxpr or trace_program(compiled, devices))
    work: dict[str, Any] = {
        **operations._asdict(), "hbm_bytes": program and program.hbm_bytes,
        "collective_bytes": program and program.collective_bytes,
    }  # fmt: skip
    totals = {name: amount and amount * compiled.steps for name, amount in work.items()}
    return {**totals, "collectives": program and program.collectives}


def padding_share(derivative: Derivative) -> float | None:
    """Return the fraction of the computed (point, seed) pairs that are padding.

    Padding makes the numbers of points and seeds equal on all devices. Return None if the case never has
    padding: it has neither split=both nor colored seeds.
    """
    case = derivative.case
    if case.split != "both" and derivative.coloring is None:
        return None
    point_devices, seed_devices = case.mesh_shape
    points = point_devices * ceil_div(case.points, point_devices)  # `points` and `seeds` include padding
    seeds = seed_devices * max(1, sum(ceil_div(part.seeds, seed_devices) for part in derivative.parts))
    return 1 - case.points * max(derivative.seeds, 1) / (points * seeds)


def describe_wrong_collectives(case: Case, collectives: Mapping[str, int]) -> str | None:
    """Return an error message if a program has unexpected or missing collectives, otherwise None.

    `collectives` maps the opcode of a collective, such as "all-reduce", to its number of instructions.
    """
    communicates = any(collectives.values())
    is_data_parallel = case.split == "data" and case.devices > 1
    expected = case.target in COMMUNICATING if case.workload == CEILING else is_data_parallel
    if communicates == expected:
        return None
    verb = "communicates" if communicates else "does not communicate"
    return f"the compiled program {verb}: {dict(collectives)}"


def _count_convolution(params: dict[str, Any], operands: list[Any], results: list[Any]) -> int:
    """Return the number of operations of a convolution, without products with zeros that dilation inserts."""
    kernel = operands[1]
    output_features = kernel.shape[params["dimension_numbers"].rhs_spec[0]]
    return 2 * results[0].size * kernel.size // output_features // math.prod(params["lhs_dilation"])


def _count_lu(params: dict[str, Any], operands: list[Any], results: list[Any]) -> int:
    """Return the number of operations of an LU factorization: s^2 (l - s / 3) for dimensions s <= l."""
    a = operands[0]
    short, long = min(a.shape[-2:]), max(a.shape[-2:])
    return a.size * short * (3 * long - short) // max(1, 3 * long)


# Functions f(params, x, y) that return the number of operations of an equation with operands x and results y.
_COUNTING_RULES: dict[str, Callable[[dict[str, Any], list[Any], list[Any]], int]] = {
    "per_result": lambda params, x, y: y[0].size,
    "transcendental": lambda params, x, y: y[0].size,
    "per_operand": lambda params, x, y: x[0].size if params.get("axes", True) else 0,
    "per_update": lambda params, x, y: x[2].size,
    "integer_pow": lambda params, x, y: (  # repeated squaring
        y[0].size * max(0, abs(params["y"]).bit_length() + params["y"].bit_count() - 2 + (params["y"] < 0))
    ),
    "one_minus_square": lambda params, x, y: 3 * y[0].size,  # (1 + x) (1 - x), since JAX 0.11
    "polynomial": lambda params, x, y: 2 * max(0, len(x) - 2) * y[0].size,  # Horner's rule, since JAX 0.12
    "dot_general": lambda params, x, y: (
        2 * y[0].size * math.prod(x[0].shape[axis] for axis in params["dimension_numbers"][0][0])
    ),
    "conv_general_dilated": _count_convolution,
    "triangular_solve": lambda params, x, y: x[1].size * x[0].shape[-1],
    "cholesky": lambda params, x, y: x[0].size * x[0].shape[-1] // 3,
    "lu": _count_lu,
}


def count_operations(jaxpr: Any) -> OperationCounts:
    """Return the numbers of floating-point operations and transcendental evaluations of a ClosedJaxpr.

    Operations are counted as follows:

    matrix product                                2 * batch * M * N * K operations
    reduction, cumulative sum                     one operation per input element
    scatter-add and similar                       one operation per update
    power with a constant integer exponent        the multiplications of repeated squaring
    exp, root, other power and similar            one transcendental evaluation per result element
    any other floating-point arithmetic           one operation per result element
    integer arithmetic, comparison                not counted
    data movement, collective                     not counted
    conditional                                   only the most expensive branch
    `shard_map`, `pmap`                           the operations of one device

    If either number is unknown, both are None. Causes are complex numbers, a `while` loop, and primitives
    without a counting rule.
    """
    try:
        return OperationCounts(*_count_jaxpr(jaxpr))
    except (KeyError, AttributeError):  # no rule, or a parameter that has another name in this version of JAX
        return OperationCounts(None, None)


def _count_jaxpr(jaxpr: Any) -> tuple[int, int]:
    """Return the flops and the transcendental function calls of a jaxpr, without unused equations."""
    jaxpr = getattr(jaxpr, "jaxpr", jaxpr)
    used = dce_jaxpr(jaxpr, [True] * len(jaxpr.outvars))[0].eqns
    flops, transcendentals = zip((0, 0), *map(_count_equation, used), strict=True)
    return sum(flops), sum(transcendentals)


def _count_equation(equation: Any) -> tuple[int, int]:
    """Return the flops and the transcendental function calls of an equation and the jaxprs that it calls."""
    name, params = equation.primitive.name, equation.params
    if name == "scan":
        flops, transcendentals = _count_jaxpr(params["jaxpr"])
        return params["length"] * flops, params["length"] * transcendentals
    if name == "cond":
        return max(map(_count_jaxpr, params["branches"]), key=sum)
    if name == "custom_linear_solve":
        return _count_jaxpr(params["jaxprs"].solve)
    rule = _RULE_OF.get(name, name)
    if rule == "free":
        return 0, 0
    if (called := called_jaxpr(equation, per_device=True)) is not None:
        return _count_jaxpr(called)
    operands, results = [v.aval for v in equation.invars], [v.aval for v in equation.outvars]
    dtypes = [x.dtype for x in (*operands, *results) if hasattr(x, "dtype")]
    if not any(issubdtype(dtype, np.inexact) for dtype in dtypes):
        return 0, 0
    if any(issubdtype(dtype, np.complexfloating) for dtype in dtypes):
        raise KeyError("complex numbers")
    operation_count = _COUNTING_RULES[rule](params, operands, results)
    return (0, operation_count) if rule == "transcendental" else (operation_count, 0)


def called_jaxpr(equation: Any, per_device: bool = False) -> Any:
    """Return the jaxpr of the function that an equation calls, such as a nested `jax.jit`, or None.

    The jaxpr takes the operands and returns the results of the equation. For a `shard_map` or `pmap`, return
    the jaxpr for the arrays of one device if `per_device` is true, otherwise None.
    """
    name, jaxprs = equation.primitive.name, subjaxprs(equation)
    if len(jaxprs) != 1 or name == "scan":
        return None
    if name in ("shard_map", "xla_pmap"):
        return jaxprs[0] if per_device else None
    inner = getattr(jaxprs[0], "jaxpr", jaxprs[0])
    if inner is jaxprs[0] and inner.constvars:
        return None
    shapes = [
        [getattr(atom.aval, "shape", None) for atom in atoms]
        for atoms in (equation.invars, equation.outvars, inner.invars, inner.outvars)
    ]
    return jaxprs[0] if shapes[:2] == shapes[2:] else None


def subjaxprs(equation: Any) -> list[Any]:
    """Return a list of the jaxprs in the parameters of an equation, such as the body of a loop.

    Custom primitives of `jax.experimental.hijax` define their operations in a method `expand`. For such a
    primitive, return only the jaxpr of this method.
    """
    # `jax.custom_remat` uses such a primitive since JAX 0.11, and `jnp.interp` since JAX 0.12.
    primitive = equation.params.get("_prim")
    if hasattr(primitive, "expand"):
        return [jax.make_jaxpr(primitive.expand)(*primitive.in_avals)]
    groups = (value if isinstance(value, tuple) else (value,) for value in equation.params.values())
    return [value for group in groups for value in group if isinstance(value, ClosedJaxpr | Jaxpr)]
