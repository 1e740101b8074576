"""Validation: whether the values that a line holds can be those of a record. A line that fails is damaged.

Knows the names and the ranges of values; not the disk, and not what is computed from them.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from scaling.core.case import CEILING, FLOORS, PEAKS

_MOST_INTEGER = 2**63 - 1  # what a 64-bit integer of other programs holds
_MOST = 1e30  # of any other number
_MOST_SECONDS = 1e9  # 30 years
_LEAST_SECONDS = 1e-12  # of a sample
_NUMBERS = (
    "seconds_min",
    "turns",
    "compilations",
    "marked",
    "collectives",
    "colors",
    "kernels",
    "messages",
)  # lists, mappings
_WORDS = ("platform", "device_kind", "setting")  # of an environment
_PARTS = (
    "seconds",
    "low",
    "high",
    "call",
    "compute",
    "communication",
    "waiting",
)  # of what is predicted, in seconds


def is_number(value: Any) -> bool:
    """Return whether a value is a finite number of a plausible size."""
    if isinstance(value, bool):
        return False
    if isinstance(value, int):
        return abs(value) <= _MOST_INTEGER
    return isinstance(value, float) and abs(value) <= _MOST  # which no NaN is


def is_count(value: Any) -> bool:
    """Return whether a value is an integer, zero or more."""
    return type(value) is int and 0 <= value <= _MOST_INTEGER


def check_numbers(name: str, value: Any) -> None:
    """Raise ValueError if any number within a value of JSON is not finite, or of no plausible size."""
    if isinstance(value, list | dict):
        for key, each in value.items() if isinstance(value, dict) else enumerate(value):
            check_numbers(f"{name}.{key}", each)
    elif isinstance(value, int | float) and not isinstance(value, bool) and not is_number(value):
        raise ValueError(
            f"{name} is {value:g}" if isinstance(value, float) else f"{name} is an integer of over 63 bits"
        )


def check_record(values: Mapping[str, Any]) -> None:
    """Raise ValueError if a field of a record has a value that no run writes."""
    for name, value in values.items():
        if name in ("case", "environment", "before", "after"):
            continue
        for each in _inner(value) if name in _NUMBERS else [value]:
            if is_number(each) and each < 0:
                raise ValueError(f"{name} is negative: {each!r}")
        if name.endswith("_seconds") and is_number(value) and value > _MOST_SECONDS:
            raise ValueError(f"{name} is {value!r}, more than {_MOST_SECONDS:g}")
    _check_samples(values)
    _check_shapes(values)
    _check_environment(values["environment"])
    case = values["case"]
    if case.workload == CEILING and (
        case.target not in (*PEAKS, *FLOORS) or not {"k", "terms"} <= case.sizes.keys()
    ):
        raise ValueError(f"a ceiling without a target or a size: {case.target!r}")


def _inner(value: Any) -> Iterable[Any]:
    """Return every value within lists and mappings."""
    if not isinstance(value, list | Mapping):
        return [value]
    return [
        inner for each in (value.values() if isinstance(value, Mapping) else value) for inner in _inner(each)
    ]


def _check_samples(values: Mapping[str, Any]) -> None:
    if values["status"] == "ok" and not values["seconds"]:
        raise ValueError("ok, but without samples")
    if not all(is_number(each) and _LEAST_SECONDS <= each <= _MOST_SECONDS for each in values["seconds"]):
        raise ValueError("a sample that is no positive number of seconds")
    if not all(is_number(each) and each <= _MOST_SECONDS for each in values["seconds_min"]):
        raise ValueError("a sample of seconds_min that is no number of seconds")


def _check_shapes(values: Mapping[str, Any]) -> None:
    """Check what lists and mappings hold."""
    counts = {"turns": values["turns"]} | {
        name: (values[name] or {}).values() for name in ("collectives", "colors")
    }
    counts |= {"marked": [place for places in values["marked"].values() for place in _as_list(places)]}
    for name, held in counts.items():
        if not all(is_count(each) or (each is None and name == "colors") for each in held):
            raise ValueError(f"{name} holds {str(values[name])[:60]}, where counts belong")
    for each in values["compilations"]:
        if (
            not isinstance(each, dict)
            or not is_count(each.get("samples", 0))
            or not all(map(_is_stage, each.items()))
        ):
            raise ValueError(f"compilations holds {str(each)[:60]}")


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [None]


def _is_stage(item: tuple[str, Any]) -> bool:
    """Return whether a field of a compilation is of its type: seconds of a stage, or how many samples were taken."""
    name, value = item
    return name == "samples" or value is None or (is_number(value) and value <= _MOST_SECONDS)


def _check_environment(environment: Mapping[str, Any]) -> None:
    for name in _WORDS:
        if not isinstance(environment.get(name), str | None):
            raise ValueError(f"environment.{name} is {str(environment[name])[:60]}, where a word belongs")


def check_plan(values: Mapping[str, Any]) -> None:
    """Raise ValueError if what is predicted, or the machine it is predicted for, is not as a plan writes it."""
    hardware, predicted = values["environment"]["hardware"], values["predicted"]
    if not isinstance(hardware, dict) or not isinstance(hardware.get("name"), str):
        raise ValueError(f"hardware is {str(hardware)[:60]}")
    if values["status"] == "ok":
        raise ValueError("a plan, and ok: it was not run")
    if not isinstance(values["environment"].get("platform"), str):
        raise ValueError("a plan for no platform")
    if predicted is not None:
        _check_prediction(predicted)
    for name, required in (("kernels", ()), ("messages", ("kind", "bytes", "group"))):
        for each in values[name] or ():
            if (
                not isinstance(each, dict)
                or not all(map(_is_part, each.items()))
                or [k for k in required if each.get(k) is None]
            ):
                raise ValueError(f"{name} holds {str(each)[:60]}")


def _is_part(item: tuple[str, Any]) -> bool:
    """Return whether a field of a kernel or a message is of its type."""
    name, value = item
    return value is None or (isinstance(value, str) if name in ("kind", "library") else is_number(value))


def _check_prediction(predicted: Mapping[str, Any]) -> None:
    plain = all(is_number(predicted.get(name)) and abs(predicted[name]) <= _MOST_SECONDS for name in _PARTS)
    if (
        not plain
        or predicted.get("by") not in ("program", "formula")
        or not isinstance(predicted.get("bound"), str | None)
    ):
        raise ValueError(f"predicted is {str(predicted)[:60]}")
    if not 0 < predicted["low"] <= predicted["seconds"] <= predicted["high"]:
        raise ValueError("a predicted time that is not within its interval")
    draws = predicted.get("draws") or []
    if not isinstance(draws, list) or not all(is_number(each) and each > 0 for each in draws):
        raise ValueError("draws that are no positive numbers")
