"""Evaluate a jaxpr (the intermediate representation of JAX) one equation at a time, with custom rules."""

from collections.abc import Callable, Sequence
from typing import Any

from jax.extend.core import Literal


def evaluate(
    jaxpr: Any, arguments: Sequence[Any], apply: Callable[[Any, list[Any]], Sequence[Any]]
) -> list[Any]:
    """Return the outputs of a closed jaxpr, or of an open jaxpr without constants, for the given arguments.

    `apply(equation, operands)` returns the sequence of results of one equation.
    """
    constants, jaxpr = getattr(jaxpr, "consts", ()), getattr(jaxpr, "jaxpr", jaxpr)
    values = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*constants, *arguments], strict=True))
    read = lambda atom: atom.val if isinstance(atom, Literal) else values[atom]  # noqa: E731
    for equation in jaxpr.eqns:
        results = apply(equation, [read(atom) for atom in equation.invars])
        values.update(zip(equation.outvars, results, strict=True))
    return [read(atom) for atom in jaxpr.outvars]


def evaluate_inlined(
    jaxpr: Any, inputs: Sequence[Any], calls: Sequence[str], apply: Callable[[Any, list[Any]], list[Any]]
) -> list[Any]:
    """Return the outputs of a jaxpr, with inlining of the functions that the primitives `calls` call.

    `apply(equation, operands)` returns a list of the results of any other equation.
    """

    def inline_or_apply(equation: Any, operands: list[Any]) -> list[Any]:
        if equation.primitive.name not in calls:
            return apply(equation, operands)
        params = equation.params
        return evaluate(params.get("jaxpr") or params["call_jaxpr"], operands, inline_or_apply)

    return evaluate(jaxpr, inputs, inline_or_apply)


def bind(equation: Any, operands: Sequence[Any]) -> list[Any]:
    """Return the results of a jaxpr equation, evaluated by JAX. The operands are arrays or tracers."""
    primitive = equation.primitive
    results = primitive.bind(*operands, **primitive.get_bind_params(equation.params))
    return list(results) if primitive.multiple_results else [results]
