"""What is counted of a compiled case, as fields of a record: its work, what it sends, its colours.

Knows records' names; counts.py and kernels.py know how to count.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from scaling.core import compile_case
from scaling.core.case import CEILING, Case
from scaling.core.workload import Workload
from scaling.options.program import hlo_cost, jaxpr_flops

_COMMUNICATE = ("all_reduce", "collective")  # targets of the ceiling whose programs must send something


def program_work(
    one: compile_case.CompiledCase, built: Workload, devices: Sequence[Any], read: hlo_cost.ProgramCost | None
) -> dict[str, Any]:
    """Operations as traced, and what the compiled program, where there is one, moves and sends; of all its steps."""
    done: dict[str, Any] = dataclasses.asdict(
        jaxpr_flops.count_operations(one.stages.jaxpr or compile_case.trace_program(one, built, devices))
    )
    if read is not None:
        done |= {"hbm_bytes": read.traffic.hbm_bytes, "collective_bytes": read.traffic.collective_bytes}
    found = {name: None if value is None else value * one.steps for name, value in done.items()}
    return found | ({} if read is None else {"collectives": read.collectives})


def unexpected_collectives(case: Case, collectives: Mapping[str, int]) -> str | None:
    """What is wrong with the collectives of a program, in words: a split over points or seeds sends nothing."""
    due = (
        case.target in _COMMUNICATE if case.workload == CEILING else case.split == "data" and case.devices > 1
    )
    if any(collectives.values()) == due:
        return None
    return (
        f"the compiled program {'communicates' if not due else 'does not communicate'}: {dict(collectives)}"
    )


def coloring_counts(coloring: Any) -> dict[str, Any]:
    """What a record says of a colouring."""
    if coloring is None:
        return {}
    return {
        "detect_seconds": coloring.detect_seconds, "color_seconds": coloring.color_seconds,
        "colors": {"columns": coloring.column_count, "rows": coloring.row_count}, "nonzeros": int(coloring.pattern.rows.size),
    }  # fmt: skip
