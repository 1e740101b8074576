"""Tests of the engines numpy and autograd: supported cases are correct, and others are skipped with a reason."""

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
from scaling.peers import formulas, interface
from scaling.study import completion
from tests.support import peer_problems
from tests.support.peer_problems import CUBE, LINEAR, RBF

pytestmark = pytest.mark.peer

NEEDS = {"numpy": "numpy", "autograd": "autograd"}
DTYPES = ("float64", "float32")
PROBLEMS = peer_problems.PROBLEMS | {
    "rbf grad in three dimensions": CUBE | {"target": "grad"},
    "linear of many outputs": {"workload": "linear", "points": 3, "sizes": {"p": 4, "o": 20}},
    "linear by X": LINEAR | {"wrt": "X"},
    "residual by m": {"workload": "residual", "points": 300},
}


def supported_cases(engine, problem, modes):
    """Return the cases of a problem that an engine supports, with alternating dtypes."""
    pytest.importorskip(NEEDS[engine], reason="scripts/peers installs it")
    cases, turn = {}, itertools.cycle(DTYPES)
    for mode, batch in itertools.product(modes, BATCHES):
        case = completion.complete(Case(**problem | {"mode": mode, "batch": batch, "engine": engine}))
        if reason_to_skip(case) is None and case not in cases:
            cases[case] = dataclasses.replace(case, dtype=next(turn))
    return list(cases.values())


def run(case):
    pytest.importorskip(NEEDS[case.engine], reason="scripts/peers installs it")
    return run_once(case)


def check_correct(record):
    if record.reason == "no_digits":
        assert (record.case.mode, record.case.dtype) == ("finite_difference", "float32")
        return
    assert record.status == "ok", (record.case, record.text)
    assert record.error <= record.tolerance
    if record.case.dtype == "float64" and record.case.mode != "finite_difference":
        assert record.error < 1e-10
    assert record.compile_seconds is None


def skip_text(**fields):
    """Return as text why an engine does not support a case."""
    case = completion.complete(Case(**fields))
    built = workload.build(case)
    return interface.import_peer(case.engine).reason_to_skip(case, built, describe_derivative(case, built))


@pytest.mark.thin(2, "thorough")
@pytest.mark.parametrize("name", PROBLEMS)
@pytest.mark.parametrize("engine", NEEDS)
def test_every_supported_case_equals_the_reference_at_every_point(engine, name):
    cases = supported_cases(engine, PROBLEMS[name], interface.import_peer(engine).MODES)
    assert {"value", "finite_difference" if engine == "numpy" else "jacfwd"} <= {case.mode for case in cases}
    for case in cases:
        check_correct(run(case))


@pytest.mark.covering(1)
@pytest.mark.parametrize("name", ["rbf", "linear by both", "linear by W", "residual by both", "poisson"])
@pytest.mark.parametrize(
    ("engine", "mode"), [("numpy", "finite_difference"), ("autograd", "jacfwd"), ("autograd", "jacrev")]
)
def test_a_derivative_with_a_relative_error_of_1e_3_is_a_wrong_answer(engine, mode, name, monkeypatch):
    seeds = formulas.unit_seeds
    monkeypatch.setattr(formulas, "unit_seeds", lambda like, rows, size=1.0: seeds(like, rows, 1.001 * size))
    record = run(
        completion.complete(Case(**PROBLEMS[name] | {"mode": mode, "engine": engine, "dtype": "float64"}))
    )
    assert (record.status, record.reason) == ("failed", "wrong_answer")
    assert not record.seconds


@pytest.mark.parametrize("engine", NEEDS)
def test_engines_without_jax_do_not_support_functions_written_in_jax(
    engine, write_workload, tmp_path, monkeypatch
):
    write_workload("springs")
    monkeypatch.syspath_prepend(tmp_path)
    text = f"{engine} implements the functions rbf, linear, residual, poisson, not those in JAX"
    assert skip_text(workload="springs", engine=engine) == text


@pytest.mark.parametrize(("engine", "mode", "text"), [
    ("numpy", "jacfwd", "numpy offers value, finite_difference"),
    ("autograd", "finite_difference", "autograd offers value, jacfwd, jacrev, grad_of_sum"),
])  # fmt: skip
def test_unsupported_modes_are_skipped_with_the_supported_ones(engine, mode, text):
    assert skip_text(**RBF, engine=engine, mode=mode).startswith(text)


@pytest.mark.parametrize("engine", NEEDS)
def test_engines_without_bfloat16_do_not_support_it(engine):
    assert skip_text(**RBF, engine=engine, mode="value", dtype="bfloat16") == f"{engine} has no bfloat16"


@pytest.mark.parametrize(("engine", "mode"), [("numpy", "finite_difference"), ("autograd", "jacrev")])
def test_chunks_of_seeds_are_not_supported(engine, mode):
    assert (
        skip_text(**RBF, engine=engine, mode=mode, chunk=2)
        == f"{engine} computes one seed at a time; omit chunk"
    )


@pytest.mark.parametrize("engine", NEEDS)
def test_more_than_one_core_is_not_supported(engine):
    case = completion.complete(Case(**RBF, engine=engine, mode="value", devices=7))
    assert reason_to_skip(case) == ("not_offered", f"{engine} uses one core")


@pytest.mark.parametrize("engine", NEEDS)
def test_importing_an_engine_module_loads_no_library(engine):
    code = f"import sys, importlib\nimportlib.import_module('scaling.peers.{engine}')\n"
    code += "assert not {'jax', 'autograd', 'scipy'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("engine", NEEDS)
def test_a_missing_package_is_reported(engine):
    skipped = reason_to_skip(completion.complete(Case(**RBF, engine=engine, mode="value")))
    if importlib.util.find_spec(NEEDS[engine]):
        assert skipped is None
    else:
        assert skipped == ("not_installed", f"{NEEDS[engine]} is not installed; pip install {NEEDS[engine]}")
