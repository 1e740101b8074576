"""The instructions that a CPU executes: in LLVM IR written by hand, and in programs that XLA compiles."""

import os

import pytest

from scaling.core import environment

os.environ["XLA_FLAGS"] = environment.variables("cpu")["XLA_FLAGS"]
import jax
import jax.numpy as jnp

from scaling.programs import hlo, kernel_work, llvm_instructions

LOOP = """
define ptr @kernel(ptr %0) {{
  br label %head

head:
  %i = phi i64 [ {start}, %1 ], [ %next, %last ]
  {body}
  br label %last

last:
  %next = add nuw nsw i64 %i, {step}
  %done = icmp eq i64 %next, {end}
  br i1 %done, label %exit, label %head

exit:
  ret ptr null
}}
"""


def count(text, folder, bits=256):
    """Return the instructions of the kernel in LLVM IR, without the unit of its registers."""
    (folder / "kernel.ir-with-opt.ll").write_text(
        text + f'attributes #0 = {{ "prefer-vector-width"="{bits}" }}\n'
    )
    (operations,) = llvm_instructions.count_operations(folder).values()
    return operations * 32 / bits


def count_compiled(function, *arguments, folder):
    """Return the operations of all kernels of a function that XLA compiles."""
    options = llvm_instructions.dump_options(str(folder))
    text = jax.jit(function).lower(*arguments).compile(compiler_options=options).as_text()
    operations = llvm_instructions.count_operations(folder, text)
    assert operations
    kernels = kernel_work.count_kernels(hlo.read(text), operations)
    return sum(kernel.get("operations", 0) for kernel in kernels)


@pytest.mark.parametrize(("start", "step", "end", "trips"), [(0, 1, 7, 7), (3, 2, 13, 5), (10, -1, 4, 6)])
def test_an_instruction_in_a_loop_is_executed_in_each_iteration(start, step, end, trips, tmp_path):
    body = "%x = fadd float 0.0, 1.0"
    counts = [count(LOOP.format(start=start, step=step, end=end, body=text), tmp_path) for text in (body, "")]
    assert counts[0] - counts[1] == trips


@pytest.mark.parametrize(("bits", "registers"), [(128, 4), (256, 2), (512, 1)])
def test_a_vector_counts_once_for_each_register(bits, registers, tmp_path):
    body = "%x = fadd <16 x float> zeroinitializer, zeroinitializer"
    counts = [count(LOOP.format(start=0, step=1, end=7, body=text), tmp_path, bits) for text in (body, "")]
    assert counts[0] - counts[1] == 7 * registers


def test_each_call_of_a_function_of_the_module_executes_its_instructions(tmp_path):
    counts = []
    for length in (1, 50):
        lines = "\n".join(f"  %x{k} = fadd float %a, 1.0" for k in range(length))
        function = f"\ndefine internal float @shared.1(float %a) {{\n{lines}\n  ret float %x0\n}}\n"
        body = "%x = tail call fastcc float @shared.1(float 1.0)"
        (tmp_path / "kernel.ir-with-opt.ll").write_text(
            LOOP.format(start=0, step=1, end=7, body=body) + function
        )
        counts.append(llvm_instructions.count_operations(tmp_path)["kernel"] * 32 / 128)
    assert counts[1] - counts[0] == 7 * 49


def test_a_block_that_is_unreachable_is_never_executed():
    text = """
define ptr @kernel(ptr %0) {
  switch i64 %i, label %none [
    i64 1, label %one
  ]

one:
  ret ptr null

none:
  unreachable
}
"""
    ((_, blocks),) = llvm_instructions.parse_functions(text)
    assert llvm_instructions.LlvmFunction(blocks).count_executions()["%one"] == 1


NESTED = """
define ptr @kernel(ptr %0) {
  br label %outer

outer:
  %i = phi i64 [ 0, %1 ], [ %i.next, %outer.last ]
  br label %inner

inner:
  %j = phi i64 [ 0, %outer ], [ %j.next, %inner.last ]
  %inside = icmp ult i64 %j, 2
  br i1 %inside, label %copied, label %inner.last

copied:
  %x = fadd float 0.0, 1.0
  %unknown = fcmp olt float %x, 0.0
  br i1 %unknown, label %rare, label %inner.last

rare:
  %y = fdiv float %x, 3.0
  br label %inner.last

inner.last:
  %j.next = add i64 %j, 1
  %j.done = icmp eq i64 %j.next, 5
  br i1 %j.done, label %outer.last, label %inner

outer.last:
  %i.next = add i64 %i, 1
  %i.done = icmp eq i64 %i.next, 3
  br i1 %i.done, label %exit, label %outer

exit:
  ret ptr null
}
"""


def test_a_branch_on_a_loop_counter_is_counted_exactly_and_another_is_taken_half_of_the_time():
    ((_, blocks),) = llvm_instructions.parse_functions(NESTED)
    executions = llvm_instructions.LlvmFunction(blocks).count_executions()
    names = ("%outer", "%inner", "%copied", "%rare", "%inner.last", "%outer.last", "%exit")
    assert [executions[name] for name in names] == pytest.approx([3, 15, 6, 3, 15, 3, 1])


@pytest.mark.parametrize("tested", ["%next", "%reloaded"])
@pytest.mark.parametrize(
    ("bound", "program_loops", "trips"),
    [
        (200, [(0, 1, 200)], 200),
        (1000, [(0, 1, 9), (990, 1, 10)], 10),
        (99, [(5, 3, 32)], 32),
        (-5, [(0, 1, 9)], 4),
    ],
)
def test_a_loop_whose_counter_is_in_memory_has_the_trips_of_its_program(tested, bound, program_loops, trips):
    text = f"""
define ptr @call_kernel(ptr %0) {{
  %first = load i32, ptr %0
  %some = icmp slt i32 %first, {bound}
  br i1 %some, label %loop, label %exit

loop:
  %i = load i32, ptr %0
  %next = add i32 %i, 1
  store i32 %next, ptr %0
  %reloaded = load i32, ptr %0
  %more = icmp slt i32 {tested}, {bound}
  br i1 %more, label %loop, label %exit

exit:
  ret ptr null
}}
"""
    ((_, blocks),) = llvm_instructions.parse_functions(text)
    executions = llvm_instructions.LlvmFunction(blocks, program_loops).count_executions()
    assert (executions["%loop"], executions["%exit"]) == (trips, 1)


def half_sine(x):
    return x + 0.5 * jnp.sin(x)


def add_sine(x):
    return x.at[0].add(jnp.sin(x[1]))  # the counter of a loop stays in memory


@pytest.mark.parametrize("change", [half_sine, add_sine])
def test_a_small_loop_that_starts_late_or_takes_large_steps_counts_its_iterations(change, tmp_path):
    def operations(start, stop, step):
        loop = lambda x: jax.lax.while_loop(  # noqa: E731
            lambda state: state[0] < stop, lambda state: (state[0] + step, change(state[1])), (start, x)
        )
        folder = tmp_path / f"{start} {step}"
        return count_compiled(loop, jnp.ones((2, 4), "float32"), folder=folder)

    ten_trips = operations(0, 10, 1)
    assert operations(990, 1000, 1) == pytest.approx(ten_trips, rel=0.01)
    assert 0.99 * ten_trips < operations(0, 1000, 100) < 2 * ten_trips, "LLVM may unroll one of both loops"
    assert 0 < operations(-1000, -990, 1) < 1.01 * ten_trips


UNROLLED = """
define ptr @kernel(ptr %0, i1 %overlaps) {
  br i1 %overlaps, label %rest, label %vector.body

vector.body:
  %v = phi i64 [ 0, %entry ], [ %v.next, %vector.body ]
  %v.next = add i64 %v, 8
  %v.last = icmp eq i64 %v.next, 56
  br i1 %v.last, label %rest, label %vector.body

rest:
  %start = phi i64 [ 0, %entry ], [ 56, %vector.body ]
  br label %one

one:
  %i = phi i64 [ %start, %rest ], [ %i.next, %one ]
  %k = phi i64 [ 0, %rest ], [ %k.next, %one ]
  %i.next = add i64 %i, 1
  %k.next = add i64 %k, 1
  %k.last = icmp eq i64 %k.next, 3
  br i1 %k.last, label %four, label %one

four:
  %j = phi i64 [ %i.next, %one ], [ %j.next, %four ]
  %j.next = add i64 %j, 4
  %j.last = icmp eq i64 %j.next, 63
  br i1 %j.last, label %exit, label %four

exit:
  ret ptr null
}
"""


def test_a_loop_that_begins_at_a_variable_is_assumed_to_have_few_iterations():
    ((_, blocks),) = llvm_instructions.parse_functions(UNROLLED)
    executions = llvm_instructions.LlvmFunction(blocks).count_executions()
    assert [executions[name] for name in ("%vector.body", "%one", "%four")] == [7, 3, 4]


def test_a_kernel_is_executed_by_all_work_groups():
    text = """
define ptr @kernel(ptr %0) {
  %2 = load i64, ptr %0
  %3 = icmp ult i64 %2, 6
  br i1 %3, label %work, label %exit

work:
  %x = fadd float 0.0, 1.0
  br label %exit

exit:
  ret ptr null
}
"""
    ((_, blocks),) = llvm_instructions.parse_functions(text)
    assert llvm_instructions.LlvmFunction(blocks).total_cost(256) == 6 * (0.5 + 1 + 0.5 + 1 + 0.5 + 1)


@pytest.mark.parametrize(
    ("line", "cost"),
    [
        ("%x = fmul <8 x float> %a, %b", 1), ("%x = getelementptr i8, ptr %a, i64 4", 0), ("store float %x, ptr %a", 1),
        ("%x = load <8 x float>, ptr %a", 0.5), ("%x = zext <8 x i32> %a to <8 x i64>", 0),
        ("%x = fdiv <16 x float> %a, %b", 40), ("br label %exit", 0.5), ("%x = icmp eq <8 x i64> %a, %b", 4),
        ("%x = tail call float @llvm.sin.f32(float %a)", 30), ("%x = call <8 x float> @llvm.sin.v8f32(<8 x float> %a)", 240),
        ("%x = call float @cbrtf(float %a)", 85), ("tail call void @llvm.experimental.noalias.scope.decl(metadata !4)", 0),
        ("%x = call <8 x float> @llvm.fabs.v8f32(<8 x float> %a)", 1), ("%x = call float @llvm.sqrt.f32(float %a)", 1),
        ("tail call void @llvm.memcpy.p0.p0.i64(ptr %a, ptr %b, i64 320, i1 false)", 30),
    ],
)  # fmt: skip
def test_the_cost_of_an_instruction_is_that_of_so_many_additions(line, cost):
    assert llvm_instructions.instruction_cost(line, 256) == cost


def test_a_program_of_twice_the_size_executes_twice_the_operations(tmp_path):
    def f(x):
        return jnp.tanh(x) * x[::-1]

    small, large = (count_compiled(f, jnp.ones(n), folder=tmp_path / str(n)) for n in (4096, 8192))
    assert large == pytest.approx(2 * small, rel=0.1)
    assert small > 4096 * 10  # the polynomials of tanh


def test_equal_kernels_of_a_program_all_have_their_operations(tmp_path):
    def f(x, y):
        return jnp.sum(jnp.sin(x) + 1), jnp.sum(jnp.sin(y) + 1)

    both = count_compiled(f, jnp.ones(3000), jnp.ones(3000), folder=tmp_path / "both")
    one = count_compiled(lambda x: f(x, x)[0], jnp.ones(3000), folder=tmp_path / "one")
    assert both == pytest.approx(2 * one, rel=0.05)
