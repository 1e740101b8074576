"""Class Method: the differentiation method of a case (AD mode, batching, engine, seeds, memory) and its name.

A memory setting consists of the number of seeds and points per block, the storage of the result, and the
rematerialization policy of reverse mode.
"""

from dataclasses import replace
from typing import NamedTuple

from scaling.core.case import AUTO, Case
from scaling.core.formatting import count_of, format_bytes
from scaling.core.modes import MODES

# Fields that trade memory for time without changing the result or the AD mode. Their default is None.
MEMORY_FIELDS = ("chunk", "block", "memory_limit", "storage", "remat")


class Method(NamedTuple):
    """How a derivative is computed (AD mode, batching, seeds, memory setting), regardless of the devices."""

    mode: str
    batch: str
    engine: str = "jax"
    formulation: str | None = None
    jit: bool = True
    chunk: int | str | None = None
    seeds: str = "identity"
    forward: str | None = None
    block: int | None = None
    memory_limit: int | None = None
    storage: str | None = None
    remat: str | None = None

    @property
    def name(self) -> str:
        """Return the method as text, such as 'jacfwd (vmap), 4 seeds at a time'."""
        batched = self.batch != "vmap" or (self.mode != AUTO and MODES[self.mode].has_seeds)
        mode = f"{self.mode} ({self.batch})" if batched else self.mode
        words = [mode if self.engine == "jax" else f"{self.engine} {mode}", self.formulation]
        if (self.engine == "jax") != self.jit:  # JAX is compiled by default, most other engines are not
            words.append("compiled" if self.jit else "eager")
        words.append("" if self.seeds == "identity" else f"{self.seeds} seeds")
        return _join(*words, self.forward and f"forward by {self.forward}", self.memory_setting)

    @property
    def memory_setting(self) -> str:
        """Return the memory setting as text, such as '4 seeds at a time', or '' if it is the default."""
        limit = self.memory_limit and f"within {format_bytes(self.memory_limit)}"
        storage = self.storage and f"kept on the {self.storage}"
        chunk = f"chunk={self.chunk}" if isinstance(self.chunk, str) else _at_a_time(self.chunk, "seed")
        return _join(chunk, _at_a_time(self.block, "point"), limit, storage, self.remat)

    @property
    def short_memory_setting(self) -> str:
        """Return the memory setting abbreviated for a label in a figure, such as '4 seeds, host'."""
        chunk = count_of(self.chunk, "seed") if isinstance(self.chunk, int) else self.chunk
        limit = self.memory_limit and format_bytes(self.memory_limit)
        return _join(chunk, self.block and count_of(self.block, "point"), limit, self.storage, self.remat)

    @property
    def without_memory_setting(self) -> "Method":
        """Return the same method with the default memory setting: all seeds and points at once."""
        return self._replace(chunk=None, block=None, memory_limit=None, storage=None, remat=None)


def _join(*words: str | int | None) -> str:
    return ", ".join(str(word) for word in words if word)


def _at_a_time(count: int | None, noun: str) -> str:
    return f"{count_of(count, noun)} at a time" if count else ""


def without_memory_setting(case: Case) -> Case:
    """Return the same case with the default memory setting: all seeds and points at once."""
    return replace(case, chunk=None, block=None, memory_limit=None, storage=None, remat=None)


def method_of(case: Case) -> Method:
    """Return the differentiation method (AD mode, batching, seeds, memory setting) of a case."""
    return Method(*(getattr(case, name) for name in Method._fields))


def base_method(case: Case) -> Method:
    """Return the differentiation method of a case with the default memory setting."""
    return method_of(case).without_memory_setting


def describe_call(case: Case) -> str:
    """Return the JAX API and the partitioning of a program as text, such as 'shard_map, points split'.

    With split=both the text includes the mesh, or 'the fastest mesh' if the case has none. A case without a
    mesh represents a scaling curve with the fastest mesh on each device count.
    """
    if case.api == "jit":
        return case.api
    mesh = f"mesh {case.mesh}" if case.mesh else "the fastest mesh"
    return _join(
        case.api, f"{case.split} split", case.split == "both" and mesh, case.overlap and "overlapped"
    )
