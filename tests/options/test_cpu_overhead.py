"""The time of a kernel on a CPU beyond its bytes and vectorized operations: by hand, and in programs that XLA compiles."""

import os

import pytest

from scaling.core import environment

os.environ["XLA_FLAGS"] = environment.variables("cpu")["XLA_FLAGS"]
import jax
import jax.numpy as jnp
from jax import lax

from scaling.options.program import cpu_overhead as co
from scaling.options.program import hlo_cost
from scaling.plan import compile_worker
from tests.support.hlo_text import fusion_text

PADDED = """f32[5,7]{1,0} parameter(0)
  %zero = f32[] constant(0)"""
GATHER = "collapsed_slice_dims={1}, start_index_map={1}, index_vector_dim=1, slice_sizes={5,1}"


def overhead(body, root, *others):
    """Return the overhead of a fusion without that of its start."""
    (kernel,) = hlo_cost.read(fusion_text(body, root, *others)).kernels
    return kernel.overhead - co.START


def compiled_products(function, *arguments):
    """Return the overhead of the matrix products and convolutions in a compiled program."""
    text = jax.jit(function).lower(*arguments).compile().as_text()
    return [kernel.overhead for kernel in hlo_cost.read(text).kernels if kernel.products]


@pytest.mark.parametrize("platform", ["cpu", "gpu", "tpu"])
def test_plans_for_accelerators_have_no_overhead_of_a_cpu(platform):
    cost = hlo_cost.read(fusion_text("f32[5,7]{1,0} parameter(0)", "f32[5,7]{1,0} negate(%p)"))
    (kernel,) = compile_worker._optimized_work(cost, 1, platform)["kernels"]
    assert kernel.get("overhead", 0) == (co.START + 5 * co.ROW if platform == "cpu" else 0)


def test_a_kernel_starts_faster_in_a_loop():
    step = lambda x: lax.fori_loop(0, 3, lambda _, y: jnp.sin(y @ y), x)  # noqa: E731
    (in_loop,) = compiled_products(step, jnp.ones((5, 5)))
    (alone,) = compiled_products(lambda x: x @ x, jnp.ones((5, 5)))
    assert alone - in_loop == co.START - co.START_IN_LOOP > 0


def test_a_computing_loop_starts_each_of_its_rows_and_a_copy_does_not():
    assert overhead("f32[5,7]{1,0} parameter(0)", "f32[5,7]{1,0} negate(%p)") == 5 * co.ROW
    assert overhead("f32[5,7]{0,1} parameter(0)", "f32[5,7]{0,1} negate(%p)") == 7 * co.ROW
    assert overhead("f32[5,7]{1,0} parameter(0)", "f32[5,7]{0,1} copy(%p)") == 0


def test_an_update_of_a_part_of_an_array_has_only_the_rows_of_that_part():
    body = """f32[5,7]{1,0} parameter(0)
  %n = f32[5,7]{1,0} negate(%p)
  %i = s32[] constant(0)
  %z = f32[90,7]{1,0} broadcast(%i), dimensions={}"""
    update = "f32[90,7]{1,0} dynamic-update-slice"
    assert overhead(body, f"{update}(%a, %n, %i, %i)", "f32[90,7]{1,0}") == 5 * co.ROW
    assert overhead(body, f"{update}(%z, %n, %i, %i)") == 90 * co.ROW  # not in place


def test_the_arithmetic_of_an_index_does_not_make_a_copy_compute():
    body = """f32[5,7]{1,0} parameter(0)
  %j = s32[] add(%b, %b)"""
    root = "f32[90,7]{1,0} dynamic-update-slice(%a, %p, %j, %j)"
    assert overhead(body, root, "f32[90,7]{1,0}", "s32[]") == 0


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


def test_elements_that_the_innermost_loop_reads_across_the_rows_are_strided():
    transposed = """f32[5,7]{1,0} parameter(0)
  %c = f32[5,7]{1,0} negate(%p)"""
    assert overhead(transposed, "f32[5,7]{0,1} copy(%c)") == round(7 * co.ROW + 35 * co.STRIDED)
    small = """f32[5]{0} parameter(0)
  %b = f32[5,7]{0,1} broadcast(%p), dimensions={0}
  %c = f32[5,7]{0,1} add(%b, %a)"""  # each element of p is read once and used in a row
    strided = round(5 * co.ROW + 35 * co.STRIDED)
    assert overhead(small, "f32[5,7]{1,0} copy(%c)", "f32[5,7]{0,1}") == strided


def test_operations_on_gathered_elements_are_not_vectorized():
    computed = """f32[5,7]{1,0} parameter(0)
  %c = f32[5,7]{1,0} negate(%p)"""
    gathered = f"f32[3,5]{{0,1}} gather(%c, %a), offset_dims={{1}}, {GATHER}"
    assert overhead(computed, gathered, "s32[3,1]{1,0}") == round(5 * co.ROW + 15 * (co.GATHERED + co.SCALAR))
    # The innermost loop is over the rows that the gather keeps.
    kept = f"f32[3,5]{{1,0}} gather(%c, %a), offset_dims={{1}}, {GATHER}"
    assert overhead(computed, kept, "s32[3,1]{1,0}") == round(3 * co.ROW + 15 * co.STRIDED)


def test_a_gather_of_values_that_are_equal_in_the_innermost_loop_costs_nothing():
    body = """f32[5]{0} parameter(0)
  %c = f32[5]{0} negate(%p)
  %b = f32[5,7]{1,0} broadcast(%c), dimensions={0}"""
    gathered = f"f32[3,5]{{0,1}} gather(%b, %a), offset_dims={{1}}, {GATHER}"
    assert overhead(body, gathered, "s32[3,1]{1,0}") == 0


def sum_of_padded(count):
    """Return the lines of a fusion that adds arrays, each padded in a different way."""
    lines = [
        f"%p{k} = f32[5,9]{{1,0}} pad(%p, %zero), padding=0_0x{k % 3}_{2 - k % 3}_{k // 3}"
        for k in range(count)
    ]
    lines += [f"%s{k} = f32[5,9]{{1,0}} add(%{'s' if k > 1 else 'p'}{k - 1}, %p{k})" for k in range(1, count)]
    return "\n  ".join([PADDED, *lines])


@pytest.mark.parametrize(("in_place", "most"), [(False, 4), (True, 2)])
def test_a_loop_with_many_padded_arrays_is_not_vectorized(in_place, most):
    roots = {
        count: f"f32[90,9]{{1,0}} dynamic-update-slice(%a, %s{count - 1}, %zero, %zero)"
        if in_place
        else f"f32[5,9]{{1,0}} negate(%s{count - 1})"
        for count in (most, most + 1)
    }
    found = {count: overhead(sum_of_padded(count), root, "f32[90,9]{1,0}") for count, root in roots.items()}
    assert found == {most: 5 * co.ROW, most + 1: 5 * co.ROW + (most + 1) * 45 * co.PADDED}


def test_a_concatenation_in_a_computing_loop_selects_each_element():
    body = """f32[7,5]{0,1} parameter(0)
  %c = f32[7,8]{1,0} concatenate(%p, %a), dimensions={1}"""
    expected = 7 * co.ROW + 56 * co.CONCATENATED + 35 * co.STRIDED  # only p is read across its rows
    assert overhead(body, "f32[7,8]{1,0} negate(%c)", "f32[7,3]{1,0}") == round(expected)


def test_a_cosine_takes_longer_than_an_exponential():
    found = {
        name: overhead("f32[5,3]{1,0} parameter(0)", f"f32[5,3]{{1,0}} {name}(%p)")
        for name in ("cosine", "exponential")
    }
    rows = 5 * co.ROW
    assert found == {"cosine": rows + 15 * (co.UNVECTORIZED["cosine"] - 1), "exponential": rows}


def test_a_function_of_a_slice_is_computed_for_the_slice_alone():
    body = """f32[900,11]{1,0} parameter(0)
  %w = f32[900,11]{1,0} sine(%p)
  %s = f32[900,2]{1,0} slice(%w), slice={[0:900], [1:3]}"""
    expected = 900 * co.ROW + 2 * 900 * (co.UNVECTORIZED["sine"] - 1)
    assert overhead(body, "f32[900,2]{1,0} negate(%s)") == expected


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
    (found,) = hlo_cost.read(text).kernels
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
