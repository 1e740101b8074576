"""Count the operations, memory traffic and collectives of a compiled case, and check the collectives.

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
    """Return the work of a benchmark case on one device, and an error message for unexpected collectives.

    The message is None if the collectives are as expected, or if the case has no executable.
    """
    executable = compiled.stages.compiled
    cost = None if executable is None else hlo_cost.read(executable.as_text(), counts_work=False)
    unexpected = unexpected_collectives(compiled.case, cost.collectives) if cost else None
    return program_work(compiled, devices, cost), unexpected


def program_work(
    compiled: CompiledCase, devices: Sequence[Any], cost: hlo_cost.ProgramCost | None
) -> ProgramWork:
    """Return the operations, memory traffic and collectives of a benchmark case on one device.

    Args:
        devices: the devices for which the program is traced if `compiled` contains no jaxpr.
        cost: the kernels and collectives of the compiled program. If it is None, the fields for memory
            traffic and collectives are None.
    """
    operations = jaxpr_flops.count_operations(compiled.stages.jaxpr or trace_program(compiled, devices))
    work: dict[str, float | None] = dict(vars(operations))
    if cost is not None:
        work |= {"hbm_bytes": cost.hbm_bytes, "collective_bytes": cost.collective_bytes}
    totals: Any = {name: amount and amount * compiled.steps for name, amount in work.items()}
    return ProgramWork(**totals, collectives=cost.collectives if cost else None)


def unexpected_collectives(case: Case, collectives: Mapping[str, int]) -> str | None:
    """Return an error message if a program has unneeded collectives or lacks needed ones, otherwise None.

    Only cases with `split=data` on several devices and some targets of the workload `ceiling` need
    collectives. `collectives` is a dict from the opcode of a collective to its number of instructions.
    """
    communicates = any(collectives.values())
    is_data_parallel = case.split == "data" and case.devices > 1
    expected = case.target in _COMMUNICATING if case.workload == CEILING else is_data_parallel
    if communicates == expected:
        return None
    verb = "communicates" if communicates else "does not communicate"
    return f"the compiled program {verb}: {dict(collectives)}"
