"""Workload of the functions in which errors are planted: each variant is a function of any size.

Their first derivatives are positive and of similar size, unless the name states otherwise, so that no
reduction cancels and a relative error in an entry causes a similar relative error in the result. The variants
of WRONG_RULES have a custom derivative rule that is wrong in the same way in every dtype and mode.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from scaling.core.case import SECOND, Case
from scaling.core.workload import InputSpec, Workload, uniform

SIZES = {"n": 8}
ROWS = 8  # outputs of a wide Jacobian, inputs of a tall one
REACH = 0.3  # range of the argument of the sine


@dataclass(frozen=True)
class Family:
    """A function of x, and also of w if the points share an input.

    Attributes:
        shape: Function from the size n to the shape (outputs, inputs) of the Jacobian.
        shared: Whether w is an input that all points share.
        whole: Function of all points at once, if it has one.
    """

    function: Callable
    shape: Callable[[int], tuple[int, int]]
    shared: bool = False
    whole: Callable | None = None
    wrt: str = "x"


def _weights(rows: int, n: int, dtype) -> jax.Array:
    """Return an array (rows, n) of numbers in [1, 2), different in each row."""
    row, column = jnp.arange(rows)[:, None], jnp.arange(n)[None]
    return 1 + ((3 * row + 5 * column + row * column) % 7).astype(dtype) / 7


def _phases(count: int, dtype) -> jax.Array:
    """Return an array (count,) of equally spaced numbers in [-0.5, 0.5)."""
    return jnp.arange(count).astype(dtype) / count - 0.5


def energy(x):
    """Return the sum of x sin(x) over an array (n,), a scalar."""
    return jnp.sum(x * jnp.sin(x))


def product(x):
    """Return a scalar function of an array (n,). Each entry of its gradient depends on all inputs."""
    return jnp.exp(REACH * jnp.mean(_weights(1, x.size, x.dtype)[0] * x**2))


def wide(x):
    """Return a function (8,) of an array (n,). The Jacobian has few rows and many columns."""
    return jnp.sin(_phases(ROWS, x.dtype) + REACH * (_weights(ROWS, x.size, x.dtype) @ x**2) / x.size)


def dense(x):
    """Return a function (n,) of an array (n,). The Jacobian is not symmetric and has rank one."""
    return jnp.sin(_phases(x.size, x.dtype) + REACH * jnp.mean(_weights(1, x.size, x.dtype)[0] * x**2))


def tall(n: int) -> Callable:
    """Return a function from an array (8,) to an array (n,)."""
    return lambda x: jnp.sin(_phases(n, x.dtype) + REACH * jnp.mean(_weights(1, ROWS, x.dtype)[0] * x**2))


def layer(n: int) -> Callable:
    """Return a function from (n,) to (n,): tanh of a product with a constant matrix."""
    A = np.random.default_rng(0).uniform(0.5, 1.5, (n, n)) / n
    return lambda x: jnp.tanh(jnp.asarray(A, x.dtype) @ x)


def chain(x):
    """Return a function (n,) of an array (n,). The Jacobian has two nonzeros per row."""
    return x * jnp.roll(x, -1) ** 2


def pair(x, w):
    """Return a function (8,) of one sample x (n,) and the shared weights w (n,)."""
    return jnp.sin(_phases(ROWS, w.dtype) + REACH * ((_weights(ROWS, w.size, w.dtype) * x) @ w) / w.size)


def _pairs(x, w):
    """Return `pair`, (points, 8), for all samples x (points, n) and the shared weights w (n,)."""
    return jax.vmap(lambda one: pair(one, w))(x)


def _small_row(scale: float) -> Callable:
    """Return `wide` with its last output multiplied by `scale`."""
    return lambda x: wide(x).at[-1].multiply(jnp.asarray(scale, x.dtype))


def _square(n: int) -> tuple[int, int]:
    return n, n


def _scalar(n: int) -> tuple[int, int]:
    return 1, n


def _wide(n: int) -> tuple[int, int]:
    return ROWS, n


FAMILIES: dict[str, Callable[[int], Family]] = {
    "energy": lambda n: Family(energy, _scalar),
    "product": lambda n: Family(product, _scalar),
    "wide": lambda n: Family(wide, _wide),
    "tall": lambda n: Family(tall(n), lambda n: (n, ROWS)),
    "dense": lambda n: Family(dense, _square),
    "layer": lambda n: Family(layer(n), _square),
    "chain": lambda n: Family(chain, _square),
    "a row 1e-5 as large": lambda n: Family(_small_row(1e-5), _wide),
    "a row 1e-8 as large": lambda n: Family(_small_row(1e-8), _wide),
    "offset 1e8": lambda n: Family(lambda x: 1e8 + wide(x), _wide),
    "offset 1e11": lambda n: Family(lambda x: 1e11 + wide(x), _wide),
    "scale 1e-20": lambda n: Family(lambda x: 1e-20 * wide(x), _wide),
    "scale 1e20": lambda n: Family(lambda x: 1e20 * wide(x), _wide),
    "by shared inputs": lambda n: Family(pair, _wide, True, _pairs, "w"),
    "by both inputs": lambda n: Family(pair, lambda n: (ROWS, 2 * n), True, None, "x+w"),
}


def _with_jvp_rule(function: Callable, tangent: Callable) -> Callable:
    """Return the function with the custom JVP rule `tangent(x, v, right)`, where `right` is JAX's tangent."""

    @jax.custom_jvp
    def ruled(x):
        return function(x)

    ruled.defjvp(lambda x, v: (function(*x), tangent(*x, *v, jax.jvp(function, x, v)[1])))
    return ruled


def _with_vjp_rule(function: Callable, cotangent: Callable) -> Callable:
    """Return the function with the VJP rule `cotangent(x, g, right)`, where `right` is JAX's cotangent."""

    @jax.custom_vjp
    def ruled(x):
        return function(x)

    ruled.defvjp(lambda x: (function(x), x), lambda x, g: (cotangent(x, g, jax.vjp(function, x)[1](g)[0]),))
    return ruled


def _with_zero_entry(index: int, v):
    """Return v with one entry set to zero."""
    return v.at[index % v.size].set(0)


def _scaled_entry_rule(index: int, factor: float) -> Callable:
    """Return a JVP rule that multiplies one entry of the tangent by a factor."""
    return lambda x, v, right: right.at[index].multiply(factor)


def _with_untransposed_rule(n: int) -> Callable:
    """Return tanh(A x) with a VJP rule that multiplies by A instead of its transpose."""
    A = np.random.default_rng(0).uniform(0.5, 1.5, (n, n)) / n
    cosh = lambda x: 1 - jnp.tanh(jnp.asarray(A, x.dtype) @ x) ** 2  # noqa: E731
    return _with_vjp_rule(layer(n), lambda x, g, right: jnp.asarray(A, x.dtype) @ (cosh(x) * g))


def _sine_once(x):
    """Return sin(x) with a correct first derivative and a second derivative of zero."""
    return _with_jvp_rule(jnp.sin, lambda x, v, right: jax.lax.stop_gradient(jnp.cos(x)) * v)(x)


WRONG_RULES: dict[str, Callable[[int], Family]] = {
    "rule 1 % off": lambda n: Family(_with_jvp_rule(energy, lambda x, v, right: 1.01 * right), _scalar),
    "rule 0.1 % off": lambda n: Family(_with_jvp_rule(energy, lambda x, v, right: 1.001 * right), _scalar),
    "rule of the wrong sign": lambda n: Family(_with_jvp_rule(wide, lambda x, v, right: -right), _wide),
    "rule without one input": lambda n: Family(
        _with_jvp_rule(energy, lambda x, v, right: jax.jvp(energy, (x,), (_with_zero_entry(11, v),))[1]), _scalar
    ),
    "rule 5 % off in one output": lambda n: Family(_with_jvp_rule(wide, _scaled_entry_rule(3, 1.05)), _wide),
    "rule without the small output": lambda n: Family(_with_jvp_rule(_small_row(1e-5), _scaled_entry_rule(-1, 0.0)), _wide),
    "rule without a factor": lambda n: Family(_with_jvp_rule(energy, lambda x, v, right: jnp.sum(jnp.sin(x) * v)), _scalar),
    "rule wrong above one": lambda n: Family(
        _with_jvp_rule(energy, lambda x, v, right: jax.jvp(energy, (x,), (jnp.where(x > 1, 1.02 * v, v),))[1]), _scalar
    ),
    "rule of float32 wrong": lambda n: Family(
        _with_jvp_rule(wide, lambda x, v, right: right * (1.01 if x.dtype == jnp.float32 else 1)), _wide
    ),
    "rule wrong beside an offset": lambda n: Family(
        lambda x: 1e8 + _with_jvp_rule(wide, lambda x, v, right: 1.05 * right)(x), _wide
    ),
    "reverse rule 1 % off": lambda n: Family(_with_vjp_rule(wide, lambda x, g, right: 1.01 * right), _wide),
    "reverse rule transposed": lambda n: Family(_with_untransposed_rule(n), _square),
    "a factor held constant": lambda n: Family(lambda x: jnp.sum(x * jax.lax.stop_gradient(jnp.sin(x))), _scalar),
    "second derivative lost": lambda n: Family(lambda x: jnp.sum(_sine_once(x) * x), _scalar),
    "rule of a shared input 1 % off": lambda n: Family(
        lambda x, w: _with_jvp_rule(lambda w: pair(x, w), lambda w, v, right: 1.01 * right)(w), _wide, True, None, "w"
    ),
}  # fmt: skip
VARIANTS = (*FAMILIES, *WRONG_RULES)


def family(case: Case) -> Family:
    """Return the `Family` of a case: its function, with the shape of the Jacobian."""
    return (FAMILIES | WRONG_RULES)[case.variant or "energy"](case.sizes["n"])


def workload(case: Case) -> Workload:
    """Return the workload of a case, with points in (0.5, 1.5) and without a closed form."""
    chosen, n = family(case), case.sizes["n"]
    inputs = ROWS if case.variant == "tall" else n
    shared: Mapping[str, InputSpec] = {"w": uniform(n, low=0.5, high=1.5)} if chosen.shared else {}
    whole = chosen.whole if case.target not in SECOND else None
    points = {"x": uniform(inputs, low=0.5, high=1.5)}
    return Workload(chosen.function, points, shared, wrt=chosen.wrt, whole=whole)
