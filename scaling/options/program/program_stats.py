"""Combine the costs from the jaxpr and from the HLO module of a compiled case, and check its collectives."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from scaling.core.case import CEILING, Case
from scaling.core.compile_case import CompiledCase, trace_program
from scaling.options.program import hlo_cost, jaxpr_flops

_COMMUNICATING = ("all_reduce", "collective")  # targets of `ceiling` whose programs contain a collective


@dataclass(frozen=True)
class ProgramWork:
    """The operations, bytes and collectives of each device for one result. Unknown fields are None."""

    flops: float | None = None
    transcendentals: float | None = None
    hbm_bytes: float | None = None
    collective_bytes: int | None = None
    collectives: dict[str, int] | None = None


def measure_work(compiled: CompiledCase, devices: Sequence[Any]) -> tuple[ProgramWork, str | None]:
    """Return the costs of a compiled case, and an error message or None from `unexpected_collectives`."""
    if compiled.stages.compiled is None:
        return program_work(compiled, devices, None), None
    cost = hlo_cost.read(compiled.stages.compiled.as_text())
    return program_work(compiled, devices, cost), unexpected_collectives(compiled.case, cost.collectives)


def program_work(
    compiled: CompiledCase, devices: Sequence[Any], cost: hlo_cost.ProgramCost | None
) -> ProgramWork:
    """Return the costs of a compiled case. If `cost` is None, memory traffic and collectives are unknown."""
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
