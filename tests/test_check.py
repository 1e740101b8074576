"""What the check must not be talked into: wrong derivatives of functions that make it hard, and references that prove nothing."""

import dataclasses
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_contract import HERE, ONCE, PROBLEMS

from scaling import workload
from scaling.case import Case
from scaling.draws import Draw
from scaling.measuring import attempt, check, inputs, spmd
from scaling.record import Record
from scaling.workload import Reference, Workload, normal, uniform


def with_rule(function, factor):
    """The function, with a derivative that is `factor` times its own."""

    @jax.custom_jvp
    def changed(x):
        return function(x)

    changed.defjvp(lambda x, v: (function(*x), factor * jax.jvp(function, x, v)[1]))
    return changed


def zeros(*shape):
    return Draw(shape, lambda _, rows: np.zeros((len(rows), *shape)))


def put(made, monkeypatch):
    """Have this workload found, whatever is asked for."""
    check._whole.cache_clear()
    monkeypatch.setattr(workload, "build", lambda case: made)
    monkeypatch.setattr(check, "build", lambda case: made)


def outcome(made, monkeypatch, mode="jacfwd", dtype="float64"):
    """The record of a workload made here."""
    put(made, monkeypatch)
    case = Case("poisson", target="gradient", points=6, wrt=made.wrt, mode=mode, dtype=dtype, api="jit")
    record = attempt.run(Record(case, "failed", HERE), jax.devices()[:1], "cpu", ONCE)
    check._whole.cache_clear()
    return record


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("constant", [0.0, 1e6, 1e8])
@pytest.mark.parametrize("factor, reason", [(1.0, None), (1.5, "wrong_answer"), (-7.0, "wrong_answer")])
def test_a_large_constant_hides_no_wrong_derivative(constant, factor, reason, dtype, monkeypatch):
    function = with_rule(jnp.sin, factor)
    made = Workload(lambda x: constant + function(x), {"x": normal(4)}, wrt="x")
    assert outcome(made, monkeypatch, dtype=dtype).reason == reason


@pytest.mark.parametrize("factor, reason", [(1.0, None), (3.0, "wrong_answer")])
def test_inputs_that_are_all_zero_are_checked_too(factor, reason, monkeypatch):
    made = Workload(with_rule(jnp.exp, factor), {"x": zeros(3)}, wrt="x")
    assert outcome(made, monkeypatch).reason == reason


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_reference_that_is_not_finite_proves_nothing(bad, monkeypatch):
    def reference(inputs):
        derivative = np.cos(inputs["x"])[:, :, None] * np.eye(4)
        derivative[:, 0, 1] = bad
        return Reference(np.sin(inputs["x"]), derivative)

    record = outcome(Workload(lambda x: jnp.sin(x), {"x": normal(4)}, wrt="x", reference=reference), monkeypatch)
    assert record.status == "failed" and "not finite" in record.text


def test_a_reference_or_a_derivative_of_another_shape_is_not_broadcast(monkeypatch):
    def reference(inputs):
        return Reference(np.sin(inputs["x"]), np.cos(inputs["x"])[:, :, None])

    record = outcome(Workload(lambda x: jnp.sin(x), {"x": normal(4)}, wrt="x", reference=reference), monkeypatch)
    assert record.status == "failed" and "shape (6, 4, 1), not (6, 4, 4)" in record.text
    by_hand = {"analytic": lambda x: jnp.ones((x.shape[0], 3, 1), x.dtype)}
    made = Workload(lambda x: jnp.sum(x) * jnp.ones(3, x.dtype), {"x": normal(4)}, wrt="x", whole_modes=by_hand)
    record = outcome(made, monkeypatch, mode="analytic")
    assert record.status == "failed" and "(6, 3, 4) is due" in record.text


def test_the_right_reference_passes_and_a_percent_off_does_not(monkeypatch):
    case = workload.complete(Case(**PROBLEMS["residual by both"] | {"api": "jit"}))
    right = workload.build(case)

    def wrong(inputs):
        said = right.reference(inputs)
        return said._replace(derivative=said.derivative * 1.01)

    for made, reason in ((right, None), (dataclasses.replace(right, reference=wrong), "wrong_answer")):
        put(made, monkeypatch)
        worked = attempt.run(Record(case, "failed", HERE), jax.devices()[:1], "cpu", ONCE)
        assert worked.reason == reason
    check._whole.cache_clear()


SECOND_OF = {  # functions of one number whose Hessian, or that times the point, cancels; and one with a wrong rule
    "a norm": lambda x: jnp.sqrt(jnp.sum(x**2)),
    "an identity in disguise": lambda x: jnp.sum(jnp.log(jnp.exp(x))),
    "a line": lambda x: jnp.sum(3 * x),
    "a product": lambda x: x[0] * x[1] * x[2] * x[3],
}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("target", ["hessian", "hvp"])
@pytest.mark.parametrize("name", SECOND_OF)
def test_a_right_hessian_passes_whatever_cancels_and_a_wrong_one_does_not(name, target, dtype, monkeypatch):
    made = Workload(SECOND_OF[name], {"x": uniform(4, low=0.5)}, wrt="x")
    monkeypatch.setattr(workload, "module", lambda _: SimpleNamespace(workload=lambda case: made))
    case = workload.complete(Case("mine", target=target, mode="fwd_over_rev", points=6, api="jit", dtype=dtype))
    built = workload.build(case)
    with jax.enable_x64(dtype == "float64"):
        program = spmd.program(case, built, jax.devices()[:1])
        got = program.collect(program.function(*inputs.place(case, built, program))).copy()
    assert check.verdict(case, built, program.sizes, got, "cpu").reason is None
    got[3].flat[0] += 1e-2
    assert check.verdict(case, built, program.sizes, got, "cpu").reason == "wrong_answer"


def test_a_sum_of_so_many_terms_that_no_digit_is_sure_is_skipped_and_not_called_wrong():
    case = workload.complete(Case("rbf", points=100, mode="jacfwd", api="jit", dtype="bfloat16"))
    record = attempt.run(Record(case, "failed", {"digest": "test"}), jax.devices()[:1], "cpu", ONCE)
    assert (record.status, record.reason, record.seconds) == ("skipped", "no_digits", [])
    assert "100 terms" in record.text
