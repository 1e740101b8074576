"""Implement `target=laplacian`: sum v^T H v over directions v, by JVPs, `jet` or a forward Laplacian.

H is the Hessian, and the vectors v are the directions. With a mode that computes the products H v,
`sum_quadratic_forms` sums v^T (H v). `nested_jvp` differentiates twice in forward mode. `jet` computes the
second derivative along each direction separately, with `jax.experimental.jet`.

`forward_laplacian`, also known as collapsed Taylor mode, propagates two quantities for each intermediate
result: its derivatives along all directions, and the sum of its second derivatives. Let y = g(x) be an
operation, t the derivative of x along a direction, and s the sum of the second derivatives of x. Then

    derivative of y along the direction      g'(x) t
    sum of the second derivatives of y       g'(x) s + sum over the directions of g''(x)[t, t]

The sum of g''(x)[t, t] is g''(x) times the sum of t^2 if g is elementwise. For other operations, such as
loops and functions with a custom derivative, each g''(x)[t, t] is a JVP of a JVP. JAX knows that it is zero
if g is linear, and computes nothing.

Sources: Li et al., "A computational framework for neural network-based variational Monte Carlo with Forward
Laplacian" (2024); Dangel et al., "Collapsing Taylor mode automatic differentiation" (2025).
"""

import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import jet as taylor

from scaling.core.case import NotOffered
from scaling.core.modes import LinearMap, Mode, jvp_map, ravel
from scaling.core.reductions import Jacobians, ReferenceTerms
from scaling.programs.jaxpr_interpreter import CUSTOM_CALLS, bind, evaluate_inlined
from scaling.programs.program_stats import TRANSCENDENTAL

# The JAX primitives that compute each element of the result from one element, if they have one operand.
_ELEMENTWISE = TRANSCENDENTAL | {"integer_pow", "square"}


class LaplacianValue(NamedTuple):
    """An intermediate result of a function, with its derivatives along several directions."""

    value: Any
    tangents: Any  # the first derivatives along the directions, of shape (directions, *value.shape)
    second: Any  # the second derivatives summed over the directions, with the shape of `value`


def _sum_over_directions(quadratic_form: LinearMap) -> LinearMap:
    """Return a function that sums `quadratic_form(v)` over the directions v in its argument."""
    return lambda V: jax.vmap(quadratic_form)(V).sum()


def sum_quadratic_forms(mode: Mode, f: Callable[..., Any], x: tuple[Any, ...]) -> LinearMap:
    """Return a function that sums v^T H v over directions v, computed with the AD mode `mode`.

    H is the Hessian of f at x. The argument of the function is a tuple of arrays with a leading axis of
    directions. A direction v is a tuple with one slice of each array.
    """
    if mode.quadratic_sum is not None:
        return mode.quadratic_sum(f, x)
    assert mode.linear_map is not None
    column = mode.linear_map(f, x)  # v -> H v
    return _sum_over_directions(lambda v: (ravel(v) * column(v)).sum())


def nested_jvp(f: Callable[..., Any], x: tuple[Any, ...]) -> LinearMap:
    """Return a function that sums v^T H v over directions v, computed by JVPs of JVPs.

    H is the Hessian of f at x. The argument of the function is a tuple of arrays with a leading axis of
    directions.
    """
    return _sum_over_directions(lambda v: jvp_map(lambda *z: jvp_map(f, z)(v), x)(v))


def jet(f: Callable[..., Any], x: tuple[Any, ...]) -> LinearMap:
    """Return a function that sums v^T H v over directions v, computed by `jax.experimental.jet`.

    H is the Hessian of f at x. The argument of the function is a tuple of arrays with a leading axis of
    directions. The function ignores custom derivative rules of f. It raises `NotOffered` if `jet` cannot
    differentiate an operation of f.
    """
    # The library fails for most functions with custom derivatives, and for a call whose operands are batched
    # by `jax.vmap` but do not depend on the direction. Therefore all calls are inlined.
    closed_jaxpr = jax.make_jaxpr(f)(*x)

    def bind_by_jet(equation: Any, operands: list[Any]) -> list[Any]:
        try:
            return bind(equation, operands)
        except Exception:  # such as KeyError, AssertionError and TypeError
            raise NotOffered(
                "mode=jet: jax.experimental.jet cannot differentiate the operation "
                f"{equation.primitive.name}; use mode=forward_laplacian"
            ) from None

    def inlined(*z: Any) -> Any:
        return evaluate_inlined(closed_jaxpr, z, bind_by_jet)[0]

    def second_derivative(v: tuple[Any, ...]) -> Any:
        series = [(a, jnp.zeros_like(a)) for a in v]
        # Without the factorials, which jet rounds, the coefficient is half of the derivative.
        _, (_, coefficient) = taylor.jet(inlined, x, series, factorial_scaled=False)
        return 2 * coefficient

    return _sum_over_directions(second_derivative)


def forward_laplacian(f: Callable[..., Any], x: tuple[Any, ...]) -> LinearMap:
    """Return a function that sums v^T H v over directions v, computed by a forward Laplacian.

    H is the Hessian of f at x. The argument of the function is a tuple of arrays with a leading axis of
    directions.
    """
    closed_jaxpr = jax.make_jaxpr(f)(*x)

    def propagate(V: tuple[Any, ...]) -> Any:
        inputs = [LaplacianValue(a, v, jnp.zeros_like(a)) for a, v in zip(x, V, strict=True)]
        (result,) = evaluate_inlined(closed_jaxpr, inputs, _apply_to_laplacian_values, CUSTOM_CALLS)
        return result.second if isinstance(result, LaplacianValue) else jnp.zeros_like(result)

    return propagate


def _apply_to_laplacian_values(equation: Any, operands: Sequence[Any]) -> list[Any]:
    """Return a list of the results of a jaxpr equation whose operands may be `LaplacianValue`.

    If any operand is a `LaplacianValue`, each float or complex result is a `LaplacianValue`. All other
    results are arrays.
    """
    positions = [k for k, operand in enumerate(operands) if isinstance(operand, LaplacianValue)]
    arguments = list({id(operands[k]): operands[k] for k in positions}.values())

    def function(*dependent: Any) -> list[Any]:
        replaced = dict(zip(map(id, arguments), dependent, strict=True))
        return bind(equation, [replaced.get(id(operand), operand) for operand in operands])

    dtypes = [getattr(variable.aval, "dtype", jnp.int32) for variable in equation.outvars]
    is_inexact = [jnp.issubdtype(dtype, jnp.inexact) for dtype in dtypes]
    if not (positions and any(is_inexact)):
        return function(*(x.value for x in arguments))
    if equation.primitive.name in _ELEMENTWISE and len(operands) == 1:
        return [_propagate_elementwise(lambda x: function(x)[0], operands[0])]
    return _propagate(function, arguments, is_inexact)


def _propagate_elementwise(g: Callable[[Any], Any], x: LaplacianValue) -> LaplacianValue:
    ones = jnp.ones_like(x.value)
    derivative = lambda z: jax.jvp(g, (z,), (ones,))[1]  # noqa: E731
    first, second = jax.jvp(derivative, (x.value,), (ones,))
    return LaplacianValue(
        g(x.value), first * x.tangents, first * x.second + second * jnp.sum(x.tangents**2, axis=0)
    )


def _propagate(
    g: Callable[..., list[Any]], inputs: Sequence[LaplacianValue], is_inexact: Sequence[bool]
) -> list[Any]:
    """Apply the function g to `LaplacianValue` inputs, and return a list of its results.

    The chain rule yields the derivatives. Result k is a `LaplacianValue` if `is_inexact[k]` is true,
    otherwise an array.
    """
    values, tangents, seconds = (tuple(fields) for fields in zip(*inputs, strict=True))
    inexact_results = lambda *z: list(itertools.compress(g(*z), is_inexact))  # noqa: E731
    jvp = lambda z, t: jax.jvp(inexact_results, z, t)[1]  # noqa: E731
    firsts, curvatures = jax.vmap(lambda *t: jax.jvp(lambda *z: jvp(z, t), values, t))(*tangents)
    derivatives = zip(firsts, jvp(values, seconds), curvatures, strict=True)
    results = []
    for y, inexact in zip(g(*values), is_inexact, strict=True):
        if inexact:
            first, second, curvature = next(derivatives)
            y = LaplacianValue(y, first, second + jnp.sum(curvature, axis=0))
        results.append(y)
    return results


def reference_trace(H: Jacobians) -> ReferenceTerms:
    """Return the trace of the Hessian H, its influence and its magnitude (see `Rounding.scale`)."""
    trace, magnitude = (values.trace(axis1=1, axis2=2)[:, None, None] for values in (H.values, abs(H.values)))
    return trace, H.size.max(axis=2).sum(axis=1)[:, None, None], magnitude
