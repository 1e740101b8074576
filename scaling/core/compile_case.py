"""Compile the program of a case, count the bytes that it needs, and raise `TooLarge` if memory is too small.

`scaling run`, `scaling plan` and `scaling advise` call `compile_case` with their own devices and their own
function `compile_program`. Each device computes `block` points (batch elements) and `chunk` seeds (tangents
or cotangents) at a time.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from scaling.core import layout, load_option
from scaling.core.case import AUTO, Case, TooLarge
from scaling.core.derivative import Derivative, ceil_div, describe_derivative
from scaling.core.environment import available_bytes
from scaling.core.formatting import format_bytes
from scaling.core.inputs import input_structs
from scaling.core.record import bytes_while_running
from scaling.core.timing import time_once
from scaling.core.workload import Workload

IN_USE = "the rest is in use"  # part of the message if a case may fit at another time


@dataclass(frozen=True)
class Stages:
    """A compiled program, and the seconds that its tracing, lowering and compilation took."""

    call: Any  # the function that runs the program, or None before compilation
    compiled: Any  # the compiled program of JAX, or None if there is no compilation
    jaxpr: Any = None  # the traced program, or None if it is not available
    trace_seconds: float | None = None  # None if there is no such stage (also in the next two fields)
    lower_seconds: float | None = None
    compile_seconds: float | None = None


@dataclass(frozen=True)
class CompiledCase:
    """A case with its compiled program and the memory that the program needs."""

    derivative: Derivative  # of the case, including the block, chunk and storage that chunk=auto chose
    program: layout.Program | None  # None if it was not compiled
    stages: Stages
    # Record field, such as "temp_bytes" -> bytes per device (a lower bound if there is no program).
    needs: Mapping[str, int | None]
    offload: Any = None  # the `StepPlan` of options/host_offload.py with storage=host, otherwise None
    blocks: Mapping[str, Any] | None = None  # the record field `blocks` with chunk=auto

    @property
    def steps(self) -> int:
        """Return the number of times that the program runs to compute one result."""
        return self.offload.count if self.offload else 1

    @property
    def recorded_needs(self) -> dict[str, int | None]:
        """Return the bytes that each device needs, by record field. An unknown number is None."""
        if self.program is not None:
            return dict(self.needs)
        return {**self.needs, "temp_bytes": None, "output_bytes": self.needs["output_bytes"] or None}

    @property
    def bytes_while_running(self) -> int | None:
        """Return the bytes that the program occupies on each device, or None if they are unknown."""
        # With storage=host, one result is copied to the host while the next is computed.
        return bytes_while_running(self.needs, 1 if self.offload is None else 2)

    def format_needs(self, needed: float) -> str:
        """Return text such as 'needs 96.0 GB', or 'needs at least 96.0 GB' before the program is compiled."""
        return f"needs {'at least ' if self.program is None else ''}{format_bytes(needed)}"

    @property
    def compulsory_bytes(self) -> int | None:
        """Return the minimum number of bytes that a device reads and writes per call, or None if unknown."""
        arguments = self.needs.get("argument_bytes")
        if self.offload is not None and arguments is not None:
            return arguments + int(self.offload.moved_bytes)
        return bytes_while_running({**self.needs, "temp_bytes": 0})


CompileProgram = Callable[[layout.Program], Stages]
DescribeShortage = Callable[[CompiledCase], str | None]  # returns an error message if memory is too small


def compile_stages(
    function: Callable[..., Any], arguments: list[Any], options: dict[str, Any] | None = None
) -> Stages:
    """Trace, lower and compile a function, and measure the time of each stage.

    A function without `jax.jit` or `jax.pmap` is not compiled. `options` are XLA compiler options.
    """
    if not hasattr(function, "lower"):
        return Stages(function, None)
    jaxpr = trace_seconds = None
    lower = functools.partial(function.lower, *arguments)
    if hasattr(function, "trace"):
        trace_seconds, traced = time_once(lambda: function.trace(*arguments))
        jaxpr, lower = traced.jaxpr, traced.lower
    lower_seconds, lowered = time_once(lower)
    compile_seconds, compiled = time_once(lambda: lowered.compile(compiler_options=options))
    return Stages(compiled, compiled, jaxpr, trace_seconds, lower_seconds, compile_seconds)


def describe_and_color(case: Case, workload: Workload, describe_shortage: DescribeShortage) -> Derivative:
    """Return the `Derivative` of a case. With seeds=colored, it includes a coloring of the sparsity pattern.

    With seeds=colored, raise `TooLarge` if `describe_shortage` finds that the inputs do not fit into memory.
    """
    derivative = describe_derivative(case, workload)
    if case.seeds == "colored":
        raise_if_too_large(without_program(derivative), describe_shortage)
        if case.ad_mode.has_seeds:
            coloring = load_option("coloring").detect_coloring(case, workload)
            return describe_derivative(case, workload, coloring)
    return derivative


def compile_case(
    derivative: Derivative,
    devices: Sequence[Any],
    compile_program: CompileProgram = lambda p: compile_stages(p.function, list(p.arguments.values())),
    describe_shortage: DescribeShortage = lambda compiled: None,
    known_blocks: Mapping[str, Any] | None = None,
) -> CompiledCase:
    """Compile a case, and raise `TooLarge` if it does not fit into memory.

    With chunk=auto, choose the largest numbers of points and seeds that a device can compute at a time. If
    `known_blocks` (the field `blocks` of an earlier record) is given, its numbers are tried first.
    `describe_shortage` returns an error message if memory is too small, otherwise None.
    """
    if derivative.case.chunk == AUTO:
        compile_largest: Callable[..., CompiledCase] = load_option("autochunk").compile_largest
        compile_one = functools.partial(compile_blocks, devices=devices, compile_program=compile_program)
        return compile_largest(derivative, compile_one, describe_shortage, known_blocks)
    raise_if_too_large(without_program(derivative), describe_shortage)
    compiled = compile_blocks(derivative, devices, compile_program)
    raise_if_too_large(compiled, describe_shortage)
    return compiled


def compile_blocks(
    derivative: Derivative, devices: Sequence[Any], compile_program: CompileProgram
) -> CompiledCase:
    """Compile a case with its given `block` (points) and `chunk` (seeds), without a check of the memory."""
    uncompiled = without_program(derivative)
    program = _lay_out(uncompiled, devices)
    stages = compile_program(program)
    needs = program_bytes(stages.compiled) if stages.compiled is not None else {}
    return dataclasses.replace(uncompiled, program=program, stages=stages, needs=needs)


def _lay_out(compiled: CompiledCase, devices: Sequence[Any], api: str | None = None) -> layout.Program:
    step = compiled.offload.step if compiled.offload else compiled.derivative
    has_start = compiled.offload is not None and compiled.offload.seeds is not None
    if api is not None:
        step = dataclasses.replace(step, case=dataclasses.replace(step.case, api=api))
    return layout.lay_out(step, devices, has_start)


def trace_program(compiled: CompiledCase, devices: Sequence[Any]) -> Any:
    """Trace the program of a case for the given devices, and return its jaxpr."""
    # `jax.pmap` cannot be traced over several processes. `jax.shard_map` does the same work.
    is_pmap, traced = compiled.derivative.case.api == "pmap", compiled.program
    if traced is None or is_pmap:
        traced = _lay_out(compiled, devices, "shard_map" if is_pmap else None)
    if hasattr(traced.function, "trace"):  # JAX caches the jaxpr for the compilation of the same function
        return traced.function.trace(*traced.arguments.values()).jaxpr
    return jax.make_jaxpr(traced.function)(*traced.arguments.values())


def without_program(derivative: Derivative) -> CompiledCase:
    """Return a `CompiledCase` without a program. Its `needs` are the bytes of the inputs and the result."""
    case, offload, step = derivative.case, None, derivative
    if case.storage == "host" and derivative.parts:
        offload = load_option("host_offload").plan_offload(derivative)
        step = offload.step
    points, shared = input_structs(step.case, step.workload)
    bytes_per_point = count_bytes(points) // step.case.points
    input_bytes = ceil_div(step.case.points, case.mesh_shape[0]) * bytes_per_point + count_bytes(shared)
    itemsize, result_bytes = jnp.dtype(case.dtype).itemsize, 0
    if case.seeds != "colored" or derivative.coloring is not None:  # otherwise the nonzeros are unknown
        result_bytes = math.prod(step.result_shape) * itemsize // case.devices
    needs = {"argument_bytes": input_bytes, "temp_bytes": 0, "output_bytes": result_bytes}
    return CompiledCase(derivative, None, Stages(None, None), needs, offload)


def raise_if_too_large(compiled: CompiledCase, describe_shortage: DescribeShortage) -> None:
    """Raise `TooLarge` if `describe_shortage(compiled)` says that a case does not fit into memory."""
    if shortage := describe_shortage(compiled):
        raise TooLarge(shortage, compiled.recorded_needs)


def count_bytes(arrays: Mapping[str, Any]) -> int:
    """Return the total number of bytes of arrays or abstract arrays."""
    return sum(math.prod(array.shape) * array.dtype.itemsize for array in arrays.values())


def make_runner(compiled: CompiledCase) -> tuple[Callable[[], Any], Callable[[Any], Any]]:
    """Return two functions: run() computes a result on the devices, gather(result) copies it to the host."""
    assert compiled.program is not None
    if compiled.offload is not None:
        return load_option("host_offload").make_offload_runner(compiled), lambda result: result
    arguments = layout.place_inputs(compiled.program)
    return functools.partial(compiled.stages.call, *arguments), compiled.program.collect


def program_bytes(compiled: Any) -> dict[str, int | None]:
    """Return the bytes that a program needs per device, by record field. An unknown number is None."""
    analysis = _call_if_supported(compiled, "memory_analysis")
    return {
        f"{name}_bytes": getattr(analysis, f"{name}_size_in_bytes", None)
        for name in ("argument", "temp", "output")
    }


def describe_shortage(compiled: CompiledCase, device: Any, per_node: int, platform: str) -> str | None:
    """Return text such as 'needs 96.0 GB, has 80.0 GB' if memory is too small for a case, otherwise None.

    `device` is a device of this process. On a CPU, the `per_node` devices of a node share its memory. The
    text contains `IN_USE` if a CPU has enough memory, but not enough of it is free.
    """
    needed, limit, available = compiled.bytes_while_running, compiled.derivative.case.memory_limit, None
    if needed is None:
        return None
    if limit is not None and needed > limit:
        return f"{compiled.format_needs(needed)}, may have {format_bytes(limit)} (memory_limit)"
    if platform == "cpu":
        result_copy = per_node * (compiled.needs.get("output_bytes") or 0)  # for the check
        on_host = compiled.offload.host_bytes if compiled.offload else result_copy
        needed = needed * per_node + on_host
        available = available_bytes()
    elif "bytes_limit" in (statistics := _call_if_supported(device, "memory_stats") or {}):
        available = statistics["bytes_limit"] - statistics["bytes_in_use"]
    if available is None or needed <= available:
        return None
    in_use = f", {IN_USE}" if platform == "cpu" and needed <= (available_bytes(idle=True) or 0) else ""
    return f"{compiled.format_needs(needed)}, has {format_bytes(available)}{in_use}"


def largest_statistic(devices: Sequence[Any], statistic_name: str) -> int | None:
    """Return the maximum of a memory statistic over the devices, or None if no device reports it."""
    by_device = [_call_if_supported(device, "memory_stats") or {} for device in devices]
    return max(
        (statistics[statistic_name] for statistics in by_device if statistic_name in statistics), default=None
    )


def _call_if_supported(device_or_program: Any, method: str) -> Any:
    try:
        return getattr(device_or_program, method)()
    except Exception:
        return None
