"""Main program of a compile worker: trace and compile cases for absent devices, and read their costs.

`python -m scaling.plan.compile_worker` reads a header and then requests from standard input, one JSON object
per line:

    {"do": "trace", "key": ..., "case": ...}  build and trace; replies "traced" with a digest, or "end"
    {"do": "compile", "key": ...}             compile the traced case; replies "end" with record fields

The process allocates no memory on devices. The variables in compile_pool.py keep it off the accelerators.
"""

import contextlib
import dataclasses
import hashlib
import json
import math
import os
import re
import signal
import tempfile
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.experimental import topologies
from jax.extend.core import jaxprs_in_params
from jax.interpreters.partial_eval import dce_jaxpr

from scaling.core import compile_case, environment, layout, record, shape, workload
from scaling.core.case import AUTO, Case, Refusal, from_dict
from scaling.core.compile_case import Stages, compile_stages, program_bytes
from scaling.core.formatting import format_bytes
from scaling.core.record import COMPILING_STAGES
from scaling.options import hlo, program_stats
from scaling.options.sparse.coloring import coloring_fields
from scaling.plan import kernel_work, llvm_instructions
from scaling.plan.compile_pool import RecordFields
from scaling.plan.kernel_work import KernelWork
from scaling.worker import Channel, die_with_parent

_OUT_OF_MEMORY_MESSAGE = re.compile(  # out-of-memory message of libtpu: used bytes, available bytes
    r"(?:Used |temporaries \()([\d.]+)([KMGT]?)\)?(?: of | exceeds available HBM \()([\d.]+)([KMGT]?)"
)
_UNIT_PREFIXES = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}  # prefix -> bytes
_MESH = re.compile(r"AbstractMesh\((?:[^()]|\([^()]*\))*\)")  # in the text of a jaxpr
_COMMUNICATING_PRIMITIVE = re.compile(
    r"\b(axis_index|psum|all_gather|all_to_all|ppermute|reduce_scatter|pmax|pmin|pbroadcast)\b"
)
# XLA's Triton kernels do not support some matrix products. With a GPU, XLA then falls back to cuBLAS. Without
# one, cuBLAS must be selected explicitly.
_TRITON_FAILURE = "Couldn't find output tile sizes"
_CUBLAS_OPTIONS = {"xla_gpu_enable_triton_gemm": False}


def main() -> None:
    """Read trace and compile requests from standard input, and reply to each, until the input ends."""
    channel = Channel()
    header = json.loads(channel.requests.readline())
    die_with_parent(header["parent"])
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the launcher handles Ctrl-C and ends this process
    os.environ["XLA_FLAGS"] = environment.variables(header["platform"])["XLA_FLAGS"]
    if header["platform"] == "cpu":
        jax.config.update("jax_num_cpu_devices", header["most"])
    jax.config.update("jax_enable_compilation_cache", False)
    channel.send_event(event="started")
    for line in channel.requests:
        request = json.loads(line)
        try:
            if request["do"] == "trace":
                case = from_dict(request["case"])
                jax.config.update("jax_enable_x64", case.dtype == "float64")
                traced = TracedCase(header, case)
                event: dict[str, Any] = {"event": "traced", "program": traced.digest}
            else:
                event = {"event": "end"} | traced.compile()
        except Exception as error:
            event = {"event": "end"} | describe_failure(error)
        channel.send_event(**event | {"key": request["key"]})


def describe_failure(error: Exception) -> RecordFields:
    """Return the record fields of a case whose compilation raised an exception."""
    if isinstance(error, shape.TooLarge):
        needs = error.needs | {"peak_bytes": record.bytes_while_running(error.needs)} if error.needs else {}
        return needs | {"status": "skipped", "reason": "too_large", "text": str(error)}
    if isinstance(error, Refusal):
        return {"status": "skipped", "reason": "not_defined", "text": str(error)}
    text = f"{type(error).__name__}: {error}"
    reason = "out_of_memory" if environment.is_out_of_memory(text) else "error"
    return {"status": "failed", "reason": reason, "text": environment.scrub(text)[:500]}


def _absent_devices(header: Mapping[str, Any], count: int) -> list[Any]:
    """Return `count` JAX devices to compile for, which need not exist.

    On a TPU they form a slice. A single device belongs to the smallest slice that libtpu supports (2 x 2).
    """
    platform, target, per_host = header["platform"], header["target"], header["per_host"]
    if platform == "cpu":
        return jax.devices("cpu")[:count]
    if platform == "gpu":
        name = f"1x{max(1, count // per_host)}x{min(count, per_host)}"
        platform, options = "cuda", {"topology": name, "target_config": _to_text_proto(target)}
    else:
        chips = header["slices"][str(count)]
        chips = chips if count > 1 else [2 if axis < 2 else 1 for axis in range(len(chips))]
        name, options = f"{target}:{'x'.join(map(str, chips))}", {}
    description = topologies.get_topology_desc(platform=platform, topology_name=name, **options)
    return list(description.devices)[:count]


def _to_text_proto(fields: Mapping[str, Any]) -> str:
    """Return the given fields as a protocol buffer in text format."""
    return " ".join(
        f"{name} {{ {_to_text_proto(value)} }}"
        if isinstance(value, Mapping)
        else f"{name}: {json.dumps(value)}"
        for name, value in fields.items()
    )


class TracedCase:
    """A case whose program is built and traced for absent devices.

    The argument `header` is the description of the hardware that `plan_study.worker_header` returns.

    Attributes:
        jaxpr: Traced program, or None if it is too large to trace or unknown before compiling.
        digest: Hash of the program of each device, or None if `jaxpr` is None.
    """

    def __init__(self, header: Mapping[str, Any], case: Case) -> None:
        self.header, self.case = header, case
        self.devices = _absent_devices(header, case.devices)
        self.workload = workload.build(case)
        self.sizes = compile_case.settle_shape(case, self.workload, self._missing_memory)
        self.jaxpr: Any = None
        self.digest: str | None = None
        if case.chunk == AUTO:  # the block sizes and thus the program are determined by compiling
            return
        without_compiling = lambda program: Stages(program.function, None)  # noqa: E731
        uncompiled = compile_case.compile_blocks(
            case, self.workload, self.sizes, self.devices, without_compiling
        )
        if not uncompiled.overflow:
            with contextlib.suppress(OverflowError):
                self.jaxpr = compile_case.trace_program(uncompiled, self.devices)
                padding = shape.padding_share(case, self.sizes)
                self.digest = _digest(case, self.jaxpr, uncompiled.steps, padding)

    def _missing_memory(self, compiled_case: compile_case.CompiledCase) -> str | None:
        """Return a message if a program does not fit into the memory of a device, otherwise None."""
        compiled = compiled_case.stages.compiled
        if isinstance(compiled, RejectedProgram) and compiled_case.needs == program_bytes(compiled):
            return compiled.shortage
        needed, limit = compiled_case.bytes_while_running, self.case.memory_limit or self.header["memory"]
        if not needed or not limit or needed <= limit:
            return None
        return f"needs {format_bytes(needed)}, a device has {format_bytes(limit)}"

    def compile(self) -> RecordFields:
        """Compile the case, and return record fields with its status, memory, operations and collectives."""
        coloring = self.sizes.coloring
        fields = coloring_fields(coloring) if coloring else {}
        fields |= {"capacity_bytes": int(self.header["memory"])} if self.header["memory"] else {}
        try:
            compiled_case = compile_case.compile_case(
                self.case, self.workload, self.devices, self.sizes, self._compile_stages, self._missing_memory
            )
        except shape.TooLarge as error:
            return fields | describe_failure(error)
        operations = getattr(compiled_case.stages, "operations", None)
        program = hlo.read(compiled_case.stages.compiled.as_text())
        kernels = kernel_work.count_kernels(program, operations)
        fields |= {
            **program_stats.program_work(compiled_case, self.devices, program), **compiled_case.needs,
            **{name: getattr(compiled_case.stages, name) for name in COMPILING_STAGES},
            **_optimized_work(kernels, compiled_case.steps),
            "passes": shape.count_passes(compiled_case.case, self.workload, self.sizes) or None,
            "padding": shape.padding_share(self.case, self.sizes), "blocks": compiled_case.blocks,
            "peak_bytes": compiled_case.bytes_while_running,
            "compulsory_bytes": compiled_case.compulsory_bytes,
            "messages": [kernel_work.as_work(message) for message in program.messages or ()],
        }  # fmt: skip
        if text := program_stats.unexpected_collectives(self.case, program.collectives):
            return fields | {"status": "failed", "reason": "collective", "text": text}
        return fields | {"status": "planned"}

    def _compile_stages(self, program: layout.Program, options: dict[str, Any] | None = None) -> Stages:
        """Compile a program. If it does not fit into memory, the executable is a `RejectedProgram`.

        For a CPU, also count the operations of its kernels in the LLVM IR that XLA writes.
        """
        arguments = list(program.arguments.values())
        try:
            if self.header["platform"] != "cpu":
                return compile_stages(program.function, arguments, options)
            with tempfile.TemporaryDirectory() as folder:
                options = llvm_instructions.dump_options(folder)
                stages = compile_stages(program.function, arguments, options)
                return _CpuStages(**vars(stages), operations=llvm_instructions.count_operations(Path(folder)))
        except Exception as error:
            if options is None and _TRITON_FAILURE in str(error):
                return self._compile_stages(program, _CUBLAS_OPTIONS)
            if not _OUT_OF_MEMORY_MESSAGE.search(str(error)) and not environment.is_out_of_memory(str(error)):
                raise
            return Stages(program.function, RejectedProgram(program, self.case.devices, str(error)))


@dataclasses.dataclass(frozen=True)
class _CpuStages(Stages):
    """The compilation stages of a CPU program, and a dict from kernel name to number of operations."""

    operations: dict[str, float] = dataclasses.field(default_factory=dict)


class RejectedProgram:
    """A program that the compiler rejected because it does not fit into memory.

    The sizes have the same names as in JAX's `CompiledMemoryStats`, in bytes per device. Those of the
    arguments and of the output show whether a smaller block of points could fit. The temporary size is None
    if the compiler's message contains no number. `shortage` states the needed and the available memory.
    """

    def __init__(self, program: layout.Program, devices: int, message: str) -> None:
        arguments = list(program.arguments.values())
        outputs = jax.tree.leaves(jax.eval_shape(program.function, *arguments))
        self.argument_size_in_bytes = sum(
            math.prod(array.sharding.shard_shape(array.shape)) * array.dtype.itemsize for array in arguments
        )
        self.output_size_in_bytes = sum(array.size * array.dtype.itemsize for array in outputs) // devices
        self.temp_size_in_bytes: int | None = None
        self.shortage = environment.scrub(" ".join(message.split()))[:300]
        if match := _OUT_OF_MEMORY_MESSAGE.search(message):
            used, available = (float(match[k]) * _UNIT_PREFIXES[match[k + 1]] for k in (1, 3))
            rest = int(used) - self.argument_size_in_bytes - self.output_size_in_bytes
            self.temp_size_in_bytes = max(0, rest)
            self.shortage = f"needs {format_bytes(used)}, a device has {format_bytes(available)}"

    def memory_analysis(self) -> "RejectedProgram":
        """Return this object, in place of the result of `jax.stages.Compiled.memory_analysis`."""
        return self


def _digest(case: Case, jaxpr: Any, steps: int, padding: float | None) -> str:
    """Return a hash of a traced program. If several cases have equal hashes, only one is compiled.

    The hash depends on the number of devices only if the program communicates or uses its device index.
    `steps` is the number of executions of the program per call. `padding` is the result of `padding_share`.
    """
    text = _MESH.sub("mesh", str(_device_jaxpr(getattr(jaxpr, "jaxpr", jaxpr))))
    if case.mesh_shape[1] == 1:  # the device index along the seed axis is always 0
        text = text.replace(f"axis_index[axis_name={layout.SEEDS}]", "first")
    constants = [np.ascontiguousarray(const).tobytes() for const in getattr(jaxpr, "consts", ())]
    mesh = (case.devices, case.mesh_shape) if _COMMUNICATING_PRIMITIVE.search(text) else None
    settings = (case.api, case.dtype, case.precision, case.storage, case.memory_limit, mesh, steps, padding)
    digest = hashlib.sha256(repr((text, settings)).encode())
    for constant in constants:
        digest.update(constant)
    return digest.hexdigest()[:16]


def _device_jaxpr(jaxpr: Any) -> Any:
    """Return the jaxpr of one device without dead code: the body of the shard_map, or the whole program."""
    for equation in jaxpr.eqns:
        inner = list(jaxprs_in_params(equation.params))
        if equation.primitive.name == "shard_map":
            return dce_jaxpr(inner[0], [True] * len(inner[0].outvars))[0]
        if len(jaxpr.eqns) == 1 and len(inner) == 1:
            return _device_jaxpr(inner[0])
    return dce_jaxpr(jaxpr, [True] * len(jaxpr.outvars))[0]


def _optimized_work(kernels: Sequence[KernelWork], steps: int) -> RecordFields:
    """Return record fields with the kernels and operation counts of a program that a call runs `steps` times.

    Equal kernels are merged, and `times` is their total number of executions.
    """
    times: dict[KernelWork, float] = defaultdict(float)
    for kernel in kernels:
        times[dataclasses.replace(kernel, times=1.0)] += kernel.times * steps
    merged = [dataclasses.replace(kernel, times=count) for kernel, count in times.items()]
    return {
        "kernels": [kernel_work.as_work(kernel) for kernel in merged],
        "program_flops": sum(kernel.flops * kernel.times for kernel in merged),
        "program_transcendentals": sum(kernel.transcendentals * kernel.times for kernel in merged),
    }


if __name__ == "__main__":
    main()
