"""Calibration: the rates of this CPU from its measured peaks and dispatch latencies, never from the time
of a case.

Does not know how a peak is measured (options/machine_peaks.py), nor how times are predicted
(time_model.py).
"""

import dataclasses
import math
from collections.abc import Iterable, Sequence

from scaling.analysis.curves import Timing
from scaling.core.case import DTYPES, PRECISIONS, Refusal
from scaling.options import machine_peaks
from scaling.plan.hardware import Hardware, Level, Rates

_LEAST = 1e-9  # seconds of a step: a measured time may be less than the call that contains it
_TARGETS = {  # rate by dtype -> target of the peak
    "arithmetic": "arithmetic", "divisions": "division", "transcendental": "transcendental",
    "reductions": "reduction",
}  # fmt: skip


def calibrated(hardware: Hardware, timings: Iterable[Timing]) -> Hardware:
    """Return the hardware with measured rates, one set for each number of devices; a `Refusal` where
    there are none.
    """
    peaks = [timing for timing in timings if timing.case.kind in ("ceiling", "floor") and timing.honest]
    last = max(peaks, key=lambda timing: timing.records[-1].started_at or "", default=None)
    if last is None:
        raise Refusal(
            f"hardware={hardware.name} is known by its measured ceilings, and there are none: "
            "`scaling run study=linear` measures some (so does every study with `ceilings: true`); "
            "then hardware.ceilings=results/linear"
        )
    by_devices: dict[int, list[Timing]] = {}
    for timing in peaks:
        if timing.environment == last.environment:
            by_devices.setdefault(timing.case.devices, []).append(timing)
    measured = (_rates(devices, by_devices[devices]) for devices in sorted(by_devices))
    rates = tuple(each for each in measured if each)
    if not rates:
        raise Refusal(
            f"hardware={hardware.name}: no copy beside an empty call was measured; run that study again"
        )
    config = {**hardware.config, "rates": [dataclasses.asdict(each) for each in rates]}
    kind = last.records[0].environment.get("device_kind")
    return dataclasses.replace(hardware, device_kind=kind, rates=rates, config=config)


def _rates(devices: int, timings: Sequence[Timing]) -> Rates | None:
    """Return the rates of one device while `devices` work; None without a measured copy and empty call."""
    speeds: dict[tuple[str | None, str, str], list[tuple[float, float]]] = {}  # -> (work, work per second)
    latencies: dict[tuple[str | None, str], float] = {}  # (target, api) -> seconds
    for timing in timings:
        case = timing.case
        if case.kind == "floor":
            latencies[case.target, case.api] = timing.median
        else:  # without the time of the dispatch
            floor = min((record.floor_seconds or 0.0 for record in timing.records), default=0.0)
            work, took = machine_peaks.peak_work(case), timing.median - min(floor, timing.median / 2)
            key = (case.target, case.dtype, case.precision)
            speeds.setdefault(key, []).append((float(work), work / took))

    def fastest(target: str, dtype: str = "float32", precision: str = "highest") -> float | None:
        return max((speed for _, speed in speeds.get((target, dtype, precision), ())), default=None)

    def fastest_product(dtype: str) -> float | None:
        measured = (fastest("matmul", dtype, precision) for precision in PRECISIONS)
        return max(filter(None, measured), default=None)

    copies = tuple(sorted(speeds.get(("copy", "float32", "highest"), ())))
    calls = {api: seconds for (target, api), seconds in latencies.items() if target == "call"}
    if not copies or not calls:
        return None
    by_dtype = {  # bfloat16 is converted to float32
        rate: {dtype: fastest(target, "float64" if dtype == "float64" else "float32") for dtype in DTYPES}
        for rate, target in _TARGETS.items()
    }
    call = min(calls.values())
    collective = min(
        (seconds for (target, _), seconds in latencies.items() if target == "collective"), default=None
    )
    return Rates(
        devices=devices, bandwidth=copies, **by_dtype,
        products={dtype: dict.fromkeys(PRECISIONS, fastest_product(dtype)) for dtype in DTYPES},
        turned=fastest("transpose") or copies[-1][1], kernel_seconds=0.0, call_seconds=calls | {"": call},
        network=_network(devices, fastest("all_reduce"), collective, call),
    )  # fmt: skip


def _network(devices: int, speed: float | None, collective: float | None, call: float) -> tuple[Level, ...]:
    """Return the cores as one level, with the rates of a ring that would take as long as the measured sum."""
    if devices < 2 or speed is None or collective is None:
        return ()
    steps = 2 * math.ceil(math.log2(devices))
    return (
        Level("switch", None, speed * 2 * (devices - 1) / devices, max(collective - call, _LEAST) / steps),
    )
