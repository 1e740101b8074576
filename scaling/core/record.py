"""Define `Record` (the outcome of a run), its statuses and reasons, and `Writer`, which appends JSON lines.

If a field has a unit, the name of the field ends with the unit, such as `_bytes`. The modules in
scaling/results read records. This module does not import JAX.
"""

import contextlib
import dataclasses
import os
import statistics
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from json import dumps  # bound here, because a user's module may replace them
from pathlib import Path
from typing import Any

from scaling.core.case import Case, to_dict

SCHEMA = 1
STATUSES = ("ok", "skipped", "failed", "planned")
SKIPPED = {
    "not_defined": "the combination has no meaning",
    "not_offered": "the workload or the other library (engine) does not support it",
    "not_installed": "the other library (engine) is not installed on this machine",
    "indivisible": "the axis does not divide evenly over the devices",
    "no_digits": "the check could not decide whether the result is correct, for example because of rounding",
    "too_large": "the case needs more memory than there is",
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
RecordFields = dict[str, Any]  # some fields of a `Record`, by name


@dataclass(frozen=True)
class Record:
    """The outcome and the measurements of one run of a case. Unknown and unused fields are None."""

    case: Case
    status: str
    environment: dict[str, Any]  # see environment.describe
    reason: str | None = None  # a key of REASONS
    text: str | None = None  # an explanation of the reason
    replicate: int = 0  # the number of the repetition of the study, from 0
    attempt: int = 1  # the number of the attempt at this replicate, from 1
    order: int = 0  # the position in the shuffled order of the run
    order_seed: int = 0  # the random seed of this order
    started_at: str | None = None  # UTC, ISO 8601
    trace_seconds: float | None = None
    lower_seconds: float | None = None
    compile_seconds: float | None = None
    first_seconds: float | None = None
    check_seconds: float | None = None
    sampling_seconds: float | None = None  # the wall-clock time of the warm-up and all turns
    seconds: list[float] = field(default_factory=list)  # time per call of each sample in the slowest process
    seconds_min: list[float] = field(default_factory=list)  # like `seconds`, in the fastest process
    slowest_rank: int | None = None  # the process that was the slowest most often
    calls_per_sample: int | None = None
    floor_seconds: float | None = None  # the time of an empty program with the same api and devices
    turns: list[int] = field(default_factory=list)  # the number of samples of each turn, in order
    block: str | None = None  # an identifier of the cases whose turns alternated; not Case.block
    compilations: list[dict[str, Any]] = field(default_factory=list)  # always empty
    # The indices of the turns that were disturbed, by cause: "throttled" or "foreign_load" (other processes).
    marked: dict[str, list[int]] = field(default_factory=dict)
    before: dict[str, Any] | None = None  # the state of the host before sampling, see host_monitor.py
    after: dict[str, Any] | None = None  # the state of the host after sampling
    stop_reason: str | None = None
    error: float | None = None  # the largest relative error of the result that was compared last
    tolerance: float | None = None
    # The fraction of the "entries" that the check covers, and of the "points" with all entries covered.
    checked: dict[str, float] | None = None
    passes: int | None = None  # the number of JVPs and VJPs for one Jacobian
    flops: float | None = None  # per device, in the traced program, with all iterations of loops
    transcendentals: float | None = None
    hbm_bytes: float | None = None
    temp_bytes: int | None = None  # per device
    argument_bytes: int | None = None  # per device
    output_bytes: int | None = None  # per device
    peak_bytes: int | None = None  # per device, if the backend reports it and this case increased it
    collective_bytes: int | None = None  # per device: the larger of input and output of each collective
    collectives: dict[str, int] | None = None  # kind -> number in the compiled program
    blocks: dict[str, Any] | None = None  # with chunk=auto: block, chunk, storage, limit_bytes, probes
    chosen: dict[str, Any] | None = None  # with mode=auto: mode, batch, chunk, block, forward
    padding: float | None = None  # with split=both or seeds=colored: see programs/program_stats.py
    detect_seconds: float | None = None  # with seeds=colored: the time to detect the sparsity pattern
    color_seconds: float | None = None  # with seeds=colored: the time to color its columns or rows
    colors: dict[str, int | None] | None = None  # the numbers of column colors and of row colors
    nonzeros: int | None = None  # the number of entries of the sparsity pattern
    compulsory_bytes: int | None = None  # per device: the inputs read once and the result written once
    # The fields of `scaling plan`: the program compiled for a machine, and its predicted time there.
    program_flops: float | None = None  # per device, of the optimized program
    program_transcendentals: float | None = None
    kernels: list[dict[str, Any]] | None = None  # equal kernels once, with a count (programs/kernel_work.py)
    messages: list[dict[str, Any]] | None = None  # collectives: kind, bytes, group (devices), times
    program: str | None = None  # cases with the same value do the same work on each device
    compiled_as: str | None = None  # key of the compiled case with equal work per device
    capacity_bytes: int | None = None  # the memory of a device
    predicted: dict[str, Any] | None = None  # time, interval and parts; see plan/time_model.py
    schema: int = SCHEMA

    def __hash__(self) -> int:
        return hash((self.key, self.replicate, self.attempt, self.started_at, *self.seconds[:1]))

    @property
    def key(self) -> str:
        """Return the key of the case, a hash of its settings."""
        return self.case.key

    @property
    def setting(self) -> str:
        """Return a hash of the environment without the versions of a peer (an AD library other than JAX)."""
        return str(self.environment.get("setting", self.environment["digest"]))

    @property
    def identity(self) -> tuple[str, str, int]:
        """Return (case key, environment hash, replicate number), which is equal for repeated attempts."""
        return self.key, self.environment["digest"], self.replicate

    @property
    def compulsory(self) -> int | None:
        """Return the minimum number of bytes that a device reads and writes per call, or None if unknown."""
        if self.compulsory_bytes is not None or self.argument_bytes is None or self.output_bytes is None:
            return self.compulsory_bytes
        return self.argument_bytes + self.output_bytes

    @property
    def is_prediction(self) -> bool:
        """Return whether the record is a prediction of `scaling plan`, not a measurement."""
        return "hardware" in self.environment

    @property
    def honest(self) -> bool:
        """Return whether each CPU device had a core of its own. Return true for a GPU or TPU."""
        cores = self.environment.get("cores")
        has_core_per_device = isinstance(cores, list) and len(cores) == self.case.devices
        return has_core_per_device or self.environment.get("platform") != "cpu"


def bytes_while_running(needs: Mapping[str, Any], result_copies: int = 1) -> int | None:
    """Return the total bytes of arguments, temporaries and `result_copies` results, or None if unknown."""
    arguments, temporaries, output = (needs.get(f"{name}_bytes") for name in ("argument", "temp", "output"))
    if arguments is None or temporaries is None or output is None:
        return None
    return int(arguments + temporaries + result_copies * output)


def is_number(value: Any) -> bool:
    """Return whether a record may contain the number `value`: an int below 2^63, or a float up to 1e30."""
    limit = _MAX_INTEGER if isinstance(value, int) else _MAX_FLOAT
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= limit


def outcome_fields(record: Record) -> dict[str, Any]:
    """Return the status, reason, text and `seconds` of a record, by field name.

    If `seconds` is not empty, it is replaced by a list with its median only.
    """
    median = [statistics.median(record.seconds)] if record.seconds else []
    return {"status": record.status, "reason": record.reason, "text": record.text, "seconds": median}


def to_line(record: Record) -> str:
    """Return a record as one line of JSON. NaN, infinity and numbers out of range become null."""
    record_fields = {f.name: getattr(record, f.name) for f in dataclasses.fields(record) if f.name != "case"}
    case_fields = {"case": to_dict(record.case), "key": record.key, "kind": record.case.kind}
    return dumps(_without_invalid_numbers(record_fields) | case_fields, allow_nan=False)


def _without_invalid_numbers(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_invalid_numbers(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_without_invalid_numbers(item) for item in value]
    is_numeric = isinstance(value, int | float) and not isinstance(value, bool)
    return value if not is_numeric or is_number(value) else None


class Writer:
    """A writer that appends records to a new JSON Lines file in a results folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file = -1  # the descriptor of the file, or -1 before it is open

    def append(self, record: Record | str) -> None:
        """Append a record, given as a `Record` or as its line of JSON, and sync the file to disk."""
        record_line = f"{record if isinstance(record, str) else to_line(record)}\n".encode()
        is_open = False
        with contextlib.suppress(OSError):  # not open yet, or removed by another client of NFS
            is_open = os.fstat(self._file).st_nlink > 0
        if not is_open:
            name = f"{time.strftime('%Y%m%dT%H%M%S', time.gmtime())}-{uuid.uuid4().hex[:12]}.jsonl"
            flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_APPEND
            self._file = os.open(self._folder / name, flags, 0o644)
        file_size = os.fstat(self._file).st_size
        try:
            while record_line:
                record_line = record_line[os.write(self._file, record_line) :]
            os.fsync(self._file)
        except OSError as error:
            os.ftruncate(self._file, file_size)  # removes an incomplete line
            error.filename = str(self._folder)  # `os.write` does not set it
            raise
