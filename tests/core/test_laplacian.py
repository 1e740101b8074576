"""Tests of target=laplacian: every mode and layout gives the trace of the Hessian, of any scalar function."""

import dataclasses
import functools

import pytest

from tests.support.devices import reason_to_skip, run_once  # isort: skip  # before JAX is used
import jax
import jax.numpy as jnp
import numpy as np
from jax.interpreters.partial_eval import dce_jaxpr

from scaling.core import modes
from scaling.core.case import Case, Refusal
from scaling.options import laplacian
from scaling.study import case_rules

LAPLACIAN_MODES = tuple(name for name, mode in modes.MODES.items() if mode.order == 2)
PROBLEM = {"workload": "residual", "points": 6, "wrt": "d+m", "variant": "scalar", "target": "laplacian"}
LAYOUTS = {
    "jit": {"api": "jit"},
    "chunks": {"api": "jit", "chunk": 5, "block": 4},
    "points": {"devices": 2},
    "seeds": {"devices": 2, "split": "seeds", "chunk": 4},
    "both": {"devices": 8, "split": "both", "mesh": "2x4"},
    "pmap, points": {"api": "pmap", "devices": 3},
    "pmap, seeds": {"api": "pmap", "devices": 2, "split": "seeds"},
    "pmap, both": {"api": "pmap", "devices": 6, "split": "both", "mesh": "2x3", "chunk": 3},
    "host": {"api": "jit", "storage": "host", "block": 4},
}


def run(**fields):
    case = case_rules.complete(Case(**{"dtype": "float64"} | PROBLEM | fields))
    return run_once(case)


@pytest.mark.thin(7, "thorough")
@pytest.mark.covering(1)
@pytest.mark.parametrize("mode", LAPLACIAN_MODES)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_mode_and_layout_gives_the_trace_of_the_hessian(layout, mode):
    record = run(mode=mode, **LAYOUTS[layout])
    assert record.status == "ok", record.text
    assert record.error < 1e-10
    assert not any(record.collectives.values())


@pytest.mark.thin(2, "thorough")
@pytest.mark.parametrize("fields", [{}, {"jit": False}, {"dtype": "float32"}], ids=str)
@pytest.mark.parametrize("mode", ["jet", "forward_laplacian", "analytic"])
def test_a_laplacian_by_one_forward_pass_or_by_hand_passes_the_check(mode, fields):
    record = run(mode=mode, api="jit", **fields)
    assert record.status == "ok", record.text
    assert record.error <= record.tolerance


@jax.custom_jvp
def cubed(x):
    return x**3


cubed.defjvp(lambda primals, tangents: (cubed(*primals), 3 * primals[0] ** 2 * tangents[0]))
A = np.sin(np.arange(16.0).reshape(4, 4) + 1)
POINT = (0.3, 0.8, -0.4, 1.1)


def attention(x):
    rows = x.reshape(2, 2)
    return jnp.sum(jax.nn.softmax(rows @ rows.T / 2) @ rows**2)


def loop(x):
    state, outputs = jax.lax.scan(lambda h, a: (jnp.tanh(A @ h + a), h @ x), x, jnp.arange(3.0))
    return jnp.sum(state) + outputs @ outputs


FUNCTIONS = {
    "network": lambda x: jnp.sum(jnp.tanh(jnp.tanh(x @ A + 1) @ A) @ A[0]),
    "columns": lambda x: jnp.sum(jnp.sin(A @ jnp.cos(A @ x))),
    "product": lambda x: x[0] * x[1] * x[2] * x[3],
    "quotient": lambda x: jnp.sum(A @ x / jnp.exp(x[::-1]) - x[0] / (2 + x[1] ** 2) + 1 / (3 + x)),
    "linear": lambda x: jnp.sum(3 * x) + 1,
    "constant": lambda x: jnp.ones(()),
    "attention": attention,
    "convolution": lambda x: jnp.sum(jnp.convolve(x, A[0]) ** 2 + jnp.convolve(x, x)),
    "determinant": lambda x: jnp.linalg.slogdet(A + jnp.outer(x, x) + 3 * jnp.eye(4))[1],
    "loop": loop,
    "while": lambda x: jax.lax.fori_loop(0, jnp.argmax(A[0]) + 2, lambda k, h: jnp.sin(h @ A), x).sum(),
    "branch": lambda x: jax.lax.cond(x[0] > 0, lambda: jnp.sum(x**3), lambda: jnp.sum(jnp.exp(x))),
    "selection": lambda x: jnp.sum(jnp.where(x > 0.5, x**2, jnp.sin(x)) * jnp.max(x) + jnp.abs(x) * x[1]),
    "order": lambda x: jnp.sort(x) @ A[0] * x[jnp.argmin(x)] + jnp.cumsum(x)[2] ** 2,
    "update": lambda x: jnp.sum(x.at[1].add(x[0] ** 2).at[2].set(x[3] * x[0]).at[::2].multiply(x[1]) ** 2),
    "custom derivative": lambda x: jnp.sum(cubed(A @ x) + jax.nn.softplus(x) * jax.nn.silu(x)),
    "checkpoint": lambda x: jnp.sum(jax.checkpoint(lambda z: jnp.tanh(A @ z))(x) ** 2),
    "compiled": lambda x: jax.jit(lambda z: jnp.sum(jnp.exp(A @ z)))(x),
    "spectrum": lambda x: jnp.sum(jnp.abs(jnp.fft.fft(jnp.sin(x) + x)) ** 2),
    "limits": lambda x: jnp.sum(jnp.clip(x, 0.2, 0.9) ** 3),
    "stopped": lambda x: jnp.sum(jax.lax.stop_gradient(x) * x**2),
}


UNKNOWN_TO_JET = {  # functions with an operation for which jax.experimental.jet has no rule, or one that fails
    "determinant": "lu", "loop": "scan", "while": "while", "branch": "cond", "order": "sort", "update": "scatter",
    "limits": "min", "spectrum": "abs",  # rules that raise AssertionError and TypeError
}  # fmt: skip
KNOWN_TO_JET = FUNCTIONS.keys() - UNKNOWN_TO_JET.keys()


@functools.cache
def hessian_of(name):
    """Return the Hessian of a function at POINT."""
    return jax.jit(jax.jacfwd(jax.jacfwd(FUNCTIONS[name])))(np.array(POINT))


@pytest.mark.thin(2, "thorough")
@pytest.mark.parametrize(
    ("mode", "name"),
    [("forward_laplacian", name) for name in FUNCTIONS] + [("jet", name) for name in sorted(KNOWN_TO_JET)],
)
def test_the_laplacian_of_any_function_is_the_sum_over_directions(mode, name):
    f, x = FUNCTIONS[name], jnp.array(POINT)
    V = jnp.array([[1.0, 0, 0, 0], [0, 2, -1, 0.5], [0, 0, 0, 0]])
    expected = np.einsum("ka,ab,kb", V, hessian_of(name), V)
    propagate = laplacian.sum_quadratic_forms(modes.MODES[mode], f, (x,))
    np.testing.assert_allclose(jax.jit(propagate)((V,)), expected, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("name", UNKNOWN_TO_JET)
def test_taylor_mode_names_the_operation_that_it_does_not_know(name):
    sum_forms = laplacian.sum_quadratic_forms(modes.MODES["jet"], FUNCTIONS[name], (jnp.ones(4),))
    message = f"cannot differentiate the operation {UNKNOWN_TO_JET[name]}; use mode=forward_laplacian"
    with pytest.raises(Refusal, match=message):
        sum_forms((jnp.eye(4),))


@pytest.mark.parametrize("mode", LAPLACIAN_MODES)
def test_a_compiled_part_or_a_custom_derivative_may_depend_on_the_point_alone(mode):
    def f(c, x):
        return jnp.sum(
            jax.nn.relu(c) * x**2 + jax.jit(jnp.cos)(c) * jnp.sin(x) + jax.scipy.special.xlogy(c, x)
        )

    def laplacian_of(c, x):
        return laplacian.sum_quadratic_forms(modes.MODES[mode], lambda z: f(c, z), (x,))((jnp.eye(2),))

    c, x = jnp.array([-0.5, 0.7, 1.2]), jnp.array([[0.3, 0.8], [1.4, 2.0], [0.6, 0.1]])
    c2 = c[:, None]
    expected = (2 * jnp.maximum(c2, 0) - jnp.cos(c2) * jnp.sin(x) - c2 / x**2).sum(axis=1)
    np.testing.assert_allclose(jax.jit(jax.vmap(laplacian_of))(c, x), expected, rtol=1e-11)


@pytest.mark.thin(2, "thorough")
@pytest.mark.parametrize("mode", LAPLACIAN_MODES)
def test_the_directions_of_several_inputs_are_taken_together(mode):
    f = lambda x, y: jnp.sum(jnp.sin(x) * jnp.cos(A @ y)) + jnp.sum(x) ** 2 * y[0]  # noqa: E731
    x, y = jnp.arange(4.0), jnp.arange(4.0) / 3
    V = (jnp.eye(8)[:, :4], jnp.eye(8)[:, 4:])
    H = jax.jit(jax.hessian(lambda z: f(z[:4], z[4:])))(jnp.concatenate([x, y]))
    propagate = jax.jit(laplacian.sum_quadratic_forms(modes.MODES[mode], f, (x, y)))
    np.testing.assert_allclose(propagate(V), jnp.trace(H), rtol=1e-11)


def test_the_forward_laplacian_never_stores_second_derivatives_along_single_directions():
    propagate = laplacian.sum_quadratic_forms(
        modes.MODES["forward_laplacian"], FUNCTIONS["network"], (jnp.ones(4),)
    )
    jaxpr = jax.make_jaxpr(propagate)((jnp.eye(4),)).jaxpr
    equations = dce_jaxpr(jaxpr, [True])[0].eqns  # without equations whose results are not used
    products = [equation for equation in equations if equation.primitive.name == "dot_general"]
    by_direction = [product for product in products if 4 in product.outvars[0].aval.shape[:-1]]
    assert len(by_direction) == 2 < len(products)  # the derivatives alone, in both hidden layers


@pytest.mark.thin(9, "thorough")
@pytest.mark.parametrize("mode", LAPLACIAN_MODES)
def test_a_laplacian_that_is_a_thousandth_off_is_a_wrong_answer(mode, monkeypatch):
    right = modes.MODES[mode]

    def wrong(f, x):
        sum_of = laplacian.sum_quadratic_forms(right, f, x)
        return lambda V: sum_of(V) * 1.001

    monkeypatch.setitem(modes.MODES, mode, dataclasses.replace(modes.MODES[mode], quadratic_sum=wrong))
    record = run(mode=mode, api="jit", dtype="float32")
    assert (record.status, record.reason, record.seconds) == ("failed", "wrong_answer", [])


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"mode": "jacfwd"}, "target=laplacian needs fwd_over_rev"),
        ({"mode": "jet", "target": "hessian"}, "mode=jet computes the Laplacian; use target=laplacian"),
        ({"mode": "forward_laplacian", "target": "jacobian"}, "use target=laplacian"),
        ({"mode": "forward_laplacian", "seeds": "colored"}, "not target=laplacian; use target=hessian"),
        ({"mode": "jet", "variant": "vector"}, "needs a function with one output"),
        ({"mode": "jet", "batch": "whole"}, "computed for each point; use batch=vmap"),
        ({"mode": "fwd_over_rev", "split": "data", "devices": 2}, "computed for each point"),
        ({"mode": "fwd_over_rev", "engine": "torch"}, "target=laplacian is implemented for engine=jax only"),
    ],
    ids=str,
)  # fmt: skip
def test_a_mode_and_a_target_that_do_not_go_together_are_skipped_with_a_reason(fields, text):
    assert text in reason_to_skip(case_rules.complete(Case(**PROBLEM | fields)))[1]


def test_a_mode_of_the_laplacian_alone_selects_its_target():
    for mode, target in (
        ("jet", "laplacian"),
        ("forward_laplacian", "laplacian"),
        ("fwd_over_rev", "hessian"),
    ):
        assert case_rules.complete(Case(**PROBLEM | {"mode": mode, "target": None})).target == target
