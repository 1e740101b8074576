"""Tests of the engine torch: supported cases are correct, and others are skipped with a reason."""

import itertools
import os
import subprocess
import sys

import pytest

from tests.support.devices import reason_to_skip, run_once  # isort: skip  # before JAX is used

pytest.importorskip("torch", reason="scripts/peers installs it")

from scaling.core import inputs, workload
from scaling.core.case import BATCHES, DTYPES, Case
from scaling.core.derivative import describe_derivative
from scaling.peers import formulas
from scaling.peers import torch as peer
from scaling.study import case_rules
from tests.support import peer_problems
from tests.support.peer_problems import LINEAR, RBF

pytestmark = pytest.mark.peer

PROBLEMS = peer_problems.PROBLEMS | {"linear by X": LINEAR | {"wrt": "X"}}
SUPPORTED_MODES = ("value", "jacfwd", "jacrev", "grad_of_sum")


def cases(problems, modes, dtypes=("float64",), chunks=(None,), **fields):
    """Return the supported cases of these problems as test parameters with readable ids; the chunks take turns."""
    names, turn = {}, itertools.cycle([*chunks, *reversed(chunks)])
    for name, mode, batch, dtype in itertools.product(problems, modes, BATCHES, dtypes):
        chunk = next(turn)
        rest = {"mode": mode, "batch": batch, "dtype": dtype, "chunk": chunk, "engine": "torch", "jit": False}
        case = case_rules.complete(Case(**problems[name] | rest | fields))
        if reason_to_skip(case) is None:
            names.setdefault(case, f"{name}-{mode}-{batch}-{dtype}-{chunk}")
    return [pytest.param(case, id=name) for case, name in names.items()]


def skip_text(**fields):
    """Return as text why torch does not support a case."""
    case = case_rules.complete(Case(**{"engine": "torch", "api": "jit"} | fields))
    built = workload.build(case)
    return peer.reason_to_skip(case, built, describe_derivative(case, built))


def check_correct(record):
    assert record.status == "ok", record.text
    assert record.error <= record.tolerance
    if record.case.dtype == "float64":
        assert record.error < 1e-10


EAGER = [
    *cases(PROBLEMS, SUPPORTED_MODES, chunks=[None, 2]),
    *cases(
        {name: PROBLEMS[name] for name in ("rbf", "linear by both", "residual by both", "poisson")},
        SUPPORTED_MODES,
        DTYPES[::2],
    ),
]


@pytest.mark.thin(4, "thorough")
@pytest.mark.parametrize("case", EAGER)
def test_every_supported_case_equals_the_reference_at_every_point(case):
    record = run_once(case)
    check_correct(record)
    assert record.compile_seconds is None
    assert (record.passes is None) == (case.mode == "value")


@pytest.mark.thorough
@pytest.mark.parametrize("case", cases({"rbf": RBF}, ["jacrev"], ["bfloat16"], [2], jit=True))
def test_compiled_cases_are_correct_and_record_their_compile_time(case):
    record = run_once(case)
    check_correct(record)
    assert record.compile_seconds > 0


def test_a_wrong_derivative_is_a_wrong_answer(monkeypatch):
    correct = formulas.formula_of
    monkeypatch.setattr(formulas, "formula_of", lambda *args: lambda **x: correct(*args)(**x) * 1.001)
    for mode in ("jacfwd", "jacrev"):
        record = run_once(case_rules.complete(Case(**RBF | {"engine": "torch", "mode": mode, "jit": False})))
        assert (record.status, record.reason) == ("failed", "wrong_answer")
        assert not record.seconds


def test_torch_uses_the_given_number_of_threads():
    import torch

    case = case_rules.complete(Case(**RBF | {"engine": "torch", "jit": False}))
    built = workload.build(case)
    sizes = describe_derivative(case, built)
    for threads in (2, 1):
        peer.prepare(case, built, sizes, inputs.input_arrays(case, built), threads)
        assert (torch.get_num_threads(), torch.get_num_interop_threads()) == (threads, 1)


def test_a_function_written_in_jax_is_not_supported(write_workload, tmp_path, monkeypatch):
    write_workload("springs")
    monkeypatch.syspath_prepend(tmp_path)
    assert skip_text(workload="springs") == (
        "torch implements the functions rbf, linear, residual, poisson, not those in JAX"
    )


def test_unsupported_modes_are_skipped_with_the_supported_ones():
    for mode in ("linearize", "finite_difference", "analytic", "fwd_over_rev"):
        assert "torch offers value, jacfwd, jacrev" in skip_text(**RBF, mode=mode)


def test_jit_without_a_compiler_is_not_supported(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "needs a C++ compiler" in skip_text(**RBF, jit=True)
    assert skip_text(**RBF, jit=False) is None


def test_importing_the_engine_module_does_not_load_torch():
    code = f"import sys; sys.path.insert(0, {os.getcwd()!r})\nimport scaling.peers.torch\nassert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
