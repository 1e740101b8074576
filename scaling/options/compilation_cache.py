"""Enable JAX's persistent compilation cache, empty or filled, to measure compile times with it."""

import contextlib
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

import jax
from jax.experimental.compilation_cache import compilation_cache

_hits: list[str] = []  # the events of all hits of the compilation cache
jax.monitoring.register_event_listener(
    lambda event, **_: _hits.append(event) if event.endswith("/cache_hits") else None
)


class CacheUnavailable(Exception):
    """The error for a persistent cache that is not hit although filled, or is hit although empty."""


@contextlib.contextmanager
def persistent_cache(state: str, compile_once: Callable[[], Any]) -> Iterator[None]:
    """Return a context manager that enables a new persistent compilation cache in a temporary folder.

    On exit, the context manager restores the previous settings. It then raises `CacheUnavailable` if a warm
    cache was not hit, or if a cold cache was hit.

    Args:
        state: "cold" for an empty cache, or "warm" for a cache that contains the program to be compiled.
        compile_once: compiles the program. This function is called only to fill a warm cache.
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
            yield
        finally:
            for name, value in previous.items():
                jax.config.update(name, value)
            compilation_cache.reset_cache()
    if bool(_hits) != (state == "warm"):
        raise CacheUnavailable("this backend does not store compiled programs in the persistent cache")
