"""Cases that measure what a machine can do at most and at least, to compare the cases of a study with.

The workload `ceiling` computes them. Knows their sizes and which of them bounds a case; does not know what is
derived from their times.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from scaling.core.case import CEILING, JAX, PEAKS, Case

_TERMS = {"transcendental": 64, "arithmetic": 16, "division": 16}  # of each number: arithmetic, not memory
_OF_NUMBERS = (*_TERMS, "reduction")  # peaks that depend on how wide a number is
_OVER_DEVICES = ("all_reduce", "collective")
_BYTES = {"float32": 4, "float64": 8, "bfloat16": 2}

# For each target (points of a device, k); see workloads/ceiling.py. On a CPU what fits into a cache moves
# many times as fast, and results of 32 MB and more are taken from the system page by page: so copies of 1, 16
# and 128 MB, and a sum over devices of 16 MB. Everything else takes some ten milliseconds. An accelerator of
# 5 TB/s and 1 PFLOP/s needs half a millisecond or more for each, and ten microseconds for a dispatch.
_CPU = {
    "copy": [(4, 2**16), (64, 2**16), (512, 2**16)], "matmul": [(1, 1024)], "transcendental": [(4, 2**16)],
    "arithmetic": [(4, 2**16)], "division": [(4, 2**16)], "reduction": [(64, 2**14)], "transpose": [(4, 512)],
    "all_reduce": [(1, 2**22)], "collective": [(1, 1)], "call": [(1, 1)],
}  # fmt: skip
_ACCELERATOR = _CPU | {
    "copy": [(2**13, 2**16)], "matmul": [(4, 4096)], "transcendental": [(512, 2**16)],
    "arithmetic": [(2**13, 2**16)], "division": [(2**13, 2**16)], "reduction": [(2**15, 2**14)],
    "transpose": [(32, 4096)], "all_reduce": [(1, 2**26)],
}  # fmt: skip


def are_wanted(study: Mapping[str, Any]) -> bool:
    """Return whether a study, or one of its parts, asks for machine peaks."""
    return bool(study.get("ceilings")) or any(map(are_wanted, (study.get("parts") or {}).values()))


def peak_cases(cases: Sequence[Case], platform: str) -> list[Case]:
    """Return the peaks and floors of a platform that bound these cases, each once."""
    found: dict[Case, None] = {}
    for case in sorted(cases, key=lambda case: case.devices):
        alone = case.devices == 1
        for target in (*PEAKS, "collective"):
            if not (alone and target in _OVER_DEVICES):
                found |= dict.fromkeys(_cases_of(target, case, "jit" if alone else "shard_map", platform))
        if case.engine == JAX and (alone or case.api != "jit"):
            found |= dict.fromkeys(_cases_of("call", case, case.api, platform))
    return list(found)


def _cases_of(target: str, bounded: Case, api: str, platform: str) -> list[Case]:
    """Return a target in each of its sizes, on as many devices as the bounded case."""
    (dtype, precision), terms = peak_like(target, bounded), _TERMS.get(target, 1)
    return [
        Case(
            CEILING, target, sizes={"k": k, "terms": terms}, points=points * bounded.devices, mode="value",
            api=api, devices=bounded.devices, dtype=dtype, precision=precision,
        )
        for points, k in (_CPU if platform == "cpu" else _ACCELERATOR)[target]
    ]  # fmt: skip


def peak_like(target: str, case: Case) -> tuple[str, str]:
    """Return the dtype and precision at which a peak bounds a case."""
    if target == "matmul":
        return case.dtype, case.precision
    return "float64" if target in _OF_NUMBERS and case.dtype == "float64" else "float32", "highest"


def peak_work(case: Case) -> int:
    """Return the work of one device in a call of a peak: bytes, operations, exponentials or quotients."""
    points, k, terms = case.points // case.devices, case.sizes["k"], case.sizes["terms"]
    row_bytes = k * _BYTES[case.dtype]
    work_of_point: dict[str | None, int] = {
        "copy": 2 * row_bytes, "matmul": 2 * k**3, "transcendental": k * terms, "division": k * terms,
        "arithmetic": k * (4 * terms - 1), "reduction": k, "transpose": 2 * k * row_bytes,
        "all_reduce": row_bytes,
    }  # fmt: skip
    return points * work_of_point[case.target]
