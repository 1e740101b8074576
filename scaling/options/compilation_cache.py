"""JAX's persistent compilation cache, for cases that measure it: empty, or with the program of the case."""

import contextlib
import functools
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

import jax
from jax.experimental.compilation_cache import compilation_cache


class CacheUnavailable(Exception):
    """The cache did not do what the case asks for."""


@contextlib.contextmanager
def persistent_cache(state: str, compile_once: Callable[[], Any]) -> Iterator[None]:
    """Use a new cache within the context. state: "cold" starts empty, "warm" compiles once before."""
    hits = _count_hits()
    hits.clear()
    with tempfile.TemporaryDirectory() as folder:
        settings = {
            "jax_enable_compilation_cache": True,
            "jax_compilation_cache_dir": folder,
            "jax_persistent_cache_min_compile_time_secs": 0.0,
            "jax_persistent_cache_min_entry_size_bytes": -1,
        }
        before = {name: getattr(jax.config, name) for name in settings}
        try:
            for name, value in settings.items():
                jax.config.update(name, value)
            compilation_cache.reset_cache()
            if state == "warm":
                compile_once()
            jax.clear_caches()  # what this process has traced and compiled itself
            yield
        finally:
            for name, value in before.items():
                jax.config.update(name, value)
            compilation_cache.reset_cache()
    if bool(hits) != (state == "warm"):
        raise CacheUnavailable("this backend keeps no compiled programs")


@functools.cache
def _count_hits() -> list[str]:
    """Return the list to which JAX appends every cache hit from now on."""
    hits: list[str] = []
    jax.monitoring.register_event_listener(
        lambda event, **_: hits.append(event) if event.endswith("/cache_hits") else None
    )
    return hits
