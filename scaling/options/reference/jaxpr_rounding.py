"""Find the longest sum and narrowest dtype in a jaxpr, or evaluate a jaxpr with random rounding errors.

The `RoundingProperties` of a function determine the tolerance of the check. `with_random_rounding` evaluates
a function with a random rounding error in each intermediate result (Monte Carlo arithmetic). The variation of
a result among several evaluations estimates its rounding error, including cancellation. For example, where
tanh(x) is close to 1, 1 - tanh(x)^2 is small, but its rounding error is as large as that of the number 1.

Source: D. S. Parker, Monte Carlo arithmetic, Technical Report CSD-970002, UCLA, 1997.
"""

import itertools
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Literal, Primitive, jaxpr_as_fun

from scaling.options.program_stats import bind, called_jaxpr, evaluate_inlined, subjaxprs

_ROUNDINGS = 2  # the largest random error of an intermediate result, in unit roundoffs of its dtype
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
_SUM_TERMS = {name: count_terms for names, count_terms in _SUMS.items() for name in names.split()}
_EXACT = """abs argmax argmin bitcast_convert_type broadcast_in_dim ceil clamp concatenate conj copy copy_p
    cummax cummin dynamic_slice dynamic_update_slice floor gather imag iota max min neg optimization_barrier
    pad real reduce_max reduce_min reduce_window_max reduce_window_min reshape rev round scatter select_n sign
    slice sort split squeeze stack stop_gradient tile top_k transpose unstack"""
EXACT = frozenset(_EXACT.split())  # the JAX primitives without a rounding error
_EXACT_FOR_INTEGERS = ("add", "sub", "mul", "reduce_sum", "cumsum", "dot_general")
# Prefixes of the names of JAX primitives whose derivative rules are not defined by JAX.
_CUSTOM_RULES = ("custom_", "stop_gradient", "pure_callback", "ffi_call", "linear_call", "call_")


@dataclass(frozen=True)
class RoundingProperties:
    """The length of the longest sum, the narrowest dtype and the size of the largest array in a jaxpr."""

    terms: int  # the largest number of terms that are summed on a path from an input to an output
    bits: int  # the mantissa bits of the narrowest floating-point dtype of an intermediate result
    width: int  # the number of elements of the largest intermediate result
    has_batching_rule: bool  # whether the jaxpr calls a function with a custom rule for `vmap`
    needs_transpose: bool  # whether the jaxpr is a JVP that JAX can only transpose, as of `custom_vjp`


def rounding_properties(function: Callable[..., Any], *arguments: Any) -> RoundingProperties:
    """Return the properties of the jaxpr of `function(*arguments)` that determine rounding errors.

    The arguments are arrays or abstract arrays.
    """
    analysis = _JaxprAnalysis()
    longest = analysis.longest_path(jax.make_jaxpr(function)(*arguments))
    terms = max(1, math.ceil(longest))
    names = analysis.primitives
    has_batching_rule, needs_transpose = "custom_vmap_call" in names, "custom_lin" in names
    return RoundingProperties(terms, analysis.bits, analysis.width, has_batching_rule, needs_transpose)


def has_custom_rules(function: Callable[..., Any], arguments: Mapping[str, Any]) -> bool:
    """Return whether `function(**arguments)` uses an operation with custom derivative rules.

    Such operations include `custom_jvp`, `custom_vjp`, `stop_gradient`, callbacks and user-defined
    primitives. Some functions of JAX use them internally, such as `jax.nn.relu`.
    """
    modules = [vars(module) for name, module in sys.modules.items() if name.partition(".")[0] == "jax"]
    jax_ids = {id(value) for names in modules for value in names.values() if isinstance(value, Primitive)}
    pending: list[Any] = [jax.make_jaxpr(function)(**arguments)]
    while pending:
        for equation in pending.pop().eqns:
            primitive = equation.primitive
            if primitive.name.startswith(_CUSTOM_RULES) or id(primitive) not in jax_ids:
                return True
            pending += subjaxprs(equation)
    return False


class _JaxprAnalysis:
    """An analysis that finds the longest sum, narrowest dtype and largest intermediate result of jaxprs."""

    def __init__(self) -> None:
        self.bits = 53  # the mantissa bits of the narrowest dtype, with the implicit bit
        self.width = 1  # the number of elements of the largest intermediate result
        self.primitives: set[str] = set()  # the names of the primitives, except in operations on constants

    def longest_path(self, jaxpr: Any) -> float:
        """Return the largest number of terms that are summed on a path from an input to an output."""
        return max(self._terms_to_outputs(jaxpr), default=0.0)

    def _terms_to_outputs(self, jaxpr: Any, input_terms: Sequence[float | None] | None = None) -> list[float]:
        """Return the number of terms that are summed on the longest path to each output of a jaxpr.

        A path is a chain of operations from an input to the output. `input_terms[k]` is the number of terms
        that were summed on the longest path to input k, or None if input k is a constant. By default, all
        these numbers are 0.
        """
        inputs = getattr(jaxpr, "jaxpr", jaxpr).invars
        terms: dict[Any, float | None] = dict(zip(inputs, input_terms or [0.0] * len(inputs), strict=True))

        def terms_to(atom: Any) -> float | None:
            return None if isinstance(atom, Literal) else terms.get(atom)

        for equation in jaxpr.eqns:
            operand_terms = [terms_to(atom) for atom in equation.invars]
            if all(count is None for count in operand_terms):
                continue
            terms.update(zip(equation.outvars, self._terms_to_results(equation, operand_terms), strict=True))
            self._update_extremes(equation)
        return [terms_to(atom) or 0.0 for atom in jaxpr.outvars]

    def _update_extremes(self, equation: Any) -> None:
        self.primitives.add(equation.primitive.name)
        if equation.primitive.name == "reduce_precision":
            self.bits = min(self.bits, int(equation.params["mantissa_bits"]) + 1)
        for aval in (variable.aval for variable in equation.outvars):
            self.width = max(self.width, int(getattr(aval, "size", 1)))
            if jax.dtypes.issubdtype(getattr(aval, "dtype", np.int32), np.floating):
                self.bits = min(self.bits, int(jnp.finfo(aval.dtype).nmant) + 1)

    def _terms_to_results(self, equation: Any, operand_terms: list[float | None]) -> list[float]:
        """Return the number of terms that are summed on the longest path to each result of an equation.

        `operand_terms[k]` is the number of terms that were summed on the longest path to operand k, or None
        if operand k is a constant.
        """
        name, params = equation.primitive.name, equation.params
        terms_before = max(count for count in operand_terms if count is not None)
        results = len(equation.outvars)
        if name == "cond":
            branches = [self._terms_to_outputs(branch, operand_terms[1:]) for branch in params["branches"]]
            return [max(counts) for counts in zip(*branches, strict=True)]
        if name in ("scan", "while"):
            body = params["jaxpr" if name == "scan" else "body_jaxpr"]
            trips = params.get("length", _ASSUMED_TRIPS)
            return [terms_before + self.longest_path(body) * trips] * results
        if (called := called_jaxpr(equation, per_device=True)) is not None:
            return self._terms_to_outputs(called, operand_terms)
        terms_within = max(map(self.longest_path, subjaxprs(equation)), default=0.0)
        return [terms_before + terms_within + _terms_of_operation(equation)] * results


def _terms_of_operation(equation: Any) -> float:
    """Return the number of terms that an operation sums for each element of its result.

    For any operation that is not a sum, return the number of terms of a sum with about the same rounding
    error.
    """
    name = equation.primitive.name
    if name in EXACT:
        return 0.0
    if name not in _SUM_TERMS:
        return _ELEMENTWISE_TERMS + _FUNCTION_TERMS.get(name, 0.0)
    shapes = [tuple(getattr(atom.aval, "shape", ())) for atom in equation.invars]
    return _SUM_TERMS[name](equation.params, shapes, equation.outvars[0].aval.size)


def with_random_rounding(function: Callable[..., Any], seed: jax.Array) -> Callable[..., Any]:
    """Return a function that evaluates `function` with a random rounding error in each inexact operation.

    `function` takes pytrees of arrays and returns an array. `seed` is a scalar uint32, which may be traced.
    """

    def rounded(*arguments: Any) -> Any:
        rounded_function = _Interpreter(seed).as_function(jax.make_jaxpr(function)(*arguments))
        return rounded_function(*jax.tree.leaves(arguments))[0]

    return rounded


class _Interpreter:
    """An interpreter of jaxprs that adds random rounding errors to the results of operations."""

    def __init__(self, seed: jax.Array) -> None:
        self._seed, self._operations = seed, itertools.count(1)
        self._constants: dict[int, Any] = {}  # the results that depend on no input, by their `id`
        self._control_flow = {"scan": self._scan, "while": self._while, "cond": self._cond}

    def as_function(self, jaxpr: Any) -> Callable[..., list[Any]]:
        """Return a function that evaluates a jaxpr with random rounding errors and returns the outputs."""
        return lambda *arguments: evaluate_inlined(jaxpr, arguments, self._evaluate_equation)

    def _evaluate_equation(self, equation: Any, operands: list[Any]) -> list[Any]:
        name = equation.primitive.name
        if name in self._control_flow:
            return self._control_flow[name](equation, operands)
        terms = operands
        if name in _SUM_TERMS:  # the terms of a sum may cancel, so that they are much larger than the sum
            terms = [x if self._is_constant(x) else self._round(x, is_exact=True) for x in operands]
        results, is_constant = bind(equation, terms), all(map(self._is_constant, operands))
        if name not in EXACT and any(map(_is_inexact, operands)):
            is_exact = name in _EXACT_FOR_INTEGERS
            results = [self._round(result, is_exact, is_constant) for result in results]
        if is_constant:
            self._constants.update((id(result), result) for result in results)
        return results

    def _is_constant(self, x: Any) -> bool:
        return not isinstance(x, jax.core.Tracer) or id(x) in self._constants

    def _round(self, x: Any, is_exact: bool, is_constant: bool = False) -> Any:
        """Return x with a random relative error of at most `_ROUNDINGS` unit roundoffs in each element.

        Whole numbers may be counts, indices or exponents. They have no error if `is_constant` is true, and
        small ones have none if `is_exact` is true. Large results may be whole because of their rounding.
        """
        if not _is_inexact(x):
            return x
        precision = jnp.finfo(x.dtype)
        bits = jax.lax.bitcast_convert_type(jnp.real(x).astype(jnp.float32), jnp.uint32)
        index = jax.lax.iota(jnp.uint32, max(1, x.size))[: x.size].reshape(x.shape)
        salt = self._seed * jnp.uint32(0x9E3779B9) + jnp.uint32(next(self._operations) * 0x85EBCA6B % 2**32)
        mixed = jax.lax.bitcast_convert_type(_hash(bits ^ salt ^ (index * jnp.uint32(0x27D4EB2F))), jnp.int32)
        uniform = mixed.astype(jnp.float32) / 2.0**31  # in [-1, 1]
        error = ((uniform + jnp.sign(uniform)) / 2).astype(precision.dtype)  # large enough to change x
        # A division, because a product in a difference x - x could be fused to an FMA, whose result is not 0.
        rounded = x / (1 + _ROUNDINGS * float(precision.eps) / 2 * error)
        largest = np.inf if is_constant else is_exact / np.sqrt(float(precision.eps))
        return jnp.where((x == jnp.round(x)) & (jnp.abs(x) < largest), x, rounded) if largest else rounded

    def _scan(self, equation: Any, operands: list[Any]) -> list[Any]:
        params, body_jaxpr = equation.params, equation.params["jaxpr"].jaxpr
        body = self.as_function(params["jaxpr"])
        # The arrays that are scanned over have one axis more than their elements. The other operands are the
        # constants and the carry. Their numbers are computed here, because the names of the parameters that
        # contain them depend on the version of JAX.
        carries = len(equation.outvars) - _count_scanned(equation.outvars, body_jaxpr.outvars)
        scanned_start = len(operands) - _count_scanned(equation.invars, body_jaxpr.invars)
        carry_start = scanned_start - carries
        constants, start = operands[:carry_start], operands[carry_start:scanned_start]

        def step(carry: list[Any], x: list[Any]) -> tuple[list[Any], list[Any]]:
            results = body(*constants, *carry, *x)
            return results[:carries], results[carries:]

        carry, stacked = jax.lax.scan(
            step, start, operands[scanned_start:], params["length"], params["reverse"]
        )
        return [*carry, *stacked]

    def _while(self, equation: Any, operands: list[Any]) -> list[Any]:
        """Return the results of a `while` loop with random rounding errors and an unchanged trip count."""
        params = equation.params
        first = params["cond_nconsts"]
        last = first + params["body_nconsts"]
        condition_constants, body_constants, start = operands[:first], operands[first:last], operands[last:]
        # The condition is evaluated without rounding errors. With them, it might never become false.
        condition, body = (jaxpr_as_fun(params[name]) for name in ("cond_jaxpr", "body_jaxpr"))
        rounded_body = self.as_function(params["body_jaxpr"])

        def step(carry: tuple[list[Any], list[Any]]) -> tuple[list[Any], list[Any]]:
            continues = condition(*condition_constants, *carry[0])[0]
            stepped = body(*body_constants, *carry[0]), rounded_body(*body_constants, *carry[1])
            return jax.tree.map(lambda new, old: _select_batched(continues, new, old), stepped, carry)

        _, rounded = jax.lax.while_loop(
            lambda carry: jnp.any(condition(*condition_constants, *carry[0])[0]), step, (start, start)
        )
        return rounded

    def _cond(self, equation: Any, operands: list[Any]) -> list[Any]:
        branches = [self.as_function(branch) for branch in equation.params["branches"]]
        return jax.lax.switch(operands[0], branches, *operands[1:])


def _is_inexact(x: Any) -> bool:
    return bool(jnp.issubdtype(jnp.result_type(x), jnp.inexact))


def _hash(bits: jax.Array) -> jax.Array:  # the finalizer of MurmurHash3
    bits = (bits ^ (bits >> 16)) * jnp.uint32(0x85EBCA6B)
    bits = (bits ^ (bits >> 13)) * jnp.uint32(0xC2B2AE35)
    return bits ^ (bits >> 16)


def _count_scanned(outer: Sequence[Any], inner: Sequence[Any]) -> int:
    return sum(a.aval.ndim > b.aval.ndim for a, b in zip(outer, inner, strict=True))


def _select_batched(condition: jax.Array, new: jax.Array, old: jax.Array) -> jax.Array:
    """Return `new` where `condition` is true, else `old`. `condition` has only the leading axes of `new`."""
    if condition.ndim == 0:
        return new  # a loop body runs only while a scalar condition is true
    return jnp.where(condition.reshape(*condition.shape, *[1] * (jnp.ndim(new) - condition.ndim)), new, old)
