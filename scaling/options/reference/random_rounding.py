"""Evaluate a function with random rounding errors in each intermediate result (Monte Carlo arithmetic).

The variation of a result among several evaluations estimates its rounding error, including cancellation. For
example, where tanh(x) is close to 1, the small value 1 - tanh(x)^2 varies by a few unit roundoffs of 1.

Source: D. S. Parker, Monte Carlo arithmetic, Technical Report CSD-970002, UCLA, 1997.
"""

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal, jaxpr_as_fun

from scaling.options.reference.rounding import EXACT_NAMES

_ROUNDINGS = 2  # the largest relative error of an intermediate result, in unit roundoffs of its dtype


def with_random_rounding(function: Callable[..., Any], seed: jax.Array) -> Callable[..., Any]:
    """Return a copy of a function with a random relative error in the result of each inexact operation.

    Args:
        function: a function of pytrees of arrays that returns an array.
        seed: a scalar uint32 that selects the errors. It may be traced.
    """

    def rounded(*arguments: Any) -> Any:
        closed = jax.make_jaxpr(function)(*arguments)
        interpreter = _Interpreter(seed)
        return interpreter.evaluate(closed, jax.tree.leaves(arguments))[0]

    return rounded


class _Interpreter:
    """An interpreter of jaxprs with random errors that depend on the seed, the operation and its result."""

    def __init__(self, seed: jax.Array) -> None:
        self._seed, self._operations = seed, itertools.count(1)

    def evaluate(self, jaxpr: Any, arguments: Sequence[Any]) -> list[Any]:
        """Return the outputs of a jaxpr, which must be closed or have no constants."""
        constants, jaxpr = getattr(jaxpr, "consts", ()), getattr(jaxpr, "jaxpr", jaxpr)
        values: dict[Any, Any] = dict(zip(jaxpr.constvars, constants, strict=True))
        values.update(zip(jaxpr.invars, arguments, strict=True))

        def read(atom: Any) -> Any:
            return atom.val if isinstance(atom, Literal) else values[atom]

        for equation in jaxpr.eqns:
            results = self._evaluate_equation(equation, [read(atom) for atom in equation.invars])
            values.update(zip(equation.outvars, results, strict=True))
        return [read(atom) for atom in jaxpr.outvars]

    def _evaluate_equation(self, equation: Any, operands: list[Any]) -> list[Any]:
        name = equation.primitive.name
        if name in _CONTROL_FLOW:
            return _CONTROL_FLOW[name](self, equation, operands)
        if (called := _called_jaxpr(equation)) is not None:
            return self.evaluate(called, operands)
        results = equation.primitive.bind(*operands, **equation.primitive.get_bind_params(equation.params))
        results = list(results) if equation.primitive.multiple_results else [results]
        is_exact = name in EXACT_NAMES or not any(map(_is_inexact, operands))
        return results if is_exact else [self._round(result) for result in results]

    def as_function(self, jaxpr: Any) -> Callable[..., list[Any]]:
        """Return a function that evaluates a jaxpr at its arguments."""
        return lambda *arguments: self.evaluate(jaxpr, arguments)

    def _round(self, x: Any) -> Any:
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


def _is_inexact(x: Any) -> bool:
    return bool(jnp.issubdtype(jnp.result_type(x), jnp.inexact))


def _mix(bits: jax.Array) -> jax.Array:
    """Return a hash of each element of a uint32 array (the finalizer of MurmurHash3)."""
    bits = (bits ^ (bits >> 16)) * jnp.uint32(0x85EBCA6B)
    bits = (bits ^ (bits >> 13)) * jnp.uint32(0xC2B2AE35)
    return bits ^ (bits >> 16)


def _called_jaxpr(equation: Any) -> Any:
    """Return the jaxpr that an equation calls, as a nested `jax.jit` does, or None if it is not a call."""
    jaxprs = [value for value in equation.params.values() if isinstance(value, (ClosedJaxpr, Jaxpr))]
    if len(jaxprs) != 1 or (isinstance(jaxprs[0], Jaxpr) and jaxprs[0].constvars):
        return None
    open_jaxpr = getattr(jaxprs[0], "jaxpr", jaxprs[0])
    pairs = [(equation.invars, open_jaxpr.invars), (equation.outvars, open_jaxpr.outvars)]
    return jaxprs[0] if all(_shapes(outer) == _shapes(inner) for outer, inner in pairs) else None


def _shapes(atoms: Sequence[Any]) -> list[tuple[int, ...]]:
    return [atom.aval.shape for atom in atoms]


def _scan(interpreter: _Interpreter, equation: Any, operands: list[Any]) -> list[Any]:
    params, body = equation.params, interpreter.as_function(equation.params["jaxpr"])
    inner = getattr(params["jaxpr"], "jaxpr", params["jaxpr"])
    # The arrays that are scanned over have one axis more than their elements. The other operands are the
    # constants and the carry. Their numbers are in `params` under names that depend on the version of JAX.
    count = len(equation.outvars) - _scanned(equation.outvars, inner.outvars)  # of the carry
    last = len(operands) - _scanned(equation.invars, inner.invars)
    first = last - count
    constants = operands[:first]

    def step(carry: list[Any], x: list[Any]) -> tuple[list[Any], list[Any]]:
        results = body(*constants, *carry, *x)
        return results[:count], results[count:]

    carry, stacked = jax.lax.scan(
        step, operands[first:last], operands[last:], params["length"], params["reverse"]
    )
    return [*carry, *stacked]


def _scanned(outer: Sequence[Any], inner: Sequence[Any]) -> int:
    return sum(a.aval.ndim > b.aval.ndim for a, b in zip(outer, inner, strict=True))


def _while(interpreter: _Interpreter, equation: Any, operands: list[Any]) -> list[Any]:
    """Evaluate a loop with rounding errors, for as many iterations as the loop has without them.

    With rounding errors, the loop itself may not converge.
    """
    params = equation.params
    first = params["cond_nconsts"]
    last = first + params["body_nconsts"]
    of_condition, of_body, start = operands[:first], operands[first:last], operands[last:]
    condition, body = (jaxpr_as_fun(params[name]) for name in ("cond_jaxpr", "body_jaxpr"))
    rounded_body = interpreter.as_function(params["body_jaxpr"])
    _, rounded = jax.lax.while_loop(
        lambda carry: condition(*of_condition, *carry[0])[0],
        lambda carry: (body(*of_body, *carry[0]), rounded_body(*of_body, *carry[1])),
        (start, start),
    )
    return rounded


def _cond(interpreter: _Interpreter, equation: Any, operands: list[Any]) -> list[Any]:
    branches = [interpreter.as_function(branch) for branch in equation.params["branches"]]
    return jax.lax.switch(operands[0], branches, *operands[1:])


_CONTROL_FLOW: dict[str, Callable[[_Interpreter, Any, list[Any]], list[Any]]] = {
    "scan": _scan,
    "while": _while,
    "cond": _cond,
}
