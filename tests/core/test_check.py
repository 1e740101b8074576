"""What the check must not be talked into: wrong answers that are hard to tell, and references that prove nothing."""

import dataclasses
import functools
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from scaling.core import check, inputs, layout, process_cache, run_case, workload
from scaling.core import reference as reference_of_case
from scaling.core.case import Case, Refusal
from scaling.core.inputs import InputSpec
from scaling.core.pattern import Pattern
from scaling.core.record import Record
from scaling.core.shape import derivative_shape
from scaling.core.workload import Reference, Workload, normal, uniform
from scaling.study import completion
from tests.support.devices import HERE, ONCE
from tests.support.problems import PROBLEMS

pytestmark = pytest.mark.thin(20, "contract")


def with_rule(function, factor):
    """The function, with a derivative that is `factor` times its own."""

    @jax.custom_jvp
    def changed(x):
        return function(x)

    changed.defjvp(lambda x, v: (function(*x), factor * jax.jvp(function, x, v)[1]))
    return changed


def zeros(*shape):
    return InputSpec(shape, lambda _, rows: np.zeros((len(rows), *shape)))


def put(made, monkeypatch):
    """Have this workload found, whatever is asked for."""
    process_cache.clear("expected result")
    monkeypatch.setattr(workload, "build", lambda case, *_: made)


def outcome(made, monkeypatch, mode="jacfwd", dtype="float64", batch="vmap"):
    """The record of a workload made here."""
    put(made, monkeypatch)
    case = Case(
        "poisson", target="gradient", points=6, wrt=made.wrt, mode=mode, dtype=dtype, api="jit", batch=batch
    )
    record = run_case.run_case(Record(case, "failed", HERE), jax.devices()[:1], "cpu", ONCE)
    process_cache.clear("expected result")
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

    record = outcome(
        Workload(lambda x: jnp.sin(x), {"x": normal(4)}, wrt="x", reference=reference), monkeypatch
    )
    assert record.status == "failed" and "not finite" in record.text


def test_a_reference_or_a_derivative_of_another_shape_is_not_broadcast(monkeypatch):
    def reference(inputs):
        return Reference(np.sin(inputs["x"]), np.cos(inputs["x"])[:, :, None])

    record = outcome(
        Workload(lambda x: jnp.sin(x), {"x": normal(4)}, wrt="x", reference=reference), monkeypatch
    )
    assert record.status == "failed" and "shape (6, 4, 1), not (6, 4, 4)" in record.text
    by_hand = {"analytic": lambda x: jnp.ones((x.shape[0], 3, 1), x.dtype)}
    made = Workload(
        lambda x: jnp.sum(x) * jnp.ones(3, x.dtype), {"x": normal(4)}, wrt="x", whole_modes=by_hand
    )
    record = outcome(made, monkeypatch, mode="analytic")
    assert record.status == "failed" and "(6, 3, 4) is expected" in record.text


def test_the_right_reference_passes_and_a_percent_off_does_not(monkeypatch):
    case = completion.complete(Case(**PROBLEMS["residual by both"] | {"api": "jit"}))
    right = workload.build(case)

    def wrong(inputs):
        said = right.reference(inputs)
        return said._replace(derivative=said.derivative * 1.01)

    for made, reason in ((right, None), (dataclasses.replace(right, reference=wrong), "wrong_answer")):
        put(made, monkeypatch)
        worked = run_case.run_case(Record(case, "failed", HERE), jax.devices()[:1], "cpu", ONCE)
        assert worked.reason == reason
    process_cache.clear("expected result")


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
    monkeypatch.setattr(workload, "module", lambda _: SimpleNamespace(workload=lambda case, *_: made))
    case = completion.complete(
        Case("mine", target=target, mode="fwd_over_rev", points=6, api="jit", dtype=dtype)
    )
    built = workload.build(case)
    with jax.enable_x64(dtype == "float64"):
        program = layout.lay_out(case, built, jax.devices()[:1])
        got = program.collect(program.function(*layout.place_inputs(case, built, program))).copy()
    assert check.verdict(case, built, program.sizes, got, "cpu").reason is None
    got[3].flat[0] += 1e-2
    assert check.verdict(case, built, program.sizes, got, "cpu").reason == "wrong_answer"


def test_a_sum_of_so_many_terms_that_no_digit_is_sure_is_skipped_and_not_called_wrong():
    case = completion.complete(Case("rbf", points=100, mode="jacfwd", api="jit", dtype="bfloat16"))
    record = run_case.run_case(Record(case, "failed", {"digest": "test"}), jax.devices()[:1], "cpu", ONCE)
    assert (record.status, record.reason, record.seconds) == ("skipped", "no_digits", [])
    assert "100 terms" in record.text


# What is made of a Jacobian.

REDUCTIONS = ("outputs", "inputs", "vector", "norm", "gram")
REDUCED = ("rbf in three dimensions", "linear by both", "residual by both", "poisson")


def jacobian(case, built):
    """The Jacobians of a case in its own dtype, and the inputs that they are by: (points, outputs, inputs), (points, inputs)."""
    rows = {name: jnp.asarray(inputs.point_rows(case, built, name, 0, case.points)) for name in built.points}
    rest = {name: jnp.asarray(inputs.shared_input(case, built, name)) for name in built.shared}

    def of_one(one):
        named = {**one, **rest}
        x = [named[name] for name in built.names]
        f = lambda *z: jnp.ravel(built.function(**{**named, **dict(zip(built.names, z, strict=True))}))  # noqa: E731
        parts = jax.jacfwd(f, argnums=tuple(range(len(x))))(*x)
        joined = jnp.concatenate([part.reshape(part.shape[0], -1) for part in parts], axis=1)
        return joined, jnp.concatenate([a.reshape(-1) for a in x])

    return jax.jit(jax.vmap(of_one))(rows)


def made_of(how, J, x):
    """The same numbers as a mode would give them, in the dtype of J."""
    if how == "gram":
        return jnp.einsum("poa,pob->pab", J, J)
    if how == "norm":
        return jnp.sum(J**2, axis=(1, 2))[:, None, None]
    if how == "vector":
        return jnp.einsum("poa,pa->po", J, x)[:, :, None]
    if how == "points":
        return jnp.sum(J, axis=(0, 1))[None, None]
    return J if how is None else jnp.sum(J, axis={"outputs": 1, "inputs": 2}[how], keepdims=True)


def problem(name, **fields):
    """A completed case, its workload and its shape, with the result's way left at the plain one."""
    case = completion.complete(Case(**PROBLEMS[name] | {"api": "jit", "mode": "jacfwd"} | fields))
    built = workload.build(case)
    return case, built, derivative_shape(case, built)


@pytest.mark.parametrize("reference", ["closed form", "computed"])
@pytest.mark.parametrize("how", REDUCTIONS)
@pytest.mark.parametrize("name", REDUCED)
def test_a_right_reduction_passes_and_one_entry_of_the_jacobian_a_thousandth_off_does_not(
    name, how, reference
):
    dtype = "float32" if (REDUCED.index(name) + REDUCTIONS.index(how)) % 2 else "float64"
    with jax.enable_x64(dtype == "float64"):
        case, built, sizes = problem(name, reduce=how, dtype=dtype)
        J, x = jacobian(case, built)
        got = np.asarray(made_of(how, J, x))
    if reference == "computed":
        built = dataclasses.replace(built, reference=None)
    found = check.verdict(case, built, sizes, got, "cpu")
    assert found.reason is None and found.error < (1e-6 if reference == "closed form" else 1e-3), found
    if name == "poisson" and dtype == "float32" and reference != "closed form":
        return  # lgamma and digamma in float32 have fewer digits than this
    J, x = np.array(J, np.float64), np.asarray(x, np.float64)
    point = case.points - 2
    # Where it matters: the largest entry, or the one that a product with the point itself makes most of.
    seen = np.abs(J[point] * x[point]) if how == "vector" else np.abs(J[point])
    J[point].flat[seen.argmax()] *= 1.001
    found = check.verdict(case, built, sizes, np.asarray(made_of(how, jnp.asarray(J, np.float64), x)), "cpu")
    assert found.reason == "wrong_answer" and f"point {point} is wrong" in found.text


@pytest.mark.parametrize("how", [None, *REDUCTIONS, "points"])
@pytest.mark.parametrize("factor, reason", [(1.0, None), (1.01, "wrong_answer"), (-7.0, "wrong_answer")])
def test_a_wrong_rule_is_found_whatever_is_made_of_the_jacobian(factor, reason, how, monkeypatch):
    f = with_rule(lambda z: jnp.stack([jnp.sin(z[0]) * z[1], z[2] ** 2 + jnp.exp(z[0])]), factor)
    mine, shared = {"x": normal(3)}, {"w": normal(3)}
    made = Workload(lambda x, w: f(x * w), mine, shared, wrt="w" if how == "points" else "x", reduce=how)
    for mode in ("jacfwd", "jacrev"):
        record = outcome(made, monkeypatch, mode=mode)
        assert record.reason == reason, record.text


@pytest.mark.parametrize("how", REDUCTIONS)
@pytest.mark.parametrize("factor, reason", [(1.0, None), (1.5, "wrong_answer")])
def test_a_large_constant_hides_no_wrong_reduction(factor, reason, how, monkeypatch):
    f = with_rule(jnp.sin, factor)
    made = Workload(lambda x: 1e8 + f(x), {"x": normal(4)}, wrt="x", reduce=how)
    record = outcome(made, monkeypatch)
    assert record.reason == reason, record.text


@pytest.mark.parametrize("how", REDUCTIONS)
def test_inputs_at_the_edge_of_their_domain_are_not_left(how, monkeypatch):
    def near_zero(generator, rows):
        return np.where(np.arange(5) == 2, 5e-5, generator.uniform(0.2, 1.0, (len(rows), 5)))

    made = Workload(
        lambda x: jnp.log(x) + jnp.sqrt(x), {"x": InputSpec((5,), near_zero)}, wrt="x", reduce=how
    )
    record = outcome(made, monkeypatch)
    assert record.reason is None, record.text


@pytest.mark.parametrize("factor, reason", [(1.0, None), (1.5, "wrong_answer")])
def test_an_input_that_is_zero_makes_no_step_so_short_that_a_large_constant_hides_a_sum(
    factor, reason, monkeypatch
):
    f = with_rule(jnp.sin, factor)
    draw = InputSpec((4,), lambda generator, rows: generator.standard_normal((len(rows), 4)) * [1, 0, 1, 1])
    record = outcome(Workload(lambda x: 1e9 + f(x), {"x": draw}, wrt="x", reduce="inputs"), monkeypatch)
    assert record.reason == reason, record.text


@pytest.mark.parametrize("how", REDUCTIONS)
def test_a_jacobian_that_is_zero_is_right_as_zero_and_wrong_as_anything_else(how):
    case = Case("poisson", target="gradient", points=6, wrt="x", api="jit", dtype="float64")
    zero = lambda named: Reference(np.zeros((len(named["x"]), 3)), np.zeros((len(named["x"]), 3, 4)))  # noqa: E731
    for reference in (zero, None):
        made = Workload(lambda x: 0 * x[:3], {"x": normal(4)}, wrt="x", reduce=how, reference=reference)
        sizes = derivative_shape(case, made)
        got = np.asarray(made_of(how, jnp.zeros((6, 3, 4)), np.ones((6, 4))))
        process_cache.clear("expected result")
        with pytest.MonkeyPatch.context() as patched:
            put(made, patched)
            assert check.verdict(case, made, sizes, got, "cpu").reason is None
            assert check.verdict(case, made, sizes, got + 1e-3, "cpu").reason == "wrong_answer"
    process_cache.clear("expected result")


@pytest.mark.parametrize("how", [*REDUCTIONS, "points"])
def test_a_finite_step_is_allowed_its_own_error_and_no_more(how):
    fields = {"mode": "finite_difference", "reduce": how, "dtype": "float64"}
    case, built, sizes = problem("linear by W" if how == "points" else "rbf in three dimensions", **fields)
    with jax.enable_x64(True):
        program = layout.lay_out(case, built, jax.devices()[:1])
        got = program.collect(program.function(*layout.place_inputs(case, built, program))).copy()
    for known in (built, dataclasses.replace(built, reference=None)):
        found = check.verdict(case, known, sizes, got, "cpu")
        assert found.reason is None and 1e-12 < found.tolerance < 1e-4, found
        wrong = got.copy()
        wrong[-1].flat[np.abs(wrong[-1]).argmax()] *= 1.01
        assert check.verdict(case, known, sizes, wrong, "cpu").reason == "wrong_answer"


WEIGHTS = np.random.default_rng(0).uniform(0.3, 0.6, (7, 5))


@pytest.mark.parametrize("reference", ["closed form", "computed"])
@pytest.mark.parametrize("how", [None, *REDUCTIONS, "points"])
def test_the_error_of_a_finite_step_is_within_its_bound_where_everything_bends_the_same_way(
    how, reference, monkeypatch
):
    value = lambda x: np.exp(x @ WEIGHTS.T)  # noqa: E731
    closed = lambda named: Reference(value(z := named["x"] + named["w"]), value(z)[:, :, None] * WEIGHTS)  # noqa: E731
    made = Workload(
        lambda x, w: jnp.exp(WEIGHTS @ (x + w)),
        {"x": uniform(5, low=0.5)},
        {"w": uniform(5, low=0.5)},
        reduce=how,
    )
    made = dataclasses.replace(made, wrt="w" if how == "points" else "x")
    made = dataclasses.replace(made, reference=closed if reference == "closed form" else None)
    put(made, monkeypatch)
    case = Case(
        "poisson",
        target="gradient",
        points=6,
        wrt=made.wrt,
        mode="finite_difference",
        dtype="float64",
        api="jit",
    )
    named, step = inputs.exact_inputs(case, made, 0, 6), 1e-6
    z = named["x"] + named["w"]
    got = made_of(
        how, np.stack([(value(z + step * row) - value(z)) / step for row in np.eye(5)], axis=2), named["x"]
    )
    if (
        how == "vector"
    ):  # one difference along the point itself, which sees what bends between the inputs as well
        got = ((value(z + step * named["x"]) - value(z)) / step)[:, :, None]
    got, sizes = np.asarray(got, np.float64), derivative_shape(case, made)
    found = check.verdict(case, made, sizes, got, "cpu")
    assert found.reason is None and 1e-8 < found.error < found.tolerance < 1e-4, found
    assert check.verdict(case, made, sizes, got * 1.001, "cpu").reason == "wrong_answer"
    process_cache.clear("expected result")


# A sum over points.


@pytest.mark.parametrize("reference", ["closed form", "computed"])
@pytest.mark.parametrize("mode", ["jacfwd", "value"])
def test_of_a_sum_over_points_every_copy_is_checked_and_no_block_is_left_out(mode, reference, monkeypatch):
    case, built, sizes = problem("linear by W", reduce="points", points=13, mode=mode, dtype="float64")
    if reference == "computed":
        built = dataclasses.replace(built, reference=None)
    with jax.enable_x64(True):
        named = inputs.exact_inputs(case, built, 0, 13)
        J = jacobian(*problem("linear by W", reduce="whole", points=13, dtype="float64")[:2])[0]
        right = (
            np.asarray(made_of("points", J, None))
            if mode == "jacfwd"
            else np.sum(named["X"] @ named["W"]).reshape(1, 1, 1)
        )
    found = {}
    for numbers in (2**16, 20):  # all points at once, or one after the other
        monkeypatch.setattr(reference_of_case, "_RANGE_NUMBERS", numbers)
        found[numbers] = check.verdict(case, built, sizes, np.repeat(right, 3, axis=0), "cpu")
        assert found[numbers].reason is None
        for copy in range(3):
            wrong = np.repeat(right, 3, axis=0)
            wrong[copy].flat[0] *= 1.0001
            verdict = check.verdict(case, built, sizes, wrong, "cpu")
            assert verdict.reason == "wrong_answer" and f"copy {copy} is wrong" in verdict.text
    assert len(list(check.point_ranges(check.reference_spec(case, built, sizes, "cpu", None)))) == 13
    assert abs(found[20].error - found[2**16].error) < 1e-9


def test_a_point_that_a_sum_over_points_leaves_out_is_missed():
    case, built, sizes = problem("linear by W", reduce="points", points=13)
    J = np.array(jacobian(*problem("linear by W", reduce="whole", points=13)[:2])[0])
    for known in (built, dataclasses.replace(built, reference=None)):
        assert check.verdict(case, known, sizes, np.asarray(made_of("points", J, None)), "cpu").reason is None
        assert (
            check.verdict(case, known, sizes, np.asarray(made_of("points", J[1:], None)), "cpu").reason
            == "wrong_answer"
        )


@pytest.mark.parametrize("how", [None, *REDUCTIONS, "points", "value"])
def test_a_result_of_another_shape_is_refused_and_not_broadcast(how):
    mode = "value" if how == "value" else "jacfwd"
    case, built, sizes = problem("linear by both" if how not in ("points", "value") else "linear by W", points=3, mode=mode,
                                 reduce="whole" if how in (None, "value") else how)  # fmt: skip
    o, k = sizes.outputs, sizes.inputs
    due = {
        None: (3, o, k),
        "outputs": (3, 1, k),
        "norm": (3, 1, 1),
        "gram": (3, k, k),
        "points": (1, 1, k),
    }.get(how, (3, o, 1))
    for known in (built, dataclasses.replace(built, reference=None)):
        check.verdict(case, known, sizes, np.zeros(due), "cpu")
        for wrong in {
            (1, *due[1:]),
            (2, *due[1:]),
            (3, 1, 1),
            (3, *due[1:], 1),
            (0, *due[1:]),
            (3, due[2], due[1]),
        } - {due}:
            if how == "points" and wrong[1:] == due[1:] and wrong[0]:
                continue  # so many copies
            with pytest.raises(Refusal, match="the result has the shape"):
                check.verdict(case, known, sizes, np.zeros(wrong), "cpu")


def test_the_first_point_or_copy_that_is_not_finite_is_named_wherever_it_is(monkeypatch):
    monkeypatch.setattr(check, "_SCANNED_NUMBERS", 40)
    for how, each, count in (("gram", "point", 13), ("points", "copy", 4)):
        case, built, sizes = problem("linear by W", reduce=how, points=13, sizes={"p": 3, "o": 2})
        right = np.zeros((count, 1 if how == "points" else 6, 6))
        for at in range(count):
            for bad in (np.nan, np.inf):
                wrong = right.copy()
                wrong[at].flat[-1] = wrong[-1].flat[2] = bad
                found = check.verdict(case, built, sizes, wrong, "cpu")
                assert (found.reason, found.text) == (
                    "not_finite",
                    f"the result is not finite at {each} {at}",
                )


@pytest.mark.parametrize("mode", ["jacfwd", "value"])
def test_a_sum_over_so_many_points_that_no_digit_is_sure_proves_nothing(mode):
    case, built, sizes = problem("linear by W", reduce="points", points=5000, dtype="bfloat16", mode=mode)
    got = np.zeros((1, 1, 1 if mode == "value" else sizes.inputs))
    for known in (built, dataclasses.replace(built, reference=None)):
        assert check.verdict(case, known, sizes, got, "cpu").reason == "no_digits"


# What is asked for is the same for every way of computing it.


def counted(made):
    """The same workload, and how often its reference was asked."""
    asked = SimpleNamespace(times=0)

    def reference(named):
        asked.times += 1
        return made.reference(named)

    return dataclasses.replace(made, reference=reference), asked


def test_what_is_wanted_is_worked_out_once_for_all_ways_and_never_for_another_reduction(monkeypatch):
    case, built, sizes = problem("rbf in three dimensions", reduce="norm", dtype="float64")
    made, asked = counted(built)
    process_cache.clear("expected result")
    ways = [
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
    got = np.asarray(made_of("norm", J, x))
    for way in ways:
        assert check.verdict(dataclasses.replace(case, **way), made, sizes, got, "cpu").reason is None
    assert asked.times == 1
    for how in (None, *REDUCTIONS):
        other, reduced, sizes = problem("rbf in three dimensions", reduce=how or "whole", dtype="float64")
        assert check.verdict(other, reduced, sizes, np.asarray(made_of(how, J, x)), "cpu").reason is None
    process_cache.clear("expected result")


# Coloured: the entries of a pattern.

CHAIN = (6, 9)  # outputs, inputs


def chain(named_pattern=True, dense=False):
    """f_o = sin(x_o) x_{o+2} + x_8^2 for even o: entries in a pattern that is neither square nor the same in every row."""
    outputs, n = CHAIN
    even = np.arange(outputs) % 2 == 0
    rows, cols = np.nonzero(pattern_of_chain())
    function = lambda x: jnp.sin(x[:outputs]) * x[2 : outputs + 2] + jnp.where(even, x[8] ** 2, 0.0)  # noqa: E731

    def entries(x):
        J = np.zeros((len(x), outputs, n))
        o = np.arange(outputs)
        J[:, o, o], J[:, o, o + 2] = np.cos(x[:, :outputs]) * x[:, 2 : outputs + 2], np.sin(x[:, :outputs])
        J[:, :, 8] += np.where(even, 2 * x[:, 8:], 0.0)
        return J

    def value(x):
        return np.sin(x[:, :outputs]) * x[:, 2 : outputs + 2] + np.where(even, x[:, 8:] ** 2, 0.0)

    made = Workload(function, {"x": normal(n, mean=1.0)}, wrt="x")
    if dense:
        made = dataclasses.replace(
            made, reference=lambda named: Reference(value(named["x"]), entries(named["x"]))
        )
    if not named_pattern:
        return made
    nonzeros = lambda named: Reference(value(named["x"]), entries(named["x"])[:, rows, cols][:, None])  # noqa: E731
    return dataclasses.replace(
        made, nonzeros=nonzeros, pattern=lambda: (rows.astype(np.int32), cols.astype(np.int32))
    )


def pattern_of_chain():
    where = np.zeros(CHAIN, bool)
    o = np.arange(CHAIN[0])
    where[o, o] = where[o, o + 2] = where[::2, 8] = True
    return where


@functools.cache
def whole_of_chain(case):
    return jacobian(case, chain())[0]


def case_of_chain(mode, dtype="float64"):
    """Return the case of the chain's Jacobian from coloured seeds."""
    return Case(
        "poisson", target="gradient", points=7, wrt="x", mode=mode, seeds="colored", dtype=dtype, api="jit"
    )


def of_chain(made, where, change=lambda J: J, dtype="float64"):
    """The verdict on the entries of the chain's Jacobian at these places."""
    case = case_of_chain(mode="jacrev", dtype=dtype)
    with jax.enable_x64(dtype == "float64"):
        J = change(np.array(whole_of_chain(case)))
        rows, cols = np.nonzero(where)
        pattern = Pattern(rows.astype(np.int32), cols.astype(np.int32), *CHAIN)
        with pytest.MonkeyPatch.context() as patched:
            put(made, patched)
            found = check.verdict(
                case, made, derivative_shape(case, made), J[:, rows, cols][:, None], "cpu", pattern=pattern
            )
    process_cache.clear("expected result")
    return found


REFERENCES = {"nonzeros": (True, False), "dense": (False, True), "both": (True, True), "none": (False, False)}


@pytest.mark.parametrize("reference", REFERENCES)
def test_entries_of_a_pattern_are_checked_and_what_it_lacks_counts_as_zero(reference):
    made, where = chain(*REFERENCES[reference]), pattern_of_chain()
    for dtype in ("float32", "float64"):
        assert of_chain(made, where, dtype=dtype).reason is None
    more = where.copy()
    more[2, 3] = more[5, 0] = more[0, 1] = True
    assert of_chain(made, more).reason is None
    for place in zip(*np.nonzero(where), strict=True):  # whichever it is
        fewer = where.copy()
        fewer[place] = False
        found = of_chain(made, fewer)
        assert found.reason == "wrong_answer", place
        assert ("the pattern lacks 1" in found.text) == (reference in ("nonzeros", "both"))

        def off(J, place=place):
            J[(3, *place)] *= 1.001
            return J

        found = of_chain(made, where, off)
        assert found.reason == "wrong_answer" and "point 3 is wrong" in found.text, place

    def at_a_zero(J):
        J[5, 2, 3] = 1e-3
        return J

    assert of_chain(made, more, at_a_zero).reason == "wrong_answer"
    assert of_chain(made, np.ones(CHAIN, bool)).reason is None


@pytest.mark.parametrize("reference", REFERENCES)
def test_entries_by_a_finite_step_are_allowed_its_error_and_no_more(reference):
    made, rows_cols = chain(*REFERENCES[reference]), np.nonzero(pattern_of_chain())
    case = case_of_chain(mode="finite_difference")
    x, step = inputs.exact_inputs(case, made, 0, 7)["x"], 1e-6
    f = lambda x: chain().nonzeros({"x": x}).value  # noqa: E731
    J = np.stack([(f(x + step * row) - f(x)) / step for row in np.eye(CHAIN[1])], axis=2)
    pattern = Pattern(*(a.astype(np.int32) for a in rows_cols), *CHAIN)
    got = J[:, *rows_cols][:, None]
    with pytest.MonkeyPatch.context() as patched:
        put(made, patched)
        found = check.verdict(case, made, derivative_shape(case, made), got, "cpu", pattern=pattern)
        assert found.reason is None and 1e-9 < found.error < found.tolerance < 1e-4
        assert (
            check.verdict(
                case, made, derivative_shape(case, made), got * 1.001, "cpu", pattern=pattern
            ).reason
            == "wrong_answer"
        )
    process_cache.clear("expected result")


def test_what_is_written_by_hand_lies_on_the_workloads_own_pattern():
    made = chain()
    case = case_of_chain(mode="analytic")
    with jax.enable_x64(True):
        sizes, got = (
            derivative_shape(case, made),
            made.nonzeros(inputs.exact_inputs(case, made, 0, 7)).derivative,
        )
    with pytest.MonkeyPatch.context() as patched:
        put(made, patched)
        assert check.verdict(case, made, sizes, got, "cpu").reason is None
        assert check.verdict(case, made, sizes, got * 1.001, "cpu").reason == "wrong_answer"
    process_cache.clear("expected result")
    with pytest.raises(Refusal, match="has no pattern"):
        check.verdict(case, chain(False, True), sizes, got, "cpu")


@pytest.mark.parametrize("dense", [False, True])
@pytest.mark.parametrize("how", [None, *REDUCTIONS, "value"])
def test_where_the_nonzeros_are_known_nothing_is_written_out_to_be_summed(how, dense, monkeypatch):
    made = chain(True, dense)
    mode = "value" if how == "value" else "jacfwd"
    made = dataclasses.replace(made, reduce=None if how == "value" else how)
    case = Case("poisson", target="gradient", points=7, wrt="x", mode=mode, dtype="float64", api="jit")
    with jax.enable_x64(True):
        sizes = derivative_shape(case, made)
        J, x = jacobian(case, made)
        got = (
            made.nonzeros(inputs.exact_inputs(case, made, 0, 7)).value[:, :, None]
            if mode == "value"
            else made_of(how, J, x)
        )
    if how not in (None, "gram"):
        made = dataclasses.replace(
            made, reference=None if not dense else lambda named: pytest.fail("written out")
        )
    put(made, monkeypatch)
    assert check.verdict(case, made, sizes, np.asarray(got), "cpu").reason is None
    wrong = np.array(got)
    wrong[4].flat[0] += 1e-3
    assert check.verdict(case, made, sizes, wrong, "cpu").reason == "wrong_answer"
    process_cache.clear("expected result")


@pytest.mark.parametrize("said", ["another shape", "not finite"])
def test_nonzeros_that_are_not_of_the_pattern_or_not_finite_prove_nothing(said):
    made = chain()

    def wrong(named):
        right = made.nonzeros(named)
        return right._replace(
            derivative=right.derivative[:, :, 1:] if said == "another shape" else right.derivative * np.nan
        )

    with pytest.raises(Refusal, match="shape" if said == "another shape" else "not finite"):
        of_chain(dataclasses.replace(made, nonzeros=wrong), pattern_of_chain())


@pytest.mark.parametrize("reference", ["closed form", "computed"])
@pytest.mark.parametrize("how", ["outputs", "inputs"])
@pytest.mark.parametrize("mode", ["jacfwd", "jacrev"])
def test_a_sum_that_cancels_is_judged_by_its_terms(mode, how, reference, monkeypatch):
    def closed(named):  # of a softmax all columns and all rows add up to nothing
        e = np.exp(named["x"])
        p = e / e.sum(axis=1, keepdims=True)
        return Reference(p, p[:, :, None] * np.eye(5) - p[:, :, None] * p[:, None, :])

    made = Workload(jax.nn.softmax, {"x": normal(5)}, wrt="x", reduce=how)
    made = dataclasses.replace(made, reference=closed if reference == "closed form" else None)
    record = outcome(made, monkeypatch, mode=mode, dtype="float32")
    assert record.reason is None, record.text
    wrong = dataclasses.replace(
        made, function=lambda x: jax.nn.softmax(x) + 1e-2 * (x - jax.lax.stop_gradient(x))
    )
    assert outcome(wrong, monkeypatch, mode=mode, dtype="float32").reason == "wrong_answer"


@pytest.mark.parametrize("how", [None, *REDUCTIONS])
@pytest.mark.parametrize("reference", ["closed form", "computed"])
def test_where_the_batch_is_one_number_what_is_reduced_is_the_sum_over_outputs(reference, how, monkeypatch):
    def closed(named):
        x = named["x"]
        J = np.zeros((len(x), 2, 3))
        J[:, 0, 0], J[:, 0, 1], J[:, 1, 2] = np.cos(x[:, 0]) * x[:, 1], np.sin(x[:, 0]), 2 * x[:, 2]
        return Reference(np.stack([np.sin(x[:, 0]) * x[:, 1], x[:, 2] ** 2], axis=1), J)

    one = lambda x: jnp.stack([jnp.sin(x[0]) * x[1], x[2] ** 2])  # noqa: E731
    made = Workload(one, {"x": normal(3)}, wrt="x", reduce=how, whole=lambda x: jnp.sum(jax.vmap(one)(x)))
    made = dataclasses.replace(made, reference=closed if reference == "closed form" else None)
    put(made, monkeypatch)
    case = Case(
        "poisson",
        target="gradient",
        points=6,
        wrt="x",
        mode="jacrev",
        batch="whole",
        dtype="float64",
        api="jit",
    )
    with jax.enable_x64(True):
        sizes, (J, x) = derivative_shape(case, made), jacobian(case, made)
        summed = jnp.sum(J, axis=1, keepdims=True)
        got, wrong = (np.asarray(made_of(how, a, x)) for a in (summed, summed.at[2, 0, 1].multiply(1.001)))
    assert sizes.summed
    assert check.verdict(case, made, sizes, got, "cpu").reason is None
    assert check.verdict(case, made, sizes, wrong, "cpu").reason == "wrong_answer"
    process_cache.clear("expected result")


@pytest.mark.parametrize("roundings, reason", [(4, None), (4000, "wrong_answer")])
def test_an_entry_next_to_zero_at_a_single_point_may_be_off_by_roundings_of_the_others(roundings, reason):
    fields = {"workload": "rbf", "target": "grad", "points": 1, "sizes": {"m": 1000}, "api": "jit"}
    case = completion.complete(Case(**fields, mode="jacrev", dtype="float32"))
    built = workload.build(case)
    sizes = derivative_shape(case, built)
    J = np.array(jacobian(case, built)[0], np.float32)
    nearest, typical = np.abs(J).argmin(), np.sqrt(np.mean(J**2))
    assert abs(J.flat[nearest]) < 1e-3 * typical
    J.flat[nearest] += roundings * np.finfo(np.float32).eps / 2 * typical
    assert check.verdict(case, built, sizes, J, "cpu").reason == reason
