"""Calibration: the rates of a machine at hand from its measured ceilings and floors, and from nothing else: never from a case.

Knows what each ceiling is a rate of; not how it is measured (ceilings.py), nor what is made of it (model.py).
"""

import dataclasses
import math
from collections.abc import Iterable

from scaling.analysis.curves import Timing
from scaling.core.case import DTYPES, PRECISIONS, Refusal
from scaling.options import machine_peaks
from scaling.plan.hardware import Hardware, Level, Rates

_LEAST = 1e-9  # seconds of a step: what is measured may be less than the call around it
_CEILING = {  # by dtype
    "arithmetic": "arithmetic", "divisions": "division", "transcendental": "transcendental", "reductions": "reduction",
}  # fmt: skip


def calibrated(hardware: Hardware, timings: Iterable[Timing]) -> Hardware:
    """The hardware with the rates that its ceilings say, one set for each number of devices; refused where there are none."""
    found = [timing for timing in timings if timing.case.kind in ("ceiling", "floor") and timing.honest]
    last = max(found, key=lambda timing: timing.records[-1].started_at or "", default=None)
    if last is None:
        raise Refusal(
            f"hardware={hardware.name} is known by its measured ceilings, and there are none: "
            "`scaling run study=linear` measures some (so does every study with `ceilings: true`); "
            "then hardware.ceilings=results/linear"
        )
    found = [timing for timing in found if timing.environment == last.environment]
    by_devices = {
        devices: [t for t in found if t.case.devices == devices]
        for devices in sorted({t.case.devices for t in found})
    }
    kind = last.records[0].environment.get("device_kind")
    rates = tuple(made for devices, some in by_devices.items() if (made := _rates(devices, some)))
    if not rates:
        raise Refusal(
            f"hardware={hardware.name}: no copy beside an empty call was measured; run that study again"
        )
    told = {**hardware.told, "rates": [dataclasses.asdict(each) for each in rates]}
    return dataclasses.replace(hardware, device_kind=kind, rates=rates, told=told)


def _rates(devices: int, timings: list[Timing]) -> Rates | None:
    """What so many devices do, at the least known by a copy and an empty call; None where those were not measured."""
    speeds: dict[tuple[str | None, str, str], list[tuple[float, float]]] = {}
    floors: dict[tuple[str | None, str], float] = {}
    for timing in timings:
        case = timing.case
        if case.kind == "floor":
            floors[case.target, case.api] = timing.median
        else:  # less what asking for it took
            floor = min((record.floor_seconds or 0.0 for record in timing.records), default=0.0)
            work, took = machine_peaks.peak_work(case), timing.median - min(floor, timing.median / 2)
            speeds.setdefault((case.target, case.dtype, case.precision), []).append(
                (float(work), work / took)
            )

    def fastest(target: str, dtype: str = "float32", precision: str = "highest") -> float | None:
        return max((speed for _, speed in speeds.get((target, dtype, precision), ())), default=None)

    def plain(target: str) -> dict[str, float | None]:  # bfloat16 is converted on the way
        return {dtype: fastest(target, "float64" if dtype == "float64" else "float32") for dtype in DTYPES}

    copies = tuple(sorted(speeds.get(("copy", "float32", "highest"), ())))
    calls = {api: seconds for (target, api), seconds in floors.items() if target == "call"}
    if not copies or not calls:
        return None
    products = {
        dtype: dict.fromkeys(
            PRECISIONS, max(filter(None, (fastest("matmul", dtype, p) for p in PRECISIONS)), default=None)
        )
        for dtype in DTYPES
    }
    return Rates(
        devices=devices, bandwidth=copies, products=products, **{field: plain(target) for field, target in _CEILING.items()},
        turned=fastest("transpose") or copies[-1][1], kernel_seconds=0.0, call_seconds=calls | {"": min(calls.values())},
        network=_network(devices, fastest("all_reduce"), floors, min(calls.values())),
    )  # fmt: skip


def _network(
    devices: int, speed: float | None, floors: dict[tuple[str | None, str], float], call: float
) -> tuple[Level, ...]:
    """The cores as one level: what a sum over so many took, as if it had gone round a ring."""
    asked = min((seconds for (target, _), seconds in floors.items() if target == "collective"), default=None)
    if devices < 2 or speed is None or asked is None:
        return ()
    steps = 2 * math.ceil(math.log2(devices))
    return (Level("switch", None, speed * 2 * (devices - 1) / devices, max(asked - call, _LEAST) / steps),)
