"""The work of a compiled case: what its program computes, moves and sends."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from scaling.core.case import CEILING, Case
from scaling.core.compile_case import CompiledCase, trace_program
from scaling.options.program import hlo_cost, jaxpr_flops

_COMMUNICATE = ("all_reduce", "collective")  # targets of the ceiling whose programs must send something


@dataclass(frozen=True)
class ProgramWork:
    """The work of one result on each device, as a record has it: what the program computes, moves and
    sends in all steps.
    """

    flops: float | None = None
    transcendentals: float | None = None
    hbm_bytes: float | None = None
    collective_bytes: int | None = None
    collectives: dict[str, int] | None = None


def measure_work(one: CompiledCase, devices: Sequence[Any]) -> tuple[ProgramWork, str | None]:
    """Return the work of a compiled case, and in words why its collectives are not the expected ones, or
    None.
    """
    if one.stages.compiled is None:
        return program_work(one, devices, None), None
    cost = hlo_cost.read(one.stages.compiled.as_text())
    return program_work(one, devices, cost), unexpected_collectives(one.case, cost.collectives)


def program_work(one: CompiledCase, devices: Sequence[Any], cost: hlo_cost.ProgramCost | None) -> ProgramWork:
    """Return the operations as traced, and what the compiled program, if there is one, moves and sends."""
    done = jaxpr_flops.count_operations(one.stages.jaxpr or trace_program(one, devices))
    times = lambda value: None if value is None else value * one.steps  # noqa: E731
    flops, transcendentals = times(done.flops), times(done.transcendentals)
    if cost is None:
        return ProgramWork(flops, transcendentals)
    moved, sent = times(cost.hbm_bytes), times(cost.collective_bytes)
    return ProgramWork(flops, transcendentals, moved, sent, cost.collectives)


def unexpected_collectives(case: Case, collectives: Mapping[str, int]) -> str | None:
    """Return what is wrong with the collectives of a program, in words: a split over points or seeds sends
    nothing.
    """
    communicates = any(collectives.values())
    expected = case.split == "data" and case.devices > 1
    if case.workload == CEILING:
        expected = case.target in _COMMUNICATE
    if communicates == expected:
        return None
    verb = "communicates" if communicates else "does not communicate"
    return f"the compiled program {verb}: {dict(collectives)}"
