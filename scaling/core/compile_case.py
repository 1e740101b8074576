"""Compile a case so that it fits into memory, before anything is allocated.

`compile_case` settles what the case leaves open: a colouring, and with chunk=auto the blocks. Running,
planning and advising call it with their own devices, memory and way to compile. Does not know records, nor
clocks beyond those of the stages.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from scaling.core import extensions, layout, memory, timing
from scaling.core.case import AUTO, Case
from scaling.core.formatting import format_bytes
from scaling.core.shape import (
    DerivativeShape,
    TooLarge,
    ceil_div,
    derivative_shape,
    input_structs,
    result_shape,
)
from scaling.core.workload import Workload

_MOST_BYTES = 2**63 - 1  # of one array; XLA ends the process beyond
_MOST_SEEDS = 2**31 - 1  # that are counted in int32, as JAX does without float64
# Numbers in the seeds of a program without a tracing stage beyond which the sizes of its arrays are checked.
_MOST_UNCHECKED = 2**31


@dataclass(frozen=True)
class StepPlan:
    """The steps of a case with storage=host, which follow each other on the devices.

    case, sizes: what one step computes. seeds: how many it takes, where these are divided. count: of steps.
    host_bytes: what the host holds, all per-point inputs and the result. moved_bytes: what is moved to
    and from a device for them, beyond the arguments of one step.
    """

    case: Case
    sizes: DerivativeShape
    seeds: int | None
    count: int
    host_bytes: int
    moved_bytes: int


@dataclass(frozen=True)
class CompiledCase:
    """A case as it runs, with what it left open filled in, and its compiled program.

    plan: its steps, with storage=host. overflow: why there is no program, in words; `needs` is then what any
    program of the case needs at least. blocks: how its blocks were found, with chunk=auto, for a record.
    """

    case: Case
    workload: Workload
    sizes: DerivativeShape
    program: layout.Program | None
    stages: timing.Stages
    needs: Mapping[str, int | None]
    plan: StepPlan | None = None
    overflow: str | None = None
    blocks: Mapping[str, Any] | None = None

    @property
    def steps(self) -> int:
        """How often the program runs for one result."""
        return self.plan.count if self.plan else 1

    @property
    def recorded_needs(self) -> dict[str, int | None]:
        """The needs for a record: without a program only the inputs, and maybe the result, are known."""
        if self.program is not None:
            return dict(self.needs)
        return {**self.needs, "temp_bytes": None, "output_bytes": self.needs["output_bytes"] or None}

    @property
    def bytes_while_running(self) -> int | None:
        """Bytes of each device while the program runs: inputs, temporaries, result; two results of a step."""
        return memory.bytes_while_running(self.needs, 1 if self.plan is None else 2)

    @property
    def host_bytes(self) -> int:
        """Bytes of the host that the case needs as well, with storage=host."""
        return self.plan.host_bytes if self.plan else 0

    @property
    def compulsory_bytes(self) -> int | None:
        """Bytes that each device must move: its inputs read once and its result written once, if known.

        With storage=host the per-point inputs and the result are those of the whole case; what the points
        share stays on the device and counts once.
        """
        arguments = self.needs.get("argument_bytes")
        if self.plan is not None and arguments is not None:
            return arguments + self.plan.moved_bytes
        return memory.bytes_while_running({**self.needs, "temp_bytes": 0})


CompileStages = Callable[[layout.Program], timing.Stages]
MissingMemory = Callable[[CompiledCase], str | None]


def compile_program(program: layout.Program) -> timing.Stages:
    """Trace, lower and compile a program with abstract arguments."""
    return timing.compile_stages(program.function, list(program.arguments.values()))


@dataclass(frozen=True)
class CompileSettings:
    """How programs are compiled, and what for.

    stages: compiles a program. missing_memory: what a compiled case lacks, in words; None if it fits.
    known_blocks: the blocks that an earlier attempt at the case found, as a record has them; tried first.
    """

    stages: CompileStages = compile_program
    missing_memory: MissingMemory = lambda one: None
    known_blocks: Mapping[str, Any] | None = None


def settle_shape(case: Case, workload: Workload, missing_memory: MissingMemory) -> DerivativeShape:
    """Return the shape of the derivative of a case; detect a colouring where its seeds are coloured.

    Raise `TooLarge` where the inputs at which a pattern is detected do not fit.
    """
    sizes = derivative_shape(case, workload)
    if case.seeds != "colored":
        return sizes
    require_room(lower_bound(case, workload, sizes), missing_memory)
    if not case.ad_mode.has_seeds:
        return sizes
    return derivative_shape(case, workload, extensions.load("sparse").detect_coloring(case, workload))


def compile_case(
    case: Case,
    workload: Workload,
    devices: Sequence[Any],
    settings: CompileSettings,
    sizes: DerivativeShape | None = None,
) -> CompiledCase:
    """Return the compiled program of a case that fits into memory; raise `TooLarge` if none does.

    sizes: as `settle_shape` returns them, where they are known already.
    """
    sizes = sizes or settle_shape(case, workload, settings.missing_memory)
    if case.chunk == AUTO:
        compile_ = functools.partial(
            compile_blocks, workload=workload, sizes=sizes, devices=devices, stages=settings.stages
        )
        autochunk = extensions.load("autochunk")
        found: CompiledCase = autochunk.compile_largest(case, workload, sizes, compile_, settings)
        return found
    if not case.jit:  # an uncompiled function has no memory analysis
        require_room(lower_bound(case, workload, sizes), settings.missing_memory)
    compiled = compile_blocks(case, workload, sizes, devices, settings.stages)
    require_room(compiled, settings.missing_memory)
    return compiled


def compile_blocks(
    case: Case, workload: Workload, sizes: DerivativeShape, devices: Sequence[Any], stages: CompileStages
) -> CompiledCase:
    """Return the program of a case whose blocks are known, or why it has none."""
    bound = lower_bound(case, workload, sizes)
    if bound.overflow:
        return bound
    try:
        program = _lay_out(bound, devices)
        if not hasattr(program.function, "trace") and _seed_numbers(case, sizes) > _MOST_UNCHECKED:
            timing.require_addressable(trace_program(bound, devices))
        compiled = stages(program)
    except OverflowError as error:
        return dataclasses.replace(bound, overflow=f"XLA cannot run it: {' '.join(str(error).split())}")
    needs = memory.program_bytes(compiled.compiled) if compiled.compiled is not None else {}
    return dataclasses.replace(bound, program=program, stages=compiled, needs=needs)


def _lay_out(one: CompiledCase, devices: Sequence[Any], api: str | None = None) -> layout.Program:
    """Return the program of a case, or of one of its steps. api: instead of its own."""
    step = one.plan or one
    stepped = one.plan is not None and one.plan.seeds is not None
    case = dataclasses.replace(step.case, api=api or step.case.api)
    return layout.lay_out(case, one.workload, devices, step.sizes, stepped)


def trace_program(one: CompiledCase, devices: Sequence[Any]) -> Any:
    """Return the jaxpr of a program without a tracing stage.

    pmap cannot be traced at all over several processes; a device does the same under shard_map.
    """
    program = _lay_out(one, devices, "shard_map" if one.case.api == "pmap" else None)
    return jax.make_jaxpr(program.function)(*program.arguments.values())


def lower_bound(case: Case, workload: Workload, sizes: DerivativeShape) -> CompiledCase:
    """Return a case without a program, with the bytes of its inputs and its result on a device.

    `overflow` says whether an array, or the number of a seed, is beyond what XLA and JAX can count.
    """
    offloaded = case.storage == "host" and sizes.parts
    plan = extensions.load("host_offload").plan_offload(case, workload, sizes) if offloaded else None
    step, of_step = (plan.case, plan.sizes) if plan else (case, sizes)
    points, shared = input_structs(step, workload)
    arguments = ceil_div(step.points, step.axes[0]) * (count_bytes(points) // step.points) + count_bytes(
        shared
    )
    itemsize, output = jnp.dtype(case.dtype).itemsize, 0
    if (
        case.seeds != "colored" or sizes.coloring is not None
    ):  # otherwise the size of the pattern is not known
        output = math.prod(result_shape(step, workload, of_step)) * itemsize // case.devices
    needs: dict[str, int | None] = {"argument_bytes": arguments, "temp_bytes": 0, "output_bytes": output}
    overflow = _overflow(case, sizes, max(arguments, output, _seed_numbers(step, of_step) * itemsize))
    return CompiledCase(case, workload, sizes, None, timing.Stages(_no_program, None), needs, plan, overflow)


def _overflow(case: Case, sizes: DerivativeShape, largest: int) -> str | None:
    """Return why a case is beyond what can be counted. largest: the bytes of its largest array."""
    seeds = max((part.seeds for part in sizes.parts), default=0)
    if largest > _MOST_BYTES:
        return f"an array takes {format_bytes(largest)}: XLA addresses less than 2**63 bytes"
    if seeds > _MOST_SEEDS and case.dtype != "float64":
        words = f"{seeds:,} seeds: JAX counts them in int32, up to {_MOST_SEEDS:,}"
        return f"{words}, and in int64 with dtype=float64 only"
    return None


def _no_program(*_: Any) -> Any:
    raise AssertionError("a case without a program is not run")


def _seed_numbers(case: Case, sizes: DerivativeShape) -> int:
    """Return how many numbers the seeds have that a device takes at a time, at all points of a block."""
    a, b = case.axes
    points = 1 if case.batch == "whole" else min(ceil_div(case.points, a), case.block or case.points)
    most = 0
    for part in sizes.parts:
        seeds = ceil_div(part.seeds, b)
        seeds = min(seeds, case.chunk) if isinstance(case.chunk, int) else seeds
        length = part.seeds if sizes.coloring is None else sizes.inputs if part.columns else sizes.outputs
        most = max(most, points * seeds * length)
    return most


def require_room(one: CompiledCase, missing_memory: MissingMemory) -> None:
    """Raise `TooLarge` with the figures where a case needs more than there is, or has no program."""
    if words := missing_memory(one) or one.overflow:
        raise TooLarge(words, one.recorded_needs)


def count_bytes(arrays: Mapping[str, Any]) -> int:
    """Return the bytes of abstract arrays."""
    return sum(math.prod(x.shape) * x.dtype.itemsize for x in arrays.values())


def make_runner(one: CompiledCase) -> tuple[Callable[[], Any], Callable[[Any], Any]]:
    """Return what computes a result, its arguments placed, and what collects it in one array on the host."""
    assert one.program is not None
    if one.plan is not None:
        run: Callable[[], Any] = extensions.load("host_offload").make_offload_runner(one)
        return run, lambda result: result
    arguments = layout.place_inputs(one.case, one.workload, one.program)
    return functools.partial(one.stages.call, *arguments), one.program.collect
