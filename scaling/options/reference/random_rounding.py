"""Evaluate a function with a random rounding error in each intermediate result (Monte Carlo arithmetic).

The variation of a result among several evaluations estimates its rounding error, including cancellation. For
example, where tanh(x) is close to 1, the small value 1 - tanh(x)^2 varies by a few unit roundoffs of 1.
Source: D. S. Parker, Monte Carlo arithmetic, Technical Report CSD-970002, UCLA, 1997.
"""

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, Jaxpr, jaxpr_as_fun

from scaling.options.jaxpr_evaluation import bind, evaluate
from scaling.options.reference.summed_terms import EXACT

_ROUNDINGS = 2  # the largest relative error of an intermediate result, in unit roundoffs of its dtype


def with_random_rounding(function: Callable[..., Any], seed: jax.Array) -> Callable[..., Any]:
    """Return a copy of a function with a random relative error in the result of each inexact operation.

    The function takes pytrees of arrays and returns an array. `seed` is a scalar uint32, which may be traced.
    """

    def rounded(*arguments: Any) -> Any:
        rounded_function = _Interpreter(seed).as_function(jax.make_jaxpr(function)(*arguments))
        return rounded_function(*jax.tree.leaves(arguments))[0]

    return rounded


class _Interpreter:
    """An interpreter of jaxprs that adds random rounding errors to the results of operations.

    Each error depends on the seed, the index of the operation, and the result.
    """

    def __init__(self, seed: jax.Array) -> None:
        self._seed, self._operations = seed, itertools.count(1)
        self._control_flow = {"scan": self._scan, "while": self._while, "cond": self._cond}

    def as_function(self, jaxpr: Any) -> Callable[..., list[Any]]:
        """Return a function that evaluates a jaxpr with random rounding errors and returns the outputs."""
        return lambda *arguments: evaluate(jaxpr, arguments, self._evaluate_equation)

    def _evaluate_equation(self, equation: Any, operands: list[Any]) -> list[Any]:
        name = equation.primitive.name
        if name in self._control_flow:
            return self._control_flow[name](equation, operands)
        if (called := _called_jaxpr(equation)) is not None:
            return self.as_function(called)(*operands)
        results = bind(equation, operands)
        is_exact = name in EXACT or not any(map(_is_inexact, operands))
        return results if is_exact else [self._round(result) for result in results]

    def _round(self, x: Any) -> Any:
        """Return x with a random relative error of at most `_ROUNDINGS` unit roundoffs in each element."""
        if not _is_inexact(x):
            return x
        precision = jnp.finfo(x.dtype)
        bits = jax.lax.bitcast_convert_type(jnp.real(x).astype(jnp.float32), jnp.uint32)
        index = jax.lax.iota(jnp.uint32, max(1, x.size))[: x.size].reshape(x.shape)
        salt = self._seed * jnp.uint32(0x9E3779B9) + jnp.uint32(next(self._operations) * 0x85EBCA6B % 2**32)
        mixed = jax.lax.bitcast_convert_type(_mix(bits ^ salt ^ (index * jnp.uint32(0x27D4EB2F))), jnp.int32)
        uniform = mixed.astype(jnp.float32) / 2.0**31  # in [-1, 1]
        error = ((uniform + jnp.sign(uniform)) / 2).astype(precision.dtype)  # large enough to change x
        return x * (1 + _ROUNDINGS * float(precision.eps) / 2 * error)

    def _scan(self, equation: Any, operands: list[Any]) -> list[Any]:
        params, inner = equation.params, equation.params["jaxpr"].jaxpr
        body = self.as_function(params["jaxpr"])
        # The arrays that are scanned over have one axis more than their elements. The other operands are the
        # constants and the carry. They are counted here, because the names of their counts in `params` depend
        # on the version of JAX.
        carries = len(equation.outvars) - _count_scanned(equation.outvars, inner.outvars)
        last = len(operands) - _count_scanned(equation.invars, inner.invars)
        first = last - carries
        constants, start, scanned = operands[:first], operands[first:last], operands[last:]

        def step(carry: list[Any], x: list[Any]) -> tuple[list[Any], list[Any]]:
            results = body(*constants, *carry, *x)
            return results[:carries], results[carries:]

        carry, stacked = jax.lax.scan(step, start, scanned, params["length"], params["reverse"])
        return [*carry, *stacked]

    def _while(self, equation: Any, operands: list[Any]) -> list[Any]:
        """Return the results of a `while` loop with as many iterations as without rounding errors.

        With rounding errors, the loop might not terminate. If `jax.vmap` batches the condition, the loop ends
        when no element continues, and an element that does not continue keeps its values.
        """
        params = equation.params
        first = params["cond_nconsts"]
        last = first + params["body_nconsts"]
        condition_constants, body_constants, start = operands[:first], operands[first:last], operands[last:]
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


def _mix(bits: jax.Array) -> jax.Array:
    """Return a hash of each element of a uint32 array (the finalizer of MurmurHash3)."""
    bits = (bits ^ (bits >> 16)) * jnp.uint32(0x85EBCA6B)
    bits = (bits ^ (bits >> 13)) * jnp.uint32(0xC2B2AE35)
    return bits ^ (bits >> 16)


def _called_jaxpr(equation: Any) -> Any:
    """Return the jaxpr that an equation calls, such as a nested `jax.jit`, or None if it is not a call."""
    jaxprs = [value for value in equation.params.values() if isinstance(value, (ClosedJaxpr, Jaxpr))]
    if len(jaxprs) != 1 or (isinstance(jaxprs[0], Jaxpr) and jaxprs[0].constvars):
        return None
    open_jaxpr = getattr(jaxprs[0], "jaxpr", jaxprs[0])
    callers: list[Any] = [equation, open_jaxpr]
    outer, inner = (
        [[atom.aval.shape for atom in atoms] for atoms in (caller.invars, caller.outvars)]
        for caller in callers
    )
    return jaxprs[0] if outer == inner else None


def _count_scanned(outer: Sequence[Any], inner: Sequence[Any]) -> int:
    return sum(a.aval.ndim > b.aval.ndim for a, b in zip(outer, inner, strict=True))


def _select_batched(condition: jax.Array, new: jax.Array, old: jax.Array) -> jax.Array:
    """Return `new` where `condition` is true and `old` elsewhere; `condition` may lack trailing axes."""
    if condition.ndim == 0:
        return new  # the loop ends where it does not hold
    return jnp.where(condition.reshape(*condition.shape, *[1] * (jnp.ndim(new) - condition.ndim)), new, old)
