"""The one cache of a process: values that are found once and that many cases of the process need.

Holds sparsity patterns and their colourings, computed references, expected results, and the dispatch latency.
"""

from collections.abc import Callable, Hashable
from typing import Any, TypeVar

Value = TypeVar("Value")

_values: dict[str, dict[Hashable, Any]] = {}


def cached(kind: str, key: Hashable, make: Callable[[], Value], most: int | None = None) -> Value:
    """Return the value of a key, made if it is missing. most: values of this kind to keep, the newest."""
    values = _values.setdefault(kind, {})
    if key not in values:
        value = make()
        while most is not None and len(values) >= most:
            values.pop(next(iter(values)))
        values[key] = value
    found: Value = values[key]
    return found


def keys(kind: str) -> list[Hashable]:
    """Return the keys of a kind, oldest first."""
    return list(_values.get(kind, {}))


def clear(kind: str | None = None) -> None:
    """Forget the values of a kind, or all of them."""
    for each in [kind] if kind else list(_values):
        _values.pop(each, None)
