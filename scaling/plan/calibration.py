"""Calculate the `Rates` of a CPU from the times of benchmarks that measure peak rates and latencies.

options/machine_peaks.py chooses the benchmarks. time_model.py predicts run times from the rates.
"""

import dataclasses
import math
from collections import defaultdict
from collections.abc import Iterable, Sequence

from scaling.analysis.timings import Timing
from scaling.core.case import DTYPES, PRECISIONS, Refusal
from scaling.options import machine_peaks
from scaling.plan.hardware import Hardware, Level, Rates

_MIN_LATENCY = 1e-9  # seconds per step; noise can make the measured difference negative
_TARGET_OF_RATE = {  # field of `Rates` -> target of the peak benchmark
    "arithmetic": "arithmetic", "divisions": "division", "transcendental": "transcendental",
    "reductions": "reduction",
}  # fmt: skip


def calibrate(hardware: Hardware, timings: Iterable[Timing], bound_only: bool = True) -> Hardware:
    """Return a copy of the CPU model `hardware` with measured rates for each device count.

    Only timings of the environment that was measured last are used. If `bound_only` is true, timings of
    processes that were not bound to one core per device are ignored. The rates for a device count require
    timings of an array copy and of a call of an empty function. Raise `Refusal` if no device count has both.
    """
    benchmarks = [t for t in timings if t.case.kind in ("ceiling", "floor") and (t.honest or not bound_only)]
    last_timing = max(benchmarks, key=lambda timing: timing.records[-1].started_at or "", default=None)
    if last_timing is None:
        raise Refusal(
            f"hardware={hardware.name} needs measured ceilings, but there are none: "
            "run `scaling run study=linear` (or any study with `ceilings: true`), "
            "and then set hardware.ceilings=results/linear"
        )
    latest = [timing for timing in benchmarks if timing.environment == last_timing.environment]
    device_counts = sorted({timing.case.devices for timing in latest})
    rates = tuple(filter(None, (_measured_rates(devices, latest) for devices in device_counts)))
    if not rates:
        raise Refusal(
            f"hardware={hardware.name} needs the ceilings `copy` and `call`, which were not both measured: "
            "run `scaling run study=linear` again"
        )
    # The measured rates identify the machine, not the folder, which may be an absolute path.
    config = {**hardware.config, "ceilings": None, "rates": list(map(dataclasses.asdict, rates))}
    device_kind = last_timing.records[0].environment.get("device_kind")
    return dataclasses.replace(hardware, device_kind=device_kind, rates=rates, config=config)


def _measured_rates(devices: int, timings: Sequence[Timing]) -> Rates | None:
    """Return the measured rates of one device while `devices` devices compute at the same time.

    Return None if array copies or calls of an empty function were not timed on `devices` devices.
    """
    # (target, dtype) -> list of (work, work per second), for matrix products at any precision
    speeds = defaultdict[tuple[str | None, str], list[tuple[float, float]]](list)
    latencies = defaultdict[str | None, dict[str, float]](dict)  # target -> api -> seconds
    for timing in (timing for timing in timings if timing.case.devices == devices):
        case = timing.case
        if case.kind == "floor":
            latencies[case.target][case.api] = timing.median
            continue
        floor = min((record.floor_seconds or 0.0 for record in timing.records), default=0.0)
        work, seconds = machine_peaks.peak_work(case), timing.median - min(floor, timing.median / 2)
        speeds[case.target, case.dtype].append((float(work), work / seconds))

    def fastest(target: str, dtype: str = "float32") -> float | None:
        return max((speed for _, speed in speeds[target, dtype]), default=None)

    copies, calls = tuple(sorted(speeds["copy", "float32"])), latencies["call"]
    collective_latencies = latencies["collective"].values()
    if not copies or not calls:
        return None
    by_dtype = {  # bfloat16 has the rates of float32, to which it is converted
        rate: {dtype: fastest(target, "float64" if dtype == "float64" else "float32") for dtype in DTYPES}
        for rate, target in _TARGET_OF_RATE.items()
    }
    call_seconds = min(calls.values())
    network: tuple[Level, ...] = ()  # between CPU cores
    if devices > 1 and collective_latencies and (speed := fastest("all_reduce")) is not None:
        steps = 2 * math.ceil(math.log2(devices))
        latency = max(min(collective_latencies) - call_seconds, _MIN_LATENCY) / steps
        network = (Level("switch", None, speed * 2 * (devices - 1) / devices, latency),)
    return Rates(
        devices=devices, bandwidth=copies, **by_dtype,
        products={dtype: dict.fromkeys(PRECISIONS, fastest("matmul", dtype)) for dtype in DTYPES},
        turned=fastest("transpose") or copies[-1][1], kernel_seconds=0.0,
        call_seconds=calls | {"": call_seconds}, network=network,
    )  # fmt: skip
