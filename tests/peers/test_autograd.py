"""Tests of the engine autograd: supported cases are correct, and others are skipped with a reason."""

import dataclasses
import importlib.util
import itertools
import subprocess
import sys

import pytest

from tests.support.devices import reason_to_skip, run_once  # isort: skip  # before JAX is used

from scaling.core import workload
from scaling.core.case import BATCHES, Case
from scaling.core.derivative import describe_derivative
from scaling.peers import autograd
from scaling.study import case_rules
from tests.support import peer_problems
from tests.support.peer_problems import CUBE, LINEAR, RBF

pytestmark = pytest.mark.peer

DTYPES = ("float64", "float32")
PROBLEMS = peer_problems.PROBLEMS | {
    "rbf grad in three dimensions": CUBE | {"target": "grad"},
    "linear of many outputs": {"workload": "linear", "points": 3, "sizes": {"p": 4, "o": 20}},
    "linear by X": LINEAR | {"wrt": "X"},
    "residual by m": {"workload": "residual", "points": 300},
}


def supported_cases(problem):
    """Return the cases of a problem that autograd supports, with alternating dtypes."""
    pytest.importorskip("autograd", reason="scripts/peers installs it")
    cases, turn = {}, itertools.cycle(DTYPES)
    for mode, batch in itertools.product(autograd.MODES, BATCHES):
        case = case_rules.complete(Case(**problem | {"mode": mode, "batch": batch, "engine": "autograd"}))
        if reason_to_skip(case) is None and case not in cases:
            cases[case] = dataclasses.replace(case, dtype=next(turn))
    return list(cases.values())


def run(case):
    pytest.importorskip("autograd", reason="scripts/peers installs it")
    return run_once(case)


def check_correct(record):
    assert record.status == "ok", (record.case, record.text)
    assert record.error <= record.tolerance
    if record.case.dtype == "float64":
        assert record.error < 1e-10
    assert record.compile_seconds is None


def skip_text(**fields):
    """Return as text why autograd does not support a case."""
    case = case_rules.complete(Case(**fields, engine="autograd"))
    built = workload.build(case)
    return autograd.reason_to_skip(case, built, describe_derivative(case, built))


@pytest.mark.thin(2, "thorough")
@pytest.mark.parametrize("name", PROBLEMS)
def test_every_supported_case_equals_the_reference_at_every_point(name):
    cases = supported_cases(PROBLEMS[name])
    assert {"value", "jacfwd"} <= {case.mode for case in cases}
    for case in cases:
        check_correct(run(case))


@pytest.mark.covering(1)
@pytest.mark.parametrize("name", ["rbf", "linear by both", "linear by W", "residual by both", "poisson"])
@pytest.mark.parametrize("mode", ["jacfwd", "jacrev"])
def test_a_derivative_with_a_relative_error_of_1e_3_is_a_wrong_answer(mode, name, monkeypatch):
    seeds = autograd._unit_seeds
    monkeypatch.setattr(autograd, "_unit_seeds", lambda *words: (1.001 * seed for seed in seeds(*words)))
    fields = {"mode": mode, "engine": "autograd", "dtype": "float64"}
    record = run(case_rules.complete(Case(**PROBLEMS[name] | fields)))
    assert (record.status, record.reason) == ("failed", "wrong_answer")
    assert not record.seconds


def test_a_function_written_in_jax_is_not_supported(write_workload, tmp_path, monkeypatch):
    write_workload("springs")
    monkeypatch.syspath_prepend(tmp_path)
    text = "autograd implements the functions rbf, linear, residual, poisson, not those in JAX"
    assert skip_text(workload="springs") == text


@pytest.mark.parametrize(("fields", "text"), [
    ({"mode": "finite_difference"}, "autograd offers value, jacfwd, jacrev, grad_of_sum"),
    ({"mode": "value", "dtype": "bfloat16"}, "autograd has no bfloat16"),
    ({"mode": "jacrev", "chunk": 2}, "autograd computes one seed at a time; omit chunk"),
])  # fmt: skip
def test_unsupported_fields_are_skipped_with_the_reason(fields, text):
    assert skip_text(**RBF, **fields) == text


def test_more_than_one_core_is_not_supported():
    case = case_rules.complete(Case(**RBF, engine="autograd", mode="value", devices=7))
    assert reason_to_skip(case) == ("not_offered", "autograd uses one core")


def test_importing_the_engine_module_loads_no_library():
    code = "import sys, scaling.peers.autograd\nassert not {'jax', 'autograd', 'scipy'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_missing_package_is_reported():
    skipped = reason_to_skip(case_rules.complete(Case(**RBF, engine="autograd", mode="value")))
    if importlib.util.find_spec("autograd"):
        assert skipped is None
    else:
        assert skipped == ("not_installed", "autograd is not installed; pip install autograd")
