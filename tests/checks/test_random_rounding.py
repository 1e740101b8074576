import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from scaling.programs.jaxpr_interpreter import with_random_rounding

SEEDS = range(1, 9)
X = np.linspace(0.3, 2.0, 7).astype(np.float32)
PARTIAL_SUMS = (np.eye(3) - np.eye(3, k=-1)).astype(np.float32)  # times the partial sums of x is x


def results(function, *arguments):
    """Return the result of a function for each of eight seeds: (seeds, *shape)."""
    compiled = jax.jit(lambda seed, *a: with_random_rounding(function, seed)(*a))
    return np.array([compiled(np.uint32(seed), *arguments) for seed in SEEDS], np.float64)


def test_the_range_covers_the_error_of_a_cancellation():
    slope = jax.vmap(jax.grad(lambda x: jnp.tanh(3 * x)))
    rounded = results(slope, X)
    with jax.enable_x64(True):
        exact = np.asarray(slope(X.astype(np.float64)))
    error = np.abs(np.asarray(slope(X), np.float64) - exact)
    spread = rounded.max(axis=0) - rounded.min(axis=0)
    assert (error <= 4 * spread).all()
    assert (spread < 1e-5).all()
    assert spread[-1] > 1000 * 2.0**-24 * exact[-1]  # where tanh is close to 1


@pytest.mark.parametrize(
    "function",
    [
        lambda x: jax.lax.scan(lambda y, a: (jnp.sin(y) + a, y), x[0], x)[1],
        lambda x: jax.lax.scan(lambda y, a: (jnp.sin(y) + a, y), x[0], x, reverse=True)[1],
        lambda x: jax.lax.while_loop(lambda y: jnp.sum(y) < 50, lambda y: y * 1.3, x),
        lambda x: jax.vmap(lambda a: jax.lax.cond(a > 1, jnp.sin, jnp.cos, a))(x),
        lambda x: jax.lax.switch(1, [jnp.cos, jnp.sin], x),
        jax.jit(lambda x: jnp.sin(x) * x),
        jax.checkpoint(lambda x: jnp.sin(x) * x),
        lambda x: jax.nn.relu(x - 0.1) * 1.1,  # custom_jvp
        lambda x: jax.lax.reduce(x * 1.1, np.float32(0), jax.lax.add, (0,))[None],
        lambda x: jnp.sort(jnp.cos(x)),
        lambda x: jnp.abs(jnp.fft.rfft(x)),
        lambda x: jax.scipy.linalg.expm(jnp.outer(x, x) / 4).sum(axis=0),
        lambda x: jnp.linalg.solve(jnp.diag(x) + 0.1, x),
        lambda x: x * jax.random.normal(jax.random.key(0), x.shape),
    ],
)
def test_every_kind_of_operation_is_evaluated_with_small_errors_that_differ_by_seed(function):
    rounded, plain = results(function, X), np.asarray(function(X), np.float64)
    np.testing.assert_allclose(rounded, np.broadcast_to(plain, rounded.shape), rtol=1e-4)
    assert len(np.unique(rounded.sum(axis=-1))) > 1


def test_equal_values_remain_equal_and_their_difference_is_zero():
    def differences(x):
        y = 3 * jnp.sin(x)
        return y[:, None] - y[None]

    assert (np.diagonal(results(differences, X), axis1=1, axis2=2) == 0).all()


def test_sums_of_whole_numbers_are_exact_but_a_large_sum_of_others_is_not():
    counts = lambda x: 2 * jnp.cumsum((x > 1).astype(x.dtype)) - jnp.sum((x > 1).astype(x.dtype))  # noqa: E731
    assert (results(counts, X) == counts(X)).all()
    assert np.ptp(results(lambda x: 1e8 + jnp.sin(x), X), axis=0).all()


def test_a_loop_until_a_fixed_point_ends():
    def root(x):
        return jax.lax.while_loop(
            lambda pair: jnp.any(pair[0] != pair[1]),
            lambda pair: ((pair[0] + x / pair[0]) / 2, pair[0]),
            (x, jnp.zeros_like(x)),
        )[0]

    np.testing.assert_allclose(results(root, X), np.broadcast_to(np.sqrt(X), (8, 7)), rtol=1e-6)


@pytest.mark.parametrize(
    "moved",
    [
        lambda x: jnp.concatenate([x[::-1], jnp.arange(3) ** 2]).reshape(2, 5),
        lambda x: x[2:],
        lambda x: jnp.stack(jnp.unstack(x)[::2]),
        lambda x: jnp.tile(x, (2, 2)),
        lambda x: jnp.zeros(9, x.dtype).at[np.array([5, 0, 4])].set(x[:3]),
        jax.lax.optimization_barrier,
    ],
    ids=["reversed", "slice", "stack", "tile", "scatter", "barrier"],
)
def test_integers_and_moved_elements_are_exact(moved):
    expected = moved(jnp.asarray(X))
    np.testing.assert_array_equal(results(moved, X), np.broadcast_to(expected, (8, *expected.shape)))


def test_equal_elements_have_different_errors():
    rounded = results(jnp.sin, np.ones(50, np.float32))
    assert (np.ptp(rounded, axis=1) > 0).all()


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_the_errors_are_as_large_as_the_unit_roundoff_of_the_dtype(dtype):
    x = jnp.asarray(X, dtype)
    relative = np.abs(results(functools.partial(jnp.multiply, 1), x) / np.asarray(x, np.float64) - 1)
    assert 0 < relative.max() <= 2 * float(jnp.finfo(dtype).eps)


@pytest.mark.parametrize(
    "sum_of",
    [
        lambda terms: jnp.sum(terms, axis=0),
        lambda terms: jnp.cumsum(terms, axis=0)[-1],
        lambda terms: jnp.ones(3) @ terms,
        lambda terms: jax.ops.segment_sum(terms, np.zeros(3, int), 1)[0],
        lambda terms: jax.scipy.linalg.solve_triangular(PARTIAL_SUMS, terms, lower=True)[-1],
    ],
)
def test_the_error_of_a_sum_depends_on_the_magnitude_of_its_terms(sum_of):
    large = np.full((1, 7), 1e6, np.float32)
    rounded = results(lambda x: sum_of(jnp.concatenate([large, x[None], -large])), X)
    spread = np.ptp(rounded, axis=0) / (1e6 * 2.0**-24)
    assert (spread > 1).all() and (spread < 10).all()
