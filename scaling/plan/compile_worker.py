"""A process that compiles cases for a machine that is not here, and reads memory, work and messages from
the programs.

`python -m scaling.plan.compile_worker` reads a job from standard input, a line of JSON, and then orders,
one a line:

    {"do": "trace", "key": ..., "case": ...}  build and trace; sends "traced" with a program digest, or "end"
    {"do": "compile", "key": ...}             compile the traced case; sends "end" with fields of its record

Places and allocates nothing. compile_pool.py sets its environment, so that compilers for other machines
disturb no run here.
"""

import dataclasses
import functools
import hashlib
import json
import math
import os
import re
import signal
import sys
from collections import Counter
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from jax.extend.core import jaxprs_in_params
from jax.interpreters.partial_eval import dce_jaxpr

from scaling.core import compile_case, environment, layout, memory, run_case, shape, timing, workload
from scaling.core.case import AUTO, Case, Refusal, from_dict
from scaling.core.formatting import format_bytes
from scaling.core.record import COMPILING_STAGES
from scaling.options.program import hlo_cost, program_stats
from scaling.plan import topology
from scaling.workers import event_channel, process_memory

_USED = re.compile(  # libtpu's message about a program that does not fit: its bytes, those of a device
    r"(?:Used |temporaries \()([\d.]+)([KMGT]?)\)?(?: of | exceeds available HBM \()([\d.]+)([KMGT]?)"
)
_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
# XLA's own GPU kernels find no tiles for some products; on a GPU it then tries cuBLAS, which must be asked
# for here.
_NO_TILES = "Couldn't find output tile sizes"
_WITH_CUBLAS = {"xla_gpu_enable_triton_gemm": False}
RecordFields = dict[str, Any]


def main() -> int:
    """Follow orders until standard input ends."""
    channel = event_channel.open_channel()
    job = json.loads(channel.orders.readline())
    event_channel.die_with_parent(job["parent"])
    process_memory.raise_oom_score()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the launcher handles Ctrl-C and ends this process
    os.environ["XLA_FLAGS"] = environment.variables(job["platform"])["XLA_FLAGS"]
    if job["platform"] == "cpu":
        jax.config.update("jax_num_cpu_devices", job["most"])
    jax.config.update("jax_enable_compilation_cache", False)
    channel.say(event="started")
    for line in channel.orders:
        order = json.loads(line)
        try:
            if order["do"] == "trace":
                traced = _TracedCase(job, from_dict(order["case"]))
                event: dict[str, Any] = {"event": "traced", "program": traced.program}
            else:
                event = {"event": "end"} | traced.compile()
        except Exception as error:
            event = {"event": "end"} | _describe_failure(error)
        channel.say(**event | {"key": order["key"]})
    return 0


def _describe_failure(error: Exception) -> RecordFields:
    """Return why a case could not be compiled."""
    if isinstance(error, shape.TooLarge):
        needs = error.needs | {"peak_bytes": memory.bytes_while_running(error.needs)} if error.needs else {}
        return needs | {"status": "skipped", "reason": "too_large", "text": str(error)}
    if isinstance(error, Refusal):
        return {"status": "skipped", "reason": "not_defined", "text": str(error)}
    text = f"{type(error).__name__}: {error}"
    reason = "out_of_memory" if memory.is_out_of_memory(text) else "error"
    return {"status": "failed", "reason": reason, "text": environment.scrub(text)[:500]}


class _TracedCase:
    """A case that was built and traced for its devices; `program` is the digest of what each device does."""

    def __init__(self, job: Mapping[str, Any], case: Case) -> None:
        jax.config.update("jax_enable_x64", case.dtype == "float64")
        self.job, self.case = job, case
        slice_shape = tuple(job["places"][str(case.devices)])
        self.devices = topology.devices(
            job["platform"], case.devices, job["target"], slice_shape, job["per_host"]
        )
        self.built = workload.build(case)
        self.sizes = compile_case.settle_shape(case, self.built, self._missing_memory)
        # The blocks of chunk=auto are found by compiling, so their program is not known before.
        self.program = None if case.chunk == AUTO else self._program()

    def _program(self) -> str | None:
        """Return the digest of the traced program; of a pmap, which cannot be traced, of the same under
        shard_map.

        None where there is no program, because it is too large to be traced.
        """
        not_compiled = functools.partial(timing.Stages, compiled=None)
        one = compile_case.compile_blocks(
            self.case, self.built, self.sizes, self.devices, lambda program: not_compiled(program.function)
        )
        if one.overflow:
            return None
        try:
            jaxpr = compile_case.trace_program(one, self.devices)
        except OverflowError:
            return None
        return _digest(self.case, jaxpr, one.steps, shape.padding_share(self.case, self.sizes))

    def _missing_memory(self, one: compile_case.CompiledCase) -> str | None:
        """Return what a program needs and what a device has, in words, where it needs more."""
        compiled = one.stages.compiled
        if isinstance(compiled, _RefusedProgram) and one.needs == memory.program_bytes(compiled):
            return _describe_shortage(compiled.message)
        taken, limit = one.bytes_while_running, self.case.memory_limit or self.job["memory"]
        if not taken or not limit or taken <= limit:
            return None
        return f"needs {format_bytes(taken)}, a device has {format_bytes(limit)}"

    def compile(self) -> RecordFields:
        """Return what the compiled program takes, does and sends."""
        coloring = self.sizes.coloring
        found = run_case.coloring_fields(coloring) if coloring else {}
        found |= {"capacity_bytes": int(self.job["memory"])} if self.job["memory"] else {}
        settings = compile_case.CompileSettings(self._compile_stages, self._missing_memory)
        try:
            one = compile_case.compile_case(self.case, self.built, self.devices, settings, self.sizes)
        except shape.TooLarge as error:
            return found | _describe_failure(error)
        cost = hlo_cost.read(one.stages.compiled.as_text())
        found |= vars(program_stats.program_work(one, self.devices, cost)) | {**one.needs}
        found |= {name: getattr(one.stages, name) for name in COMPILING_STAGES} | _optimised_work(
            cost, one.steps
        )
        found |= {
            "passes": shape.count_passes(one.case, self.built, self.sizes) or None,
            "padding": shape.padding_share(self.case, self.sizes), "blocks": one.blocks,
            "peak_bytes": one.bytes_while_running, "compulsory_bytes": one.compulsory_bytes,
            "messages": [hlo_cost.as_work(message) for message in cost.messages],
        }  # fmt: skip
        if text := program_stats.unexpected_collectives(self.case, cost.collectives):
            return found | {"status": "failed", "reason": "collective", "text": text}
        return found | {"status": "planned"}

    def _compile_stages(
        self, program: layout.Program, options: dict[str, Any] | None = None
    ) -> timing.Stages:
        try:
            return timing.compile_stages(program.function, list(program.arguments.values()), options)
        except Exception as error:
            if options is None and _NO_TILES in str(error):
                return self._compile_stages(program, _WITH_CUBLAS)
            if not _USED.search(str(error)) and not memory.is_out_of_memory(str(error)):
                raise
            return timing.Stages(program.function, _refused_program(program, self.case.devices, str(error)))


@dataclasses.dataclass(frozen=True)
class _RefusedProgram:
    """A program that a compiler refused for its memory: its bytes on a device, as `memory.program_bytes`
    reads them.

    The bytes of inputs and results are known all the same, and show whether a smaller block would help.

    """

    message: str
    argument_size_in_bytes: int
    output_size_in_bytes: int
    temp_size_in_bytes: int | None  # the rest of what the compiler reports; None where it names no figure

    def memory_analysis(self) -> "_RefusedProgram":
        """Return the bytes, as a compiled program does."""
        return self


def _refused_program(program: layout.Program, devices: int, message: str) -> _RefusedProgram:
    """Return a program that was refused with this message. Every device has its own part of the result."""

    def size(array: Any, shape: tuple[int, ...]) -> int:
        return math.prod(shape) * array.dtype.itemsize

    arguments, used = list(program.arguments.values()), _USED.search(message)
    inside = sum(size(each, each.sharding.shard_shape(each.shape)) for each in arguments)
    results = jax.tree.leaves(jax.eval_shape(program.function, *arguments))
    out = sum(size(each, each.shape) for each in results) // devices
    rest = max(0, int(_bytes(used[1], used[2])) - inside - out) if used else None
    return _RefusedProgram(message, inside, out, rest)


def _describe_shortage(message: str) -> str:
    """Return a compiler's message about a program that does not fit, in our words where it is understood."""
    used = _USED.search(message)
    if used is None:
        return environment.scrub(" ".join(message.split()))[:300]
    needs, has = format_bytes(_bytes(used[1], used[2])), format_bytes(_bytes(used[3], used[4]))
    return f"needs {needs}, a device has {has}"


def _bytes(number: str, unit: str) -> float:
    return float(number) * _UNITS[unit]


_MESH = re.compile(r"AbstractMesh\((?:[^()]|\([^()]*\))*\)")
_COMMUNICATION = re.compile(
    r"\b(axis_index|psum|all_gather|all_to_all|ppermute|reduce_scatter|pmax|pmin|pbroadcast)\b"
)


def _digest(case: Case, jaxpr: Any, steps: int = 1, padding: float | None = None) -> str:
    """Return a digest that is equal for two cases whose devices do the same: one compilation then serves
    both.

    Communication, and the index of a device, depend on the number of devices. With storage=host a program is
    one of `steps`, so two cases may share the program and not how often it runs.
    """
    text = _MESH.sub("mesh", str(_device_jaxpr(getattr(jaxpr, "jaxpr", jaxpr))))
    if case.axes[1] == 1:  # the index of a device over the seeds is always 0
        text = text.replace(f"axis_index[axis_name={layout.SEEDS}]", "first")
    arrays = (np.ascontiguousarray(const) for const in getattr(jaxpr, "consts", ()))
    constants = [hashlib.sha256(array.tobytes()).hexdigest() for array in arrays]
    alone = not _COMMUNICATION.search(text)
    settings = (case.api, case.dtype, case.precision, case.storage, case.memory_limit)
    content = [text, constants, *settings, None if alone else (case.devices, case.axes), steps, padding]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:16]


def _device_jaxpr(jaxpr: Any) -> Any:
    """Return the jaxpr inside shard_map, or all of a plain program, without dead code."""
    for equation in jaxpr.eqns:
        inner = list(jaxprs_in_params(equation.params))
        if equation.primitive.name == "shard_map":
            return dce_jaxpr(inner[0], [True] * len(inner[0].outvars))[0]
        if len(jaxpr.eqns) == 1 and len(inner) == 1:
            return _device_jaxpr(inner[0])
    return dce_jaxpr(jaxpr, [True] * len(jaxpr.outvars))[0]


def _optimised_work(cost: hlo_cost.ProgramCost, steps: int) -> RecordFields:
    """Return the work of the optimised program; equal kernels appear once, with the number of their runs."""
    counts: Counter[hlo_cost.Kernel] = Counter()
    for kernel in cost.kernels:
        counts[dataclasses.replace(kernel, times=1.0)] += kernel.times * steps  # type: ignore[assignment]
    flops = sum(
        (k.products + k.arithmetic + k.divisions + k.reductions) * times for k, times in counts.items()
    )
    return {
        "kernels": [hlo_cost.as_work(dataclasses.replace(k, times=times)) for k, times in counts.items()],
        "program_flops": flops,
        "program_transcendentals": sum(k.transcendentals * times for k, times in counts.items()),
    }


if __name__ == "__main__":
    sys.exit(main())
