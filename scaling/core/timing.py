"""Time the stages of a program, and sample its steady state in turns.

Knows callables and clocks, and how to compare notes with other processes; not what is computed, nor whether
it is right. Seconds throughout.
"""

import dataclasses
import functools
import gc
import itertools
import math
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from scaling.core.statistics import median_interval

FLOOR_SECONDS = 10e-6  # of a dispatch, where no empty call could be timed
_LEAST_FLOORS = 50  # a sample that is shorter than this number of empty calls is made of several calls
_LONG = 0.1  # seconds of a call after which the caches hold its data, whatever ran before
_TURN = (
    0.1  # the least part of all seconds of sampling, unless the turn has its samples and sampling may stop
)

Gather = Callable[[list[float]], list[list[float]]]  # numbers of this process -> those of each, by rank


@dataclass(frozen=True)
class Sampling:
    """When sampling stops: once the median is known to `width` on either side, or at a limit."""

    width: float = 0.02
    least: int = 7  # samples; seven are needed for the interval of a speed-up
    most: int = 200  # samples
    seconds: float = 1.0  # of sampling, once there are `least`
    warm_up: float = 0.05  # seconds, at least; at most ten times that
    turns: int = 3  # at least; cases that are compared take their samples in alternating turns
    compilations: int = 1  # fresh ones, each sampled like this


@dataclass(frozen=True)
class Samples:
    """All samples in order, and how they were taken. Of several processes the slowest counts."""

    seconds: list[float]
    calls_per_sample: int
    stop_reason: str | None  # width | most | seconds; None: not yet
    seconds_min: list[float] = field(default_factory=list)  # that of the fastest process
    slowest: list[int] = field(default_factory=list)  # the rank of the slowest process
    turns: list[int] = field(default_factory=list)  # samples in each turn
    marked: dict[str, list[int]] = field(default_factory=dict)  # why not to trust a turn -> numbers of turns


@dataclass(frozen=True)
class Stages:
    """A compiled program: what to call, and the seconds of each stage; None for a stage that does not
    exist."""

    call: Callable[..., Any]
    compiled: Any
    jaxpr: Any = None
    trace_seconds: float | None = None
    lower_seconds: float | None = None
    compile_seconds: float | None = None


def single_process(values: list[float]) -> list[list[float]]:
    """Return the numbers of the only process; a `Gather`."""
    return [values]


def gather_text(gather: Gather, text: str) -> list[str]:
    """Return the text of each process by rank, without trailing blanks."""
    sent = text.encode()
    longest = int(max(length for (length,) in gather([float(len(sent))])))
    return [bytes(map(int, row)).decode().rstrip() for row in gather(list(map(float, sent.ljust(longest))))]


def compile_stages(
    function: Callable[..., Any], arguments: list[Any], options: dict[str, Any] | None = None
) -> Stages:
    """Trace, lower and compile a function, each timed; return the compiled program, which is what is
    timed later.

    The arguments may be abstract. options: of the compiler, in addition to its flags. An uncompiled function
    has no stages. `pmap` cannot be traced apart from being lowered.
    """
    if not hasattr(function, "lower"):
        return Stages(function, None)
    began = time.perf_counter()
    traced = function.trace(*arguments) if hasattr(function, "trace") else None
    if traced is not None:
        require_addressable(traced.jaxpr)
    traced_at = time.perf_counter()
    lowered = traced.lower() if traced is not None else function.lower(*arguments)
    lowered_at = time.perf_counter()
    compiled = lowered.compile(compiler_options=options)
    done = time.perf_counter()
    trace_seconds = traced_at - began if traced is not None else None
    jaxpr = traced.jaxpr if traced is not None else None
    return Stages(compiled, compiled, jaxpr, trace_seconds, lowered_at - traced_at, done - lowered_at)


def require_addressable(jaxpr: Any) -> None:
    """Raise `OverflowError` where a program has an array of 2**63 bytes or more, at which XLA would end the
    process."""
    from jax.extend.core import jaxprs_in_params

    jaxpr = getattr(jaxpr, "jaxpr", jaxpr)
    for equation in jaxpr.eqns:
        for variable in equation.outvars:
            shape, dtype = getattr(variable.aval, "shape", ()), getattr(variable.aval, "dtype", None)
            if math.prod(shape) * getattr(dtype, "itemsize", 1) >= 2**63:
                raise OverflowError(f"an array of the shape {tuple(shape)} has more than 2**63 bytes")
        for inner in jaxprs_in_params(equation.params):
            require_addressable(inner)


def _clocked(call: Callable[[], Any], wait: Callable[[Any], Any] | None, count: int) -> float:
    """Return the seconds of `count` calls, each waited for. Nothing else happens between the two clock
    readings.
    """
    if wait is None:
        began = time.perf_counter()
        for _ in itertools.repeat(None, count):
            call()
    else:
        began = time.perf_counter()
        for _ in itertools.repeat(None, count):
            wait(call())
    return time.perf_counter() - began


def time_once(call: Callable[[], Any]) -> tuple[float, Any]:
    """Time one call that returns when its result is ready: (seconds, result)."""
    began = time.perf_counter()
    result = call()
    return time.perf_counter() - began, result


def time_floor(call: Callable[[], Any], wait: Callable[[Any], Any], calls: int = 100) -> float:
    """Return the median seconds of calls of an empty program."""
    return statistics.median(_clocked(call, wait, 1) for _ in range(calls))


def sample_turns(
    call: Callable[[], Any],
    sampling: Sampling,
    wait: Callable[[Any], Any] | None = None,
    floor_seconds: float | None = None,
    gather: Gather = single_process,
    disturbed: Callable[[], Callable[[], list[str]]] = lambda: list,
) -> Iterator[Samples]:
    """Yield all samples so far, with one turn more at each step, without end; `stop_reason` says when to
    stop.

    A sample is a barrier, the clock, `call` (several times where it is short, each waited for), and the
    clock; of several processes the slowest counts. Other cases may take their turns between two of these.
    wait: waits for the result of a call; None where a call returns when all is done. disturbed: called
    before a turn, returns the function to call after it, which returns the marks of that turn.
    """
    timed = functools.partial(_clocked, call, wait)
    per_call = _warm_up(timed, sampling.warm_up, gather)
    batch = max(1, math.ceil(_LEAST_FLOORS * (floor_seconds or FLOOR_SECONDS) / max(per_call, 1e-9)))
    # A power of two, so that it is mostly the same for two cases that are compared.
    batch = 2 ** math.ceil(math.log2(max(each[0] for each in gather([batch]))))
    taken, elapsed = Samples([], batch, None), 0.0
    while True:
        marks = disturbed()
        elapsed += _turn(timed, sampling, taken, elapsed, gather)
        for mark in marks():
            taken.marked.setdefault(mark, []).append(len(taken.turns) - 1)
        taken = dataclasses.replace(taken, stop_reason=_stop(taken, elapsed, sampling))
        yield taken


def _turn(
    timed: Callable[[int], float], sampling: Sampling, taken: Samples, elapsed: float, gather: Gather
) -> float:
    """Add the samples of one turn and return the seconds it took. All processes take the same decisions."""
    least, most = math.ceil(sampling.least / sampling.turns), math.ceil(sampling.most / sampling.turns)
    count, spent = 0, 0.0
    if taken.turns and taken.seconds[-1] < _LONG:
        timed(1)  # the caches hold what other cases used
    taken.turns.append(0)
    collecting = gc.isenabled()
    gc.disable()
    try:
        gather([0.0])
        began = time.perf_counter()
        while len(taken.seconds) < sampling.most:
            seconds = timed(taken.calls_per_sample) / taken.calls_per_sample
            each = gather([seconds, time.perf_counter() - began])
            times = [mine for mine, _ in each]
            taken.seconds.append(max(times))
            taken.seconds_min.append(min(times))
            taken.slowest.append(times.index(max(times)))
            count, spent = count + 1, max(spent for _, spent in each)
            taken.turns[-1] = count
            long = spent >= _TURN * sampling.seconds
            if count >= least and (count >= most or long or _stop(taken, elapsed + spent, sampling)):
                break
    finally:
        if collecting:
            gc.enable()
    return spent


def _warm_up(timed: Callable[[int], float], least: float, gather: Gather) -> float:
    """Call until the later half of the calls is no faster than the earlier; return the later median."""
    taken: list[float] = []
    total = 0.0
    while True:
        taken.append(max(each[0] for each in gather([timed(1)])))
        total, half = total + taken[-1], len(taken) // 2
        patient = total < 10 * least
        if patient and (half < 2 or total < least or len(taken) % max(1, half // 4)):  # not at every call
            continue
        later = statistics.median(taken[half:])
        if not patient or later >= 0.95 * statistics.median(taken[:half]):
            return later


def _stop(taken: Samples, elapsed: float, sampling: Sampling) -> str | None:
    """Return why sampling stops now, or None."""
    seconds = taken.seconds
    if len(seconds) >= sampling.most:
        return "most"
    if len(seconds) < sampling.least or len(taken.turns) < sampling.turns:
        return None
    interval = median_interval(seconds) if sampling.width else None  # a width of zero is never reached
    if interval is not None:
        median = statistics.median(seconds)
        if max(interval[1] - median, median - interval[0]) <= sampling.width * median:
            return "width"
    return "seconds" if elapsed >= sampling.seconds else None
