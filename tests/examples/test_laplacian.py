"""Tests of examples/laplacian.py, its study, and the tables that are generated from its measurements."""

import json

import pytest

from tests.support.devices import run_once  # isort: skip  # before JAX is used
import jax
import jax.numpy as jnp
import numpy as np

from examples import biharmonic, laplacian, measure_laplacian
from scaling.core import inputs, workload
from scaling.core.case import Case
from scaling.study import case_rules
from tests.support.paths import TOP

SIZES = {"inputs": 5, "wide": 7, "narrow": 6}


def make_case(**fields):
    return case_rules.complete(
        Case(**{"workload": "examples.laplacian", "points": 3, "sizes": SIZES, "api": "jit"} | fields)
    )


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("mode", measure_laplacian.MODES)
def test_every_mode_of_the_study_gives_the_laplacian_of_the_network(mode, dtype):
    case = make_case(mode=mode, dtype=dtype)
    record = run_once(case)
    assert record.status == "ok", record.text
    assert record.error <= record.tolerance


def test_the_laplacian_by_hand_and_the_hessian_in_numpy_agree_with_automatic_differentiation():
    case = make_case(mode="analytic", dtype="float64")
    named = inputs.exact_inputs(case, workload.build(case), 0, 3)
    weights = [named[f"weights.{k}"] for k in range(5)]
    biases = [named[f"biases.{k}"] for k in range(4)]
    H = jax.jit(jax.vmap(jax.hessian(laplacian.network), in_axes=(0, None, None)))(
        named["x"], weights, biases
    )
    of_numpy = laplacian.hessian({"x": named["x"], "weights": weights, "biases": biases})
    np.testing.assert_allclose(of_numpy.derivative, H, rtol=1e-10, atol=1e-12)
    by_hand = laplacian.laplacian(jnp.asarray(named["x"]), weights, biases)
    np.testing.assert_allclose(by_hand, np.trace(H, axis1=1, axis2=2), rtol=1e-10)


def test_both_variants_of_the_biharmonic_are_the_laplacian_of_the_laplacian():
    case = make_case(dtype="float64", mode="fwd_over_rev")
    named = inputs.exact_inputs(case, workload.build(case), 0, 1)
    x, weights = named["x"][0], [named[f"weights.{k}"] for k in range(5)]
    biases = [named[f"biases.{k}"] for k in range(4)]
    hessians = [jax.jit(jax.hessian(f))(x, weights, biases) for f in (biharmonic.by_hand, biharmonic.nested)]
    np.testing.assert_allclose(*hessians, rtol=1e-10, atol=1e-12)
    trace = lambda x: jnp.trace(jax.hessian(laplacian.network)(x, weights, biases))  # noqa: E731
    np.testing.assert_allclose(biharmonic.by_hand(x, weights, biases), trace(x), rtol=1e-10)


@pytest.mark.thorough  # the check compiles fourth derivatives
@pytest.mark.parametrize(("variant", "mode"), [("by_hand", "forward_laplacian"), ("nested", "fwd_over_rev")])
def test_the_biharmonic_is_right(variant, mode):
    fields = {"workload": "examples.biharmonic", "target": "laplacian", "dtype": "float64"}
    record = run_once(make_case(**fields, variant=variant, mode=mode))
    assert record.status == "ok" and record.error <= record.tolerance, record.text


def test_the_gradient_of_the_laplacian_by_the_weights_takes_less_memory_by_one_forward_pass():
    sizes = {"inputs": 16, "wide": 32, "narrow": 24}
    nested, forward = (
        measure_laplacian.program_bytes(mode, 32, sizes, True)
        for mode in ("fwd_over_rev", "forward_laplacian")
    )
    assert forward < nested


def published(**fields):
    return {"source": "s", "system": "JAX", "quantity": "time", "points": 4, "unit": "s"} | fields


def timed(mode, median, points=4):
    times = {"median": median, "low": 0.9 * median, "high": 1.1 * median}
    return {"kind": "time", "mode": mode, "points": points, "chunk": None, "devices": 1} | times


def test_a_published_cell_is_compared_by_its_ratio_to_nested_differentiation():
    cells = [published(mode="fwd_over_rev", value=2.0), published(mode="forward_laplacian", value=1.0)]
    rows = [timed("fwd_over_rev", 10.0), timed("forward_laplacian", 4.0)]
    _, forward = measure_laplacian.compare(rows, cells)
    assert forward["ratio"] == 0.5
    np.testing.assert_allclose(forward["our_ratio"], (0.4, 3.6 / 11, 4.4 / 9))
    assert measure_laplacian.compare(rows[:1], cells)[1]["our_ratio"] is None
    others = [cell | {"system": "PyTorch", "value": 3 * cell["value"] ** 2} for cell in cells]
    assert [cell["ratio"] for cell in measure_laplacian.compare(rows, [*cells, *others])] == [1, 0.5, 1, 0.25]


def test_the_increase_per_datum_is_that_between_the_two_largest_batches():
    rows = [timed("jet", 9.0, 1), timed("jet", 10.0, 10), timed("jet", 30.0, 20)]
    middle, low, high = measure_laplacian.slope(rows, "time", "jet")
    assert middle == 2 and (low, high) == pytest.approx((1.6, 2.4))


def test_the_page_shows_every_published_cell_and_the_table_that_its_data_give():
    page, cells = (TOP / "docs" / "laplacian.md").read_text(), measure_laplacian.read("laplacian_published")
    tables = measure_laplacian.tables(measure_laplacian.read("laplacian"), cells)
    problems = {(cell["quantity"], cell["system"], cell["source"], cell["points"]) for cell in cells}
    assert tables in page and len(cells) == 47
    assert len([line for line in tables.splitlines() if "(table" in line or "(csv" in line]) == len(problems)


@pytest.mark.process
@pytest.mark.thorough
@pytest.mark.parametrize("study", ["laplacian", "biharmonic"])
def test_a_study_runs_small_and_its_figures_can_be_drawn(study, tmp_path, monkeypatch):
    small = [f"sizes.{name}={size}" for name, size in SIZES.items()]
    quick = ["sampling.seconds=0.02", "sampling.least=3", "sampling.warm_up=0.001", "points=4", "devices=1"]
    monkeypatch.setenv("PYTHONPATH", str(TOP))
    monkeypatch.chdir(TOP)
    with monkeypatch.context() as patch:
        patch.setattr(measure_laplacian, "STUDIES", {study: measure_laplacian.STUDIES[study]})
        rows = measure_laplacian.measure([*small, *quick])
    assert {row["status"] for row in rows} == {"ok"}
    assert {row["mode"] for row in rows} > {"fwd_over_rev", "forward_laplacian"}
    measure_laplacian.draw(
        json.loads(json.dumps(rows)), measure_laplacian.read("laplacian_published"), tmp_path / "a.png"
    )
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
