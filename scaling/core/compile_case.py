"""Compiling: the program of a case, made to fit into memory before anything is allocated.

Finds out what the case leaves open on the way: a colouring, and with chunk=auto the blocks. Does not know records, nor clocks
beyond those of the stages.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from scaling.core import inputs, layout, memory, timing
from scaling.core.case import AUTO, Case
from scaling.core.formatting import count_of, format_bytes
from scaling.core.modes import BOTH, TANGENT, ravel
from scaling.core.pattern import Coloring
from scaling.core.shape import DerivativeShape, TooLarge, ceil_div, point_structs, result_shape
from scaling.core.workload import Workload
from scaling.options import autochunk, host_offload
from scaling.options.autochunk import HOST, Blocks
from scaling.options.sparse import sparsity

_MOST_BYTES = 2**63 - 1  # of one array; XLA ends the process beyond
_MOST_SEEDS = 2**31 - 1  # that are counted in int32, as JAX does without float64
_SUSPECT = (
    2**31
)  # numbers at a time in the seeds of a program that cannot be traced apart, from which it is looked through


@dataclass(frozen=True)
class CompiledCase:
    """A case as it runs, with what it left open filled in, and its compiled program. plan: its steps, with storage=host.

    overflow: why there is no program, in words; `needs` is then what any program of the case needs at least.
    """

    case: Case
    sizes: DerivativeShape
    program: layout.Program | None
    stages: timing.Stages
    needs: dict[str, int | None]
    plan: host_offload.OffloadPlan | None = None
    overflow: str | None = None

    @property
    def steps(self) -> int:
        """How often the program runs for one result."""
        return len(self.plan.steps) if self.plan else 1

    @property
    def recorded_needs(self) -> dict[str, int | None]:
        """Return `needs` as a record has them: without a program only the inputs, and maybe the result, are known."""
        if self.program is not None:
            return self.needs
        return self.needs | {"temp_bytes": None, "output_bytes": self.needs["output_bytes"] or None}


MissingMemory = Callable[[CompiledCase], str | None]  # what a program lacks, in words


def detect_coloring(case: Case, workload: Workload) -> Coloring | None:
    """The colouring of a case's Jacobian, where its seeds are to be coloured."""
    if case.seeds != "colored" or not case.ad_mode.has_seeds:
        return None
    how = {BOTH: "both", TANGENT: "columns"}.get(case.ad_mode.seed or "", "rows")
    one = point_structs(case, workload)
    fixed = {name: jnp.ones(x.shape, x.dtype) for name, x in one.items() if name not in workload.names}

    def function(*x: Any) -> Any:
        return workload.function(**fixed, **dict(zip(workload.names, x, strict=True)))

    def gradient(*x: Any) -> Any:
        return ravel(jax.grad(lambda *z: jnp.sum(function(*z)), argnums=tuple(range(len(x))))(*x))

    key = (
        case.workload,
        case.target,
        case.variant,
        case.formulation,
        tuple(case.sizes.items()),
        case.wrt,
        case.dtype,
        case.ad_mode.order == 2,
    )
    found = sparsity.find_coloring(
        key,
        gradient if case.ad_mode.order == 2 else function,
        tuple(one[name] for name in workload.names),
        how,
    )
    sparsity.validate_coloring(found)
    return found


def compile_program(
    case: Case,
    workload: Workload,
    sizes: DerivativeShape,
    devices: list[Any],
    stages: Callable[[layout.Program], timing.Stages],
) -> CompiledCase:
    """The program of a case whose blocks are known, or why it has none. stages: compiles a program."""
    bound = lower_bound(case, workload, sizes)
    if bound.overflow:
        return bound
    plan = bound.plan
    try:
        if plan is None:
            program = layout.lay_out(case, workload, devices, sizes)
        else:
            program = layout.lay_out(plan.case, workload, devices, plan.sizes, stepped=plan.seeds is not None)
        if not hasattr(program.function, "trace") and _seed_numbers(case, sizes) > _SUSPECT:
            timing.require_addressable(trace_program(bound, workload, devices))
        made = stages(program)
    except OverflowError as error:
        return dataclasses.replace(bound, overflow=f"XLA cannot run it: {' '.join(str(error).split())}")
    needs = memory.needs(made.compiled) if made.compiled is not None else {}
    return CompiledCase(case, sizes, program, made, needs, plan)


def trace_program(one: CompiledCase, built: Workload, devices: Sequence[Any]) -> Any:
    """Return the jaxpr of what has no stage of tracing.

    pmap cannot be traced at all over several processes; a device does the same under shard_map.
    """
    twin = one.plan.case if one.plan else one.case
    sizes = one.plan.sizes if one.plan else one.sizes
    twin = dataclasses.replace(twin, api="shard_map") if twin.api == "pmap" else twin
    program = layout.lay_out(
        twin, built, devices, sizes, stepped=one.plan is not None and one.plan.seeds is not None
    )
    return jax.make_jaxpr(program.function)(*program.arguments.values())


def lower_bound(case: Case, workload: Workload, sizes: DerivativeShape) -> CompiledCase:
    """Return a case without its program, with the bytes of a device that any program of it needs: its inputs and result.

    `overflow` says whether an array, or the number of a seed, is beyond what XLA and JAX can count.
    """
    plan = host_offload.plan_offload(case, workload, sizes) if case.storage == HOST and sizes.parts else None
    step, of_step = (case, sizes) if plan is None else (plan.case, plan.sizes)
    points, shared = layout.input_structs(step, workload)
    size = lambda x, first: math.prod(x.shape[first:]) * x.dtype.itemsize  # noqa: E731
    inside = ceil_div(step.points, step.axes[0]) * sum(size(x, 1) for x in points.values())
    inside += sum(size(x, 0) for x in shared.values())
    known = (
        case.seeds != "colored" or sizes.coloring is not None
    )  # a pattern known by hand is as large as the result
    itemsize = jnp.dtype(case.dtype).itemsize
    out = math.prod(result_shape(step, workload, of_step)) * itemsize // case.devices if known else 0
    needs: dict[str, int | None] = {"argument_bytes": inside, "temp_bytes": 0, "output_bytes": out}
    seeds = max((part.seeds for part in sizes.parts), default=0)
    largest = max(inside, out, _seed_numbers(step, of_step) * itemsize)
    overflow = None
    if largest > _MOST_BYTES:
        overflow = f"an array takes {format_bytes(largest)}: XLA addresses less than 2**63 bytes"
    elif seeds > _MOST_SEEDS and case.dtype != "float64":
        overflow = f"{seeds:,} seeds: JAX counts them in int32, up to {_MOST_SEEDS:,}, and in int64 with dtype=float64 only"
    return CompiledCase(case, sizes, None, timing.Stages(_no_program, None), needs, plan, overflow)


def _no_program(*_: Any) -> Any:
    raise AssertionError("a case without a program is not run")


def _seed_numbers(case: Case, sizes: DerivativeShape) -> int:
    """Return how many numbers the seeds have that a device takes at a time, at all the points that it takes at a time."""
    a, b = case.axes
    points = 1 if case.batch == "whole" else min(ceil_div(case.points, a), case.block or case.points)
    each = []
    for part in sizes.parts:
        seeds = ceil_div(part.seeds, b)
        length = part.seeds if sizes.coloring is None else sizes.inputs if part.columns else sizes.outputs
        each.append(points * (min(seeds, case.chunk) if isinstance(case.chunk, int) else seeds) * length)
    return max(each, default=0)


def require_room(one: CompiledCase, too_much: MissingMemory) -> None:
    """Raise `TooLarge` with the figures where a case needs more than there is, or has no program."""
    if words := too_much(one) or one.overflow:
        raise TooLarge(words, one.recorded_needs)


def compile_fitting(
    case: Case,
    workload: Workload,
    sizes: DerivativeShape,
    devices: list[Any],
    stages: Callable[[layout.Program], timing.Stages],
    too_much: MissingMemory,
    known: Blocks | None,
) -> tuple[CompiledCase, dict[str, Any] | None]:
    """The program of a case that fits, and with chunk=auto how its blocks were found; `TooLarge` with the figures if none does.

    too_much: says in words what a program lacks.
    """
    if case.chunk != AUTO:
        if not case.jit:  # what runs operation by operation tells no needs
            require_room(lower_bound(case, workload, sizes), too_much)
        only = compile_program(case, workload, sizes, devices, stages)
        require_room(only, too_much)
        return only, None
    kept: dict[Blocks, CompiledCase] = {}
    words, needs = "", dict[str, int | None]()

    def need(some: Blocks) -> autochunk.MemoryNeed:
        nonlocal words, needs
        one = compile_program(some.of(case), workload, sizes, devices, stages)
        words, needs = too_much(one) or one.overflow or "", one.recorded_needs
        if not words:
            kept[some] = one
        resting = (
            dataclasses.replace(one, needs=one.needs | {"temp_bytes": 0})
            if one.needs.get("temp_bytes")
            else one
        )
        return autochunk.MemoryNeed(
            bytes_while_running(one), not words, bool(words) and too_much(resting) is not None
        )

    found = autochunk.find_blocks(case, workload, sizes, need, known)
    told = found.told(case.memory_limit)
    if found.blocks is None:
        least = (
            f"; the least of {count_of(len(found.probes), 'program')} needs {format_bytes(found.least)}"
            if found.least
            else ""
        )
        raise TooLarge(f"in no block: {words}{least}", needs)
    return kept[found.blocks], told


def bytes_while_running(one: CompiledCase) -> int | None:
    """Bytes of each device while a program runs: what goes in, what comes out and what is between; of a step, two results."""
    return memory.taken(one.needs, 1 if one.plan is None else 2)


def host_bytes(one: CompiledCase, workload: Workload) -> int:
    """Bytes of the host beside it: with storage=host, all inputs and the result."""
    if one.plan is None:
        return 0
    points, _ = layout.input_structs(one.case, workload)
    return _size(points) + host_offload.result_bytes(one.case, workload, one.sizes)


def _size(arrays: Mapping[str, Any]) -> int:
    """Return the bytes of abstract arrays."""
    return sum(math.prod(x.shape) * x.dtype.itemsize for x in arrays.values())


def compulsory_bytes(one: CompiledCase, workload: Workload) -> int | None:
    """Return the bytes that each device must move: its inputs read once and its result written once.

    Return None where the compiler does not tell. With storage=host the per-point inputs and the result are those of the
    whole case; what the points share stays on the device and counts once, not once for each step.
    """
    inside = one.needs.get("argument_bytes")
    if one.plan is None or inside is None:
        return memory.taken(one.needs | {"temp_bytes": 0}) if one.needs else None
    (whole, _), (step, _) = (layout.input_structs(case, workload) for case in (one.case, one.plan.case))
    result = host_offload.result_bytes(one.case, workload, one.sizes) // one.case.devices
    return inside + (_size(whole) - _size(step)) // one.case.axes[0] + result


def make_runner(one: CompiledCase, workload: Workload) -> tuple[Callable[[], Any], Callable[[Any], Any]]:
    """What computes a result, its arguments placed, and what puts that in one array on the host."""
    program = one.program
    assert program is not None
    if one.plan is not None:
        return host_offload.make_offload_runner(
            one.case, workload, one.sizes, one.plan, program, one.stages.call
        ), lambda result: result
    return functools.partial(
        one.stages.call, *inputs.place_inputs(one.case, workload, program)
    ), program.collect
