"""Parse a line of JSON as a `Record`, and check its schema version, key, field types, status and numbers."""

import contextlib
import datetime
import functools
import json
import types
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Any

import scaling
from scaling.core.case import Refusal, from_dict
from scaling.core.record import REASONS, SCHEMA, STATUSES, Record, is_number

Check = Callable[[Any], bool]  # tests whether a JSON value is valid
_MIN_SAMPLE_SECONDS = 1e-12


def parse_record(record_line: str, path: Path = Path("the file")) -> Record:
    """Parse a line of JSON, and return it as a `Record`.

    `path` is the file that contains the line, for error messages. Raise ValueError if the line is not a valid
    record, or `Refusal` if a newer version of ad-scaling wrote it.
    """
    fields = json.loads(record_line)
    _require(isinstance(fields, dict), "not a JSON object")
    require_known_schema(fields, path)
    _require(fields.get("schema") == SCHEMA, f"schema {fields.get('schema')!r}, this version reads {SCHEMA}")
    key, _ = fields.pop("key", None), fields.pop("kind", None)
    try:
        record = Record(**fields | {"case": from_dict(fields["case"])})
    except (TypeError, KeyError, AttributeError, Refusal) as error:
        problem = str(error).removeprefix("Record.__init__() ")
        raise ValueError(f"not a record: {problem}") from None
    _require(key == record.key, "its key does not belong to its case")
    _check_record(record)
    return record


def require_known_schema(value: Any, path: Path) -> None:
    """Raise `Refusal` if a newer version of ad-scaling wrote `value`.

    `value` is the content of a record, a plan or study.json, as parsed from JSON. `path` is its file.
    """
    schema = value.get("schema") if isinstance(value, dict) else None
    if not isinstance(schema, int | float) or isinstance(schema, bool) or not schema > SCHEMA:
        return
    raise Refusal(
        f"{path} has schema {schema}, ad-scaling {scaling.__version__} reads schema {SCHEMA}: "
        "install the version of ad-scaling that wrote it, or give another folder; the file was not changed"
    )


def _require(condition: bool, problem: str) -> None:
    if not condition:
        raise ValueError(problem)


def type_check(hint: Any) -> Check:
    """Return a function that tests whether a value has the type `hint`, such as `dict[str, int]`.

    Negative numbers, NaN and infinity fail the test.
    """
    origin, argument_checks = typing.get_origin(hint), list(map(type_check, typing.get_args(hint)))
    if origin is types.UnionType:  # the last type is often None, so it is tested first
        return lambda value: any(is_type(value) for is_type in reversed(argument_checks))
    if origin is tuple and ... not in typing.get_args(hint):  # a tuple of fixed length
        return lambda value: (
            isinstance(value, tuple)
            and len(value) == len(argument_checks)
            and all(is_type(item) for is_type, item in zip(argument_checks, value, strict=True))
        )
    if origin in (list, tuple):
        return lambda value: isinstance(value, origin) and all(map(argument_checks[0], value))
    if origin is dict:
        return lambda value: isinstance(value, dict) and all(map(argument_checks[1], value.values()))
    if hint is float:
        return lambda value: is_number(value) and value >= 0
    if hint is int:
        return lambda value: type(value) is int and is_number(value) and value >= 0
    return (lambda _: True) if hint is Any else lambda value: isinstance(value, hint)


@functools.cache
def _field_checks(dataclass: Any) -> dict[str, Check]:
    return {name: type_check(hint) for name, hint in typing.get_type_hints(dataclass).items()}


def check_types(value: Any) -> Any:
    """Return the dataclass instance `value` if all fields have the types of their annotations.

    Raise ValueError if a field has another type, or is a negative number.
    """
    for name, is_type in _field_checks(value.__class__).items():
        if not is_type(field := getattr(value, name)):
            raise ValueError(f"{name} is {field!s:.60}")
    return value


# The types of the entries of dict fields. An entry is required unless None is a valid value.
_ENTRY_TYPES: dict[str, dict[str, Any]] = {
    "environment": {
        "digest": str, "setting": str | None, "platform": str | None, "device_kind": str | None,
        "versions": dict[str, str | None] | None, "hosts": list[str] | None, "cores": list[int] | None,
        "shape": dict[str, int] | None, "untold": list[str] | None,
    },
    "predicted": {
        "seconds": float, "low": float, "high": float, "call": float, "compute": float,
        "communication": float, "waiting": float, "bound": str | None, "by": str,
        "draws": list[float] | None,
    },
    "messages": {"kind": str, "bytes": float, "group": int},
    "blocks": {
        "block": int | None, "chunk": int | None, "storage": str | None,
        "probes": list[dict[str, Any]] | None,
    },
}  # fmt: skip
# Fields that may contain numbers at any depth.
_NESTED_FIELDS = [name for name, hint in typing.get_type_hints(Record).items() if "Any" in str(hint)]
_ENTRY_CHECKS = {
    name: {entry: type_check(hint) for entry, hint in hints.items()} for name, hints in _ENTRY_TYPES.items()
}


def _check_numbers(name: str, value: Any) -> None:
    if isinstance(value, list | dict):
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            _check_numbers(f"{name}.{key}", item)
    elif isinstance(value, int | float) and not isinstance(value, bool) and not is_number(value):
        raise ValueError(f"{name} is {value!s:.60}")


def check_entries(name: str, value: Any) -> None:
    """Raise ValueError if a dict in a record field lacks a required key, or has a value of a wrong type.

    `name` is the name of the field, such as "environment". `value` is a dict, a list of dicts, or None.
    """
    for entries in value if isinstance(value, list) else [value]:
        checks = {} if entries is None else _ENTRY_CHECKS[name]
        if not all(is_type(entries.get(entry)) for entry, is_type in checks.items()):
            raise ValueError(f"{name} contains {entries!s:.60}")


def _check_record(record: Record) -> None:
    check_types(record)
    for name in _NESTED_FIELDS:
        _check_numbers(name, getattr(record, name))
    for name in _ENTRY_CHECKS:
        check_entries(name, getattr(record, name))
    is_known = record.status in STATUSES and record.reason in (None, *REASONS)
    _require(is_known, f"unknown status or reason: {record.status!r}, {record.reason!r}")
    is_ok, count = record.status == "ok", len(record.seconds)
    _require(not is_ok or count > 0, "ok, but without samples")
    _require(not is_ok or sum(record.turns) <= count, "more samples in its turns than in all")
    _require(all(value >= _MIN_SAMPLE_SECONDS for value in record.seconds), "a sample that is not positive")
    _require(_is_time_or_none(record.started_at), f"started_at is {record.started_at!s:.60}")
    if record.is_prediction:
        _check_plan(record)


def _is_time_or_none(text: str | None) -> bool:
    with contextlib.suppress(ValueError):  # not a valid time, such as month 13
        return text is None or bool(datetime.datetime.fromisoformat(text))
    return False


def _check_plan(record: Record) -> None:
    hardware, predicted = record.environment["hardware"], record.predicted
    is_named = isinstance(hardware, dict) and isinstance(hardware.get("name"), str)
    _require(is_named, f"hardware is {hardware!s:.60}")
    _require(record.environment.get("platform") is not None, "a plan without a platform")
    _require(record.status != "ok", "a plan has the status ok, but it did not run")
    if predicted is not None:
        is_ordered = 0 < predicted["low"] <= predicted["seconds"] <= predicted["high"]
        _require(is_ordered, "a predicted time that is not in its interval")
