"""A run in the form in which W&B returns it, so that what is read back equals what was sent.

The client (0.31) and its public API drop or change some JSON values. The functions here do the same first,
before a run is sent and again when it is compared. Does not know what the values mean.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

CURVE, STUDY = "curve", "study"  # types of runs
_INTEGERS = 2**63  # the client reads an integer of this size or larger as a float
RunTable = dict[str, list[Any]]  # columns, data


@dataclass(frozen=True)
class TrackedRun:
    """One W&B run as plain values that W&B keeps. `id` holds a digest of the rows, `series` does not."""

    id: str
    series: str
    name: str
    group: str
    job_type: str
    config: dict[str, Any]
    rows: list[dict[str, Any]]
    summary: dict[str, Any]
    tables: dict[str, RunTable] = field(default_factory=dict)
    images: dict[str, str] = field(default_factory=dict)  # path relative to the results folder -> SHA-256
    lines: tuple[str, ...] = ()  # of the artifact of the records

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", storable_text(self.name))
        object.__setattr__(self, "group", storable_text(self.group))
        object.__setattr__(self, "config", storable_config(self.config))
        object.__setattr__(self, "rows", [storable_row(row) for row in self.rows])
        object.__setattr__(self, "summary", storable_row(self.summary))


def storable_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a config without the values that the client drops or that the public API cannot return.

    The API takes a mapping with a key `value` for its own wrapper and returns that value instead.
    """
    kept = _storable_mapping(config)
    return {name: value for name, value in kept.items() if not (isinstance(value, dict) and "value" in value)}


def storable_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a row or a summary that W&B keeps: as in a config, but None is dropped."""
    return {name: value for name, value in _storable_mapping(row).items() if value is not None}


def _storable_mapping(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return a mapping without empty mappings and without numbers that JSON cannot hold, at any depth."""
    kept = {
        storable_text(str(name)): _storable(value)
        for name, value in fields.items()
        if not _is_infinite(value)
    }
    return {name: value for name, value in kept.items() if value != {}}


def storable_text(text: str) -> str:
    """Return a text that UTF-8 can hold: a surrogate without its partner becomes U+FFFD."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def _storable(value: Any) -> Any:
    if isinstance(value, Mapping):
        return _storable_mapping(value)
    if isinstance(value, list | tuple):
        return [None if _is_infinite(item) else _storable(item) for item in value]
    if isinstance(value, str):
        return storable_text(value)
    return float(value) if isinstance(value, int) and not -_INTEGERS <= value < _INTEGERS else value


def _is_infinite(value: Any) -> bool:
    """Return whether a value is a number that JSON cannot hold: NaN, infinity, an integer beyond any
    float.
    """
    try:
        return isinstance(value, int | float) and not math.isfinite(value)
    except OverflowError:
        return True
