"""Define `Case` (the settings of one run), the valid values of its fields, its key and label, and `Refusal`.

This module imports neither JAX nor a workload.
"""

import dataclasses
import difflib
import functools
import hashlib
import re
from collections import ChainMap
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from json import dumps  # bound here, because a user's module may replace them
from pathlib import Path
from types import MappingProxyType
from typing import Any

from scaling.core.formatting import format_bytes, format_value
from scaling.core.modes import MODES, Mode
from scaling.core.reductions import REDUCTIONS

JAX = "jax"  # the engine of this package; every other engine is a peer
# Second-order targets of a scalar function: its Hessian H, a product H v with a vector v, the trace of H.
LAPLACIAN = "laplacian"
POINTS, SEEDS = "points", "seeds"  # the axes of the device mesh; pmap has the single axis POINTS
SECOND = ("hessian", "hvp", LAPLACIAN)
BATCHES = ("vmap", "whole")
SPLITS = ("points", "seeds", "both", "data")  # data: the result is a sum over the points of all devices
APIS = ("jit", "shard_map", "pmap")
SCALINGS = ("strong", "weak")  # with weak scaling, each device has the points of the study
DTYPES = ("float32", "float64", "bfloat16")
PRECISIONS = ("highest", "high", "default")
STORAGES = DEVICE, HOST = "device", "host"
AUTO = "auto"  # selects the largest chunk that fits (chunk=auto) or the fastest mode (mode=auto)
CHOSEN_FIELDS = ("mode", "batch", "chunk", "block", "forward")  # the fields that mode=auto sets
REMATS = ("nothing_saveable", "dots_saveable", "dots_with_no_batch_dims_saveable", "everything_saveable")
CEILING = "ceiling"  # the workload that measures the peak rates and the dispatch latency of the machine
# The targets of CEILING that measure a peak rate, with the unit of their work.
PEAKS = {
    "copy": "B", "matmul": "FLOP", "transcendental": "", "arithmetic": "FLOP", "division": "",
    "reduction": "", "transpose": "B", "all_reduce": "B",
}  # fmt: skip
FLOORS = ("call", "collective")  # the targets of CEILING that measure the latency of an empty program
COMMUNICATING = ("all_reduce", "collective")  # the targets of CEILING whose programs contain a collective
LARGEST = 10**15  # the largest valid size and number of points, devices, seeds or bytes
# Names from the literature that set both `mode` and `batch`; other mode names leave `batch` unchanged.
ALIASES = {"vmap_jacfwd": ("jacfwd", "vmap"), "vmap_jacrev": ("jacrev", "vmap")}


class Refusal(ValueError):
    """Raised if user input is invalid. The message states the value, the valid values and a fix."""


class NotOffered(Refusal, NotImplementedError):
    """Raised if a library cannot compute a case. The case is then skipped with the reason "not_offered"."""


class TooLarge(Exception):
    """Raised if a case needs more memory than is available."""

    def __init__(self, text: str, needs: Mapping[str, int | None] | None = None) -> None:
        super().__init__(text)
        self.needs = dict(needs or {})  # `Record` field, such as "temp_bytes" -> bytes


def unknown_name(what: str, value: Any, valid_names: Iterable[str]) -> Refusal:
    """Return a `Refusal` that says that `value` is unknown, and lists `valid_names`.

    `what` is the kind of name, such as "mode".
    """
    names = [str(name) for name in valid_names]
    similar_names = difflib.get_close_matches(str(value).rpartition("/")[2], names, n=1)
    choices = "; ".join([f"choose from {', '.join(names)}", *(f"did you mean {n!r}?" for n in similar_names)])
    return Refusal(f"unknown {what} {format_value(value)}: {choices if names else 'there is none; omit it'}")


def check_names(what: str, names: Iterable[Any], valid_names: Collection[Any]) -> None:
    """Raise `Refusal` unless all `names` are in `valid_names`. `what` is the kind of name, such as "mode"."""
    for name in names:
        if name not in valid_names:
            raise unknown_name(what, name, valid_names)


def check_value(name: str, value: Any, is_valid: bool, expected: str, fix: str = "") -> None:
    """Raise `Refusal("{name} must be {expected}, not {value}: {fix}")` unless `is_valid` is true."""
    if not is_valid:
        advice = f": {fix}" if fix else ""
        raise Refusal(f"{name} must be {expected}, not {format_value(value)}{advice}")


def _field(view: str, default: Any) -> Any:
    return field(default=default, metadata={"view": view})


@dataclass(frozen=True)
class Case:
    """The settings of one run, such as the function, the AD mode and the number of devices.

    If `target`, `variant`, `wrt` or `formulation` is None, the workload's default is used.
    """

    workload: str = field(metadata={"view": "problem"})
    target: str | None = _field("problem", None)
    variant: str | None = _field("problem", None)  # the name of a function of the workload
    sizes: Mapping[str, int] = field(default_factory=dict, metadata={"view": "problem"})
    points: int = _field("problem", 1)
    wrt: str | None = _field("problem", None)  # the differentiated inputs, names joined by "+"
    mode: str = _field("method", "jacfwd")
    batch: str = _field("method", "vmap")
    split: str = _field("layout", "points")
    api: str = _field("layout", "shard_map")
    devices: int = _field("layout", 1)
    dtype: str = _field("problem", "float32")
    precision: str = _field("problem", "highest")
    jit: bool = _field("method", True)
    data_seed: int = _field("problem", 0)
    engine: str = _field("method", JAX)
    chunk: int | str | None = _field("memory", None)  # seeds computed at a time; None for all, or "auto"
    formulation: str | None = _field("method", None)  # the name of an implementation of the function
    cache: str | None = _field("method", None)  # the compilation cache: "cold", "warm" or None for none
    seeds: str = _field("method", "identity")  # "identity", or "colored" for the seeds of a coloring
    reduce: str | None = _field("problem", None)  # a reduction, or None for the workload's default
    block: int | None = _field("memory", None)  # points that a device computes at a time; None for all
    memory_limit: int | None = _field("memory", None)  # in bytes per device, or None for no limit
    storage: str | None = _field("memory", None)  # where the inputs and the result are: "device" or "host"
    remat: str | None = _field("method", None)  # the policy of jax.checkpoint in reverse mode
    forward: str | None = _field("method", None)  # the inputs that mode=mixed differentiates in forward mode
    mesh: str | None = _field("layout", None)  # with split=both: point devices x seed devices, such as 2x4
    overlap: bool = _field("layout", False)  # with split=data: overlap the all-reduce with the computation

    def __post_init__(self) -> None:
        for name, valid in (CHOICES | OPTIONS).items():
            value = getattr(self, name)
            if value not in tuple(valid) and (value is not None or name in CHOICES):
                raise unknown_name(name, value, valid)
        for name in ("workload", "target", "variant", "wrt", "engine", "formulation", "forward"):
            value = getattr(self, name)
            is_text = isinstance(value, str if name in ("workload", "engine") else str | None)
            check_value(name, value, is_text and value != "", "a name")
        for name in ("jit", "overlap"):
            check_value(name, getattr(self, name), isinstance(getattr(self, name), bool), "true or false")
        check_value("sizes", self.sizes, isinstance(self.sizes, Mapping), "a mapping such as {p: 64}")
        for name, minimum in (("points", 1), ("devices", 1), ("data_seed", 0)):
            _require_integer(name, getattr(self, name), minimum)
        for name in ("chunk", "block", "memory_limit"):
            if getattr(self, name) is not None and (name, getattr(self, name)) != ("chunk", AUTO):
                _require_integer(name, getattr(self, name), 1)
        for name, size in self.sizes.items():
            _require_integer(f"sizes.{name}", size, 1)
        if self.mesh is not None:
            _parse_mesh(self.mesh)
        object.__setattr__(self, "sizes", MappingProxyType(dict(sorted(self.sizes.items()))))

    def __hash__(self) -> int:
        return self._hash

    @functools.cached_property
    def _hash(self) -> int:
        return hash((*(getattr(self, name) for name in FIELDS if name != "sizes"), *self.sizes.items()))

    @property
    def ad_mode(self) -> Mode:
        """Return the `Mode` of the case. For mode=auto, return one that can compute the target."""
        if self.mode == AUTO:
            return MODES["fwd_over_rev" if self.target in SECOND else "jacfwd"]
        return MODES[self.mode]

    @property
    def kind(self) -> str:
        """Return "ceiling" for a peak-rate benchmark, "floor" for a latency benchmark, otherwise "case"."""
        return "case" if self.workload != CEILING else "floor" if self.target in FLOORS else "ceiling"

    @property
    def mesh_shape(self) -> tuple[int, int]:
        """Return the number of devices along each axis of the mesh: (point devices, seed devices)."""
        default = (1, self.devices) if self.split == "seeds" else (self.devices, 1)
        return default if self.mesh is None else _parse_mesh(self.mesh)

    @functools.cached_property
    def key(self) -> str:
        """Return a hexadecimal hash of the non-default fields. It identifies the case."""
        return hashlib.sha256(dumps(non_default_fields(self), sort_keys=True).encode()).hexdigest()[:16]

    def __reduce__(self) -> tuple[Any, ...]:
        return (from_dict, (to_dict(self),))


_MODES_AND_AUTO: Mapping[str, Any] = ChainMap({AUTO: None}, MODES)  # includes later additions to `MODES`
CHOICES: dict[str, Collection[str]] = {
    "mode": _MODES_AND_AUTO, "batch": BATCHES, "split": SPLITS, "api": APIS, "dtype": DTYPES,
    "precision": PRECISIONS, "seeds": ("identity", "colored"),
}  # fmt: skip
OPTIONS: dict[str, Collection[str]] = {  # None is valid too
    "cache": ("cold", "warm"), "reduce": REDUCTIONS, "storage": STORAGES, "remat": REMATS,
}  # fmt: skip
FIELDS = tuple(f.name for f in dataclasses.fields(Case))
_FIELD_DEFAULTS: dict[str, Any] = {f.name: f.default for f in dataclasses.fields(Case)} | {"sizes": {}}
# The fields of each group. The expected result depends only on the group `problem` and on `formulation`.
VIEWS: dict[str, tuple[str, ...]] = {
    view: tuple(f.name for f in dataclasses.fields(Case) if f.metadata["view"] == view)
    for view in ("problem", "method", "layout", "memory")
}


def problem_fields(case: Case) -> tuple[Any, ...]:
    """Return the values of the case fields that determine the result, such as workload, sizes and dtype."""
    return (*(getattr(case, name) for name in VIEWS["problem"] if name != "sizes"), *case.sizes.items())


def default_values(names: Iterable[str]) -> dict[str, Any]:
    """Return the default values of the given fields of `Case`, as a dict by field name."""
    return {name: _FIELD_DEFAULTS[name] for name in names}


def _require_integer(name: str, value: Any, minimum: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
        valid = "a positive integer" if minimum else "an integer, zero or more"
        alternative = f" or {AUTO}" if name == "chunk" else ""
        is_whole = isinstance(value, float) and minimum <= value <= LARGEST and value.is_integer()
        fix = f": write {int(value)}" if is_whole else ""
        raise Refusal(f"{name} must be {valid}{alternative}, not {format_value(value)}{fix}")


def _parse_mesh(mesh: Any) -> tuple[int, int]:
    match = re.fullmatch(r"0*([1-9][0-9]{0,14})x0*([1-9][0-9]{0,14})", str(mesh))
    if match is None:
        raise Refusal(f"mesh must be point devices x seed devices, such as 2x4, not {format_value(mesh)}")
    return int(match[1]), int(match[2])


def to_dict(case: Case) -> dict[str, Any]:
    """Return the fields of a case as a dict of JSON values."""
    return {name: getattr(case, name) for name in FIELDS} | {"sizes": dict(case.sizes)}


def non_default_fields(case: Case) -> dict[str, Any]:
    """Return the fields of a case that differ from their defaults, as a dict of JSON values."""
    return {name: value for name, value in to_dict(case).items() if value != _FIELD_DEFAULTS[name]}


def from_dict(fields: Mapping[str, Any]) -> Case:
    """Return the case with the given fields. Raise `Refusal` for an unknown field or an invalid value."""
    check_names("field", fields, FIELDS)
    return Case(**fields)


@functools.cache
def module_names(folder: str) -> frozenset[str]:
    """Return the names of the built-in workloads (folder="workloads") or peers (folder="peers")."""
    return frozenset(path.stem for path in (Path(__file__).parents[1] / folder).glob("[!_]*"))


def user_modules(case: Case) -> tuple[str, ...]:
    """Return the import paths of the user's modules that define the workload or the engine of a case."""
    modules = ((case.workload, module_names("workloads")), (case.engine, module_names("peers") | {JAX}))
    return tuple(name for name, built_in_names in modules if name not in built_in_names)


_ALWAYS_IN_LABEL = {"mode", "points", "devices", "api", "split"}
_NAMED_IN_LABEL = {  # shown as name=value
    "points", "devices", "wrt", "split", "chunk", "block", "reduce", "storage", "remat", "forward", "mesh",
    "data_seed",
}  # fmt: skip


def label(case: Case, leave_out: Iterable[str] = ()) -> str:
    """Return text such as 'linear p=64 jacrev devices=4' for a case, without the fields in `leave_out`."""
    field_texts = {name: f"{name}={getattr(case, name)}" for name in _NAMED_IN_LABEL} | {
        "sizes": " ".join(f"{name}={size}" for name, size in case.sizes.items()),
        "overlap": "overlapped",
        "memory_limit": f"within {format_bytes(case.memory_limit)}" if case.memory_limit else "",
        "cache": f"{case.cache} cache",
        "jit": "eager",
        "engine": f"{case.engine} compiled" if case.jit else case.engine,
    }
    shown = (_ALWAYS_IN_LABEL | set(non_default_fields(case))) - set(leave_out)
    return " ".join(field_texts.get(name, str(getattr(case, name))) for name in FIELDS if name in shown)
