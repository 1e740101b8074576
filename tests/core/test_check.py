"""Tests of the result check: wrong derivatives, reductions and sparse entries fail, correct ones pass."""

import dataclasses
import functools
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from scaling.checks import computed_reference
from scaling.core import check, inputs, layout, workload
from scaling.core import reference as reference_of_case
from scaling.core.case import Case, Refusal
from scaling.core.derivative import Pattern, describe_derivative
from scaling.core.workload import InputSpec, Reference, Workload, normal, uniform
from scaling.options import coloring
from scaling.study import case_rules
from tests.support.devices import run_once
from tests.support.problems import PROBLEMS

pytestmark = pytest.mark.thin(20, "thorough")


def with_scaled_derivative(function, factor):
    """Return the function with its derivative multiplied by `factor`."""

    @jax.custom_jvp
    def scaled(x):
        return function(x)

    scaled.defjvp(lambda x, v: (function(*x), factor * jax.jvp(function, x, v)[1]))
    return scaled


def zero_input(*shape):
    return InputSpec(shape, lambda _, rows: np.zeros((len(rows), *shape)))


@pytest.fixture(autouse=True)
def clear_cache():
    """Forget the expected results of each test, because the next one gives another workload the same name."""
    yield
    workload.clear_cache()


def use_workload(built, monkeypatch):
    """Let `workload.build` return this workload for every case."""
    workload.clear_cache()
    monkeypatch.setattr(workload, "build", lambda case, *_: built)


def case_of(built, points=6, mode="jacfwd", dtype="float64", **fields):
    """Return a case of this workload, under the name of a built-in one."""
    return Case(
        "poisson", "gradient", points=points, wrt=built.wrt, mode=mode, dtype=dtype, api="jit", **fields
    )


def measure(built, monkeypatch, **fields):
    """Return the record of a case of this workload."""
    use_workload(built, monkeypatch)
    return run_once(case_of(built, **fields))


def check_result(derivative, got):
    """Return the verdict on a result, with the reference of the workload, or a computed one if it has none."""
    return check.verdict(derivative, np.asarray(got), "cpu")


def compute(derivative):
    """Return the result that the program of a case on one device computes."""
    program = layout.lay_out(derivative, jax.devices()[:1])
    return program.collect(program.function(*layout.place_inputs(program))).copy()


def with_reference(derivative, reference):
    """Return the derivative of the same workload with another reference."""
    return dataclasses.replace(
        derivative, workload=dataclasses.replace(derivative.workload, reference=reference)
    )


def with_both_references(derivative):
    """Return the derivative with the closed form of its workload as the reference, and with a computed reference."""
    return derivative, with_reference(derivative, None)


def sines(reference=None):
    """Return a workload of the sine of each of four numbers."""
    return Workload(lambda x: jnp.sin(x), {"x": normal(4)}, wrt="x", reference=reference)


def sums(reference):
    """Return a workload of the sum of four numbers."""
    return Workload(lambda x: jnp.sum(x), {"x": normal(4)}, wrt="x", reference=reference)


@pytest.mark.covering(2)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("constant", [0.0, 1e6, 1e8])
@pytest.mark.parametrize("factor, reason", [(1.0, None), (1.5, "wrong_answer"), (-7.0, "wrong_answer")])
def test_a_large_constant_does_not_hide_a_wrong_derivative(constant, factor, reason, dtype, monkeypatch):
    function = with_scaled_derivative(jnp.sin, factor)
    built = Workload(lambda x: constant + function(x), {"x": normal(4)}, wrt="x")
    assert measure(built, monkeypatch, dtype=dtype).reason == reason


@pytest.mark.parametrize("factor, reason", [(1.0, None), (3.0, "wrong_answer")])
def test_derivatives_at_zero_inputs_are_checked(factor, reason, monkeypatch):
    built = Workload(with_scaled_derivative(jnp.exp, factor), {"x": zero_input(3)}, wrt="x")
    assert measure(built, monkeypatch).reason == reason


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_reference_that_is_not_finite_fails_the_case(value, monkeypatch):
    def reference(inputs):
        derivative = np.cos(inputs["x"])[:, :, None] * np.eye(4)
        derivative[:, 0, 1] = value
        return Reference(np.sin(inputs["x"]), derivative)

    record = measure(sines(reference), monkeypatch)
    assert record.status == "failed" and "not finite" in record.text


def test_a_reference_or_derivative_of_the_wrong_shape_is_not_broadcast(monkeypatch):
    def reference(inputs):
        return Reference(np.sin(inputs["x"]), np.cos(inputs["x"])[:, :, None])

    record = measure(sines(reference), monkeypatch)
    assert record.status == "failed" and "is float64 (6, 4, 1), not float64 (6, 4, 4)" in record.text
    by_hand = {"analytic": lambda x: jnp.ones((x.shape[0], 3, 1), x.dtype)}
    built = Workload(
        lambda x: jnp.sum(x) * jnp.ones(3, x.dtype), {"x": normal(4)}, wrt="x", whole_modes=by_hand
    )
    record = measure(built, monkeypatch, mode="analytic")
    assert record.status == "failed" and "(6, 3, 4) is expected" in record.text


@pytest.mark.parametrize("result", [None, np.ones((6, 4, 4)), (np.ones((6, 4)), np.ones((6, 4, 4)))])
def test_a_reference_of_another_type_fails_the_case_with_the_type(result, monkeypatch):
    record = measure(sines(lambda inputs: result), monkeypatch)
    text = f"the reference returns {type(result).__name__}, not scaling.workload.Reference"
    assert record.status == "failed" and text in record.text


@pytest.mark.parametrize(
    "terms, message",
    [
        (lambda n: np.full(n, np.inf), "derivative_terms is not finite"),
        (lambda n: np.full(n, -1.0), "derivative_terms is negative"),
        (lambda n: np.ones((n, 1, 4)), "derivative_terms is float64 (6, 1, 4), not float64 (6,)"),
    ],
)
def test_terms_of_a_reference_that_would_accept_any_derivative_are_rejected(terms, message, monkeypatch):
    reference = lambda x: Reference(np.zeros((6, 1)), np.zeros((6, 1, 4)), None, terms(6))  # noqa: E731
    record = measure(sums(reference), monkeypatch)
    assert record.status == "failed" and message in record.text


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("mode", ["jacfwd", "value"])
@pytest.mark.parametrize("factor, reason", [(1.0, None), (1.5, "wrong_answer")])
def test_huge_terms_of_a_reference_do_not_hide_a_wrong_result(factor, reason, mode, dtype, monkeypatch):
    def reference(batch):
        x, terms = batch["x"], np.full(6, 1e100)
        return Reference(factor * np.sin(x), factor * np.cos(x)[:, :, None] * np.eye(4), terms, terms)

    record = measure(sines(reference), monkeypatch, mode=mode, dtype=dtype)
    assert record.reason == reason, record.text


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("slope, terms, reason", [
    (0.0, np.exp, None), (0.01, np.exp, "wrong_answer"), (0.01, lambda x: 1e100 + 0 * x, "wrong_answer"),
])  # fmt: skip
def test_a_zero_derivative_is_compared_relative_to_its_terms(slope, terms, reason, dtype, monkeypatch):
    function = lambda x: jnp.exp(x) - jnp.exp(x / 2) ** 2 + slope * x  # noqa: E731

    def reference(batch):
        return Reference(0 * batch["x"], np.zeros((6, 4, 4)), derivative_terms=terms(batch["x"]).max(axis=1))

    built = Workload(function, {"x": normal(4)}, wrt="x", reference=reference)
    record = measure(built, monkeypatch, mode="jacfwd", dtype=dtype)
    assert record.reason == reason, record.text


@pytest.mark.parametrize("dtype", [object, complex, str])
def test_a_reference_of_a_dtype_that_is_not_real_fails_the_case_with_the_dtype(dtype, monkeypatch):
    reference = lambda x: Reference(np.zeros((6, 1)), np.ones((6, 1, 4)).astype(dtype))  # noqa: E731
    record = measure(sums(reference), monkeypatch)
    text = f"the reference's derivative is {np.ones(1).astype(dtype).dtype} (6, 1, 4), not float64 (6, 1, 4)"
    assert (record.reason, record.text) == ("error", text)


def test_a_value_of_a_reference_that_is_not_finite_is_reported_with_its_point(monkeypatch):
    derivative = np.where(np.arange(6)[:, None, None] == 4, np.nan, np.ones((6, 1, 4)))
    reference = lambda x: Reference(np.zeros((6, 1)), derivative)  # noqa: E731
    record = measure(sums(reference), monkeypatch)
    assert record.text == "the reference's derivative is not finite at point 4"


def test_a_reference_may_have_infinite_values_if_only_the_derivative_is_compared(monkeypatch):
    reference = lambda x: Reference(np.full((6, 4), -np.inf), np.tile(np.eye(4), (6, 1, 1)))  # noqa: E731
    built = Workload(lambda x: x - jnp.inf, {"x": normal(4)}, wrt="x", reference=reference)
    assert measure(built, monkeypatch).reason is None


@pytest.mark.parametrize("slope, reason", [(1.0, "no_digits"), (0.0, "no_digits"), (1e12, "wrong_answer")])
def test_a_derivative_that_is_too_small_for_its_dtype_is_undecided(slope, reason, monkeypatch):
    by_hand = {"analytic": lambda x: slope * jnp.full((6, 1, 4), 1e-36, x.dtype)}
    built = Workload(lambda x: 1e-36 * jnp.sum(x), {"x": normal(4)}, wrt="x", whole_modes=by_hand)
    assert measure(built, monkeypatch, mode="analytic", dtype="float32").reason == reason


@pytest.mark.parametrize("reduction", [None, "outputs", "points"])
@pytest.mark.parametrize("slope, reason", [(1.0, None), (1.001, "wrong_answer"), (0.0, "wrong_answer")])
def test_a_large_derivative_by_one_input_does_not_hide_an_error_by_another(
    slope, reason, reduction, monkeypatch
):
    def by_hand(x, a, b):
        small = 1e-5 * slope * jnp.stack([x, jnp.sin(x) * x], axis=1)
        J = jnp.stack([jnp.stack([x, x], axis=1), small], axis=2)
        return {None: J, "outputs": J.sum(axis=1, keepdims=True), "points": J.sum(axis=(0, 1))}[reduction]

    function = lambda x, a, b: jnp.stack([a * x + 1e-5 * b * x, a * x + 1e-5 * b * jnp.sin(x) * x])  # noqa: E731
    built = Workload(
        function, {"x": normal(mean=3.0)}, {"a": normal(), "b": normal()}, wrt="a+b", reduce=reduction,
        whole_modes={"analytic": by_hand},
    )  # fmt: skip
    record = measure(built, monkeypatch, mode="analytic", dtype="float32")
    assert record.reason == reason, record.text


def test_a_reference_that_is_one_percent_off_fails_the_case(monkeypatch):
    case = case_rules.complete(Case(**PROBLEMS["residual by both"] | {"api": "jit"}))
    right = workload.build(case)

    def wrong(inputs):
        correct = right.reference(inputs)
        return correct._replace(derivative=correct.derivative * 1.01)

    for built, reason in ((right, None), (dataclasses.replace(right, reference=wrong), "wrong_answer")):
        use_workload(built, monkeypatch)
        assert run_once(case).reason == reason


SCALAR_FUNCTIONS = {  # whose Hessian, or its product with the point, cancels
    "norm": lambda x: jnp.sqrt(jnp.sum(x**2)),
    "log of exp": lambda x: jnp.sum(jnp.log(jnp.exp(x))),
    "linear": lambda x: jnp.sum(3 * x),
    "product": lambda x: x[0] * x[1] * x[2] * x[3],
}


@pytest.mark.covering(2)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("target", ["hessian", "hvp", "laplacian"])
@pytest.mark.parametrize("name", SCALAR_FUNCTIONS)
def test_a_correct_hessian_passes_despite_cancellation_and_a_wrong_one_fails(
    name, target, dtype, monkeypatch
):
    custom = Workload(SCALAR_FUNCTIONS[name], {"x": uniform(4, low=0.5)}, wrt="x")
    monkeypatch.setattr(
        workload, "import_workload", lambda _: SimpleNamespace(workload=lambda case, *_: custom)
    )
    case = case_rules.complete(
        Case("mine", target=target, mode="fwd_over_rev", points=6, api="jit", dtype=dtype)
    )
    built = workload.build(case)
    with jax.enable_x64(dtype == "float64"):
        derivative = describe_derivative(case, built)
        got = compute(derivative)
    assert check_result(derivative, got).reason is None
    got[3].flat[0] += 1e-2
    assert check_result(derivative, got).reason == "wrong_answer"


@pytest.mark.parametrize("factor, reason", [(1.0, None), (1.22, "no_digits"), (1.5, "wrong_answer")])
def test_an_error_that_rounding_may_cause_proves_nothing_if_it_is_large_and_no_error_proves_all(
    factor, reason
):
    case = case_rules.complete(
        Case("linear", sizes={"p": 64, "o": 2}, points=3, mode="jacrev", dtype="bfloat16")
    )
    built = workload.build(case)
    derivative = describe_derivative(case, built)
    got = factor * np.asarray(reduce("outputs", *jacobian(case, built)), np.float64)
    assert check_result(derivative, got).reason == reason


def test_entries_that_underflow_are_right_among_larger_ones():
    case = case_rules.complete(Case("residual", points=64, wrt="m", api="jit", dtype="float32"))
    assert run_once(case).status == "ok"  # far from the mean the derivative is below the smallest float32


@pytest.mark.default
@pytest.mark.parametrize("limit", [2**24, 1000])
def test_more_rounded_entries_than_fit_in_memory_are_evaluated_again_in_parts(limit, monkeypatch):
    monkeypatch.setattr(check, "_MAX_SUSPECT_ELEMENTS", limit)
    case = case_rules.complete(
        Case("residual", points=4000, wrt="m", mode="jacfwd", api="jit", dtype="float32")
    )
    derivative = describe_derivative(case, workload.build(case))
    got = compute(derivative)
    assert len(list(reference_of_case.point_ranges(reference_of_case.reference_spec(derivative, "cpu")))) == 3
    verdict = check_result(derivative, got)
    assert verdict.reason is None and verdict.tolerance > 1e-5  # rounding explains the largest error
    got[3900] *= 1.01
    verdict = check_result(derivative, got)
    assert verdict.reason == "wrong_answer" and "point 3900 is wrong" in verdict.text


def alternating_sum(points):
    """Return a case, its workload, and the terms of its result: a sum over points of terms of both signs."""

    def reference(batch):
        x, w = batch["x"][:, None], batch["w"]
        return Reference(np.sin(x * w), (x * np.cos(x * w))[:, :, None])

    built = Workload(
        lambda x, w: jnp.sin(x * w),
        {"x": normal()},
        {"w": normal()},
        "w",
        reduce="points",
        reference=reference,
    )
    case = case_of(built, points, mode="jacrev", dtype="float32")
    return case, built, built.reference(inputs.exact_inputs(case, built, 0, points)).derivative


@pytest.mark.parametrize("points", [2**12, 2**16])
def test_a_sum_over_many_points_of_both_signs_is_accepted_in_any_order_and_refused_without_a_part(points):
    case, built, terms = alternating_sum(points)
    derivative, single = describe_derivative(case, built), terms.astype(np.float32)
    one_by_one = np.cumsum(single, axis=0, dtype=np.float32)[-1:]
    lanes = single.reshape(8, -1, 1, 1).transpose(1, 0, 2, 3).cumsum(axis=0, dtype=np.float32)[-1].sum(axis=0)
    for right in (one_by_one, lanes[None], np.concatenate([one_by_one, one_by_one])):
        assert check_result(derivative, right).reason is None
    for wrong in (one_by_one * 1.01, one_by_one - single[-points // 64 :].sum(axis=0)):
        assert check_result(derivative, wrong).reason == "wrong_answer"


@pytest.mark.default
def test_the_inputs_of_each_range_of_points_are_drawn_once_to_check_a_right_result(monkeypatch):
    def reference(batch):
        return Reference(batch["x"] ** 2, 2 * batch["x"][:, :, None] * np.eye(4))

    built = Workload(lambda x: x**2, {"x": normal(4)}, wrt="x", reference=reference)
    case = case_of(built)
    right = reference(inputs.exact_inputs(case, built, 0, 6)).derivative
    drawn, draw = [], inputs.draw_rows
    monkeypatch.setattr(inputs, "draw_rows", lambda *words: drawn.append(words[-2:]) or draw(*words))
    monkeypatch.setattr(reference_of_case, "_RANGE_ELEMENTS", 2 * 20)
    assert check_result(describe_derivative(case, built), right).reason is None
    workload.clear_cache()
    assert drawn == [(0, 2), (2, 4), (4, 6)]


# Reductions of a Jacobian.

REDUCTIONS = ("outputs", "inputs", "vector", "norm", "gram")
REDUCED_PROBLEMS = ("rbf in three dimensions", "linear by both", "residual by both", "poisson")


def jacobian(case, built):
    """Return the Jacobians (points, outputs, inputs) and the inputs (points, inputs), both in the dtype of the case."""
    rows = {name: jnp.asarray(inputs.point_rows(case, built, name, 0, case.points)) for name in built.points}
    shared = {name: jnp.asarray(inputs.shared_input(case, built, name)) for name in built.shared}

    def at_point(point):
        arguments = {**point, **shared}
        x = [arguments[name] for name in built.names]
        f = lambda *z: jnp.ravel(built.function(**{**arguments, **dict(zip(built.names, z, strict=True))}))  # noqa: E731
        blocks = jax.jacfwd(f, argnums=tuple(range(len(x))))(*x)
        joined = jnp.concatenate([block.reshape(block.shape[0], -1) for block in blocks], axis=1)
        return joined, jnp.concatenate([a.reshape(-1) for a in x])

    return jax.jit(jax.vmap(at_point))(rows)


def reduce(reduction, J, x):
    """Return the reduction of J in its dtype, in the shape of the result of a mode."""
    if reduction == "gram":
        return jnp.einsum("poa,pob->pab", J, J)
    if reduction == "norm":
        return jnp.sum(J**2, axis=(1, 2))[:, None, None]
    if reduction == "vector":
        return jnp.einsum("poa,pa->po", J, x)[:, :, None]
    if reduction == "points":
        return jnp.sum(J, axis=(0, 1))[None, None]
    return J if reduction is None else jnp.sum(J, axis={"outputs": 1, "inputs": 2}[reduction], keepdims=True)


def problem(name, **fields):
    """Return a completed case, its workload and its derivative."""
    case = case_rules.complete(Case(**PROBLEMS[name] | {"api": "jit", "mode": "jacfwd"} | fields))
    built = workload.build(case)
    return case, built, describe_derivative(case, built)


@pytest.mark.covering(1)
@pytest.mark.parametrize("reference", ["closed form", "computed"])
@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("name", REDUCED_PROBLEMS)
def test_a_correct_reduction_passes_and_an_entry_off_by_a_thousandth_fails(name, reduction, reference):
    dtype = "float32" if (REDUCED_PROBLEMS.index(name) + REDUCTIONS.index(reduction)) % 2 else "float64"
    with jax.enable_x64(dtype == "float64"):
        case, built, derivative = problem(name, reduce=reduction, dtype=dtype)
        J, x = jacobian(case, built)
        got = np.asarray(reduce(reduction, J, x))
    if reference == "computed":
        derivative = with_reference(derivative, None)
    verdict = check_result(derivative, got)
    assert verdict.reason is None and verdict.error < (1e-6 if reference == "closed form" else 1e-3), verdict
    if name == "poisson" and dtype == "float32" and reference != "closed form":
        return  # lgamma and digamma in float32 have fewer digits than this
    J, x = np.array(J, np.float64), np.asarray(x, np.float64)
    point = case.points - 2
    # Change the entry with the largest influence on the result.
    influence = np.abs(J[point] * x[point]) if reduction == "vector" else np.abs(J[point])
    J[point].flat[influence.argmax()] *= 1.001
    verdict = check_result(derivative, reduce(reduction, jnp.asarray(J, np.float64), x))
    assert verdict.reason == "wrong_answer" and f"point {point} is wrong" in verdict.text


@pytest.mark.covering(1)
@pytest.mark.parametrize("reduction", [None, *REDUCTIONS, "points"])
@pytest.mark.parametrize("factor, reason", [(1.0, None), (1.01, "wrong_answer"), (-7.0, "wrong_answer")])
def test_a_wrong_derivative_rule_is_detected_in_every_reduction(factor, reason, reduction, monkeypatch):
    f = with_scaled_derivative(lambda z: jnp.stack([jnp.sin(z[0]) * z[1], z[2] ** 2 + jnp.exp(z[0])]), factor)
    points, shared = {"x": normal(3)}, {"w": normal(3)}
    built = Workload(
        lambda x, w: f(x * w), points, shared, wrt="w" if reduction == "points" else "x", reduce=reduction
    )
    for mode in ("jacfwd", "jacrev"):
        record = measure(built, monkeypatch, mode=mode)
        assert record.reason == reason, record.text


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("factor, reason", [(1.0, None), (1.5, "wrong_answer")])
def test_a_large_constant_does_not_hide_a_wrong_reduction(factor, reason, reduction, monkeypatch):
    f = with_scaled_derivative(jnp.sin, factor)
    built = Workload(lambda x: 1e8 + f(x), {"x": normal(4)}, wrt="x", reduce=reduction)
    record = measure(built, monkeypatch)
    assert record.reason == reason, record.text


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_the_check_does_not_step_outside_the_domain_of_the_function(reduction, monkeypatch):
    def near_zero(generator, rows):
        return np.where(np.arange(5) == 2, 5e-5, generator.uniform(0.2, 1.0, (len(rows), 5)))

    built = Workload(
        lambda x: jnp.log(x) + jnp.sqrt(x), {"x": InputSpec((5,), near_zero)}, wrt="x", reduce=reduction
    )
    record = measure(built, monkeypatch)
    assert record.reason is None, record.text


@pytest.mark.parametrize("factor, reason", [(1.0, None), (1.5, "wrong_answer")])
def test_a_zero_input_does_not_shorten_the_step_until_a_constant_hides_errors(factor, reason, monkeypatch):
    f = with_scaled_derivative(jnp.sin, factor)
    draw = InputSpec((4,), lambda generator, rows: generator.standard_normal((len(rows), 4)) * [1, 0, 1, 1])
    record = measure(Workload(lambda x: 3e8 + f(x), {"x": draw}, wrt="x", reduce="inputs"), monkeypatch)
    assert record.reason == reason, record.text


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_a_zero_jacobian_passes_and_any_other_result_fails(reduction, monkeypatch):
    zero = lambda batch: Reference(np.zeros((len(batch["x"]), 3)), np.zeros((len(batch["x"]), 3, 4)))  # noqa: E731
    got = reduce(reduction, jnp.zeros((6, 3, 4)), np.ones((6, 4)))
    for reference in (zero, None):
        built = Workload(
            lambda x: 0 * x[:3], {"x": normal(4)}, wrt="x", reduce=reduction, reference=reference
        )
        derivative = describe_derivative(case_of(built), built)
        use_workload(built, monkeypatch)
        assert check_result(derivative, got).reason is None
        assert check_result(derivative, got + 1e-3).reason == "wrong_answer"


@pytest.mark.parametrize("reduction", [*REDUCTIONS, "points"])
def test_a_finite_difference_may_have_its_truncation_error_and_no_more(reduction):
    fields = {"mode": "finite_difference", "reduce": reduction, "dtype": "float64"}
    case, built, derivative = problem(
        "linear by W" if reduction == "points" else "rbf in three dimensions", **fields
    )
    with jax.enable_x64(True):
        got = compute(describe_derivative(case, built))
    wrong = got.copy()
    wrong[-1].flat[np.abs(wrong[-1]).argmax()] *= 1.01
    for candidate in with_both_references(derivative):
        verdict = check_result(candidate, got)
        assert verdict.reason is None and 1e-12 < verdict.tolerance < 1e-4, verdict
        assert check_result(candidate, wrong).reason == "wrong_answer"


WEIGHTS = np.random.default_rng(0).uniform(0.3, 0.6, (7, 5))


@pytest.mark.parametrize("reference", ["closed form", "computed"])
@pytest.mark.parametrize("reduction", [None, *REDUCTIONS, "points"])
def test_the_bound_covers_truncation_errors_that_all_have_the_same_sign(reduction, reference, monkeypatch):
    value = lambda x: np.exp(x @ WEIGHTS.T)  # noqa: E731
    closed = lambda batch: Reference(value(z := batch["x"] + batch["w"]), value(z)[:, :, None] * WEIGHTS)  # noqa: E731
    built = Workload(
        lambda x, w: jnp.exp(WEIGHTS @ (x + w)), {"x": uniform(5, low=0.5)}, {"w": uniform(5, low=0.5)}, reduce=reduction,
        wrt="w" if reduction == "points" else "x", reference=closed if reference == "closed form" else None,
    )  # fmt: skip
    use_workload(built, monkeypatch)
    case = case_of(built, mode="finite_difference")
    batch, step = inputs.exact_inputs(case, built, 0, 6), 1e-6
    z = batch["x"] + batch["w"]
    J = np.stack([(value(z + step * row) - value(z)) / step for row in np.eye(5)], axis=2)
    got = reduce(reduction, J, batch["x"])
    if (
        reduction == "vector"
    ):  # one difference along the point itself, which includes mixed second derivatives
        got = ((value(z + step * batch["x"]) - value(z)) / step)[:, :, None]
    got, derivative = np.asarray(got, np.float64), describe_derivative(case, built)
    verdict = check_result(derivative, got)
    assert verdict.reason is None and 1e-8 < verdict.error < verdict.tolerance < 1e-4, verdict
    assert check_result(derivative, got * 1.001).reason == "wrong_answer"


@pytest.mark.default
@pytest.mark.parametrize("factor, reason", [(1.0, None), (1.001, "wrong_answer")])
def test_a_large_output_does_not_hide_a_wrong_value_of_another_in_a_closed_form(factor, reason, monkeypatch):
    def reference(inputs):
        x = inputs["x"]
        return Reference(np.stack([np.sin(x[:, 0]), 1e-8 * factor * np.sum(x**2, axis=1)], axis=1), None)

    function = lambda x: jnp.stack([jnp.sin(x[0]), 1e-8 * (x @ x)])  # noqa: E731
    built = Workload(function, {"x": normal(3)}, wrt="x", reference=reference)
    record = measure(built, monkeypatch, mode="value", dtype="float32")
    assert record.reason == reason, record.text


# A sum over points.


@pytest.mark.parametrize("reference", ["closed form", "computed"])
@pytest.mark.parametrize("mode", ["jacfwd", "value"])
def test_every_copy_and_every_block_of_a_sum_over_points_is_checked(mode, reference, monkeypatch):
    case, built, derivative = problem("linear by W", reduce="points", points=13, mode=mode, dtype="float64")
    if reference == "computed":
        derivative = with_reference(derivative, None)
    with jax.enable_x64(True):
        batch = inputs.exact_inputs(case, built, 0, 13)
        J = jacobian(*problem("linear by W", reduce="whole", points=13, dtype="float64")[:2])[0]
        value = np.sum(batch["X"] @ batch["W"]).reshape(1, 1, 1)
        right = value if mode == "value" else np.asarray(reduce("points", J, None))
    verdicts = {}
    for range_elements in (2**16, 20):  # all points at once, or one at a time
        monkeypatch.setattr(reference_of_case, "_RANGE_ELEMENTS", range_elements)
        verdicts[range_elements] = check_result(derivative, np.repeat(right, 3, axis=0))
        assert verdicts[range_elements].reason is None
        for copy in range(3):
            wrong = np.repeat(right, 3, axis=0)
            wrong[copy].flat[0] *= 1.0001
            rejection = check_result(derivative, wrong)
            assert rejection.reason == "wrong_answer" and f"copy {copy} is wrong" in rejection.text
    spec = reference_of_case.reference_spec(derivative, "cpu")
    assert len(list(reference_of_case.point_ranges(spec))) == 13
    assert abs(verdicts[20].error - verdicts[2**16].error) < 1e-9


def test_a_sum_over_points_that_omits_a_point_is_a_wrong_answer():
    _, _, derivative = problem("linear by W", reduce="points", points=13)
    J = np.array(jacobian(*problem("linear by W", reduce="whole", points=13)[:2])[0])
    for candidate in with_both_references(derivative):
        for summed, reason in ((J, None), (J[1:], "wrong_answer")):
            assert check_result(candidate, reduce("points", summed, None)).reason == reason


@pytest.mark.parametrize("reduction", [None, *REDUCTIONS, "points", "value"])
def test_a_result_of_the_wrong_shape_is_rejected_and_not_broadcast(reduction):
    mode = "value" if reduction == "value" else "jacfwd"
    name = "linear by W" if reduction in ("points", "value") else "linear by both"
    reduce_ = "whole" if reduction in (None, "value") else reduction
    _, _, derivative = problem(name, points=3, mode=mode, reduce=reduce_)
    o, k = derivative.outputs, derivative.inputs
    shapes = {
        None: (3, o, k),
        "outputs": (3, 1, k),
        "norm": (3, 1, 1),
        "gram": (3, k, k),
        "points": (1, 1, k),
    }
    expected = _, *of_point = shapes.get(reduction, (3, o, 1))
    wrong_shapes = {*((n, *of_point) for n in range(3)), (3, 1, 1), (3, *of_point, 1), (3, *of_point[::-1])}
    for candidate in with_both_references(derivative):
        check_result(candidate, np.zeros(expected))
        for wrong in wrong_shapes - {expected}:
            if reduction == "points" and wrong[1:] == expected[1:] and wrong[0]:
                continue  # several copies of the sum
            with pytest.raises(Refusal, match="the result has the shape"):
                check_result(candidate, np.zeros(wrong))


def test_the_first_point_or_copy_that_is_not_finite_is_named():
    for reduction, unit, count in (("gram", "point", 13), ("points", "copy", 4)):
        _, _, derivative = problem("linear by W", reduce=reduction, points=13, sizes={"p": 3, "o": 2})
        right = np.zeros((count, 1 if reduction == "points" else 6, 6))
        for index in range(count):
            for value in (np.nan, np.inf):
                wrong = right.copy()
                wrong[index].flat[-1] = wrong[-1].flat[2] = value
                verdict, text = check_result(derivative, wrong), f"the result is not finite at {unit} {index}"
                assert (verdict.reason, verdict.text) == ("not_finite", text)


def test_a_finite_difference_that_is_not_finite_has_no_digits():
    _, _, derivative = problem("linear by W", points=3, sizes={"p": 3, "o": 2}, mode="finite_difference")
    verdict = check_result(derivative, np.full(derivative.result_shape, np.inf))
    assert (verdict.reason, verdict.text) == ("no_digits", "the result is not finite at point 0")


@pytest.mark.parametrize("mode", ["jacfwd", "value"])
def test_a_sum_over_too_many_points_for_its_dtype_has_no_digits(mode):
    _, _, derivative = problem("linear by W", reduce="points", points=5000, dtype="bfloat16", mode=mode)
    got = np.zeros((1, 1, 1 if mode == "value" else derivative.inputs))
    for candidate in with_both_references(derivative):
        assert check_result(candidate, got).reason == "no_digits"


def test_cases_of_one_problem_share_the_programs_that_evaluate_entries_again():
    evaluated = []
    for fields in ({}, {"mode": "jacrev", "chunk": 2}, {"points": 7}):
        derivative = problem("residual by m", **fields)[2]
        evaluated.append(
            computed_reference.native_evaluation(reference_of_case.reference_spec(derivative, "cpu"))
        )
    assert evaluated[0] is evaluated[1] is not evaluated[2]


def test_the_expected_result_is_computed_once_for_all_methods_of_a_reduction(monkeypatch):
    case, built, derivative = problem("rbf in three dimensions", reduce="norm", dtype="float64")
    calls = SimpleNamespace(count=0)

    def reference(batch):
        calls.count += 1
        return built.reference(batch)

    counted = with_reference(derivative, reference)
    methods = [
        {},
        {"mode": "jacrev", "split": "both", "mesh": "2x4", "devices": 8, "api": "shard_map"},
        {"chunk": "auto", "memory_limit": 10**9},
        {"block": 2, "storage": "host"},
        {"mode": "jacrev", "remat": "nothing_saveable"},
        {"mode": "mixed", "forward": "x"},
        {"overlap": True, "precision": "default", "cache": "cold", "batch": "whole", "jit": False},
    ]
    with jax.enable_x64(True):
        J, x = jacobian(case, built)
    got = reduce("norm", J, x)
    for method in methods:
        derivative = dataclasses.replace(counted, case=dataclasses.replace(case, **method))
        assert check_result(derivative, got).reason is None
    assert calls.count == 1
    for reduction in (None, *REDUCTIONS):
        _, _, derivative = problem("rbf in three dimensions", reduce=reduction or "whole", dtype="float64")
        assert check_result(derivative, reduce(reduction, J, x)).reason is None


# Colored seeds: the entries of a sparsity pattern.

CHAIN = (6, 9)  # outputs, inputs


def chain(has_nonzeros=True, has_dense_reference=False):
    """Return the workload f_o = sin(x_o) x_{o+2} + (x_8^2 if o is even), whose pattern is not square and differs by row."""
    outputs, n = CHAIN
    even = np.arange(outputs) % 2 == 0
    rows, cols = np.nonzero(chain_pattern())
    function = lambda x: jnp.sin(x[:outputs]) * x[2 : outputs + 2] + jnp.where(even, x[8] ** 2, 0.0)  # noqa: E731

    def entries(x):
        J = np.zeros((len(x), outputs, n))
        o = np.arange(outputs)
        J[:, o, o], J[:, o, o + 2] = np.cos(x[:, :outputs]) * x[:, 2 : outputs + 2], np.sin(x[:, :outputs])
        J[:, :, 8] += np.where(even, 2 * x[:, 8:], 0.0)
        return J

    def value(x):
        return np.sin(x[:, :outputs]) * x[:, 2 : outputs + 2] + np.where(even, x[:, 8:] ** 2, 0.0)

    dense = lambda batch: Reference(value(batch["x"]), entries(batch["x"]))  # noqa: E731
    nonzeros = lambda batch: Reference(value(batch["x"]), entries(batch["x"])[:, rows, cols][:, None])  # noqa: E731
    pattern = lambda: (rows.astype(np.int32), cols.astype(np.int32))  # noqa: E731
    sparse = {"nonzeros": nonzeros, "pattern": pattern} if has_nonzeros else {}
    reference = dense if has_dense_reference else None
    return Workload(function, {"x": normal(n, mean=1.0)}, wrt="x", reference=reference, **sparse)


def chain_pattern():
    mask = np.zeros(CHAIN, bool)
    o = np.arange(CHAIN[0])
    mask[o, o] = mask[o, o + 2] = mask[::2, 8] = True
    return mask


@functools.cache
def dense_chain_jacobian(case):
    return jacobian(case, chain())[0]


def chain_case(mode, dtype="float64"):
    """Return the case of the Jacobian of `chain` from colored seeds."""
    return case_of(chain(), 7, mode=mode, dtype=dtype, seeds="colored")


def color_chain(case, built, mask, compressed):
    """Return the derivative of `chain` from seeds that color a pattern."""
    pattern = Pattern(*(indices.astype(np.int32) for indices in np.nonzero(mask)), *CHAIN)
    return dataclasses.replace(
        describe_derivative(case, built), coloring=coloring.color_pattern(pattern, compressed)
    )


def check_chain(built, mask, perturb=lambda J: J, dtype="float64"):
    """Return the verdict on the entries of the Jacobian of `chain` where the mask is true."""
    case = chain_case(mode="jacrev", dtype=dtype)
    with jax.enable_x64(dtype == "float64"):
        J = perturb(np.array(dense_chain_jacobian(case)))
        with pytest.MonkeyPatch.context() as monkeypatch:
            use_workload(built, monkeypatch)
            return check_result(color_chain(case, built, mask, "rows"), J[:, *np.nonzero(mask)][:, None])


REFERENCES = {"nonzeros": (True, False), "dense": (False, True), "both": (True, True), "none": (False, False)}


@pytest.mark.parametrize("reference", REFERENCES)
def test_entries_of_a_pattern_are_checked_and_missing_entries_count_as_zero(reference):
    built, mask = chain(*REFERENCES[reference]), chain_pattern()
    for dtype in ("float32", "float64"):
        assert check_chain(built, mask, dtype=dtype).reason is None
    extended = mask.copy()
    extended[2, 3] = extended[5, 0] = extended[0, 1] = True
    assert check_chain(built, extended).reason is None
    for index in zip(*np.nonzero(mask), strict=True):
        incomplete = mask.copy()
        incomplete[index] = False
        verdict = check_chain(built, incomplete)
        assert verdict.reason == "wrong_answer", index
        assert ("the pattern lacks 1" in verdict.text) == (reference in ("nonzeros", "both"))

        def scale_entry(J, index=index):
            J[(3, *index)] *= 1.001
            return J

        verdict = check_chain(built, mask, scale_entry)
        assert verdict.reason == "wrong_answer" and "point 3 is wrong" in verdict.text, index

    def change_zero(J):
        J[5, 2, 3] = 1e-3
        return J

    assert check_chain(built, extended, change_zero).reason == "wrong_answer"
    assert check_chain(built, np.ones(CHAIN, bool)).reason is None


@pytest.mark.parametrize("reference", REFERENCES)
def test_colored_finite_differences_may_have_their_truncation_error_and_no_more(reference, monkeypatch):
    built, case = chain(*REFERENCES[reference]), chain_case(mode="finite_difference")
    x, step = inputs.exact_inputs(case, built, 0, 7)["x"], 1e-6
    f = lambda x: chain().nonzeros({"x": x}).value  # noqa: E731
    J = np.stack([(f(x + step * row) - f(x)) / step for row in np.eye(CHAIN[1])], axis=2)
    got = J[:, *np.nonzero(chain_pattern())][:, None]
    use_workload(built, monkeypatch)
    colored = color_chain(case, built, chain_pattern(), "columns")
    verdict = check_result(colored, got)
    assert verdict.reason is None and 1e-9 < verdict.error < verdict.tolerance < 1e-4
    assert check_result(colored, got * 1.001).reason == "wrong_answer"


def test_an_analytic_sparse_derivative_is_checked_on_the_pattern_of_the_workload(monkeypatch):
    built, case = chain(), chain_case(mode="analytic")
    with jax.enable_x64(True):
        derivative = describe_derivative(case, built)
        got = built.nonzeros(inputs.exact_inputs(case, built, 0, 7)).derivative
    use_workload(built, monkeypatch)
    assert check_result(derivative, got).reason is None
    assert check_result(derivative, got * 1.001).reason == "wrong_answer"
    workload.clear_cache()
    with pytest.raises(Refusal, match="has no pattern"):
        check_result(dataclasses.replace(derivative, workload=chain(False, True)), got)


@pytest.mark.default
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("has_dense_reference", [False, True])
@pytest.mark.parametrize("missing, reason", [(None, None), (4, "wrong_answer"), (14, "wrong_answer")])
def test_a_nonzero_that_the_pattern_the_nonzeros_and_the_mode_by_hand_lack_is_found(
    missing, reason, has_dense_reference, dtype, monkeypatch
):
    whole = chain(True, has_dense_reference)
    kept = np.arange(len(whole.pattern()[0])) != missing

    def nonzeros(batch):
        known = whole.nonzeros(batch)
        return known._replace(derivative=known.derivative[..., kept])

    def by_hand(x):
        J = jax.vmap(jax.jacfwd(whole.function))(x)
        return J[:, *whole.pattern()][:, kept]

    pattern = lambda: tuple(indices[kept] for indices in whole.pattern())  # noqa: E731
    built = dataclasses.replace(whole, pattern=pattern, nonzeros=nonzeros, whole_modes={"analytic": by_hand})
    record = measure(built, monkeypatch, mode="analytic", seeds="colored", dtype=dtype)
    assert record.reason == reason, record.text


@pytest.mark.default
@pytest.mark.parametrize("least", [-np.inf, 2.0])  # of the inputs with a wrong derivative
@pytest.mark.parametrize("factor, reason", [(1.0, None), (1.01, "wrong_answer")])
def test_an_error_that_the_reference_and_the_mode_by_hand_share_is_found(factor, reason, least, monkeypatch):
    slope = lambda xp, x: xp.where(x > least, factor, 1.0) * xp.cos(x)  # noqa: E731
    reference = lambda x: Reference(np.sin(x["x"]), slope(np, x["x"])[:, :, None] * np.eye(4))  # noqa: E731
    by_hand = {"analytic": lambda x: slope(jnp, x)[:, :, None] * jnp.eye(4)}
    built = dataclasses.replace(sines(reference), whole_modes=by_hand)
    record = measure(built, monkeypatch, points=100, mode="analytic")
    assert record.reason == reason, record.text


def zero_of_integers(x):
    """Return 0, and raise an error if x is not an integer."""

    def read(y):
        if np.any(y != np.round(y)):
            raise ValueError("not an integer")
        return np.zeros_like(y)

    return jax.pure_callback(read, jax.ShapeDtypeStruct(x.shape, x.dtype), x, vmap_method="sequential")


def sine_of_integers(x):
    """Return sin(x), whose values and derivatives exist only at integers."""
    sine = jax.custom_jvp(lambda x: jnp.sin(x) + zero_of_integers(x))
    sine.defjvp(lambda x, v: (sine(*x), (jnp.cos(x[0]) + zero_of_integers(x[0])) * v[0]))
    return sine(x)


RIGHT_FORMS = {  # the function, and its derivative by hand; JAX computes another derivative, or none
    "kink": (lambda x: jnp.maximum(x, 0.0), lambda xp, x: xp.where(x >= 0, 1.0, 0.0)),
    "wrong rule": (with_scaled_derivative(jnp.sin, 1.5), lambda xp, x: xp.cos(x)),
    "stop_gradient": (lambda x: jnp.sin(jax.lax.stop_gradient(x)), lambda xp, x: xp.cos(x)),
    "no rounded inputs": (sine_of_integers, lambda xp, x: xp.cos(x)),
}


@pytest.mark.default
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", RIGHT_FORMS)
def test_a_right_closed_form_that_jax_contradicts_is_not_refused(name, dtype, monkeypatch):
    function, slope = RIGHT_FORMS[name]
    integers = InputSpec((3,), lambda generator, rows: np.tile([0.0, 1.0, -2.0], (len(rows), 1)))
    values = (lambda x: np.maximum(x, 0.0)) if name == "kink" else np.sin
    reference = lambda x: Reference(values(x["x"]), slope(np, x["x"])[:, :, None] * np.eye(3))  # noqa: E731
    by_hand = lambda x: slope(jnp, x)[:, :, None] * jnp.eye(3, dtype=x.dtype)  # noqa: E731
    built = Workload(
        function, {"x": integers}, wrt="x", reference=reference, whole_modes={"analytic": by_hand}
    )
    record = measure(built, monkeypatch, mode="analytic", dtype=dtype)
    assert record.status == "ok", record.text


@pytest.mark.parametrize("dense", [False, True])
@pytest.mark.parametrize("reduction", [None, *REDUCTIONS, "value"])
def test_known_nonzeros_are_reduced_without_a_dense_reference(reduction, dense, monkeypatch):
    is_value = reduction == "value"
    built = dataclasses.replace(chain(True, dense), reduce=None if is_value else reduction)
    case = case_of(built, 7, mode="value" if is_value else "jacfwd")
    with jax.enable_x64(True):
        derivative = describe_derivative(case, built)
        if is_value:
            got = built.nonzeros(inputs.exact_inputs(case, built, 0, 7)).value[:, :, None]
        else:
            got = reduce(reduction, *jacobian(case, built))
    if dense and reduction not in (None, "gram"):
        derivative = with_reference(derivative, lambda batch: pytest.fail("the dense reference is called"))
    use_workload(derivative.workload, monkeypatch)
    assert check_result(derivative, got).reason is None
    wrong = np.array(got)
    wrong[4].flat[0] += 1e-3
    assert check_result(derivative, wrong).reason == "wrong_answer"


def test_a_dense_result_is_checked_in_short_ranges_of_points_even_if_only_its_nonzeros_are_known():
    ranges = {}
    for name in ("nonzeros", "dense"):
        case = dataclasses.replace(chain_case(mode="jacfwd"), seeds="identity", points=10_000)
        spec = reference_of_case.reference_spec(describe_derivative(case, chain(*REFERENCES[name])), "cpu")
        ranges[name] = list(reference_of_case.point_ranges(spec))
    assert ranges["nonzeros"] == ranges["dense"]


@pytest.mark.parametrize("defect", ["wrong shape", "not finite"])
def test_nonzeros_of_the_wrong_shape_or_not_finite_are_rejected(defect):
    built = chain()

    def defective(batch):
        correct = built.nonzeros(batch)
        J = correct.derivative
        return correct._replace(derivative=J[:, :, 1:] if defect == "wrong shape" else J * np.nan)

    with pytest.raises(Refusal, match="not float64" if defect == "wrong shape" else "not finite"):
        check_chain(dataclasses.replace(built, nonzeros=defective), chain_pattern())


@pytest.mark.covering(2)
@pytest.mark.parametrize("reference", ["closed form", "computed"])
@pytest.mark.parametrize("reduction", ["outputs", "inputs"])
@pytest.mark.parametrize("mode", ["jacfwd", "jacrev"])
def test_the_tolerance_of_a_sum_that_cancels_follows_its_terms(mode, reduction, reference, monkeypatch):
    def closed(batch):  # the rows and the columns of the Jacobian of a softmax sum to zero
        e = np.exp(batch["x"])
        p = e / e.sum(axis=1, keepdims=True)
        return Reference(p, p[:, :, None] * np.eye(5) - p[:, :, None] * p[:, None, :])

    closed_or_none = closed if reference == "closed form" else None
    built = Workload(jax.nn.softmax, {"x": normal(5)}, wrt="x", reduce=reduction, reference=closed_or_none)
    record = measure(built, monkeypatch, mode=mode, dtype="float32")
    assert record.reason is None, record.text
    wrong = dataclasses.replace(
        built, function=lambda x: jax.nn.softmax(x) + 1e-2 * (x - jax.lax.stop_gradient(x))
    )
    assert measure(wrong, monkeypatch, mode=mode, dtype="float32").reason == "wrong_answer"


@pytest.mark.parametrize("reduction", [None, *REDUCTIONS])
@pytest.mark.parametrize("reference", ["closed form", "computed"])
def test_a_scalar_batch_function_is_reduced_from_the_sum_over_outputs(reference, reduction, monkeypatch):
    def closed(batch):
        x = batch["x"]
        J = np.zeros((len(x), 2, 3))
        J[:, 0, 0], J[:, 0, 1], J[:, 1, 2] = np.cos(x[:, 0]) * x[:, 1], np.sin(x[:, 0]), 2 * x[:, 2]
        return Reference(np.stack([np.sin(x[:, 0]) * x[:, 1], x[:, 2] ** 2], axis=1), J)

    function = lambda x: jnp.stack([jnp.sin(x[0]) * x[1], x[2] ** 2])  # noqa: E731
    built = Workload(
        function, {"x": normal(3)}, wrt="x", reduce=reduction, whole=lambda x: jnp.sum(jax.vmap(function)(x)),
        reference=closed if reference == "closed form" else None,
    )  # fmt: skip
    use_workload(built, monkeypatch)
    case = case_of(built, mode="jacrev", batch="whole")
    with jax.enable_x64(True):
        derivative, (J, x) = describe_derivative(case, built), jacobian(case, built)
        summed = jnp.sum(J, axis=1, keepdims=True)
        got, wrong = (reduce(reduction, a, x) for a in (summed, summed.at[2, 0, 1].multiply(1.001)))
    assert derivative.summed
    assert check_result(derivative, got).reason is None
    assert check_result(derivative, wrong).reason == "wrong_answer"


@pytest.mark.parametrize("roundings, reason", [(4, None), (4000, "wrong_answer")])
def test_an_entry_next_to_zero_at_a_single_point_may_be_off_by_roundings_of_the_others(roundings, reason):
    fields = {"workload": "rbf", "target": "grad", "points": 1, "sizes": {"m": 1000}, "api": "jit"}
    case = case_rules.complete(Case(**fields, mode="jacrev", dtype="float32"))
    built = workload.build(case)
    derivative = describe_derivative(case, built)
    J = np.array(jacobian(case, built)[0], np.float32)
    nearest, typical = np.abs(J).argmin(), np.sqrt(np.mean(J**2))
    assert abs(J.flat[nearest]) < 1e-3 * typical
    J.flat[nearest] += roundings * np.finfo(np.float32).eps / 2 * typical
    assert check_result(derivative, J).reason == reason
