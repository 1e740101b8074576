"""Compile with the persistent compilation cache of JAX, empty (`cache=cold`) or filled (`cache=warm`)."""

import tempfile
from collections.abc import Callable

import jax
from jax.experimental.compilation_cache import compilation_cache

from scaling.core.compile_case import Stages
from scaling.core.run_case import CaseEnded

_cache_hits: list[str] = []  # the JAX monitoring events of compilation cache hits
jax.monitoring.register_event_listener(
    lambda event, **_: _cache_hits.append(event) if event.endswith("/cache_hits") else None
)


def compile_with_cache(state: str, compile_once: Callable[[], Stages]) -> Stages:
    """Compile a program with JAX's persistent compilation cache, and return its `Stages`.

    `compile_once` compiles the program. The cache is a new temporary folder. If `state` is "cold", the cache
    is empty. If `state` is "warm", an additional compilation fills the cache first. Raise `CaseEnded` if a
    cold compilation reads from the cache, or if a warm compilation does not.
    """
    _cache_hits.clear()
    with tempfile.TemporaryDirectory() as cache_folder:
        cache_settings = {
            "jax_enable_compilation_cache": True,
            "jax_compilation_cache_dir": cache_folder,
            "jax_persistent_cache_min_compile_time_secs": 0.0,
            "jax_persistent_cache_min_entry_size_bytes": -1,
        }
        previous_settings = {name: getattr(jax.config, name) for name in cache_settings}
        try:
            for name, setting in cache_settings.items():
                jax.config.update(name, setting)
            compilation_cache.reset_cache()
            if state == "warm":
                compile_once()
            jax.clear_caches()  # the in-memory caches of this process
            stages = compile_once()
        finally:
            for name, setting in previous_settings.items():
                jax.config.update(name, setting)
            compilation_cache.reset_cache()
    if bool(_cache_hits) != (state == "warm"):
        text = "this backend does not store compiled programs in the persistent cache"
        if state == "cold":
            text = "compiling this program reads a part from the cache that it has just stored there"
        raise CaseEnded("skipped", "not_defined", text)
    return stages
