"""A case: one cell of a study, as a frozen value, with the names that it may take.

Knows the vocabulary and nothing else: not JAX, not the workloads, not the disk.
"""

import dataclasses
import difflib
import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from scaling.core.formatting import format_bytes

FORWARD = ("jacfwd", "linearize", "finite_difference")  # seeds are tangents, slices are columns
REVERSE = ("jacrev", "grad_of_sum")  # seeds are cotangents, slices are rows
HESSIAN = ("fwd_over_rev", "rev_over_fwd", "rev_over_rev", "fwd_over_fwd")  # seeds are tangents, slices are columns of a Hessian
ANALYTIC = ("analytic", "analytic_vmap")  # written by hand: for the whole batch, or for one point and vmapped
WHOLE = ("value", *ANALYTIC, "vmap_grad")  # return the derivative (or the value) itself: no seeds
MIXED = ("mixed",)  # compose: forward for some inputs, reverse for the others; of a coloured Jacobian, some columns and some rows
MODES = FORWARD + REVERSE + HESSIAN + MIXED + WHOLE
SECOND = ("hessian", "hvp")  # targets of every function of one number: its Hessian, and that times the point itself
BATCHES = ("vmap", "whole")
SPLITS = ("points", "seeds", "both", "data")  # data: one function that is a sum over the points of every device
APIS = ("jit", "shard_map", "pmap")
DTYPES = ("float32", "float64", "bfloat16")
PRECISIONS = ("highest", "high", "default")

SEEDS = ("identity", "colored")
AUTO = "auto"  # a chunk that is found by compiling
STORAGES = ("device", "host")
# What is made of a point's Jacobian J: all of it; its sum over outputs or over inputs; J times the point itself; its squared
# Frobenius norm; J^T J. Or the sum over outputs and points, which is the gradient of a loss over data.
REDUCTIONS = ("whole", "outputs", "inputs", "vector", "norm", "gram", "points")
REMATS = ("nothing_saveable", "dots_saveable", "dots_with_no_batch_dims_saveable", "everything_saveable")  # of jax.checkpoint

CACHES = ("cold", "warm")  # of the persistent compilation cache: empty when the case compiles, or holding its program

CEILING = "ceiling"  # the workload that measures what the machine can do at most
FLOORS = ("call", "collective")  # its targets that cost nothing but the asking
LARGEST = 10**15  # of any count
# What is computed, not how.
PROBLEM = ("workload", "target", "variant", "sizes", "points", "wrt", "reduce", "dtype", "precision", "data_seed")

# The article's names for a mode and its batching; the plain names keep the grid's own `batch`.
ALIASES = {"vmap_jacfwd": ("jacfwd", "vmap"), "vmap_jacrev": ("jacrev", "vmap")}


class Refusal(ValueError):
    """Bad input, told in one line: the value, the alternatives, the fix."""


def unknown_name(what: str, value: Any, known: Iterable[str]) -> Refusal:
    """The refusal of a name that is not in a closed list, with the nearest one that is."""
    names = [str(name) for name in known]
    close = difflib.get_close_matches(str(value), names, n=1)
    hint = f"; did you mean {close[0]!r}?" if close else ""
    return Refusal(f"unknown {what} {value!r}: choose from {', '.join(names)}{hint}")


@dataclass(frozen=True)
class Case:
    """One cell of a study. `None` in `target`, `variant`, `wrt` and `formulation` means the workload's own first choice."""

    workload: str
    target: str | None = None
    variant: str | None = None  # of the function
    sizes: Mapping[str, int] = field(default_factory=dict)
    points: int = 1
    wrt: str | None = None  # input names joined by "+"
    mode: str = "jacfwd"
    batch: str = "vmap"
    split: str = "points"
    api: str = "shard_map"
    devices: int = 1
    dtype: str = "float32"
    precision: str = "highest"
    jit: bool = True
    data_seed: int = 0
    engine: str = "jax"  # or a peer: another system that differentiates
    chunk: int | str | None = None  # seeds at a time; None takes all at once, "auto" the largest blocks that fit into memory
    formulation: str | None = None  # how the same function is written
    cache: str | None = None  # the persistent compilation cache; None compiles without one
    seeds: str = "identity"  # or the compressed ones of a colouring
    reduce: str | None = None  # what is made of each point's Jacobian; None is the workload's own
    block: int | None = None  # points at a time on each device; None takes all at once
    memory_limit: int | None = None  # bytes of each device; None is what there is
    storage: str | None = None  # of per-point inputs and the result; on the host, they go to the devices and back block by block
    remat: str | None = None  # what reverse mode keeps of the way there, by jax.checkpoint's policies; None is JAX's own choice
    forward: str | None = None  # with mode=mixed: the inputs that are taken forward, joined by "+"
    mesh: str | None = None  # with split=both: devices over points x devices over seeds, such as 2x4
    overlap: bool = False  # with split=data: reduce each part of the gradient as soon as it is there

    def __post_init__(self) -> None:
        for name, known in CHOICES.items():
            if getattr(self, name) not in known:
                raise unknown_name(name, getattr(self, name), known)
        for name, known in OPTIONS.items():
            if getattr(self, name) is not None and getattr(self, name) not in known:
                raise unknown_name(name, getattr(self, name), known)
        for name in ("workload", "target", "variant", "wrt", "engine", "formulation", "forward"):
            value = getattr(self, name)
            if not (isinstance(value, str) and value) and (value is not None or name in ("workload", "engine")):
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

    def __hash__(self) -> int:  # of the sizes too, which have none of themselves: thousands of cases may differ in these alone
        return hash((*(getattr(self, name) for name in FIELDS if name != "sizes"), *self.sizes.items()))

    @property
    def kind(self) -> str:
        """What its record is: of a `case`, or of what the machine can do at most (`ceiling`) or at least (`floor`)."""
        return "case" if self.workload != CEILING else "floor" if self.target in FLOORS else "ceiling"

    @property
    def axes(self) -> tuple[int, int]:
        """Over how many devices the points are cut, and over how many the seeds."""
        if self.mesh is not None:
            return _axes(self.mesh)
        return (1, self.devices) if self.split == "seeds" else (self.devices, 1)

    @property
    def key(self) -> str:
        """A short hash of the fields that differ from their defaults: a field added later never changes an old key."""
        return hashlib.sha256(json.dumps(non_default_fields(self), sort_keys=True).encode()).hexdigest()[:16]

    def __reduce__(self):
        return (from_dict, (to_dict(self),))


CHOICES: dict[str, tuple[str, ...]] = {
    "mode": MODES, "batch": BATCHES, "split": SPLITS, "api": APIS, "dtype": DTYPES, "precision": PRECISIONS, "seeds": SEEDS,
}  # fmt: skip
OPTIONS: dict[str, tuple[str, ...]] = {"cache": CACHES, "reduce": REDUCTIONS, "storage": STORAGES, "remat": REMATS}  # or None
FIELDS = tuple(f.name for f in dataclasses.fields(Case))
_DEFAULTS: dict[str, Any] = {f.name: f.default for f in dataclasses.fields(Case)} | {"sizes": {}}


def defaults(names: Iterable[str]) -> dict[str, Any]:
    """Return the values that these fields have where nothing is stated."""
    return {name: _DEFAULTS[name] for name in names}


def _require_integer(name: str, value: Any, least: int) -> None:
    kind = "a positive integer" if least else "an integer, zero or more"
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise Refusal(f"{name} must be {kind}, not {value!r}")


def _axes(mesh: Any) -> tuple[int, int]:
    """2x4 -> (2, 4)."""
    sides = mesh.split("x") if isinstance(mesh, str) else []
    if len(sides) != 2 or not all(side.isdecimal() and side.isascii() and 0 < int(side[:16]) <= LARGEST for side in sides):
        raise Refusal(f"mesh must be devices over points x devices over seeds, such as 2x4, not {mesh!r}")
    return int(sides[0]), int(sides[1])


def to_dict(case: Case) -> dict[str, Any]:
    """The fields of a case as plain JSON values."""
    return {name: getattr(case, name) for name in FIELDS} | {"sizes": dict(case.sizes)}


def non_default_fields(case: Case) -> dict[str, Any]:
    """The fields that differ from their defaults: what a revision without a field that was added later understands as well."""
    return {name: value for name, value in to_dict(case).items() if value != _DEFAULTS[name]}


def from_dict(fields: Mapping[str, Any]) -> Case:
    """The case with these fields; an unknown field or a bad value is a `Refusal`."""
    for name in fields:
        if name not in FIELDS:
            raise unknown_name("field", name, FIELDS)
    return Case(**fields)


def problem(case: Case) -> tuple:
    """What is computed, not how: equal for two cases whose results are the same numbers."""
    return tuple(tuple(case.sizes.items()) if name == "sizes" else getattr(case, name) for name in PROBLEM)


# Fields that a label gives with their names.
_NAMED_IN_LABEL = (
    "points",
    "devices",
    "wrt",
    "split",
    "chunk",
    "block",
    "reduce",
    "storage",
    "remat",
    "forward",
    "mesh",
    "data_seed",
)


def label(case: Case, leave_out: Iterable[str] = ()) -> str:
    """A case in one line, as people say it: the fields that tell it from its neighbours, in the order of the fields."""
    out = set(leave_out)
    words = []
    for name, value in to_dict(case).items():
        if name in out or (value == _DEFAULTS[name] and name not in ("mode", "points", "devices", "api", "split")):
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
