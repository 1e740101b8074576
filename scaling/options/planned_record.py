"""Check the fields that only a record of `scaling plan` has: machine, kernels, messages and prediction."""

from collections.abc import Mapping
from typing import Any

from scaling.core.record import MAX_SECONDS, Record, are_seconds, is_number, require, shorten

_PREDICTED_SECONDS = ("seconds", "low", "high", "call", "compute", "communication", "waiting")
_REQUIRED_FIELDS = {"kernels": (), "messages": ("kind", "bytes", "group")}


def check_plan(record: Record) -> None:
    """Raise ValueError if a record of a plan has a field with an impossible value."""
    hardware = record.environment["hardware"]
    is_named = isinstance(hardware, dict) and isinstance(hardware.get("name"), str)
    require(is_named, f"hardware is {shorten(hardware)}")
    require(record.status != "ok", "a plan has the status ok, but it did not run")
    require(isinstance(record.environment.get("platform"), str), "a plan without a platform")
    if record.predicted is not None:
        _check_prediction(record.predicted)
    for name, required in _REQUIRED_FIELDS.items():
        for fields in getattr(record, name) or ():
            is_valid = None not in map(fields.get, required) and all(map(_is_work_field, fields.items()))
            require(is_valid, f"{name} contains {shorten(fields)}")


def _is_work_field(item: tuple[str, Any]) -> bool:
    name, value = item
    if name in ("kind", "library"):
        return isinstance(value, str | None)
    return value is None or (is_number(value) and value >= 0)


def _check_prediction(predicted: Mapping[str, Any]) -> None:
    are_times = are_seconds([predicted.get(name) for name in _PREDICTED_SECONDS], -MAX_SECONDS)
    is_known = predicted.get("by") in ("program", "formula") and isinstance(
        predicted.get("bound"), str | None
    )
    require(are_times and is_known, f"predicted is {shorten(predicted)}")
    is_ordered = 0 < predicted["low"] <= predicted["seconds"] <= predicted["high"]
    require(is_ordered, "a predicted time outside of its interval")
    draws = predicted.get("draws") or []
    are_positive = isinstance(draws, list) and all(is_number(draw) and draw > 0 for draw in draws)
    require(are_positive, "draws that are not positive numbers")
