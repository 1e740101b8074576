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
from typing import Any, Protocol

import jax
import jax.numpy as jnp

from scaling.core import extensions, inputs, layout, memory, timing
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
_SUSPECT = (
    2**31
)  # numbers in the seeds of a program without a tracing stage, from which its arrays are looked through


class StepPlan(Protocol):
    """The steps of a case with storage=host: what one step computes, how many seeds it takes, and all steps."""

    @property
    def case(self) -> Case: ...
    @property
    def sizes(self) -> DerivativeShape: ...
    @property
    def seeds(self) -> int | None: ...
    @property
    def steps(self) -> Sequence[Any]: ...


@dataclass(frozen=True)
class CompiledCase:
    """A case as it runs, with what it left open filled in, and its compiled program.

    plan: its steps, with storage=host. overflow: why there is no program, in words; `needs` is then what any
    program of the case needs at least. blocks: how its blocks were found, with chunk=auto, as a record has
    it.
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
        return len(self.plan.steps) if self.plan else 1

    @property
    def stepped(self) -> bool:
        """Whether the program takes the number of its first seed as an argument."""
        return self.plan is not None and self.plan.seeds is not None

    @property
    def recorded_needs(self) -> dict[str, int | None]:
        """The needs as a record has them: without a program only the inputs, and maybe the result, are
        known."""
        if self.program is not None:
            return dict(self.needs)
        return {**self.needs, "temp_bytes": None, "output_bytes": self.needs["output_bytes"] or None}

    @property
    def bytes_while_running(self) -> int | None:
        """Bytes of each device while the program runs: inputs, result and temporaries; of a step, two
        results."""
        return memory.taken(self.needs, 1 if self.plan is None else 2)

    @property
    def host_bytes(self) -> int:
        """Bytes of the host that the case needs as well: with storage=host, all inputs and the result."""
        if self.plan is None:
            return 0
        points, _ = input_structs(self.case, self.workload)
        return _size(points) + self._host_result_bytes()

    @property
    def compulsory_bytes(self) -> int | None:
        """Bytes that each device must move: its inputs read once and its result written once.

        None where the compiler does not tell. With storage=host the per-point inputs and the result are those
        of the whole case; what the points share stays on the device and counts once.
        """
        arguments = self.needs.get("argument_bytes")
        if self.plan is None or arguments is None:
            return memory.taken({**self.needs, "temp_bytes": 0}) if self.needs else None
        (whole, _), (step, _) = (input_structs(case, self.workload) for case in (self.case, self.plan.case))
        moved = (_size(whole) - _size(step)) // self.case.axes[0]
        return arguments + moved + self._host_result_bytes() // self.case.devices

    def _host_result_bytes(self) -> int:
        return int(extensions.load("host_offload").result_bytes(self.case, self.workload, self.sizes))


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
    """Return the shape of the derivative of a case, for which a colouring is detected where its seeds are
    coloured.

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
    """Return the compiled program of a case that fits into memory; raise `TooLarge` with the figures if none
    does.

    sizes: as `settle_shape` returns them, where they are known already.
    """
    sizes = sizes or settle_shape(case, workload, settings.missing_memory)
    if case.chunk == AUTO:
        try_blocks = functools.partial(
            compile_blocks, workload=workload, sizes=sizes, devices=devices, stages=settings.stages
        )
        found: CompiledCase = extensions.load("autochunk").compile_largest(
            case, workload, sizes, try_blocks, settings
        )
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
        if not hasattr(program.function, "trace") and _seed_numbers(case, sizes) > _SUSPECT:
            timing.require_addressable(trace_program(bound, devices))
        compiled = stages(program)
    except OverflowError as error:
        return dataclasses.replace(bound, overflow=f"XLA cannot run it: {' '.join(str(error).split())}")
    needs = memory.needs(compiled.compiled) if compiled.compiled is not None else {}
    return dataclasses.replace(bound, program=program, stages=compiled, needs=needs)


def _lay_out(one: CompiledCase, devices: Sequence[Any], **changes: Any) -> layout.Program:
    case, sizes = (one.plan.case, one.plan.sizes) if one.plan else (one.case, one.sizes)
    return layout.lay_out(
        dataclasses.replace(case, **changes), one.workload, devices, sizes, stepped=one.stepped
    )


def trace_program(one: CompiledCase, devices: Sequence[Any]) -> Any:
    """Return the jaxpr of a program without a tracing stage.

    pmap cannot be traced at all over several processes; a device does the same under shard_map.
    """
    program = _lay_out(one, devices, **({"api": "shard_map"} if one.case.api == "pmap" else {}))
    return jax.make_jaxpr(program.function)(*program.arguments.values())


def lower_bound(case: Case, workload: Workload, sizes: DerivativeShape) -> CompiledCase:
    """Return a case without its program, with the bytes of a device that any program of it needs: its inputs
    and result.

    `overflow` says whether an array, or the number of a seed, is beyond what XLA and JAX can count.
    """
    offloaded = case.storage == "host" and sizes.parts
    plan = extensions.load("host_offload").plan_offload(case, workload, sizes) if offloaded else None
    step, of_step = (case, sizes) if plan is None else (plan.case, plan.sizes)
    points, shared = input_structs(step, workload)
    size = lambda x, first: math.prod(x.shape[first:]) * x.dtype.itemsize  # noqa: E731
    inside = ceil_div(step.points, step.axes[0]) * sum(size(x, 1) for x in points.values())
    inside += sum(size(x, 0) for x in shared.values())
    known = (
        case.seeds != "colored" or sizes.coloring is not None
    )  # a pattern known by hand is as large as the result
    itemsize = jnp.dtype(case.dtype).itemsize
    out = math.prod(result_shape(step, workload, of_step)) * itemsize // case.devices if known else 0
    needs: dict[str, int | None] = {"argument_bytes": inside, "temp_bytes": 0, "output_bytes": out}
    overflow = _overflow(case, sizes, max(inside, out, _seed_numbers(step, of_step) * itemsize))
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
    """Return how many numbers the seeds have that a device takes at a time, at all the points that it takes
    at a time."""
    a, b = case.axes
    points = 1 if case.batch == "whole" else min(ceil_div(case.points, a), case.block or case.points)
    each = []
    for part in sizes.parts:
        seeds = ceil_div(part.seeds, b)
        length = part.seeds if sizes.coloring is None else sizes.inputs if part.columns else sizes.outputs
        each.append(points * (min(seeds, case.chunk) if isinstance(case.chunk, int) else seeds) * length)
    return max(each, default=0)


def require_room(one: CompiledCase, missing_memory: MissingMemory) -> None:
    """Raise `TooLarge` with the figures where a case needs more than there is, or has no program."""
    if words := missing_memory(one) or one.overflow:
        raise TooLarge(words, one.recorded_needs)


def _size(arrays: Mapping[str, Any]) -> int:
    """Return the bytes of abstract arrays."""
    return sum(math.prod(x.shape) * x.dtype.itemsize for x in arrays.values())


def make_runner(one: CompiledCase) -> tuple[Callable[[], Any], Callable[[Any], Any]]:
    """Return what computes a result, its arguments placed, and what collects it in one array on the host."""
    program = one.program
    assert program is not None
    if one.plan is not None:
        make = extensions.load("host_offload").make_offload_runner
        return make(
            one.case, one.workload, one.sizes, one.plan, program, one.stages.call
        ), lambda result: result
    return functools.partial(
        one.stages.call, *inputs.place_inputs(one.case, one.workload, program)
    ), program.collect
