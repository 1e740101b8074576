"""Compiling: the program of a case, made to fit into memory before anything is allocated.

Finds out what the case leaves open on the way: a colouring, and with chunk=auto the blocks. Does not know records, nor clocks
beyond those of the stages.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from scaling import memory
from scaling.case import AUTO, FORWARD, HESSIAN, MIXED, WHOLE, Case
from scaling.measuring import blocks, inputs, measure, sparsity, spmd, streaming
from scaling.measuring.blocks import HOST, Blocks
from scaling.measuring.modes import ravel
from scaling.measuring.shape import Shape, of_one
from scaling.words import counted, in_bytes
from scaling.workload import Workload


@dataclass(frozen=True)
class Compiled:
    """A case as it runs, with what it left open filled in, and its compiled program. plan: its steps, with storage=host."""

    case: Case
    sizes: Shape
    program: spmd.Program
    stages: measure.Stages
    needs: dict[str, int | None]
    plan: streaming.Plan | None = None

    @property
    def steps(self) -> int:
        """How often the program runs for one result."""
        return len(self.plan.steps) if self.plan else 1


class TooLarge(Exception):
    """What a case needs and what there is, in words; needs: of the last program that was tried, as a record has it."""

    def __init__(self, words: str, needs: dict[str, int | None]) -> None:
        super().__init__(words)
        self.needs = needs


def coloring(case: Case, workload: Workload) -> sparsity.Coloring | None:
    """The colouring of a case's Jacobian, where its seeds are to be coloured."""
    if case.seeds != "colored" or case.mode in WHOLE:
        return None
    how = "both" if case.mode in MIXED else "columns" if case.mode in FORWARD + HESSIAN else "rows"
    one = of_one(case, workload)
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
        case.mode in HESSIAN,
    )
    found = sparsity.coloring(
        key, gradient if case.mode in HESSIAN else function, tuple(one[name] for name in workload.names), how
    )
    sparsity.validate(found)
    return found


def compiled(
    case: Case, workload: Workload, sizes: Shape, devices: list[Any], stages: Callable[[spmd.Program], measure.Stages]
) -> Compiled:
    """The program of a case whose blocks are known. stages: compiles a program."""
    plan = streaming.plan(case, workload, sizes) if case.storage == HOST else None
    if plan is None:
        program = spmd.program(case, workload, devices, sizes)
    else:
        program = spmd.program(plan.case, workload, devices, plan.sizes, stepped=plan.seeds is not None)
    made = stages(program)
    needs = memory.needs(made.compiled) if made.compiled is not None else {}
    return Compiled(case, sizes, program, made, needs, plan)


def fitting(
    case: Case,
    workload: Workload,
    sizes: Shape,
    devices: list[Any],
    stages: Callable[[spmd.Program], measure.Stages],
    too_much: Callable[[Compiled], str | None],
    known: Blocks | None,
) -> tuple[Compiled, dict[str, Any] | None]:
    """The program of a case that fits, and with chunk=auto how its blocks were found; `TooLarge` with the figures if none does.

    too_much: says in words what a program lacks.
    """
    if case.chunk != AUTO:
        only = compiled(case, workload, sizes, devices, stages)
        if words := too_much(only):
            raise TooLarge(words, only.needs)
        return only, None
    kept: dict[Blocks, Compiled] = {}
    words, needs = "", dict[str, int | None]()

    def need(some: Blocks) -> blocks.Need:
        nonlocal words, needs
        one = compiled(some.of(case), workload, sizes, devices, stages)
        words, needs = too_much(one) or "", one.needs
        if not words:
            kept[some] = one
        resting = dataclasses.replace(one, needs=one.needs | {"temp_bytes": 0}) if one.needs.get("temp_bytes") else one
        return blocks.Need(taken(one), not words, bool(words) and too_much(resting) is not None)

    found = blocks.find(case, workload, sizes, need, known)
    told = found.told(case.memory_limit)
    if found.blocks is None:
        least = f"; the least of {counted(len(found.probes), 'program')} needs {in_bytes(found.least)}" if found.least else ""
        raise TooLarge(f"in no block: {words}{least}", needs)
    return kept[found.blocks], told


def taken(one: Compiled) -> int | None:
    """Bytes of each device while a program runs: what goes in, what comes out and what is between; of a step, two results."""
    return memory.taken(one.needs, 1 if one.plan is None else 2)


def waiting(one: Compiled, workload: Workload) -> int:
    """Bytes of the host beside it: with storage=host, all inputs and the result."""
    if one.plan is None:
        return 0
    points, _ = spmd.inputs(one.case, workload)
    return _size(points) + streaming.result_bytes(one.case, workload, one.sizes)


def _size(arrays: Mapping[str, Any]) -> int:
    """Return the bytes of abstract arrays."""
    return sum(math.prod(x.shape) * x.dtype.itemsize for x in arrays.values())


def compulsory_bytes(one: Compiled, workload: Workload) -> int | None:
    """Return the bytes that each device must move: its inputs read once and its result written once.

    Return None where the compiler does not tell. With storage=host the per-point inputs and the result are those of the
    whole case; what the points share stays on the device and counts once, not once for each step.
    """
    inside = one.needs.get("argument_bytes")
    if one.plan is None or inside is None:
        return memory.taken(one.needs | {"temp_bytes": 0}) if one.needs else None
    (whole, _), (step, _) = (spmd.inputs(case, workload) for case in (one.case, one.plan.case))
    result = streaming.result_bytes(one.case, workload, one.sizes) // one.case.devices
    return inside + (_size(whole) - _size(step)) // one.case.axes[0] + result


def runner(one: Compiled, workload: Workload) -> tuple[Callable[[], Any], Callable[[Any], Any]]:
    """What computes a result, its arguments placed, and what puts that in one array on the host."""
    if one.plan is not None:
        return streaming.stream(one.case, workload, one.sizes, one.plan, one.program, one.stages.call), lambda result: result
    return functools.partial(one.stages.call, *inputs.place(one.case, workload, one.program)), one.program.collect
