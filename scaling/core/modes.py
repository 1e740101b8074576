"""AD modes: what each computes, which seeds it takes, and its linear map.

A seeded mode is a function `f, x -> (seed -> slice)`, with x a tuple of arrays. Forward modes take a tangent
(a tuple like x) to a column (like f(x)); reverse modes take a cotangent (like f(x)) to a row (a tuple like
x). Hessian modes take a function of one number and give columns of its Hessian, flat. To add a mode, add one
value to `MODES`. JAX is imported only when a linear map is made.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

# Steps of finite differences: 1e-6 in float64, near the square root of the unit roundoff elsewhere.
STEPS = {"float64": 1e-6, "float32": 2.0**-11, "bfloat16": 2.0**-4}

LinearMap = Callable[[Any], Any]
TANGENT, COTANGENT, BOTH = "tangent", "cotangent", "both"


@dataclass(frozen=True)
class Mode:
    """A way to differentiate a function.

    order: how many derivatives it takes: 0 (the function itself), 1 (Jacobian) or 2 (Hessian).
    seed: TANGENT, COTANGENT, BOTH for a mode that is composed of two others, or None for a result that is
    computed without seeds.
    linear_map: (f, x) -> (seed -> slice); None for a mode that is composed, or that has no seeds.
    parts: the names of the modes that compute the columns and the rows of a composed mode.
    sums_outputs: whether it differentiates the sum over the outputs, which is one number.
    uses_reverse: whether it stores intermediate values for a reverse pass.
    finite_step: whether it takes a finite step, which has an error of its own.
    closed_form: whether it evaluates a derivative that was derived by hand.
    pass_per_output: whether each seed takes one JVP for each output.
    """

    name: str
    order: int = 1
    seed: str | None = None
    linear_map: Callable[[Callable[..., Any], tuple[Any, ...]], LinearMap] | None = None
    parts: tuple[str, str] | None = None
    sums_outputs: bool = False
    uses_reverse: bool = False
    finite_step: bool = False
    closed_form: bool = False
    pass_per_output: bool = False

    @property
    def is_value(self) -> bool:
        """Whether it computes the function itself."""
        return self.order == 0

    @property
    def has_seeds(self) -> bool:
        """Whether its result is assembled from slices, one for each seed."""
        return self.seed is not None

    @property
    def by_workload(self) -> bool:
        """Whether the workload itself provides the derivative."""
        return self.seed is None and self.order > 0

    @property
    def single_seed(self) -> bool:
        """Whether one cotangent gives the whole derivative."""
        return self.sums_outputs and self.order == 1


def jacfwd(f: Callable[..., Any], x: tuple[Any, ...]) -> LinearMap:
    """Return the JVP of f at x."""
    import jax

    return lambda v: jax.jvp(f, x, v)[1]


def jacrev(f: Callable[..., Any], x: tuple[Any, ...]) -> LinearMap:
    """Return the VJP of f at x, whose forward pass all seeds share."""
    import jax

    pullback: LinearMap = jax.vjp(f, *x)[1]
    return pullback


def linearize(f: Callable[..., Any], x: tuple[Any, ...]) -> LinearMap:
    """Return the JVP of f at x, with one forward pass that all seeds share."""
    import jax

    _, jvp = jax.linearize(f, *x)
    return lambda v: jvp(*v)


def finite_difference(f: Callable[..., Any], x: tuple[Any, ...]) -> LinearMap:
    """Return v -> (f(x + h v) - f(x)) / h, where all seeds share f(x)."""
    y, step = f(*x), STEPS[str(x[0].dtype)]
    return lambda v: (f(*[a + step * b for a, b in zip(x, v, strict=True)]) - y) / step


def _gradient(f: Callable[..., Any]) -> Callable[..., Any]:
    """Return x -> the gradient of f, a number, by reverse mode, flat: (inputs,)."""
    import jax

    return lambda *x: ravel(jax.grad(f, argnums=tuple(range(len(x))))(*x))


def ravel(x: tuple[Any, ...]) -> Any:
    """Return a tuple of arrays as one vector."""
    import jax.numpy as jnp

    return jnp.concatenate([a.reshape(-1) for a in x])


def fwd_over_rev(f: Callable[..., Any], x: tuple[Any, ...]) -> LinearMap:
    """Return the JVP of the gradient."""
    return jacfwd(_gradient(f), x)


def rev_over_fwd(f: Callable[..., Any], x: tuple[Any, ...]) -> LinearMap:
    """Return the gradient of the JVP along the seed."""
    import jax

    return lambda v: _gradient(lambda *z: jax.jvp(f, z, v)[1])(*x)


def rev_over_rev(f: Callable[..., Any], x: tuple[Any, ...]) -> LinearMap:
    """Return the VJP of the gradient; a Hessian is symmetric, so that a row is a column."""
    vjp = jacrev(_gradient(f), x)
    return lambda v: ravel(vjp(ravel(v)))


def fwd_over_fwd(f: Callable[..., Any], x: tuple[Any, ...]) -> LinearMap:
    """Return the JVP of the gradient by forward mode, which takes one JVP for each input."""
    import jax

    return jacfwd(lambda *z: ravel(jax.jacfwd(f, argnums=tuple(range(len(z))))(*z)), x)


_LIST = (
    Mode("jacfwd", 1, TANGENT, jacfwd),
    Mode("linearize", 1, TANGENT, linearize),
    Mode("finite_difference", 1, TANGENT, finite_difference, finite_step=True),
    Mode("jacrev", 1, COTANGENT, jacrev, uses_reverse=True),
    Mode("grad_of_sum", 1, COTANGENT, jacrev, sums_outputs=True, uses_reverse=True),
    Mode("fwd_over_rev", 2, TANGENT, fwd_over_rev, sums_outputs=True, uses_reverse=True),
    Mode("rev_over_fwd", 2, TANGENT, rev_over_fwd, sums_outputs=True, uses_reverse=True),
    Mode("rev_over_rev", 2, TANGENT, rev_over_rev, sums_outputs=True, uses_reverse=True),
    Mode("fwd_over_fwd", 2, TANGENT, fwd_over_fwd, sums_outputs=True, pass_per_output=True),
    Mode("mixed", 1, BOTH, parts=("jacfwd", "jacrev"), uses_reverse=True),
    Mode("value", 0),
    Mode("analytic", closed_form=True),
    Mode("analytic_vmap", closed_form=True),
    Mode("vmap_grad"),
)
MODES: dict[str, Mode] = {mode.name: mode for mode in _LIST}
HESSIAN = tuple(mode.name for mode in _LIST if mode.order == 2)
