"""Cache values in memory for all cases of a process, and compute cache keys of functions and closures."""

import functools
import hashlib
import types
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

_EMPTY_CELL = types.CellType()  # equal to the cell of a captured variable that was deleted
_values: dict[str, dict[Hashable, Any]] = {}


def cached(kind: str, key: Hashable, compute: Callable[[], Any], max_values: int | None = None) -> Any:
    """Return the cached value of a key, or compute and cache it. Keep at most `max_values` of each `kind`."""
    values = _values.setdefault(kind, {})
    if key not in values:
        value = compute()
        while max_values is not None and len(values) >= max_values:
            values.pop(next(iter(values)))
        values[key] = value
    return values[key]


def clear(kind: str | None = None) -> None:
    """Remove the cached values of one kind, or of all kinds."""
    for name in [kind] if kind else list(_values):
        _values.pop(name, None)


def fingerprint(value: Any, enclosing: tuple[Any, ...] = ()) -> Hashable:
    """Return a hashable cache key. Functions with equal code and equal captured values have equal keys."""
    for depth, outer in enumerate(enclosing):
        if value is outer:  # a recursive function captures itself
            return "recursive", depth
    inner = functools.partial(fingerprint, enclosing=(*enclosing, value))
    if isinstance(value, tuple | list):
        return (type(value), *map(inner, value))
    if isinstance(value, Mapping):
        return tuple((inner(key), inner(item)) for key, item in value.items())
    if isinstance(value, functools.partial):
        return inner((value.func, value.args, value.keywords))
    if isinstance(value, jax.Array) and jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key):
        return str(value.dtype), inner(jax.random.key_data(value))
    if hasattr(value, "__array__"):
        array = np.ascontiguousarray(value)
        return array.shape, str(array.dtype), hashlib.sha256(array.tobytes()).hexdigest()
    if code := getattr(value, "__code__", None):
        cells = [
            _EMPTY_CELL if cell == _EMPTY_CELL else cell.cell_contents for cell in value.__closure__ or ()
        ]
        bound_to = getattr(value, "__self__", None)  # of a method
        return code, inner((value.__defaults__, value.__kwdefaults__, cells, bound_to))
    try:
        hash(value)
    except TypeError:
        return _Identity(value)
    return value  # type: ignore[no-any-return]


@dataclass(frozen=True, eq=False)
class _Identity:
    """A cache key that compares an object by identity and keeps it alive, so that its id stays unique."""

    value: Any

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Identity) and self.value is other.value

    def __hash__(self) -> int:
        return id(self.value)
