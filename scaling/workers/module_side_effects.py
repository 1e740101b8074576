"""Detect whether a user's module changes JAX settings that affect measurements, such as jax_enable_x64."""

from collections.abc import Callable

import jax

from scaling.core.environment import PROGRAM_VARIABLES

# JAX setting that the case or the launcher sets, or that changes programs -> what to set instead
_FIXES = {name.lower(): f"the environment variable {name}" for name in PROGRAM_VARIABLES} | {
    "jax_default_matmul_precision": "precision in the study",
    "jax_enable_x64": "dtype=float64 in the study",
    "jax_platforms": "the environment variable JAX_PLATFORMS",
    "jax_num_cpu_devices": "devices=N in the study",
    "jax_disable_jit": "jit=false in the study",
    "jax_default_device": "cluster.platform",
    "jax_enable_compilation_cache": "cache=warm in the study",
}


def watch_for_changes() -> Callable[[], tuple[str, str] | None]:
    """Return a function that detects changes of JAX settings since this call.

    The function returns (description of the changes, advice), or None if no setting has changed.
    """
    settings_before = jax.config.values

    def describe_changes() -> tuple[str, str] | None:
        settings_now = jax.config.values
        changed = [name for name in _FIXES if settings_now.get(name) != settings_before.get(name)]
        if not changed:
            return None
        texts = [f"{name} from {settings_before[name]!r} to {settings_now[name]!r}" for name in changed]
        fixes = " and ".join(_FIXES[name] for name in changed)
        return f"changed {', '.join(texts)}", f"remove that code, and set {fixes} instead"

    return describe_changes
