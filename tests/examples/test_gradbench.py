"""Tests of the examples of GradBench: right derivatives in JAX and in C++, studies that expand, tables that fit."""

import re

import pytest

from examples.gradbench import problems, table
from scaling.core import inputs, workload
from scaling.core.case import Case
from scaling.study import case_rules
from tests.support.devices import run_once
from tests.support.paths import TOP

CELLS = problems.small_cells()
NAMES = [cell.problem for cell in CELLS]
MODES = {"bundle_adjustment": ("vmap_grad", "jacrev"), "hand_tracking": ("vmap_grad", "jacfwd")}


def make_case(cell, **fields):
    fields = problems.COMMON | cell.fields | fields
    return case_rules.complete(Case(f"examples.{cell.problem}", **fields))


@pytest.mark.thin(5, "thorough")
@pytest.mark.parametrize("cell", CELLS, ids=NAMES)
def test_each_example_passes_the_check_in_its_modes(cell):
    for mode in MODES.get(cell.problem, ("jacrev",)):
        record = run_once(make_case(cell, mode=mode))
        assert (record.status, record.text) == ("ok", None) and record.error <= record.tolerance


@pytest.mark.thin(4, "thorough")
@pytest.mark.parametrize("cell", CELLS, ids=NAMES)
def test_the_derivative_written_in_cpp_is_that_of_jax(cell, tmp_path):
    if problems.find_compiler() is None:
        pytest.skip("g++ is not installed")
    case = make_case(cell, mode=MODES.get(cell.problem, ("jacrev",))[0])
    function = case_rules.complete(
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


def test_each_published_cell_has_a_source_and_a_time():
    published = table.read_published()
    cells = published["cells"]
    assert len(cells) >= 30 and {cell["source"] for cell in cells} == set(published["sources"])
    assert all(cell["seconds"] > 0 and cell["tool"] for cell in cells)
    assert all(
        source["title"] and source["url"] and source["machine"] for source in published["sources"].values()
    )
    keys = [tuple(cell[name] for name in ("problem", "label", "source", "tool")) for cell in cells]
    assert len(set(keys)) == len(keys)


def test_each_cell_of_the_measurement_was_published():
    published = {(cell["problem"], cell["label"]) for cell in table.read_published()["cells"]}
    assert {(cell.problem, cell.label) for cell in problems.full_cells()} == published


def test_the_tables_of_the_page_are_those_of_its_data(tmp_path):
    page = tmp_path / "gradbench.md"
    page.write_text((TOP / "docs/gradbench.md").read_text())
    table.write_page(TOP / "docs/data/gradbench.jsonl", page)
    assert page.read_text() == (TOP / "docs/gradbench.md").read_text()
    assert page.with_suffix(".png").stat().st_size > 10_000


def read_examples():
    """Return a dict from the file name of each example to its source code."""
    texts = {path.name: path.read_text() for path in (TOP / "examples").rglob("*.py")}
    return {name: text for name, text in texts.items() if "\ndef workload(" in text}


def test_each_example_has_at_most_80_lines():
    lengths = {name: text.count("\n") for name, text in read_examples().items()}
    assert len(lengths) > 20 and {name: length for name, length in lengths.items() if length > 80} == {}


def test_each_example_uses_the_public_interface_alone():
    imports = {
        name: re.findall(r"(?:import|from) (scaling\S*)", text) for name, text in read_examples().items()
    }
    assert {module for modules in imports.values() for module in modules} == {"scaling.workload"}
