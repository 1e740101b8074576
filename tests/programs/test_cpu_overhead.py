"""The overhead of a kernel on a CPU, its start and its library calls: by hand, and in programs that XLA compiles."""

import os
from importlib import metadata

import pytest

from scaling.core import environment

os.environ["XLA_FLAGS"] = environment.variables("cpu")["XLA_FLAGS"]
import jax
import jax.numpy as jnp
from jax import lax

from scaling.programs import hlo, kernel_work, llvm_instructions
from tests.support.hlo_text import fusion_text


def count_kernels(text, operations):
    """Return the work of the kernels of a module."""
    return kernel_work.count_kernels(hlo.read(text), operations)


def compiled_products(function, *arguments):
    """Return the overhead of the matrix products and convolutions in a compiled program."""
    # A module that ran before may have started JAX without this option, which workers set for jaxlib 0.10.
    is_old = metadata.version("jaxlib").startswith("0.10.")
    options = {"xla_cpu_experimental_ynn_fusion_type": ""} if is_old else {}
    text = jax.jit(function).lower(*arguments).compile(compiler_options=options).as_text()
    return [kernel["overhead"] for kernel in count_kernels(text, {}) if "products" in kernel]


def test_plans_for_accelerators_have_no_overhead_of_a_cpu():
    text = fusion_text("f32[5,7]{1,0} parameter(0)", "f32[5,7]{1,0} negate(%p)")
    overheads = [count_kernels(text, operations)[0].get("overhead", 0) for operations in (None, {})]
    assert overheads == [0, kernel_work.KERNEL_START]


def test_a_fusion_within_a_fusion_is_not_a_further_start():
    inner = "%inner (q: f32[5,7]) -> f32[5,7] {\n  %q = f32[5,7]{1,0} parameter(0)\n  ROOT %s = f32[5,7]{1,0} negate(%q)\n}\n\n"
    outer = fusion_text("f32[5,7]{1,0} parameter(0)", "f32[5,7]{1,0} fusion(%p), kind=kLoop, calls=%inner")
    (kernel,) = count_kernels(inner + outer, {})
    assert kernel["overhead"] == kernel_work.KERNEL_START


def test_a_kernel_starts_faster_in_a_loop():
    step = lambda x: lax.fori_loop(0, 3, lambda _, y: jnp.sin(y @ y), x)  # noqa: E731
    (in_loop,) = compiled_products(step, jnp.ones((40, 40)))
    (alone,) = compiled_products(lambda x: x @ x, jnp.ones((40, 40)))
    kernel = kernel_work.KERNEL_START - kernel_work.KERNEL_START_IN_LOOP
    fusion = kernel_work.FUSION_START - kernel_work.FUSION_START_IN_LOOP  # of a product, with jaxlib 0.11
    later = 1 - 1 / 3  # the first of three iterations starts it as outside of a loop
    assert 0 < alone - in_loop in (round(later * kernel), round(later * fusion))


def test_small_arrays_of_a_cpu_stay_in_the_cache_within_a_loop_only():
    def counted_bytes(size, operations, steps):
        step = lambda x: lax.fori_loop(0, steps, lambda _, y: jnp.sin(y)[::-1], x)  # noqa: E731
        text = jax.jit(step).lower(jnp.ones(size)).compile().as_text()
        return max(
            kernel.get("bytes", 0) for kernel in count_kernels(text, operations) if kernel["times"] == steps
        )

    small, large = 1000, kernel_work.CACHE_BYTES // 4 + 1
    assert counted_bytes(small, {}, 7) < 4 * small <= counted_bytes(small, None, 7)
    assert counted_bytes(large, {}, 7) >= kernel_work.CACHE_BYTES
    assert counted_bytes(small, {}, 1) >= 4 * small


def test_a_small_loop_that_xla_compiles_to_one_function_starts_once(tmp_path):
    loop = lambda x: lax.fori_loop(0, 40, lambda k, y: y.at[k % 3].add(jnp.sin(y[0])), x)  # noqa: E731
    options = llvm_instructions.dump_options(str(tmp_path))
    text = jax.jit(loop).lower(jnp.ones(3)).compile(compiler_options=options).as_text()
    kernels = count_kernels(text, llvm_instructions.count_operations(tmp_path, text))
    assert sum(kernel["times"] * (kernel["overhead"] > 1) for kernel in kernels) < 5
    assert max(kernel.get("operations", 0) for kernel in kernels) > 40 * 30, "the sines of the loop"


PRODUCTS = {  # result, operands, attributes -> overhead
    "two matrices": (
        "f32[5,8]{1,0}", "f32[5,7]{1,0}", "f32[7,8]{1,0}", "lhs_contracting_dims={1}, rhs_contracting_dims={0}",
        2 * kernel_work.PRODUCT + kernel_work.PACKED_ELEMENT * (5 * 7 + 7 * 8 + 5 * 8)),
    "a narrow matrix": (
        "f32[5,3]{1,0}", "f32[5,7]{1,0}", "f32[7,3]{1,0}", "lhs_contracting_dims={1}, rhs_contracting_dims={0}",
        2 * kernel_work.PRODUCT + kernel_work.NARROW_PRODUCT_ELEMENT * 5 * 7
        + kernel_work.PACKED_ELEMENT * (7 * 3 + 5 * 3)),
    "a batch of them": (
        "f32[9,5,8]{2,1,0}", "f32[9,5,7]{2,1,0}", "f32[9,7,8]{2,1,0}",
        "lhs_batch_dims={0}, lhs_contracting_dims={2}, rhs_batch_dims={0}, rhs_contracting_dims={1}",
        10 * kernel_work.PRODUCT + 9 * kernel_work.PACKED_ELEMENT * (5 * 7 + 7 * 8 + 5 * 8)),
    "a convolution": (
        "f32[7,9,4]{2,1,0}", "f32[7,9,2]{2,1,0}", "f32[3,2,4]{2,1,0}", "window={size=3 pad=1_1}, dim_labels=b0f_0io->b0f",
        7 * 9 * kernel_work.CONVOLUTION_PATCH),
    "a convolution of images": (
        "f32[2,7,9,4]{3,2,1,0}", "f32[2,7,9,2]{3,2,1,0}", "f32[3,5,2,4]{3,2,1,0}",
        "window={size=3x5 pad=1_1x2_2}, dim_labels=b01f_01io->b01f",
        2 * 7 * 9 * kernel_work.CONVOLUTION_PATCH),
    "a convolution of a dilated image": (
        "f32[2,9,4]{2,1,0}", "f32[2,5,3]{2,1,0}", "f32[3,3,4]{2,1,0}",
        "window={size=3 pad=1_1 lhs_dilate=2}, dim_labels=b0f_0io->b0f", 0),
    "triangular solves": (
        "f32[5,4,2]{2,1,0}", "f32[5,4,4]{2,1,0}", "f32[5,4,2]{2,1,0}", 'custom_call_target="lapack_strsm_ffi"',
        5 * (4 * 4 + 4 * 2) * kernel_work.ROUTINE_ELEMENTS["trsm"]),
    "top k": (
        "f32[5,2]{1,0}", "f32[5,8]{1,0}", "f32[5,8]{1,0}", 'custom_call_target="TopK"',
        2 * 5 * 8 * kernel_work.ROUTINE_ELEMENTS["TopK"]),
    "a sort": (
        "f32[5,8]{1,0}", "f32[5,8]{1,0}", "f32[5,8]{1,0}", "dimensions={1}, to_apply=%less", 5 * 8 * 3 * kernel_work.SORT_COMPARISON),
    "a Fourier transform": (
        "c64[5,8]{1,0}", "c64[5,8]{1,0}", "c64[5,8]{1,0}", "fft_type=FFT, fft_length={8}",
        kernel_work.FFT_START + 5 * 5 * 8 * 3 * kernel_work.FFT_OPERATION),
    "random bits": ("u32[5,8]{1,0}", "u32[5,8]{1,0}", "u32[5,8]{1,0}", "algorithm=rng_default", 0),
}  # fmt: skip
OPCODES = {
    "a convolution": "convolution", "a sort": "sort", "top k": "custom-call", "a Fourier transform": "fft",
    "a convolution of images": "convolution",
    "a convolution of a dilated image": "convolution", "triangular solves": "custom-call",
    "random bits": "rng-bit-generator",
}  # fmt: skip


def count_product(name, operations):
    """Return the work of the kernel of a product in `PRODUCTS`."""
    result, first, second, attributes, _ = PRODUCTS[name]
    text = f"""\
ENTRY %main (a: {first}, b: {second}) -> {result} {{
  %a = {first} parameter(0)
  %b = {second} parameter(1)
  ROOT %r = {result} {OPCODES.get(name, "dot")}(%a, %b), {attributes}
}}
"""
    (kernel,) = count_kernels(text, operations)
    return kernel


@pytest.mark.parametrize("name", PRODUCTS)
def test_only_what_has_no_compiled_loops_is_computed_by_a_library(name):
    expected, opcode = PRODUCTS[name][-1], OPCODES.get(name)
    in_library, in_loops = (count_product(name, operations) for operations in ({}, {"r": 1000.0}))
    assert in_library["overhead"] == kernel_work.KERNEL_START + expected and "operations" not in in_library
    assert (in_loops["overhead"], in_loops["operations"]) == (kernel_work.KERNEL_START, 1000)
    assert (
        in_library.get("library") == (opcode if name == "random bits" else None) and "library" not in in_loops
    )


LIBRARY_FUSION = """\
%add (x: f32[], y: f32[]) -> f32[] {
  %x = f32[] parameter(0)
  %y = f32[] parameter(1)
  ROOT %s = f32[] add(%x, %y)
}

%fused (p: f32[6,4], q: f32[6,5,4]) -> f32[6,5] {
  %p = f32[6,4]{1,0} parameter(0)
  %q = f32[6,5,4]{2,1,0} parameter(1)
  %b = f32[6,5,4]{2,1,0} broadcast(%p), dimensions={0,2}
  %m = f32[6,5,4]{2,1,0} multiply(%q, %b)
  %n = f32[6,5,4]{2,1,0} negate(%m)
  %zero = f32[] constant(0)
  ROOT %r = f32[6,5]{1,0} reduce(%n, %zero), dimensions={2}, to_apply=%add
}

ENTRY %main (a: f32[6,4], c: f32[6,5,4]) -> f32[6,5] {
  %a = f32[6,4]{1,0} parameter(0)
  %c = f32[6,5,4]{2,1,0} parameter(1)
  ROOT %f = f32[6,5]{1,0} fusion(%a, %c), kind=kCustom, calls=%fused, \
backend_config={"fusion_config":{"kind":"__ynn_fusion"}}
}
"""


def test_a_fusion_of_the_library_has_the_time_of_its_start_and_of_the_rows_of_its_sums():
    (in_library,) = count_kernels(LIBRARY_FUSION, {})
    assert in_library["overhead"] == kernel_work.FUSION_START + 6 * 5 * kernel_work.SUMMED_ROW
    (in_loops,) = count_kernels(LIBRARY_FUSION.replace("__ynn_fusion", "another"), {"f": 10.0})
    assert (in_loops["overhead"], in_loops["operations"]) == (kernel_work.KERNEL_START, 10)


def test_each_product_in_a_fusion_of_the_library_takes_as_long_as_alone():
    text = """\
%fused (p: f32[7,3,4], q: f32[7,4,5]) -> f32[7,3,5] {
  %p = f32[7,3,4]{2,1,0} parameter(0)
  %q = f32[7,4,5]{2,1,0} parameter(1)
  ROOT %d = f32[7,3,5]{2,1,0} dot(%p, %q), lhs_batch_dims={0}, lhs_contracting_dims={2}, rhs_batch_dims={0}, rhs_contracting_dims={1}
}

ENTRY %main (a: f32[7,3,4], c: f32[7,4,5]) -> f32[7,3,5] {
  %a = f32[7,3,4]{2,1,0} parameter(0)
  %c = f32[7,4,5]{2,1,0} parameter(1)
  ROOT %f = f32[7,3,5]{2,1,0} fusion(%a, %c), kind=kCustom, calls=%fused, backend_config={"fusion_config":{"kind":"__ynn_fusion"}}
}
"""
    (kernel,) = count_kernels(text, {})
    narrow = kernel_work.NARROW_PRODUCT_ELEMENT * 7 * 3 * 4
    packed = kernel_work.PACKED_ELEMENT * (7 * 4 * 5 + 7 * 3 * 5)
    assert kernel["overhead"] == kernel_work.FUSION_START + 8 * kernel_work.PRODUCT + narrow + packed


def test_a_fusion_of_the_library_starts_faster_in_a_loop():
    text = """\
%fused (p: f32[8]) -> f32[8] {
  %p = f32[8]{0} parameter(0)
  ROOT %n = f32[8]{0} negate(%p)
}

%body (state: (s32[], f32[8])) -> (s32[], f32[8]) {
  %state = (s32[], f32[8]{0}) parameter(0)
  %i = s32[] get-tuple-element(%state), index=0
  %x = f32[8]{0} get-tuple-element(%state), index=1
  %f = f32[8]{0} fusion(%x), kind=kCustom, calls=%fused, backend_config={"fusion_config":{"kind":"__ynn_fusion"}}
  ROOT %next = (s32[], f32[8]{0}) tuple(%i, %f)
}

%end (state: (s32[], f32[8])) -> pred[] {
  %state = (s32[], f32[8]{0}) parameter(0)
  %i = s32[] get-tuple-element(%state), index=0
  %five = s32[] constant(5)
  ROOT %less = pred[] compare(%i, %five), direction=LT
}

ENTRY %main (a: f32[8]) -> (s32[], f32[8]) {
  %a = f32[8]{0} parameter(0)
  %zero = s32[] constant(0)
  %first = (s32[], f32[8]{0}) tuple(%zero, %a)
  ROOT %w = (s32[], f32[8]{0}) while(%first), condition=%end, body=%body, backend_config={"known_trip_count":{"n":"5"}}
}
"""
    overheads = {(kernel["times"], kernel["overhead"]) for kernel in count_kernels(text, {})}
    start, start_in_loop = kernel_work.FUSION_START, kernel_work.FUSION_START_IN_LOOP
    assert (5, (start + 4 * start_in_loop) / 5) in overheads
    assert kernel_work.KERNEL_START_IN_LOOP < kernel_work.FUSION_START_IN_LOOP < kernel_work.FUSION_START


CONVOLUTIONS = {  # the layouts of the arrays -> whether XLA computes the convolution in loops
    ("NHWC", "HWIO", "NHWC"): False,
    ("NCHW", "OIHW", "NCHW"): True,
    ("CHWN", "IHWO", "HWNC"): True,
}


@pytest.mark.parametrize("layouts", CONVOLUTIONS, ids="-".join)
def test_a_convolution_in_a_loop_executes_the_operations_of_its_code(layouts, tmp_path):
    sizes = {"N": 16, "C": 6, "I": 6, "O": 16, "H": 14, "W": 15}
    image = jnp.ones([sizes[axis] for axis in layouts[0]], "float32")
    kernel = jnp.ones([5 if axis in "HW" else sizes[axis] for axis in layouts[1]], "float32")
    convolve = lambda x: lax.conv_general_dilated(x, kernel, (1, 1), "VALID", dimension_numbers=layouts)  # noqa: E731
    options = llvm_instructions.dump_options(str(tmp_path)) | {"xla_backend_optimization_level": 3}
    lowered = jax.jit(lambda x: lax.map(convolve, x)).lower(jnp.ones((2, *image.shape), "float32"))
    text = lowered.compile(compiler_options=options).as_text()
    (found,) = [
        kernel
        for kernel in count_kernels(text, llvm_instructions.count_operations(tmp_path, text))
        if "products" in kernel
    ]
    assert ("operations" in found) == CONVOLUTIONS[layouts]
    assert (found["overhead"] < kernel_work.KERNEL_START) == CONVOLUTIONS[layouts]
