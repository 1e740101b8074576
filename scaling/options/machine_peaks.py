"""Choose the benchmarks of peak rates (cases of the workload `ceiling`) that a study needs; count their work.

A peak benchmark is a case of the workload `ceiling` (workloads/ceiling.py), such as a copy of an array. The
measured peaks yield lower bounds on the run times of the other cases of the study.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from scaling.core.case import CEILING, COMMUNICATING, JAX, PEAKS, Case

_TERMS = {"transcendental": 64, "arithmetic": 16, "division": 16}  # terms per element, to be compute-bound
_DTYPE_DEPENDENT = (*_TERMS, "reduction")  # targets that are measured in float64 for cases in float64
_BYTES_OF_DTYPE = {"float32": 4, "float64": 8, "bfloat16": 2}

# (points per device, k) of each target; see workloads/ceiling.py. On a CPU, the copy bandwidth depends on
# whether the arrays fit into a cache, and the allocation of results of 32 MB or more causes page faults.
# Therefore copies of 1, 16 and 128 MB are measured, and an all-reduce of 16 MB. The other targets take about
# ten milliseconds. On an accelerator with 5 TB/s and 1 PFLOP/s, each target takes half a millisecond or more,
# compared with a dispatch latency of ten microseconds.
_CPU_SIZES = {
    "copy": [(4, 2**16), (64, 2**16), (512, 2**16)], "matmul": [(1, 1024)], "transcendental": [(4, 2**16)],
    "arithmetic": [(4, 2**16)], "division": [(4, 2**16)], "reduction": [(64, 2**14)], "transpose": [(4, 512)],
    "all_reduce": [(1, 2**22)], "collective": [(1, 1)], "call": [(1, 1)],
}  # fmt: skip
_ACCELERATOR_SIZES = _CPU_SIZES | {
    "copy": [(2**13, 2**16)], "matmul": [(4, 4096)], "transcendental": [(512, 2**16)],
    "arithmetic": [(2**13, 2**16)], "division": [(2**13, 2**16)], "reduction": [(2**15, 2**14)],
    "transpose": [(32, 4096)], "all_reduce": [(1, 2**26)],
}  # fmt: skip


def enables_peaks(study: Mapping[str, Any]) -> bool:
    """Return whether a study, or one of its parts, requests benchmarks of peak rates (`ceilings: true`)."""
    return bool(study.get("ceilings")) or any(map(enables_peaks, (study.get("parts") or {}).values()))


def peak_cases(cases: Sequence[Case], platform: str) -> list[Case]:
    """Return the benchmarks whose measured peak rates give lower bounds on the times of `cases`."""
    peaks: dict[Case, None] = {}
    for case in sorted(cases, key=lambda case: case.devices):
        single_device = case.devices == 1
        api = "jit" if single_device else "shard_map"
        for target in (*PEAKS, "collective"):
            if not (single_device and target in COMMUNICATING):
                peaks |= dict.fromkeys(_cases_of_target(target, case, api, platform))
        # The dispatch latency, which `call` measures, depends on the API.
        if case.engine == JAX and (single_device or case.api != "jit"):
            peaks |= dict.fromkeys(_cases_of_target("call", case, case.api, platform))
    return list(peaks)


def _cases_of_target(target: str, bounded: Case, api: str, platform: str) -> list[Case]:
    (dtype, precision), terms = peak_dtype_and_precision(target, bounded), _TERMS.get(target, 1)
    target_sizes = (_CPU_SIZES if platform == "cpu" else _ACCELERATOR_SIZES)[target]
    return [
        Case(
            CEILING, target, sizes={"k": k, "terms": terms}, points=points * bounded.devices, mode="value",
            api=api, devices=bounded.devices, dtype=dtype, precision=precision,
        )
        for points, k in target_sizes
    ]  # fmt: skip


def peak_dtype_and_precision(target: str, case: Case) -> tuple[str, str]:
    """Return the dtype and the matmul precision of the benchmark `target` that bounds the time of a case."""
    if target == "matmul":
        return case.dtype, case.precision
    return "float64" if target in _DTYPE_DEPENDENT and case.dtype == "float64" else "float32", "highest"


def peak_work(case: Case) -> int:
    """Return the work per device in one call of a benchmark. The target determines the unit.

    "copy", "transpose", "all_reduce"    bytes
    "matmul", "arithmetic"               floating-point operations
    "transcendental", "division"         exponentials, or divisions
    "reduction"                          summed elements
    """
    points, k, terms = case.points // case.devices, case.sizes["k"], case.sizes["terms"]
    row_bytes = k * _BYTES_OF_DTYPE[case.dtype]
    work_per_point: dict[str | None, int] = {
        "copy": 2 * row_bytes, "matmul": 2 * k**3, "transcendental": k * terms, "division": k * terms,
        "arithmetic": k * (4 * terms - 1), "reduction": k, "transpose": 2 * k * row_bytes,
        "all_reduce": row_bytes,
    }  # fmt: skip
    return points * work_per_point[case.target]
