"""Tests of the finite differences that confirm a derivative: each input, point and rule is examined."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from scaling.checks import computed_reference, evaluations, finite_differences, verification
from scaling.core import check, workload
from scaling.core import reference as references
from scaling.core.case import Case
from scaling.core.derivative import describe_derivative
from scaling.core.workload import InputSpec, Workload, normal, uniform
from scaling.study import case_rules


def verify(function, specs, **fields):
    """Return the verified reference of a function that is differentiated with respect to all its inputs."""
    case = Case("mine", **{"api": "jit", "points": 20, "mode": "jacfwd", "dtype": "float32"} | fields)
    return computed_reference.make_verified_reference(case, Workload(function, specs, wrt="+".join(specs)))


def with_rule(function, derivative):
    """Return a function with its own rule for the derivative."""
    ruled = jax.custom_jvp(function)
    ruled.defjvp(lambda x, v: (ruled(*x), derivative(*x) * v[0]))
    return ruled


@pytest.mark.parametrize(("factor", "is_wrong"), [(1.0, False), (1.3, True)])
def test_a_wrong_rule_of_a_primitive_that_is_not_of_jax_is_found(factor, is_wrong):
    sine = Primitive("sine")
    sine.def_impl(jnp.sin)
    sine.def_abstract_eval(lambda x: x)
    mlir.register_lowering(sine, mlir.lower_fun(jnp.sin, multiple_results=False))
    ad.defjvp(sine, lambda v, x: factor * v * jnp.cos(x))
    batching.defvectorized(sine)
    assert bool(verify(lambda x: sine.bind(x), {"x": normal(3)}).wrong) == is_wrong


def test_the_random_numbers_of_a_fixed_key_are_those_of_the_dtype_of_the_case():
    growth = with_rule(jnp.exp, lambda z: 1.001 * jnp.exp(z))

    def price(x):
        draws = jax.random.uniform(jax.random.key(3, impl="rbg"), (20,), x.dtype)
        return jnp.mean(growth(x * draws))

    computed = verify(price, {"x": uniform(low=0.5)}, points=3)
    assert computed.evaluation.dtype == "float64" and computed.float64_obstacle is None
    assert computed.wrong and "(relative error 0.001, tolerance 1e-05)" in computed.wrong


def test_a_derivative_by_rules_of_jax_that_differences_refute_is_neither_right_nor_wrong():
    def shift(x):  # JAX does not differentiate through the integer, but the values have the slope 1
        integers = jax.lax.bitcast_convert_type(x, jnp.int64 if x.dtype == jnp.float64 else jnp.int32)
        return jnp.sin(x) + jax.lax.bitcast_convert_type(integers, x.dtype)

    computed = verify(shift, {"x": normal(3)})
    assert computed.wrong is None and "refute the derivative that JAX computes" in computed.unsure


@pytest.mark.thin(3, "thorough")  # by default a right rule in 32 groups and a wrong one in 4
@pytest.mark.parametrize("groups", [32, 4])
@pytest.mark.parametrize(("factor", "is_wrong"), [(1.0, False), (2.0, True)])
def test_a_wrong_rule_for_any_of_many_inputs_of_small_influence_is_found(
    factor, is_wrong, groups, monkeypatch
):
    monkeypatch.setattr(evaluations, "_MAX_GROUPS", groups)
    ruled = with_rule(jnp.sin, lambda x: factor * jnp.cos(x))
    names = [f"a{k}" for k in range(11)]

    def function(**x):
        return sum(jnp.sin(x[name]) for name in names[:-1]) + 1e-7 * ruled(x[names[-1]])

    computed = verify(function, {name: normal(2) for name in names}, points=4)
    assert bool(computed.wrong) == is_wrong and not computed.unsure


@pytest.mark.parametrize(("factor", "is_wrong"), [(1.0, False), (2.0, True)])
def test_a_rule_that_is_wrong_at_one_point_by_an_input_of_small_influence_is_found(factor, is_wrong):
    def draw(generator, rows):
        return np.where(rows[:, None] == 321, 5.5, generator.uniform(-1, 1, (len(rows), 2)))

    ruled = with_rule(jnp.sin, lambda x: jnp.where(x > 5, factor, 1.0) * jnp.cos(x))
    points = {"a": normal(2), "b": InputSpec((2,), draw)}
    assert bool(verify(lambda a, b: jnp.sin(a) + 1e-7 * ruled(b), points, points=500).wrong) == is_wrong


@pytest.mark.parametrize(("factor", "is_suspicious"), [(1.0, False), (1.001, True)])
def test_rounding_errors_that_grow_as_steps_shrink_are_not_taken_for_a_kink(factor, is_suspicious):
    ruled = with_rule(jnp.sin, lambda x: factor * jnp.cos(x))
    function = lambda x: (1e7 * jnp.exp(x) + ruled(x)) - 1e7 * jnp.exp(x / 2) ** 2  # noqa: E731
    evaluation = evaluations.Evaluation(
        function, ("x",), frozenset("x"), frozenset(), "float64", inputs=1, roundoff=2.0**-53, width=1
    )
    x = np.linspace(0.3, 1.2, 100)[:, None]
    with evaluations.evaluation_context("float64"):
        errors = finite_differences._estimate_errors(
            evaluation, np.random.default_rng(1), {"x": x}, [["x"]]
        ).max(axis=0)
    assert ((errors > finite_differences._THRESHOLD) == is_suspicious).all()


@pytest.mark.parametrize(("factor", "is_wrong"), [(1.0, False), (2.0, True)])
def test_points_are_screened_in_every_part_of_the_batch(factor, is_wrong, monkeypatch):
    def draw(generator, rows):
        is_late = (rows[:, None] > 870) & (rows[:, None] < 930)  # no sampled point
        return np.where(is_late, 5.5, generator.uniform(-1, 1, (len(rows), 2)))

    monkeypatch.setattr(finite_differences, "_MAX_SCREENED_ELEMENTS", 2 * 200)
    monkeypatch.setattr(finite_differences, "_MAX_ELEMENTS_PER_CALL", 2 * 4)
    ruled = with_rule(jnp.sin, lambda x: jnp.where(x > 5, factor, 1.0) * jnp.cos(x))
    assert bool(verify(lambda x: ruled(x), {"x": InputSpec((2,), draw)}, points=1000).wrong) == is_wrong


@pytest.mark.thin(3, "thorough")
@pytest.mark.parametrize("function", [jnp.arccos, lambda x: jnp.log(1 - x)])
@pytest.mark.parametrize(("factor", "is_wrong"), [(1.0, False), (1.3, True)])
def test_a_wrong_rule_is_found_close_to_the_end_of_the_domain(factor, is_wrong, function):
    points = {"x": InputSpec((), lambda generator, rows: np.where(rows == 321, 0.99995, rows / 600))}
    ruled = with_rule(function, lambda x: jax.grad(function)(x) * jnp.where(x > 0.9999, factor, 1.0))
    assert bool(verify(lambda x: ruled(x), points, points=500).wrong) == is_wrong


@pytest.mark.parametrize(("factor", "is_wrong"), [(1.0, False), (1.3, True)])
def test_a_rule_that_is_wrong_only_for_one_value_of_an_input_is_found(factor, is_wrong):
    points = {"x": InputSpec((), lambda generator, rows: np.where(rows == 321, 1.0, rows / 600))}
    ruled = with_rule(jnp.sin, lambda x: jnp.cos(x) * jnp.where(x == 1, factor, 1.0))
    assert bool(verify(lambda x: ruled(x), points, points=500).wrong) == is_wrong


@pytest.mark.parametrize(("factor", "is_wrong"), [(1.0, False), (1.001, True)])
def test_a_small_error_for_elements_near_zero_is_found_beside_large_elements(factor, is_wrong):
    def draw(generator, rows):
        x = generator.uniform(0.3, 1, (len(rows), 4))
        return np.where((rows[:, None] == 321) & (np.arange(4) < 2), [0.0, 1e-5, 0, 0], x)

    ruled = with_rule(jnp.sin, lambda x: jnp.cos(x) * jnp.where(jnp.abs(x) < 1e-4, factor, 1.0))
    points = {"x": InputSpec((4,), draw)}
    assert bool(verify(lambda x: jnp.sum(ruled(x)), points, points=500).wrong) == is_wrong


@pytest.mark.parametrize(("factor", "is_wrong"), [(1.0, False), (1.1, True)])
def test_a_rule_that_is_wrong_only_for_unit_vectors_is_found(factor, is_wrong):
    ruled = jax.custom_jvp(jnp.sin)
    is_unit = lambda v: jnp.sum(v != 0) == 1  # noqa: E731
    ruled.defjvp(lambda x, v: (ruled(*x), jnp.cos(*x) * v[0] * jnp.where(is_unit(v[0]), factor, 1.0)))
    assert bool(verify(lambda x: ruled(x), {"x": normal(3)}).wrong) == is_wrong


@pytest.mark.parametrize(("factor", "is_wrong"), [(1.0, False), (1.1, True)])
def test_a_rule_that_is_wrong_only_where_two_elements_tie_is_found(factor, is_wrong):
    def draw(generator, rows):
        return np.where(rows[:, None] == 13, [0.5, 0.5, 0.2, 0.3], generator.uniform(-1, 1, (len(rows), 4)))

    ruled = with_rule(jnp.sin, lambda x: jnp.cos(x) * jnp.where(x == jnp.roll(x, 1), factor, 1.0))
    assert bool(verify(lambda x: ruled(x), {"x": InputSpec((4,), draw)}).wrong) == is_wrong


def test_a_right_derivative_is_not_refuted_where_three_elements_tie():
    ties = InputSpec((6,), lambda generator, rows: generator.integers(-2, 3, (len(rows), 6)).astype(float))
    computed = verify(lambda x: jnp.sort(x) * jnp.arange(6.0), {"x": ties}, points=60)
    assert not (computed.wrong or computed.unsure)


@pytest.mark.thin(2, "thorough")
@pytest.mark.parametrize(("factor", "is_wrong"), [(1.3, True), (1.0, False)])
def test_a_wrong_rule_is_found_at_a_point_where_other_outputs_cancel_less_than_elsewhere(factor, is_wrong):
    ruled = with_rule(jnp.sin, lambda x: jnp.cos(x) * jnp.where(x > 0.9999, factor, 1.0))
    cancelling = lambda x: jax.nn.log_softmax(jnp.arange(30.0) ** 2 * x)  # noqa: E731
    points = {"x": InputSpec((), lambda generator, rows: np.where(rows == 321, 0.99995, rows / 600))}
    assert bool(verify(lambda x: jnp.append(cancelling(x), ruled(x)), points, points=500).wrong) == is_wrong


@pytest.mark.thin(3, "thorough")
@pytest.mark.parametrize(("factor", "is_wrong"), [(1.0, False), (1.1, True)])
@pytest.mark.parametrize("name", ["a median", "inputs of very different sizes"])
def test_a_wrong_rule_is_found_behind(factor, is_wrong, name):
    sizes = InputSpec((3,), lambda generator, rows: 10 ** generator.uniform(-12, 12, (len(rows), 3)))
    function, outer, x = (jnp.sin, jnp.median, normal(3)) if name == "a median" else (jnp.log, jnp.sum, sizes)
    slopes = lambda x: jax.vmap(jax.grad(function))(x) * jnp.where(x < 1e-9, factor, 1.0)  # noqa: E731
    computed = verify(lambda x: outer(with_rule(function, slopes)(x)), {"x": x})
    assert bool(computed.wrong) == is_wrong and not computed.unsure


@pytest.mark.parametrize(("factor", "is_wrong"), [(1.0, False), (1.1, True)])
def test_outputs_that_rounding_hides_at_all_points_do_not_hide_a_wrong_rule(factor, is_wrong):
    sine = with_rule(jnp.sin, lambda x: factor * jnp.cos(x))
    hidden = lambda x: jnp.stack([1e8 + 1e-9 * x[0], sine(x[1])])  # noqa: E731
    assert bool(verify(hidden, {"x": normal(2)}).wrong) == is_wrong


@pytest.mark.parametrize("value", [1.0, 1e-5])
def test_each_direction_that_confirms_a_derivative_changes_an_input(value, monkeypatch):
    compared, compare = [], verification._compare_along_all
    monkeypatch.setattr(
        verification, "_compare_along_all", lambda *words: compared.extend(words[1]) or compare(*words)
    )
    x = InputSpec((3,), lambda _, rows: np.full((len(rows), 3), [1.0, 1.0, value]))
    assert not verify(lambda x: jnp.sin(x), {"x": x}, points=2).wrong
    assert len(compared) == (6 if value < 1e-3 else 5) and all(direction["x"].any() for direction in compared)


def test_a_derivative_that_is_mere_rounding_errors_is_not_confirmed(monkeypatch):
    def measure(measured, evaluation, arrays, *rest):
        noise = evaluations.rounding_range(measured, evaluation, arrays, *rest)
        return noise if noise.ndim == 2 else np.abs(measured(evaluation, arrays))

    monkeypatch.setattr(verification, "rounding_range", measure)
    sine = with_rule(jnp.sin, lambda x: 1.3 * jnp.cos(x))
    assert verify(lambda x: sine(x), {"x": normal(3)}).unsure


@pytest.mark.thin(3, "thorough")
@pytest.mark.parametrize(
    "function",
    [
        lambda x: jax.nn.softplus(x) * (x[:1] ** jnp.arange(3.0)),
        lambda x: jax.nn.softplus(x) * (-1 - x**2) ** (3 + 0 * x),  # NaN if the exponent has an error
        lambda x: jnp.sort(jax.nn.softplus(x)),
    ],
)
def test_a_right_derivative_is_not_refuted_where_powers_have_whole_exponents_and_elements_tie(function):
    ties = InputSpec((3,), lambda g, rows: np.where(rows[:, None] % 3, g.standard_normal((len(rows), 3)), 1))
    assert verify(function, {"x": ties}, points=100).wrong is None


def test_a_derivative_at_several_kinks_that_coincide_is_neither_right_nor_wrong():
    points = {"x": InputSpec((), lambda generator, rows: np.where(rows == 3, 0.0, np.cos(rows)))}
    computed = verify(lambda x: 2 * jax.nn.relu(x) - jax.nn.relu(-x), points)
    assert computed.wrong is None
    assert "do not confirm the derivative that JAX computes at point 3, where" in computed.unsure


@pytest.mark.thin(2, "thorough")
@pytest.mark.parametrize("spacing", [2.0**-12, 2.0**-20, 2.0**-26])
def test_a_function_of_small_jumps_refutes_no_derivative_that_is_right_between_them(spacing):
    jumps = lambda x: jax.nn.relu(x) + jnp.floor(x / spacing) * spacing  # noqa: E731
    assert verify(jumps, {"x": normal(5)}).wrong is None


def test_a_ripple_that_only_the_shortest_steps_resolve_refutes_no_right_derivative():
    rippled = with_rule(lambda x: x + 1e-10 * jnp.sin(1e8 * x), lambda x: 1 + 0.01 * jnp.cos(1e8 * x))
    assert verify(lambda x: rippled(x), {"x": normal(4)}, dtype="float64").wrong is None


@pytest.mark.parametrize("spacing", [2.0**-12, 2.0**-20])
def test_a_derivative_that_ignores_the_jumps_of_its_function_is_not_confirmed(spacing):
    rounded = with_rule(lambda x: jnp.floor(x / spacing) * spacing, jnp.ones_like)
    computed = verify(lambda x: rounded(x) ** 2, {"x": normal(5)})
    assert computed.wrong or computed.unsure


@pytest.mark.parametrize(("factor", "reason"), [(1.0, None), (1.2, "wrong_answer")])
def test_a_sample_detects_an_error_by_an_input_of_small_influence(factor, reason, monkeypatch):
    weights = np.linspace(1.0, 2.0, 5)

    def function(a, b):
        return jnp.sum(jnp.sin(a)) * jnp.ones(5, a.dtype) + 1e-6 * weights * jnp.sum(jnp.sin(b))

    built = Workload(function, {"a": normal(40), "b": normal(30)}, wrt="a+b")
    module = workload.import_workload
    mine = SimpleNamespace(workload=lambda case: built)
    monkeypatch.setattr(workload, "import_workload", lambda name: mine if name == "mine" else module(name))
    monkeypatch.setattr(references, "BUDGET_SECONDS", 0.0)
    case = case_rules.complete(Case("mine", api="jit", points=3, mode="jacfwd", wrt="a+b"))
    arrays = evaluations.inputs.exact_inputs(case, built, 0, 3)
    by_a, by_b = (np.cos(arrays[name])[:, None].repeat(5, axis=1) for name in ("a", "b"))
    result = np.concatenate([by_a, factor * 1e-6 * weights[:, None] * by_b], axis=2).astype(np.float32)
    assert check.verdict(describe_derivative(case, built), result, "cpu").reason == reason


@pytest.mark.filterwarnings("error")
def test_an_input_without_elements_has_no_size_to_average():
    assert evaluations.element_sizes(np.zeros((5, 0))).shape == (5, 0)
