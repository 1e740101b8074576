"""Tests of rounding: the tolerance is a few roundings per term, and matrix products have the precision of the case."""

import jax
import numpy as np
import pytest

from scaling.core import check, inputs, layout, workload
from scaling.core.case import PRECISIONS, Case
from scaling.core.derivative import describe_derivative
from scaling.core.reference import ROUNDOFF
from scaling.study import case_rules

LINEAR = {"workload": "linear", "points": 5, "sizes": {"p": 3, "o": 2}, "api": "jit"}


def correct_result(case, built):
    """Return the Jacobian of `linear` with respect to W: row `o` has x at the weights of output `o`."""
    x = inputs.exact_inputs(case, built, 0, case.points)["X"]
    p, o = case.sizes["p"], case.sizes["o"]
    result = np.zeros((case.points, o, p, o))
    for row in range(o):
        result[:, row, :, row] = x
    return result.reshape(case.points, o, p * o)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("roundings", "reason"), [(0, None), (4, None), (40, "wrong_answer")])
def test_a_result_may_differ_by_a_few_roundings_per_term_and_no_more(dtype, roundings, reason):
    with jax.enable_x64(dtype == "float64"):
        case = case_rules.complete(Case(**LINEAR, dtype=dtype, reduce="whole"))
        built = workload.build(case)
        got = correct_result(case, built)
        entry = np.unravel_index(np.abs(got).argmax(), got.shape)
        got[entry] *= 1 + roundings * ROUNDOFF[dtype] * np.sqrt(built.terms)
        verdict = check.verdict(describe_derivative(case, built), got, "cpu")
    assert verdict.reason == reason, verdict


@pytest.mark.parametrize("mode", ["jacfwd", "jacrev", "value"])
@pytest.mark.parametrize("precision", PRECISIONS)
def test_every_matrix_product_has_the_precision_of_its_case(precision, mode):
    """On a CPU the precision shows in the program and not in the result."""
    case = case_rules.complete(Case(**LINEAR, precision=precision, mode=mode))
    program = layout.lay_out(describe_derivative(case, workload.build(case)), jax.devices()[:1])
    lowered = program.function.lower(*program.arguments.values()).as_text()
    products = [line for line in lowered.splitlines() if "dot_general" in line]
    assert products and all(f"[{precision.upper()}, {precision.upper()}]" in line for line in products)
