"""Find the `RoundingProperties` of a jaxpr: the longest sum, the narrowest dtype, custom derivative rules.

The tolerance of the check depends on these properties.
"""

import dataclasses
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Literal, Primitive

from scaling.programs.program_stats import called_jaxpr, subjaxprs

# An elementwise operation counts as this fraction of a term, because the tolerance of a term allows sixteen
# roundings.
_ELEMENTWISE_TERMS = 1 / 16
_ASSUMED_TRIPS = 100  # the assumed trip count of a `while` loop
_TERMS_OF_FUNCTIONS = {  # number of additional terms -> names of elementwise JAX primitives
    0.5: "exp log sin cos tan tanh logistic pow exp2 expm1 log1p log2 atan2",
    1.0: "sinh cosh asin acos atan asinh acosh atanh erf erfc cbrt",
    64.0: """lgamma digamma erf_inv igamma igammac igamma_grad_a polygamma zeta bessel_i0e bessel_i1e
        regularized_incomplete_beta random_gamma_grad""",
}
_FUNCTION_TERMS = {name: terms for terms, names in _TERMS_OF_FUNCTIONS.items() for name in names.split()}
# Names of JAX primitives -> function f(parameters, operand shapes, result size) that returns the number of
# terms whose sum is one element of the result.
_SUMS: dict[str, Callable[[Any, list[tuple[int, ...]], int], float]] = {
    "reduce_sum reduce_prod reduce_window_sum": lambda params, x, size: math.prod(x[0]) / max(1, size),
    "cumsum cumprod cumlogsumexp": lambda params, x, size: x[0][params["axis"]],
    "dot_general": lambda params, x, size: math.prod(
        x[0][axis] for axis in params["dimension_numbers"][0][0]
    ),
    "conv_general_dilated": lambda params, x, size: (
        math.prod(x[1]) / x[1][params["dimension_numbers"].rhs_spec[0]]
    ),
    "scatter-add scatter-sub scatter-mul scatter-min scatter-max": lambda params, x, size: math.prod(x[2]),
    "polynomial": lambda params, x, size: _ELEMENTWISE_TERMS * 2 * (len(x) - 2),
    "cholesky lu qr geqrf householder_product eigh eig svd schur triangular_solve": (
        lambda params, x, size: 4 * max(x[0], default=1)
    ),
    "fft": lambda params, x, size: math.log2(max(2, math.prod(x[0]))),
}
SUM_TERMS = {name: count_terms for names, count_terms in _SUMS.items() for name in names.split()}
_EXACT = """abs argmax argmin bitcast_convert_type broadcast_in_dim ceil clamp concatenate conj copy copy_p
    cummax cummin dynamic_slice dynamic_update_slice floor gather imag iota max min neg optimization_barrier
    pad real reduce_max reduce_min reduce_window_max reduce_window_min reshape rev round scatter select_n sign
    slice sort split squeeze stack stop_gradient tile top_k transpose unstack"""
EXACT = frozenset(_EXACT.split())  # the JAX primitives without a rounding error
# Prefixes of the names of JAX primitives whose derivative rules are not defined by JAX.
_CUSTOM_RULES = ("custom_", "stop_gradient", "pure_callback", "ffi_call", "linear_call", "call_")
# The JAX primitives for which code of the user may compute a whole batch in one call.
_BATCHED_BY_USER = {"custom_vmap_call", "pure_callback", "io_callback", "ffi_call"}


@dataclass(frozen=True)
class RoundingProperties:
    """The properties of a jaxpr that determine rounding errors and whether derivatives may be wrong.

    Operations with custom derivative rules are `custom_jvp`, `custom_vjp`, `stop_gradient`, callbacks and
    user-defined primitives. JAX itself uses such operations, for example in `jax.nn.relu`. The jaxpr of a JVP
    does not contain all such operations of the function.
    """

    terms: int  # the largest number of terms that are summed on a path from an input to an output
    bits: int  # the mantissa bits of the narrowest floating-point dtype of an intermediate result
    width: int  # the number of elements of the largest intermediate result
    has_custom_rule: bool  # whether an operation has a derivative rule that JAX does not define
    has_batching_rule: bool  # whether the user's code defines how `vmap` batches an operation
    needs_transpose: bool  # whether the jaxpr is a JVP that JAX can only transpose, as of `custom_vjp`


def jvp_properties(
    function: Callable[..., Any], names: Sequence[str], structs: Mapping[str, Any]
) -> RoundingProperties:
    """Return the `RoundingProperties` of the JVP of a function with respect to the inputs `names`.

    If JAX cannot trace the JVP, it is assumed to sum twice as many terms as the function. `structs` maps the
    names of all inputs to abstract arrays.
    """
    x = {name: structs[name] for name in names}
    constants = {name: struct for name, struct in structs.items() if name not in names}

    def jvp(constants: dict[str, Any], x: dict[str, Any], tangents: dict[str, Any]) -> Any:
        return jax.jvp(lambda z: function(**constants, **z), (x,), (tangents,))

    try:
        return rounding_properties(jvp, constants, x, x)
    except Exception:  # no rule for forward mode; a JVP is assumed to sum twice as many terms
        properties = rounding_properties(lambda named: function(**named), structs)
        return dataclasses.replace(properties, terms=2 * properties.terms)


def has_custom_rule(function: Callable[..., Any], structs: Mapping[str, Any]) -> bool:
    """Return whether a function has a custom derivative rule, such as `jax.custom_jvp`.

    `structs` maps the name of each input to an abstract array.
    """
    return rounding_properties(lambda named: function(**named), structs).has_custom_rule


def rounding_properties(function: Callable[..., Any], *arguments: Any) -> RoundingProperties:
    """Return the `RoundingProperties` of the jaxpr of a function. The arguments may be abstract arrays."""
    used: list[Any] = []
    terms = max(1, math.ceil(_longest_path(jax.make_jaxpr(function)(*arguments), used)))
    avals = [variable.aval for equation in used for variable in equation.outvars]
    dtypes = [aval.dtype for aval in avals if jax.dtypes.issubdtype(getattr(aval, "dtype", int), np.floating)]
    reduced = [e.params["mantissa_bits"] for e in used if e.primitive.name == "reduce_precision"]
    names, jax_ids = {equation.primitive.name for equation in used}, _jax_ids()
    is_foreign = any(id(equation.primitive) not in jax_ids for equation in used)
    return RoundingProperties(
        terms,
        bits=1 + min([52, *reduced, *(int(jnp.finfo(dtype).nmant) for dtype in dtypes)]),
        width=max([1, *(int(getattr(aval, "size", 1)) for aval in avals)]),
        has_custom_rule=is_foreign or any(name.startswith(_CUSTOM_RULES) for name in names),
        has_batching_rule=is_foreign or not _BATCHED_BY_USER.isdisjoint(names),
        needs_transpose="custom_lin" in names,
    )


def _jax_ids() -> set[int]:
    """Return the ids (addresses in memory) of the primitives that JAX defines."""
    modules = [vars(module) for name, module in sys.modules.items() if name.partition(".")[0] == "jax"]
    return {id(value) for names in modules for value in names.values() if isinstance(value, Primitive)}


def _longest_path(jaxpr: Any, used: list[Any]) -> float:
    """Return the largest number of terms that are summed on a path from an input to an output.

    A path is a chain of operations in the jaxpr. Each operation may sum terms. The equations that depend on
    an input are appended to `used`.
    """
    inputs = getattr(jaxpr, "jaxpr", jaxpr).invars
    return max(_terms_to_outputs(jaxpr, [0.0] * len(inputs), used), default=0.0)


def _terms_to_outputs(jaxpr: Any, input_terms: Sequence[float | None], used: list[Any]) -> list[float]:
    """Return the largest number of terms that are summed on a path to each output of a jaxpr.

    `input_terms[k]` is the number of terms that are summed before input k, or None if input k is a constant.
    The equations that depend on an input are appended to `used`.
    """
    inputs = getattr(jaxpr, "jaxpr", jaxpr).invars
    terms: dict[Any, float | None] = dict(zip(inputs, input_terms, strict=True))

    def terms_to(atom: Any) -> float | None:
        return None if isinstance(atom, Literal) else terms.get(atom)

    for equation in jaxpr.eqns:
        operand_terms = [terms_to(atom) for atom in equation.invars]
        if all(count is None for count in operand_terms):
            continue
        terms.update(zip(equation.outvars, _terms_to_results(equation, operand_terms, used), strict=True))
        used.append(equation)
    return [terms_to(atom) or 0.0 for atom in jaxpr.outvars]


def _terms_to_results(equation: Any, operand_terms: list[float | None], used: list[Any]) -> list[float]:
    """Return the largest number of terms that are summed on a path to each result of an equation.

    `operand_terms[k]` is the number of terms that are summed before operand k, or None if operand k is a
    constant. The equations of called functions are appended to `used`.
    """
    name, params = equation.primitive.name, equation.params
    if name == "cond":
        branches = [_terms_to_outputs(branch, operand_terms[1:], used) for branch in params["branches"]]
        return [max(counts) for counts in zip(*branches, strict=True)]
    if (called := called_jaxpr(equation, per_device=True)) is not None:
        return _terms_to_outputs(called, operand_terms, used)
    if name in ("scan", "while"):
        body = params["jaxpr" if name == "scan" else "body_jaxpr"]
        terms_within = _longest_path(body, used) * params.get("length", _ASSUMED_TRIPS)
    else:
        terms_within = max([_longest_path(jaxpr, used) for jaxpr in subjaxprs(equation)], default=0.0)
        terms_within += _terms_of_operation(equation)
    terms_before = max(count for count in operand_terms if count is not None)
    return [terms_before + terms_within] * len(equation.outvars)


def _terms_of_operation(equation: Any) -> float:
    """Return the number of terms that an operation sums for each element of its result.

    If the operation is not a sum, return the number of terms of a sum with about the same rounding error.
    """
    name = equation.primitive.name
    if name in EXACT:
        return 0.0
    if name not in SUM_TERMS:
        return _ELEMENTWISE_TERMS + _FUNCTION_TERMS.get(name, 0.0)
    shapes = [tuple(getattr(atom.aval, "shape", ())) for atom in equation.invars]
    return SUM_TERMS[name](equation.params, shapes, equation.outvars[0].aval.size)
