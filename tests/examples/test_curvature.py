"""The classifier and the regressions: derivatives are right, studies expand, and the table of the page fits its data."""

import jax
import numpy as np
import pytest

from examples import classifier, pages, side_by_side
from examples.curvature import measure, products
from scaling.core.case import Case
from scaling.study import case_rules
from tests.support.devices import run_once
from tests.support.paths import TOP

VARIANTS = pytest.mark.parametrize(
    "variant", ["simple", pytest.param("robust", marks=pytest.mark.thorough)]
)  # compiling the robust density takes seconds
SIZES = {"rows": 6, "pixels": 5, "width": 32}


def run(**fields):
    case = case_rules.complete(Case(**{"api": "jit", "dtype": "float64", **fields}))
    return run_once(case)


@pytest.fixture(scope="module")
def small():
    return measure.make_classifier(8, 5, 32)


def test_every_product_of_the_classifier_is_that_of_the_formulas_by_hand(small):
    errors = measure.check_products(measure.compile_products(small), small)
    assert set(errors) == set(products.PRODUCTS) and max(errors.values()) < 1e-4


def test_a_wrong_product_is_found(small):
    calls = measure.compile_products(small)
    with pytest.raises(ValueError, match="gauss-newton has the relative error"):
        measure.check_products(calls | {"gauss-newton": calls["empirical fisher"]}, small)


def test_the_gradient_by_hand_of_the_products_is_that_of_the_example(small):
    params, images, labels, direction = small
    reference = classifier.reference(
        {
            "images": np.asarray(images, np.float64)[None],
            "labels": np.asarray(labels)[None],
            "params": jax.tree.map(lambda a: np.asarray(a, np.float64), params),
        }
    )
    by_hand = products.by_hand(params, images, labels, direction, labels)
    np.testing.assert_allclose(by_hand["gradient"], reference.derivative[0, 0], rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize(
    ("target", "mode"), [(None, "jacrev"), pytest.param("hvp", "fwd_over_rev", marks=pytest.mark.thorough)]
)
def test_the_classifier_is_right(target, mode):
    record = run(workload="examples.classifier", sizes=SIZES, target=target, mode=mode)
    assert record.status == "ok", record.text


@VARIANTS
@pytest.mark.parametrize(("target", "mode"), [(None, "jacrev"), ("hessian", "fwd_over_rev")])
def test_the_regressions_are_right(variant, target, mode):
    sizes = {"n": 4, "k": 2}
    record = run(
        workload="examples.regression", sizes=sizes, variant=variant, target=target, mode=mode, points=2
    )
    assert record.status == "ok", record.text


@VARIANTS
def test_products_and_hessians_of_the_regressions_agree(variant):
    measure.check_nestings(*measure.regression_calls(variant))


def test_the_table_of_the_page_is_that_of_its_data():
    lines = pages.read_lines(TOP / "docs" / "data" / "curvature.jsonl")
    assert side_by_side.make_table(measure.CELLS, lines) in (TOP / "docs" / "curvature.md").read_text()


def test_every_published_cell_is_measured_or_says_why_not():
    cells, _ = side_by_side.load_cells(measure.CELLS)
    names = {f"mlp/{name}" for name in products.PRODUCTS} | {f"tanh/{name}" for name in measure.tanh_calls()}
    names |= {f"{v}/{name}" for v in ("simple", "robust") for name in measure.regression_calls(v)[0]}
    assert len(cells) >= 15
    for cell in cells:
        assert {cell["call"], cell["call_over"]} <= names if "call" in cell else cell["why"]


def test_a_regret_is_stated_only_if_another_method_was_measured():
    line = {"advice": "f", "advised": "jacrev", "fastest": "jacrev", "regret": [0.0] * 3}
    table = side_by_side.make_advice_table([line | {"measured": count} for count in (1, 2)])
    alone, compared = table.splitlines()[-2:]
    assert "0 %" not in alone and "0 %" in compared
    unmeasured = {"advice": "f", "advised": "jacrev", "fastest": "jacfwd", "regret": None, "measured": 1}
    assert "advised method not measured" in side_by_side.make_advice_table([unmeasured])
