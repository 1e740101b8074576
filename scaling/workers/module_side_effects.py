"""Detect whether a user's module changes JAX settings, or replaces functions of JAX, NumPy, or Python.

Such a module changes the measured program, or how it is measured and checked. Other changes, such as to the
working directory, are harmless, because a process runs the cases of one module only.
"""

import builtins
import json
import math
import os
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy

from scaling.core.formatting import list_first

_MODULES = (builtins, json, math, os, time, numpy, numpy.linalg, jax)
_SETTINGS = (  # JAX settings that the case or the launcher sets
    "jax_enable_x64", "jax_platforms", "jax_num_cpu_devices", "jax_disable_jit", "jax_default_device",
    "jax_enable_compilation_cache",
)  # fmt: skip
_FIXES = {
    "jax_enable_x64": "dtype=float64 of a study sets it",
    "jax_platforms": "JAX_PLATFORMS sets it for a whole run",
}
_MAX_LISTED = 3  # maximum number of changes in a description


def watch_for_changes() -> Callable[[], tuple[str, str] | None]:
    """Record the JAX settings and library functions, and return a function that describes later changes.

    The returned function takes no argument. It returns None if nothing has changed, otherwise (description of
    the changes, suggested fix), for example ("changed numpy.abs", "remove that code").
    """
    before = _snapshot()

    def describe_changes() -> tuple[str, str] | None:
        now = _snapshot()
        settings = [name for name in _SETTINGS if now[name] != before[name]]
        functions = [name for name in before if name not in _SETTINGS and now.get(name) is not before[name]]
        changed = [f"{name} from {before[name]!r} to {now[name]!r}" for name in settings] + functions
        if not changed:
            return None
        fixes = " and ".join(_FIXES[name] for name in settings if name in _FIXES)
        fix = f"remove that code: {fixes}" if fixes else "remove that code"
        return f"changed {list_first(changed, _MAX_LISTED)}", fix

    return describe_changes


def _snapshot() -> dict[str, Any]:
    members = [
        (f"{module.__name__}.{name}", value) for module in _MODULES for name, value in vars(module).items()
    ]
    functions = {name: value for name, value in members if callable(value) and not isinstance(value, type)}
    return functions | {name: getattr(jax.config, name, None) for name in _SETTINGS}
