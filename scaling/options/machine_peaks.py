"""Measurements of what the machine can do at most and at least, to compare the cases of a study with.

Knows sizes and what bounds what; the workload `ceiling` knows how it is computed, standing.py what follows.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from scaling.core.case import CEILING, Case
from scaling.study.grid import GridCell

UNITS = {  # of the work of each ceiling
    "copy": "B", "matmul": "FLOP", "transcendental": "", "arithmetic": "FLOP", "division": "", "reduction": "", "transpose": "B",
    "all_reduce": "B",
}  # fmt: skip
_TERMS = {"transcendental": 64, "arithmetic": 16, "division": 16}  # of each number: arithmetic, not memory
_OF_NUMBERS = (*_TERMS, "reduction")  # that depend on how wide a number is
_ALONE = tuple(name for name in UNITS if name != "all_reduce")  # that say something of one device
_BYTES = {"float32": 4, "float64": 8, "bfloat16": 2}

# Of each ceiling: points of a device, and k; see workloads/ceiling.py. On a CPU what fits into a cache moves
# many times as fast,
# and results of 32 MB and more are taken from the system page by page: so copies of 1, 16 and 128 MB, and a
# sum over devices of
# 16 MB: taking pages is not sending. All else takes some ten milliseconds. An accelerator of 5 TB/s and 1
# PFLOP/s needs half a
# millisecond or more for each of its own, beside some ten microseconds of asking.
_CPU = {
    "copy": [(4, 2**16), (64, 2**16), (512, 2**16)], "matmul": [(1, 1024)], "transcendental": [(4, 2**16)],
    "arithmetic": [(4, 2**16)], "division": [(4, 2**16)], "reduction": [(64, 2**14)], "transpose": [(4, 512)],
    "all_reduce": [(1, 2**22)], "collective": [(1, 1)], "call": [(1, 1)],
}  # fmt: skip
_ACCELERATOR = _CPU | {
    "copy": [(2**13, 2**16)], "matmul": [(4, 4096)], "transcendental": [(512, 2**16)], "arithmetic": [(2**13, 2**16)],
    "division": [(2**13, 2**16)], "reduction": [(2**15, 2**14)], "transpose": [(32, 4096)], "all_reduce": [(1, 2**26)],
}  # fmt: skip


def are_wanted(study: Mapping[str, Any]) -> bool:
    """Whether a study, or one that is a part of it, asks for ceilings."""
    return bool(study.get("ceilings")) or any(
        are_wanted(part) for part in (study.get("parts") or {}).values()
    )


def peak_cells(of: Sequence[GridCell], platform: str) -> list[GridCell]:
    """Return the ceilings and floors of the machine for these cases on this platform, each once."""
    made: dict[Case, None] = {}
    for case in sorted((cell.case for cell in of), key=lambda case: case.devices):
        alone = case.devices == 1
        for target in (*_ALONE, *(() if alone else ("all_reduce", "collective"))):
            made |= dict.fromkeys(_cases(target, case, "jit" if alone else "shard_map", platform))
        if case.engine == "jax" and (alone or case.api != "jit"):
            made |= dict.fromkeys(_cases("call", case, case.api, platform))
    return [GridCell(case) for case in made]


def _cases(target: str, beside: Case, api: str, platform: str) -> list[Case]:
    """Return a ceiling in all its sizes, or a floor, on as many devices as a case."""
    (dtype, precision), terms = peak_like(target, beside), _TERMS.get(target, 1)
    return [
        Case(
            CEILING, target, sizes={"k": k, "terms": terms}, points=each * beside.devices, mode="value", api=api,
            devices=beside.devices, dtype=dtype, precision=precision,
        )
        for each, k in (_CPU if platform == "cpu" else _ACCELERATOR)[target]
    ]  # fmt: skip


def peak_like(target: str, case: Case) -> tuple[str, str]:
    """Return the dtype and precision at which a ceiling bounds a case: bytes are bytes, products have many
    speeds.
    """
    if target == "matmul":
        return case.dtype, case.precision
    return "float64" if target in _OF_NUMBERS and case.dtype == "float64" else "float32", "highest"


def peak_work(case: Case) -> int:
    """Return what one device does in a call of a ceiling: bytes moved or sent, operations, exponentials,
    quotients, terms.
    """
    each, k, terms = case.points // case.devices, case.sizes["k"], case.sizes["terms"]
    row = k * _BYTES[case.dtype]
    done: dict[str | None, int] = {
        "copy": 2 * row, "matmul": 2 * k**3, "transcendental": k * terms, "arithmetic": k * (4 * terms - 1),
        "division": k * terms, "reduction": k, "transpose": 2 * k * row, "all_reduce": row,
    }  # fmt: skip
    return each * done[case.target]
