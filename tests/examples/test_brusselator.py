"""The sparse examples: Jacobians and patterns are right, studies expand, and the table of the page fits its data."""

import numpy as np
import pytest

from examples import brusselator, diffusion, pages, side_by_side
from examples.brusselator_stages import measure
from scaling.core.case import Case
from scaling.study import case_rules
from tests.support.devices import run_once
from tests.support.paths import TOP

JACOBIANS = {"brusselator": {"side": 4}, "diffusion": {"n": 9}}


def run(**fields):
    case = case_rules.complete(Case(**{"api": "jit", "dtype": "float64", **fields}))
    return run_once(case)


@pytest.mark.parametrize(
    ("name", "seeds", "mode"),
    [
        ("brusselator", "colored", "jacfwd"),
        ("brusselator", "identity", "jacrev"),
        ("diffusion", "colored", "jacrev"),
        ("diffusion", "identity", "jacfwd"),
    ],
)
def test_the_jacobian_of_an_example_is_right(name, seeds, mode):
    record = run(workload=f"examples.{name}", sizes=JACOBIANS[name], seeds=seeds, mode=mode, points=2)
    assert record.status == "ok" and record.error < 1e-12, record.text


@pytest.mark.parametrize("seeds", ["identity", "colored"])
def test_the_hessian_of_the_rosenbrock_function_is_right(seeds):
    hessian = {"target": "hessian", "mode": "fwd_over_rev", "points": 2}
    record = run(workload="examples.rosenbrock", sizes={"n": 7}, seeds=seeds, **hessian)
    assert record.status == "ok" and record.error < 1e-12, record.text


def test_the_gradient_of_the_rosenbrock_function_is_right():
    record = run(workload="examples.rosenbrock", sizes={"n": 7}, mode="jacrev", points=2)
    assert record.status == "ok" and record.error < 1e-12, record.text


@pytest.mark.parametrize(
    ("name", "size", "pattern"),
    [("brusselator", 5, brusselator.pattern(5)), ("diffusion", 9, diffusion.pattern(9))],
)
def test_the_detected_pattern_is_the_closed_form_and_the_stages_give_the_nonzeros(name, size, pattern):
    lines, coloring = measure.analyze(name, size, 1)
    np.testing.assert_array_equal([coloring.pattern.rows, coloring.pattern.cols], pattern)
    assert {"detection", "coloring", "coloring by rows"} <= {line["name"].split("/")[1] for line in lines}
    calls = measure.split_stages(name, size, coloring)  # compares them with a dense Jacobian
    assert calls["compressed products"]().shape[0] == coloring.column_count


def test_the_table_of_the_page_is_that_of_its_data():
    lines = pages.read_lines(TOP / "docs" / "data" / "brusselator.jsonl")
    text = measure.stage_table(lines) + side_by_side.make_table(measure.CELLS, lines)
    assert text in (TOP / "docs" / "brusselator.md").read_text()


def test_every_published_cell_names_a_call_of_the_measurement():
    cells, _ = side_by_side.load_cells(measure.CELLS)
    stages = ("detection", "coloring", "coloring by rows")
    names = {
        f"{name} {size}/{what}"
        for name, size in measure.FULL
        for what in (*stages, *measure.list_cases(name, size))
    }
    for name, size in measure.DOUBLE:
        names |= {f"{name} {size}/{what}" for what in measure.list_cases(name, size, "float64")}
    assert len(cells) >= 15 and {cell["call"] for cell in cells} <= names
