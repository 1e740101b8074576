"""Count the operations of a program on one device from its jaxpr; loops count by their trips.

Counts the program as traced, without dead code. What XLA shares, hoists out of a loop or adds is in its
optimised program: see hlo_cost.py. A count that depends on trips known only at run time is None. Does not
know cases, devices or clocks.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.dtypes import issubdtype
from jax.extend.core import Literal, jaxprs_in_params
from jax.interpreters.partial_eval import dce_jaxpr


@dataclass(frozen=True)
class OperationCounts:
    """Floating-point operations of one device, and evaluations of transcendental functions; both None if
    unknown.
    """

    flops: int | None
    transcendentals: int | None


_ALIKE = {  # a rule -> JAX's primitives that it counts
    "nothing": """all_gather all_gather_invariant all_to_all axis_index bitcast_convert_type broadcast_in_dim concatenate
        convert_element_type copy copy_p debug_callback debug_print device_put dynamic_slice dynamic_update_slice empty eq eq_to
        gather ge get gt iota is_finite le le_to lt lt_to mesh_cast name ne optimization_barrier pad pbroadcast pmax pmin ppermute
        psum psum_invariant pvary reduce_precision reduce_scatter reshape reshard rev scatter select_n sharding_constraint slice
        sort split squeeze stack stop_gradient swap tile top_k transpose unstack zeros_like""",
    "results": "abs add add_any ceil clamp div floor max min mul neg nextafter rem round sign square sub",
    "transcendental": """acos acosh asin asinh atan atan2 atanh bessel_i0e bessel_i1e cbrt cos cosh digamma erf erf_inv erfc exp
        exp2 expm1 igamma igamma_grad_a igammac lgamma log log1p log2 logistic polygamma pow regularized_incomplete_beta rsqrt sin
        sinh sqrt tan tanh zeta""",
    "operands": "argmax argmin cummax cummin cumprod cumsum reduce_max reduce_min reduce_prod reduce_sum",
    "updates": "scatter-add scatter-max scatter-min scatter-mul scatter-sub",
}
_RULE_OF = {name: rule for rule, names in _ALIKE.items() for name in names.split()}
ELEMENTWISE = {
    *_RULE_OF,
    "integer_pow",
    "one_minus_square",
    "polynomial",
}  # primitives without a product of matrices
_RULES: dict[
    str, Callable[[Any, list[Any], list[Any]], int]
] = {  # (parameters, inputs, outputs) -> operations
    "results": lambda p, x, y: y[0].size,
    "transcendental": lambda p, x, y: y[0].size,
    "operands": lambda p, x, y: x[0].size if p.get("axes", True) else 0,
    "updates": lambda p, x, y: x[2].size,
    "integer_pow": lambda p, x, y: (
        y[0].size * (abs(p["y"]).bit_length() + p["y"].bit_count() - 2 + (p["y"] < 0))
    ),  # by squaring
    "one_minus_square": lambda p, x, y: 3 * y[0].size,  # (1 + x) (1 - x), from JAX 0.11
    "polynomial": lambda p, x, y: (
        2 * (len(x) - 2) * y[0].size
    ),  # of x and its coefficients, by Horner's rule, from JAX 0.12
    "dot_general": lambda p, x, y: (
        2 * y[0].size * math.prod(x[0].shape[axis] for axis in p["dimension_numbers"][0][0])
    ),
    "conv_general_dilated": lambda p, x, y: (  # with padding, without the zeros inserted into a dilated input
        2
        * y[0].size
        * x[1].size
        // x[1].shape[p["dimension_numbers"].rhs_spec[0]]
        // math.prod(p["lhs_dilation"])
    ),
    "triangular_solve": lambda p, x, y: x[1].size * x[0].shape[-1],
    "cholesky": lambda p, x, y: x[0].size * x[0].shape[-1] // 3,
    "lu": lambda p, x, y: (
        x[0].size * (n := min(x[0].shape[-2:])) * (3 * (m := max(x[0].shape[-2:])) - n) // (3 * m)
    ),
}


def count_operations(jaxpr: Any) -> OperationCounts:
    """Return the work of a ClosedJaxpr; inside `shard_map` and `pmap` shapes are local, so it is that of
    one device.

    A matrix product is 2 * batch * M * N * K; other arithmetic is one for each element of its result, a
    reduction or a running sum one for each input, a scatter one for each update. Transcendental functions,
    roots and powers are counted apart, one each. Integers, comparisons, choices, moves and collectives are
    free. Of several branches, the most expensive counts. Unknown are primitives without a rule above, such
    as most factorisations and custom kernels; complex numbers; loops whose trips are not numbers in the
    program.
    """
    try:
        return OperationCounts(*_sum(jaxpr))
    except (KeyError, AttributeError):  # no rule, or a parameter that another version of JAX names otherwise
        return OperationCounts(None, None)


def _sum(jaxpr: Any) -> tuple[int, int]:
    """Return (flops, transcendentals) of a jaxpr, without equations whose results are not used."""
    jaxpr = getattr(jaxpr, "jaxpr", jaxpr)
    each = [_one(equation) for equation in dce_jaxpr(jaxpr, [True] * len(jaxpr.outvars))[0].eqns]
    return sum(flops for flops, _ in each), sum(transcendentals for _, transcendentals in each)


def _one(equation: Any) -> tuple[int, int]:
    """Return (flops, transcendentals) of one equation and of what it contains."""
    name, p = equation.primitive.name, equation.params
    if name in ("scan", "while"):
        times, body = (p["length"], p["jaxpr"]) if name == "scan" else (trips(equation), p["body_jaxpr"])
        flops, transcendentals = _sum(body)
        return times * flops, times * transcendentals
    if name == "cond":
        return max(map(_sum, p["branches"]), key=sum)
    if name == "custom_linear_solve":
        return _sum(p["jaxprs"].solve)
    rule = _RULE_OF.get(name, name)
    if rule == "nothing":
        return 0, 0
    inner = [] if rule in _RULES else subjaxprs(equation)
    if len(inner) == 1 and (len(inner[0].invars), len(inner[0].outvars)) == (
        len(equation.invars),
        len(equation.outvars),
    ):
        return _sum(inner[0])  # a call
    given, made = [v.aval for v in equation.invars], [v.aval for v in equation.outvars]
    dtypes = [x.dtype for x in (*given, *made) if hasattr(x, "dtype")]
    if not any(issubdtype(dtype, np.inexact) for dtype in dtypes):
        return 0, 0
    if any(issubdtype(dtype, np.complexfloating) for dtype in dtypes):
        raise KeyError("complex numbers")
    count = _RULES[rule](p, given, made)
    return (0, count) if rule == "transcendental" else (count, 0)


def subjaxprs(equation: Any) -> list[Any]:
    """Return the jaxprs inside an equation: for a primitive that JAX expands when it lowers, the one that it
    expands to."""
    primitive = equation.params.get(
        "_prim"
    )  # of `jax.custom_remat` (JAX 0.11), and of `jnp.interp` from JAX 0.12
    if hasattr(primitive, "expand"):
        return [jax.make_jaxpr(primitive.expand)(*primitive.in_avals).jaxpr]
    return list(jaxprs_in_params(equation.params))


def trips(equation: Any) -> int:
    """Return the trips of `while counter < end: counter += step`, where start, end and step are constants."""
    p = equation.params
    test, body = p["cond_jaxpr"].jaxpr, p["body_jaxpr"].jaxpr
    begins = equation.invars[p["cond_nconsts"] + p["body_nconsts"] :]
    carried = zip(
        begins, test.invars[p["cond_nconsts"] :], body.invars[p["body_nconsts"] :], body.outvars, strict=True
    )
    for begin, tested, before, after in carried:
        ends = [
            e.invars[1]
            for e in test.eqns
            if (e.primitive.name, e.invars[0], e.outvars) == ("lt", tested, test.outvars)
        ]
        steps = [
            e.invars[1]
            for e in body.eqns
            if (e.primitive.name, e.invars[0], e.outvars) == ("add", before, [after])
        ]
        whole = [
            int(v.val)
            for v in (begin, *ends, *steps)
            if isinstance(v, Literal) and isinstance(v.val, int | np.integer)
        ]
        if len(ends) == len(steps) == 1 and len(whole) == 3 and whole[2] > 0:
            return max(0, math.ceil((whole[1] - whole[0]) / whole[2]))
    raise KeyError("trips")
