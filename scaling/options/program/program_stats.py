"""Combine the operations, memory traffic and collectives of a compiled case, and check the collectives.

Operations are counted in the jaxpr. Memory traffic and collectives are determined from the HLO module.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from scaling.core.case import CEILING, Case
from scaling.core.compile_case import CompiledCase, trace_program
from scaling.options.program import hlo_cost, jaxpr_flops

_COMMUNICATING = ("all_reduce", "collective")  # targets of `ceiling` whose programs contain a collective


@dataclass(frozen=True)
class ProgramWork:
    """The work that each device does to compute one result. A field that is unknown is None.

    Attributes:
        flops: the number of floating-point operations.
        transcendentals: the number of evaluations of transcendental functions.
        hbm_bytes: the bytes that are read from and written to device memory.
        collective_bytes: the bytes of the collective operations.
        collectives: a dict from the opcode of a collective to the number of such instructions.
    """

    flops: float | None = None
    transcendentals: float | None = None
    hbm_bytes: float | None = None
    collective_bytes: int | None = None
    collectives: dict[str, int] | None = None


def measure_work(compiled: CompiledCase, devices: Sequence[Any]) -> tuple[ProgramWork, str | None]:
    """Return the work of a compiled case, and the error message of `unexpected_collectives` or None."""
    if compiled.stages.compiled is None:
        return program_work(compiled, devices, None), None
    cost = hlo_cost.read(compiled.stages.compiled.as_text())
    return program_work(compiled, devices, cost), unexpected_collectives(compiled.case, cost.collectives)


def program_work(
    compiled: CompiledCase, devices: Sequence[Any], cost: hlo_cost.ProgramCost | None
) -> ProgramWork:
    """Return the work of a compiled case.

    Args:
        devices: the devices for which the case is traced, if its jaxpr is not available.
        cost: the cost of the HLO module. If it is None, memory traffic and collectives are unknown.
    """
    operations = jaxpr_flops.count_operations(compiled.stages.jaxpr or trace_program(compiled, devices))
    all_steps = lambda value: None if value is None else value * compiled.steps  # noqa: E731
    flops, transcendentals = all_steps(operations.flops), all_steps(operations.transcendentals)
    if cost is None:
        return ProgramWork(flops, transcendentals)
    hbm_bytes, collective_bytes = all_steps(cost.hbm_bytes), all_steps(cost.collective_bytes)
    return ProgramWork(flops, transcendentals, hbm_bytes, collective_bytes, cost.collectives)


def unexpected_collectives(case: Case, collectives: Mapping[str, int]) -> str | None:
    """Return an error message if a program has unneeded collectives or lacks needed ones, otherwise None.

    Only `split=data` on several devices and some targets of the workload `ceiling` need collectives.
    """
    communicates = any(collectives.values())
    expected = case.split == "data" and case.devices > 1
    if case.workload == CEILING:
        expected = case.target in _COMMUNICATING
    if communicates == expected:
        return None
    verb = "communicates" if communicates else "does not communicate"
    return f"the compiled program {verb}: {dict(collectives)}"
