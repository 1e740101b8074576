"""The peer `casadi`: whatever it offers is right, in the virtual machine and compiled, and what it does not offer it says."""

import itertools
import os
import shutil

import pytest

from scaling.core import environment

pytest.importorskip("casadi", reason="scripts/peers installs it")
os.environ["XLA_FLAGS"] = environment.variables("cpu")["XLA_FLAGS"]
import jax

from scaling.core import inputs, run_case, shape, workload
from scaling.core.case import BATCHES, MODES, SECOND, Case
from scaling.core.modes import HESSIAN
from scaling.core.record import Record
from scaling.core.timing import Sampling
from scaling.peers import casadi as peer
from scaling.study import applicability, completion

pytestmark = pytest.mark.peer

jax.config.update("jax_enable_x64", True)
compiles = pytest.mark.skipif(shutil.which("cc") is None, reason="compiling needs cc, which .ci/run installs")

ONCE = Sampling(least=1, most=1, warm_up=0.0)
CUBE = {"workload": "rbf", "variant": "squared", "points": 7, "sizes": {"m": 5, "d": 3}}
LINEAR = {"workload": "linear", "points": 5, "sizes": {"p": 4, "o": 3}}
PROBLEMS = {
    "rbf": {"workload": "rbf", "points": 7, "sizes": {"m": 5}},
    "rbf rowwise": {"workload": "rbf", "points": 5, "sizes": {"m": 6}, "formulation": "rowwise"},
    "rbf in three dimensions": CUBE,
    "rbf in three dimensions by a product": CUBE | {"formulation": "product"},
    "rbf grad": {"workload": "rbf", "target": "grad", "sizes": {"m": 6}},
    "rbf kernel": {"workload": "rbf", "target": "kernel", "points": 7, "sizes": {"m": 5}},
    "linear by W": LINEAR,
    "linear by X": LINEAR | {"wrt": "X"},
    "linear by both": LINEAR | {"wrt": "X+W"},
    "residual by m": {"workload": "residual", "points": 5},
    "residual by d": {"workload": "residual", "points": 5, "wrt": "d", "formulation": "dot"},
    "residual by both": {"workload": "residual", "points": 5, "wrt": "m+d"},
    "residual scalar": {"workload": "residual", "points": 5, "wrt": "d+m", "variant": "scalar"},
    "poisson": {"workload": "poisson", "points": 9},
}
TWICE = {
    f"{name}: {target}": PROBLEMS[name] | {"target": target}
    for name, target in itertools.product(["residual scalar", "poisson"], SECOND)
}


def completed(**fields):
    return completion.complete(Case(**{"engine": "casadi", "dtype": "float64", "jit": False} | fields))


def refusal(case):
    built = workload.build(case)
    return applicability.why_inapplicable(case, built, shape.derivative_shape(case, built))


def cases(problems, devices=(1, 2), **fields):
    """The cases of these problems that are offered, by what a person calls them."""
    found = {}
    for (name, problem), mode, batch, count in itertools.product(problems.items(), MODES, BATCHES, devices):
        case = completed(**problem | {"mode": mode, "batch": batch, "devices": count} | fields)
        if refusal(case) is None:
            found.setdefault(case.key, pytest.param(case, id=f"{name}-{mode}-{batch}-{count}"))
    return list(found.values())


def run(case, sampling=ONCE):
    return run_case.run_case(
        Record(case, "failed", {"digest": "test", "platform": "cpu"}), jax.devices()[:1], "cpu", sampling
    )


@pytest.mark.parametrize("case", cases(PROBLEMS | TWICE))
def test_what_is_offered_is_right_at_every_point(case):
    record = run(case)
    assert record.status == "ok", record.text
    assert record.error <= record.tolerance and record.error < 1e-10
    assert record.compile_seconds > 0


COMPILED = {
    name: PROBLEMS[name]
    for name in ("rbf", "rbf in three dimensions", "linear by both", "residual scalar", "poisson")
}
QUICK_TO_COMPILE = [c for c in cases(COMPILED, devices=(2,), jit=True) if c.values[0].mode not in HESSIAN]


@pytest.mark.parametrize("case", QUICK_TO_COMPILE)
def test_what_is_compiled_is_right_too(case):
    record = run(case)
    assert record.status == "ok", record.text
    assert record.error < 1e-10


def test_every_mode_and_batch_is_offered_somewhere():
    offered = {(p.values[0].mode, p.values[0].batch) for p in cases(PROBLEMS | TWICE)}
    modes = {
        "value",
        "jacfwd",
        "jacrev",
        "grad_of_sum",
        "fwd_over_rev",
        "rev_over_fwd",
        "rev_over_rev",
        "fwd_over_fwd",
    }
    assert {mode for mode, _ in offered} == modes
    assert {("jacfwd", "whole"), ("jacrev", "whole"), ("value", "whole")} <= offered


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"workload": "poisson", "points": 3, "mode": "value"}, "gamma"),
        ({"workload": "residual", "points": 3, "dtype": "float32"}, "float64"),
        ({"workload": "residual", "points": 3, "mode": "analytic"}, "casadi offers"),
        ({"workload": "residual", "points": 3, "chunk": 2, "mode": "jacrev"}, "all seeds at once"),
        ({"workload": "rbf", "points": 3, "sizes": {"m": 1_000_000}}, "too large"),
        ({"workload": "rbf", "points": 3, "sizes": {"m": 50_000}, "mode": "jacrev"}, "sweeps"),
        ({"workload": "rbf", "points": 20_000, "sizes": {"m": 10_000}}, "copies of the shared"),
        pytest.param(
            {"workload": "rbf", "points": 3, "sizes": {"m": 50_000}, "jit": True},
            "to compile",
            marks=compiles,
        ),
        ({"workload": "linear", "points": 3, "batch": "whole", "devices": 2}, "one core"),
        ({"workload": "scaling.workloads.ceiling", "points": 3}, "implements the workloads"),
    ],
)
def test_what_is_not_offered_is_told_in_words(fields, words):
    reason, text = refusal(completed(**fields))
    assert reason == "not_offered" and words in text


def test_without_a_compiler_nothing_falls_back_to_the_virtual_machine(monkeypatch):
    monkeypatch.setenv("PATH", "")
    assert "cc" in refusal(completed(workload="residual", points=3, jit=True))[1]
    assert refusal(completed(workload="residual", points=3, jit=False)) is None


@pytest.mark.parametrize("jit", [False, pytest.param(True, marks=compiles)])
def test_a_derivative_that_is_a_thousandth_off_is_a_wrong_answer(jit, monkeypatch):
    right = peer._jacobian

    def wrong(*arguments):
        found, passes = right(*arguments)
        return found * 1.001, passes

    monkeypatch.setattr(peer, "_jacobian", wrong)
    record = run(completed(workload="residual", points=4, jit=jit))
    assert (record.status, record.reason, record.seconds) == ("failed", "wrong_answer", [])


def test_the_direction_that_is_asked_for_is_the_one_that_is_taken():
    def instructions(**fields):
        case = completed(**fields)
        built = workload.build(case)
        graph, passes = peer._build_graph(
            case, built, shape.derivative_shape(case, built), inputs.input_arrays(case, built)
        )
        return graph.n_instructions(), passes

    by_shift = {mode: instructions(workload="residual", points=2, mode=mode) for mode in ("jacfwd", "jacrev")}
    assert by_shift["jacrev"][0] > 2 * by_shift["jacfwd"][0]  # 21 outputs by one input
    assert (by_shift["jacfwd"][1], by_shift["jacrev"][1]) == (1, 21)
    of_sum = {mode: instructions(**PROBLEMS["residual scalar"], mode=mode) for mode in ("jacfwd", "jacrev")}
    assert of_sum["jacfwd"][0] > 2 * of_sum["jacrev"][0]  # one output by 22 inputs
    assert (of_sum["jacfwd"][1], of_sum["jacrev"][1]) == (22, 1)


@compiles
def test_the_folder_that_a_graph_is_compiled_in_is_gone(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    record = run(completed(workload="poisson", points=4, jit=True), Sampling(least=7, most=7, warm_up=0.001))
    assert record.status == "ok" and len(record.seconds) == 7
    assert not list(tmp_path.iterdir())
