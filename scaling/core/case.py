"""A case: one cell of a study, as a frozen value, with the values that each field may take.

Knows the vocabulary and nothing else: not JAX, not the workloads, not the disk.
"""

import dataclasses
import difflib
import hashlib
import json
from collections import namedtuple
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from scaling.core.formatting import format_bytes
from scaling.core.modes import MODES, Mode
from scaling.core.reductions import REDUCTIONS

JAX = "jax"  # the engine of this package; others are peers
SECOND = (
    "hessian",
    "hvp",
)  # targets of every function of one number: its Hessian, and that times the point itself
BATCHES = ("vmap", "whole")
SPLITS = (
    "points",
    "seeds",
    "both",
    "data",
)  # data: one function that is a sum over the points of every device
APIS = ("jit", "shard_map", "pmap")
DTYPES = ("float32", "float64", "bfloat16")
PRECISIONS = ("highest", "high", "default")

SEEDS = ("identity", "colored")
AUTO = "auto"  # a chunk that is found by compiling
STORAGES = ("device", "host")
REMATS = (
    "nothing_saveable",
    "dots_saveable",
    "dots_with_no_batch_dims_saveable",
    "everything_saveable",
)  # of jax.checkpoint

CACHES = (
    "cold",
    "warm",
)  # of the persistent compilation cache: empty when the case compiles, or holding its program

CEILING = "ceiling"  # the workload that measures what the machine can do at most
PEAKS = {  # its targets that bound a program from above, with the unit of their work
    "copy": "B", "matmul": "FLOP", "transcendental": "", "arithmetic": "FLOP", "division": "", "reduction": "",
    "transpose": "B", "all_reduce": "B",
}  # fmt: skip
FLOORS = ("call", "collective")  # its targets that bound a program from below: next to no work
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


def _of_problem(default: Any) -> Any:
    """Declare a field that says what is computed."""
    return field(default=default, metadata={"view": "problem"})


def _of_method(default: Any) -> Any:
    """Declare a field that says how it is differentiated, and by what."""
    return field(default=default, metadata={"view": "method"})


def _of_layout(default: Any) -> Any:
    """Declare a field that says how the work is distributed over devices."""
    return field(default=default, metadata={"view": "layout"})


def _of_memory(default: Any) -> Any:
    """Declare a field that says how much is held in memory at a time, and where."""
    return field(default=default, metadata={"view": "memory"})


@dataclass(frozen=True)
class Case:
    """One cell of a study. `None` in `target`, `variant`, `wrt` and `formulation` means the workload's own
    first choice.

    Fields are flat, as on disk. Each belongs to one of the views `problem`, `method`, `layout` and `memory`.
    """

    workload: str = field(metadata={"view": "problem"})
    target: str | None = _of_problem(None)
    variant: str | None = _of_problem(None)  # of the function
    sizes: Mapping[str, int] = field(default_factory=dict, metadata={"view": "problem"})
    points: int = _of_problem(1)
    wrt: str | None = _of_problem(None)  # input names joined by "+"
    mode: str = _of_method("jacfwd")
    batch: str = _of_method("vmap")
    split: str = _of_layout("points")
    api: str = _of_layout("shard_map")
    devices: int = _of_layout(1)
    dtype: str = _of_problem("float32")
    precision: str = _of_problem("highest")
    jit: bool = _of_method(True)
    data_seed: int = _of_problem(0)
    engine: str = _of_method("jax")  # or a peer: another system that differentiates
    chunk: int | str | None = _of_memory(
        None
    )  # seeds at a time; None takes all at once, "auto" the largest blocks that fit
    formulation: str | None = _of_method(None)  # how the same function is written
    cache: str | None = _of_method(None)  # the persistent compilation cache; None compiles without one
    seeds: str = _of_method("identity")  # or "colored": the compressed ones of a colouring
    reduce: str | None = _of_problem(
        None
    )  # what is computed from each point's Jacobian; None is the workload's own
    block: int | None = _of_memory(None)  # points at a time on each device; None takes all at once
    memory_limit: int | None = _of_memory(None)  # bytes of each device; None is what there is
    storage: str | None = _of_memory(
        None
    )  # of per-point inputs and the result; from the host they are sent block by block
    remat: str | None = _of_method(
        None
    )  # what reverse mode stores, a policy of jax.checkpoint; None is JAX's own choice
    forward: str | None = _of_method(
        None
    )  # with mode=mixed: the inputs to differentiate forward, joined by "+"
    mesh: str | None = _of_layout(
        None
    )  # with split=both: devices over points x devices over seeds, such as 2x4
    overlap: bool = _of_layout(
        False
    )  # with split=data: reduce each part of the gradient as soon as it is computed

    def __post_init__(self) -> None:
        for name, known in (*CHOICES.items(), *OPTIONS.items()):
            value = getattr(self, name)
            if value not in tuple(known) and (value is not None or name in CHOICES):
                raise unknown_name(name, value, known)
        for name in ("workload", "target", "variant", "wrt", "engine", "formulation", "forward"):
            value = getattr(self, name)
            if not (isinstance(value, str) and value) and (
                value is not None or name in ("workload", "engine")
            ):
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
        if self.mesh is not None:
            _axes(self.mesh)
        for name, size in self.sizes.items():
            _require_integer(f"sizes.{name}", size, 1)
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
        """What its record is of: a `case`, or what the machine can do at most (`ceiling`) or at least
        (`floor`)."""
        return "case" if self.workload != CEILING else "floor" if self.target in FLOORS else "ceiling"

    @property
    def axes(self) -> tuple[int, int]:
        """The number of devices over which the points are divided, and over which the seeds are."""
        if self.mesh is not None:
            return _axes(self.mesh)
        return (1, self.devices) if self.split == "seeds" else (self.devices, 1)

    @property
    def key(self) -> str:
        """A short hash of the fields that differ from their defaults: a field added later never changes an
        old key."""
        return hashlib.sha256(json.dumps(non_default_fields(self), sort_keys=True).encode()).hexdigest()[:16]

    def __reduce__(self) -> tuple[Any, ...]:
        return (from_dict, (to_dict(self),))


CHOICES: dict[str, Collection[str]] = {
    "mode": MODES, "batch": BATCHES, "split": SPLITS, "api": APIS, "dtype": DTYPES, "precision": PRECISIONS, "seeds": SEEDS,
}  # fmt: skip
OPTIONS: dict[str, Collection[str]] = {
    "cache": CACHES,
    "reduce": REDUCTIONS,
    "storage": STORAGES,
    "remat": REMATS,
}  # or None
FIELDS = tuple(f.name for f in dataclasses.fields(Case))
_DEFAULTS: dict[str, Any] = {f.name: f.default for f in dataclasses.fields(Case)} | {"sizes": {}}
VIEWS: dict[str, tuple[str, ...]] = {
    view: tuple(f.name for f in dataclasses.fields(Case) if f.metadata["view"] == view)
    for view in ("problem", "method", "layout", "memory")
}
_VIEW_TYPES: dict[str, Any] = {view: namedtuple(view.title(), names) for view, names in VIEWS.items()}


def _view(case: Case, view: str) -> tuple[Any, ...]:
    """Return some fields of a case as a named tuple; sizes are a tuple of pairs, so that it can be hashed."""
    values = {name: getattr(case, name) for name in VIEWS[view]}
    if "sizes" in values:
        values["sizes"] = tuple(case.sizes.items())
    made: tuple[Any, ...] = _VIEW_TYPES[view](**values)
    return made


def defaults(names: Iterable[str]) -> dict[str, Any]:
    """Return the values that these fields have where nothing is stated."""
    return {name: _DEFAULTS[name] for name in names}


def _require_integer(name: str, value: Any, least: int) -> None:
    kind = "a positive integer" if least else "an integer, zero or more"
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise Refusal(f"{name} must be {kind}, not {value!r}")


def _axes(mesh: Any) -> tuple[int, int]:
    """Parse a mesh: "2x4" -> (2, 4)."""
    sides = mesh.split("x") if isinstance(mesh, str) else []
    if len(sides) != 2 or not all(
        side.isdecimal() and side.isascii() and 0 < int(side[:16]) <= LARGEST for side in sides
    ):
        raise Refusal(f"mesh must be devices over points x devices over seeds, such as 2x4, not {mesh!r}")
    return int(sides[0]), int(sides[1])


def to_dict(case: Case) -> dict[str, Any]:
    """Return the fields of a case as plain JSON values."""
    return {name: getattr(case, name) for name in FIELDS} | {"sizes": dict(case.sizes)}


def non_default_fields(case: Case) -> dict[str, Any]:
    """Return the fields that differ from their defaults, which an older version without a later field
    understands too.
    """
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


# Fields that a label gives with their names.
_NAMED_IN_LABEL = {
    "points", "devices", "wrt", "split", "chunk", "block", "reduce", "storage", "remat", "forward", "mesh", "data_seed",
}  # fmt: skip


def label(case: Case, leave_out: Iterable[str] = ()) -> str:
    """Return a case as one line of text: the fields that tell it from other cases, in the order of the
    fields.
    """
    out = set(leave_out)
    words = []
    for name, value in to_dict(case).items():
        if name in out or (
            value == _DEFAULTS[name] and name not in ("mode", "points", "devices", "api", "split")
        ):
            continue
        if name == "sizes":
            words += [f"{k}={v}" for k, v in value.items()]
        elif name in _NAMED_IN_LABEL:
            words.append(f"{name}={value}")
        elif name == "overlap":
            words.append("overlapped")
        elif name == "memory_limit":
            words.append(f"within {format_bytes(value)}")
        elif name == "cache":
            words.append(f"{value} cache")
        elif name == "jit":
            words.append("eager")
        elif name == "engine" and case.jit:
            words.append(f"{value} compiled")
        else:
            words.append(str(value))
    return " ".join(words)
