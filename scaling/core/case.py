"""A case: one cell of a study, as a frozen value, with the values that each field may take.

Knows the vocabulary and nothing else: not JAX, not the workloads, not the disk.
"""

import dataclasses
import difflib
import functools
import hashlib
import json
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from scaling.core.formatting import format_bytes
from scaling.core.modes import MODES, Mode
from scaling.core.reductions import REDUCTIONS

JAX = "jax"  # the engine of this package; others are peers
# Targets of every function of one number: its Hessian, and its Hessian times the point itself.
SECOND = ("hessian", "hvp")
BATCHES = ("vmap", "whole")
SPLITS = ("points", "seeds", "both", "data")  # data: one function, a sum over the points of all devices
APIS = ("jit", "shard_map", "pmap")
DTYPES = ("float32", "float64", "bfloat16")
PRECISIONS = ("highest", "high", "default")
SEEDS = ("identity", "colored")
AUTO = "auto"  # a chunk that is found by compiling
STORAGES = ("device", "host")
# Policies of jax.checkpoint.
REMATS = (
    "nothing_saveable",
    "dots_saveable",
    "dots_with_no_batch_dims_saveable",
    "everything_saveable",
)
# Of the persistent compilation cache when the case compiles: empty, or holding its program.
CACHES = ("cold", "warm")
CEILING = "ceiling"  # the workload that measures the most that the machine can do
PEAKS = {  # its targets that bound a program from above, with the unit of their work
    "copy": "B", "matmul": "FLOP", "transcendental": "", "arithmetic": "FLOP", "division": "", "reduction": "",
    "transpose": "B", "all_reduce": "B",
}  # fmt: skip
FLOORS = ("call", "collective")  # its targets that measure the least time of a call
LARGEST = 10**15  # of any count
# The article's names for a mode and its batching; the plain names keep the grid's own `batch`.
ALIASES = {"vmap_jacfwd": ("jacfwd", "vmap"), "vmap_jacrev": ("jacrev", "vmap")}


class Refusal(ValueError):
    """Bad input, described in one line: the value, the alternatives, the fix."""


def unknown_name(what: str, value: Any, known: Iterable[str]) -> Refusal:
    """Return the refusal of a name that is not in a closed list, with the nearest one that is."""
    names = [str(name) for name in known]
    close = difflib.get_close_matches(str(value), names, n=1)
    hint = f"; did you mean {close[0]!r}?" if close else ""
    return Refusal(f"unknown {what} {value!r}: choose from {', '.join(names)}{hint}")


def _field(view: str, default: Any) -> Any:
    """Declare a field of a case that belongs to a view, see `VIEWS`."""
    return field(default=default, metadata={"view": view})


@dataclass(frozen=True)
class Case:
    """One cell of a study.

    Fields are flat, as on disk; each belongs to one of the views `problem`, `method`, `layout` and `memory`.
    `None` in `target`, `variant`, `wrt` and `formulation` means the workload's own first choice.
    """

    workload: str = field(metadata={"view": "problem"})
    target: str | None = _field("problem", None)
    variant: str | None = _field("problem", None)  # of the function
    sizes: Mapping[str, int] = field(default_factory=dict, metadata={"view": "problem"})
    points: int = _field("problem", 1)
    wrt: str | None = _field("problem", None)  # input names joined by "+"
    mode: str = _field("method", "jacfwd")
    batch: str = _field("method", "vmap")
    split: str = _field("layout", "points")
    api: str = _field("layout", "shard_map")
    devices: int = _field("layout", 1)
    dtype: str = _field("problem", "float32")
    precision: str = _field("problem", "highest")
    jit: bool = _field("method", True)
    data_seed: int = _field("problem", 0)
    # Another system that differentiates, a peer.
    engine: str = _field("method", "jax")
    # Seeds at a time: None takes all at once, "auto" the largest blocks that fit.
    chunk: int | str | None = _field("memory", None)
    formulation: str | None = _field("method", None)  # how the same function is written
    # The persistent compilation cache: None compiles without one.
    cache: str | None = _field("method", None)
    seeds: str = _field("method", "identity")  # or "colored": compressed by a colouring
    # What is computed from each point's Jacobian: None is the workload's own reduction.
    reduce: str | None = _field("problem", None)
    block: int | None = _field("memory", None)  # points at a time on each device; None takes all at once
    memory_limit: int | None = _field("memory", None)  # bytes of each device; None is all of its memory
    # Of per-point inputs and the result; from the host they are sent block by block.
    storage: str | None = _field("memory", None)
    # What reverse mode stores, a policy of jax.checkpoint: None is JAX's own choice.
    remat: str | None = _field("method", None)
    # With mode=mixed: the inputs to differentiate forward, joined by "+".
    forward: str | None = _field("method", None)
    # With split=both: devices over points x devices over seeds, such as 2x4.
    mesh: str | None = _field("layout", None)
    # With split=data: reduce each part of the gradient as soon as it is computed.
    overlap: bool = _field("layout", False)

    def __post_init__(self) -> None:
        for name, known in (CHOICES | OPTIONS).items():
            value = getattr(self, name)
            if value not in tuple(known) and (value is not None or name in CHOICES):
                raise unknown_name(name, value, known)
        for name in ("workload", "target", "variant", "wrt", "engine", "formulation", "forward"):
            value = getattr(self, name)
            optional = name not in ("workload", "engine")
            if not (isinstance(value, str) and value) and not (optional and value is None):
                raise Refusal(f"{name} must be a name, not {value!r}")
        for name in ("jit", "overlap"):
            if not isinstance(getattr(self, name), bool):
                raise Refusal(f"{name} must be true or false, not {getattr(self, name)!r}")
        if not isinstance(self.sizes, Mapping):
            raise Refusal(f"sizes must be a mapping such as {{p: 64}}, not {self.sizes!r}")
        _require_integer("points", self.points, 1)
        _require_integer("devices", self.devices, 1)
        _require_integer("data_seed", self.data_seed, 0)
        for name in ("chunk", "block", "memory_limit"):
            if getattr(self, name) is not None and (name, getattr(self, name)) != ("chunk", AUTO):
                _require_integer(name, getattr(self, name), 1)
        for name, size in self.sizes.items():
            _require_integer(f"sizes.{name}", size, 1)
        if self.mesh is not None:
            _parse_mesh(self.mesh)
        object.__setattr__(self, "sizes", MappingProxyType(dict(sorted(self.sizes.items()))))

    def __hash__(self) -> int:
        return hash((*(getattr(self, name) for name in FIELDS if name != "sizes"), *self.sizes.items()))

    @property
    def ad_mode(self) -> Mode:
        """The mode as a value."""
        return MODES[self.mode]

    @property
    def problem(self) -> tuple[Any, ...]:
        """What is computed: equal for two cases whose results are the same numbers."""
        return _view(self, "problem")

    @property
    def method(self) -> tuple[Any, ...]:
        """How it is differentiated, and by what."""
        return _view(self, "method")

    @property
    def layout(self) -> tuple[Any, ...]:
        """How the work is distributed over devices."""
        return _view(self, "layout")

    @property
    def memory(self) -> tuple[Any, ...]:
        """How much is held in memory at a time, and where."""
        return _view(self, "memory")

    @property
    def kind(self) -> str:
        """What the record measures: a `case`, the machine's maximum (`ceiling`) or minimum (`floor`)."""
        return "case" if self.workload != CEILING else "floor" if self.target in FLOORS else "ceiling"

    @property
    def axes(self) -> tuple[int, int]:
        """The number of devices over which the points are divided, and over which the seeds are."""
        if self.mesh is not None:
            return _parse_mesh(self.mesh)
        return (1, self.devices) if self.split == "seeds" else (self.devices, 1)

    @property
    def key(self) -> str:
        """A short hash of the fields that differ from their defaults: a later field changes no old key."""
        return hashlib.sha256(json.dumps(non_default_fields(self), sort_keys=True).encode()).hexdigest()[:16]

    def __reduce__(self) -> tuple[Any, ...]:
        return (from_dict, (to_dict(self),))


CHOICES: dict[str, Collection[str]] = {
    "mode": MODES, "batch": BATCHES, "split": SPLITS, "api": APIS, "dtype": DTYPES, "precision": PRECISIONS, "seeds": SEEDS,
}  # fmt: skip
OPTIONS: dict[str, Collection[str]] = {  # or None
    "cache": CACHES, "reduce": REDUCTIONS, "storage": STORAGES, "remat": REMATS,
}  # fmt: skip
FIELDS = tuple(f.name for f in dataclasses.fields(Case))
_DEFAULTS: dict[str, Any] = {f.name: f.default for f in dataclasses.fields(Case)} | {"sizes": {}}
VIEWS: dict[str, tuple[str, ...]] = {
    view: tuple(f.name for f in dataclasses.fields(Case) if f.metadata["view"] == view)
    for view in ("problem", "method", "layout", "memory")
}


def _view(case: Case, view: str) -> tuple[Any, ...]:
    """Return the values of the fields of a view, which can be hashed: sizes are a tuple of pairs."""
    return tuple(
        tuple(case.sizes.items()) if name == "sizes" else getattr(case, name) for name in VIEWS[view]
    )


def defaults(names: Iterable[str]) -> dict[str, Any]:
    """Return the values that these fields have where nothing is stated."""
    return {name: _DEFAULTS[name] for name in names}


def _require_integer(name: str, value: Any, least: int) -> None:
    kind = "a positive integer" if least else "an integer, zero or more"
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise Refusal(f"{name} must be {kind}, not {value!r}")


def _parse_mesh(mesh: Any) -> tuple[int, int]:
    """Parse a mesh: "2x4" -> (2, 4)."""
    match = (
        re.fullmatch(r"0*([1-9][0-9]{0,15})x0*([1-9][0-9]{0,15})", mesh) if isinstance(mesh, str) else None
    )
    if match is None or max(int(match[1]), int(match[2])) > LARGEST:
        raise Refusal(f"mesh must be devices over points x devices over seeds, such as 2x4, not {mesh!r}")
    return int(match[1]), int(match[2])


def to_dict(case: Case) -> dict[str, Any]:
    """Return the fields of a case as plain JSON values."""
    return {name: getattr(case, name) for name in FIELDS} | {"sizes": dict(case.sizes)}


def non_default_fields(case: Case) -> dict[str, Any]:
    """Return the fields that differ from their defaults, which older versions can read too."""
    return {name: value for name, value in to_dict(case).items() if value != _DEFAULTS[name]}


def from_dict(fields: Mapping[str, Any]) -> Case:
    """Return the case with these fields; raise `Refusal` for an unknown field or a bad value."""
    for name in fields:
        if name not in FIELDS:
            raise unknown_name("field", name, FIELDS)
    return Case(**fields)


def problem(case: Case) -> tuple[Any, ...]:
    """Return what is computed: equal for two cases whose results are the same numbers."""
    return case.problem


@functools.cache
def built_in(folder: str) -> frozenset[str]:
    """Return the names of the modules in a folder of the package: its `workloads`, or its `peers`."""
    return frozenset(path.stem for path in (Path(__file__).parents[1] / folder).glob("[!_]*"))


def user_modules(case: Case) -> tuple[str, ...]:
    """Return the modules of a case that are not of this package: its workload, its engine, or both."""
    engine = case.engine.partition("/")[0]
    named = ((case.workload, built_in("workloads")), (engine, built_in("peers") | {JAX}))
    return tuple(name for name, ours in named if name not in ours)


_ALWAYS_IN_LABEL = {"mode", "points", "devices", "api", "split"}
# Fields that a label gives with their names.
_NAMED_IN_LABEL = {
    "points", "devices", "wrt", "split", "chunk", "block", "reduce", "storage", "remat", "forward", "mesh", "data_seed",
}  # fmt: skip


def label(case: Case, leave_out: Iterable[str] = ()) -> str:
    """Return a case as one line of text: its fields without a default, in their order."""
    words = {
        "sizes": " ".join(f"{name}={size}" for name, size in case.sizes.items()),
        "overlap": "overlapped",
        "memory_limit": f"within {format_bytes(case.memory_limit)}" if case.memory_limit else "",
        "cache": f"{case.cache} cache",
        "jit": "eager",
        "engine": f"{case.engine} compiled" if case.jit else case.engine,
    }
    words |= {name: f"{name}={getattr(case, name)}" for name in _NAMED_IN_LABEL}
    given = _ALWAYS_IN_LABEL | set(non_default_fields(case))
    shown = [name for name in FIELDS if name in given - set(leave_out)]
    return " ".join(words.get(name, str(getattr(case, name))) for name in shown)
