"""What a user's module may not change in a process that measures: JAX's settings, and functions that other
code calls.

A module that sets `jax_enable_x64` would change what is measured, and one that replaces `time.perf_counter`
or `numpy.abs` how it is measured and checked. Other changes, such as of the working directory, of signal
handlers or of environment variables, do no harm, because a process has the cases of one module only.
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

_MODULES = (builtins, json, math, os, time, numpy, numpy.linalg, jax)
_SETTINGS = (  # which a case or the launcher decides
    "jax_enable_x64", "jax_platforms", "jax_num_cpu_devices", "jax_disable_jit", "jax_default_device",
    "jax_enable_compilation_cache",
)  # fmt: skip
_FIXES = {
    "jax_enable_x64": "dtype=float64 of a study sets it",
    "jax_platforms": "JAX_PLATFORMS sets it for a whole run",
}
_MOST = 3  # changes in a text


def watch() -> Callable[[], tuple[str, str] | None]:
    """Return a function that says what was changed since: as words that follow the name of a module, and what
    to do about it.

    It returns None for no change.

    """
    before = _read()

    def changes() -> tuple[str, str] | None:
        now = _read()
        settings = [name for name in _SETTINGS if now[name] != before[name]]
        functions = [name for name in before if name not in _SETTINGS and now.get(name) is not before[name]]
        changed = [f"{name} from {before[name]!r} to {now[name]!r}" for name in settings] + functions
        if not changed:
            return None
        more = f" and {len(changed) - _MOST} more" if len(changed) > _MOST else ""
        fixes = " and ".join(_FIXES[name] for name in settings if name in _FIXES)
        fix = f"leave that out: {fixes}" if fixes else "leave that out"
        return f"changed {', '.join(changed[:_MOST])}{more}", fix

    return changes


def _read() -> dict[str, Any]:
    """Return JAX's settings, and the functions of modules that this package and its workloads share."""
    named = [
        (f"{module.__name__}.{name}", value) for module in _MODULES for name, value in vars(module).items()
    ]
    functions = {name: value for name, value in named if callable(value) and not isinstance(value, type)}
    return functions | {name: getattr(jax.config, name, None) for name in _SETTINGS}
