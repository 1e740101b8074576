"""Compile a case for hardware that need not be present, count its operations, describe compiler errors.

This is also the main program of the workers of a plan, which `python -m scaling.plan.compile_worker` starts.
It reads JSON objects from standard input, one per line. The first contains the fields of a `Hardware` and the
largest device count (`most`). Each later object is a request {"case": fields}, and the reply is an event
"end" with record fields. compile_pool.py disables accelerators, so that the process uses no device memory.
"""

import os
import re
import signal
import tempfile
from collections.abc import Mapping
from json import dumps, loads  # bound here, because a user's module may replace them
from pathlib import Path
from typing import Any

import jax
from jax.experimental import topologies

from scaling.core import compile_case, environment, layout, workload
from scaling.core.case import Case, Refusal, TooLarge, from_dict
from scaling.core.compile_case import Stages, compile_stages
from scaling.core.formatting import format_bytes
from scaling.core.record import COMPILING_STAGES, RecordFields, bytes_while_running
from scaling.core.run_case import describe_error
from scaling.options.coloring import coloring_fields
from scaling.plan.hardware import Hardware
from scaling.programs import hlo, kernel_work, llvm_instructions, program_stats
from scaling.worker import Channel, die_with_parent

_OUT_OF_MEMORY_MESSAGE = re.compile(  # out-of-memory message of libtpu: used bytes, available bytes
    r"(?:Used |temporaries \()([\d.]+)([KMGT]?)\)?(?: of | exceeds available HBM \()([\d.]+)([KMGT]?)"
)
_BYTES_OF_PREFIX = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}  # prefix -> bytes
# XLA's Triton kernels do not support some matrix products. With a GPU, XLA then falls back to cuBLAS. Without
# one, cuBLAS must be selected explicitly.
_TRITON_ERROR_MESSAGE = "Couldn't find output tile sizes"
_CUBLAS_OPTIONS = {"xla_gpu_enable_triton_gemm": False}
_ABSENT_GPU_MESSAGE = "Unknown backend: 'gpu' requested"  # raised by JAX when it lowers a callback
_HOST_CALL = (
    "the function calls Python on the host, as jax.debug.print, pure_callback and io_callback do, and JAX "
    "compiles such a call only where the GPU is present; remove the call"
)


def main() -> None:
    """Compile a case for each request from standard input, and write the replies to standard output."""
    channel = Channel()
    header = loads(channel.requests.readline())
    die_with_parent(header["parent"])
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the launcher handles Ctrl-C and ends this process
    hardware = Hardware(**header["hardware"])
    os.environ["XLA_FLAGS"] = environment.variables(hardware.platform)["XLA_FLAGS"]
    if hardware.platform == "cpu":
        jax.config.update("jax_num_cpu_devices", header["most"])
    jax.config.update("jax_enable_compilation_cache", False)
    channel.send_event(event="started")
    for line in channel.requests:
        case = from_dict(loads(line)["case"])
        jax.config.update("jax_enable_x64", case.dtype == "float64")
        try:
            fields = BuiltCase(hardware, case).compile()
        except Exception as error:
            fields = describe_failure(error)
        channel.send_event(event="end", **fields)


def describe_failure(error: Exception) -> RecordFields:
    """Return the status, reason and text to record for a case whose compilation raised `error`."""
    status, reason, text = describe_error(error)
    if _ABSENT_GPU_MESSAGE in text:
        status, reason, text = "skipped", "not_defined", _HOST_CALL
    elif isinstance(error, Refusal) and status == "failed":
        status, reason = "skipped", "not_defined"
    fields: RecordFields = {"status": status, "reason": reason, "text": text}
    if isinstance(error, TooLarge) and error.needs:
        fields |= error.needs | {"peak_bytes": bytes_while_running(error.needs)}
    return fields


def _absent_devices(hardware: Hardware, count: int) -> list[Any]:
    """Return the first `count` JAX devices of the given hardware. They need not exist on this machine."""
    platform, per_host = hardware.platform, hardware.per_host
    if platform == "cpu":
        return jax.devices("cpu")[:count]
    if platform == "gpu":
        topology = f"1x{max(1, count // per_host)}x{min(count, per_host)}"
        platform, options = "cuda", {"topology": topology, "target_config": _to_text_proto(hardware.target)}
    else:
        chips = hardware.slice_shape(count) or ()
        if count == 1:  # libtpu supports no slice that is smaller than 2 x 2 chips
            chips = tuple(2 if axis < 2 else 1 for axis in range(len(chips)))
        topology, options = f"{hardware.target}:{'x'.join(map(str, chips))}", {}
    description = topologies.get_topology_desc(platform=platform, topology_name=topology, **options)
    return list(description.devices)[:count]


def _to_text_proto(fields: Mapping[str, Any]) -> str:
    return " ".join(
        f"{name} {{ {_to_text_proto(value)} }}" if isinstance(value, Mapping) else f"{name}: {dumps(value)}"
        for name, value in fields.items()
    )


class BuiltCase:
    """A case that is built for other hardware. It can be traced and compiled, but not run."""

    def __init__(self, hardware: Hardware, case: Case) -> None:
        self.hardware, self.case = hardware, case
        self.traced_program: layout.Program | None = None
        self.stages: Stages | None = None  # None before `compile`, or if the program does not fit into memory
        self.operations: dict[Any, dict[str, float]] = {}  # program of a CPU -> kernel -> operations
        self.devices = _absent_devices(hardware, case.devices)
        self.derivative = compile_case.describe_and_color(case, workload.build(case), self._missing_memory)

    def trace(self) -> Any:
        """Trace the program, and return its jaxpr. With chunk=auto, it has no chunks or blocks yet."""
        uncompiled = compile_case.compile_blocks(
            self.derivative, self.devices, lambda program: Stages(program.function, None)
        )
        self.traced_program = uncompiled.program
        return compile_case.trace_program(uncompiled, self.devices)

    def _missing_memory(self, compiled_case: compile_case.CompiledCase) -> str | None:
        """Return a message if a program needs more memory than a device has, otherwise None."""
        needed, limits = compiled_case.bytes_while_running, (self.case.memory_limit, self.hardware.memory)
        available = min(filter(None, limits), default=None)
        if not needed or not available or needed <= available:
            return None
        return f"{compiled_case.format_needs(needed)}, a device has {format_bytes(available)}"

    def compile(self) -> RecordFields:
        """Compile the case, and return record fields with its status, memory, operations and collectives."""
        coloring = self.derivative.coloring
        fields = coloring_fields(coloring) if coloring else {}
        fields |= {"capacity_bytes": int(self.hardware.memory)} if self.hardware.memory else {}
        try:
            compiled_case = compile_case.compile_case(
                self.derivative, self.devices, self._compile_stages, self._missing_memory
            )
        except TooLarge as error:
            return fields | describe_failure(error)
        self.stages = compiled_case.stages
        program = hlo.read(self.stages.compiled.as_text())
        operations = self.operations.get(self.stages.compiled)
        fields |= {
            **program_stats.program_work(compiled_case, self.devices, program), **compiled_case.needs,
            **{name: getattr(self.stages, name) for name in COMPILING_STAGES},
            **kernel_work.program_fields(program, operations, compiled_case.steps),
            "passes": compiled_case.derivative.passes or None,
            "padding": program_stats.padding_share(self.derivative), "blocks": compiled_case.blocks,
            "peak_bytes": compiled_case.bytes_while_running,
            "compulsory_bytes": compiled_case.compulsory_bytes,
        }  # fmt: skip
        if text := program_stats.describe_wrong_collectives(self.case, program.collectives):
            return fields | {"status": "failed", "reason": "collective", "text": text}
        return fields | {"status": "planned"}

    def _compile_stages(self, program: layout.Program, options: dict[str, Any] | None = None) -> Stages:
        """Compile a program, with `options` for XLA, and return its `Stages`.

        Raise `TooLarge` if the compiler finds that the program does not fit into memory.
        """
        program = self.traced_program or program  # the same program, whose jaxpr JAX has cached
        arguments = list(program.arguments.values())
        try:
            if self.hardware.platform != "cpu":
                return compile_stages(program.function, arguments, options)
            with tempfile.TemporaryDirectory() as folder:
                options = llvm_instructions.dump_options(folder) | environment.fusion_options()
                stages = compile_stages(program.function, arguments, options)
                operations = llvm_instructions.count_operations(Path(folder), stages.compiled.as_text())
                self.operations[stages.compiled] = operations
                return stages
        except Exception as error:
            if options is None and _TRITON_ERROR_MESSAGE in str(error):
                return self._compile_stages(program, _CUBLAS_OPTIONS)
            if not _OUT_OF_MEMORY_MESSAGE.search(str(error)) and not environment.is_out_of_memory(str(error)):
                raise
            needs = compile_case.without_program(self.derivative).recorded_needs
            raise describe_rejection(needs, str(error)) from None


def describe_rejection(needs: Mapping[str, int | None], message: str) -> TooLarge:
    """Return the `TooLarge` exception for a program that the compiler rejected for lack of memory.

    `needs` contains the bytes of the inputs and the result. `message` is the error message of the compiler.
    """
    match = _OUT_OF_MEMORY_MESSAGE.search(message)
    if match is None:
        return TooLarge(environment.scrub(" ".join(message.split()))[:300], needs)
    used, available = (float(match[k]) * _BYTES_OF_PREFIX[match[k + 1]] for k in (1, 3))
    known_bytes = sum(filter(None, needs.values()))
    shortage = f"needs {format_bytes(used)}, a device has {format_bytes(available)}"
    return TooLarge(shortage, {**needs, "temp_bytes": max(0, int(used) - known_bytes)})


if __name__ == "__main__":
    main()
