"""Records of machine peaks with chosen rates."""

from scaling.core.case import Case
from scaling.core.record import Record
from scaling.options import machine_peaks
from tests.support.made_up import environment

CALL, COLLECTIVE = 1e-5, 6e-5  # seconds
SPEEDS = {  # units of work per second of each peak
    "matmul": 5e10, "transcendental": 2e8, "arithmetic": 4e9, "division": 1e9, "reduction": 3e9, "transpose": 6e8,
    "all_reduce": 8e8,
}  # fmt: skip


def ceiling(
    target, k, speed=None, devices=1, seconds=None, digest="made up", started="2026-01-01T00:00:00Z", **fields
):
    """Return the record of a peak with four points per device at this speed, or of a latency of `seconds`."""
    api = fields.pop("api", "jit" if devices == 1 else "shard_map")
    sizes = {"k": k, "terms": 1}
    case = Case(
        "ceiling", target, sizes=sizes, points=4 * devices, mode="value", api=api, devices=devices, **fields
    )
    latency = {} if seconds else {"floor_seconds": CALL}
    duration = seconds or machine_peaks.peak_work(case) / speed + CALL
    record_environment = environment(case, digest) | {"device_kind": f"A processor of {digest}"}
    return Record(case, "ok", record_environment, seconds=[duration] * 9, started_at=started, **latency)


def all_of(devices=1, share=1.0, **fields):
    """Return the records of all peaks on some devices, each at this share of SPEEDS."""
    peaks = [ceiling(target, 2**18, speed * share, devices, **fields) for target, speed in SPEEDS.items()
            if devices > 1 or target != "all_reduce"]  # fmt: skip
    copies = [
        ceiling("copy", k, speed * share, devices, **fields)
        for k, speed in ((2**16, 8e9), (2**18, 4e9), (2**20, 1e9))
    ]
    latencies = {"call": CALL} | ({"collective": COLLECTIVE} if devices > 1 else {})
    return [
        *peaks,
        *copies,
        *(ceiling(target, 1, seconds=s, devices=devices, **fields) for target, s in latencies.items()),
    ]
