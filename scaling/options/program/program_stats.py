"""Collect the counted work of a compiled case in record fields, and find unexpected collectives.

Operations are counted in the jaxpr. Memory traffic and collectives are determined from the HLO module.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from scaling.core.case import CEILING, Case
from scaling.core.compile_case import CompiledCase, trace_program
from scaling.options.program import hlo_cost, jaxpr_flops

_COMMUNICATING = ("all_reduce", "collective")  # targets of `ceiling` whose programs contain a collective


def measure_work(compiled: CompiledCase, devices: Sequence[Any]) -> tuple[dict[str, Any], str | None]:
    """Return record fields with the work of a case, and an error message about unexpected collectives.

    The message is None if the collectives are as expected, or if the case has no executable.
    """
    executable = compiled.stages.compiled
    cost = None if executable is None else hlo_cost.read(executable.as_text(), counts_work=False)
    unexpected = unexpected_collectives(compiled.case, cost.collectives) if cost else None
    return program_work(compiled, devices, cost), unexpected


def program_work(
    compiled: CompiledCase, devices: Sequence[Any], cost: hlo_cost.ProgramCost | None
) -> dict[str, Any]:
    """Return record fields with the work that each device does to compute one result.

    The fields are the operations, the memory traffic and the collectives, each None if unknown. The program
    is traced for `devices` if `compiled` contains no jaxpr.
    """
    operations = jaxpr_flops.count_operations(compiled.stages.jaxpr or trace_program(compiled, devices))
    work: dict[str, Any] = {
        **vars(operations), "hbm_bytes": cost and cost.hbm_bytes,
        "collective_bytes": cost and cost.collective_bytes,
    }  # fmt: skip
    totals = {name: amount and amount * compiled.steps for name, amount in work.items()}
    return {**totals, "collectives": cost and cost.collectives}


def unexpected_collectives(case: Case, collectives: Mapping[str, int]) -> str | None:
    """Return an error message if a program has unexpected collectives or lacks required ones, otherwise None.

    Collectives are required only by cases with `split=data` on more than one device, and by some targets of
    the workload `ceiling`. `collectives` maps each kind to its number in the program.
    """
    communicates = any(collectives.values())
    is_data_parallel = case.split == "data" and case.devices > 1
    expected = case.target in _COMMUNICATING if case.workload == CEILING else is_data_parallel
    if communicates == expected:
        return None
    verb = "communicates" if communicates else "does not communicate"
    return f"the compiled program {verb}: {dict(collectives)}"
