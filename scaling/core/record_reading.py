"""Read a record from a line of JSON, and refuse a line that no run writes.

Knows the names and the ranges of values; not the disk, and not what is computed from them.
"""

import json
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import scaling
from scaling.core.case import CEILING, FLOORS, PEAKS, Refusal, from_dict
from scaling.core.record import REASONS, SCHEMA, STATUSES, Record, is_number

_MOST_SECONDS = 1e9  # 30 years
_LEAST_SECONDS = 1e-12  # of a sample
_WORDS = ("platform", "device_kind", "setting")  # of an environment
_SECONDS = ("seconds", "low", "high", "call", "compute", "communication", "waiting")  # of what is predicted
_REQUIRED = {"kernels": (), "messages": ("kind", "bytes", "group")}


class FutureSchema(Exception):
    """A newer version of this package wrote it: with which schema, and which version, where that is known."""

    def __init__(self, schema: float, version: str | None) -> None:
        super().__init__(schema)
        self.schema, self.version = schema, version


def from_line(line: str) -> Record:
    """Return the record of a line; raise ValueError for a damaged one, `FutureSchema` for a newer one."""
    fields = json.loads(line)
    if not isinstance(fields, dict):
        raise ValueError("not a JSON object")
    refuse_future(fields)
    if fields.get("schema") != SCHEMA:
        raise ValueError(f"schema {fields.get('schema')!r}, this version reads {SCHEMA}")
    for name, value in fields.items():
        if name != "case":  # whose seeds and sizes may be of any length
            _check_numbers(name, value)
    key, _ = fields.pop("key", None), fields.pop("kind", None)
    try:
        fields["case"] = from_dict(fields["case"])
        record = Record(**fields)
    except (TypeError, KeyError, AttributeError, Refusal) as error:
        raise ValueError(f"not a record: {error}") from None
    if key != record.key:
        raise ValueError("its key does not belong to its case")
    _check_record(record)
    return record


def refuse_future(value: Any) -> None:
    """Raise `FutureSchema` if a record or a study, read from JSON, has a schema greater than ours."""
    schema = value.get("schema") if isinstance(value, dict) else None
    if not isinstance(schema, int | float) or isinstance(schema, bool) or not schema > SCHEMA:
        return
    environment = value.get("environment")
    versions = environment.get("versions") if isinstance(environment, dict) else value.get("versions")
    version = versions.get("ad_scaling") if isinstance(versions, dict) else None
    known = isinstance(version, str) and version != scaling.__version__
    raise FutureSchema(schema, version if known else None)


def _is_count(value: Any) -> bool:
    return type(value) is int and is_number(value) and value >= 0


def _are_seconds(values: Iterable[Any], least: float = 0.0) -> bool:
    return all(is_number(each) and least <= each <= _MOST_SECONDS for each in values)


def _fits(hint: Any) -> Callable[[Any], bool]:
    """Return what decides whether a value of JSON fits an annotation; no number is negative."""
    origin, inner = typing.get_origin(hint), [_fits(each) for each in typing.get_args(hint)]
    if origin is types.UnionType:
        return lambda value: any(fits(value) for fits in inner)
    if origin is list:
        return lambda value: isinstance(value, list) and all(map(inner[0], value))
    if origin is dict:
        return lambda value: isinstance(value, dict) and all(map(inner[1], value.values()))
    if hint is float:
        return lambda value: is_number(value) and value >= 0
    if hint is int:
        return _is_count
    return lambda value: hint is Any or isinstance(value, hint)


_FITS = {name: _fits(hint) for name, hint in typing.get_type_hints(Record).items()}


def _check_numbers(name: str, value: Any) -> None:
    """Raise ValueError if any number within a value of JSON is not finite, or of no plausible size."""
    if isinstance(value, list | dict):
        for key, each in value.items() if isinstance(value, dict) else enumerate(value):
            _check_numbers(f"{name}.{key}", each)
    elif isinstance(value, int | float) and not isinstance(value, bool) and not is_number(value):
        words = f"{value:g}" if isinstance(value, float) else "an integer of over 63 bits"
        raise ValueError(f"{name} is {words}")


def _check_record(record: Record) -> None:
    """Raise ValueError if a field of a record has a value that no run writes."""
    case, environment = record.case, record.environment
    for name, fits in _FITS.items():
        value = getattr(record, name)
        absurd = name.endswith("_seconds") and not _are_seconds([value or 0])
        if not fits(value) or absurd:
            raise ValueError(f"{name} is {_shown(value)}")
    if record.status not in STATUSES or record.reason not in (None, *REASONS):
        raise ValueError(f"unknown status or reason: {record.status!r}, {record.reason!r}")
    if not isinstance(environment.get("digest"), str):
        raise ValueError("no environment digest")
    for name in _WORDS:
        if not isinstance(environment.get(name), str | None):
            raise ValueError(f"environment.{name} is {_shown(environment[name])}, where a word belongs")
    sized = {"k", "terms"} <= case.sizes.keys()
    if case.workload == CEILING and not (sized and case.target in (*PEAKS, *FLOORS)):
        raise ValueError(f"a ceiling without a target or a size: {case.target!r}")
    if record.status == "ok" and not record.seconds:
        raise ValueError("ok, but without samples")
    if not _are_seconds(record.seconds, _LEAST_SECONDS) or not _are_seconds(record.seconds_min):
        raise ValueError("a sample that is no positive number of seconds")
    for each in record.compilations:
        stages = [value for name, value in each.items() if name != "samples" and value is not None]
        if not _are_seconds(stages) or not _is_count(each.get("samples", 0)):
            raise ValueError(f"compilations holds {_shown(each)}")
    if record.of_plan:
        _check_plan(record)


def _shown(value: Any) -> str:
    return str(value)[:60]


def _check_plan(record: Record) -> None:
    """Raise ValueError if a prediction, or the hardware it is for, is not as a plan writes it."""
    hardware = record.environment["hardware"]
    if not isinstance(hardware, dict) or not isinstance(hardware.get("name"), str):
        raise ValueError(f"hardware is {_shown(hardware)}")
    if record.status == "ok":
        raise ValueError("a plan, and ok: it was not run")
    if not isinstance(record.environment.get("platform"), str):
        raise ValueError("a plan for no platform")
    if record.predicted is not None:
        _check_prediction(record.predicted)
    for name, required in _REQUIRED.items():
        for each in getattr(record, name) or ():
            if None in map(each.get, required) or not all(map(_is_part, each.items())):
                raise ValueError(f"{name} holds {_shown(each)}")


def _is_part(item: tuple[str, Any]) -> bool:
    """Return whether a field of a kernel or a message is of its type."""
    name, value = item
    word = name in ("kind", "library")
    return value is None or (isinstance(value, str) if word else is_number(value) and value >= 0)


def _check_prediction(predicted: Mapping[str, Any]) -> None:
    plain = _are_seconds([predicted.get(name) for name in _SECONDS], -_MOST_SECONDS)
    known = predicted.get("by") in ("program", "formula") and isinstance(predicted.get("bound"), str | None)
    if not plain or not known:
        raise ValueError(f"predicted is {_shown(predicted)}")
    if not 0 < predicted["low"] <= predicted["seconds"] <= predicted["high"]:
        raise ValueError("a predicted time that is not within its interval")
    draws = predicted.get("draws") or []
    if not isinstance(draws, list) or not all(is_number(each) and each > 0 for each in draws):
        raise ValueError("draws that are no positive numbers")
