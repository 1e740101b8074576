"""Tests of examples/memory: a case is checked at a small size, gives what its thread asks for, and is on the page."""

import dataclasses
import importlib
import json
import re

import numpy as np
import pytest
import yaml

from tests.support.devices import run_once
from tests.support.paths import TOP

import jax  # isort: skip

from examples.memory import atoms, genes, measure, page, scaled_rows, tangent_kernel, visibilities
from scaling.study import case_rules
from scaling.study.grid import expand_study

SLOW = ("lenet",)  # to compile
STUDIES = TOP / "examples" / "conf" / "study"


def cases_of(name):
    """Return the first case of each grid of a study at its small size, in forward mode if all choose their mode."""
    study = yaml.safe_load((STUDIES / f"memory_{name}.yaml").read_text())
    for grid in study["grids"]:
        cases = [cell.case for cell in expand_study(study | {"grids": [grid]}, {})]
        forward = dataclasses.replace(cases[0], mode="jacfwd") if cases[0].mode == "auto" else cases[0]
        yield next((case for case in cases if case.mode != "auto"), forward)


CASES = [
    pytest.param(case, id=f"{name}-{n}", marks=[pytest.mark.thorough] * (name in SLOW))
    for name in measure.CASES
    for n, case in enumerate(cases_of(name))
]


@pytest.mark.parametrize("case", CASES)
def test_a_case_is_right_at_a_small_size(case):
    record = run_once(case_rules.complete(case))
    assert record.status == "ok", record.text
    assert record.error <= record.tolerance and record.checked["entries"] == 1


def test_the_forces_on_atoms_have_the_rows_of_the_hessian_as_their_jacobians():
    x = np.random.default_rng(0).random((5, 3))
    rows = jax.jit(jax.vmap(jax.jacrev(atoms.force, 1), (0, None)))(np.arange(5), x)
    np.testing.assert_allclose(rows, jax.jit(jax.hessian(atoms.energy))(x), rtol=1e-12, atol=1e-12)
    inputs = {"x": x, "i": np.arange(5.0)}
    np.testing.assert_allclose(rows.reshape(5, 3, 15), atoms.reference(inputs).derivative, atol=1e-12)


def test_the_hessians_of_genes_are_the_diagonal_blocks_of_that_of_their_sum():
    generator = np.random.default_rng(0)
    beta, counts, design = (generator.random(shape) for shape in ((2, 3), (4, 3), (4, 2)))
    whole = jax.jit(jax.hessian(genes.total))(beta, counts, design)
    blocks = jax.jit(jax.vmap(jax.hessian(genes.loss), (1, 1, None)))(beta, counts, design)
    for k in range(3):
        np.testing.assert_allclose(blocks[k], whole[:, k, :, k], rtol=1e-12)
    np.testing.assert_array_equal(whole[:, 0, :, 1], 0)


def test_the_jacobians_of_images_are_those_of_the_batch():
    sizes, generator = tangent_kernel.SMALL, np.random.default_rng(0)
    parameters = {name: generator.random(shape) for name, shape in tangent_kernel.parameters(sizes).items()}
    images = generator.random((2, 4, 4))
    function, transform, _ = tangent_kernel.reported_call(sizes)
    of_batch = jax.jit(transform(function))(parameters, images)
    jacobian = jax.jacrev(lambda parameters, x: tangent_kernel.network(x, **parameters))
    by_image = jax.jit(jax.vmap(jacobian, (None, 0)))(parameters, images)
    for name, J in of_batch.items():
        np.testing.assert_allclose(J, by_image[name], rtol=1e-12)


def test_advice_on_a_call_that_is_quick_enough_is_measured(monkeypatch):
    monkeypatch.setattr(measure, "BUDGET", 0.1)
    call = visibilities.reported_call(visibilities.SIZES)
    advice = measure.advise(*call, "float32")
    assert advice["advised"] == advice["method"] and advice["measured"] >= 1
    monkeypatch.setattr(measure, "MOST_BYTES", 1.0)
    assert "measured" not in measure.advise(*call, "float32")


def test_brackets_do_not_change_the_product():
    generator = np.random.default_rng(0)
    x, A = generator.random(4), generator.random((4, 4))
    np.testing.assert_allclose(scaled_rows.with_brackets(x, A), scaled_rows.with_diagonal(x, A), rtol=1e-12)


@pytest.mark.parametrize("name", measure.CASES)
def test_a_case_names_its_thread_and_its_shapes(name):
    module = importlib.import_module(f"examples.memory.{name}")
    assert module.REPORT["thread"] in module.__doc__
    assert re.search(r"https://github.com/[\w.-]+/[\w.-]+/(issues|pull)/\d+", module.__doc__)
    assert {*module.SIZES, "points"} == {*module.THREAD, "points"}
    function, transform, shapes = module.reported_call(getattr(module, "SMALL", module.SIZES))
    structs = measure.as_structs(shapes, "float32")
    assert jax.tree.leaves(jax.eval_shape(transform(function), *structs.values()))


def test_the_table_is_that_of_the_measurement():
    rows = [json.loads(line) for line in measure.DATA.read_text().splitlines()]
    assert [row["case"] for row in rows] == list(measure.CASES)
    assert len({row["thread"] for row in rows}) >= 12
    begin, end = page.MARKERS
    text = (TOP / "docs" / "memory.md").read_text().split(begin)[1].split(end)[0]
    assert text == f"\n{page.make_text(rows)}\n"
