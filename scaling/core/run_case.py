"""Run a case: build, compile, call once, check, then sample in turns. Every case ends as a record.

Knows devices and programs; does not know where a record is written, nor who asks for it.
"""

import contextlib
import dataclasses
import datetime
import functools
import gc
import hashlib
import itertools
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.experimental import multihost_utils

from scaling.core import (
    check,
    compile_case,
    environment,
    extensions,
    inputs,
    layout,
    memory,
    process_cache,
    shape,
    timing,
    user_frames,
    workload,
)
from scaling.core.case import AUTO, CEILING, JAX, Case, Refusal
from scaling.core.compile_case import CompiledCase, CompileSettings, DescribeShortage
from scaling.core.pattern import Coloring
from scaling.core.record import COMPILING_STAGES, Record
from scaling.core.shape import DerivativeShape
from scaling.core.timing import Samples, Sampling
from scaling.core.workload import Workload

_SHARED_TEXT = 300  # characters of an error that processes send each other


class CaseEnded(Exception):
    """A case ends without a time: its status, the reason, and the text of the record."""

    def __init__(self, status: str, reason: str, text: str) -> None:
        super().__init__(text)
        self.status, self.reason = status, reason


class ProcessGroup(NamedTuple):
    """The processes that run a case: all devices, the platform, and how the processes exchange numbers."""

    devices: list[Any]
    platform: str
    gather: timing.Gather = timing.single_process
    rank: int = 0
    processes: int = 1
    cores: list[int] | None = None  # of this process, where it is bound


@dataclass
class Attempt:
    """A case on the way to its record, and the turns in which it is sampled.

    record: what its stages found out so far; "ok" unless the attempt ended. ready: what is sampled.
    """

    record: Record
    turns: Iterator[bool] | None = None  # whether the samples are enough now
    ready: "CheckedProgram | None" = None
    ended: bool = False

    def note(self, **fields: Any) -> None:
        """Set fields of the record."""
        self.record = dataclasses.replace(self.record, **fields)


Note = Callable[..., None]  # takes fields of a record, at once, in case the next stage fails


class CheckedProgram(NamedTuple):
    """A case that was run once and found right.

    wait: waits for the result of a call. check: takes a result, and raises `CaseEnded` where it is wrong.
    sample: how a peer takes samples itself.
    """

    call: Callable[[], Any]
    wait: Callable[[Any], Any] | None
    check: Callable[[Any], None]
    sample: Callable[[Sampling], Samples] | None = None


class Runner(NamedTuple):
    """A case ready to be called. collect: returns a result as an array on the host. sample: as above."""

    sizes: DerivativeShape
    call: Callable[[], Any]
    collect: Callable[[Any], Any]
    sample: Callable[[Sampling], Samples] | None = None


def run_case(blank: Record, devices: list[Any], platform: str, sampling: Sampling) -> Record:
    """Run one case and return its record, whatever happens."""
    attempt = prepare_case(blank, ProcessGroup(devices, platform), sampling)
    while not attempt.ended and not take_turn(attempt):
        pass
    return finish_case(attempt)


def prepare_case(
    blank: Record, group: ProcessGroup, sampling: Sampling, known_blocks: Mapping[str, Any] | None = None
) -> Attempt:
    """Build, compile, run once and check a case; return an attempt that can take turns, or one that ended.

    known_blocks: the blocks that another attempt at this case found, as its record has them.
    """
    mine = [device for device in group.devices if device.process_index == group.rank]
    peak, held = memory.most_bytes(mine, "peak_bytes_in_use"), memory.most_bytes(mine, "bytes_in_use")
    attempt = Attempt(dataclasses.replace(blank, status="ok"))
    attempt.note(started_at=datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds"))
    with _record_failure(attempt):
        # First: the first program of a process pays for the start of JAX itself.
        attempt.note(floor_seconds=_dispatch_latency(blank.case, group))
        attempt.ready = _compile_and_check(blank.case, group, attempt.note, known_blocks)
        now = memory.most_bytes(mine, "peak_bytes_in_use")
        # An allocator never forgets an older peak, and holds what other cases were prepared with.
        attempt.note(peak_bytes=None if now is None or now == peak else now - (held or 0))
        attempt.turns = _sample_turns(attempt, group, sampling)
    return attempt


def refuse_case(
    blank: Record, group: ProcessGroup, sampling: Sampling, known_blocks: Mapping[str, Any] | None = None
) -> Attempt:
    """Return an attempt that failed before it began, because its workload has changed."""
    words = f"{blank.case.workload} has changed since this case was asked for; run the study again"
    return fail_case(Attempt(blank), "not_as_asked", words)


def fail_case(attempt: Attempt, reason: str, text: str) -> Attempt:
    """End an attempt as failed."""
    with _record_failure(attempt):
        raise CaseEnded("failed", reason, text)
    return attempt


def take_turn(attempt: Attempt) -> bool:
    """Take the samples of one turn; return whether they are enough now, or the attempt ended."""
    assert attempt.turns is not None
    began = time.perf_counter()
    with _record_failure(attempt):
        enough = next(attempt.turns)
        earlier = attempt.record.sampling_seconds or 0.0
        attempt.note(sampling_seconds=earlier + time.perf_counter() - began)
        return enough
    return True


def finish_case(attempt: Attempt) -> Record:
    """Check the result of one more call, after all samples, and return the record."""
    if not attempt.ended and attempt.ready is not None:
        with _record_failure(attempt):
            _check_again(attempt.ready)
    attempt.turns = attempt.ready = None
    return attempt.record


def _check_again(ready: CheckedProgram) -> None:
    """Raise `CaseEnded` where a later call gives a wrong result, unless a peer takes the samples itself."""
    if ready.sample is None:
        ready.check(jax.block_until_ready(ready.call()))


def coloring_fields(coloring: Coloring) -> dict[str, Any]:
    """Return a colouring as fields of a record."""
    return {
        "detect_seconds": coloring.detect_seconds,
        "color_seconds": coloring.color_seconds,
        "colors": {"columns": coloring.column_count, "rows": coloring.row_count},
        "nonzeros": int(coloring.pattern.rows.size),
    }


@contextlib.contextmanager
def _record_failure(attempt: Attempt) -> Iterator[None]:
    """End the attempt with the reason of any exception."""
    try:
        yield
    except Exception as error:
        needs = error.needs if isinstance(error, shape.TooLarge) else {}
        status, reason, text = _reason_of(error)
        samples: dict[str, Any] = {"seconds": [], "seconds_min": [], "turns": [], "marked": {}}
        attempt.note(status=status, reason=reason, text=text, **needs, **samples)
        attempt.ended, attempt.turns, attempt.ready = True, None, None
        if not isinstance(error, CaseEnded | shape.TooLarge):
            cause = error.__context__ if isinstance(error, Refusal) and error.__context__ else error
            frames = user_frames.describe(cause)
            print(f"{user_frames.MARK}{attempt.record.key}", frames, sep="\n", file=sys.stderr, flush=True)
    if attempt.ended:
        gc.collect()


def _compile_and_check(
    case: Case, group: ProcessGroup, note: Note, known_blocks: Mapping[str, Any] | None = None
) -> CheckedProgram:
    """Compile a case, run it once and check the result."""
    with _fail_together(group):
        built = workload.build(case)
        if case.engine == JAX:
            runner = _compile_program(case, built, group, note, known_blocks)
        else:
            runner = _prepare_peer(case, built, group, note)
        first_seconds, result = timing.time_once(lambda: jax.block_until_ready(runner.call()))
        note(first_seconds=first_seconds)
        wait = make_waiter(result) if case.engine == JAX else None
    checked = _make_check(case, built, group, runner, note)
    checked(result)
    return CheckedProgram(runner.call, wait, checked, runner.sample)


def _make_check(
    case: Case, built: Workload, group: ProcessGroup, runner: Runner, note: Note
) -> Callable[[Any], None]:
    """Return the function that raises `CaseEnded` where a result is wrong."""
    pattern = runner.sizes.coloring.pattern if runner.sizes.coloring else None
    right: list[bytes] = []  # the digests of results that were found right
    spent = 0.0

    def checked(result: Any) -> None:
        nonlocal spent
        began = time.perf_counter()
        if group.processes > 1:
            result = multihost_utils.process_allgather(result, tiled=True)
        with _fail_together(group):
            got = runner.collect(result)
            del result
            digest = _digest(got)
            if digest in right:  # the same numbers to the last bit
                return
            verdict = check.verdict(case, built, runner.sizes, got, group.platform, pattern=pattern)
            spent += time.perf_counter() - began
            note(
                error=verdict.error, tolerance=verdict.tolerance, checked=verdict.checked, check_seconds=spent
            )
            if verdict.reason:
                status = "skipped" if verdict.reason == "no_digits" else "failed"
                later = ", in a later call" if right else ""
                raise CaseEnded(status, verdict.reason, f"{verdict.text or ''}{later}")
            right.append(digest)

    return checked


def _digest(got: np.ndarray) -> bytes:
    """Return a digest of the numbers of a result."""
    plain = np.ascontiguousarray(got)
    content = repr(got).encode() if plain.dtype.hasobject else plain.view(np.uint8).data
    return hashlib.blake2b(content).digest()


def make_waiter(example: Any) -> Callable[[Any], Any]:
    """Return the fastest function that waits for such results; `jax.block_until_ready` takes 1 us more."""
    leaves = example if isinstance(example, list | tuple) else ()
    if leaves and all(hasattr(leaf, "block_until_ready") for leaf in leaves):
        return lambda result: [leaf.block_until_ready() for leaf in result]
    wait: Callable[[Any], Any] = getattr(type(example), "block_until_ready", jax.block_until_ready)
    return wait


@contextlib.contextmanager
def _fail_together(group: ProcessGroup) -> Iterator[None]:
    """Raise an error of one process in all of them, so that none waits for one that failed."""
    error = None
    try:
        yield
    except Exception as caught:
        error = caught
    fine = [each[0] == 1.0 for each in group.gather([float(error is None)])]
    if all(fine):
        return
    texts = timing.gather_text(group.gather, "|".join(_reason_of(error or Exception()))[:_SHARED_TEXT])
    if error is not None:
        raise error
    status, reason, words = texts[fine.index(False)].split("|", 2)
    raise CaseEnded(status, reason, f"process {fine.index(False)} of {group.processes}: {words}")


def _compile_program(
    case: Case, built: Workload, group: ProcessGroup, note: Note, known_blocks: Mapping[str, Any] | None
) -> Runner:
    """Compile a case for JAX, and place its inputs. Nothing is allocated before it fits."""
    missing = _missing_memory(case, built, group)
    sizes = compile_case.settle_shape(case, built, missing)
    note(passes=sizes.passes or None, padding=shape.padding_share(case, sizes))
    if sizes.coloring is not None:
        note(**coloring_fields(sizes.coloring))
    one = _compile_for(
        group, case, built, sizes, CompileSettings(describe_shortage=missing, known_blocks=known_blocks)
    )
    if one.blocks is not None:
        note(blocks=one.blocks, passes=shape.count_passes(one.case, built, sizes))
    note(**{name: getattr(one.stages, name) for name in COMPILING_STAGES}, **one.needs)
    note(compulsory_bytes=one.compulsory_bytes)
    work, unexpected = extensions.load("program_stats").measure_work(one, group.devices)
    note(**vars(work))
    if unexpected:
        raise CaseEnded("failed", "collective", unexpected)
    return Runner(sizes, *compile_case.make_runner(one))


def _compile_for(
    group: ProcessGroup, case: Case, built: Workload, sizes: DerivativeShape, settings: CompileSettings
) -> CompiledCase:
    """Compile a case for a group of processes; skip what only one process can measure."""
    several = group.processes > 1
    only_one_process = {
        "storage=host": case.storage == "host",
        "chunk=auto with pmap": case.chunk == AUTO and case.api == "pmap",
        "the cache": case.cache is not None,
    }
    for what, asked in only_one_process.items():
        if several and asked:
            raise CaseEnded("skipped", "not_defined", f"{what} is measured in one process")

    def stages(program: layout.Program) -> timing.Stages:
        placed = case.api == "pmap" and several  # where pmap takes no abstract arguments
        given = layout.place_inputs(case, built, program) if placed else [*program.arguments.values()]
        return _compile_with_cache(case, functools.partial(timing.compile_stages, program.function, given))

    settings = dataclasses.replace(settings, compile_program=stages)
    stays = dataclasses.replace(case, storage="device") if several and case.chunk == AUTO else case
    return compile_case.compile_case(stays, built, group.devices, settings, sizes)


def _compile_with_cache(case: Case, stages: Callable[[], timing.Stages]) -> timing.Stages:
    """Compile with the persistent compilation cache that the case asks for."""
    if case.cache is None:
        return stages()
    option = extensions.load("compilation_cache")
    try:
        with option.persistent_cache(case.cache, stages):
            return stages()
    except option.CacheUnavailable as error:
        raise CaseEnded("skipped", "not_defined", str(error)) from None


def _missing_memory(case: Case, built: Workload, group: ProcessGroup) -> DescribeShortage:
    """Return the function that says what a program of a case lacks in this group, in words."""

    def missing(one: CompiledCase) -> str | None:
        results = 1 + (one.plan is not None)
        words = memory.describe_shortage(
            one.needs, group.devices, group.platform, case.memory_limit, results, one.host_bytes
        )
        # Where one process has too little, all have.
        return next((words for words in timing.gather_text(group.gather, words or "") if words), None)

    return missing


def _prepare_peer(case: Case, built: Workload, group: ProcessGroup, note: Note) -> Runner:
    """Prepare the case of a peer."""
    peers = extensions.load("peers")
    sizes = shape.derivative_shape(case, built)
    alone = dataclasses.replace(case, devices=1)  # its threads share one copy of everything
    missing = _missing_memory(alone, built, group._replace(devices=group.devices[:1]))
    compile_case.require_room(compile_case.lower_bound(alone, built, sizes), missing)
    expected = shape.result_shape(case, built, sizes)
    arrays = inputs.input_arrays(case, built)
    prepared = peers.module(case.engine).prepare(case, built, sizes, arrays, case.devices)
    note(compile_seconds=prepared.compile_seconds, passes=prepared.passes)
    collect = lambda result: peers.collected(case, prepared.collect(result), expected)  # noqa: E731
    return Runner(sizes, prepared.call, collect, prepared.sample)


def _sample_turns(attempt: Attempt, group: ProcessGroup, sampling: Sampling) -> Iterator[bool]:
    """Sample in turns, one fresh compilation after another; yield whether the samples are enough."""
    case, monitor = attempt.record.case, extensions.load("host_monitor")
    attempt.note(before=monitor.read_host(group.platform, group.cores))
    earlier: list[Samples] = []
    further: list[dict[str, Any]] = []
    last = sampling.compilations if case.engine == JAX and case.jit else 1
    for compilation in range(1, last + 1):
        assert attempt.ready is not None
        if compilation > 1:
            _check_again(attempt.ready)
            attempt.ready = None  # and with it the arguments
            attempt.ready, stages = _compile_again(attempt, group)
            further.append(stages)
            attempt.note(compilations=further)
        for samples in _sample_steps(attempt, attempt.ready, group, sampling):
            attempt.note(**_fields_of_samples([*earlier, samples]))
            if samples.stop_reason:
                attempt.note(after=monitor.read_host(group.platform, group.cores))
            if compilation > 1:
                further[-1]["samples"] = len(samples.seconds)
            if samples.stop_reason and compilation < last:
                break
            yield samples.stop_reason is not None
        earlier.append(samples)


def _compile_again(attempt: Attempt, group: ProcessGroup) -> tuple[CheckedProgram, dict[str, Any]]:
    """Compile a case again; return it with the seconds of its stages."""
    jax.clear_caches()
    again = Attempt(attempt.record)
    ready = _compile_and_check(attempt.record.case, group, again.note, attempt.record.blocks)
    return ready, {name: getattr(again.record, name) for name in (*COMPILING_STAGES, "first_seconds")}


def _fields_of_samples(parts: Sequence[Samples]) -> dict[str, Any]:
    """Return the samples of one compilation after another, as fields of a record."""
    marked: dict[str, list[int]] = {}
    before = 0
    for part in parts:
        for mark, turns in part.marked.items():
            marked.setdefault(mark, []).extend(before + turn for turn in turns)
        before += len(part.turns)
    seconds = [second for part in parts for second in part.seconds]
    slowest = Counter(rank for part in parts for rank in part.slowest).most_common(1)
    return {
        "seconds": seconds,
        "seconds_min": [second for part in parts for second in part.seconds_min] or seconds,
        "slowest_rank": slowest[0][0] if slowest else 0,
        "turns": [count for part in parts for count in part.turns] or [len(seconds)],
        "marked": marked,
        "calls_per_sample": parts[0].calls_per_sample,
        "stop_reason": parts[-1].stop_reason,
    }


def _sample_steps(
    attempt: Attempt, ready: CheckedProgram, group: ProcessGroup, sampling: Sampling
) -> Iterator[Samples]:
    """Yield all samples so far, more of them at each step; a peer that samples by itself is asked once."""
    if ready.sample:
        return itertools.repeat(ready.sample(sampling))
    monitor = extensions.load("host_monitor")

    def disturbed() -> Callable[[], list[str]]:
        began = monitor.start_meter(group.platform, group.cores)

        def marks() -> list[str]:
            here = monitor.find_disturbances(began)
            each = group.gather([float(mark in here) for mark in monitor.MARKS])
            return [mark for mark, *theirs in zip(monitor.MARKS, *each, strict=True) if any(theirs)]

        return marks

    latency = attempt.record.floor_seconds
    return timing.sample_turns(ready.call, sampling, ready.wait, latency, group.gather, disturbed)


def _dispatch_latency(case: Case, group: ProcessGroup) -> float | None:
    """Return the seconds of an empty call through the case's api, on as many devices; None for a peer."""
    if case.engine != JAX:
        return None

    def measure() -> float:
        sizes, points = workload.module(CEILING).SIZES, case.devices
        empty = Case(
            CEILING, "call", None, sizes, points, mode="value", api=case.api, devices=points, jit=case.jit
        )
        built = workload.build(empty)
        program = layout.lay_out(empty, built, group.devices)
        arguments = layout.place_inputs(empty, built, program)
        stages = timing.compile_stages(program.function, arguments)
        call = functools.partial(stages.call, *arguments)
        seconds = timing.time_floor(call, make_waiter(call()))
        return max(each[0] for each in group.gather([seconds]))

    return process_cache.cached("dispatch_latency", (case.api, case.jit, case.devices), measure)


def _reason_of(error: Exception) -> tuple[str, str, str]:
    """Return the status, the reason and the text of an exception: at most 500 characters, without paths."""
    if isinstance(error, CaseEnded):
        return error.status, error.reason, str(error)
    if isinstance(error, shape.TooLarge):
        return "skipped", "too_large", str(error)
    text, where = " ".join(str(error).split()), ""  # a refusal is a sentence of its own
    if not isinstance(error, Refusal):
        place = user_frames.place(error)
        text, where = f"{type(error).__name__}: {text}", f" ({place})" if place else ""
    text = environment.scrub(text)[: 500 - len(where)] + where
    return "failed", "out_of_memory" if memory.is_out_of_memory(text) else "error", text
