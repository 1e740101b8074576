"""Tell functions apart that are made anew at each call, so that what is known of one can be kept."""

import dataclasses
import functools
import hashlib
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from scaling.core.pytrees import TakesTrees


def fingerprint(value: Any) -> Hashable:
    """Return what tells functions apart that are made anew at each call: their code and what they close
    over."""
    if isinstance(value, tuple | list):
        return (type(value), *map(fingerprint, value))
    if isinstance(value, Mapping):
        return tuple((fingerprint(key), fingerprint(each)) for key, each in value.items())
    if isinstance(value, np.ndarray | np.generic):
        return (
            value.shape,
            str(value.dtype),
            hashlib.sha256(np.ascontiguousarray(value).tobytes()).hexdigest(),
        )
    if isinstance(value, functools.partial):
        return fingerprint((value.func, value.args, value.keywords))
    if isinstance(value, TakesTrees):
        return type(value), *(fingerprint(getattr(value, field.name)) for field in dataclasses.fields(value))
    code = getattr(value, "__code__", None)
    if code is not None:
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
    """An object that is only equal to itself."""

    value: Any

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Identity) and self.value is other.value

    def __hash__(self) -> int:
        return id(self.value)
