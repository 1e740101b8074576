"""The one cache of a process, for values that many of its cases need, and keys of functions for a cache.

Holds sparsity patterns and their colourings, computed references, expected results, and the dispatch latency.
"""

import functools
import hashlib
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

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


def fingerprint(value: Any) -> Hashable:
    """Return a key that is equal for functions with equal code that close over equal values.

    A workload's functions are made anew for each case. A value that cannot be hashed is equal to itself
    alone.
    """
    if isinstance(value, tuple | list):
        return (type(value), *map(fingerprint, value))
    if isinstance(value, Mapping):
        return tuple((fingerprint(key), fingerprint(each)) for key, each in value.items())
    if isinstance(value, functools.partial):
        return fingerprint((value.func, value.args, value.keywords))
    if hasattr(value, "__array__"):
        array = np.ascontiguousarray(value)
        return array.shape, str(array.dtype), hashlib.sha256(array.tobytes()).hexdigest()
    if code := getattr(value, "__code__", None):
        cells = [cell.cell_contents for cell in value.__closure__ or ()]
        return code, fingerprint((value.__defaults__, value.__kwdefaults__, cells))
    try:
        hash(value)
    except TypeError:
        return _Identity(value)
    same: Hashable = value
    return same


@dataclass(frozen=True, eq=False)
class _Identity:
    """A key of an object that is equal to no other object."""

    value: Any

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Identity) and self.value is other.value

    def __hash__(self) -> int:
        return id(self.value)
