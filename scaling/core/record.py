"""A record: what happened when a case ran, as a frozen value and as one line of JSON. Names carry units.

Knows the fields and the closed lists; not the disk, not JAX.
"""

import dataclasses
import functools
import json
from dataclasses import dataclass, field
from typing import Any

from scaling.core.case import Case, to_dict

SCHEMA = 1
STATUSES = ("ok", "skipped", "failed", "planned")
SKIPPED = {
    "not_defined": "the combination has no meaning",
    "not_offered": "the workload, or the other system, does not offer it",
    "not_installed": "the other system is not on this machine",
    "indivisible": "the axis does not divide evenly over the devices",
    "no_digits": "a finite difference, or a sum in few bits, with no correct digit",
    "too_large": "the compiled program needs more memory than there is",
    "dominated": "a smaller neighbour ran out of memory",
}
FAILED = {
    "wrong_answer": "the result differs from the reference",
    "not_finite": "the result holds NaN or infinity",
    "collective": "devices communicated where nothing should be sent",
    "out_of_memory": "memory ran out",
    "error": "an exception",
    "killed": "the process died",
    "not_as_asked": "the code, the nodes or the devices were not those that were asked for",
    "timeout": "the time limit of a case passed",
    "preempted": "its job had to give way to another",
    "node_failed": "a node of its job failed",
    "cancelled": "its job was cancelled",
}
REASONS = {**SKIPPED, **FAILED}
COMPILING_STAGES = ("trace_seconds", "lower_seconds", "compile_seconds")
STAGES = (*COMPILING_STAGES, "first_seconds", "check_seconds", "sampling_seconds")  # of a case, in order
_MOST_INTEGER = 2**63 - 1  # what a 64-bit integer of other programs holds
_MOST = 1e30  # of any other number


@dataclass(frozen=True)
class Record:
    """One attempt at one case. Seconds are per call; every sample is kept, in order."""

    case: Case
    status: str
    environment: dict[str, Any]  # see environment.py; its "digest" is part of the identity
    reason: str | None = None
    text: str | None = None  # free text on the reason
    replicate: int = 0
    attempt: int = 1
    order: int = 0  # position in the shuffled order of its run
    order_seed: int = 0
    started_at: str | None = None  # UTC, ISO 8601
    trace_seconds: float | None = None
    lower_seconds: float | None = None
    compile_seconds: float | None = None
    first_seconds: float | None = None
    check_seconds: float | None = None
    sampling_seconds: float | None = None  # warming up and all turns, by the wall clock
    seconds: list[float] = field(default_factory=list)  # the maximum over processes
    seconds_min: list[float] = field(default_factory=list)  # the minimum over processes
    slowest_rank: int | None = None  # the process that most often took the maximum
    calls_per_sample: int | None = None
    floor_seconds: float | None = None  # an empty call through the same api, on as many devices and processes
    turns: list[int] = field(default_factory=list)  # samples of each turn, in order
    block: str | None = None  # shared by records whose turns alternated
    # The further compilations: seconds of their stages, and their number of samples.
    compilations: list[dict[str, Any]] = field(default_factory=list)
    marked: dict[str, list[int]] = field(default_factory=dict)  # throttled | foreign_load -> numbers of turns
    before: dict[str, Any] | None = None  # the state of the host when sampling began; see host_monitor.py
    after: dict[str, Any] | None = None
    stop_reason: str | None = None
    error: float | None = None
    tolerance: float | None = None
    # The share of entries compared one by one, and of points all of whose entries were.
    checked: dict[str, float] | None = None
    passes: int | None = None  # JVPs or VJPs of one Jacobian
    flops: float | None = (
        None  # per device, as traced, with all trips of loops; None where these are not known
    )
    transcendentals: float | None = None
    hbm_bytes: float | None = None
    temp_bytes: int | None = None  # per device
    argument_bytes: int | None = None  # per device
    output_bytes: int | None = None  # per device
    peak_bytes: int | None = None  # per device, where the backend reports it and this case raised it
    collective_bytes: int | None = None  # per device: of each collective the larger of its input and output
    collectives: dict[str, int] | None = None  # kind -> number in the compiled program
    blocks: dict[str, Any] | None = None  # with chunk=auto: block, chunk, storage, limit_bytes, probes
    padding: float | None = None  # with split=both: the share of points x seeds that is wasted
    detect_seconds: float | None = None  # with seeds=colored: finding where the Jacobian is not zero
    color_seconds: float | None = None  # ... and which columns or rows can share a seed
    colors: dict[str, int | None] | None = None  # the number of seeds of columns and of rows
    nonzeros: int | None = None  # entries of the pattern
    compulsory_bytes: int | None = None  # per device: the inputs read once and the result written once
    # Of a plan: what was read off the program that was compiled for a machine, and its predicted time there.
    program_flops: float | None = None  # per device, of the optimised program
    program_transcendentals: float | None = None
    kernels: list[dict[str, Any]] | None = None  # see hlo_cost.py; identical ones once, with their times
    messages: list[dict[str, Any]] | None = None  # its collectives: kind, bytes, group (devices), times
    program: str | None = None  # a digest of the work of each device, before it is optimised
    compiled_as: str | None = None  # the key of a case whose devices do the same and that was compiled
    capacity_bytes: int | None = None  # of a device
    predicted: dict[str, Any] | None = None  # seconds with their interval and parts; see plan/time_model.py
    schema: int = SCHEMA

    @functools.cached_property
    def key(self) -> str:
        """The key of the case, hashed once: it is read often from thousands of records."""
        return self.case.key

    @property
    def setting(self) -> str:
        """What may be compared: the digest of the environment without the versions of a peer."""
        return str(self.environment.get("setting", self.environment["digest"]))

    @property
    def identity(self) -> tuple[str, str, int]:
        """Equal for records of the same measurement: (key, environment digest, replicate)."""
        return self.key, self.environment["digest"], self.replicate

    @property
    def compulsory(self) -> int | None:
        """Return the compulsory bytes of a device, or None where they are not known.

        A record from before the field had a value has them as the inputs and the result of its program.
        """
        if self.compulsory_bytes is not None or self.argument_bytes is None or self.output_bytes is None:
            return self.compulsory_bytes
        return self.argument_bytes + self.output_bytes

    @property
    def good(self) -> bool:
        """Whether the case need not run again."""
        return self.status != "failed"

    @property
    def of_plan(self) -> bool:
        """Whether it is of a plan, and says nothing of what happened on a machine."""
        return "hardware" in self.environment

    @property
    def honest(self) -> bool:
        """Whether its time may be drawn as scaling: on CPU each device had exactly one core."""
        cores = self.environment.get("cores")
        return self.environment.get("platform") != "cpu" or (
            isinstance(cores, list) and len(cores) == self.case.devices
        )


def is_number(value: Any) -> bool:
    """Return whether a value is a finite number of a plausible size."""
    if isinstance(value, bool):
        return False
    if isinstance(value, int):
        return abs(value) <= _MOST_INTEGER
    return isinstance(value, float) and abs(value) <= _MOST  # which no NaN is


def to_line(record: Record) -> str:
    """Return a record as one line of strict JSON; a number that JSON cannot hold becomes null."""
    fields = {f.name: getattr(record, f.name) for f in dataclasses.fields(record) if f.name != "case"}
    fields = _finite(fields) | {"case": to_dict(record.case), "key": record.key, "kind": record.case.kind}
    return json.dumps(fields, allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    plain = not isinstance(value, int | float) or isinstance(value, bool)
    return value if plain or is_number(value) else None
