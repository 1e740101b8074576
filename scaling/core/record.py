"""Define `Record` (the outcome and the measurements of a run), and convert it to and from a line of JSON.

The name of a field that has a unit ends in the unit, such as `_bytes`. A line is validated when it is read:
records of newer versions and impossible values are rejected. This module depends on neither JAX nor the file
system.
"""

import dataclasses
import functools
import json
import types
import typing
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import scaling
from scaling.core import load_option
from scaling.core.case import CEILING, FLOORS, PEAKS, Case, Refusal, from_dict, to_dict

SCHEMA = 1
STATUSES = ("ok", "skipped", "failed", "planned")
SKIPPED = {
    "not_defined": "the combination has no meaning",
    "not_offered": "the workload, or the peer, does not support it",
    "not_installed": "the peer is not installed on this machine",
    "indivisible": "the axis does not divide evenly over the devices",
    "no_digits": "a finite difference, or a sum in few bits, without a correct digit",
    "too_large": "the compiled program needs more memory than there is",
    "dominated": "a smaller case of the same kind ran out of memory",
}
FAILED = {
    "wrong_answer": "the result differs from the reference",
    "not_finite": "the result contains NaN or infinity",
    "collective": "the program has a collective where devices should not communicate",
    "out_of_memory": "memory ran out",
    "error": "an exception",
    "killed": "the process died",
    "not_as_asked": "the code, the nodes or the devices were not those that were requested",
    "timeout": "the time limit of a case passed",
    "preempted": "its job was preempted by another",
    "node_failed": "a node of its job failed",
    "cancelled": "its job was cancelled",
}
REASONS = {**SKIPPED, **FAILED}
COMPILING_STAGES = ("trace_seconds", "lower_seconds", "compile_seconds")
STAGES = (*COMPILING_STAGES, "first_seconds", "check_seconds", "sampling_seconds")  # in order
_MAX_INTEGER = 2**63 - 1  # other programs read 64-bit integers
_MAX_FLOAT = 1e30
MAX_SECONDS = 1e9  # 30 years


@dataclass(frozen=True)
class Record:
    """The outcome and the measurements of one run of a case, with all timing samples.

    A field is None if it does not apply to the case or is unknown.
    """

    case: Case
    status: str
    environment: dict[str, Any]  # see environment.describe
    reason: str | None = None  # a key of REASONS
    text: str | None = None  # an explanation of the reason
    replicate: int = 0
    attempt: int = 1
    order: int = 0  # the position in the shuffled order of the run
    order_seed: int = 0  # the random seed of this order
    started_at: str | None = None  # UTC, ISO 8601
    trace_seconds: float | None = None
    lower_seconds: float | None = None
    compile_seconds: float | None = None
    first_seconds: float | None = None
    check_seconds: float | None = None
    sampling_seconds: float | None = None  # the wall-clock time of the warm-up and all turns
    seconds: list[float] = field(default_factory=list)  # time per call of each sample, slowest process
    seconds_min: list[float] = field(default_factory=list)  # time per call of each sample, fastest process
    slowest_rank: int | None = None  # the process that was the slowest most often
    calls_per_sample: int | None = None
    floor_seconds: float | None = None  # the time of an empty program with the same api and devices
    turns: list[int] = field(default_factory=list)  # the number of samples of each turn, in order
    block: str | None = None  # an identifier of the cases whose turns alternated
    # For each compilation after the first, the seconds of its stages and the number of its samples.
    compilations: list[dict[str, Any]] = field(default_factory=list)
    # The indices of the turns that were disturbed, by cause: "throttled" or "foreign_load" (other processes).
    marked: dict[str, list[int]] = field(default_factory=dict)
    before: dict[str, Any] | None = None  # the state of the host before sampling, see host_monitor.py
    after: dict[str, Any] | None = None  # the state of the host after sampling
    stop_reason: str | None = None
    error: float | None = None  # the largest relative error of the result that was compared last
    tolerance: float | None = None
    # The fraction of "entries" that were compared one by one, and of "points" with all entries compared.
    checked: dict[str, float] | None = None
    passes: int | None = None  # the number of JVPs and VJPs for one Jacobian
    flops: float | None = None  # per device, in the traced program, with all iterations of loops
    transcendentals: float | None = None
    hbm_bytes: float | None = None
    temp_bytes: int | None = None  # per device
    argument_bytes: int | None = None  # per device
    output_bytes: int | None = None  # per device
    peak_bytes: int | None = None  # per device, if the backend reports it and this case raised it
    collective_bytes: int | None = None  # per device: the larger of input and output of each collective
    collectives: dict[str, int] | None = None  # kind -> number in the compiled program
    blocks: dict[str, Any] | None = None  # with chunk=auto: block, chunk, storage, limit_bytes, probes
    chosen: dict[str, Any] | None = None  # with mode=auto: mode, batch, chunk, block, forward
    padding: float | None = None  # with split=both or seeds=colored: the fraction of padding, see shape.py
    detect_seconds: float | None = None  # with seeds=colored: the time to detect the sparsity pattern
    color_seconds: float | None = None  # with seeds=colored: the time to color its columns or rows
    colors: dict[str, int | None] | None = None  # the numbers of colors of columns and of rows
    nonzeros: int | None = None  # the number of entries of the sparsity pattern
    compulsory_bytes: int | None = None  # per device: the inputs read once and the result written once
    # The fields of `scaling plan`: the program compiled for a machine, and its predicted time there.
    program_flops: float | None = None  # per device, of the optimized program
    program_transcendentals: float | None = None
    kernels: list[dict[str, Any]] | None = None  # equal kernels once, with a count; see hlo_cost.py
    messages: list[dict[str, Any]] | None = None  # collectives: kind, bytes, group (devices), times
    program: str | None = None  # a digest of the work of each device, before optimization
    compiled_as: str | None = None  # key of the compiled case with equal work per device
    capacity_bytes: int | None = None  # the memory of a device
    predicted: dict[str, Any] | None = None  # time, interval and parts; see plan/time_model.py
    schema: int = SCHEMA

    @functools.cached_property
    def key(self) -> str:
        """Return the hash that identifies the case."""
        return self.case.key

    @property
    def setting(self) -> str:
        """Return the environment hash without the versions of peers, for comparisons of peers with JAX."""
        return str(self.environment.get("setting", self.environment["digest"]))

    @property
    def identity(self) -> tuple[str, str, int]:
        """Return the tuple (case key, environment hash, replicate), which all attempts share."""
        return self.key, self.environment["digest"], self.replicate

    @property
    def compulsory(self) -> int | None:
        """Return `compulsory_bytes`, or the bytes of arguments and outputs in a record without this field."""
        if self.compulsory_bytes is not None or self.argument_bytes is None or self.output_bytes is None:
            return self.compulsory_bytes
        return self.argument_bytes + self.output_bytes

    @property
    def good(self) -> bool:
        """Return whether the status is ok, skipped or planned, so that the case need not run again."""
        return self.status != "failed"

    @property
    def of_plan(self) -> bool:
        """Return whether the record is a prediction of `scaling plan`, not a measurement."""
        return "hardware" in self.environment

    @property
    def honest(self) -> bool:
        """Return whether the times may be used in scaling curves: each CPU device must have its own core."""
        cores = self.environment.get("cores")
        has_cores = isinstance(cores, list) and len(cores) == self.case.devices
        return has_cores or self.environment.get("platform") != "cpu"


def is_number(value: Any) -> bool:
    """Return whether a value is a finite int or float within the limits of a record, and not a bool."""
    if isinstance(value, bool):
        return False
    if isinstance(value, int):
        return abs(value) <= _MAX_INTEGER
    return isinstance(value, float) and abs(value) <= _MAX_FLOAT  # False for NaN


def to_line(record: Record) -> str:
    """Return a record as one line of strict JSON. NaN, infinity and numbers beyond the limits become null."""
    fields = {f.name: getattr(record, f.name) for f in dataclasses.fields(record) if f.name != "case"}
    fields = _finite(fields) | {"case": to_dict(record.case), "key": record.key, "kind": record.case.kind}
    return json.dumps(fields, allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    is_numeric = isinstance(value, int | float) and not isinstance(value, bool)
    return value if not is_numeric or is_number(value) else None


def from_line(line: str, path: Path = Path("the file")) -> Record:
    """Return the record in a line of JSON. `path` is the file to name in an error message.

    Raise ValueError if the line is damaged, or `Refusal` if a newer version of this package wrote the record.
    """
    fields = json.loads(line)
    require(isinstance(fields, dict), "not a JSON object")
    require_known_schema(fields, path)
    require(fields.get("schema") == SCHEMA, f"schema {fields.get('schema')!r}, this version reads {SCHEMA}")
    for name, value in fields.items():
        if name != "case":  # the data seed and the sizes of a case have no limit
            _check_numbers(name, value)
    key, _ = fields.pop("key", None), fields.pop("kind", None)
    try:
        fields["case"] = from_dict(fields["case"])
        record = Record(**fields)
    except (TypeError, KeyError, AttributeError, Refusal) as error:
        raise ValueError(f"not a record: {error}") from None
    require(key == record.key, "its key does not belong to its case")
    _check_record(record)
    return record


def require_known_schema(value: Any, path: Path) -> None:
    """Raise `Refusal` if the JSON value of a record or a study has a newer schema than this version reads."""
    schema = value.get("schema") if isinstance(value, dict) else None
    if not isinstance(schema, int | float) or isinstance(schema, bool) or not schema > SCHEMA:
        return
    environment = value.get("environment")
    versions = environment.get("versions") if isinstance(environment, dict) else value.get("versions")
    version = versions.get("ad_scaling") if isinstance(versions, dict) else None
    is_known = isinstance(version, str) and version != scaling.__version__
    needed = f"ad-scaling {version} or newer" if is_known else "the version of ad-scaling that wrote it"
    raise Refusal(
        f"{path} has schema {schema}, ad-scaling {scaling.__version__} reads schema {SCHEMA}: "
        f"install {needed}, or give another folder; nothing was changed"
    )


def require(condition: bool, text: str) -> None:
    """Raise ValueError with a text unless a condition is true."""
    if not condition:
        raise ValueError(text)


def _is_count(value: Any) -> bool:
    return type(value) is int and is_number(value) and value >= 0


def are_seconds(values: Iterable[Any], least: float = 0.0) -> bool:
    """Return whether all values are numbers of seconds between `least` and 30 years."""
    return all(is_number(value) and least <= value <= MAX_SECONDS for value in values)


def _type_check(hint: Any) -> Callable[[Any], bool]:
    """Return a predicate that is true for JSON values of the annotated type without negative numbers."""
    origin, inner = typing.get_origin(hint), [_type_check(argument) for argument in typing.get_args(hint)]
    if origin is types.UnionType:
        return lambda value: any(matches(value) for matches in inner)
    if origin is list:
        return lambda value: isinstance(value, list) and all(map(inner[0], value))
    if origin is dict:
        return lambda value: isinstance(value, dict) and all(map(inner[1], value.values()))
    if hint is float:
        return lambda value: is_number(value) and value >= 0
    if hint is int:
        return _is_count
    return lambda value: hint is Any or isinstance(value, hint)


_TYPE_CHECKS = {name: _type_check(hint) for name, hint in typing.get_type_hints(Record).items()}


def _check_numbers(name: str, value: Any) -> None:
    if isinstance(value, list | dict):
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            _check_numbers(f"{name}.{key}", item)
    elif isinstance(value, int | float) and not isinstance(value, bool) and not is_number(value):
        text = f"{value:g}" if isinstance(value, float) else "an integer of over 63 bits"
        raise ValueError(f"{name} is {text}")


def _check_record(record: Record) -> None:
    case, environment = record.case, record.environment
    for name, matches in _TYPE_CHECKS.items():
        value = getattr(record, name)
        is_plausible = not name.endswith("_seconds") or are_seconds([value or 0])
        require(matches(value) and is_plausible, f"{name} is {shorten(value)}")
    is_known = record.status in STATUSES and record.reason in (None, *REASONS)
    require(is_known, f"unknown status or reason: {record.status!r}, {record.reason!r}")
    require(isinstance(environment.get("digest"), str), "no environment digest")
    for name in ("platform", "device_kind", "setting"):
        value = environment.get(name)
        require(isinstance(value, str | None), f"environment.{name} is {shorten(value)}, not a string")
    is_ceiling = {"k", "terms"} <= case.sizes.keys() and case.target in (*PEAKS, *FLOORS)
    require(case.workload != CEILING or is_ceiling, f"a ceiling without a target or a size: {case.target!r}")
    require(record.status != "ok" or bool(record.seconds), "ok, but without samples")
    are_samples = are_seconds(record.seconds, 1e-12) and are_seconds(record.seconds_min)
    require(are_samples, "a sample that is not a positive number of seconds")
    for compilation in record.compilations:
        stages = [value for name, value in compilation.items() if name != "samples" and value is not None]
        is_valid = are_seconds(stages) and _is_count(compilation.get("samples", 0))
        require(is_valid, f"compilations contains {shorten(compilation)}")
    if record.of_plan:
        load_option("planned_record").check_plan(record)


def shorten(value: Any) -> str:
    """Return the first 60 characters of a value for an error message."""
    return str(value)[:60]
