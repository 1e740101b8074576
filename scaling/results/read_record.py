"""Parse a line of JSON as a `Record`, and reject newer schemas, wrong types and impossible values."""

import json
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import scaling
from scaling.core.case import CEILING, FLOORS, PEAKS, Refusal, from_dict
from scaling.core.record import REASONS, SCHEMA, STATUSES, Record, is_number

_MAX_SECONDS = 1e9  # 30 years
# Keys of the field `predicted` of a plan with times in seconds.
_PREDICTED_SECONDS = ("seconds", "low", "high", "call", "compute", "communication", "waiting")
_REQUIRED_KEYS = {"kernels": (), "messages": ("kind", "bytes", "group")}  # field of a plan -> its keys


def from_line(line: str, path: Path = Path("the file")) -> Record:
    """Return the record in a line of JSON from the file `path`.

    Raise ValueError if the line is damaged, or `Refusal` if a newer version of this package wrote the record.
    """
    fields = json.loads(line)
    _require(isinstance(fields, dict), "not a JSON object")
    require_known_schema(fields, path)
    _require(fields.get("schema") == SCHEMA, f"schema {fields.get('schema')!r}, this version reads {SCHEMA}")
    for name, value in fields.items():
        if name != "case":  # the data seed and the sizes of a case have no limit
            _check_numbers(name, value)
    key, _ = fields.pop("key", None), fields.pop("kind", None)
    try:
        fields["case"] = from_dict(fields["case"])
        record = Record(**fields)
    except (TypeError, KeyError, AttributeError, Refusal) as error:
        raise ValueError(f"not a record: {error}") from None
    _require(key == record.key, "its key does not belong to its case")
    _check_record(record)
    return record


def require_known_schema(value: Any, path: Path) -> None:
    """Raise `Refusal` if a newer version wrote `value`, the JSON value of a record or study in `path`."""
    schema = value.get("schema") if isinstance(value, dict) else None
    if not isinstance(schema, int | float) or isinstance(schema, bool) or not schema > SCHEMA:
        return
    environment = value.get("environment")
    versions = environment.get("versions") if isinstance(environment, dict) else value.get("versions")
    version = versions.get("ad_scaling") if isinstance(versions, dict) else None
    is_known = isinstance(version, str) and version != scaling.__version__
    needed = f"ad-scaling {version} or newer" if is_known else "the version of ad-scaling that wrote it"
    raise Refusal(
        f"{path} has schema {schema}, ad-scaling {scaling.__version__} reads schema {SCHEMA}: "
        f"install {needed}, or give another folder; nothing was changed"
    )


def _require(condition: bool, text: str) -> None:
    if not condition:
        raise ValueError(text)


def _are_seconds(values: Iterable[Any], least: float = 0.0) -> bool:
    """Return whether all values are numbers of seconds between `least` and 30 years."""
    return all(is_number(value) and least <= value <= _MAX_SECONDS for value in values)


def type_check(hint: Any) -> Callable[[Any], bool]:
    """Return a function that tests whether a JSON value has the type `hint`, without negative numbers."""
    origin, inner = typing.get_origin(hint), [type_check(argument) for argument in typing.get_args(hint)]
    if origin is types.UnionType:
        return lambda value: any(matches(value) for matches in inner)
    if origin is list:
        return lambda value: isinstance(value, list) and all(map(inner[0], value))
    if origin is dict:
        return lambda value: isinstance(value, dict) and all(map(inner[1], value.values()))
    if hint is float:
        return lambda value: is_number(value) and value >= 0
    if hint is int:
        return lambda value: type(value) is int and is_number(value) and value >= 0
    return lambda value: hint is Any or isinstance(value, hint)


_TYPE_CHECKS = {name: type_check(hint) for name, hint in typing.get_type_hints(Record).items()}
_IS_COUNT, _IS_TEXT, _IS_AMOUNT = type_check(int), type_check(str | None), type_check(float | None)


def _check_numbers(name: str, value: Any) -> None:
    if isinstance(value, list | dict):
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            _check_numbers(f"{name}.{key}", item)
    elif isinstance(value, int | float) and not isinstance(value, bool) and not is_number(value):
        text = f"{value:g}" if isinstance(value, float) else "an integer of over 63 bits"
        raise ValueError(f"{name} is {text}")


def _check_record(record: Record) -> None:
    case, environment = record.case, record.environment
    for name, matches in _TYPE_CHECKS.items():
        value = getattr(record, name)
        is_plausible = not name.endswith("_seconds") or _are_seconds([value or 0])
        _require(matches(value) and is_plausible, f"{name} is {value!s:.60}")
    is_known = record.status in STATUSES and record.reason in (None, *REASONS)
    _require(is_known, f"unknown status or reason: {record.status!r}, {record.reason!r}")
    _require(isinstance(environment.get("digest"), str), "no environment digest")
    for name in ("platform", "device_kind", "setting"):
        value = environment.get(name)
        _require(_IS_TEXT(value), f"environment.{name} is {value!s:.60}, not a string")
    is_ceiling = {"k", "terms"} <= case.sizes.keys() and case.target in (*PEAKS, *FLOORS)
    _require(case.workload != CEILING or is_ceiling, f"a ceiling without a target or a size: {case.target!r}")
    _require(record.status != "ok" or bool(record.seconds), "ok, but without samples")
    are_samples = _are_seconds(record.seconds, 1e-12) and _are_seconds(record.seconds_min)
    _require(are_samples, "a sample that is not a positive number of seconds")
    for compilation in record.compilations:
        stages = [value for name, value in compilation.items() if name != "samples" and value is not None]
        is_valid = _are_seconds(stages) and _IS_COUNT(compilation.get("samples", 0))
        _require(is_valid, f"compilations contains {compilation!s:.60}")
    if record.is_prediction:
        _check_plan(record)


def _check_plan(record: Record) -> None:
    hardware = record.environment["hardware"]
    is_named = isinstance(hardware, dict) and isinstance(hardware.get("name"), str)
    _require(is_named, f"hardware is {hardware!s:.60}")
    _require(record.status != "ok", "a plan has the status ok, but it did not run")
    _require(isinstance(record.environment.get("platform"), str), "a plan without a platform")
    if record.predicted is not None:
        _check_prediction(record.predicted)
    for name, required in _REQUIRED_KEYS.items():
        for fields in getattr(record, name) or ():
            is_valid = all(
                _IS_TEXT(value) if key in ("kind", "library") else _IS_AMOUNT(value)
                for key, value in fields.items()
            )
            is_complete = None not in map(fields.get, required)
            _require(is_valid and is_complete, f"{name} contains {fields!s:.60}")


def _check_prediction(predicted: Mapping[str, Any]) -> None:
    are_times = _are_seconds([predicted.get(name) for name in _PREDICTED_SECONDS], -_MAX_SECONDS)
    is_known = predicted.get("by") in ("program", "formula") and _IS_TEXT(predicted.get("bound"))
    _require(are_times and is_known, f"predicted is {predicted!s:.60}")
    is_ordered = 0 < predicted["low"] <= predicted["seconds"] <= predicted["high"]
    _require(is_ordered, "a predicted time outside of its interval")
    draws = predicted.get("draws") or []
    are_positive = isinstance(draws, list) and all(is_number(draw) and draw > 0 for draw in draws)
    _require(are_positive, "draws that are not positive numbers")
