"""Workload of many functions whose derivatives JAX computes correctly: each variant is one function."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.scipy import linalg, special

from scaling.core.case import Case
from scaling.core.workload import InputSpec, Workload, normal, poisson, uniform

SIZES = {"n": 6}
Fields = Mapping[str, Any]


@dataclass(frozen=True)
class CorrectFunction:
    """A function with a correct derivative, its inputs and its cases.

    Attributes:
        function: Function of x (n,) and of other inputs by name.
        draw: Function from n to the specification of the input x.
        n: Number of elements of x.
        others, shared: Specifications of further inputs, of each point or shared by all points.
        cases: Fields of each case that differ from the defaults.
        digits: Whether the result has correct digits in every dtype of the cases.
    """

    function: Callable
    draw: Callable[[int], InputSpec] = normal
    n: int = 6
    others: Mapping[str, InputSpec] = field(default_factory=dict)
    shared: Mapping[str, InputSpec] = field(default_factory=dict)
    cases: tuple[Fields, ...] | None = None
    digits: bool = True


def positive(n: int) -> InputSpec:
    """Return the specification of an input (n,) with uniform values in (0.5, 1.5)."""
    return uniform(n, low=0.5, high=1.5)


def _uniform_inputs(low: float, high: float) -> Callable[[int], InputSpec]:
    """Return a function from n to the specification of an input (n,) with uniform values in (low, high)."""
    return lambda n: uniform(n, low=low, high=high)


def _normal_inputs(deviation: float, mean: float = 0.0) -> Callable[[int], InputSpec]:
    """Return a function from n to the specification of an input (n,) with normally distributed values."""
    return lambda n: normal(n, mean=mean, deviation=deviation)


def _near(center: float, distance: float) -> Callable[[int], InputSpec]:
    """Return a function from n to the specification of an input (n,) with values near `center`.

    The values are on both sides of `center`, at 0.5 to 1 times `distance` from it.
    """

    def make(rng: np.random.Generator, rows: np.ndarray, n: int) -> np.ndarray:
        shape = (len(rows), n)
        return center + distance * rng.choice([-1.0, 1.0], shape) * rng.uniform(0.5, 1.0, shape)

    return lambda n: InputSpec((n,), lambda rng, rows: make(rng, rows, n))


def _well_separated(gap: float) -> Callable[[int], InputSpec]:
    """Return a function from n to the specification of an input (n,) with values `gap` / 2 or more apart.

    The values are in random order.
    """

    def make(rng: np.random.Generator, rows: np.ndarray, n: int) -> np.ndarray:
        order = np.argsort(rng.random((len(rows), n)), axis=1)
        return gap * (order + 0.25 * rng.uniform(-1, 1, (len(rows), n)) - n / 2)

    return lambda n: InputSpec((n,), lambda rng, rows: make(rng, rows, n))


def _fixed(*shape: int, low: float = -1.0, high: float = 1.0) -> np.ndarray:
    """Return an array of uniform random numbers from a fixed seed, in float64."""
    return np.random.default_rng(3).uniform(low, high, shape)


def _like(x, *shape: int, low: float = -1.0, high: float = 1.0):
    """Return an array of uniform random numbers from a fixed seed, in the dtype of x."""
    return jnp.asarray(_fixed(*shape, low=low, high=high), x.dtype)


def _matrix(x):
    """Return x reshaped to a square matrix."""
    side = int(np.sqrt(x.size))
    return x.reshape(side, side)


def _dominant(x):
    """Return x as a square matrix with a number added to the diagonal, so that it is far from singular."""
    X = _matrix(x)
    return X + 3 * len(X) * jnp.eye(len(X), dtype=x.dtype)


def _definite(x):
    """Return the positive definite matrix X X^T + k I, with X = x as a square matrix of k rows."""
    X = _matrix(x)
    return X @ X.T + len(X) * jnp.eye(len(X), dtype=x.dtype)


def _separated(x):
    """Return a symmetric matrix that depends on x and whose eigenvalues are about 1 apart."""
    X = _matrix(x)
    return jnp.diag(jnp.arange(1, len(X) + 1).astype(x.dtype)) + 0.05 * (X + X.T)


def _standardized(x):
    away = x - jnp.mean(x)
    return away / jnp.sqrt(jnp.mean(away**2) + 1e-5)


def _attention(x):
    Q = x.reshape(3, -1)
    return (jax.nn.softmax(Q @ (Q * _like(Q, *Q.shape)).T / 2, axis=-1) @ Q).reshape(-1)


def _network(x, w):
    hidden = jnp.tanh(w.reshape(4, -1) @ x)
    return jnp.concatenate([hidden, jnp.sum(hidden**2, keepdims=True)])


def _filled(x):
    """Return column sums of an upper triangular matrix, filled by the indices of NumPy."""
    return jnp.zeros((3, 3), x.dtype).at[UPPER].set(x[:6] ** 2).sum(axis=0) * 2


def _newton(x):
    """Return a cube root by Newton's method, with the JVP rule of the implicit function theorem."""

    @jax.custom_jvp
    def root(a):
        return lax.fori_loop(0, 30, lambda _, y: (2 * y + a / y**2) / 3, jnp.ones_like(a))

    def rule(primals, tangents):
        y = root(*primals)
        return y, tangents[0] / (3 * y**2)

    root.defjvp(rule)
    return root(x)


def _custom_root(x):
    f = lambda y: y**3 + y - x  # noqa: E731
    solve = lambda f, guess: lax.fori_loop(0, 40, lambda _, y: y - f(y) / (3 * y**2 + 1), guess)  # noqa: E731
    return lax.custom_root(f, jnp.ones_like(x), solve, lambda g, y: y / g(jnp.ones_like(y)))


def _custom_linear_solve(x):
    A = _dominant(_like(x, x.size**2))
    return lax.custom_linear_solve(
        lambda y: A @ y, x**2, lambda _, b: jnp.linalg.solve(A, b), lambda _, b: jnp.linalg.solve(A.T, b)
    )


@jax.custom_jvp
def _clever(x):
    return jnp.log1p(jnp.exp(x))


_clever.defjvp(lambda x, v: (_clever(*x), v[0] * jax.nn.sigmoid(x[0])))


@jax.custom_vjp
def _reversed_rule(x):
    return x * jnp.sin(x)


_reversed_rule.defvjp(lambda x: (_reversed_rule(x), x), lambda x, g: (g * (jnp.sin(x) + x * jnp.cos(x)),))


def _scan(x):
    step = lambda y, a: (jnp.sin(y) + a * y, y**2)  # noqa: E731
    return lax.scan(step, x[0], x)[1]


def _while(x):
    return lax.while_loop(
        lambda state: state[0] < 5, lambda state: (state[0] + 1, jnp.sin(state[1]) + x), (0, x)
    )[1]


def _noisy(x):
    """Return the result of dropout with a fixed key, whose random bits depend on the dtype."""
    return jnp.where(jax.random.bernoulli(jax.random.key(0), 0.5, x.shape), x**2, 0.1 * x)


def _within(dtype: Any) -> Callable:
    return lambda x: jnp.sin(x.astype(dtype)).astype(x.dtype) * x


def _bent(x):
    """Return a piecewise linear function with fixed breakpoints."""
    return jnp.interp(x, jnp.linspace(-2, 2, 5).astype(x.dtype), _like(x, 5))


def _ranked(x):
    return jnp.sort(x) * jnp.arange(1, x.size + 1).astype(x.dtype)


def _blockwise(x):
    return jax.ops.segment_sum(x**2, np.arange(x.size) % 3, num_segments=3)


def _variance_by_squares(x):
    return jnp.mean(x**2) - jnp.mean(x) ** 2


def _arrow(x):
    return x * x[0] + jnp.where(jnp.arange(x.size) == 0, jnp.sum(x**2), 0)


def _gaussian(x):
    return (
        jnp.exp(-jnp.sum((x[:, None] - x[None]) ** 2, axis=-1))
        if x.ndim > 1
        else jnp.exp(-((x[:, None] - x[None]) ** 2)).sum(1)
    )


# NumPy arrays that several functions close over, like those of a user's module.
ORDER, SCATTERED, TABLE, MASK = (
    np.array([2, 0, 1]),
    np.array([0, 2, 2]),
    np.array([[0, 3], [1, 1]]),
    np.array([True, False] * 3),
)
UPPER, LOWER, MESH, BACKWARDS = (
    np.triu_indices(3),
    np.tril_indices(2),
    np.ix_([1, 0], [2, 0]),
    np.arange(6)[::-1],
)

EVERY: tuple[Fields, ...] = ({}, {"dtype": "float64", "mode": "jacrev"})
FORWARD: tuple[Fields, ...] = ({}, {"dtype": "float64", "mode": "linearize"})
BACK: tuple[Fields, ...] = ({"mode": "jacrev"}, {"dtype": "float64", "mode": "jacrev"})
BRIEF: tuple[Fields, ...] = ({}, {"dtype": "bfloat16", "mode": "jacrev"})
DOUBLE: tuple[Fields, ...] = ({"dtype": "float64"},)
LAYOUTS: tuple[Fields, ...] = (
    {}, {"jit": False, "mode": "jacrev"}, {"api": "pmap", "devices": 2}, {"points": 1000, "mode": "linearize"},
)  # fmt: skip
MANY: tuple[Fields, ...] = (
    {"points": 100}, {"points": 1000, "mode": "jacrev"}, {"points": 100, "dtype": "float64"},
)  # fmt: skip
TWICE: tuple[Fields, ...] = (
    {"target": "hessian", "mode": "fwd_over_rev"}, {"target": "hvp", "mode": "rev_over_rev", "dtype": "float64"},
)  # fmt: skip

SMOOTH = {
    "sin": CorrectFunction(jnp.sin, cases=BRIEF),
    "exp": CorrectFunction(jnp.exp),
    "log": CorrectFunction(jnp.log, positive),
    "tanh": CorrectFunction(jnp.tanh, cases=BRIEF),
    "sqrt": CorrectFunction(jnp.sqrt, positive),
    "cube": CorrectFunction(lambda x: x**3),
    "reciprocal": CorrectFunction(lambda x: 1 / x, positive),
    "arctan": CorrectFunction(jnp.arctan),
    "arctan2": CorrectFunction(lambda x: jnp.arctan2(x, jnp.roll(x, 1))),
    "erf": CorrectFunction(special.erf),
    "erfinv": CorrectFunction(special.erfinv, _uniform_inputs(-0.9, 0.9)),
    "gammaln": CorrectFunction(special.gammaln, _uniform_inputs(0.5, 4.0)),
    "digamma": CorrectFunction(special.digamma, _uniform_inputs(0.5, 4.0)),
    "sigmoid": CorrectFunction(jax.nn.sigmoid),
    "softplus": CorrectFunction(jax.nn.softplus),
    "gelu": CorrectFunction(jax.nn.gelu),
    "silu": CorrectFunction(jax.nn.silu),
    "log1p": CorrectFunction(jnp.log1p, positive),
    "expm1": CorrectFunction(jnp.expm1),
    "sinh": CorrectFunction(jnp.sinh),
    "arcsinh": CorrectFunction(jnp.arcsinh),
    "hypot": CorrectFunction(lambda x: jnp.hypot(x, jnp.roll(x, 1))),
    "power": CorrectFunction(lambda x: x ** jnp.roll(x, 1), positive),
    "cbrt": CorrectFunction(jnp.cbrt, positive),
    "rsqrt": CorrectFunction(lax.rsqrt, positive),
    "logit": CorrectFunction(special.logit, _uniform_inputs(0.1, 0.9)),
    "bessel": CorrectFunction(special.i0e),
    "sinc": CorrectFunction(jnp.sinc),
    "normal distribution": CorrectFunction(special.ndtr),
    "xlogy": CorrectFunction(lambda x: special.xlogy(x, jnp.roll(x, 1)), positive),
    "polynomial": CorrectFunction(lambda x: jnp.polyval(_like(x, 5), x)),
    "logaddexp": CorrectFunction(lambda x: jnp.logaddexp(x, jnp.roll(x, 1))),
    "complex inside": CorrectFunction(lambda x: jnp.real(jnp.exp(1j * x) * (1 + 2j)), cases=EVERY),
    "modulus": CorrectFunction(lambda x: jnp.abs(x + 1j * jnp.roll(x, 1)), positive),
}

KINKED = {
    "relu": CorrectFunction(jax.nn.relu, cases=BRIEF),
    "abs": CorrectFunction(jnp.abs, cases=EVERY),
    "relu beside 1": CorrectFunction(lambda x: jax.nn.relu(x - 1), _near(1.0, 1e-3), cases=EVERY),
    "relu close to 1": CorrectFunction(lambda x: jax.nn.relu(x - 1), _near(1.0, 1e-5), cases=EVERY),
    "abs beside 1, summed": CorrectFunction(
        lambda x: jnp.sum(jnp.abs(x - 1)), _near(1.0, 1e-4), 64, cases=EVERY
    ),
    "relu beside 0": CorrectFunction(jax.nn.relu, _near(0.0, 1e-6)),
    "max": CorrectFunction(jnp.max),
    "min of two": CorrectFunction(lambda x: jnp.minimum(x, jnp.roll(x, 1)), cases=EVERY),
    "max of 64 pairs": CorrectFunction(lambda x: jnp.sum(jnp.maximum(x, jnp.roll(x, 1))), n=64, cases=EVERY),
    "clip": CorrectFunction(lambda x: jnp.clip(x, -0.5, 0.5)),
    "leaky relu": CorrectFunction(jax.nn.leaky_relu),
    "elu": CorrectFunction(jax.nn.elu),
    "huber": CorrectFunction(lambda x: jnp.where(jnp.abs(x) < 1, x**2 / 2, jnp.abs(x) - 0.5)),
    "signed square": CorrectFunction(lambda x: jnp.sign(x) * x**2),
    "floor": CorrectFunction(lambda x: jnp.floor(3 * x) + x**2),
    "sawtooth": CorrectFunction(lambda x: x % 0.7),
    "median": CorrectFunction(jnp.median, n=7),
    "quantile": CorrectFunction(lambda x: jnp.quantile(x, 0.3), n=7),
    "sort": CorrectFunction(_ranked, cases=EVERY),
    "sort of 64": CorrectFunction(_ranked, _well_separated(0.1), 64),
    "argsort": CorrectFunction(lambda x: x[jnp.argsort(x)] ** 2),
    "top_k": CorrectFunction(lambda x: lax.top_k(x, 3)[0] ** 2),
    "where": CorrectFunction(lambda x: jnp.where(x > 0, x**2, jnp.sin(x)), cases=BRIEF),
    "guarded where": CorrectFunction(
        lambda x: jnp.where(x > 0, jnp.sqrt(jnp.where(x > 0, x, 1.0)), 0.0), cases=EVERY
    ),
    "cummax": CorrectFunction(lax.cummax),
    "interp": CorrectFunction(_bent),
    "select": CorrectFunction(lambda x: jnp.select([x < -0.5, x < 0.5], [x**2, x**3], jnp.sin(x))),
    "argmax": CorrectFunction(lambda x: x[jnp.argmax(x)] * x),
}

LINEAR_ALGEBRA = {
    "product": CorrectFunction(lambda x: _like(x, 4, x.size) @ x, cases=BRIEF),
    "layer": CorrectFunction(lambda x: jnp.tanh(_like(x, 9, x.size) @ x), n=64, cases=EVERY),
    "square of a matrix": CorrectFunction(lambda x: (_matrix(x) @ _matrix(x)).reshape(-1), n=9),
    "solve": CorrectFunction(lambda x: jnp.linalg.solve(_dominant(_like(x, x.size**2)), x), cases=EVERY),
    "solve by the matrix": CorrectFunction(
        lambda x: jnp.linalg.solve(_dominant(x), _like(x, 4)), n=16, cases=EVERY
    ),
    "triangular solve": CorrectFunction(lambda x: linalg.solve_triangular(_dominant(x), _like(x, 4)), n=16),
    "inverse": CorrectFunction(lambda x: jnp.linalg.inv(_dominant(x)).reshape(-1), n=9),
    "cholesky": CorrectFunction(lambda x: jnp.linalg.cholesky(_definite(x)).sum(axis=1), n=9, cases=EVERY),
    "logdet": CorrectFunction(lambda x: jnp.linalg.slogdet(_dominant(x))[1], n=16),
    "det": CorrectFunction(lambda x: jnp.linalg.det(_matrix(x)), n=9),
    "eigenvalues": CorrectFunction(lambda x: jnp.linalg.eigvalsh(_separated(x)), n=16, cases=EVERY),
    "eigenvectors": CorrectFunction(
        lambda x: (jnp.linalg.eigh(_separated(x))[1] ** 2).reshape(-1), n=9, cases=EVERY
    ),
    "singular values": CorrectFunction(lambda x: jnp.linalg.svd(_separated(x), compute_uv=False), n=9),
    "qr": CorrectFunction(lambda x: jnp.abs(jnp.diag(jnp.linalg.qr(_dominant(x))[1])), n=9),
    "expm": CorrectFunction(lambda x: linalg.expm(0.3 * _matrix(x)).reshape(-1), n=9),
    "einsum": CorrectFunction(lambda x: jnp.einsum("ij,jk,ki->i", *[_matrix(x)] * 3), n=9),
    "kron": CorrectFunction(lambda x: jnp.kron(x[:2], x[2:]).reshape(-1)),
    "convolution": CorrectFunction(lambda x: jnp.convolve(x, x[:3]), n=8),
    "network": CorrectFunction(
        _network, shared={"w": normal(24)}, cases=(*EVERY, {"wrt": "x+w", "mode": "mixed"}, {"wrt": "w"})
    ),
    "attention": CorrectFunction(_attention, n=12, cases=EVERY),
    "pairwise kernel": CorrectFunction(_gaussian, n=12),
    "rfft": CorrectFunction(lambda x: jnp.abs(jnp.fft.rfft(x)) ** 2, n=16, cases=EVERY),
    "filter": CorrectFunction(lambda x: jnp.fft.irfft(jnp.fft.rfft(x) * _like(x, 9), 16), n=16),
    "fft": CorrectFunction(lambda x: jnp.real(jnp.fft.fft(x)), n=12, cases=EVERY),
}

REDUCING = {
    "cumsum": CorrectFunction(lambda x: jnp.cumsum(x**2), cases=BRIEF),
    "cumprod": CorrectFunction(jnp.cumprod, positive),
    "cumlogsumexp": CorrectFunction(lax.cumlogsumexp),
    "logsumexp": CorrectFunction(special.logsumexp, cases=EVERY),
    "logsumexp of large numbers": CorrectFunction(special.logsumexp, _normal_inputs(1e3)),
    "softmax": CorrectFunction(jax.nn.softmax, cases=EVERY),
    "log_softmax": CorrectFunction(jax.nn.log_softmax),
    "norm": CorrectFunction(jnp.linalg.norm, cases=EVERY),
    "norm 1": CorrectFunction(lambda x: jnp.sum(jnp.abs(x))),
    "prod": CorrectFunction(jnp.prod, positive),
    "mean": CorrectFunction(jnp.mean),
    "var": CorrectFunction(jnp.var),
    "std": CorrectFunction(jnp.std),
    "standardized": CorrectFunction(_standardized, n=16, cases=EVERY),
    "cosine": CorrectFunction(
        lambda x: x @ jnp.roll(x, 1) / (jnp.linalg.norm(x) * jnp.linalg.norm(jnp.roll(x, 1)))
    ),
    "entropy": CorrectFunction(lambda x: -jnp.sum(jax.nn.softmax(x) * jax.nn.log_softmax(x))),
    "diff": CorrectFunction(lambda x: jnp.diff(x**2)),
    "cross entropy of 1000": CorrectFunction(lambda x: special.logsumexp(x) - x[7], n=1000),
    "energy of 16384": CorrectFunction(lambda x: jnp.sum(x * jnp.sin(x)), n=16384, cases=BACK),
    "logsumexp of 16384": CorrectFunction(special.logsumexp, n=16384, cases=BACK),
    "norm of 16384": CorrectFunction(jnp.linalg.norm, n=16384, cases=BACK),
    "product of 16384": CorrectFunction(
        lambda x: jnp.sin(_like(x, 8, x.size) @ x / 128), n=16384, cases=BACK
    ),
    "softmax of 4096": CorrectFunction(lambda x: jax.nn.softmax(x)[:8] * x.size, n=4096, cases=BACK),
    "variance of 4096": CorrectFunction(jnp.var, n=4096, cases=BACK),
}

SCALED = {
    "offset 1e4": CorrectFunction(lambda x: 1e4 + jnp.sin(x), cases=EVERY),
    "offset 1e8": CorrectFunction(lambda x: 1e8 + jnp.sin(x), cases=EVERY),
    "offset 1e11": CorrectFunction(lambda x: 1e11 + jnp.sin(x), cases=EVERY, digits=False),
    "there and back": CorrectFunction(lambda x: (x + 1e3) - 1e3),
    "exp(x) - 1": CorrectFunction(lambda x: jnp.exp(x) - 1, _normal_inputs(1e-3)),
    "log(exp(x))": CorrectFunction(lambda x: jnp.sum(jnp.log(jnp.exp(x)))),
    "variance by squares": CorrectFunction(_variance_by_squares, _normal_inputs(1.0, 10.0)),
    "1 - cos": CorrectFunction(lambda x: 1 - jnp.cos(x), _normal_inputs(1e-2)),
    "difference of sums": CorrectFunction(lambda x: jnp.sum(x**2) - jnp.sum(jnp.roll(x, 1) ** 2)),
    "small values": CorrectFunction(lambda x: 1e-20 * jnp.sin(x), cases=EVERY),
    "large values": CorrectFunction(lambda x: 1e20 * jnp.sin(x), cases=EVERY),
    "values of all sizes": CorrectFunction(
        lambda x: jnp.sin(x) * jnp.logspace(-8, 8, x.size).astype(x.dtype), cases=EVERY
    ),
    "sum of all sizes": CorrectFunction(
        lambda x: jnp.sum(jnp.sin(x) * jnp.logspace(-8, 8, x.size).astype(x.dtype)), cases=EVERY
    ),
    "small inputs": CorrectFunction(lambda x: 1e20 * x * jnp.roll(x, 1), _normal_inputs(1e-10)),
    "very small inputs": CorrectFunction(lambda x: x + x**2, _normal_inputs(1e-20)),
    "large inputs": CorrectFunction(lambda x: jnp.sin(1e-10 * x), _normal_inputs(1e10), cases=EVERY),
    "inputs of all sizes": CorrectFunction(
        lambda x: x**2,
        lambda n: InputSpec(
            (n,), lambda rng, rows: np.logspace(-6, 6, n) * rng.uniform(0.5, 1, (len(rows), n))
        ),
    ),
    "inputs about 1e6": CorrectFunction(lambda x: jnp.sum((x - 1e6) ** 2), _normal_inputs(1.0, 1e6)),
    "zeros": CorrectFunction(lambda x: 0 * x, cases=EVERY),
    "constants": CorrectFunction(lambda x: jnp.ones(3, x.dtype), cases=EVERY),
    "a constant beside the others": CorrectFunction(lambda x: jnp.sin(x).at[2].set(4.0)),
    "an input that is not used": CorrectFunction(lambda x: jnp.sin(x[1:])),
    "inputs that are zero": CorrectFunction(
        jnp.exp, lambda n: InputSpec((n,), lambda rng, rows: np.zeros((len(rows), n)))
    ),
    "rounded": CorrectFunction(jnp.round),
    "saturated": CorrectFunction(lambda x: jnp.tanh(30 * x), _near(0.0, 1.0)),
    "steep": CorrectFunction(lambda x: jax.nn.sigmoid(100 * x)),
    "quickly oscillating": CorrectFunction(lambda x: jnp.sin(50 * x), cases=EVERY),
    "nearly singular": CorrectFunction(lambda x: 1 / (x - 1), _near(1.0, 1e-2)),
    "far tail": CorrectFunction(lambda x: jnp.exp(-(x**2)), _normal_inputs(0.5, 4.0)),
}

_SUMS = {"outputs": "jacrev", "inputs": "jacfwd", "vector": "jacfwd", "norm": "jacrev", "gram": "jacfwd"}
# The derivative of a saturated or steep function is small or cancels at most points.
STEEP = {
    name: CorrectFunction(function, cases=MANY)
    for name, function in {
        "tanh(10 x)": lambda x: jnp.tanh(10 * x),
        "tanh(100 x)": lambda x: jnp.tanh(100 * x),
        "sigmoid(30 x)": lambda x: jax.nn.sigmoid(30 * x),
        "gelu(5 x)": lambda x: jax.nn.gelu(5 * x),
        "softmax(30 x)": lambda x: jax.nn.softmax(30 * x),
        "saturated network": lambda x: jnp.tanh(_like(x, 5, x.size, low=-9, high=9) @ x),
        "sinc": jnp.sinc,
        "sinc near 0": lambda x: jnp.sinc(0.01 * x),
        "1 - cos, small": lambda x: 1 - jnp.cos(0.01 * x),
        "sqrt(1 + x) - 1": lambda x: jnp.sqrt(1 + 1e-3 * x**2) - 1,
        "steep Gaussian": lambda x: jnp.exp(-20 * x**2),
        "difference of exponentials": lambda x: jnp.exp(5 * x) - jnp.exp(5 * jnp.roll(x, 1)),
    }.items()
}

SHAPED = {
    "one input": CorrectFunction(jnp.sin, n=1, cases=BRIEF),
    "one input, cubed": CorrectFunction(lambda x: x[0] ** 3, positive, n=1, cases=EVERY),
    "one input, eight outputs": CorrectFunction(
        lambda x: jnp.sin(x[0] * jnp.arange(1, 9).astype(x.dtype)), n=1, cases=EVERY
    ),
    "two inputs": CorrectFunction(lambda x: x[0] * jnp.sin(x[1]), n=2),
    "three outputs in two axes": CorrectFunction(lambda x: jnp.outer(x[:2], x[2:] ** 2)),
    "banded": CorrectFunction(
        lambda x: x * jnp.roll(x, 1) ** 2,
        n=64,
        cases=({}, {"seeds": "colored"}, {"seeds": "colored", "dtype": "float64", "mode": "jacrev"}),
    ),
    "arrow": CorrectFunction(_arrow, n=64, cases=({}, {"seeds": "colored", "mode": "mixed"})),
    "diagonal": CorrectFunction(jnp.sin, n=256, cases=({}, {"seeds": "colored"})),
    "in blocks on the host": CorrectFunction(
        lambda x: jnp.sin(_like(x, 7, x.size) @ x),
        n=64,
        cases=(
            {"storage": "host", "block": 2, "mode": "jacrev"},
            {"storage": "host", "block": 2, "chunk": 4},
        ),
    ),
    "reduced": CorrectFunction(
        lambda x: jnp.sin(_like(x, 7, x.size) @ x),
        n=9,
        cases=tuple({"reduce": how, "mode": mode} for how, mode in _SUMS.items()),
    ),
    "reduced to nothing": CorrectFunction(
        jax.nn.softmax,
        cases=(
            {"reduce": "outputs", "mode": "jacrev"},
            {"reduce": "inputs"},
            {"reduce": "vector", "dtype": "float64"},
        ),
    ),
    "loss over data": CorrectFunction(
        lambda x, w: (jnp.tanh(x @ w) - 0.5) ** 2,
        shared={"w": normal(6)},
        cases=(
            {"reduce": "points", "mode": "jacrev", "wrt": "w"},
            {
                "split": "data",
                "devices": 2,
                "api": "shard_map",
                "mode": "jacrev",
                "wrt": "w",
                "dtype": "float64",
            },
        ),
    ),
    "Hessian of a norm": CorrectFunction(jnp.linalg.norm, cases=TWICE),
    "Hessian of a line": CorrectFunction(lambda x: jnp.sum(3 * x), cases=TWICE),
    "Hessian of logsumexp": CorrectFunction(special.logsumexp, cases=TWICE),
    "Hessian of a product": CorrectFunction(jnp.prod, positive, cases=TWICE),
    "Hessian of a relu": CorrectFunction(lambda x: jnp.sum(jax.nn.relu(x) ** 3), cases=TWICE),
    "by finite differences": CorrectFunction(
        jnp.sin, cases=({"mode": "finite_difference", "dtype": "float64"}, {"mode": "finite_difference"})
    ),
    "relu by finite differences": CorrectFunction(
        lambda x: jax.nn.relu(x - 1),
        _near(1.0, 0.5),
        cases=({"mode": "finite_difference", "dtype": "float64"},),
    ),
    "values": CorrectFunction(
        lambda x: jnp.sin(x) * jnp.exp(x), cases=({"mode": "value"}, {"mode": "value", "dtype": "bfloat16"})
    ),
}

RULED = {
    "rule": CorrectFunction(_clever, cases=EVERY),
    "reverse rule": CorrectFunction(_reversed_rule, cases=BACK),
    "reverse rule, summed": CorrectFunction(
        lambda x: jnp.sum(_reversed_rule(x)), n=64, cases=({"mode": "jacrev"}, {"mode": "grad_of_sum"})
    ),
    "implicit rule": CorrectFunction(_newton, positive, cases=EVERY),
    "custom_root": CorrectFunction(_custom_root, cases=EVERY),
    "custom_linear_solve": CorrectFunction(_custom_linear_solve, cases=EVERY),
    "stable where": CorrectFunction(
        lambda x: jnp.sum(x - lax.stop_gradient(jnp.max(x)) + lax.stop_gradient(jnp.max(x)))
    ),
}

CONTROLLED = {
    "scan": CorrectFunction(_scan, cases=EVERY),
    "while": CorrectFunction(_while, cases=FORWARD),
    "fori": CorrectFunction(lambda x: lax.fori_loop(0, 7, lambda _, y: jnp.sin(y) + 0.5 * x, x), cases=EVERY),
    "cond": CorrectFunction(lambda x: lax.cond(x[0] > 0, jnp.sin, lambda x: x**2, x), cases=EVERY),
    "switch": CorrectFunction(lambda x: lax.switch(jnp.int32(x[0] > 0), [jnp.sin, jnp.cos], x)),
    "map": CorrectFunction(lambda x: lax.map(lambda a: jnp.sin(a) * x[0], x)),
    "associative scan": CorrectFunction(lambda x: lax.associative_scan(jnp.multiply, x), positive),
    "checkpoint": CorrectFunction(jax.checkpoint(lambda x: jnp.sin(jnp.sin(x))), cases=BACK),
    "jit inside": CorrectFunction(jax.jit(lambda x: jnp.sin(x) * x), cases=LAYOUTS[:2]),
    "gradient inside": CorrectFunction(jax.grad(lambda x: jnp.sum(jnp.sin(x) * x**2)), cases=EVERY),
    "tangent inside": CorrectFunction(lambda x: jax.jvp(jnp.sin, (x,), (x**2,))[1]),
    "vmap inside": CorrectFunction(lambda x: jax.vmap(lambda a: jnp.sum(jnp.sin(a * x)))(x)),
}

INDEXED = {
    "int64 indices": CorrectFunction(lambda x: x[ORDER] ** 2, cases=(*LAYOUTS, {"dtype": "float64"})),
    "triu_indices": CorrectFunction(_filled, cases=(*LAYOUTS, {"dtype": "float64"})),
    "reversed by arange": CorrectFunction(lambda x: x[BACKWARDS] * x, cases=LAYOUTS[:3]),
    "scatter": CorrectFunction(lambda x: jnp.zeros_like(x).at[SCATTERED].add(x[:3] ** 2), cases=LAYOUTS[1:3]),
    "take": CorrectFunction(lambda x: jnp.take(x, TABLE) ** 2, cases=LAYOUTS[:2]),
    "segment_sum": CorrectFunction(_blockwise, cases=LAYOUTS[:3]),
    "ix_": CorrectFunction(lambda x: x.reshape(2, 3)[MESH] ** 2),
    "mask of NumPy": CorrectFunction(lambda x: x[MASK] ** 2, cases=LAYOUTS[1:2]),
    "dynamic_slice": CorrectFunction(lambda x: lax.dynamic_slice(x, (1,), (3,)) ** 2),
    "tril_indices": CorrectFunction(lambda x: x.reshape(2, 3)[LOWER] ** 3, cases=LAYOUTS[1:3]),
    "one_hot": CorrectFunction(lambda x: jax.nn.one_hot(ORDER[:2], 6, dtype=x.dtype) @ x**2),
    "an input of integers": CorrectFunction(
        lambda x, k: x * jnp.sin(x) * k, others={"k": poisson(3.0)}, cases=EVERY
    ),
    "indexed by an input": CorrectFunction(
        lambda x, k: x[k % x.size] * x, others={"k": poisson(3.0)}, cases=(*LAYOUTS[:2], {"dtype": "float64"})
    ),
    "constants of NumPy": CorrectFunction(lambda x: x * np.linspace(0.1, 1, 6) * np.pi, cases=EVERY),
}

IN_OTHER_DTYPES = {
    "bernoulli": CorrectFunction(_noisy, cases=EVERY, digits=False),
    "random normal": CorrectFunction(
        lambda x: x**2 * jax.random.normal(jax.random.key(1), x.shape, x.dtype), cases=EVERY, digits=False
    ),
    "float32 inside": CorrectFunction(_within(jnp.float32), cases=EVERY, digits=False),
    "float16 inside": CorrectFunction(_within(jnp.float16), cases=({},), digits=False),
    "bfloat16 inside": CorrectFunction(_within(jnp.bfloat16), cases=({},), digits=False),
    "reduced precision": CorrectFunction(
        lambda x: lax.reduce_precision(jnp.sin(x), 8, 10), cases=({},), digits=False
    ),
    "by the dtype": CorrectFunction(
        lambda x: x**2 if x.dtype == jnp.float64 else x**2 + x, cases=EVERY, digits=False
    ),
}

RIGHT: dict[str, CorrectFunction] = (
    SMOOTH
    | KINKED
    | LINEAR_ALGEBRA
    | REDUCING
    | SCALED
    | SHAPED
    | RULED
    | CONTROLLED
    | INDEXED
    | IN_OTHER_DTYPES
    | STEEP
)
VARIANTS = tuple(RIGHT)
_MODES = ("jacfwd", "jacrev", "linearize")  # used in rotation for functions without `cases`


def cases(name: str) -> list[Case]:
    """Return the cases of the function with this name: its own `cases`, or a single one."""
    correct = RIGHT[name]
    plain: Fields = {"mode": _MODES[VARIANTS.index(name) % len(_MODES)]}
    default = {"workload": __name__, "variant": name, "sizes": {"n": correct.n}, "points": 4, "api": "jit"}
    return [Case(**default | fields) for fields in correct.cases or (plain,)]


def workload(case: Case) -> Workload:
    """Return the workload of a case, without a closed form."""
    correct = RIGHT[case.variant or VARIANTS[0]]
    points = {"x": correct.draw(case.sizes["n"]), **correct.others}
    return Workload(lambda x, **others: correct.function(x, **others), points, correct.shared, wrt="x")
