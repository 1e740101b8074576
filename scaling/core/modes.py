"""Define each AD `Mode` (jacfwd, jacrev, fwd_over_rev, ...): its derivative order, kind of seed, linear map.

`linear_map(f, x)` of a mode, where x is a tuple of arrays, returns a function from a seed to one slice of the
derivative of f at x:

    seed TANGENT    a tuple like x          -> a column of the Jacobian J, an array like f(*x)
    seed COTANGENT  an array like f(*x)     -> a row of the Jacobian J, a tuple like x

A mode of order 2 takes a scalar function f and returns columns of its Hessian H, each of shape (inputs,). JAX
is imported inside of the functions, because modules that read records import `MODES` without JAX.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from scaling.core import load_option

# Step sizes of finite differences. For float32 and bfloat16: about the square root of the unit roundoff.
STEPS = {"float64": 1e-6, "float32": 2.0**-11, "bfloat16": 2.0**-4}

LinearMap = Callable[[Any], Any]
MakeLinearMap = Callable[[Callable[..., Any], tuple[Any, ...]], LinearMap]
TANGENT, COTANGENT, BOTH = "tangent", "cotangent", "both"


@dataclass(frozen=True)
class Mode:
    """A way to compute a derivative by automatic differentiation, such as jacfwd, with its properties."""

    name: str  # the name of the mode in a case
    order: int = 1  # the order of the derivative: 0 (the function value), 1 (Jacobian) or 2 (Hessian)
    seed: str | None = None  # TANGENT, COTANGENT, BOTH for two modes, or None for a mode without seeds
    # (f, x) -> (seed -> slice). None if the mode has `parts`, has no seeds, or computes only Laplacians.
    linear_map: MakeLinearMap | None = None
    # A function (f, x) -> (V -> sum of v^T H v over the seeds v in V), where V is a tuple like x with a
    # leading axis of seeds. If None, `linear_map` computes the Laplacian (the trace of H).
    quadratic_sum: MakeLinearMap | None = None
    parts: tuple[str, str] | None = None  # the names of the forward and the reverse mode if there are two
    single_seed: bool = False  # whether the mode is a gradient: one cotangent yields the whole derivative
    uses_reverse: bool = False  # whether the mode stores intermediate values for a reverse pass
    finite_step: bool = False  # whether the mode is a finite difference, which has a truncation error
    closed_form: bool = False  # whether the mode evaluates a formula that was derived by hand
    pass_per_output: bool = False  # whether each seed needs one JVP per output

    @property
    def is_value(self) -> bool:
        """Return whether the mode only evaluates the function, without a derivative."""
        return self.order == 0

    @property
    def has_seeds(self) -> bool:
        """Return whether the mode computes the derivative from seeds (tangents or cotangents)."""
        return self.seed is not None

    @property
    def by_workload(self) -> bool:
        """Return whether the mode calls a function of the workload that computes the derivative."""
        return self.seed is None and self.order > 0

    @property
    def differentiates_sum(self) -> bool:
        """Return whether the mode differentiates the sum of the outputs, which is a scalar."""
        return self.single_seed or self.order == 2

    @property
    def laplacian_only(self) -> bool:
        """Return whether the mode can compute the Laplacian, but not the columns of the Hessian."""
        return self.order == 2 and self.linear_map is None


def jvp_map(f: Callable[..., Any], x: tuple[Any, ...]) -> LinearMap:
    """Return the function v -> J v (a JVP), where J is the Jacobian of f at x."""
    import jax

    return lambda v: jax.jvp(f, x, v)[1]


def vjp_map(f: Callable[..., Any], x: tuple[Any, ...]) -> LinearMap:
    """Return the function w -> w^T J (a VJP) for the Jacobian J of f at x. f is evaluated only once."""
    import jax

    pullback: LinearMap = jax.vjp(f, *x)[1]
    return pullback


def linearize(f: Callable[..., Any], x: tuple[Any, ...]) -> LinearMap:
    """Return the function v -> J v (a JVP) by `jax.linearize`, which evaluates f only once for all calls."""
    import jax

    _, jvp = jax.linearize(f, *x)
    return lambda v: jvp(*v)


def finite_difference(f: Callable[..., Any], x: tuple[Any, ...]) -> LinearMap:
    """Return the function v -> (f(x + h v) - f(x)) / h with a step h from `STEPS`."""
    y, step = f(*x), STEPS[str(x[0].dtype)]
    return lambda v: (f(*[a + step * b for a, b in zip(x, v, strict=True)]) - y) / step


def gradient(f: Callable[..., Any], forward: bool = False) -> Callable[..., Any]:
    """Return a function that computes the gradient of a scalar function f as one vector."""
    import jax

    differentiate = jax.jacfwd if forward else jax.grad
    return lambda *x: ravel(differentiate(f, argnums=tuple(range(len(x))))(*x))


def ravel(x: tuple[Any, ...]) -> Any:
    """Return the elements of all arrays in a tuple, concatenated to one vector."""
    import jax.numpy as jnp

    return jnp.concatenate([a.reshape(-1) for a in x])


def fwd_over_rev(f: Callable[..., Any], x: tuple[Any, ...]) -> LinearMap:
    """Return the function v -> H v, computed as the JVP of the reverse-mode gradient. H is the Hessian."""
    return jvp_map(gradient(f), x)


def rev_over_fwd(f: Callable[..., Any], x: tuple[Any, ...]) -> LinearMap:
    """Return the function v -> H v, computed as the reverse-mode gradient of a JVP. H is the Hessian."""
    return lambda v: gradient(lambda *z: jvp_map(f, z)(v))(*x)


def rev_over_rev(f: Callable[..., Any], x: tuple[Any, ...]) -> LinearMap:
    """Return the function v -> H v, computed as the VJP of the reverse-mode gradient. H is the Hessian."""
    vjp = vjp_map(gradient(f), x)  # a row of H, which is a column by symmetry
    return lambda v: ravel(vjp(ravel(v)))


def fwd_over_fwd(f: Callable[..., Any], x: tuple[Any, ...]) -> LinearMap:
    """Return the function v -> H v, computed as the JVP of the forward-mode gradient. H is the Hessian."""
    return jvp_map(gradient(f, forward=True), x)


def _laplacian_function(name: str) -> MakeLinearMap:
    """Return the function `name` of options/laplacian.py. Its first call imports the module."""
    return lambda f, x: getattr(load_option("laplacian"), name)(f, x)  # type: ignore[no-any-return]


_ALL_MODES = (
    Mode("jacfwd", 1, TANGENT, jvp_map),
    Mode("linearize", 1, TANGENT, linearize),
    Mode("finite_difference", 1, TANGENT, finite_difference, finite_step=True),
    Mode("jacrev", 1, COTANGENT, vjp_map, uses_reverse=True),
    Mode("grad_of_sum", 1, COTANGENT, vjp_map, single_seed=True, uses_reverse=True),
    Mode("fwd_over_rev", 2, TANGENT, fwd_over_rev, uses_reverse=True),
    Mode("rev_over_fwd", 2, TANGENT, rev_over_fwd, uses_reverse=True),
    Mode("rev_over_rev", 2, TANGENT, rev_over_rev, uses_reverse=True),
    Mode("fwd_over_fwd", 2, TANGENT, fwd_over_fwd, _laplacian_function("nested_jvp"), pass_per_output=True),
    Mode("jet", 2, TANGENT, quadratic_sum=_laplacian_function("jet")),
    Mode("forward_laplacian", 2, TANGENT, quadratic_sum=_laplacian_function("forward_laplacian")),
    Mode("mixed", 1, BOTH, parts=("jacfwd", "jacrev"), uses_reverse=True),
    Mode("value", 0),
    Mode("analytic", closed_form=True),
    Mode("analytic_vmap", closed_form=True),
    Mode("vmap_grad"),
)
MODES: dict[str, Mode] = {mode.name: mode for mode in _ALL_MODES}
HESSIAN = tuple(mode.name for mode in _ALL_MODES if mode.order == 2 and not mode.laplacian_only)
