"""Tests of the check of functions without a closed form: errors are detected, correct derivatives pass."""

import dataclasses
import re
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.interpreters import batching, mlir

from scaling.checks import (
    computed_reference,
    evaluations,
    finite_differences,
    finite_step_bound,
    rounding_check,
)
from scaling.core import check, layout, workload
from scaling.core import reference as references
from scaling.core.case import Case
from scaling.core.derivative import describe_derivative
from scaling.core.modes import STEPS
from scaling.core.record import SKIPPED
from scaling.core.workload import InputSpec, Workload, normal, uniform
from scaling.study import case_rules
from tests.support.devices import run_once

pytestmark = pytest.mark.thin(20, "thorough")

WEIGHTS = np.random.default_rng(3).standard_normal((4096, 8))


def use_workload(built, monkeypatch):
    """Register a workload under the name `mine`."""
    module = workload.import_workload
    module_of_mine = SimpleNamespace(workload=lambda case: built)
    monkeypatch.setattr(
        workload, "import_workload", lambda name: module_of_mine if name == "mine" else module(name)
    )


@pytest.fixture
def compute_result(monkeypatch):
    """Return a function that computes a case of a workload and returns its derivative and its result."""

    def compute(built, **fields):
        use_workload(built, monkeypatch)
        case = case_rules.complete(
            Case("mine", **{"api": "jit", "points": 3, "wrt": built.wrt or None} | fields)
        )
        built = workload.build(case)
        with jax.enable_x64(case.dtype == "float64"):
            derivative = describe_derivative(case, built)
            program = layout.lay_out(derivative, jax.devices()[: case.devices])
            got = program.collect(program.function(*layout.place_inputs(program))).copy()
        return derivative, got

    return compute


def measure(built, monkeypatch, **fields):
    """Return the record of a case of this workload."""
    use_workload(built, monkeypatch)
    case = case_rules.complete(Case("mine", **{"api": "jit", "points": 3} | fields))
    return run_once(case)


def with_wrong_rule(factor):
    """Return sin with a rule for its derivative that is wrong by a factor, or by that at a point."""
    function, at = jax.custom_jvp(jnp.sin), factor if callable(factor) else lambda x: factor
    function.defjvp(lambda x, t: (function(*x), at(x[0]) * jnp.cos(x[0]) * t[0]))
    return function


def gradient_workload(n):
    return Workload(
        lambda x: jnp.sum(jnp.sin(x) * jnp.asarray(np.resize(WEIGHTS, n), x.dtype)), {"x": normal(n)}, wrt="x"
    )


def wide_workload(n):
    weights = np.resize(WEIGHTS, (8, n)) / np.sqrt(n)
    return Workload(lambda x: jnp.sin(jnp.asarray(weights, x.dtype) @ x), {"x": normal(n)}, wrt="x")


@pytest.mark.covering(2)
@pytest.mark.parametrize("coverage", ["all entries", "a sample"])
@pytest.mark.parametrize("n", [1, 64, 1024, 16384])
@pytest.mark.parametrize("make_workload", [gradient_workload, wide_workload])
def test_an_error_of_a_thousandth_is_detected_at_every_size(
    make_workload, n, coverage, compute_result, monkeypatch
):
    if coverage == "a sample":
        monkeypatch.setattr(references, "BUDGET_SECONDS", 0.0)
    derivative, got = compute_result(make_workload(n), mode="jacrev")
    assert check.verdict(derivative, got, "cpu").reason is None
    wrong = {"scale": got * 1.001, "one point": got.copy(), "entry": got.copy(), "second half": got.copy()}
    wrong["one point"][1] *= 1.001
    wrong["entry"][:, 0, n // 2] = 0
    wrong["second half"][2:] = got[0]
    for kind, result in wrong.items():
        assert check.verdict(derivative, result, "cpu").reason == "wrong_answer", kind


def shifted_reads(x):
    """Return a function that reads shifted elements: XLA compiles several such steps slowly on a CPU."""
    rate = (jnp.roll(x, -1) - jnp.roll(x, 2)) * jnp.roll(x, 1) - x
    return x + 0.01 * (rate + jnp.sin(jnp.roll(rate, 1)))


def complex_products(x):
    """Return absolute values of complex numbers: without fusion, XLA returns wrong derivatives on a CPU."""
    return jnp.abs((x.reshape(2, 4) + 1j * x.reshape(4, 2).T) @ (1j * x.reshape(4, 2)))


@pytest.mark.thorough
@pytest.mark.parametrize(("limit", "points"), [(0, 2), (2**18, 3)], ids=["optimized", "not optimized"])
@pytest.mark.parametrize("mode", ["jacfwd", "jacrev"])
@pytest.mark.parametrize("function", [shifted_reads, complex_products])
def test_an_error_is_detected_whether_the_reference_is_optimized_or_not(
    function, mode, limit, points, compute_result, monkeypatch
):
    monkeypatch.setattr(computed_reference, "_MAX_UNOPTIMIZED", limit)
    built = Workload(function, {"x": uniform(8)}, wrt="x")
    derivative, got = compute_result(built, mode=mode, points=points)
    assert check.verdict(derivative, got, "cpu").reason is None
    assert check.verdict(derivative, got * 1.001, "cpu").reason == "wrong_answer"


@pytest.mark.thorough
def test_errors_of_outputs_much_smaller_than_the_others_are_detected(compute_result):
    scale = np.array([1.0, 1e-5, 1e-8])
    built = Workload(
        lambda x: jnp.stack([jnp.sum(jnp.sin(x)), jnp.sum(x**2), x[0] * x[3]]) * scale,
        {"x": normal(5)},
        wrt="x",
    )
    derivative, got = compute_result(built)
    assert check.verdict(derivative, got, "cpu").reason is None
    for row in (1, 2):
        for factor in (0.0, 1.001):
            wrong = got.copy()
            wrong[:, row] *= factor
            assert check.verdict(derivative, wrong, "cpu").reason == "wrong_answer", (row, factor)


SIZES_OF_ALL_ORDERS = InputSpec((2,), lambda generator, rows: 10 ** generator.uniform(-4, 4, (len(rows), 2)))
UNEVEN = {  # the name of what differs in size -> (function, inputs, number of points, index of the wrong entries)
    "points": (lambda x: x**2, SIZES_OF_ALL_ORDERS, 64, lambda got: np.abs(got) < 1e-2),
    "outputs": (lambda x: jnp.stack([1e8 * jnp.sin(x[0]), x @ x]), normal(3), 1, (0, 1)),
    "outputs, one near underflow": (
        lambda x: jnp.stack([jnp.sin(x[0]), 1e-35 * (x @ x)]), normal(3), 5, np.index_exp[:, 1]
    ),
}  # fmt: skip


@pytest.mark.default
def test_a_derivative_that_rounding_hides_is_not_confirmed_beside_a_large_output_at_one_point(compute_result):
    function = lambda x: jnp.stack([1e8 * jnp.sin(x[0]), 1e-3 * (1 - jnp.tanh(9 * x[1]) ** 2)])  # noqa: E731
    derivative, got = compute_result(Workload(function, {"x": uniform(3, low=0.9)}, wrt="x"), points=1)
    got[:, 1] = 0
    assert check.verdict(derivative, got, "cpu").reason == "no_digits"


@pytest.mark.default
@pytest.mark.parametrize("factor", [1.01, 0.0])
@pytest.mark.parametrize("name", UNEVEN)
def test_large_derivatives_do_not_hide_errors_of_small_ones(name, factor, compute_result):
    function, x, points, where = UNEVEN[name]
    derivative, got = compute_result(Workload(function, {"x": x}, wrt="x"), points=points)
    assert check.verdict(derivative, got, "cpu").reason is None
    got[where(got) if callable(where) else where] *= factor
    assert check.verdict(derivative, got, "cpu").reason in ("wrong_answer", "no_digits")


@pytest.mark.parametrize("offset", [1e8, 1e11])
@pytest.mark.parametrize("factor, reason", [(1.0, None), (1.05, "wrong_answer")])
def test_a_large_value_does_not_hide_a_wrong_rule_used_in_both_dtypes(factor, reason, offset, monkeypatch):
    sine = with_wrong_rule(factor)
    built = Workload(lambda x: offset + sine(x), {"x": normal(4)}, wrt="x")
    assert measure(built, monkeypatch, dtype="float64").reason == reason


@pytest.mark.thorough
def test_a_gradient_by_many_inputs_is_evaluated_again_in_reverse_mode(compute_result, monkeypatch):
    derivative, got = compute_result(gradient_workload(1024))
    slices, quantities = evaluations.slices, set()

    def observe(evaluation, arrays, quantity, seeds):
        quantities.add((bool(evaluation.rounding_key), quantity))
        return slices(evaluation, arrays, quantity, seeds)

    monkeypatch.setattr(evaluations, "slices", observe)
    assert check.verdict(derivative, got * 1.001, "cpu").reason == "wrong_answer"
    assert quantities == {(False, "columns"), (True, "rows")}


@pytest.mark.parametrize("coverage", ["all entries", "a sample"])
def test_a_rule_for_reverse_mode_only_is_checked(coverage, monkeypatch):
    if coverage == "a sample":
        monkeypatch.setattr(references, "BUDGET_SECONDS", 0.0)
    for factor, reason in ((1.0, None), (1.01, "wrong_answer")):

        @jax.custom_vjp
        def sine(x):
            return jnp.sin(x)

        sine.defvjp(lambda x: (jnp.sin(x), x), lambda x, ct, factor=factor: (factor * ct * jnp.cos(x),))
        built = Workload(lambda x, sine=sine: sine(x) * x[0], {"x": normal(4)}, wrt="x")
        assert measure(built, monkeypatch, mode="jacrev").reason == reason


@pytest.mark.default
def test_a_rule_for_reverse_mode_only_may_use_indices_in_a_numpy_array(monkeypatch):
    """A failed trace of forward mode would make JAX 0.10 confuse int32 with int64 in the float64 reference."""
    indices = np.array([0, 0, 1, 2, 2, 2])

    @jax.custom_vjp
    def sums(x):
        return jax.ops.segment_sum(x, indices, 3)

    sums.defvjp(lambda x: (sums(x), None), lambda _, g: (g[indices],))
    with jax.enable_x64(False):  # as in a worker
        record = measure(Workload(sums, points={"x": normal(6)}, wrt="x"), monkeypatch, mode="jacrev")
    assert record.status == "ok", record.text


def with_batching_rule(function, factor):
    ruled = jax.custom_batching.custom_vmap(function)
    ruled.def_vmap(lambda size, is_batched, x: (factor * function(x), True))
    return ruled


def with_callback(function, factor):
    def compute(x):
        return np.asarray(getattr(np, function.__name__)(x) * (factor if x.ndim > 1 else 1.0), x.dtype)

    return lambda x: jax.pure_callback(compute, jax.typeof(x), x, vmap_method="expand_dims")


def as_primitive(function, factor):
    primitive = jax.extend.core.Primitive(f"my_{function.__name__}")
    primitive.def_impl(function)
    primitive.def_abstract_eval(lambda x: x)
    mlir.register_lowering(primitive, mlir.lower_fun(function, multiple_results=False))
    batching.primitive_batchers[primitive] = lambda x, axes: (factor * function(*x), axes[0])
    return primitive.bind


@pytest.mark.default
@pytest.mark.parametrize(("factor", "reason"), [(1.0, None), (1.1, "wrong_answer")])
@pytest.mark.parametrize("batch", [with_batching_rule, with_callback, as_primitive])
def test_a_wrong_rule_for_vmap_is_found(batch, factor, reason, monkeypatch):
    sine, cosine = batch(jnp.sin, factor), batch(jnp.cos, factor)
    function = jax.custom_jvp(lambda x: sine(x))
    function.defjvp(lambda x, v: (sine(*x), cosine(*x) * v[0]))
    record = measure(Workload(function, {"x": normal(3)}, wrt="x"), monkeypatch)
    assert record.reason == reason
    assert reason is None or "may be wrong in this mode or dtype" in record.text


@pytest.mark.parametrize(("factor", "reason"), [(1.0, None), (1.1, "wrong_answer")])
def test_a_rule_for_vmap_that_is_wrong_for_seeds_only_is_found(factor, reason, monkeypatch):
    product = jax.custom_batching.custom_vmap(lambda a, v: a * v)
    rule = lambda size, is_batched, a, v: (a * v if is_batched[0] else factor * a * v, True)  # noqa: E731
    product.def_vmap(rule)
    sine = jax.custom_jvp(jnp.sin)
    sine.defjvp(lambda x, v: (jnp.sin(*x), product(jnp.cos(*x), v[0])))
    built = Workload(lambda x: sine(x), {"x": normal(33)}, wrt="x")
    assert measure(built, monkeypatch, mode="jacfwd").reason == reason


@pytest.mark.parametrize(("factor", "reason"), [(1.0, None), (1.1, "wrong_answer")])
def test_a_rule_that_is_wrong_for_unit_vectors_among_many_inputs_is_found(factor, reason, monkeypatch):
    sine = jax.custom_jvp(jnp.sin)
    is_unit = lambda v: jnp.count_nonzero(v) == 1  # noqa: E731
    sine.defjvp(lambda x, v: (jnp.sin(*x), jnp.where(is_unit(v[0]), factor, 1) * jnp.cos(*x) * v[0]))
    built = Workload(lambda x: sine(x), {"x": uniform(40, low=1.0, high=2.0)}, wrt="x")
    assert measure(built, monkeypatch, mode="jacfwd").reason == reason


@pytest.mark.parametrize(("factor", "reason"), [(1.0, None), (1.001, "wrong_answer")])
def test_a_rule_that_is_wrong_at_one_of_many_points_is_found_and_kinks_are_not_taken_for_it(
    factor, reason, monkeypatch
):
    def draw(generator, rows):
        return np.where(rows[:, None] == 321, 9.0, generator.uniform(0.1, 1, (len(rows), 3)))

    sine = with_wrong_rule(lambda x: jnp.where(jnp.max(jnp.abs(x)) > 5, factor, 1))
    built = Workload(lambda x: jnp.abs(sine(x) - 0.5) * x[0], {"x": InputSpec((3,), draw)}, wrt="x")
    assert measure(built, monkeypatch, points=500).reason == reason


@pytest.mark.parametrize(("factor", "reason"), [(1.0, None), (1.3, "wrong_answer")])
def test_points_at_kinks_do_not_hide_a_rule_that_is_wrong_at_another_point(factor, reason, monkeypatch):
    def draw(generator, rows):
        return np.where(rows[:, None] == 321, 9.0, generator.choice([-1.0, 0.0, 1.0], (len(rows), 3)))

    relu = jax.custom_jvp(jax.nn.relu)
    relu.defjvp(lambda x, v: (relu(*x), jnp.where(x[0] > 5, factor, x[0] > 0) * v[0]))
    built = Workload(relu, {"x": InputSpec((3,), draw)}, wrt="x")
    assert measure(built, monkeypatch, points=500).reason == reason


@pytest.mark.default
@pytest.mark.parametrize(("factor", "reason"), [(1.001, "wrong_answer"), (1.0, None)])
def test_a_kink_close_to_a_point_does_not_hide_a_wrong_rule(factor, reason, monkeypatch):
    """The rule is wrong at the points that are closer than 5e-5 to the kink, which are two of 20,000."""

    @jax.custom_jvp
    def function(x):
        return jnp.sin(3 * x) + jnp.abs(x - 0.99995)

    @function.defjvp
    def rule(primals, tangents):
        (x,), (v,) = primals, tangents
        right = 3 * jnp.cos(3 * x) + jnp.sign(x - 0.99995)
        return function(x), jnp.where(x > 0.9999, factor, 1) * right * v

    built = Workload(function, {"x": uniform(1)}, wrt="x")
    assert measure(built, monkeypatch, points=20_000).reason == reason


def test_a_derivative_of_an_oscillation_shorter_than_all_steps_is_not_called_wrong(monkeypatch):
    built = Workload(lambda x: jnp.sin(1e9 * x) + jax.nn.relu(x), {"x": normal(6)}, wrt="x")
    assert measure(built, monkeypatch, dtype="float64").reason == "no_digits"


@pytest.mark.parametrize("factor", [1.2, 1.4])
def test_bfloat16_passes_only_if_an_error_of_a_fifth_would_be_detected(factor, compute_result):
    for n in (1, 3, 200):
        built = Workload(lambda x: jnp.sin(x) * x, {"x": uniform(n, low=0.2)}, wrt="x")
        derivative, got = compute_result(built, dtype="bfloat16")
        right, wrong = (check.verdict(derivative, result, "cpu").reason for result in (got, got * factor))
        assert right in (None, "no_digits") and wrong in ("wrong_answer", "no_digits")


@pytest.mark.thorough
def test_elements_that_tie_in_few_bits_at_some_of_many_points_are_not_called_wrong(monkeypatch):
    built = Workload(lambda x: jax.lax.cummax(jnp.cos(x / 3)), {"x": normal(9)}, wrt="x")
    record = measure(built, monkeypatch, points=3000, dtype="bfloat16", mode="jacfwd")
    assert record.reason in (None, "no_digits"), record.text


@pytest.mark.default
@pytest.mark.parametrize("factor, reason", [(1.0, None), (1.2, "wrong_answer")])
@pytest.mark.parametrize("name", ["ties", "branch"])
def test_a_choice_that_few_bits_change_at_one_point_is_undecided_there(name, factor, reason, monkeypatch):
    def draw(generator, rows):  # at point 7, 1 + x rounds to 1, and 2 - x to 2
        x = generator.permuted(np.tile(np.linspace(0.4, 1.3, 10), (len(rows), 1)), axis=1)
        return np.where(rows[:, None] == 7, np.linspace(1e-4, 2e-4, 10), x)

    choose = {
        "ties": lambda x: jax.lax.top_k(1 + x, 3)[0],
        "branch": lambda x: jnp.where(jnp.floor(2 - x) > 1, jnp.sin(3 * x), x**2),
    }[name]
    by_hand = {"analytic": lambda x: factor * jax.vmap(jax.jacfwd(choose))(x)}
    built = Workload(choose, {"x": InputSpec((10,), draw)}, wrt="x", whole_modes=by_hand)
    record = measure(built, monkeypatch, points=300, dtype="bfloat16", mode="analytic")
    assert record.reason == reason, record.text


@pytest.mark.parametrize("seed", [0, 5])  # in which values overflow, or differ most in size
def test_a_derivative_that_is_mere_rounding_errors_is_not_called_wrong(seed, monkeypatch):
    chaos = lambda x: jax.lax.scan(lambda c, _: (3.7 * c * (1 - c), None), x, None, length=100)[0]  # noqa: E731
    built = Workload(chaos, {"x": uniform(4, low=0.05)}, wrt="x")
    record = measure(built, monkeypatch, dtype="bfloat16", mode="jacrev", points=20, data_seed=seed)
    assert (record.status, record.reason) == ("skipped", "no_digits"), record.text


@pytest.mark.thorough
def test_a_zero_derivative_by_one_input_passes_in_few_digits(monkeypatch):
    function = lambda x, w, shift: jax.nn.log_softmax(jnp.tanh(w @ x) + shift)  # noqa: E731
    inputs = {"x": normal(4)}, {"w": normal(3, 4), "shift": normal()}
    record = measure(
        Workload(function, *inputs, wrt="w+shift"), monkeypatch, points=20, mode="jacrev", dtype="bfloat16"
    )
    assert record.status == "ok", record.text


@pytest.fixture(scope="module")
def zero_by_shift():
    """Return a function of many shared inputs, by half of which the derivative is zero but for rounding."""
    return Workload(
        lambda x, w, shift: jax.nn.log_softmax(w * x + jnp.sum(shift)) @ jnp.arange(40.0, dtype=x.dtype),
        {"x": normal(40)}, {"w": normal(40), "shift": normal(40)}, wrt="w+shift",
    )  # fmt: skip


@pytest.mark.parametrize("points, factor", [(2, 1.1), (50, 1000.0)])
def test_a_zero_derivative_by_one_input_hides_no_error_by_another(
    factor, points, zero_by_shift, compute_result
):
    derivative, got = compute_result(zero_by_shift, points=points, mode="jacrev", dtype="float32")
    assert check.verdict(derivative, got, "cpu").reason is None
    column = np.abs(got[1, 0]).argsort()[-5]
    name = f"entry [0, {column}] ({'w' if column < 40 else 'shift'}[{column % 40}])"
    got[1, 0, column] *= factor
    verdict = check.verdict(derivative, got, "cpu")
    assert verdict.reason == "wrong_answer" and "point 1 is wrong" in verdict.text
    assert f"; {name} is {got[1, 0, column]:.7g}, expected" in verdict.text


@pytest.mark.default
def test_a_result_with_a_failed_entry_that_was_not_reevaluated_is_not_accepted(
    zero_by_shift, compute_result, monkeypatch
):
    derivative, got = compute_result(zero_by_shift, points=200, mode="jacrev", dtype="float32")
    got[1, 0, 0] *= 1.1
    monkeypatch.setattr(rounding_check, "_BUDGET_SECONDS", -1)
    assert check.verdict(derivative, got, "cpu").reason == "no_digits"


LOG_DENSITIES = {
    "constant outside": lambda x: jnp.where(x < 0.9, -(x**2), -jnp.inf),
    "with a slope outside": lambda x: jax.scipy.stats.uniform.logpdf(x, 0.5, 1.0) - x,
    "infinite for one output": lambda x: jnp.concatenate([jnp.where(x > 2.0, x, -jnp.inf), x**2]),
}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", LOG_DENSITIES)
def test_the_derivative_of_a_log_density_with_points_outside_of_its_support_passes(name, dtype, monkeypatch):
    built = Workload(LOG_DENSITIES[name], {"x": uniform(4)}, wrt="x")
    assert measure(built, monkeypatch, points=20, dtype=dtype).status == "ok"


def test_a_wrong_rule_is_found_at_points_inside_of_the_support(monkeypatch):
    sine = with_wrong_rule(1.3)
    built = Workload(lambda x: jnp.where(x < 0.7, sine(x), -jnp.inf), {"x": uniform(4)}, wrt="x")
    assert measure(built, monkeypatch, points=20).reason == "wrong_answer"


@pytest.mark.thorough
@pytest.mark.parametrize(
    "fields",
    [
        {"target": "hessian", "mode": "fwd_over_fwd"},
        {"target": "hvp", "mode": "fwd_over_fwd"},
        {"target": "laplacian", "mode": "forward_laplacian"},
        {"target": "hessian", "mode": "fwd_over_fwd", "seeds": "colored"},
    ],
    ids=str,
)
def test_second_derivatives_of_a_function_without_reverse_mode_are_checked(fields, monkeypatch):
    step = lambda c: (c[0] + 1, jnp.sin(c[1]) * c[1])  # noqa: E731
    loop = lambda x: jnp.sum(jax.lax.while_loop(lambda c: c[0] < 3, step, (0, x))[1])  # noqa: E731
    record = measure(Workload(loop, {"x": uniform(4, low=0.5)}, wrt="x"), monkeypatch, **fields)
    assert record.status == "ok", record.text


def test_an_error_in_the_reverse_mode_of_a_function_is_detected_in_its_hessian(monkeypatch):
    third = lambda factor: lambda _, b: factor * b / 3  # noqa: E731
    solve = lambda x: jax.lax.custom_linear_solve(lambda y: 3 * y, x, third(1), third(1.01))  # noqa: E731
    built = Workload(lambda x: jnp.sum(jnp.sin(solve(x)) * x), {"x": uniform(4)}, wrt="x")
    record = measure(built, monkeypatch, target="hessian", mode="fwd_over_rev")
    assert record.reason == "wrong_answer" and "the derivative of output 0" in record.text


INDEX = np.array([2, 0, 1])


def indexed(x):
    return jnp.sin(x[INDEX]) * x[0]


def triangle(x):
    rows, cols = np.triu_indices(3)
    return (x[:3, None] * x[None, :3])[rows, cols]


@pytest.mark.thorough
@pytest.mark.parametrize("function", [indexed, triangle])
def test_functions_that_index_with_64_bit_integers_are_checked_in_every_layout(function, monkeypatch):
    built = Workload(function, {"x": normal(4)}, wrt="x")
    on_two = {"api": "shard_map", "devices": 2, "points": 4}
    for fields in ({"api": "pmap"}, {"jit": False}, {"mode": "jacrev"}, on_two, {}):
        record = measure(built, monkeypatch, **fields)
        assert record.status == "ok", (fields, record.text)


def dropout(x):
    return jnp.where(jax.random.bernoulli(jax.random.key(3), 0.5, x.shape), 2 * jnp.sin(x), 0)


def float32_carry(x):
    return jax.lax.fori_loop(0, 3, lambda _, c: c * x[0].astype(jnp.float32), jnp.ones(2, jnp.float32))


DTYPE_DEPENDENT = {
    "random bits": (dropout, {"ok"}),
    "a cast to float32": (lambda x: jnp.sin(x.astype(jnp.float32)) * 2, {"ok"}),
    "a carry of a fixed dtype": (float32_carry, {"ok"}),
    "bfloat16 inside": (lambda x: jnp.sin(x.astype(jnp.bfloat16)).astype(jnp.float32), {"ok", "skipped"}),
    "float16 inside": (lambda x: jnp.tanh(x.astype(jnp.float16)).astype(x.dtype), {"ok", "skipped"}),
}


@pytest.mark.thorough
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", DTYPE_DEPENDENT)
def test_functions_that_differ_in_float64_are_not_wrong_answers(name, dtype, monkeypatch):
    function, statuses = DTYPE_DEPENDENT[name]
    if (name, dtype) == ("a carry of a fixed dtype", "float64"):
        pytest.skip("the function has no meaning there")
    record = measure(
        Workload(function, {"x": uniform(4, low=0.5)}, wrt="x"), monkeypatch, mode="jacfwd", dtype=dtype
    )
    assert record.status in statuses, record.text
    assert record.reason in (None, "no_digits")


def test_a_wrong_rule_of_a_function_with_random_bits_is_a_wrong_answer(monkeypatch):
    sine = with_wrong_rule(1.05)
    built = Workload(lambda x: dropout(x) + sine(x), {"x": normal(6)}, wrt="x")
    assert measure(built, monkeypatch).reason == "wrong_answer"


@pytest.mark.thorough
@pytest.mark.parametrize(("factor", "status"), [(1.0, "ok"), (1.001, "failed")])
def test_kinks_close_to_a_point_are_not_errors_and_do_not_hide_a_wrong_rule(factor, status, monkeypatch):
    hidden = jax.custom_jvp(jax.nn.relu)
    hidden.defjvp(lambda primals, tangents: (hidden(*primals), factor * (primals[0] > 0) * tangents[0]))

    def loss(x, w):
        for layer in w:
            x = hidden(x @ layer)
        return jnp.mean(jnp.sin(jnp.sum(x, axis=-1)))

    monkeypatch.setattr(references, "BUDGET_SECONDS", 0.0)  # compares a sample
    points = {"x": uniform(64, 20), "w": normal(3, 20, 20, deviation=20**-0.5)}
    record = measure(
        Workload(loss, points, wrt="w"), monkeypatch, points=1, target="hvp", mode="fwd_over_rev"
    )
    assert record.status == status, record.text


@pytest.mark.parametrize("mode", ["jacfwd", "jacrev"])
def test_points_at_which_a_function_is_not_differentiable_are_not_errors(mode, monkeypatch):
    grid = np.linspace(-2, 2, 9)  # includes zero, where they are not differentiable

    points = InputSpec((9,), lambda generator, rows: np.tile(grid, (len(rows), 1)))
    relu, absolute = lambda x: jax.nn.relu(x), lambda x: jnp.abs(x)
    for function in (relu, absolute, lambda x: jnp.maximum(x, x[::-1]), lambda x: jnp.sort(x)):
        built = Workload(function, {"x": points}, wrt="x")
        record = measure(built, monkeypatch, mode=mode)
        assert record.status == "ok", record.text


@pytest.mark.thorough
@pytest.mark.parametrize("mode", ["jacfwd", "jacrev"])
def test_the_tolerance_of_saturated_outputs_follows_their_cancellation(mode, monkeypatch):
    built = Workload(
        lambda x: jnp.tanh(jnp.array([0.1, 1.0, 3.0, 5.0, 7.0, 9.0]) * x), {"x": uniform(6, low=0.9)}, wrt="x"
    )
    record = measure(built, monkeypatch, mode=mode, points=20)
    assert record.status == "ok", record.text


def test_the_record_has_the_share_of_entries_and_points_that_was_compared(monkeypatch, compute_result):
    derivative, got = compute_result(wide_workload(64), points=5)
    assert check.verdict(derivative, got, "cpu").checked == {"entries": 1.0, "points": 1.0}
    monkeypatch.setattr(references, "BUDGET_SECONDS", 1e-9)
    checked = check.verdict(derivative, got, "cpu").checked
    assert 0 < checked["entries"] < 1 and checked["points"] == 0.0
    assert measure(wide_workload(64), monkeypatch).checked["entries"] < 1


@pytest.mark.default
def test_a_sampled_check_evaluates_all_entries_at_the_completely_compared_points_only(
    monkeypatch, compute_result
):
    # The time limit suffices for one point.
    monkeypatch.setattr(computed_reference, "_estimate_seconds", lambda *_: 20.0)
    derivative, got = compute_result(wide_workload(48), points=6)
    evaluated, evaluate = [], references.reference_jacobians
    count = lambda spec, start, stop: evaluated.append(stop - start) or evaluate(spec, start, stop)  # noqa: E731
    monkeypatch.setattr(references, "reference_jacobians", count)
    assert check.verdict(derivative, got, "cpu").checked["points"] == 1 / 6
    assert evaluated == [1]


@pytest.mark.parametrize("reduce", ["outputs", "inputs", "vector", "norm", "gram", "points"])
def test_sampled_checks_detect_an_error_in_a_reduction(reduce, monkeypatch, compute_result):
    monkeypatch.setattr(references, "BUDGET_SECONDS", 0.0)
    built = Workload(
        lambda x, w: jnp.sin(x[:3] * jnp.sum(w)) * w[0] + w[1] * x[1:],
        {"x": normal(4)},
        {"w": normal(3)},
        wrt="w+x",
    )
    built = built if reduce != "points" else Workload(built.function, built.points, built.shared, wrt="w")
    derivative, got = compute_result(built, reduce=reduce, points=6)
    assert check.verdict(derivative, got, "cpu").reason is None
    wrong = got.copy()
    wrong[-1].flat[np.abs(wrong[-1]).argmax()] *= 1.001
    assert check.verdict(derivative, wrong, "cpu").reason == "wrong_answer"


@pytest.mark.default
def test_the_product_with_a_small_input_is_checked_if_another_input_has_large_derivatives(compute_result):
    function = lambda x, a, b: jnp.sin(x) * a + 1e-4 * x * b  # noqa: E731
    built = Workload(function, {"x": normal(3)}, {"a": normal(), "b": normal()}, wrt="a+b")
    derivative, got = compute_result(built, reduce="gram")
    assert check.verdict(derivative, got, "cpu").reason is None
    got[:, 1, 1] *= 1.001  # 1e-8 of the largest entry
    assert check.verdict(derivative, got, "cpu").reason == "wrong_answer"


@pytest.mark.default
@pytest.mark.parametrize(("factor", "reason"), [(1.0, None), (1.01, "wrong_answer")])
def test_the_products_of_a_long_forward_mode_are_checked_without_a_rule_for_reverse_mode(
    factor, reason, monkeypatch, compute_result
):
    monkeypatch.setattr(references, "BUDGET_SECONDS", 0.0)
    built = Workload(jax.vmap(newton), {"x": uniform(20, low=0.5)}, wrt="x")
    derivative, got = compute_result(built, reduce="gram", mode="jacfwd")
    got[-1, 7, 7] *= factor
    assert check.verdict(derivative, got, "cpu").reason == reason


def test_a_result_that_is_wrong_after_the_first_call_is_detected(monkeypatch):
    lay_out = layout.lay_out
    calls = []

    def lay_out_wrong(*arguments, **options):
        program = lay_out(*arguments, **options)

        def collect(result):
            calls.append(1)
            return program.collect(result) * (1.0 if len(calls) == 1 else 1.01)

        return dataclasses.replace(program, collect=collect)

    monkeypatch.setattr(layout, "lay_out", lay_out_wrong)
    monkeypatch.setattr("scaling.core.compile_case.program", lay_out_wrong, raising=False)
    record = measure(gradient_workload(8), monkeypatch)
    assert (record.reason, record.seconds, len(calls)) == ("wrong_answer", [], 2)
    assert "later call" in record.text


def test_evaluating_a_reference_leaves_no_other_dtype_in_the_caches_of_jax():
    function = jax.jit(indexed)
    before = function(jnp.ones(4, jnp.float32))
    with evaluations.evaluation_context("float64"):
        assert jax.jit(jax.vmap(indexed))(np.ones((2, 4))).dtype == np.float64
    assert np.array_equal(before, jax.jit(jax.vmap(indexed))(np.ones((2, 4), np.float32))[0])


@pytest.mark.parametrize(
    ("function", "x"),
    [
        (lambda x: jnp.tanh(10 * x), normal(6)),
        (lambda x: jax.nn.gelu(5 * x), normal(6)),
        (lambda x: jnp.sinc(x), normal(6)),
        (lambda x: 1 - jnp.cos(x / 100), normal(6)),
        (lambda x: (x + 1e4) ** 2 - x**2 - 1e8, normal(6)),
        (lambda x: jnp.arccos(x), uniform(6, low=0.99999)),  # random rounding gives arguments above 1
    ],
)
@pytest.mark.sample(3)
def test_a_correct_derivative_that_cancels_at_many_points_passes(function, x, monkeypatch):
    assert measure(Workload(function, {"x": x}, wrt="x"), monkeypatch, points=100).status == "ok"


@pytest.mark.default
@pytest.mark.parametrize("function", [lambda x: jnp.exp(x) - 1, lambda x: 1 - jnp.cos(10 * x)])
def test_rounding_errors_that_agree_by_chance_are_no_difference_between_dtypes(function, monkeypatch):
    record = measure(Workload(function, {"x": normal(6, deviation=1e-3)}, wrt="x"), monkeypatch, points=1)
    assert record.status == "ok", record.text


@pytest.mark.parametrize(
    ("function", "x"),
    [
        (lambda x: jnp.exp(x) - 1, normal(6, deviation=1e-3)),
        (lambda x: 1 - jnp.cos(x), normal(6, deviation=1e-2)),
        (lambda x: jnp.tanh(30 * x), uniform(6, low=0.5, high=0.8)),
        (lambda x: (1e-17 * x) ** 2 * jnp.cos(x), normal(8)),
    ],
)
def test_a_derivative_that_differences_cannot_confirm_is_not_called_wrong(function, x, monkeypatch):
    built = Workload(function, {"x": x}, wrt="x")
    assert measure(built, monkeypatch, points=100).reason in (None, "no_digits")


def test_values_that_agree_by_chance_at_few_of_many_points_do_not_refute_a_derivative(monkeypatch):
    function = lambda x: jax.nn.softplus(x) - jax.nn.relu(x) - jnp.log1p(jnp.exp(-jnp.abs(x))) + 1e-12 * x  # noqa: E731
    record = measure(Workload(function, {"x": normal(4)}, wrt="x"), monkeypatch, points=3000, dtype="float64")
    assert record.reason in (None, "no_digits"), record.text


def test_a_function_that_can_be_traced_in_one_dtype_has_a_reference_if_differences_do_not_confirm_it():
    def function(x):  # with x64, np.eye is in float64, and so is the result of a step
        return jax.lax.fori_loop(0, 3, lambda _, y: np.eye(3) @ y, x) + jnp.sin(1e9 * x)

    built = Workload(function, {"x": normal(3)}, wrt="x")
    with jax.enable_x64(False):
        computed = computed_reference.make_verified_reference(Case("mine", api="jit", points=20), built)
    assert (computed.evaluation.dtype, computed.wrong) == ("float64", None)


def test_a_result_whose_rounding_error_cannot_be_estimated_has_a_verdict_that_says_so(
    compute_result, monkeypatch
):
    derivative, got = compute_result(gradient_workload(8))
    assert check.verdict(derivative, got, "cpu").reason is None

    def fail(*arguments):
        raise NotImplementedError("no rule for an operation\nin this version")

    monkeypatch.setattr(evaluations, "rounding_range", fail)
    verdict = check.verdict(derivative, got * 1.001, "cpu")
    assert verdict.reason == "wrong_answer"
    assert verdict.text.endswith(
        "; its rounding error is unknown (NotImplementedError: no rule for an operation)"
    )


def test_two_long_steps_that_agree_by_chance_give_no_accurate_difference():
    # Differences of the loss of a classifier with many rectifiers, whose kinks are denser than the long steps.
    by_step = [130807, 111087, 120612, 120636, 120790, 120817, 120836, 120836, 120719]
    by_step = 1e-8 * np.reshape(by_step, (-1, 1, 1))
    difference, error = finite_differences._select_difference(by_step, np.full((1, 1), 2.8e-13))
    assert abs(difference - 0.0012083655) <= 4 * error < 0.01 * abs(difference)


@pytest.mark.parametrize(("factor", "reason"), [(1.0, None), (1.1, "no_digits")])
def test_a_rule_that_is_wrong_at_few_points_does_not_pass_in_float32(factor, reason, monkeypatch):
    function = with_wrong_rule(lambda x: jnp.where(x > 3, factor, 1))
    in_float32 = lambda x: function(x.astype(jnp.float32)).astype(x.dtype)  # noqa: E731
    built = Workload(in_float32, {"x": normal(4)}, wrt="x")
    record = measure(built, monkeypatch, points=2000, dtype="float64")
    assert record.reason == reason, record.text
    if reason:  # the summary of a study describes a reason by a text that is true for all its causes
        assert "the check could not decide" in SKIPPED[reason]


@pytest.mark.parametrize(("factor", "status"), [(1.0, "ok"), (1.3, "failed")])
def test_a_wrong_rule_for_an_input_of_small_influence_is_found(factor, status, monkeypatch):
    sin = with_wrong_rule(factor)
    built = Workload(
        lambda a, b: 1e7 * jnp.sum(a) + jnp.sum(sin(b)), {"a": uniform(3), "b": uniform(4)}, wrt="a+b"
    )
    assert measure(built, monkeypatch, mode="jacrev").status == status


@pytest.mark.parametrize(("factor", "status"), [(1.0, "ok"), (1 + 3e-5, "failed")])
def test_a_value_that_is_not_a_number_leaves_the_reference_in_float64(factor, status, monkeypatch):
    sin = with_wrong_rule(factor)
    built = Workload(lambda x: jnp.append(sin(x), jnp.log(x[0] - 2)), {"x": uniform(3, low=0.5)}, wrt="x")
    record = measure(built, monkeypatch, mode="jacrev")
    assert record.status == status, record.text


@pytest.mark.parametrize("factor, size, points", [(1.1, 1e14, 100), (0.0, 1e14, 3), (1.1, 1e9, 100)])
def test_confirmed_outputs_do_not_hide_a_wrong_rule_of_an_output_that_cancels(
    factor, size, points, monkeypatch
):
    def function(x):
        a = jnp.tanh(x[0]) / 10
        cancelled = (size * jnp.exp(a) + with_wrong_rule(factor)(x)) - size * jnp.exp(a / 2) ** 2
        return jnp.concatenate([jnp.sin(x), cancelled])

    built = Workload(function, {"x": normal(3)}, wrt="x")
    record = measure(built, monkeypatch, points=points, dtype="float64")
    assert record.reason in ("wrong_answer", "no_digits"), record.text
    assert "at a kink" not in record.text or "because of rounding errors" in record.text


def test_confirmed_points_do_not_hide_a_wrong_rule_at_points_with_a_large_value(monkeypatch):
    rule = with_wrong_rule(lambda x: jnp.where(x > 0, 2.0, 1.0))
    built = Workload(lambda x: rule(x) + jnp.where(x > 0, 1e15, 0.0), {"x": normal(3)}, wrt="x")
    assert measure(built, monkeypatch, points=30, dtype="float64").reason == "no_digits"


@pytest.mark.parametrize(("dtype", "size"), [("float32", 1e-37), ("float64", 1e-307)])
def test_a_rule_of_zero_is_not_confirmed_where_values_are_almost_too_small_for_their_dtype(
    dtype, size, monkeypatch
):
    function = lambda x: jnp.concatenate([jnp.sin(x), size * with_wrong_rule(0.0)(x)])  # noqa: E731
    built = Workload(function, {"x": normal(3)}, wrt="x")
    record = measure(built, monkeypatch, points=30, dtype=dtype)
    assert record.reason in ("wrong_answer", "no_digits"), record.text


CONSTANT = {
    "exactly": lambda x: 0 * x + 1e14,
    "except for rounding": lambda x: 1e14 * (jnp.sin(x) ** 2 + jnp.cos(x) ** 2),
    "as the difference of a sum from one": lambda x: jnp.sum(jax.nn.softmax(x), keepdims=True) - 1,
    "because it is not active": lambda x: jax.nn.relu(-1 - x**2),
}


@pytest.mark.parametrize("name", CONSTANT)
def test_the_zero_derivative_of_an_output_that_is_constant_is_accepted(name, monkeypatch):
    function = lambda x: jnp.concatenate([with_wrong_rule(1.0)(x), CONSTANT[name](x)])  # noqa: E731
    record = measure(Workload(function, {"x": normal(3)}, wrt="x"), monkeypatch, points=100, dtype="float64")
    assert record.status == "ok", record.text


def newton(x):
    """Return the square root of a number by a loop that ends when it is accurate."""
    return jax.lax.while_loop(lambda s: jnp.abs(s * s - x) > 1e-4 * x, lambda s: 0.5 * (s + x / s), x)


def interpolate(x):
    index = jnp.floor(x * 100).astype(int)
    table = jnp.asarray(np.resize(WEIGHTS, 102), x.dtype)
    return table[index] * (1 + index - x * 100) + table[index + 1] * (x * 100 - index)


def update_in_place(x):
    array = jax.new_ref(jnp.sin(x) * jnp.ones(3))
    array[1] += 1 - jnp.tanh(9 * x) ** 2
    return array[...]


RIGHT = {
    "a loop whose end depends on the point": newton,
    "a loop whose end depends on the element": lambda x: jax.vmap(newton)(jnp.stack([x, 2 * x])),
    "quantiles": lambda x: jnp.quantile(jnp.sin(9 * x + jnp.arange(30.0)), jnp.array([0.1, 0.5, 0.9])),
    "a table": interpolate,
    "powers of negative numbers": lambda x: (x - 0.5) ** jnp.arange(5.0),
    "a mutable array": update_in_place,
    "half precision inside": lambda x: jnp.tanh(x.astype(jnp.float16)).astype(x.dtype),
    "random numbers beside a large output": lambda x: jnp.append(
        jax.random.normal(jax.random.key(0), (3,), x.dtype) * x, 1e8 * x
    ),
    "the largest elements": lambda x: jax.lax.top_k(jnp.sin(jnp.arange(100.0)) * x, 5)[0],
}


@pytest.mark.parametrize("name", RIGHT)
def test_a_right_derivative_of_an_unusual_function_is_accepted(name, monkeypatch):
    record = measure(
        Workload(RIGHT[name], {"x": uniform(low=0.1)}, wrt="x"), monkeypatch, points=40, mode="jacfwd"
    )
    assert record.status == "ok", record.text


# Finite differences.


def kinked(jump, fraction, dtype):
    """Return a workload with a kink at the given fraction of a step after each point, where JAX returns 1."""
    start = lambda generator, rows: np.full((len(rows), 3), -fraction * STEPS[dtype])  # noqa: E731
    return Workload(lambda x: x + jump * jax.nn.relu(x), {"x": InputSpec((3,), start)}, wrt="x")


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("fraction", [0.0, 0.125, 0.25, 0.5, 0.75])
@pytest.mark.parametrize("jump, reason", [(1.0, "no_digits"), (-0.5, "no_digits"), (0.005, None)])
def test_a_kink_within_a_finite_step_is_no_wrong_answer(jump, reason, fraction, dtype, monkeypatch):
    record = measure(kinked(jump, fraction, dtype), monkeypatch, mode="finite_difference", dtype=dtype)
    assert record.reason == reason, record.text


def curved_at_some_inputs(reduction):
    """Return a workload of 200 inputs. Some inputs that are not among 64 evenly spread ones are strongly curved."""
    frequencies = np.ones(200)
    frequencies[np.setdiff1d(np.arange(200), np.linspace(0, 199, 64).astype(int))[5:105:10]] = 1000.0
    function = lambda x, w: jnp.outer(x, jnp.sin(frequencies * w) / frequencies).sum(1)  # noqa: E731
    inputs = {"x": uniform(2, low=0.5)}, {"w": uniform(200)}
    return Workload(function, *inputs, wrt="w", reduce=reduction)


@pytest.mark.parametrize("reduction", [None, "outputs", "points"])
def test_the_curvature_of_each_input_with_a_large_error_is_taken(reduction, compute_result):
    fields = {"mode": "finite_difference", "dtype": "float64"}
    derivative, got = compute_result(curved_at_some_inputs(reduction), **fields)
    assert check.verdict(derivative, got, "cpu").reason is None
    for index in (0, 20, 199):
        wrong = got.copy()
        wrong[-1, :, index] += 0.02
        verdict = check.verdict(derivative, wrong, "cpu")
        assert verdict.reason == "wrong_answer", index
        error, tolerance = re.search(r"error is ([^,]+), the tolerance ([^;]+)", verdict.text).groups()
        assert float(error) > float(tolerance)


def test_a_wrong_answer_has_the_error_and_the_tolerance_of_its_point(compute_result):
    start = lambda generator, rows: np.linspace(0.0, 2.0, len(rows))[:, None]  # noqa: E731
    built = Workload(lambda x: jnp.exp(5 * x), {"x": InputSpec((1,), start)}, wrt="x")
    derivative, got = compute_result(built, mode="finite_difference", dtype="float64")
    got[0] += 1e-4
    got[-1] *= 1 + 1e-3
    verdict = check.verdict(derivative, got, "cpu")
    assert verdict.text.startswith("point 0 is wrong; its relative error is 2.25e-05, the tolerance ")


@pytest.mark.parametrize("dtype, reason", [("float32", "no_digits"), ("float64", None)])
def test_a_finite_difference_of_rounded_intermediate_results_has_no_digits(dtype, reason, monkeypatch):
    built = Workload(lambda x: jnp.log(1 - jnp.exp(-x)), {"x": uniform(3, low=13.0, high=15.0)}, wrt="x")
    record = measure(built, monkeypatch, mode="finite_difference", dtype=dtype)
    assert record.reason == reason, record.text


@pytest.mark.parametrize("factor, reason", [(1.0, None), (1.75, "wrong_answer")])
def test_an_error_of_a_finite_difference_beyond_the_largest_curvature_is_detected(
    factor, reason, compute_result
):
    built = Workload(lambda x: jnp.exp(300 * x), {"x": uniform(1, low=0.0, high=1e-3)}, wrt="x")
    derivative, got = compute_result(built, mode="finite_difference", dtype="float64")
    truncation_error = 300**2 * STEPS["float64"] / 2 * got / 300
    assert check.verdict(derivative, got + (factor - 1) * truncation_error, "cpu").reason == reason


def test_the_curvature_of_an_input_among_very_many_is_estimated_if_its_error_is_large(
    compute_result, monkeypatch
):
    monkeypatch.setattr(finite_step_bound, "_MAX_VALUES", 1)
    rates = jnp.full(200, 1.0).at[198].set(300.0)
    built = Workload(lambda x: jnp.sum(jnp.exp(rates * x)), {"x": uniform(200, high=1e-3)}, wrt="x")
    derivative, got = compute_result(built, mode="finite_difference", dtype="float64")
    assert check.verdict(derivative, got, "cpu").reason is None
