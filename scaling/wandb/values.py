"""Values as W&B keeps them, so that what is read back equals what was sent.

The client (0.31) and its public API drop or change some JSON values. They are dropped or changed here first,
before a run is sent and again when it is compared. Does not know what the values mean.
"""

import math
from collections.abc import Mapping
from typing import Any

_INTEGERS = 2**63  # the client reads an integer of this size or larger as a float


def storable_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a config without what the client drops and what the public API cannot return.

    The API takes a mapping with a key `value` for its own wrapper and returns that value instead.
    """
    kept = storable(config)
    return {name: value for name, value in kept.items() if not (isinstance(value, dict) and "value" in value)}


def storable_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a row or a summary that W&B keeps: as in a config, but None is not kept."""
    return {name: value for name, value in storable(row).items() if value is not None}


def storable(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return a mapping without empty mappings and without numbers that JSON cannot hold, at any depth."""
    kept = {storable_text(str(name)): _storable(value) for name, value in fields.items() if not _lost(value)}
    return {name: value for name, value in kept.items() if value != {}}


def storable_text(text: str) -> str:
    """Return a text that UTF-8 can hold: a surrogate without its partner becomes U+FFFD."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def _storable(value: Any) -> Any:
    if isinstance(value, Mapping):
        return storable(value)
    if isinstance(value, list | tuple):
        return [None if _lost(each) else _storable(each) for each in value]
    if isinstance(value, str):
        return storable_text(value)
    if isinstance(value, int) and not -_INTEGERS <= value < _INTEGERS:
        return float(value)
    return value


def _lost(value: Any) -> bool:
    """Return whether a value is a number that JSON cannot hold."""
    if not isinstance(value, int | float):
        return False
    try:
        return not math.isfinite(value)
    except OverflowError:  # an integer larger than any float
        return True
