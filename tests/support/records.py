"""Records whose times are given by the test."""

import dataclasses
from typing import Any

from scaling.analysis import curves, ranking, sweeps
from scaling.analysis.timings import pool_processes
from scaling.core.case import Case
from scaling.core.record import Record

CASE: dict[str, Any] = {
    "workload": "linear", "target": "jacobian", "sizes": {"p": 5, "o": 3}, "points": 12, "wrt": "W",
}  # fmt: skip
STEADY = 9  # number of samples, enough for every interval


def record(
    devices=1, seconds=1.0, status="ok", digest="one", cores=None, samples=STEADY, work=(1e6, 1e3), **fields
):
    """Return a record with `seconds` in every sample, or with `seconds` as its samples, by default with one core per device."""
    case_fields = {f.name for f in dataclasses.fields(Case)}
    case = (
        CASE | {"devices": devices} | {name: fields.pop(name) for name in list(fields) if name in case_fields}
    )
    cores = list(range(devices)) if cores is None else cores
    environment = {"digest": digest, "platform": "cpu", "cores": cores}
    times = [seconds] * samples if isinstance(seconds, float) else list(seconds)
    flops, compulsory_bytes = work[0], int(work[1]) if work[1] and "argument_bytes" not in fields else None
    return Record(
        case=Case(**case), status=status, environment=environment, seconds=times if status == "ok" else [], flops=flops,
        **{"compulsory_bytes": compulsory_bytes} | fields,
    )  # fmt: skip


def only(items):
    (item,) = items
    return item


def weak(work=((1e6, 1e3),) * 3, **fields):
    rows = zip((1, 2, 4), (8.0, 10.0, 16.0), work, strict=True)
    return [
        record(devices, seconds, points=6 * devices, work=per_device, **fields)
        for devices, seconds, per_device in rows
    ]


def processes(*rows, **fields):
    """Return the records of rows (mode, seconds), with three processes each."""
    return [
        record(seconds=s, mode=m, replicate=i, **{"turns": [STEADY]} | fields)
        for m, s in rows
        for i in range(3)
    ]


def curves_of(records, kinds=("strong",)):
    return curves.scaling_curves(pool_processes(records), kinds)[0]


def weak_refusals(records, kinds=("weak",)):
    return curves.scaling_curves(pool_processes(records), kinds)[1]


def rank(records):
    """Return the fastest method of each problem on each number of devices."""
    return ranking.fastest_methods(pool_processes(records))


def sweeps_of(records):
    return sweeps.size_sweeps(pool_processes(records))
