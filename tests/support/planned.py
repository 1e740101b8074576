"""Made-up plans: records with the times that somebody predicted, for machines that there are not."""

from scaling.core.case import Case
from scaling.core.formatting import format_bytes
from scaling.core.record import Record


def predicted(seconds, low=None, high=None, by="program"):
    """A time with its interval; all of it computing."""
    low, high = low or seconds / 2, high or seconds * 2
    return {
        "seconds": seconds, "low": low, "high": high, "call": 0.0, "compute": seconds, "communication": 0.0, "waiting": 0.0,
        "bound": "memory", "by": by,
    }  # fmt: skip


def around(hardware="mine", kind="A processor", setting="planned"):
    """The environment of a plan."""
    setting = f"{setting} for {hardware}"
    told = {"name": hardware, "digest": f"of {hardware}"}
    return {"digest": setting, "setting": setting, "platform": "gpu", "device_kind": kind, "hardware": told}


def plan(
    seconds,
    devices=1,
    hardware="mine",
    kind="A processor",
    setting="planned",
    started="2026-01-01T00:00:00Z",
    **fields,
):
    """The record of a case that was planned; fields are those of the case. Without seconds it could not be predicted."""
    by, low, high = fields.pop("by", "program"), fields.pop("low", None), fields.pop("high", None)
    peak, capacity = fields.pop("peak_bytes", None), fields.pop("capacity_bytes", None)
    told = None if seconds is None else predicted(seconds, low, high, by)
    return Record(
        case_of(devices, **fields), "planned", around(hardware, kind, setting), predicted=told, started_at=started,
        peak_bytes=peak, capacity_bytes=capacity,
    )  # fmt: skip


def too_large(needs, has=10**9, devices=1, **fields):
    """The record of a case that does not fit."""
    text = f"needs {format_bytes(needs)}, a device has {format_bytes(has)}"
    return Record(
        case_of(devices, **fields), "skipped", around(), reason="too_large", text=text, peak_bytes=needs, capacity_bytes=has,
        started_at="2026-01-01T00:00:00Z",
    )  # fmt: skip


def case_of(devices=1, **fields):
    """The case of tests/test_curves.py."""
    case = {
        "workload": "linear",
        "target": "jacobian",
        "sizes": {"p": 5, "o": 3},
        "points": 12,
        "wrt": "W",
        "devices": devices,
    }
    return Case(**case | fields)
