"""The work of a compiled case: what its program computes, moves and sends."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from scaling.core.case import CEILING, Case
from scaling.core.compile_case import CompiledCase, trace_program
from scaling.options.program import hlo_cost, jaxpr_flops

_COMMUNICATE = ("all_reduce", "collective")  # targets of the ceiling whose programs must send something


@dataclass(frozen=True)
class ProgramWork:
    """The work of one result on each device, as a record has it: what the program computes, moves and sends
    in all its steps."""

    flops: float | None = None
    transcendentals: float | None = None
    hbm_bytes: float | None = None
    collective_bytes: int | None = None
    collectives: dict[str, int] | None = None


def measure_work(one: CompiledCase, devices: Sequence[Any]) -> tuple[ProgramWork, str | None]:
    """Return the work of a compiled case, and why its collectives are not the expected ones, in words, or
    None."""
    if one.stages.compiled is None:
        return program_work(one, devices, None), None
    read = hlo_cost.read(one.stages.compiled.as_text())
    return program_work(one, devices, read), unexpected_collectives(one.case, read.collectives)


def program_work(one: CompiledCase, devices: Sequence[Any], read: hlo_cost.ProgramCost | None) -> ProgramWork:
    """Return operations as traced, and what the compiled program, where there is one, moves and sends."""
    done = jaxpr_flops.count_operations(one.stages.jaxpr or trace_program(one, devices))
    times = lambda value: None if value is None else value * one.steps  # noqa: E731
    work = ProgramWork(times(done.flops), times(done.transcendentals))
    if read is None:
        return work
    moved, sent = times(read.traffic.hbm_bytes), times(read.traffic.collective_bytes)
    return dataclasses.replace(work, hbm_bytes=moved, collective_bytes=sent, collectives=read.collectives)


def unexpected_collectives(case: Case, collectives: Mapping[str, int]) -> str | None:
    """What is wrong with the collectives of a program, in words: a split over points or seeds sends
    nothing."""
    due = (
        case.target in _COMMUNICATE if case.workload == CEILING else case.split == "data" and case.devices > 1
    )
    if any(collectives.values()) == due:
        return None
    return (
        f"the compiled program {'communicates' if not due else 'does not communicate'}: {dict(collectives)}"
    )
