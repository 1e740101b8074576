"""Find the longest sum, the narrowest dtype and the largest array of a jaxpr, for its rounding error."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.extend.core import Literal

from scaling.options.program.jaxpr_flops import subjaxprs, trip_count

# An elementwise operation counts as this fraction of a term, because the tolerance of a term allows sixteen
# roundings.
_ELEMENTWISE_TERMS = 1 / 16
_UNKNOWN_TRIPS = 100  # the assumed trip count of a loop whose trip count is not a constant
_TERMS_OF_FUNCTIONS = {  # additional terms of these functions
    0.5: "exp log sin cos tan tanh logistic pow exp2 expm1 log1p log2 atan2",
    1.0: "sinh cosh asin acos atan asinh acosh atanh erf erfc cbrt",
    64.0: """lgamma digamma erf_inv igamma igammac igamma_grad_a polygamma zeta bessel_i0e bessel_i1e
        regularized_incomplete_beta random_gamma_grad""",
}
_FUNCTION_TERMS = {name: terms for terms, names in _TERMS_OF_FUNCTIONS.items() for name in names.split()}
_FACTORIZATION_NAMES = "cholesky lu qr geqrf householder_product eigh eig svd schur triangular_solve"
_EXACT_NAMES = """argmax argmin bitcast_convert_type broadcast_in_dim concatenate copy copy_p dynamic_slice
    dynamic_update_slice gather iota max min neg pad reduce_max reduce_min reshape rev select_n sort split
    squeeze stop_gradient transpose abs sign"""
EXACT_NAMES = frozenset(_EXACT_NAMES.split())  # the operations without a rounding error


@dataclass(frozen=True)
class RoundingProperties:
    """The properties of a function that determine its rounding error."""

    terms: int  # the largest number of terms that are summed on a path from an input to an output
    bits: int  # the mantissa bits of the narrowest floating-point dtype of an intermediate result
    width: int  # the number of elements of the largest intermediate result


def rounding_properties(function: Callable[..., Any], *arguments: Any) -> RoundingProperties:
    """Return the rounding properties of `function(*arguments)`. The arguments may be abstract arrays."""
    jaxpr = jax.make_jaxpr(function)(*arguments).jaxpr
    extremes = _Extremes()
    longest = max(_terms_to_outputs(jaxpr, [0.0] * len(jaxpr.invars), extremes), default=0.0)
    return RoundingProperties(max(1, math.ceil(longest)), extremes.bits, extremes.width)


class _Extremes:
    """The fewest mantissa bits (with the implicit bit) and the most elements of the results so far."""

    def __init__(self) -> None:
        self.bits, self.width = 53, 1

    def update(self, equation: Any, variable: Any) -> None:
        """Update both extremes with a result of an equation."""
        aval = variable.aval
        self.width = max(self.width, int(getattr(aval, "size", 1)))
        if equation.primitive.name == "reduce_precision":
            self.bits = min(self.bits, int(equation.params["mantissa_bits"]) + 1)
        if jax.dtypes.issubdtype(getattr(aval, "dtype", np.int32), np.floating):
            self.bits = min(self.bits, int(jax.numpy.finfo(aval.dtype).nmant) + 1)


def _terms_to_outputs(jaxpr: Any, input_terms: Sequence[float | None], extremes: _Extremes) -> list[float]:
    """Return the number of summed terms on the longest path to each output of a jaxpr, and update `extremes`.

    `input_terms` contains the number of terms on the path to each input, or None for a constant.
    """
    terms: dict[Any, float | None] = dict(zip(jaxpr.invars, input_terms, strict=True))

    def terms_to(atom: Any) -> float | None:
        return None if isinstance(atom, Literal) else terms.get(atom)

    for equation in jaxpr.eqns:
        operand_terms = [terms_to(atom) for atom in equation.invars]
        if all(count is None for count in operand_terms):
            continue
        result_terms = _terms_to_results(equation, operand_terms, extremes)
        for variable, count in zip(equation.outvars, result_terms, strict=True):
            terms[variable] = count
            extremes.update(equation, variable)
    return [terms_to(atom) or 0.0 for atom in jaxpr.outvars]


def _terms_to_results(equation: Any, operand_terms: list[float | None], extremes: _Extremes) -> list[float]:
    name, params = equation.primitive.name, equation.params
    before = max(count for count in operand_terms if count is not None)
    results = len(equation.outvars)
    if name == "cond":
        branches = [
            _terms_to_outputs(branch.jaxpr, operand_terms[1:], extremes) for branch in params["branches"]
        ]
        return [max(counts) for counts in zip(*branches, strict=True)]
    if name in ("scan", "while"):
        body = params["jaxpr" if name == "scan" else "body_jaxpr"].jaxpr
        return [before + _longest_path(body, extremes) * _known_or_assumed_trips(equation)] * results
    inner = [getattr(jaxpr, "jaxpr", jaxpr) for jaxpr in subjaxprs(equation)]
    if inner and len(inner[0].invars) == len(operand_terms) and len(inner[0].outvars) == results:
        return _terms_to_outputs(inner[0], operand_terms, extremes)
    within = max((_longest_path(jaxpr, extremes) for jaxpr in inner), default=0.0)
    return [before + within + _terms_of_operation(equation)] * results


def _longest_path(jaxpr: Any, extremes: _Extremes) -> float:
    return max(_terms_to_outputs(jaxpr, [0.0] * len(jaxpr.invars), extremes), default=0.0)


def _known_or_assumed_trips(equation: Any) -> int:
    if equation.primitive.name == "scan":
        return int(equation.params["length"])
    try:
        return trip_count(equation)
    except KeyError:
        return _UNKNOWN_TRIPS


def _terms_of_operation(equation: Any) -> float:
    """Return the number of terms of the sum that one operation computes for each element of its result."""
    name, params = equation.primitive.name, equation.params
    shapes = [tuple(getattr(atom.aval, "shape", ())) for atom in equation.invars]
    result_size = int(getattr(equation.outvars[0].aval, "size", 1)) if equation.outvars else 1
    size = math.prod(shapes[0]) if shapes else 1
    if name in EXACT_NAMES:
        return 0.0
    if name in ("reduce_sum", "reduce_prod", "reduce_window_sum"):
        return size / max(1, result_size)
    if name in ("cumsum", "cumprod", "cumlogsumexp"):
        return shapes[0][params["axis"]]
    if name == "dot_general":
        return math.prod(shapes[0][axis] for axis in params["dimension_numbers"][0][0])
    if name == "conv_general_dilated":
        return math.prod(shapes[1]) / shapes[1][params["dimension_numbers"].rhs_spec[0]]
    if name.startswith("scatter"):
        return math.prod(shapes[2]) if len(shapes) > 2 and name != "scatter" else 0.0
    if name == "polynomial":
        return _ELEMENTWISE_TERMS * 2 * (len(shapes) - 2)
    if name in _FACTORIZATION_NAMES.split():
        return 4 * max(shapes[0], default=1)
    if name == "fft":
        return math.log2(max(2, size))
    return _ELEMENTWISE_TERMS + _FUNCTION_TERMS.get(name, 0.0)
