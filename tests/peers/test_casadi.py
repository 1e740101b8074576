"""Tests of the engine casadi: supported cases are correct, interpreted and compiled; others are skipped with a reason."""

import itertools
import shutil

import pytest

from tests.support.devices import reason_to_skip, run_once  # isort: skip  # before JAX is used

pytest.importorskip("casadi", reason="scripts/peers installs it")

from scaling.core import inputs, workload
from scaling.core.case import BATCHES, MODES, Case
from scaling.core.derivative import describe_derivative
from scaling.core.timing import Sampling
from scaling.peers import casadi as peer
from scaling.study import case_rules
from tests.support import peer_problems
from tests.support.peer_problems import LINEAR

pytestmark = pytest.mark.peer

needs_cc = pytest.mark.skipif(shutil.which("cc") is None, reason="compiling needs cc, which .ci/run installs")

PROBLEMS = peer_problems.PROBLEMS | {
    "rbf kernel": {"workload": "rbf", "target": "kernel", "points": 7, "sizes": {"m": 5}},
    "linear by X": LINEAR | {"wrt": "X"},
}


def make_case(**fields):
    return case_rules.complete(Case(**{"engine": "casadi", "dtype": "float64", "jit": False} | fields))


def cases(problems, devices=(1, 2), **fields):
    """Return the supported cases of these problems as test parameters with readable ids; the device counts take turns."""
    parameters = {}
    turn = itertools.cycle([devices, devices[::-1], devices[::-1], devices])
    for (name, problem), mode, batch in itertools.product(problems.items(), MODES, BATCHES):
        for count in next(turn):
            case = make_case(**problem | {"mode": mode, "batch": batch, "devices": count} | fields)
            if reason_to_skip(case) is None:
                parameters.setdefault(case.key, pytest.param(case, id=f"{name}-{mode}-{batch}-{count}"))
                break
    return list(parameters.values())


@pytest.mark.thin(2, "thorough")
@pytest.mark.parametrize("case", cases(PROBLEMS))
def test_every_supported_case_equals_the_reference_at_every_point(case):
    record = run_once(case)
    assert record.status == "ok", record.text
    assert record.error <= record.tolerance and record.error < 1e-10
    assert record.compile_seconds > 0


COMPILED = {
    name: PROBLEMS[name]
    for name in ("rbf", "rbf in three dimensions", "linear by both", "residual scalar", "poisson")
}


@pytest.mark.parametrize("case", cases(COMPILED, devices=(2,), jit=True))
def test_compiled_cases_are_correct(case):
    record = run_once(case)
    assert record.status == "ok", record.text
    assert record.error < 1e-10


def test_every_mode_and_batch_is_supported_for_some_problem():
    supported = {(p.values[0].mode, p.values[0].batch) for p in cases(PROBLEMS)}
    assert {mode for mode, _ in supported} == {"value", "jacfwd", "jacrev", "grad_of_sum"}
    assert {("jacfwd", "whole"), ("jacrev", "whole"), ("value", "whole")} <= supported


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"workload": "poisson", "points": 3, "mode": "value"}, "gamma"),
        ({"workload": "residual", "points": 3, "dtype": "float32"}, "float64"),
        ({"workload": "residual", "points": 3, "mode": "analytic"}, "casadi offers"),
        ({"workload": "residual", "points": 3, "chunk": 2, "mode": "jacrev"}, "all seeds at once"),
        ({"workload": "rbf", "points": 3, "sizes": {"m": 1_000_000}}, "too large"),
        ({"workload": "rbf", "points": 3, "sizes": {"m": 50_000}, "mode": "jacrev"}, "sweeps"),
        pytest.param(
            {"workload": "rbf", "points": 3, "sizes": {"m": 50_000}, "jit": True},
            "to compile",
            marks=needs_cc,
        ),
        ({"workload": "linear", "points": 3, "batch": "whole", "devices": 2}, "one core"),
        ({"workload": "scaling.workloads.ceiling", "points": 3}, "implements the functions"),
    ],
)
def test_an_unsupported_case_is_skipped_with_the_reason(fields, message):
    reason, text = reason_to_skip(make_case(**fields))
    assert reason == "not_offered" and message in text


def test_without_a_compiler_a_jit_case_is_skipped_not_interpreted(monkeypatch):
    monkeypatch.setenv("PATH", "")
    assert "cc" in reason_to_skip(make_case(workload="residual", points=3, jit=True))[1]
    assert reason_to_skip(make_case(workload="residual", points=3, jit=False)) is None


@pytest.mark.parametrize("jit", [False, pytest.param(True, marks=needs_cc)])
def test_a_derivative_with_a_relative_error_of_1e_3_is_a_wrong_answer(jit, monkeypatch):
    correct = peer._derivative

    def wrong(*arguments):
        derivative, passes = correct(*arguments)
        return derivative * 1.001, passes

    monkeypatch.setattr(peer, "_derivative", wrong)
    record = run_once(make_case(workload="residual", points=4, jit=jit))
    assert (record.status, record.reason, record.seconds) == ("failed", "wrong_answer", [])


def test_forward_and_reverse_mode_build_different_graphs():
    def count_instructions(**fields):
        case = make_case(**fields)
        built = workload.build(case)
        sizes = describe_derivative(case, built)
        symbols, y = peer._trace(case, built, sizes, inputs.input_arrays(case, built))
        graph, passes = peer._build_graph(case, built, sizes, symbols, y)
        return graph.n_instructions(), passes

    many_outputs = {
        mode: count_instructions(workload="residual", points=2, mode=mode) for mode in ("jacfwd", "jacrev")
    }
    assert many_outputs["jacrev"][0] > 2 * many_outputs["jacfwd"][0]  # 21 outputs by one input
    assert (many_outputs["jacfwd"][1], many_outputs["jacrev"][1]) == (1, 21)
    one_output = {
        mode: count_instructions(**PROBLEMS["residual scalar"], mode=mode) for mode in ("jacfwd", "jacrev")
    }
    assert one_output["jacfwd"][0] > 2 * one_output["jacrev"][0]  # one output by 22 inputs
    assert (one_output["jacfwd"][1], one_output["jacrev"][1]) == (22, 1)


@needs_cc
def test_the_folder_of_a_compiled_graph_is_removed(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    record = run_once(
        make_case(workload="poisson", points=4, jit=True), Sampling(least=7, most=7, warm_up=0.001)
    )
    assert record.status == "ok" and len(record.seconds) == 7
    assert not list(tmp_path.iterdir())
