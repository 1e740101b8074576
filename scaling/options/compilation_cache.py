"""Enable JAX's persistent compilation cache, empty or filled, to measure compile times with it."""

import tempfile
from collections.abc import Callable

import jax
from jax.experimental.compilation_cache import compilation_cache

from scaling.core.run_case import CaseEnded
from scaling.core.timing import Stages

_hits: list[str] = []  # the events of all hits of the compilation cache
jax.monitoring.register_event_listener(
    lambda event, **_: _hits.append(event) if event.endswith("/cache_hits") else None
)


def compile_with_cache(state: str, compile_once: Callable[[], Stages]) -> Stages:
    """Compile a program with a new persistent compilation cache, and restore the settings of JAX.

    Raise `CaseEnded` if a warm cache was not hit, or if a cold cache was hit.

    Args:
        state: "cold" for an empty cache, or "warm" for a cache that contains the program to be compiled.
        compile_once: compiles the program. A warm cache is filled by an additional call.
    """
    _hits.clear()
    with tempfile.TemporaryDirectory() as folder:
        settings = {
            "jax_enable_compilation_cache": True,
            "jax_compilation_cache_dir": folder,
            "jax_persistent_cache_min_compile_time_secs": 0.0,
            "jax_persistent_cache_min_entry_size_bytes": -1,
        }
        previous = {name: getattr(jax.config, name) for name in settings}
        try:
            for name, value in settings.items():
                jax.config.update(name, value)
            compilation_cache.reset_cache()
            if state == "warm":
                compile_once()
            jax.clear_caches()  # the in-memory caches of this process
            stages = compile_once()
        finally:
            for name, value in previous.items():
                jax.config.update(name, value)
            compilation_cache.reset_cache()
    if bool(_hits) != (state == "warm"):
        text = "this backend does not store compiled programs in the persistent cache"
        raise CaseEnded("skipped", "not_defined", text)
    return stages
