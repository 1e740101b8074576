"""Define the AD modes (jacfwd, jacrev, fwd_over_rev, jet, ...): their order, kind of seeds and linear map.

A mode with seeds has a function `linear_map(f, x)`, where x is a tuple of arrays. `linear_map` returns a
function from a seed to one slice (column or row) of the derivative of f at x:

    seed TANGENT    a tuple like x          -> a column of the Jacobian, an array like f(*x)
    seed COTANGENT  an array like f(*x)     -> a row of the Jacobian, a tuple like x

A mode of order 2 takes a scalar function f and returns columns of its Hessian H, each an array of shape
(inputs,). For the Laplacian (the trace of H), the mode returns the sum of v^T H v over a block of seeds v. To
add a mode, add one value to `MODES`. JAX is imported only when a linear map is first called, because modules
that read records import this table and do not need JAX.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from scaling.core import load_option

# The steps of finite differences, in float32 and bfloat16 about the square root of the unit roundoff.
STEPS = {"float64": 1e-6, "float32": 2.0**-11, "bfloat16": 2.0**-4}

LinearMap = Callable[[Any], Any]
TANGENT, COTANGENT, BOTH = "tangent", "cotangent", "both"


@dataclass(frozen=True)
class Mode:
    """An AD mode: a way to compute a derivative, such as "jacfwd"."""

    name: str  # the name of the mode in a case
    order: int = 1  # the order of the derivative: 0 (the function value), 1 (Jacobian) or 2 (Hessian)
    # TANGENT, COTANGENT, BOTH for a combination of two modes, or None for a mode without seeds.
    seed: str | None = None
    # The function (f, x) -> (seed -> slice). None for a combination, for a mode without seeds, and for a mode
    # that computes only the Laplacian.
    linear_map: Callable[[Callable[..., Any], tuple[Any, ...]], LinearMap] | None = None
    # The names of the forward and the reverse mode of a combination, otherwise None.
    parts: tuple[str, str] | None = None
    sums_outputs: bool = False  # whether the mode differentiates the sum of the outputs, a scalar
    uses_reverse: bool = False  # whether the mode stores intermediate values for a reverse pass
    finite_step: bool = False  # whether the mode is a finite difference, which has a truncation error
    closed_form: bool = False  # whether the mode evaluates a formula that was derived by hand
    pass_per_output: bool = False  # whether each seed needs one JVP per output
    # The function (f, x) -> (V -> sum of v^T H v over the seeds v in V), where H is the Hessian of f at x and
    # V is a tuple like x with a leading axis of seeds. If None, each H v is computed by `linear_map` and
    # multiplied by v.
    quadratic_sum: Callable[[Callable[..., Any], tuple[Any, ...]], LinearMap] | None = None

    @property
    def is_value(self) -> bool:
        """Return whether the mode evaluates the function without differentiating it."""
        return self.order == 0

    @property
    def has_seeds(self) -> bool:
        """Return whether the derivative is assembled from rows or columns, one per seed."""
        return self.seed is not None

    @property
    def by_workload(self) -> bool:
        """Return whether the workload provides the function that computes the derivative."""
        return self.seed is None and self.order > 0

    @property
    def single_seed(self) -> bool:
        """Return whether a single cotangent yields the whole derivative."""
        return self.sums_outputs and self.order == 1

    @property
    def laplacian_only(self) -> bool:
        """Return whether the mode computes the Laplacian, but no columns of the Hessian."""
        return self.order == 2 and self.linear_map is None

    def sum_quadratic_forms(self, f: Callable[..., Any], x: tuple[Any, ...]) -> LinearMap:
        """Return the function V -> sum of v^T H v over the seeds v in V, with H the Hessian of f at x."""
        if self.quadratic_sum is not None:
            return self.quadratic_sum(f, x)
        assert self.linear_map is not None
        column = self.linear_map(f, x)
        return sum_over_block(lambda v: (ravel(v) * column(v)).sum())


def jacfwd(f: Callable[..., Any], x: tuple[Any, ...]) -> LinearMap:
    """Return the function v -> J v, with J the Jacobian of f at x: the JVP in forward mode."""
    import jax

    return lambda v: jax.jvp(f, x, v)[1]


def jacrev(f: Callable[..., Any], x: tuple[Any, ...]) -> LinearMap:
    """Return the function w -> w^T J, with J the Jacobian of f at x: the VJP in reverse mode.

    The forward pass runs once for all calls of the returned function.
    """
    import jax

    pullback: LinearMap = jax.vjp(f, *x)[1]
    return pullback


def linearize(f: Callable[..., Any], x: tuple[Any, ...]) -> LinearMap:
    """Return the function v -> J v, with J the Jacobian of f at x: the JVP by `jax.linearize`.

    The forward pass runs once for all calls of the returned function.
    """
    import jax

    _, jvp = jax.linearize(f, *x)
    return lambda v: jvp(*v)


def finite_difference(f: Callable[..., Any], x: tuple[Any, ...]) -> LinearMap:
    """Return the function v -> (f(x + h v) - f(x)) / h, with the step h of `STEPS`.

    f(x) is computed once for all calls of the returned function.
    """
    y, step = f(*x), STEPS[str(x[0].dtype)]
    return lambda v: (f(*[a + step * b for a, b in zip(x, v, strict=True)]) - y) / step


def gradient(f: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that computes the raveled gradient of the scalar function f in reverse mode."""
    import jax

    return lambda *x: ravel(jax.grad(f, argnums=tuple(range(len(x))))(*x))


def ravel(x: tuple[Any, ...]) -> Any:
    """Return the concatenation of a tuple of arrays, each raveled, as one vector."""
    import jax.numpy as jnp

    return jnp.concatenate([a.reshape(-1) for a in x])


def fwd_over_rev(f: Callable[..., Any], x: tuple[Any, ...]) -> LinearMap:
    """Return the function v -> H v, with H the Hessian of f at x: the JVP of the reverse-mode gradient."""
    return jacfwd(gradient(f), x)


def rev_over_fwd(f: Callable[..., Any], x: tuple[Any, ...]) -> LinearMap:
    """Return the function v -> H v, with H the Hessian of f at x: the reverse-mode gradient of a JVP."""
    return lambda v: gradient(lambda *z: jacfwd(f, z)(v))(*x)


def rev_over_rev(f: Callable[..., Any], x: tuple[Any, ...]) -> LinearMap:
    """Return the function v -> H v, with H the Hessian of f at x: the VJP of the reverse-mode gradient."""
    vjp = jacrev(gradient(f), x)  # a row of H, which is a column by symmetry
    return lambda v: ravel(vjp(ravel(v)))


def fwd_over_fwd(f: Callable[..., Any], x: tuple[Any, ...]) -> LinearMap:
    """Return the function v -> H v, with H the Hessian of f at x: the JVP of the forward-mode gradient."""
    import jax

    return jacfwd(lambda *z: ravel(jax.jacfwd(f, argnums=tuple(range(len(z))))(*z)), x)


def sum_over_block(form: LinearMap) -> LinearMap:
    """Return the function V -> sum of form(v) over the seeds v in V, where V has a leading axis of seeds."""
    import jax

    return lambda V: jax.vmap(form)(V).sum()


def nested_jvp(f: Callable[..., Any], x: tuple[Any, ...]) -> LinearMap:
    """Return the function V -> sum of v^T H v over the seeds v in V, with H the Hessian of f at x.

    Each v^T H v is the JVP of a JVP, both along v.
    """
    return sum_over_block(lambda v: jacfwd(lambda *z: jacfwd(f, z)(v), x)(v))


def _in_laplacian(name: str) -> Callable[..., LinearMap]:
    """Return a function of options/laplacian.py. Its module is imported when the function is called."""
    return lambda f, x: getattr(load_option("laplacian"), name)(f, x)  # type: ignore[no-any-return]


_LIST = (
    Mode("jacfwd", 1, TANGENT, jacfwd),
    Mode("linearize", 1, TANGENT, linearize),
    Mode("finite_difference", 1, TANGENT, finite_difference, finite_step=True),
    Mode("jacrev", 1, COTANGENT, jacrev, uses_reverse=True),
    Mode("grad_of_sum", 1, COTANGENT, jacrev, sums_outputs=True, uses_reverse=True),
    Mode("fwd_over_rev", 2, TANGENT, fwd_over_rev, sums_outputs=True, uses_reverse=True),
    Mode("rev_over_fwd", 2, TANGENT, rev_over_fwd, sums_outputs=True, uses_reverse=True),
    Mode("rev_over_rev", 2, TANGENT, rev_over_rev, sums_outputs=True, uses_reverse=True),
    Mode(
        "fwd_over_fwd",
        2,
        TANGENT,
        fwd_over_fwd,
        sums_outputs=True,
        pass_per_output=True,
        quadratic_sum=nested_jvp,
    ),
    Mode("jet", 2, TANGENT, sums_outputs=True, quadratic_sum=_in_laplacian("jet")),
    Mode(
        "forward_laplacian", 2, TANGENT, sums_outputs=True, quadratic_sum=_in_laplacian("forward_laplacian")
    ),
    Mode("mixed", 1, BOTH, parts=("jacfwd", "jacrev"), uses_reverse=True),
    Mode("value", 0),
    Mode("analytic", closed_form=True),
    Mode("analytic_vmap", closed_form=True),
    Mode("vmap_grad"),
)
MODES: dict[str, Mode] = {mode.name: mode for mode in _LIST}
HESSIAN = tuple(mode.name for mode in _LIST if mode.order == 2 and not mode.laplacian_only)
