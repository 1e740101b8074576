"""Advice: every candidate is listed, the measured ones are checked, and the best is returned as a function."""

import dataclasses
import functools
import os
import re
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import scaling
from scaling.advice import advisor, candidates, measurement, plain_code, problem
from scaling.core import run_case
from scaling.core.case import FIELDS, Case, Refusal
from scaling.core.record import Record
from scaling.programs import kernel_work
from scaling.study import case_rules
from scaling.study.configuration import compose
from scaling.study.grid import expand_study
from tests.support import ceilings, devices  # noqa: F401
from tests.support.paths import TOP

X = np.random.default_rng(0).normal(size=(40, 5)).astype(np.float32)
K = np.linspace(0.5, 1.5, 4, dtype=np.float32)


@pytest.fixture(autouse=True)
def made_up_peaks(monkeypatch):
    peaks = lambda cases: [r for n in {c.devices for c in cases} for r in ceilings.all_of(n)]  # noqa: E731
    monkeypatch.setattr(measurement, "_load_or_measure_peaks", peaks)


def planned(case, seconds):
    return Record(case, "planned", {}, predicted={"seconds": seconds})


def force(x, k):
    return k * jnp.sin(x[1:] - x[:-1])


@jax.custom_jvp
def wrong(x):
    return jnp.sin(x)


wrong.defjvp(lambda primals, tangents: (jnp.sin(primals[0]), 2 * jnp.cos(primals[0]) * tangents[0]))


@jax.custom_vjp
def search(x, k):
    return jax.lax.while_loop(lambda y: jnp.sum(y) < 9, lambda y: 2 * y + k, x[1:] ** 2)


search.defvjp(lambda x, k: (search(x, k), (x, k)), lambda xk, y: (jnp.pad(search(*xk) * y, (1, 0)), y))


@pytest.mark.parametrize(("size", "detected"), [(4, True), (400, False)])
def test_the_pattern_of_a_function_with_many_operations_is_not_detected(size, detected, monkeypatch):
    detections = []
    monkeypatch.setattr(candidates, "detect_coloring", lambda *_: detections.append(True) or 1 / 0)

    def scaled_rows(x, a):  # the product of two matrices
        return jnp.diag(x) @ a @ x

    structs = [jax.ShapeDtypeStruct(shape, "float32") for shape in ((1, size), (size, size))]
    with problem.registered(problem.make_problem(scaled_rows, {"x": structs[0]}, {"a": structs[1]})) as base:
        if detected:
            with pytest.raises(ZeroDivisionError):
                candidates.find_useful_coloring(base)
        else:
            assert candidates.find_useful_coloring(base) is None
    assert bool(detections) == detected


def test_without_a_budget_nothing_runs_and_all_candidates_are_predicted(monkeypatch):
    monkeypatch.setattr(advisor.measurement, "measure_candidates", None)
    advice = scaling.advise(force, {"x": X}, {"k": K}, budget=0)
    table = advice.table
    assert {"jacfwd", "jacrev"} == set(table["mode"].dropna()) and len(table) == 3
    assert (table["samples"] == 0).all()
    assert table["predicted_seconds"].notna().all()
    assert table["predicted_seconds"][1:].is_monotonic_increasing
    assert (table["memory_bytes"] >= X.nbytes + K.nbytes + 40 * 4 * 5 * 4).all()
    assert "predicted on this machine" in str(advice) and "nothing was measured" in str(advice)


def test_of_predictions_within_3_percent_the_plainest_program_is_advised():
    advice = scaling.advise(force, {"x": X}, {"k": K}, budget=0)
    plain, other, colored = (
        next(record.case for record in advice.records if record.case.mode == mode)
        for mode in ("jacrev", "jacfwd", "vmap_grad")
    )

    def best(*seconds):
        cases = (plain, dataclasses.replace(other, chunk=2), colored)
        records = [planned(case, s) for case, s in zip(cases, seconds, strict=True)]
        return cases.index(dataclasses.replace(advice, records=records).best.case)

    assert best(1.02, 1.01, 1.0) == 0
    assert best(1.04, 1.0, 1.01) == 1  # both differ from a plain program by one option
    assert best(1.04, 1.01, 1.0) == 2


def test_of_measured_times_that_are_not_distinguished_the_plainest_program_is_advised():
    advice = scaling.advise(force, {"x": X}, {"k": K}, budget=1)
    measured = advice.best
    cases = (dataclasses.replace(measured.case, chunk=2), dataclasses.replace(measured.case, chunk=None))

    def best(plain):
        samples = np.linspace(0.995, 1.005, 21)
        records = [
            dataclasses.replace(measured, case=case, seconds=list(seconds), turns=[10, 11])
            for case, seconds in zip(cases, (samples, plain * samples), strict=True)
        ]
        return cases.index(dataclasses.replace(advice, records=records).best.case)

    assert [best(plain) for plain in (0.9, 1.002, 1.02, 1.1)] == [1, 1, 0, 0]


def test_measured_times_with_too_few_samples_for_an_interval_are_compared_with_each_other():
    advice = scaling.advise(force, {"x": X}, {"k": K}, budget=0)
    seconds = {"jacfwd": 1.0, "jacrev": 2.5, "vmap_grad": 3.0}
    records = [
        dataclasses.replace(record, status="ok", seconds=2 * [seconds[record.case.mode]])
        for record in advice.records
    ]
    assert "takes 2.50 times as long.\n" in str(dataclasses.replace(advice, records=records))


def test_with_a_budget_the_measured_come_first_and_the_jacobian_is_that_of_jax():
    lines = []
    advice = scaling.advise(force, {"x": X}, {"k": K}, wrt="k", budget=2, note=lines.append)
    assert advice.best.seconds and not advice.best.reason
    assert all(record.error <= record.tolerance for record in advice.records if record.seconds)
    samples = list(advice.table["samples"] > 0)
    assert any(samples) and samples == sorted(samples, reverse=True)
    expected = jax.vmap(jax.jacfwd(force, 1), (0, None))(X, K)
    np.testing.assert_allclose(advice.jacobian(X, K), expected, rtol=1e-5, atol=1e-6)
    first, second, third, blank, *code = str(advice).splitlines()
    assert "measured" in first and "plain jacrev takes" in second and "memory" in third and not blank
    assert "\n".join(code) == advice.code and lines[1].startswith("4 x 4 entries at 40 points")


def test_the_memory_on_a_machine_without_a_model_is_that_of_the_measured_programs(monkeypatch):
    monkeypatch.setattr(advisor, "find_model", lambda device: None)
    advice = scaling.advise(force, {"x": X}, {"k": K}, budget=1)
    assert (advice.table["memory_bytes"].dropna() >= X.nbytes + K.nbytes + 40 * 4 * 5 * 4).all()
    assert re.search(r"It needs [1-9][\d.]* kB of memory", str(advice)), str(advice)


def test_the_command_of_a_method_runs_this_case_alone():
    advice = advisor.advise_case(Case("linear", sizes={"p": 40, "o": 3}), budget=0)
    predicted = [record for record in advice.records if record.predicted]
    assert len(predicted) > 1
    for best in predicted:
        command = dataclasses.replace(advice, records=[best]).code.removeprefix("scaling run ")
        config, _ = compose(command.split())
        overrides = {name: config[name] for name in (*FIELDS, "scaling", "where")}
        cells = expand_study(config["study"], overrides)
        assert [case_rules.complete(cell.case) for cell in cells] == [best.case], command


def test_a_wrong_derivative_is_never_advised():
    advice = scaling.advise(lambda x: wrong(x), {"x": X}, budget=1)
    assert not any(record.seconds for record in advice.records)
    with pytest.raises(Refusal, match=r"finite differences.*; budget=0 gives advice without a check"):
        print(advice)


def test_a_wrong_rule_of_unknown_time_is_not_referred_to_advice_without_a_check():
    @jax.custom_jvp
    def sine(x):
        return jnp.sin(x)

    call = lambda x: jax.pure_callback(lambda x: 2 * np.cos(x), x, x, vmap_method="expand_dims")  # noqa: E731
    sine.defjvp(lambda x, t: (sine(*x), call(*x) * t[0]))
    with pytest.raises(Refusal, match="finite differences") as refusal:
        str(scaling.advise(lambda x: sine(x), {"x": X}, budget=1))
    assert "budget=0" not in str(refusal.value)


def test_what_does_not_fit_is_left_out_with_its_figures(monkeypatch):
    monkeypatch.setattr(candidates.environment, "available_bytes", lambda: 3000)
    advice = scaling.advise(force, {"x": X}, {"k": K}, budget=0)
    assert advice.table["left_out"].str.contains("needs .* a device has 3.00 kB").all()
    with pytest.raises(Refusal, match=r"a device has 3.*; use fewer points or smaller inputs"):
        print(advice)
    assert "a device has 3" in repr(advice)  # a notebook must not end with an error


def test_a_function_that_captures_arrays_which_compiling_copies_until_nothing_is_free_is_refused(monkeypatch):
    captured = np.ones((1000, 1000), np.float32)
    monkeypatch.setattr(candidates.environment, "available_bytes", lambda idle=False: 20 * 10**6)
    product = jax.jit(lambda x: jnp.cos(captured @ x)[:5])
    with pytest.raises(
        Refusal, match=r"captures arrays of 4.00 MB, .* make them inputs that all points share"
    ):
        str(scaling.advise(product, {"x": np.ones((2, 1000), np.float32)}, budget=0))


def test_a_candidate_that_was_not_measured_is_left_out_with_the_reason(monkeypatch):
    monkeypatch.setattr(measurement, "_order_by_prediction", lambda records: [*records][:1])
    advice = scaling.advise(force, {"x": X}, {"k": K}, budget=1)
    table = advice.table
    assert repr(advice) == str(advice)  # what a notebook shows
    assert list(table["left_out"].isna()) == [True, False, False]
    assert {text[:12] for text in table["left_out"][1:]} == {"not measured"}


def test_an_array_without_elements_leaves_out_no_candidate_and_one_column_or_point_is_singular():
    p = {"x": X, "empty": X[:, :0]}
    advice = scaling.advise(lambda p: p["x"] ** 2, {"p": p}, budget=0)
    assert advice.table["left_out"].isna().all() and "1 compressed column" in set(advice.table["method"])
    compressed = advice.table["method"] == "1 compressed column"
    assert list(advice.table["mode"].isna()) == list(compressed)  # the code of this method is no mode
    blocks = Case("linear", mode="jacrev", block=1, chunk=16)
    assert advice.describe(blocks) == "jacrev, 16 seeds at a time, 1 point at a time"


def test_devices_are_candidates_where_the_points_divide_evenly():
    advice = scaling.advise(force, {"x": X}, {"k": K}, budget=0, devices=[1, 2, 3])
    assert {record.case.devices for record in advice.records if record.predicted} == {1, 2}
    left_out = {record.text for record in advice.records if record.case.devices == 3}
    assert left_out == {"points=40 do not divide evenly over 3 devices"}


def test_a_hessian_and_a_tree_are_advised_on():
    advice = scaling.advise(
        lambda p, y: jnp.sum(jnp.tanh(p["w"] @ y)) * p["b"], {"y": X}, {"p": {"w": X[:3], "b": K[0]}}, wrt="p",
        target="hessian", budget=0,
    )  # fmt: skip
    assert set(advice.table["mode"]) == {"fwd_over_rev", "rev_over_rev"}
    found = advice.jacobian(
        *({"p": {"w": X[:3], "b": K[0]}, "y": X}[name] for name in advice.problem.arguments)
    )
    assert found["w"]["b"].shape == (40, 3, 5)


def test_a_product_of_the_hessian_is_advised_on():
    advice = scaling.advise(lambda x: {"e": jnp.sum(x**3, keepdims=True)}, {"x": X}, target="hvp", budget=0)
    assert set(advice.table["mode"]) == {"fwd_over_rev", "rev_over_fwd", "rev_over_rev"}
    np.testing.assert_allclose(advice.jacobian(X, 2 * X), 12 * X**2, rtol=1e-5)
    assert "hvp = jax.jit(" in str(advice)


def test_a_gauss_newton_product_is_advised_on_and_compared_with_the_explicit_jacobian():
    A, V = (
        np.random.default_rng(k).normal(size=size).astype(np.float32)
        for k, size in enumerate([(6, 5), X.shape])
    )
    advice = scaling.advise(lambda x, A: jnp.sin(A @ x), {"x": X}, {"A": A}, target="gauss_newton", budget=2)
    assert set(advice.table["method"]) == {"jvp, then vjp", "the explicit Jacobian"}
    assert {record.status for record in advice.records} == {"ok"}, advice.records
    J = np.cos(X @ A.T)[:, :, None] * A
    expected = np.einsum("poi,poj,pj->pi", J, J, V)
    np.testing.assert_allclose(advice.jacobian(X, A, V), expected, rtol=1e-4, atol=1e-4)
    assert "the explicit Jacobian takes" in str(advice)


def test_the_check_of_a_gauss_newton_product_detects_a_wrong_derivative():
    @jax.custom_jvp
    def square(x):
        return x**2

    square.defjvp(lambda primals, tangents: (primals[0] ** 2, 2.1 * primals[0] * tangents[0]))
    with pytest.raises(Refusal, match=r"advised: a .* rule .* at point \d+, .* to x .*relative error 0\.05"):
        print(scaling.advise(square, {"x": X}, target="gauss_newton", budget=2))


def test_a_gauss_newton_product_is_refused_if_only_the_reverse_mode_of_the_function_is_wrong():
    third = lambda factor: lambda _, b: factor * b / 3  # noqa: E731
    solve = lambda x: jax.lax.custom_linear_solve(lambda y: 3 * y, x, third(1), third(1.01))  # noqa: E731
    with pytest.raises(Refusal, match=r"its gradient in reverse mode: point \d+ is wrong"):
        scaling.advise(lambda x: jnp.sin(solve(x)), {"x": X}, target="gauss_newton", budget=0.1)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"budget": -1}, "budget must be a number of seconds"),
        ({"budget": True}, "budget must be a number of seconds, zero or more, not True"),
        ({"devices": [0]}, "devices must be positive integers"),
        ({"devices": True}, "devices must be positive integers, such as .*, not True"),
        ({"devices": [[1]]}, "devices must be positive integers"),
        ({"devices": []}, r"devices must be positive integers, such as \[1, 2\], not \[\]"),
        ({"devices": None}, "devices must be positive integers, such as .*, not None"),
        ({"note": 2}, "note must be a function of a line of text, such as print, or None, not 2"),
        ({"hardware": ""}, "unknown hardware '': choose from a100"),
        ({"hardware": 3}, "unknown hardware 3: choose from a100"),
        ({"devices": [99]}, "devices=99: JAX has 8 cpu devices here"),
        ({"hardware": "h10"}, "unknown hardware 'h10'.* did you mean 'h100'"),
        ({"hardware": {"name": "h100"}}, "unknown hardware {'name': 'h100'}: choose from a100"),
    ],
)
def test_a_bad_option_is_explained_before_any_work(options, words, monkeypatch):
    monkeypatch.setattr(candidates, "find_useful_coloring", None)
    with pytest.raises(Refusal, match=words):
        scaling.advise(force, {"x": X}, {"k": K}, **options)


def test_numbers_of_numpy_and_no_note_are_options():
    advice = scaling.advise(
        force, {"x": X}, {"k": K}, budget=np.int64(0), devices=[np.int64(1), np.int32(2)], note=None
    )
    assert {type(record.case.devices) for record in advice.records} == {int}


def test_a_reason_ends_with_one_full_stop():
    advice = scaling.advise(force, {"x": X}, {"k": K}, budget=0)
    records = [
        dataclasses.replace(record, status="skipped", text="reverse mode is not supported.")
        if record.case.mode == "jacrev"
        else record
        for record in advice.records
    ]
    text = str(dataclasses.replace(advice, records=records))
    assert "is left out: reverse mode is not supported.\n" in text


def test_the_shortest_predicted_time_is_advised_even_with_ten_times_the_work(monkeypatch):
    seconds = lambda case, model, fields: {"predicted": {"seconds": 1 + (case.mode == "jacrev")}}  # noqa: E731
    monkeypatch.setattr(candidates.time_model, "predict", lambda *args: args[2] | seconds(*args))
    advice = scaling.advise(lambda x: jnp.sum(jnp.sin(x)), {"x": np.ones((9, 15), np.float32)}, budget=0)
    assert advice.best.case.mode == "jacfwd"


def test_without_time_three_plain_modes_are_compiled_and_the_others_are_counted(monkeypatch):
    monkeypatch.setattr(advisor, "_COMPILING_SECONDS", 0.0)
    advice = scaling.advise(lambda x: jnp.sin(x), {"x": np.ones((50, 64), np.float32)}, budget=0)
    compiled = [record.case for record in advice.records if record.predicted]
    assert [case.block or case.chunk for case in compiled] == 3 * [None] and len(advice.records) > 4
    left_out = [row["left_out"] for row in advice.rows]
    assert left_out[:3] == 3 * [None] and {text[:12] for text in left_out[3:]} == {"not compiled"}
    assert f"{len(left_out) - 3} candidates not compiled: no time was left after 0 s" in str(advice)


def test_a_measured_program_is_compiled_once(monkeypatch):
    monkeypatch.setattr(run_case, "_compile_program", None)
    advice = scaling.advise(force, {"x": X}, {"k": K}, budget=1)
    assert advice.best.seconds and advice.best.compile_seconds


@pytest.mark.parametrize("target", ["jacobian", "hessian", "gauss_newton"])
def test_the_program_that_is_measured_returns_what_the_code_returns(target, monkeypatch):
    """A result that is flat would hide the time that the code takes to shape it."""
    programs, points = {}, {"p": {"w": X.reshape(40, 5, 1), "b": X[:, 0]}}
    monkeypatch.setattr(
        measurement, "measure_candidates", lambda records, stages, *_: programs.update(stages) or records
    )
    energy = lambda p: jnp.sum(jnp.sin(p["w"][1:] - p["w"][:-1]) * p["b"])  # noqa: E731
    forces = lambda p: (p["b"], jnp.sin(p["w"][1:] - p["w"][:-1]))  # noqa: E731
    advice = scaling.advise(energy if target == "hessian" else forces, points, target=target, budget=1)
    v = [points["p"]] if target == "gauss_newton" else []
    assert len(programs) > 1
    for case, stages in programs.items():
        text = plain_code.write_code(advice.problem, case, advice.coloring)
        code = plain_code.execute_code(advice.problem, text)
        expected = jax.eval_shape(code, points["p"], *v)
        assert jax.tree.map(lambda a: (a.shape, a.dtype), stages.compiled.out_info) == jax.tree.map(
            lambda a: (a.shape, a.dtype), expected
        )


def record(*seconds, mode="jacfwd"):
    return Record(Case("linear", mode=mode), "ok", {}, seconds=list(seconds), turns=[len(seconds) - 1, 1])


def test_a_candidate_is_kept_as_long_as_it_may_be_the_fastest():
    fast, equal, slow = ([s * (1 + 0.001 * (k % 5)) for k in range(12)] for s in (1.0, 1.001, 1.2))
    wide = [0.5 + 0.1 * k for k in range(12)]
    keep = measurement._select_undecided
    a, b = Case("linear", mode="jacfwd"), Case("linear", mode="jacrev")
    assert keep({a: record(*fast), b: record(*slow)}) == []  # decided
    assert keep({a: record(*fast), b: record(*equal)}) == []  # equally good
    assert keep({a: record(*fast), b: record(*wide)}) == [a, b]
    assert keep({a: record(*fast[:3]), b: record(*equal[:3])}) == [a, b]  # too few samples
    assert keep({a: record(*fast), b: record(5.0, 5.0, 5.0)}) == []  # more than four times as slow
    assert keep({a: record(*fast[:3]), b: record(5.0, 5.0, 5.0)}) == [a]  # whose time has no interval yet


def test_a_candidate_that_is_disturbed_in_the_first_round_is_measured_again():
    fast, slow, slowest = (
        dataclasses.replace(record(s, 1.01 * s, *[s] * 10), turns=[12]) for s in (1.0, 3.0, 5.0)
    )
    a, b, c = (Case("linear", mode=mode) for mode in ("jacfwd", "jacrev", "vmap_grad"))
    assert measurement._select_undecided({a: fast, b: slow, c: slowest}) == [a, b]
    assert measurement._select_undecided({a: fast, c: slowest}) == []


def test_the_most_promising_candidate_of_each_mode_is_measured_first():
    cases = [Case("linear", mode=mode, block=block) for mode in ("jacfwd", "jacrev") for block in (None, 2)]

    def order(*seconds):
        records = [planned(case, s) for case, s in zip(cases, seconds, strict=True)]
        return [cases.index(record.case) for record in measurement._order_by_prediction(records)]

    assert order(1.0, 2.0, 4.0, 3.0) == [0, 3, 1, 2]
    assert order(1.0, 2.0, 50.0, 21.0) == [0, 1]  # the others are predicted to take 20 times as long


def test_ctrl_c_ends_the_measurement_with_what_there_is(monkeypatch):
    take_turn, turns = measurement.run_case.take_turn, []

    def interrupted(attempt):
        turns.append(attempt)
        if len(turns) == 3:
            raise KeyboardInterrupt
        return take_turn(attempt)

    monkeypatch.setattr(measurement.run_case, "take_turn", interrupted)
    advice = scaling.advise(force, {"x": X}, {"k": K}, budget=5)
    assert advice.best.seconds and "1 candidate" not in str(advice)


def test_ctrl_c_before_a_candidate_is_compiled_is_no_refusal(monkeypatch):
    def interrupted(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(candidates, "_compile_in_threads", interrupted)
    with pytest.raises(KeyboardInterrupt):
        scaling.advise(force, {"x": X}, {"k": K}, budget=5)


def test_ctrl_c_during_compilation_names_the_candidates_that_are_not_compiled(monkeypatch):
    compile_in_threads = candidates._compile_in_threads

    def interrupted(*arguments):
        yield next(compile_in_threads(*arguments))
        raise KeyboardInterrupt

    monkeypatch.setattr(candidates, "_compile_in_threads", interrupted)
    advice = scaling.advise(force, {"x": X}, {"k": K}, budget=5)
    uncompiled = advice.table[advice.table["left_out"] == "not compiled: interrupted"]
    assert len(uncompiled) == len(advice.records) - 1 and uncompiled["predicted_seconds"].isna().all()
    assert f"; {len(uncompiled)} candidates not compiled: interrupted" in str(advice)
    assert not any(record.seconds for record in advice.records)


def test_the_notebook_of_the_page_runs(capsys):
    (code,) = re.findall(r"```python\n(.*?)```", (TOP / "docs" / "advise.md").read_text(), re.DOTALL)
    namespace = {}
    exec(code.replace("budget=10", "budget=1").replace("1000, 17", "30, 17"), namespace)
    expected = jax.vmap(jax.jacfwd(namespace["force"]), (0, None))(namespace["x"], namespace["stiffness"])
    np.testing.assert_allclose(namespace["J"], expected, rtol=1e-5, atol=1e-6)
    assert "per call, measured on" in capsys.readouterr().out


def test_the_certainty_states_how_many_measured_candidates_may_be_as_fast():
    best, slow = record(*[1.0, 1.01, 0.99] * 4), record(5.0, 5.1, 4.9)
    assert measurement.describe_certainty(best, [slow]) == "no other measured candidate may be as fast"
    text = "1 other measured candidate may be as fast"
    assert measurement.describe_certainty(best, [record(1.1, 1.2, 1.0), slow]) == text
    noisy = record(*[2.4, 2.5, 0.6] * 4)  # an interval that contains 1
    assert measurement.describe_certainty(best, [noisy, slow]) == text
    equal = record(*[1.0, 1.011, 0.99] * 4)
    assert measurement.describe_certainty(best, [equal, slow]) == f"{text}, within 3 % of it"
    disturbed = dataclasses.replace(best, turns=[6, 6], marked={"foreign_load": [1]})
    text = "; load of other processes in 1 of 4 turns: repeat it on an idle machine"
    assert measurement.describe_certainty(disturbed, [slow]).endswith(text)
    assert measurement.describe_certainty(best, [disturbed]).endswith(text), "the other one may be as fast"


@pytest.mark.parametrize(
    ("function", "options", "words"),
    [
        (force, {"target": "hessian"}, "target=hessian needs a function with one output"),
        (force, {"target": "hvp"}, "target=hvp needs a function with one output"),
        (search, {}, "not predicted: the number of iterations.*budget=30"),  # not: JVP of a custom_vjp
    ],
)
def test_a_function_without_advice_is_refused_with_the_reason(function, options, words):
    advice = scaling.advise(function, {"x": X}, {"k": K}, budget=0, **options)
    with pytest.raises(Refusal, match=words):
        str(advice)


def test_a_point_without_a_derivative_is_named_with_what_to_do():
    x = np.ones((4, 3), np.float32)
    x[2] = 0
    advice = scaling.advise(lambda x: jnp.linalg.norm(x), {"x": x}, budget=1)
    with pytest.raises(Refusal, match="not finite at point 2; budget=0 gives advice without a check"):
        str(advice)


def test_a_function_that_cannot_be_checked_is_refused_without_a_fix_that_only_a_workload_has(monkeypatch):
    text = "its values differ between float32 and float64; add a reference to the workload"
    skipped = {"status": "skipped", "reason": "no_digits", "text": text, "started_at": "2026"}
    monkeypatch.setattr(
        measurement,
        "measure_candidates",
        lambda records, *_: [dataclasses.replace(record, **skipped) for record in records],
    )
    unchecked = scaling.advise(force, {"x": X}, {"k": K}, budget=1)
    assert not any("add a reference" in row["left_out"] for row in unchecked.rows)
    with pytest.raises(Refusal, match="float32 and float64; budget=0 gives advice without a check"):
        str(unchecked)


def test_a_function_with_a_routine_of_lapack_is_predicted_and_one_with_an_unknown_call_is_not(monkeypatch):
    def solve(x, k):
        return jnp.linalg.solve(jnp.eye(5) * x, x) * k[0]

    advice = scaling.advise(solve, {"x": X}, {"k": K}, budget=0)
    assert advice.best.predicted["seconds"] > 0
    monkeypatch.setattr(kernel_work, "ROUTINE_ELEMENTS", {})
    with pytest.raises(Refusal, match=r"work of \w+ is not known.*budget=30"):
        str(scaling.advise(solve, {"x": X}, {"k": K}, budget=0))


@pytest.mark.parametrize("target", ["jacobian", "gauss_newton"])
def test_a_function_at_one_point_has_no_candidate_on_two_devices_because_the_code_partitions_points(target):
    advice = scaling.advise(force, {"x": X[:1]}, {"k": K}, budget=0, devices=[1, 2], target=target)
    assert {record.case.devices for record in advice.records if record.predicted} == {1}
    assert "do not divide evenly over 2 devices" in str(list(advice.table["left_out"]))


def test_the_jacobian_and_the_code_are_compiled_without_a_wrong_fusion(monkeypatch):
    """The option is one that every version of jaxlib accepts."""
    assert "XLA_FLAGS" not in str(advisor.advise(force, {"x": X}, {"k": K}, budget=0))
    monkeypatch.setattr(advisor.environment, "fusion_options", lambda: {"xla_cpu_prefer_vector_width": "256"})
    advice = advisor.advise(force, {"x": X}, {"k": K}, budget=0)
    assert 'os.environ.get("XLA_FLAGS", "") + " --xla_cpu_prefer_vector_width=256"' in advice.code
    before = dict(os.environ)
    expected = jax.vmap(jax.jacfwd(force), (0, None))(X, K)
    np.testing.assert_allclose(advice.jacobian(X, K), expected, rtol=1e-6)
    assert os.environ == before
    with pytest.raises(ValueError, match="compiler_options"):  # the program without them may be wrong
        jax.jit(lambda x: advice.jacobian(x, K))(X)


ACCELERATIONS = """
import jax
import jax.numpy as jnp
import numpy as np


def accelerations(x):
    d = x[:, None] - x[None]
    r = jnp.sqrt((d**2).sum(-1) + 1e-2)
    return (d / r[..., None] ** 3).sum(1)
"""
ADVISE = """
import scaling

x = np.random.default_rng(0).random((16, 20, 3), np.float32)
advice = scaling.advise(accelerations, {"x": x}, budget=0)
open("code.py", "w").write(advice.code)
np.save("x.npy", x)
np.save("jacobian.npy", advice.jacobian(x))
"""


@pytest.mark.process
def test_unchecked_advice_is_right_for_sums_that_jaxlib_0_10_computes_wrongly(tmp_path):
    environment = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    environment |= {"XDG_CACHE_HOME": str(tmp_path), "JAX_PLATFORMS": "cpu"}
    run = functools.partial(subprocess.run, cwd=tmp_path, env=environment, check=True, capture_output=True)
    run([sys.executable, "-c", ACCELERATIONS + ADVISE])
    use = "\nnp.save('pasted.npy', jacobian(np.load('x.npy')))\n"
    run([sys.executable, "-c", ACCELERATIONS + (tmp_path / "code.py").read_text() + use])
    x, got, pasted = (np.load(tmp_path / f"{name}.npy") for name in ("x", "jacobian", "pasted"))
    namespace = {}
    exec(ACCELERATIONS, namespace)
    with jax.enable_x64(True):
        expected = jax.vmap(jax.jacfwd(namespace["accelerations"]))(x.astype(np.float64))
    for result in (got, pasted):
        np.testing.assert_allclose(result, expected, atol=1e-4 * np.abs(expected).max())
