"""Run one case: prepare an `Attempt`, sample its run time, check its results, and return its `Record`.

The calls that lead from a case to its record are:

    prepare_case                          returns an Attempt
      _compile_and_check                  returns a PlacedProgram
        _compile_jax_program              compiles the case (compile_case.compile_case)
          _compile_program                times each stage of a compilation (compile_case.compile_stages)
        _check_result                     compares a result with the reference (check.verdict)
    take_turn                             takes the samples of one turn (timing.sample_turns)
    finish_case                           checks the result of one more call, and returns the Record

An exception in any of these calls ends the attempt, and sets the status, reason and text of the record.
"""

import contextlib
import dataclasses
import datetime
import functools
import gc
import hashlib
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from time import perf_counter  # bound here, because a user's module may replace it
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.experimental import multihost_utils

from scaling.core import check, compile_case, layout, load_option, timing, workload
from scaling.core.case import AUTO, CEILING, CHOSEN_FIELDS, JAX, Case, Refusal, TooLarge
from scaling.core.compile_case import CompiledCase, Stages
from scaling.core.derivative import Derivative, describe_derivative
from scaling.core.environment import is_out_of_memory, scrub
from scaling.core.formatting import TRACEBACK_MARK, format_location, format_traceback
from scaling.core.record import COMPILING_STAGES, Record
from scaling.core.timing import Samples, Sampling, gather_maximum
from scaling.core.workload import Workload, uniform

_NO_RULE = (
    "-mode autodiff",
    "Reverse-mode diff",
    "support JVP",
    "support transpose",
    "cannot be differentiated",
)
_MAX_GATHERED_CHARACTERS = 300  # maximum length of an error message that is sent to the other processes


class CaseEnded(Exception):
    """Raised to end a case with the given status, reason and text of its record."""

    def __init__(self, status: str, reason: str, text: str) -> None:
        super().__init__(text)
        self.status, self.reason = status, reason


class ProcessGroup(NamedTuple):
    """The worker processes that run a case together, and their devices."""

    devices: list[Any]  # the devices of all processes
    platform: str  # such as "cpu" or "gpu"
    gather: timing.Gather = timing.gather_single_process  # exchanges floats between the processes
    rank: int = 0  # the index of this process
    processes: int = 1
    cores: list[int] | None = None  # the cores that this process is bound to, or None if it is not bound
    nodes: int = 1

    @property
    def local_devices(self) -> list[Any]:
        """Return the devices of this process."""
        return [device for device in self.devices if device.process_index == self.rank]


class PlacedProgram(NamedTuple):
    """A compiled program whose inputs are on the devices, ready to be timed."""

    derivative: Derivative  # of the case with the mode that mode=auto chose
    call: Callable[[], Any]  # runs the program once and returns its result
    collect: Callable[[Any], Any]  # converts a result to an array on the host
    wait: Callable[[Any], Any] = lambda result: None  # blocks until a result is ready, unless `call` blocks


@dataclass
class Attempt:
    """A case that is being run: its record so far, and the program to time."""

    record: Record  # the record so far, with the status "ok" until an error or a skip ends the attempt
    group: ProcessGroup
    sampling: Sampling
    program: PlacedProgram | None = None  # the program to time, or None after the attempt ended
    turns: Iterator[Samples] | None = None  # yields the samples after each turn
    known_blocks: Mapping[str, Any] | None = None  # the field `blocks` of an earlier record, if any
    stages: Stages | None = None  # of the program, if it is already compiled
    correct_digests: list[bytes] = field(default_factory=list)  # the hashes of the results that were compared
    ended: bool = False  # whether the attempt failed or was skipped

    def note(self, **fields: Any) -> None:
        """Replace `self.record` by a copy with the given fields."""
        self.record = dataclasses.replace(self.record, **fields)


def run_case(blank: Record, devices: list[Any], platform: str, sampling: Sampling) -> Record:
    """Run the case of `blank`, a record without measurements, and return the complete record."""
    attempt = prepare_case(blank, ProcessGroup(devices, platform), sampling)
    while not attempt.ended and not take_turn(attempt):
        pass
    return finish_case(attempt)


def prepare_case(
    blank: Record,
    group: ProcessGroup,
    sampling: Sampling,
    known_blocks: Mapping[str, Any] | None = None,
    expected_digest: str | None = None,
    stages: Stages | None = None,
) -> Attempt:
    """Compile a case, check the result of one call, and return an `Attempt` that is ready to be timed.

    `blank` is a record without measurements. After an error, `Attempt.ended` is true. `known_blocks` is the
    field `blocks` of an earlier record. `expected_digest` is the hash of the workload's source when the case
    was requested. `stages` is the program if it is already compiled for these devices.
    """
    record = dataclasses.replace(blank, status="ok")
    attempt = Attempt(record, group, sampling, known_blocks=known_blocks, stages=stages)
    with _end_on_error(attempt):
        peak = compile_case.largest_statistic(group.local_devices, "peak_bytes_in_use")
        in_use = compile_case.largest_statistic(group.local_devices, "bytes_in_use")
        attempt.note(started_at=datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds"))
        with _raise_in_all_processes(group):
            if len({expected_digest, blank.environment.get("workload_digest")} - {None}) > 1:  # None: unknown
                text = f"{blank.case.workload} has changed since this case was asked for; run the study again"
                raise CaseEnded("failed", "not_as_asked", text)
            case, devices = blank.case, tuple(group.devices)  # first, because a first program waits for JAX
            latency = _dispatch_latency(case.api, case.jit, devices) if case.engine == JAX else None
        attempt.note(floor_seconds=latency and gather_maximum(group.gather, latency))
        attempt.program = _compile_and_check(attempt)
        # The peak of a device never decreases, and its bytes in use include the inputs of other cases.
        new_peak = compile_case.largest_statistic(group.local_devices, "peak_bytes_in_use")
        attempt.note(peak_bytes=None if new_peak is None or new_peak == peak else new_peak - (in_use or 0))
    return attempt


def take_turn(attempt: Attempt) -> bool:
    """Take one turn (a series of samples) of a case. Return True after the last turn or an error."""
    began = perf_counter()
    with _end_on_error(attempt):
        has_enough = _sample_one_turn(attempt)
        attempt.note(sampling_seconds=(attempt.record.sampling_seconds or 0.0) + perf_counter() - began)
        return has_enough
    return True


def finish_case(attempt: Attempt) -> Record:
    """Return the record of a case. If no error or skip ended the case, check the result of one more call."""
    with _end_on_error(attempt):
        _check_another_call(attempt)
    attempt.turns = attempt.program = None
    return attempt.record


def _check_another_call(attempt: Attempt) -> None:
    if (program := attempt.program) is not None:  # the attempt has not ended
        with _raise_in_all_processes(attempt.group):
            result = jax.block_until_ready(program.call())
        _check_result(attempt, program, result)


@contextlib.contextmanager
def _end_on_error(attempt: Attempt) -> Iterator[None]:
    """Return a context manager that writes an exception to the record of the case, and ends the case."""
    try:
        yield
    except Exception as error:
        status, reason, text = describe_error(error)
        needs = error.needs if isinstance(error, TooLarge) else {}
        no_samples: dict[str, Any] = {"seconds": [], "seconds_min": [], "turns": [], "marked": {}}
        attempt.note(status=status, reason=reason, text=text, **needs, **no_samples)
        attempt.ended, attempt.turns, attempt.program = True, None, None
        if not isinstance(error, CaseEnded | TooLarge):
            cause = error.__context__ if isinstance(error, Refusal) and error.__context__ else error
            frames = format_traceback(cause)
            print(f"{TRACEBACK_MARK}{attempt.record.key}", frames, sep="\n", file=sys.stderr, flush=True)
    if attempt.ended:
        gc.collect()


def describe_error(error: Exception) -> tuple[str, str, str]:
    """Return the status, reason and text to record for a case that raised `error`."""
    if isinstance(error, CaseEnded):
        return error.status, error.reason, str(error)
    if isinstance(error, TooLarge):
        is_final = compile_case.IN_USE not in str(error)
        return *(("skipped", "too_large") if is_final else ("failed", "out_of_memory")), str(error)
    lines = [line for line in str(error).splitlines() if not line.startswith('  File "')]  # from a callback
    text, suffix = " ".join(" ".join(lines).split()).replace("Traceback (most recent call last): ", ""), ""
    if not isinstance(error, Refusal):  # the message of a Refusal is a complete sentence
        text, suffix = f"{type(error).__name__}: {text}".removesuffix(": "), format_location(error)
    text = scrub(text)[: 500 - len(suffix)] + suffix
    if isinstance(error, NotImplementedError) or any(message in text for message in _NO_RULE):
        return "skipped", "not_offered", text  # such as jnp.linalg.svd in bfloat16, or a loop in reverse mode
    return "failed", "out_of_memory" if is_out_of_memory(text) else "error", text


@contextlib.contextmanager
def _raise_in_all_processes(group: ProcessGroup) -> Iterator[None]:
    """Return a context manager that raises an exception in all processes if one process fails.

    If a statement in the block can fail in one process only, an inner block with this context manager must
    end before the next collective. Otherwise, the other processes would wait forever.
    """
    error = None
    try:
        yield
    except Exception as raised:
        if hasattr(raised, "in_all_processes"):  # an inner block has raised it in all processes
            raise
        error = raised
    succeeded = [values[0] == 1.0 for values in group.gather([float(error is None)])]
    if all(succeeded):
        return
    description = "|".join(describe_error(error or Exception()))[:_MAX_GATHERED_CHARACTERS]
    descriptions = timing.gather_text(group.gather, description)
    first_failed = succeeded.index(False)
    status, reason, text = descriptions[first_failed].split("|", 2)
    ended = error or CaseEnded(status, reason, f"process {first_failed} of {group.processes}: {text}")
    ended.in_all_processes = True  # type: ignore[attr-defined]
    raise ended


def _compile_and_check(attempt: Attempt) -> PlacedProgram:
    case, group = attempt.record.case, attempt.group
    with _raise_in_all_processes(group):
        _require_one_process(case, group)
        if case.mode == AUTO:
            case = load_option("advisor").choose_case(case, group)
            attempt.note(chosen={name: getattr(case, name) for name in CHOSEN_FIELDS})
        built_workload = workload.build(case)
    with _raise_in_all_processes(group):
        if case.engine == JAX:
            program = _compile_jax_program(attempt, case, built_workload)
        else:
            program = load_option("peers").prepare_program(attempt, case, built_workload)
    with _raise_in_all_processes(group):
        first_seconds, result = timing.time_once(lambda: jax.block_until_ready(program.call()))
        attempt.note(first_seconds=first_seconds)
        if case.engine == JAX:
            program = program._replace(wait=make_waiter(result))  # for results with this structure
    _check_result(attempt, program, result)
    return program


def _compile_jax_program(attempt: Attempt, case: Case, built_workload: Workload) -> PlacedProgram:
    group, note = attempt.group, attempt.note
    describe_shortage = functools.partial(describe_memory_shortage, group)
    if group.processes > 1 and case.chunk == AUTO:  # several processes cannot offload to the host
        case = dataclasses.replace(case, storage="device")
    derivative = compile_case.describe_and_color(case, built_workload, describe_shortage)
    note(passes=derivative.passes or None, padding=load_option("program_stats").padding_share(derivative))
    if derivative.coloring is not None:
        note(**load_option("coloring").coloring_fields(derivative.coloring))
    stages = attempt.stages
    compile_program = functools.partial(_compile_program, group) if stages is None else lambda _: stages
    compiled = compile_case.compile_case(
        derivative, group.devices, compile_program, describe_shortage, attempt.known_blocks
    )
    if compiled.blocks is not None:
        note(blocks=compiled.blocks, passes=compiled.derivative.passes)
    note(**{name: getattr(compiled.stages, name) for name in COMPILING_STAGES}, **compiled.needs)
    work, wrong_collectives = load_option("program_stats").measure_work(compiled, group.devices)
    note(compulsory_bytes=compiled.compulsory_bytes, **work)
    if wrong_collectives:
        raise CaseEnded("failed", "collective", wrong_collectives)
    return PlacedProgram(derivative, *compile_case.make_runner(compiled))


def _require_one_process(case: Case, group: ProcessGroup) -> None:
    single_process_options = {
        "storage=host": case.storage == "host",
        "chunk=auto with pmap": case.chunk == AUTO and case.api == "pmap",
        "the cache": case.cache is not None,
        "mode=auto": case.mode == AUTO,
    }
    for option, is_set in single_process_options.items():
        if is_set and group.processes > 1:
            text = f"{option} works in one process only, and this case has {group.processes}"
            raise CaseEnded("skipped", "not_defined", text)


def _compile_program(group: ProcessGroup, program: layout.Program) -> Stages:
    case = program.derivative.case
    arguments: list[Any] = list(program.arguments.values())
    if case.api == "pmap" and group.processes > 1:  # pmap then rejects abstract arguments
        arguments = layout.place_inputs(program)
    compile_once = functools.partial(compile_case.compile_stages, program.function, arguments)
    if case.cache is not None:
        stages: Stages = load_option("compilation_cache").compile_with_cache(case.cache, compile_once)
        return stages
    with _raise_in_all_processes(group):  # chunk=auto then exchanges which programs fit
        return compile_once()


def describe_memory_shortage(group: ProcessGroup, compiled: CompiledCase) -> str | None:
    """Return an error message if a case does not fit into the memory of a process, otherwise None."""
    device, devices_per_node = group.local_devices[0], len(group.devices) // group.nodes
    with _raise_in_all_processes(group):  # an earlier statement may have failed in another process
        shortage = compile_case.describe_shortage(compiled, device, devices_per_node, group.platform)
    return next(filter(None, timing.gather_text(group.gather, shortage or "")), None)


def _check_result(attempt: Attempt, program: PlacedProgram, result: Any) -> None:
    """Compare a result with its reference, and record the error. Raise `CaseEnded` if the result is wrong."""
    began, group = perf_counter(), attempt.group
    if group.processes > 1:
        with _raise_in_all_processes(group):
            result = multihost_utils.process_allgather(result, tiled=True)
    with _raise_in_all_processes(group):
        array = program.collect(result)
        del result
        digest = hashlib.blake2b(np.ascontiguousarray(array).view(np.uint8).data).digest()
        if digest in attempt.correct_digests:  # equal to an earlier correct result
            return
        verdict = check.verdict(program.derivative, array, group.platform)
        attempt.note(check_seconds=(attempt.record.check_seconds or 0.0) + perf_counter() - began)
        attempt.note(error=verdict.error, tolerance=verdict.tolerance, checked=verdict.checked)
        if verdict.reason:
            status = "skipped" if verdict.reason == "no_digits" else "failed"
            suffix = ", in a later call" if attempt.correct_digests else ""
            raise CaseEnded(status, verdict.reason, f"{verdict.text or ''}{suffix}")
        attempt.correct_digests.append(digest)


def make_waiter(example: Any) -> Callable[[Any], Any]:
    """Return a fast function that waits for a result of the same structure as `example`."""
    leaves = example if isinstance(example, list | tuple) else ()
    if leaves and all(hasattr(leaf, "block_until_ready") for leaf in leaves):
        return lambda result: [leaf.block_until_ready() for leaf in result]
    # `jax.block_until_ready` takes 1 us more than the methods of the arrays.
    wait: Callable[[Any], Any] = getattr(type(example), "block_until_ready", jax.block_until_ready)
    return wait


def _sample_one_turn(attempt: Attempt) -> bool:
    group, monitor = attempt.group, load_option("host_monitor")
    node_cores = group.cores if group.nodes > 1 else attempt.record.environment.get("cores", group.cores)
    if attempt.record.before is None:
        attempt.note(before=monitor.read_host(group.platform, node_cores))
    if attempt.turns is None:
        program, floor = attempt.program, attempt.record.floor_seconds
        assert program is not None
        attempt.turns = timing.sample_turns(program.call, attempt.sampling, program.wait, floor, group.gather)
    counters_before = monitor.read_counters(group.platform, group.cores)
    samples = next(attempt.turns)
    local_marks = monitor.find_disturbances(counters_before)
    by_rank = group.gather([float(mark in local_marks) for mark in monitor.MARKS])
    for mark, *flags in zip(monitor.MARKS, *by_rank, strict=True):
        if any(flags):
            samples.marked.setdefault(mark, []).append(len(samples.turns) - 1)
    sample_fields = ("seconds", "seconds_min", "turns", "marked", "calls_per_sample", "stop_reason")
    measured = {name: getattr(samples, name) for name in sample_fields}
    attempt.note(**measured, slowest_rank=statistics.mode(samples.slowest))
    if samples.stop_reason is None:
        return False
    attempt.note(after=monitor.read_host(group.platform, node_cores))
    return True


@functools.cache
def _dispatch_latency(api: str, jit: bool, devices: tuple[Any, ...]) -> float:
    """Return the time in seconds that one call of an empty program takes with this api and these devices."""
    case = Case(CEILING, "call", points=len(devices), mode="value", api=api, devices=len(devices), jit=jit)
    negation = Workload(lambda x: -x, {"x": uniform(1)}, wrt="x")  # as target=call of the workload `ceiling`
    program = layout.lay_out(describe_derivative(case, negation), devices)
    arguments = layout.place_inputs(program)
    stages = compile_case.compile_stages(program.function, arguments)
    call = functools.partial(stages.call, *arguments)
    return timing.time_floor(call, make_waiter(call()))
