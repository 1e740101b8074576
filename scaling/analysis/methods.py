"""Ways: how a derivative is taken, in a few fields and in words: the way to it, the setting of its memory, how it is cut.

Knows cases; not what was measured of them.
"""

from typing import Any, NamedTuple

from scaling.core.case import Case
from scaling.core.formatting import count_of, format_bytes
from scaling.core.modes import MODES

# What trades memory for time, and changes neither the result nor the way to it.
SETTINGS = ("chunk", "block", "memory_limit", "storage", "remat")
AT_ONCE: dict[str, Any] = dict.fromkeys(SETTINGS)  # nothing is saved


class Method(NamedTuple):
    """How a derivative is taken, apart from where: what the lines of a figure differ in."""

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
        """In words; modes that return the derivative themselves take the batch as they like."""
        mode = self.mode if not MODES[self.mode].has_seeds and self.batch == "vmap" else f"{self.mode} ({self.batch})"
        words = [mode if self.engine == "jax" else f"{self.engine} {mode}", self.formulation]
        if (self.engine == "jax") != self.jit:  # JAX compiles unless told not to, most peers when told to
            words.append("compiled" if self.jit else "eager")
        words += ["" if self.seeds == "identity" else f"{self.seeds} seeds", self.forward and f"forward by {self.forward}"]
        return ", ".join(word for word in (*words, self.setting) if word)

    @property
    def setting(self) -> str:
        """What trades memory for time, in words; nothing where all is taken at once."""
        seeds = f"chunk={self.chunk}" if isinstance(self.chunk, str) else f"{count_of(self.chunk or 0, 'seed')} at a time"
        words = {
            "chunk": self.chunk and seeds,
            "block": self.block and f"{count_of(self.block, 'point')} at a time",
            "memory_limit": self.memory_limit and f"within {format_bytes(self.memory_limit)}",
            "storage": self.storage and f"kept on the {self.storage}",
            "remat": self.remat,
        }
        return ", ".join(str(words[name]) for name in SETTINGS if words[name])

    @property
    def brief(self) -> str:
        """The same in so few words that they fit beside a point of a figure."""
        words = {
            "chunk": count_of(self.chunk, "seed") if isinstance(self.chunk, int) else self.chunk,
            "block": self.block and count_of(self.block, "point"),
            "memory_limit": self.memory_limit and format_bytes(self.memory_limit),
            "storage": self.storage,
            "remat": self.remat,
        }
        return ", ".join(str(words[name]) for name in SETTINGS if words[name])

    @property
    def plain(self) -> "Method":
        """The same, whatever its setting."""
        return self._replace(**AT_ONCE)


def method_of(case: Case) -> Method:
    return Method(*(getattr(case, name) for name in Method._fields))


def describe_split(case: Case) -> str:
    """How a case is cut over devices, in words; a curve over devices has no mesh of its own, but the fastest on each number."""
    if case.api == "jit":
        return ""
    words = [f"{case.split} split"]
    if case.split == "both":
        words.append(f"mesh {case.mesh}" if case.mesh else "the fastest mesh")
    return ", ".join([*words, *(["overlapped"] if case.overlap else [])])


def describe_call(case: Case) -> str:
    """How a mode is called and cut, in words."""
    return ", ".join(word for word in (case.api, describe_split(case)) if word)
