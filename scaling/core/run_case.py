"""An attempt at a case: built, compiled, run once, checked, then sampled by turns, until there is a record, whatever happens.

Knows devices and programs; not where a record goes, nor who asks.
"""

import contextlib
import dataclasses
import datetime
import functools
import gc
import hashlib
import itertools
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.experimental.compilation_cache import compilation_cache

from scaling.core import check, compile_case, environment, inputs, layout, memory, shape, timing, workload
from scaling.core.case import AUTO, CEILING, Case, Refusal
from scaling.core.record import Record
from scaling.core.sampling import Samples, Sampling
from scaling.options import host_monitor
from scaling.options.autochunk import Blocks
from scaling.options.program import hlo_cost, program_stats
from scaling.peers import interface

_TOLD = 300  # characters of an error that processes tell each other
_STAGES = ("trace_seconds", "lower_seconds", "compile_seconds", "first_seconds")


class CaseEnded(Exception):
    """Why a case ends without a time: (status, reason, words)."""

    def __init__(self, status: str, reason: str, text: str) -> None:
        super().__init__(text)
        self.status, self.reason = status, reason


class ProcessGroup(NamedTuple):
    """Where cases run: devices, those of every process, the platform, and how processes that share a case compare notes."""

    devices: list[Any]
    platform: str
    gather: timing.Gather = timing.single_process
    rank: int = 0
    processes: int = 1
    cores: list[int] | None = None  # of this process, where it is bound


@dataclass
class Attempt:
    """A case on its way to its record: what was found out so far, and the turns in which it is sampled."""

    blank: Record
    found: dict[str, Any]
    turns: Iterator[bool] | None = None  # whether the samples are enough now
    ready: "CheckedProgram | None" = None  # what is sampled

    @property
    def ended(self) -> bool:
        """Whether it came to its end before its time, for better or worse."""
        return "status" in self.found

    def record(self) -> Record:
        """What happened."""
        return dataclasses.replace(self.blank, **{"status": "ok"} | self.found)


def finish_case(attempt: Attempt) -> Record:
    """Check the result of one more call, after all samples, and return the record."""
    if not attempt.ended and attempt.ready is not None:
        with _record_failure(attempt):
            _check_again(attempt.ready)
    attempt.turns = attempt.ready = None
    return attempt.record()


def _check_again(ready: "CheckedProgram") -> None:
    """Raise `Unfit` where a later call gives a wrong result. A system that takes its own samples is not asked."""
    if ready.sample is None:
        ready.check(jax.block_until_ready(ready.call()))


def run_case(blank: Record, devices: list[Any], platform: str, sampling: Sampling) -> Record:
    """One case from nothing to a record, whatever happens on the way."""
    attempt = prepare_case(blank, ProcessGroup(devices, platform), sampling)
    while not attempt.ended and not take_turn(attempt):
        pass
    return finish_case(attempt)


def prepare_case(
    blank: Record, place: ProcessGroup, sampling: Sampling, known: dict[str, Any] | None = None
) -> Attempt:
    """Build, compile, run once and check: an attempt that can take turns, or one that ended.

    known: the blocks that another attempt at this case came to, as its record has them.
    """
    if known is not None:
        _KNOWN.setdefault(blank.case, Blocks(known["block"], known["chunk"], known["storage"]))
    mine = [device for device in place.devices if device.process_index == place.rank]
    peak, held = memory.peak(mine), memory.held(mine)
    attempt = Attempt(
        blank, {"started_at": datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")}
    )
    with _record_failure(attempt):
        attempt.found["floor_seconds"] = _dispatch_floor(
            blank.case, place
        )  # first: a process's first program pays for JAX's own start
        ready = _compile_and_check(blank.case, place, attempt.found)
        now = memory.peak(mine)
        # An allocator never forgets an older peak, and holds what other cases were prepared with.
        attempt.found["peak_bytes"] = None if now is None or now == peak else now - (held or 0)
        attempt.ready = ready
        attempt.turns = _sample_turns(attempt, place, sampling)
    return attempt


def refuse_case(
    blank: Record, place: ProcessGroup, sampling: Sampling, known: dict[str, Any] | None = None
) -> Attempt:
    """An attempt that ended before it began, because what is to run is not what was asked for."""
    words = f"{blank.case.workload} has changed since this case was asked for; run the study again"
    return fail_case(Attempt(blank, {}), "not_as_asked", words)


def fail_case(attempt: Attempt, reason: str, text: str) -> Attempt:
    """End an attempt as failed."""
    with _record_failure(attempt):
        raise CaseEnded("failed", reason, text)
    return attempt


def take_turn(attempt: Attempt) -> bool:
    """Take samples for a turn; whether they are enough now, for good or because the attempt ended."""
    assert attempt.turns is not None
    began = time.perf_counter()
    with _record_failure(attempt):
        enough = next(attempt.turns)
        attempt.found["sampling_seconds"] = (
            attempt.found.get("sampling_seconds", 0.0) + time.perf_counter() - began
        )
        return enough
    return True


@contextlib.contextmanager
def _record_failure(attempt: Attempt) -> Iterator[None]:
    """Whatever goes wrong in here becomes the end of the attempt, in words."""
    try:
        yield
    except Exception as error:
        attempt.found |= error.needs if isinstance(error, shape.TooLarge) else {}
        attempt.found |= zip(("status", "reason", "text"), _reason_of(error), strict=True)
    if attempt.ended:
        attempt.found |= {
            "seconds": [],
            "seconds_min": [],
            "turns": [],
            "marked": {},
        }  # no time of what went wrong in the end
        attempt.turns = attempt.ready = None
        gc.collect()


class CheckedProgram(NamedTuple):
    """A case that was run once and found right: what to call, what to wait with, or a peer's own way to take samples.

    check: takes a result, and raises `Unfit` where it is wrong.
    """

    call: Callable[[], Any]
    wait: Callable[[Any], Any] | None
    check: Callable[[Any], None]
    sample: Callable[[Sampling], Samples] | None = None


def _compile_and_check(case: Case, place: ProcessGroup, found: dict[str, Any]) -> CheckedProgram:
    """A case compiled, run once and checked. What is learnt goes into `found` as it is learnt, so that a failure keeps it."""
    with _fail_together(place):
        built = workload.build(case)
        sizes, ask, collect, sample = (_compile_program if case.engine == "jax" else _prepare_peer)(
            case, built, place, found
        )
        found["first_seconds"], result = timing.time_once(lambda: jax.block_until_ready(ask()))
        wait = make_waiter(result) if case.engine == "jax" else None
    pattern = sizes.coloring.pattern if sizes.coloring else None
    seen: list[bytes] = []  # the digest of the result that was found right

    def checked(result: Any) -> None:
        began = time.perf_counter()
        if place.processes > 1:
            result = multihost_utils.process_allgather(result, tiled=True)
        with _fail_together(place):
            got = collect(result)
            del result
            digest = _digest(got)
            if digest in seen:  # the same numbers to the last bit
                return
            verdict = check.verdict(case, built, sizes, got, place.platform, pattern=pattern)
            found.update(error=verdict.error, tolerance=verdict.tolerance, checked=verdict.checked)
            found["check_seconds"] = found.get("check_seconds", 0.0) + time.perf_counter() - began
            if verdict.reason:
                status = "skipped" if verdict.reason == "no_digits" else "failed"
                raise CaseEnded(
                    status, verdict.reason, (verdict.text or "") + (", in a later call" if seen else "")
                )
            seen.append(digest)

    checked(result)
    return CheckedProgram(ask, wait, checked, sample)


def _digest(got: np.ndarray) -> bytes:
    """Return a digest of the numbers of a result."""
    plain = np.ascontiguousarray(got)
    return hashlib.blake2b(
        repr(got).encode() if plain.dtype.hasobject else plain.view(np.uint8).data
    ).digest()


def make_waiter(example: Any) -> Callable[[Any], Any]:
    """What waits for every output of results like this one, in the least time: `jax.block_until_ready` adds 1 us to a call."""
    if hasattr(example, "block_until_ready"):
        return type(example).block_until_ready
    if (
        isinstance(example, list | tuple)
        and example
        and all(hasattr(leaf, "block_until_ready") for leaf in example)
    ):
        return lambda result: [leaf.block_until_ready() for leaf in result]
    return jax.block_until_ready


@contextlib.contextmanager
def _fail_together(place: ProcessGroup) -> Iterator[None]:
    """What fails in one process fails in all, so that none waits for another that has given up."""
    error = None
    try:
        yield
    except Exception as caught:
        error = caught
    fine = [each[0] == 1.0 for each in place.gather([float(error is None)])]
    if all(fine):
        return
    told = timing.gather_text(place.gather, "|".join(_reason_of(error or Exception()))[:_TOLD])
    if error is not None:
        raise error
    status, reason, words = told[fine.index(False)].split("|", 2)
    raise CaseEnded(status, reason, f"process {fine.index(False)} of {place.processes}: {words}")


def _compile_program(case: Case, built: Any, place: ProcessGroup, found: dict[str, Any]) -> tuple:
    """A case of JAX made ready: (sizes, what asks for the result, collect, sample). Nothing is allocated before it fits."""
    if case.seeds == "colored":  # the pattern is detected at inputs that are there
        bound = compile_case.lower_bound(case, built, shape.derivative_shape(case, built))
        compile_case.require_room(bound, _missing_memory(case, built, place))
    colors = compile_case.detect_coloring(case, built)
    sizes = shape.derivative_shape(case, built, colors)
    found |= {
        "passes": sizes.passes or None,
        "padding": shape.padding_share(case, sizes),
    } | program_stats.coloring_counts(colors)
    one = _compile_fitting(case, built, place, sizes, found)
    found |= {name: getattr(one.stages, name) for name in _STAGES[:3]} | one.needs
    found["compulsory_bytes"] = compile_case.compulsory_bytes(one, built)
    read = hlo_cost.read(one.stages.compiled.as_text()) if one.stages.compiled is not None else None
    found |= program_stats.program_work(one, built, place.devices, read)
    if read and (words := program_stats.unexpected_collectives(case, read.collectives)):
        raise CaseEnded("failed", "collective", words)
    ask, collect = compile_case.make_runner(one, built)
    return sizes, ask, collect, None


def _compile_fitting(
    case: Case, built: Any, place: ProcessGroup, sizes: Any, found: dict[str, Any]
) -> compile_case.CompiledCase:
    """The case compiled so that it fits; skipped with the figures where it does not."""
    several = place.processes > 1
    if several and (case.storage == "host" or (case.chunk == AUTO and case.api == "pmap")):
        what = "storage=host" if case.storage == "host" else "chunk=auto with pmap"
        raise CaseEnded("skipped", "not_defined", f"{what} is measured in one process")

    def stages(program: layout.Program) -> timing.Stages:
        placed = case.api == "pmap" and several  # where pmap takes no abstract arguments
        given = inputs.place_inputs(case, built, program) if placed else [*program.arguments.values()]
        with _compilation_cache(case, place, program, given):
            return timing.compile_stages(program.function, given)

    stays = dataclasses.replace(case, storage="device") if several and case.chunk == AUTO else case
    too_much = _missing_memory(case, built, place)
    one, blocks = compile_case.compile_fitting(
        stays, built, sizes, place.devices, stages, too_much, _KNOWN.get(case)
    )
    if blocks is not None:
        found |= {"blocks": blocks, "passes": shape.count_passes(one.case, built, sizes)}
        _KNOWN[case] = Blocks(blocks["block"], blocks["chunk"], blocks["storage"])
    return one


def _missing_memory(case: Case, built: Any, place: ProcessGroup) -> compile_case.MissingMemory:
    """Return the function that says what a program of a case lacks here, in words."""

    def too_much(one: compile_case.CompiledCase) -> str | None:
        beside = compile_case.host_bytes(one, built)
        words = memory.lacking(
            one.needs, place.devices, place.platform, case.memory_limit, 1 + (one.plan is not None), beside
        )
        # Where one process has too little, all have.
        return next((words for words in timing.gather_text(place.gather, words or "") if words), None)

    return too_much


_KNOWN: dict[Case, Blocks] = {}  # the blocks that a case was found to fit in


@contextlib.contextmanager
def _compilation_cache(case: Case, place: ProcessGroup, program: Any, given: list[Any]) -> Iterator[None]:
    """JAX's persistent compilation cache as the case wants it: none, an empty one, or one that holds this program."""
    if case.cache is None:
        yield
        return
    if place.processes > 1:
        raise CaseEnded("skipped", "not_defined", "the cache is measured in one process")
    hits = _cache_hits()
    hits.clear()
    with tempfile.TemporaryDirectory() as folder:
        settings = {
            "jax_enable_compilation_cache": True,
            "jax_compilation_cache_dir": folder,
            "jax_persistent_cache_min_compile_time_secs": 0.0,
            "jax_persistent_cache_min_entry_size_bytes": -1,
        }
        before = {name: getattr(jax.config, name) for name in settings}
        try:
            for name, value in settings.items():
                jax.config.update(name, value)
            compilation_cache.reset_cache()
            if case.cache == "warm":
                timing.compile_stages(program.function, given)
            jax.clear_caches()  # what this process has traced and compiled itself
            yield
        finally:
            for name, value in before.items():
                jax.config.update(name, value)
            compilation_cache.reset_cache()
    if bool(hits) != (case.cache == "warm"):
        raise CaseEnded("skipped", "not_defined", "this backend keeps no compiled programs")


@functools.cache
def _cache_hits() -> list[str]:
    """Every hit of the compilation cache from now on, as JAX tells of it."""
    hits: list[str] = []
    jax.monitoring.register_event_listener(
        lambda event, **_: hits.append(event) if event.endswith("/cache_hits") else None
    )
    return hits


def _prepare_peer(case: Case, built: Any, place: ProcessGroup, found: dict[str, Any]) -> tuple:
    """A peer's case made ready, likewise."""
    sizes = shape.derivative_shape(case, built)
    alone = dataclasses.replace(case, devices=1)  # its threads share one copy of everything
    too_much = _missing_memory(alone, built, place._replace(devices=place.devices[:1]))
    compile_case.require_room(compile_case.lower_bound(alone, built, sizes), too_much)
    due = shape.result_shape(case, built, sizes)
    prepared = interface.module(case.engine).prepare(
        case, built, sizes, inputs.input_arrays(case, built), case.devices
    )
    found |= {"compile_seconds": prepared.compile_seconds, "passes": prepared.passes}
    return (
        sizes,
        prepared.call,
        lambda result: interface.collected(case, prepared.collect(result), due),
        prepared.sample,
    )


def _sample_turns(attempt: Attempt, place: ProcessGroup, sampling: Sampling) -> Iterator[bool]:
    """Samples by turns, of one fresh compilation after another; whether they are enough at each step."""
    case, found = attempt.blank.case, attempt.found
    found["before"] = host_monitor.read_host(place.platform, place.cores)
    earlier: list[Samples] = []
    last = sampling.compilations if case.engine == "jax" and case.jit else 1
    for compilation in range(1, last + 1):
        assert attempt.ready is not None
        if compilation > 1:
            _check_again(attempt.ready)
            attempt.ready = None  # and with it the arguments
            attempt.ready = _compile_again(case, place, found)
        for samples in _sample_steps(case, attempt.ready, place, sampling, found):
            found |= _merge_samples([*earlier, samples])
            if samples.stop_reason:
                found["after"] = host_monitor.read_host(place.platform, place.cores)
            if compilation > 1:
                found["compilations"][-1]["samples"] = len(samples.seconds)
            if samples.stop_reason and compilation < last:
                break
            yield samples.stop_reason is not None
        earlier.append(samples)


def _compile_again(case: Case, place: ProcessGroup, found: dict[str, Any]) -> CheckedProgram:
    """The same case from another compilation; what its stages took is kept beside those of the first."""
    jax.clear_caches()
    stages: dict[str, Any] = {}
    ready = _compile_and_check(case, place, stages)
    found["compilations"] = [*found.get("compilations", []), {name: stages.get(name) for name in _STAGES}]
    return ready


def _sample_steps(
    case: Case, ready: CheckedProgram, place: ProcessGroup, sampling: Sampling, found: dict[str, Any]
) -> Iterator[Samples]:
    """Samples, more of them at each step; a peer that samples by itself is asked once."""
    if ready.sample:
        return itertools.repeat(ready.sample(sampling))

    def disturbed() -> Callable[[], list[str]]:
        began = host_monitor.start_meter(place.platform, place.cores)

        def marks() -> list[str]:
            here = host_monitor.find_disturbances(began)
            each = place.gather([float(mark in here) for mark in host_monitor.MARKS])
            return [mark for mark, *theirs in zip(host_monitor.MARKS, *each, strict=True) if any(theirs)]

        return marks

    return timing.sample_turns(
        ready.call, sampling, ready.wait, found["floor_seconds"], place.gather, disturbed
    )


_FLOORS: dict[tuple, float] = {}  # of this process, by how a call is made


def _dispatch_floor(case: Case, place: ProcessGroup) -> float | None:
    """Seconds of an empty call through the case's api, on as many devices; None for a peer."""
    if case.engine != "jax":
        return None
    how = (case.api, case.jit, case.devices)
    if how not in _FLOORS:
        empty = Case(
            CEILING,
            "call",
            mode="value",
            api=case.api,
            jit=case.jit,
            devices=case.devices,
            points=case.devices,
        )
        empty = workload.complete(empty)
        built = workload.build(empty)
        program = layout.lay_out(empty, built, place.devices)
        arguments = inputs.place_inputs(empty, built, program)
        stages = timing.compile_stages(program.function, arguments)
        call = functools.partial(stages.call, *arguments)
        seconds = timing.time_floor(call, make_waiter(call()))
        _FLOORS[how] = max(each[0] for each in place.gather([seconds]))
    return _FLOORS[how]


def _merge_samples(parts: list[Samples]) -> dict[str, Any]:
    """The samples of one compilation after another, as a record has them."""
    marked: dict[str, list[int]] = {}
    before = 0
    for part in parts:
        for mark, places in part.marked.items():
            marked.setdefault(mark, []).extend(before + place for place in places)
        before += len(part.turns)
    slowest = Counter(rank for part in parts for rank in part.slowest)
    seconds = [second for part in parts for second in part.seconds]
    return {
        "seconds": seconds,
        "seconds_min": [second for part in parts for second in part.seconds_min] or seconds,
        "slowest_rank": slowest.most_common(1)[0][0] if slowest else 0,
        "turns": [count for part in parts for count in part.turns] or [len(seconds)],
        "marked": marked,
        "calls_per_sample": parts[0].calls_per_sample,
        "stop_reason": parts[-1].stop_reason,
    }


def _reason_of(error: Exception) -> tuple[str, str, str]:
    """What an exception makes of a case: status, reason, and at most 500 characters without paths."""
    if isinstance(error, CaseEnded):
        return error.status, error.reason, str(error)
    if isinstance(error, shape.TooLarge):
        return "skipped", "too_large", str(error)
    kind = (
        "" if isinstance(error, Refusal) else f"{type(error).__name__}: "
    )  # a refusal is a sentence of its own
    text = " ".join(f"{kind}{error}".split())
    return "failed", "out_of_memory" if memory.ran_out(text) else "error", environment.scrub(text)[:500]
