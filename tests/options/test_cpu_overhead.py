"""The overhead of a kernel on a CPU, its start and its library calls: by hand, and in programs that XLA compiles."""

import os

import pytest

from scaling.core import environment

os.environ["XLA_FLAGS"] = environment.variables("cpu")["XLA_FLAGS"]
import jax
import jax.numpy as jnp
from jax import lax

from scaling.options.program import cpu_overhead as co
from scaling.options.program import hlo_cost
from tests.support.hlo_text import fusion_text


def overhead(body, root, *others):
    """Return the overhead of a fusion without that of its start."""
    (kernel,) = hlo_cost.read(fusion_text(body, root, *others), {}).kernels
    return kernel.overhead - co.START


def compiled_products(function, *arguments):
    """Return the overhead of the matrix products and convolutions in a compiled program."""
    text = jax.jit(function).lower(*arguments).compile().as_text()
    return [kernel.overhead for kernel in hlo_cost.read(text, {}).kernels if kernel.products]


def test_plans_for_accelerators_have_no_overhead_of_a_cpu():
    text = fusion_text("f32[5,7]{1,0} parameter(0)", "f32[5,7]{1,0} negate(%p)")
    overheads = [hlo_cost.read(text, operations).kernels[0].overhead for operations in (None, {})]
    assert overheads == [0, co.START]


def test_a_fusion_within_a_fusion_is_not_a_further_start():
    inner = "%inner (q: f32[5,7]) -> f32[5,7] {\n  %q = f32[5,7]{1,0} parameter(0)\n  ROOT %s = f32[5,7]{1,0} negate(%q)\n}\n\n"
    outer = fusion_text("f32[5,7]{1,0} parameter(0)", "f32[5,7]{1,0} fusion(%p), kind=kLoop, calls=%inner")
    (kernel,) = hlo_cost.read(inner + outer, {}).kernels
    assert kernel.overhead == co.START


def test_a_kernel_starts_faster_in_a_loop():
    step = lambda x: lax.fori_loop(0, 3, lambda _, y: jnp.sin(y @ y), x)  # noqa: E731
    (in_loop,) = compiled_products(step, jnp.ones((5, 5)))
    (alone,) = compiled_products(lambda x: x @ x, jnp.ones((5, 5)))
    assert alone - in_loop == co.START - co.START_IN_LOOP > 0


PRODUCTS = {  # result, operands, attributes -> overhead
    "two matrices": (
        "f32[5,3]{1,0}", "f32[5,7]{1,0}", "f32[7,3]{1,0}", "lhs_contracting_dims={1}, rhs_contracting_dims={0}",
        co.PRODUCT + co.PACKED * (5 * 7 + 7 * 3 + 5 * 3)),
    "a batch of them": (
        "f32[9,5,3]{2,1,0}", "f32[9,5,7]{2,1,0}", "f32[9,7,3]{2,1,0}",
        "lhs_batch_dims={0}, lhs_contracting_dims={2}, rhs_batch_dims={0}, rhs_contracting_dims={1}",
        9 * (co.PRODUCT + co.PACKED * (5 * 7 + 7 * 3 + 5 * 3))),
    "a matrix and a vector": (
        "f32[5]{0}", "f32[5,7]{1,0}", "f32[7]{0}", "lhs_contracting_dims={1}, rhs_contracting_dims={0}", 0),
    "sums of three terms": (
        "f32[5,7]{1,0}", "f32[5,3]{1,0}", "f32[3,7]{1,0}", "lhs_contracting_dims={1}, rhs_contracting_dims={0}",
        5 * co.SHORT_ROW),
    "sums of three terms next to each other": (
        "f32[5,7]{1,0}", "f32[5,3]{1,0}", "f32[7,3]{1,0}", "lhs_contracting_dims={1}, rhs_contracting_dims={1}",
        2 * 5 * 7 * 3 * co.SHORT_SUM),
}  # fmt: skip


@pytest.mark.parametrize("name", PRODUCTS)
def test_a_product_of_matrices_starts_a_library_and_others_are_loops(name):
    result, first, second, attributes, expected = PRODUCTS[name]
    assert overhead(f"{first} parameter(0)", f"{result} dot(%p, %a), {attributes}", second) == round(expected)


@pytest.mark.parametrize(
    ("labels", "image", "kernel", "result", "expected"),
    [
        ("b0f_0io->b0f", "f32[7,9,2]", "f32[3,2,4]", "f32[7,9,4]", 7 * 9 * co.PATCH),
        (
            "bf0_oi0->bf0",
            "f32[7,2,9]",
            "f32[4,2,3]",
            "f32[7,4,9]",
            7 * 4 * 2 * (3 * 9 - 2) * co.MULTIPLICATION,
        ),
    ],
)
def test_a_convolution_with_the_features_last_extracts_patches_and_another_is_a_loop(
    labels, image, kernel, result, expected
):
    text = f"""\
HloModule written

ENTRY %main (a: {image}) -> {result} {{
  %a = {image} parameter(0)
  %b = {kernel} parameter(1)
  ROOT %r = {result} convolution(%a, %b), window={{size=3 pad=1_1}}, dim_labels={labels}
}}
"""
    (found,) = hlo_cost.read(text, {}).kernels
    assert found.overhead == co.START + round(expected)


@pytest.mark.parametrize(
    ("features", "multiplication"), [(2, co.MULTIPLICATION), (3, co.MULTIPLICATION_OF_MANY)]
)
def test_a_convolution_that_sums_many_terms_in_a_loop_is_slow(features, multiplication):
    kernel = jnp.ones((4, features, 5, 5))
    convolve = lambda image: lax.conv(image, kernel, (1, 1), "VALID")  # noqa: E731
    (found,) = compiled_products(lambda x: lax.map(convolve, x), jnp.ones((6, 2, features, 9, 9)))
    terms = features * 5 * 5
    assert found == co.START_IN_LOOP + round(2 * 5 * 5 * 4 * terms * multiplication)
