"""Evaluate the equations of a jaxpr: inline calls, add random rounding errors, replace constants.

`with_random_rounding` evaluates a function with a random rounding error in each intermediate result (Monte
Carlo arithmetic). The variation of a result among several evaluations estimates its rounding error, including
cancellation. For example, where tanh(x) is close to 1, 1 - tanh(x)^2 is small, but its rounding error is as
large as that of the number 1.

`with_fixed_constants` replaces the arrays that a function computes without its inputs. From the same key, JAX
draws different random numbers in float64 and float32. A function that draws random numbers has the same
values in both dtypes only if these arrays are computed in the same dtype.

Source: D. S. Parker, Monte Carlo arithmetic, Technical Report CSD-970002, UCLA, 1997.
"""

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.extend.core import Literal, jaxpr_as_fun

from scaling.programs.jaxpr_properties import EXACT, SUM_TERMS
from scaling.programs.program_stats import called_jaxpr

CUSTOM_CALLS = "custom_jvp_call", "custom_vjp_call"  # calls of a function with custom derivative rules
_ROUNDINGS = 2  # the largest random error of an intermediate result, in unit roundoffs of its dtype
_EXACT_FOR_INTEGERS = ("add", "sub", "mul", "reduce_sum", "cumsum", "dot_general")


def evaluate_inlined(
    jaxpr: Any,
    inputs: Sequence[Any],
    apply: Callable[[Any, list[Any]], list[Any]],
    not_inlined: Sequence[str] = (),
) -> list[Any]:
    """Evaluate a jaxpr at `inputs`, and return a list of its outputs.

    `apply(equation, operands)` evaluates one equation and returns a list of its results. A call of a function
    is replaced by the equations of the function, unless its primitive is in `not_inlined`. `jaxpr` is a
    `ClosedJaxpr`, or a `Jaxpr` without constants.
    """
    constants, jaxpr = getattr(jaxpr, "consts", ()), getattr(jaxpr, "jaxpr", jaxpr)
    value_of_variable = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*constants, *inputs], strict=True))
    read_atom = lambda atom: atom.val if isinstance(atom, Literal) else value_of_variable[atom]  # noqa: E731
    for equation in jaxpr.eqns:
        operands = [read_atom(atom) for atom in equation.invars]
        if equation.primitive.name in not_inlined or (called := called_jaxpr(equation)) is None:
            results = apply(equation, operands)
        else:
            results = evaluate_inlined(called, operands, apply, not_inlined)
        value_of_variable.update(zip(equation.outvars, results, strict=True))
    return [read_atom(atom) for atom in jaxpr.outvars]


def bind(equation: Any, operands: Sequence[Any]) -> list[Any]:
    """Evaluate one equation of a jaxpr at `operands`, JAX arrays or tracers. Return a list of its results."""
    primitive = equation.primitive
    results = primitive.bind(*operands, **primitive.get_bind_params(equation.params))
    return list(results) if primitive.multiple_results else [results]


def with_random_rounding(
    function: Callable[..., Any], seed: jax.Array, roundoff: float = 0.0
) -> Callable[..., Any]:
    """Return a function that evaluates `function` with a random rounding error in each inexact operation.

    `function` takes pytrees of arrays and returns an array. `seed` is a scalar uint32, which may be traced.
    Each error is proportional to the unit roundoff of the dtype of the operation, or to `roundoff` if that is
    larger.
    """

    def rounded(*arguments: Any) -> Any:
        rounded_function = _Interpreter(seed, roundoff).as_function(jax.make_jaxpr(function)(*arguments))
        return rounded_function(*jax.tree.leaves(arguments))[0]

    return rounded


class _Interpreter:
    """An interpreter of jaxprs that adds random rounding errors to the results of operations."""

    def __init__(self, seed: jax.Array, roundoff: float) -> None:
        self._seed, self._roundoff, self._operations = seed, roundoff, itertools.count(1)
        self._constants: dict[int, Any] = {}  # the results that depend on no input, by their `id`
        self._control_flow = {"scan": self._scan, "while": self._while, "cond": self._cond}

    def as_function(self, jaxpr: Any) -> Callable[..., list[Any]]:
        """Return a function that evaluates a jaxpr with random rounding errors and returns its outputs."""
        return lambda *arguments: evaluate_inlined(jaxpr, arguments, self._evaluate_equation)

    def _evaluate_equation(self, equation: Any, operands: list[Any]) -> list[Any]:
        """Return the results of an equation of a jaxpr with random rounding errors."""
        name = equation.primitive.name
        if name in self._control_flow:
            return self._control_flow[name](equation, operands)
        terms = operands
        if name in SUM_TERMS:  # the terms of a sum may cancel, so that they are much larger than the sum
            terms = [x if self._is_constant(x) else self._round(x, is_exact=True) for x in operands]
        results, is_constant = bind(equation, terms), all(map(self._is_constant, operands))
        if name not in EXACT and any(map(_is_inexact, operands)):
            is_exact = name in _EXACT_FOR_INTEGERS
            results = [self._round(result, is_exact, is_constant) for result in results]
        if is_constant:
            self._constants.update((id(result), result) for result in results)
        return results

    def _is_constant(self, x: Any) -> bool:
        return not isinstance(x, Tracer) or id(x) in self._constants

    def _round(self, x: Any, is_exact: bool, is_constant: bool = False) -> Any:
        """Return x with a random relative error of at most `_ROUNDINGS` unit roundoffs in each element.

        Some whole numbers are not changed, because they may be counts, indices or exponents:

        is_constant    no whole number is changed, because x does not depend on the inputs of the function
        is_exact       whole numbers below 1 / sqrt(eps) are not changed, because x contains them exactly
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
        rounded = x / (1 + _ROUNDINGS * max(self._roundoff, float(precision.eps) / 2) * error)
        if not (is_constant or is_exact):
            return rounded
        limit = np.inf if is_constant else 1 / np.sqrt(float(precision.eps))
        return jnp.where((x == jnp.round(x)) & (jnp.abs(x) < limit), x, rounded)

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
    return not isinstance(x, jax.Ref) and bool(jnp.issubdtype(jnp.result_type(x), jnp.inexact))


def _hash(bits: jax.Array) -> jax.Array:  # the finalizer of MurmurHash3
    bits = (bits ^ (bits >> 16)) * jnp.uint32(0x85EBCA6B)
    bits = (bits ^ (bits >> 13)) * jnp.uint32(0xC2B2AE35)
    return bits ^ (bits >> 16)


def _count_scanned(outer: Sequence[Any], inner: Sequence[Any]) -> int:
    return sum(a.aval.ndim > b.aval.ndim for a, b in zip(outer, inner, strict=True))


def _select_batched(condition: jax.Array, new: jax.Array, old: jax.Array) -> jax.Array:
    """Return `new` where `condition` is true, and `old` elsewhere.

    The axes of `condition` are the leading axes of `new`. A scalar `condition` is assumed to be true.
    """
    if condition.ndim == 0:
        return new  # a loop body runs only while a scalar condition is true
    return jnp.where(condition.reshape(*condition.shape, *[1] * (jnp.ndim(new) - condition.ndim)), new, old)


def with_fixed_constants(
    function: Callable[..., Any], structs: Mapping[str, Any]
) -> Callable[..., Any] | None:
    """Return a version of `function` that uses the present values of its constants in all calls, or None.

    A constant is an array, such as random numbers from a fixed key, that does not depend on the inputs, and
    is combined with an input, for example in a product. Return None if there is no constant. A call in
    another dtype casts the values. A call raises `ValueError` if it computes more constants, or constants of
    other shapes. `structs` maps the name of each input to an abstract array.
    """
    constants: list[np.ndarray] = []

    def keep(constant: jax.Array) -> jax.Array:
        constants.append(np.asarray(constant))
        return constant

    def fixed(**named: Any) -> Any:
        remaining = iter(constants)

        def replace(constant: jax.Array) -> jax.Array:
            fixed_constant = next(remaining, None)
            if fixed_constant is None or fixed_constant.shape != constant.shape:
                raise ValueError("it computes other constants")
            return jnp.asarray(fixed_constant, constant.dtype)

        return _evaluate_with(replace, function, named)

    jax.eval_shape(lambda named: _evaluate_with(keep, function, named), dict(structs))
    return fixed if constants else None


def _evaluate_with(
    change: Callable[[jax.Array], jax.Array], function: Callable[..., Any], named: dict[str, Any]
) -> Any:
    """Evaluate `function(**named)`, with each constant array x replaced by `change(x)`.

    Constants are defined in `with_fixed_constants`. The values in `named` are tracers.
    """

    def apply(equation: Any, operands: list[Any]) -> list[Any]:
        if not any(isinstance(x, Tracer) for x in operands):
            with jax.ensure_compile_time_eval():
                return bind(equation, operands)
        if equation.primitive.name not in CUSTOM_CALLS and (called := called_jaxpr(equation)) is not None:
            return evaluate_inlined(called, operands, apply, not_inlined)
        return bind(equation, [change(x) if _is_constant_array(x) else x for x in operands])

    # A call of constants is evaluated as a whole. Otherwise its operations would be compiled separately.
    not_inlined = *CUSTOM_CALLS, "jit", "pjit"
    return evaluate_inlined(jax.make_jaxpr(function)(**named), jax.tree.leaves(named), apply, not_inlined)[0]


def _is_constant_array(x: Any) -> bool:
    is_key = jax.dtypes.issubdtype(getattr(x, "dtype", None), jax.dtypes.prng_key)
    return isinstance(x, jax.Array) and not isinstance(x, Tracer) and not is_key
