"""Detect whether a user's module changes JAX settings that affect measurements, such as jax_enable_x64."""

from collections.abc import Callable

import jax

_FIXES = {  # JAX setting that the case or the launcher sets, or that slows calls -> what to set instead
    "jax_enable_x64": "dtype=float64 in the study",
    "jax_platforms": "the environment variable JAX_PLATFORMS",
    "jax_num_cpu_devices": "devices=N in the study",
    "jax_disable_jit": "jit=false in the study",
    "jax_default_device": "cluster.platform",
    "jax_enable_compilation_cache": "cache=warm in the study",
    "jax_debug_nans": None,
    "jax_debug_infs": None,
}


def watch_for_changes() -> Callable[[], tuple[str, str] | None]:
    """Return a function that detects changes of JAX settings since this call.

    The function returns (description of the changes, advice), or None if no setting has changed.
    """
    settings_before = {name: getattr(jax.config, name) for name in _FIXES}

    def describe_changes() -> tuple[str, str] | None:
        settings_now = {name: getattr(jax.config, name) for name in _FIXES}
        changed = [name for name in _FIXES if settings_now[name] != settings_before[name]]
        if not changed:
            return None
        texts = [f"{name} from {settings_before[name]!r} to {settings_now[name]!r}" for name in changed]
        fixes = " and ".join(fix for name in changed if (fix := _FIXES[name]))
        instead = f", and set {fixes} instead" if fixes else ""
        return f"changed {', '.join(texts)}", f"remove that code{instead}"

    return describe_changes
