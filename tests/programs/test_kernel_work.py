"""Tests of reading HLO text: kernels, operations, bytes and messages of a program equal a count by hand on every backend."""

import math
import os

import pytest

from scaling.core import environment

os.environ["XLA_FLAGS"] = environment.variables("cpu")["XLA_FLAGS"]
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from scaling.programs import hlo
from scaling.programs.hlo import Collective
from scaling.programs.kernel_work import count_kernels, program_fields

jax.config.update("jax_num_cpu_devices", 8)  # as in test_contract.py
jax.config.update("jax_enable_x64", True)

ADD = """
%add (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %sum = f32[] add(%a, %b)
}
"""


def module(entry, others="", header="HloModule written"):
    """Return the text of an HLO module whose entry computation has these lines; the last line is its root."""
    *lines, last = entry.strip().splitlines()
    body = "\n".join(f"  {line.strip()}" for line in lines)
    return f"{header}\n{others}{ADD}\nENTRY %main (x: f32[]) -> f32[] {{\n{body}\n  ROOT {last.strip()}\n}}\n"


def kernels(entry, others="", **options):
    """Return the work of the kernels of a module."""
    return count_kernels(hlo.read(module(entry, others, **options)))


def single_kernel(instruction, *parameters, others=""):
    """Return the kernel of one instruction with the parameters a and b."""
    definitions = "\n".join(
        f"%{name} = {shape} parameter({k})"
        for k, (name, shape) in enumerate(zip("ab", parameters, strict=False))
    )
    (kernel,) = kernels(f"{definitions}\n%result = {instruction}", others)
    return kernel


def kernel_work(kernel):
    """Return the operations of a kernel, without its bytes and repetitions."""
    return {name: value for name, value in kernel.items() if name not in ("bytes", "times")}


PRODUCTS = {  # instruction, operands, multiplications and additions
    "a dot": ("f32[3,7]{1,0} dot(%a, %b), lhs_contracting_dims={1}, rhs_contracting_dims={0}",
              ["f32[3,5]{1,0}", "f32[5,7]{1,0}"], 2 * 3 * 7 * 5),
    "a dot along two axes": ("f32[7]{0} dot(%a, %b), lhs_contracting_dims={0,2}, rhs_contracting_dims={0,1}",
                             ["f32[3,7,5]{2,1,0}", "f32[3,5]{1,0}"], 2 * 7 * 15),
    "dots in a batch": (
        "f32[4,3,7]{2,1,0} dot(%a, %b), lhs_contracting_dims={2}, rhs_contracting_dims={1}, lhs_batch_dims={0}",
        ["f32[4,3,5]{2,1,0}", "f32[4,5,7]{2,1,0}"], 2 * 4 * 3 * 7 * 5),
    "an outer product": ("f32[3,7]{1,0} dot(%a, %b), lhs_contracting_dims={}, rhs_contracting_dims={}",
                         ["f32[3]{0}", "f32[7]{0}"], 2 * 3 * 7),
    "cuBLAS": (
        '(f32[3,7]{1,0}, s8[4194304]{0}) custom-call(%a, %b), custom_call_target="__cublas$gemm", backend_config='
        '{"gemm_backend_config":{"dot_dimension_numbers":{"lhs_contracting_dimensions":["1"],"rhs_contracting_dimensions":["0"]}}}',
        ["f32[3,5]{1,0}", "f32[5,7]{1,0}"], 2 * 3 * 7 * 5),
    "a product in the notation of TPUs": ("f32[3,7]{1,0} convolution(%a, %b), dim_labels=bf_io->bf",
                                   ["f32[3,5]{1,0}", "f32[5,7]{1,0}"], 2 * 3 * 7 * 5),
    # One number per feature and a window wider than it: at each of the four positions one of four taps overlaps the number.
    "a window that runs over an operand": (
        "f32[9,4,6]{2,1,0} convolution(%a, %b), window={size=4 pad=3_3 rhs_reversal=1}, dim_labels=bf0_0io->b0f",
        ["f32[9,5,1]{2,1,0}", "f32[4,5,6]{2,1,0}"], 2 * 9 * 6 * 5 * 4),
    "padding": ("f32[2,6,3]{2,1,0} convolution(%a, %b), window={size=3 pad=1_1}, dim_labels=b0f_0io->b0f",
                           ["f32[2,6,5]{2,1,0}", "f32[3,5,3]{2,1,0}"], 2 * 2 * 3 * 5 * (3 * 6)),
    "strides": ("f32[2,3,4,3]{3,2,1,0} convolution(%a, %b), window={size=3x2 stride=2x2}, dim_labels=b01f_01io->b01f",
                ["f32[2,7,8,5]{3,2,1,0}", "f32[3,2,5,3]{3,2,1,0}"], 2 * 2 * 3 * 5 * (3 * 3) * (4 * 2)),
    # Of the three taps at 9 positions, about half meet a zero between two of the numbers.
    "a dilated operand": ("f32[2,9,3]{2,1,0} convolution(%a, %b), window={size=3 pad=2_2 lhs_dilate=2}, dim_labels=b0f_0io->b0f",
                          ["f32[2,4,5]{2,1,0}", "f32[3,5,3]{2,1,0}"], 2 * 2 * 3 * 5 * (9 * 3) // 2),
    "a batch of products in the notation of TPUs": (
        "f32[4,3,7]{2,1,0} convolution(%a, %b), window={size=4 stride=3 lhs_dilate=4}, dim_labels=0bf_0io->0bf",
        ["f32[4,3,5]{2,1,0}", "f32[4,5,7]{2,1,0}"], 2 * 4 * 3 * 7 * 5),
    "a dilated window": (
        "f32[2,8,3]{2,1,0} convolution(%a, %b), window={size=3 pad=2_2 rhs_dilate=2}, dim_labels=b0f_0io->b0f",
        ["f32[2,8,5]{2,1,0}", "f32[3,5,3]{2,1,0}"], 2 * 2 * 3 * 5 * (8 * 3)),
} | {
    f"cuDNN, {direction}": (
        f'({result}, u8[64]{{0}}) custom-call(%a, %b), window={{size=3 pad=1_1}}, dim_labels=b0f_o0i->b0f, '
        f'custom_call_target="__cudnn$conv{direction}"', operands, 2 * 2 * 3 * 5 * (3 * 6))
    for direction, result, operands in [
        ("Forward", "f32[2,6,3]{2,1,0}", ["f32[2,6,5]{2,1,0}", "f32[3,3,5]{2,1,0}"]),
        ("BackwardInput", "f32[2,6,5]{2,1,0}", ["f32[2,6,3]{2,1,0}", "f32[3,3,5]{2,1,0}"]),
        ("BackwardFilter", "f32[3,3,5]{2,1,0}", ["f32[2,6,5]{2,1,0}", "f32[2,6,3]{2,1,0}"]),
    ]
}  # fmt: skip


@pytest.mark.parametrize("name", PRODUCTS)
def test_a_matrix_product_is_counted_in_every_notation(name):
    instruction, operands, operations = PRODUCTS[name]
    assert kernel_work(single_kernel(instruction, *operands)) == {"products": operations}


def test_a_library_call_moves_no_scratch_and_unknown_calls_are_not_products():
    instruction, operands, _ = PRODUCTS["cuBLAS"]
    assert single_kernel(instruction, *operands)["bytes"] == 4 * (15 + 35 + 21)
    unknown = 'f32[3,5]{1,0} custom-call(%a), custom_call_target="their own"'
    assert kernel_work(single_kernel(unknown, "f32[3,5]{1,0}")) == {"library": "their own"}
    placed = 'f32[3,5]{1,0} custom-call(%a), custom_call_target="Sharding"'
    assert kernel_work(single_kernel(placed, "f32[3,5]{1,0}")) == {}


WORK = {  # instruction, operands, operations by kind
    "an addition": ("f32[3,5]{1,0} add(%a, %a)", ["f32[3,5]{1,0}"], {"arithmetic": 15}),
    "a comparison": ("pred[15]{0} compare(%a, %b), direction=LT", ["f32[15]{0}", "f32[15]{0}"], {"arithmetic": 15}),
    "a quotient": ("f32[15]{0} divide(%a, %b)", ["f32[15]{0}", "f32[15]{0}"], {"divisions": 15}),
    "a quotient of whole numbers": ("s32[15]{0} divide(%a, %b)", ["s32[15]{0}", "s32[15]{0}"], {"arithmetic": 15}),
    "an exponential": ("bf16[15]{0} exponential(%a)", ["bf16[15]{0}"], {"transcendentals": 15}),
    "a root": ("f64[15]{0} rsqrt(%a)", ["f64[15]{0}"], {"transcendentals": 15}),
    "a whole power": ("s32[15]{0} power(%a, %b)", ["s32[15]{0}", "s32[15]{0}"], {"arithmetic": 15}),
    "a sum of rows": ("f32[3]{0} reduce(%a, %b), dimensions={1}, to_apply=%add", ["f32[3,5]{1,0}", "f32[]"], {"arithmetic": 15}),
    "running sums": ("f32[3,5]{1,0} reduce-window(%a, %b), window={size=1x5 pad=0_0x4_0}, to_apply=%add",
                     ["f32[3,5]{1,0}", "f32[]"], {"arithmetic": 15 * 5}),
    "a sort": ("f32[3,5]{1,0} sort(%a), dimensions={1}, to_apply=%add", ["f32[3,5]{1,0}"], {"arithmetic": 15 * (1 + 2 + 3)}),
    "a Fourier transform": ("c64[3,8]{1,0} fft(%a), fft_type=IFFT, fft_length={8}", ["c64[3,8]{1,0}"], {"arithmetic": 3 * 5 * 8 * 3}),
    "a Fourier transform of real numbers": ("c64[3,5]{1,0} fft(%a), fft_type=RFFT, fft_length={8}", ["f32[3,8]{1,0}"],
                                            {"arithmetic": 3 * 5 * 8 * 3 // 2}),
    "a Cholesky factorization": ("f32[5,6,6]{2,1,0} cholesky(%a)", ["f32[5,6,6]{2,1,0}"], {"arithmetic": 5 * 6**3 // 3}),
    "a triangular system": ("f32[5,6,2]{2,1,0} triangular-solve(%a, %b)", ["f32[5,6,6]{2,1,0}", "f32[5,6,2]{2,1,0}"],
                            {"arithmetic": 5 * 2 * 6**2}),
    "the largest numbers": ("(f32[2]{0}, s32[2]{0}) topk(%a), k=2", ["f32[9]{0}"], {"library": "topk"}),
    "to the host": ("(f32[9]{0}, u32[], token[]) send(%a, %b), is_host_transfer=true", ["f32[9]{0}", "token[]"], {"library": "send"}),
    "from the host": ("(f32[9]{0}, u32[], token[]) recv(%a), is_host_transfer=true", ["token[]"], {"library": "recv"}),
    "a queue to the host": ("token[] outfeed(%a, %b)", ["f32[9]{0}", "token[]"], {"library": "outfeed"}),
    "random bits": ("(u64[2]{0}, u32[9]{0}) rng-bit-generator(%a)", ["u64[2]{0}"], {"library": "rng-bit-generator"}),
    "a broadcast": ("f32[3,5]{1,0} broadcast(%a), dimensions={0}", ["f32[3]{0}"], {}),
    "a copy": ("f32[3,5]{1,0} copy(%a)", ["f32[3,5]{1,0}"], {}),
    "a transposition": ("f32[5,3]{1,0} transpose(%a), dimensions={1,0}", ["f32[3,5]{1,0}"], {}),
}  # fmt: skip


@pytest.mark.parametrize("name", WORK)
def test_an_instruction_has_its_operations(name):
    instruction, operands, work = WORK[name]
    assert kernel_work(single_kernel(instruction, *operands)) == work


def test_a_kernel_moves_its_operands_and_result_except_in_on_chip_memory():
    move = "f32[100]{0%s} negate(%%a)"
    for result, operand, expected in (
        ("", "", 800),
        (":S(1)", "", 400),
        ("", ":S(1)", 400),
        (":S(1)", ":S(1)", 0),
    ):
        assert single_kernel(move % result, f"f32[100]{{0{operand}}}").get("bytes", 0) == expected
    tiled = "f32[100]{0:T(128)S(1)}"
    assert single_kernel("f32[100]{0:T(128)} negate(%a)", tiled)["bytes"] == 512, "a whole tile"
    assert single_kernel("f32[100]{0} negate(%a)", "f32[100]{0:S(5)}")["bytes"] == 800, (
        "host memory is not on-chip memory"
    )
    assert single_kernel("pred[100]{0} compare(%a, %a), direction=EQ", "bf16[100]{0}")["bytes"] == 300


FUSION = """
%fused (p: f32[50,40], q: f32[40]) -> f32[50] {
  %p = f32[50,40]{1,0} parameter(0)
  %q = f32[40]{0} parameter(1)
  %wide = f32[50,40]{1,0} broadcast(%q), dimensions={1}
  %product = f32[50,40]{1,0} multiply(%p, %wide)
  %waves = f32[50,40]{1,0} sine(%product)
  %zero = f32[] constant(0)
  ROOT %sums = f32[50]{0} reduce(%waves, %zero), dimensions={1}, to_apply=%add
}
"""


def test_a_fusion_is_one_kernel_that_moves_its_inputs_and_output():
    (kernel,) = kernels(
        """%a = f32[50,40]{1,0} parameter(0)
        %b = f32[40]{0} parameter(1)
        %f = f32[50]{0} fusion(%a, %b), kind=kInput, calls=%fused""",
        FUSION,
    )
    work = {"arithmetic": 4000, "transcendentals": 2000}
    assert kernel == {"bytes": 4 * (2000 + 40 + 50), **work, "times": 1}


NESTED = """
%sliced (p: f32[5000,64], i: s32[]) -> f32[8,64] {
  %p = f32[5000,64]{1,0} parameter(0)
  %i = s32[] parameter(1)
  %zero = s32[] constant(0)
  ROOT %part = f32[8,64]{1,0} dynamic-slice(%p, %i, %zero), dynamic_slice_sizes={8,64}
}

%put (r: f32[5000,64], new: f32[8,64], j: s32[]) -> f32[5000,64] {
  %new = f32[8,64]{1,0} parameter(1)
  %r = f32[5000,64]{1,0} parameter(0)
  %j = s32[] parameter(2)
  %none = s32[] constant(0)
  ROOT %all = f32[5000,64]{1,0} dynamic-update-slice(%r, %new, %j, %none)
}

%fused (q: f32[5000,64], k: s32[], w: f32[64,4]) -> f32[8,4] {
  %q = f32[5000,64]{1,0} parameter(0)
  %k = s32[] parameter(1)
  %w = f32[64,4]{1,0} parameter(2)
  %rows = f32[8,64]{1,0} fusion(%q, %k), kind=kLoop, calls=%sliced
  ROOT %product = f32[8,4]{1,0} dot(%rows, %w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}

%kept (q: f32[5000,64], k: s32[]) -> f32[5000,64] {
  %q = f32[5000,64]{1,0} parameter(0)
  %k = s32[] parameter(1)
  %rows = f32[8,64]{1,0} fusion(%q, %k), kind=kLoop, calls=%sliced
  %twice = f32[8,64]{1,0} add(%rows, %rows)
  ROOT %back = f32[5000,64]{1,0} fusion(%q, %twice, %k), kind=kLoop, calls=%put
}
"""


def test_a_nested_fusion_that_slices_or_updates_moves_only_the_slice():
    inputs = """%a = f32[5000,64]{1,0} parameter(0)
        %b = s32[] parameter(1)
        %c = f32[64,4]{1,0} parameter(2)
        """
    (kernel,) = kernels(inputs + "%f = f32[8,4]{1,0} fusion(%a, %b, %c), kind=kOutput, calls=%fused", NESTED)
    assert kernel == {"bytes": 4 * (8 * 64 + 1 + 64 * 4 + 8 * 4), "products": 2 * 8 * 4 * 64, "times": 1}
    (kernel,) = kernels(inputs + "%f = f32[5000,64]{1,0} fusion(%a, %b), kind=kLoop, calls=%kept", NESTED)
    assert kernel == {"bytes": 4 * (8 * 64 + 1 + 8 * 64), "arithmetic": 8 * 64, "times": 1}, (
        "eight rows are read and updated in place"
    )


def messages(entry, **options):
    return hlo.read(module(f"%x = f32[256]{{0}} parameter(0)\n{entry}", **options)).messages


TWELVE_DEVICES = "HloModule written, num_partitions=6, replica_count=2"


@pytest.mark.parametrize(
    ("groups", "devices"),
    [
        ("replica_groups={{0,1,2},{3,4,5}}", 3),
        ("replica_groups={{0}}", 1),
        ("replica_groups=[3,4]<=[12]", 4),
        ("replica_groups=[2,6]<=[3,4]T(1,0)", 6),
        ("replica_groups={}", 12),
        ("channel_id=1", 12),
    ],
)
def test_a_message_is_sent_to_its_replica_group_or_to_all_devices(groups, devices):
    line = f"%sum = f32[256]{{0}} all-reduce(%x), {groups}, to_apply=%add"
    assert messages(line, header=TWELVE_DEVICES) == [Collective("all-reduce", 1024, devices)]


ASYNCHRONOUS = {
    "all-reduce": "%start = f32[256]{0} all-reduce-start(%x), replica_groups={{0,1}}, to_apply=%add",
    "all-gather": "%start = (f32[256]{0}, f32[512]{0}) all-gather-start(%x), replica_groups={{0,1}}, dimensions={0}",
}


@pytest.mark.parametrize("kind", ASYNCHRONOUS)
def test_an_asynchronous_collective_is_one_message(kind):
    start, size = ASYNCHRONOUS[kind], {"all-reduce": 1024, "all-gather": 2048}[kind]
    entry = f"%x = f32[256]{{0}} parameter(0)\n{start}\n%done = f32[{size // 4}]{{0}} {kind}-done(%start)"
    stats = hlo.read(module(entry))
    assert stats.messages == [Collective(kind, size, 2)]
    assert kernels(entry) == [{"bytes": 1024 + size, "times": 1}]
    assert stats.collectives[kind] == 1


def test_an_asynchronous_all_reduce_writes_the_padding_of_its_result():
    start = ASYNCHRONOUS["all-reduce"].replace("f32[256]{0}", "f32[256]{0:T(1024)}")
    assert kernels(f"%x = f32[256]{{0}} parameter(0)\n{start}") == [{"bytes": 1024 + 4096, "times": 1}]


def test_an_asynchronous_copy_moves_bytes_at_its_start_only():
    copy = """%x = f32[256]{{0}} parameter(0)
        %start = (f32[256]{{0{to}}}, f32[256]{{0}}, u32[]{{:S(2)}}) copy-start(%x)
        %done = f32[256]{{0{to}}} copy-done(%start)"""
    assert [kernel["bytes"] for kernel in kernels(copy.format(to=""))] == [2048]
    assert [kernel["bytes"] for kernel in kernels(copy.format(to=":S(1)"))] == [1024]


@pytest.mark.parametrize(
    ("array", "padded_bytes"),  # layouts of libtpu 0.0.42 for v5p, and the bytes of the array in its memory analysis
    [
        ("f32[100000,5,3]{0,2,1:T(4,128)}", 8_007_680), ("f32[1000,5]{0,1:T(8,128)}", 32_768), ("f32[77777]{0:T(1024)}", 311_296),
        ("bf16[1000,5]{0,1:T(8,128)(2,1)}", 16_384), ("bf16[3,100000]{1,0:T(4,128)(2,1)}", 800_768),
    ],
)  # fmt: skip
def test_tile_padding_is_moved_but_neither_computed_nor_sent(array, padded_bytes):
    kernel = single_kernel(f"{array} negate(%a)", array)
    dims = [int(n) for n in array[array.index("[") + 1 : array.index("]")].split(",")]
    assert kernel == {"bytes": 2 * padded_bytes, "arithmetic": math.prod(dims), "times": 1}
    (message,) = messages(f"%y = {array} parameter(1)\n%sum = {array} all-reduce(%y), to_apply=%add")
    assert message.bytes == math.prod(dims) * (2 if array.startswith("bf16") else 4)


def loop_module(
    test="compare(%k, %end), direction=LT",
    step="add(%k, %one)",
    one="1",
    begin="2",
    end="12",
    config="",
    body="",
):
    """Return the text of a module with a loop over a counter that negates 64 numbers per iteration."""
    state = "(s32[], f32[64]{0})"
    return module(
        f"""%first = s32[] constant({begin})
        %x = f32[64]{{0}} parameter(0)
        %state = {state} tuple(%first, %x)
        %loop = {state} while(%state), condition=%more, body=%body{config}
        %result = f32[64]{{0}} get-tuple-element(%loop), index=1""",
        f"""
%more (s: {state}) -> pred[] {{
  %s = {state} parameter(0)
  %k = s32[] get-tuple-element(%s), index=0
  %end = s32[] constant({end})
  ROOT %less = pred[] {test}
}}

%body (s: {state}) -> {state} {{
  %s = {state} parameter(0)
  %k = s32[] get-tuple-element(%s), index=0
  %one = s32[] constant({one})
  %next = s32[] {step}
  %numbers = f32[64]{{0}} get-tuple-element(%s), index=1
  {body or "%minus = f32[64]{0} negate(%numbers)"}
  ROOT %both = {state} tuple(%next, %minus)
}}
""",
    )


def trips(text):
    """Return the number of iterations of the loop."""
    (kernel,) = [kernel for kernel in hlo.read(text).kernels if kernel.bytes == 512]
    return kernel.times


def test_a_kernel_in_a_loop_without_iterations_takes_no_time():
    fields = program_fields(hlo.read(loop_module(end="-5")), None, steps=3)
    assert {kernel["times"] for kernel in fields["kernels"]} == {0} and fields["program_flops"] == 0


KNOWN = ', backend_config={"known_trip_count":{"n":"7"}}'


def test_trips_of_a_loop_are_those_of_its_counter_or_of_the_compiler():
    assert trips(loop_module()) == 10
    assert trips(loop_module(one="3")) == 4
    assert trips(loop_module(end="-5")) == 0
    assert trips(loop_module(step="add(%one, %k)")) == 10
    assert trips(loop_module(config=KNOWN)) == 7
    assert trips(loop_module(step="multiply(%k, %one)", config=KNOWN)) == 7


@pytest.mark.parametrize(
    "unknown",
    [
        {"test": "compare(%k, %end), direction=GT"}, {"test": "compare(%end, %k), direction=LT"}, {"step": "multiply(%k, %one)"},
        {"step": "add(%k, %k)"}, {"one": "0"}, {"one": "-1"}, {"begin": "{...}"}, {"test": "and(%k, %end)"},
    ],
)  # fmt: skip
def test_a_loop_with_an_unknown_number_of_trips_has_unknown_traffic(unknown):
    text = loop_module(**unknown)
    assert trips(text) == math.inf
    assert hlo.read(text).hbm_bytes is None
    assert hlo.read(text).collective_bytes == 0, "the loop sends nothing"


def test_a_message_in_a_loop_is_sent_in_every_iteration():
    inside = """%sum = f32[64]{0} all-reduce(%numbers), replica_groups=[2,4]<=[8], to_apply=%add
  %minus = f32[64]{0} negate(%sum)"""
    stats = hlo.read(loop_module(body=inside))
    assert stats.messages == [Collective("all-reduce", 256, 4, 10.0)]
    assert stats.collective_bytes == 2560
    assert stats.collectives["all-reduce"] == 1, "the text contains one"
    unknown = hlo.read(loop_module(body=inside, one="0"))
    assert unknown.messages[0].times == math.inf and unknown.collective_bytes is None


def test_trips_of_nested_loops_are_multiplied():
    inner = loop_module()
    nested = inner.replace("ENTRY %main (x: f32[])", "%inside (x: f32[64])")
    outer = loop_module(one="5", body="%minus = f32[64]{0} call(%numbers), to_apply=%inside")
    outer = (
        outer.replace("%more", "%more.1")
        .replace("%body", "%body.1")
        .replace("HloModule written\n", "")
        .replace(ADD, "")
    )
    assert trips(nested + outer) == 2 * 10


def test_a_program_in_an_unknown_notation_has_unknown_figures():
    stats = hlo.read(loop_module().replace("body=", "corpus="))
    assert (stats.hbm_bytes, stats.collective_bytes) == (None, None)
    assert count_kernels(stats)[0]["times"] == math.inf


# Programs compiled for this host.


def compile_and_read(function, *arguments):
    return hlo.read(jax.jit(function).lower(*arguments).compile().as_text())


def array(*shape, dtype="float32"):
    return jax.ShapeDtypeStruct(shape, dtype)


def total(stats, name):
    return sum(kernel.get(name, 0) * kernel["times"] for kernel in count_kernels(stats))


def test_a_compiled_matrix_product_has_its_operations_and_bytes():
    stats = compile_and_read(lambda a, b: a @ b, array(96, 160), array(160, 224))
    assert total(stats, "products") == 2 * 96 * 160 * 224
    assert stats.hbm_bytes == 4 * (96 * 160 + 160 * 224 + 96 * 224)


def test_compiled_exponentials_divisions_and_sums_are_counted_separately():
    stats = compile_and_read(lambda x: (jnp.exp(x) / (1 + x)).sum(1), array(48, 512))
    assert total(stats, "transcendentals") == total(stats, "divisions") == 48 * 512
    assert total(stats, "arithmetic") >= 2 * 48 * 512
    assert 4 * 48 * 512 < stats.hbm_bytes < 3 * 4 * 48 * 512 + 10**4


def test_trips_of_compiled_loops_are_multiplied_and_unknown_for_while_loops():
    def inner(x):
        return lax.fori_loop(0, 3, lambda _, y: lax.sin(y @ y), x)

    stats = compile_and_read(lambda x: lax.fori_loop(0, 5, lambda _, y: inner(y), x), array(32, 32))
    assert total(stats, "products") == 15 * 2 * 32**3
    assert total(stats, "transcendentals") == 15 * 32**2
    endless = compile_and_read(
        lambda x: lax.while_loop(lambda y: jnp.sum(y) < 1e9, lambda y: y * 1.5 + 1, x), array(4096)
    )
    assert endless.hbm_bytes is None and any(kernel.times == math.inf for kernel in endless.kernels)


@pytest.mark.parametrize("devices", [2, 4, 8])
def test_a_compiled_all_reduce_in_a_loop_is_sent_in_every_iteration(devices):
    mesh = Mesh(np.array(jax.devices()[:devices]), ("shard",))
    steps = lambda x: lax.fori_loop(0, 6, lambda _, y: lax.psum(y, "shard") * 0.5, x)  # noqa: E731
    sharded = jax.shard_map(steps, mesh=mesh, in_specs=P("shard"), out_specs=P("shard"), check_vma=False)
    stats = compile_and_read(sharded, array(devices * 1024))
    assert {(m.kind, m.bytes, m.group) for m in stats.messages} == {("all-reduce", 4096, devices)}
    assert stats.collective_bytes == 6 * 4096
    assert stats.collectives["all-reduce"] == len(stats.messages)
