"""Made-up plans: records with predicted times for fictitious machines."""

from scaling.core.case import Case
from scaling.core.formatting import format_bytes
from scaling.core.record import Record
from tests.support import made_up
from tests.support.records import CASE

KIND = "An accelerator"  # the device kind of tests/support/made_up.py


def predicted(seconds, low=None, high=None, by="program"):
    """Return a predicted time with its interval; all of the time is computation."""
    low, high = low or seconds / 2, high or seconds * 2
    return {
        "seconds": seconds, "low": low, "high": high, "call": 0.0, "compute": seconds, "communication": 0.0, "waiting": 0.0,
        "bound": "memory", "by": by,
    }  # fmt: skip


def around(hardware="mine", kind="A processor", setting="planned"):
    setting = f"{setting} for {hardware}"
    spec = {"name": hardware, "digest": f"of {hardware}"}
    return {"digest": setting, "setting": setting, "platform": "gpu", "device_kind": kind, "hardware": spec}


def plan(
    seconds,
    devices=1,
    hardware="mine",
    kind="A processor",
    setting="planned",
    started="2026-01-01T00:00:00Z",
    **fields,
):
    """Return the record of a planned case; `fields` are fields of the case. If `seconds` is None, it has no prediction."""
    by, low, high = fields.pop("by", "program"), fields.pop("low", None), fields.pop("high", None)
    peak, capacity = fields.pop("peak_bytes", None), fields.pop("capacity_bytes", None)
    prediction = None if seconds is None else predicted(seconds, low, high, by)
    return Record(
        case_of(devices, **fields), "planned", around(hardware, kind, setting), predicted=prediction, started_at=started,
        peak_bytes=peak, capacity_bytes=capacity,
    )  # fmt: skip


def too_large(needs, has=10**9, devices=1, **fields):
    """Return the record of a case that needs more memory than a device has."""
    text = f"needs {format_bytes(needs)}, a device has {format_bytes(has)}"
    return Record(
        case_of(devices, **fields), "skipped", around(), reason="too_large", text=text, peak_bytes=needs, capacity_bytes=has,
        started_at="2026-01-01T00:00:00Z",
    )  # fmt: skip


def case_of(devices=1, **fields):
    """Return the case that tests/support/records.py uses, with other fields."""
    return Case(**CASE | {"devices": devices} | fields)


def plan_environment(case, hardware="far", kind=KIND):
    values = {"name": hardware, "digest": "d" * 12, "libxyz": "1.2"}
    return made_up.environment(case, f"plan of {hardware}", device_kind=kind, hardware=values)


def planned_record(case, seconds, by="program", hardware="far", kind=KIND, **fields):
    """Return the record of a planned case; a tenth of its predicted time is communication, and none is waiting."""
    values = {
        "seconds": seconds, "low": seconds / 1.5, "high": seconds * 1.5, "call": 1e-5, "compute": 0.9 * seconds,
        "communication": 0.1 * seconds, "waiting": 0.0, "bound": "transcendentals", "by": by,
    }  # fmt: skip
    defaults = {
        "started_at": "2026-02-01T00:00:00Z", "flops": 4.01e6, "program_flops": 3.02e9, "compulsory_bytes": 9216,
        "hbm_bytes": 13_060_000, "peak_bytes": 50_000_000, "capacity_bytes": 200_000_000, "predicted": values,
        "messages": [{"kind": "all-reduce", "bytes": 1048576, "group": case.devices, "times": 2}] * 2,
        "kernels": [{"bytes": 4096}],
    }  # fmt: skip
    return Record(case, "planned", plan_environment(case, hardware, kind), **defaults | fields)
