"""Tests of the examples of GradBench: right derivatives in JAX and in C++, studies that expand, tables that fit."""

import os

import jax
import pytest

from examples.gradbench import problems
from scaling.core import environment, inputs, run_case, workload
from scaling.core.case import Case
from scaling.core.record import Record
from scaling.core.timing import Sampling
from scaling.study import completion
from tests.support.paths import TOP

os.environ["XLA_FLAGS"] = environment.variables("cpu")["XLA_FLAGS"]
jax.config.update("jax_enable_x64", True)

CELLS = problems.small_cells()
NAMES = [cell.problem for cell in CELLS]
ONCE = Sampling(least=1, most=1, warm_up=0.0)
MODES = {"bundle_adjustment": ("vmap_grad", "jacrev"), "hand_tracking": ("vmap_grad", "jacfwd")}


def make_case(cell, **fields):
    fields = problems.COMMON | cell.fields | fields
    return completion.complete(Case(f"examples.{cell.problem}", **fields))


@pytest.mark.parametrize("cell", CELLS, ids=NAMES)
def test_each_example_passes_the_check_in_its_modes(cell):
    for mode in MODES.get(cell.problem, ("jacrev",)):
        blank = Record(make_case(cell, mode=mode), "failed", {"digest": "test", "platform": "cpu"})
        record = run_case.run_case(blank, jax.devices()[:1], "cpu", ONCE)
        assert (record.status, record.text) == ("ok", None) and record.error <= record.tolerance


@pytest.mark.process
@pytest.mark.sample(4)
@pytest.mark.parametrize("cell", CELLS, ids=NAMES)
def test_the_derivative_written_in_cpp_is_that_of_jax(cell, tmp_path):
    if problems.find_compiler() is None:
        pytest.skip("g++ is not installed")
    case = make_case(cell, mode=MODES.get(cell.problem, ("jacrev",))[0])
    function = completion.complete(
        Case(case.workload, mode="value", sizes=case.sizes, **problems.COMMON | {"points": case.points})
    )
    problems.write_problem(tmp_path / "problem", case, inputs.input_arrays(case, workload.build(case)))
    path = problems.compile_program(cell.problem, tmp_path)
    by_jax = []
    for each in (function, case):
        run, collect = problems.compile_jax(each, cell)
        by_jax.append(collect(run()))
    with problems.Program(path, tmp_path / "problem") as program:
        assert all(program.seconds_per_call(what, 2) > 0 for what in ("derivative", "value"))
        by_hand = program.results(tmp_path / "result", by_jax[0].size, cell)
    for ours, theirs in zip(by_jax, by_hand, strict=True):
        assert ours.shape == theirs.shape and problems.relative_difference(ours, theirs) < 1e-12


@pytest.mark.process
@pytest.mark.parametrize("name", NAMES)
def test_each_study_expands(name, scaling_command):
    done = scaling_command(["run", "--config-dir", "examples/conf", f"study={name}", "dry_run=true"], cwd=TOP)
    assert done.returncode == 0 and f"examples.{name}" in done.stdout
