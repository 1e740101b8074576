"""Evaluate a function in float64 with the constants that it computes in the dtype of the case.

A constant is an array that does not depend on an input. From the same key, JAX draws different random numbers
in float64 and float32. A function that draws random numbers has the same values in both dtypes only if its
constants are computed in the same dtype.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from scaling.options.program_stats import CUSTOM_CALLS, bind, called_jaxpr, evaluate_inlined


def computed_constants(function: Callable[..., Any], structs: Mapping[str, Any]) -> list[np.ndarray]:
    """Return the constant arrays that `function` computes, such as random numbers from a fixed key.

    A constant does not depend on the inputs. Constants that are never combined with an input, for example in
    a product, are omitted. `structs` maps the name of each input to an abstract array.
    """
    constants: list[np.ndarray] = []

    def keep(constant: jax.Array) -> jax.Array:
        constants.append(np.asarray(constant))
        return constant

    jax.eval_shape(lambda named: _evaluate_with(keep, function, named), dict(structs))
    return constants


def with_constants(function: Callable[..., Any], constants: Sequence[np.ndarray]) -> Callable[..., Any]:
    """Return a copy of `function` that uses `constants` instead of the constants that it computes.

    `constants` must have the order in which `computed_constants` returns them. The copy raises `ValueError`
    if the function computes a different number of constants, or constants of different shapes.
    """

    def fixed(**named: Any) -> Any:
        remaining = list(constants)

        def replace(constant: jax.Array) -> jax.Array:
            if not remaining or remaining[0].shape != constant.shape:
                raise ValueError("it computes other constants")
            return jnp.asarray(remaining.pop(0), constant.dtype)

        result = _evaluate_with(replace, function, named)
        if remaining:
            raise ValueError("it computes fewer constants")
        return result

    return fixed


def _evaluate_with(
    change: Callable[[jax.Array], jax.Array], function: Callable[..., Any], named: dict[str, Any]
) -> Any:
    """Return `function(**named)`, with `change(x)` in place of each constant array x in the function.

    Constants that are never combined with an input are not replaced. The values in `named` are tracers.
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
