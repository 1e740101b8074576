"""Warm up a program, sample its run time in turns (`Samples`), and compute confidence intervals of medians.

A sampled program is a function without arguments. A `Gather` function exchanges floats between the processes
that run it. A turn is a series of samples of one case. Compared cases alternate. All times are in seconds.
"""

import functools
import gc
import itertools
import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from time import perf_counter  # bound here, because a user's module may replace it
from typing import Any

_DEFAULT_DISPATCH_SECONDS = 10e-6  # assumed time of an empty call that was not timed
_DISPATCHES_PER_SAMPLE = 50  # a sample shorter than this many empty calls consists of several calls
_CACHE_REFILL_SECONDS = 0.1  # a call this long refills the processor caches by itself
_LONGEST_TURN = 0.1  # fraction of `Sampling.seconds` after which a turn with enough samples ends

Gather = Callable[[list[float]], list[list[float]]]  # floats of this process -> floats of all, by rank


@dataclass(frozen=True)
class Sampling:
    """The settings that decide when the sampling of a program ends, such as the number of samples."""

    width: float = 0.02  # half-width of the 95 % confidence interval of the median, relative to the median
    least: int = 7  # minimum number of samples; the confidence interval of a speed-up needs seven
    most: int = 200  # maximum number of samples
    seconds: float = 1.0  # maximum sampling time, once there are `least` samples
    warm_up: float = 0.05  # minimum seconds of warm-up; the maximum is ten times this
    turns: int = 3  # minimum number of turns, in which compared cases alternate


@dataclass
class Samples:
    """The samples of the run time of a program."""

    seconds: list[float]  # the time per call of each sample, in seconds, in the slowest process
    calls_per_sample: int  # the number of calls in one sample
    stop_reason: str | None  # the field of `Sampling` that ended the sampling, or None before the end
    seconds_min: list[float] = field(default_factory=list)  # the time per call in the fastest process
    slowest: list[int] = field(default_factory=list)  # the rank of the slowest process in each sample
    turns: list[int] = field(default_factory=list)  # the number of samples in each turn
    # A dict from a disturbance, such as "throttled", to the indices of the disturbed turns.
    marked: dict[str, list[int]] = field(default_factory=dict)


def gather_single_process(values: list[float]) -> list[list[float]]:
    """Return `[values]`, the values of all processes if there is only one process."""
    return [values]


def gather_maximum(gather: Gather, value: float) -> float:
    """Return the maximum of `value` over all processes."""
    return max(values[0] for values in gather([value]))


def gather_text(gather: Gather, text: str) -> list[str]:
    """Return the texts of all processes as a list, in the order of their ranks."""
    content = text.encode(errors="backslashreplace")  # such as a surrogate of a file name
    length = int(gather_maximum(gather, len(content)))
    return [bytes(map(int, row)).decode().rstrip() for row in gather(list(map(float, content.ljust(length))))]


def _time_calls(call: Callable[[], Any], wait: Callable[[Any], Any], count: int) -> float:
    began = perf_counter()
    for _ in itertools.repeat(None, count):
        wait(call())
    return perf_counter() - began


def time_once(call: Callable[[], Any]) -> tuple[float, Any]:
    """Return (seconds, result) of one call. `call` must return only when its result is ready."""
    began = perf_counter()
    result = call()
    return perf_counter() - began, result


def time_floor(call: Callable[[], Any], wait: Callable[[Any], Any]) -> float:
    """Return the median time of 100 calls in seconds. `wait` blocks until the result of a call is ready."""
    return statistics.median(_time_calls(call, wait, 1) for _ in range(100))


def sample_turns(
    call: Callable[[], Any],
    sampling: Sampling,
    wait: Callable[[Any], Any] = lambda result: None,
    floor_seconds: float | None = None,
    gather: Gather = gather_single_process,
) -> Iterator[Samples]:
    """Warm up a program, and return an iterator that yields all samples so far after each turn.

    A turn is a series of samples. The caller stops when the `stop_reason` of the samples is not None.
    `floor_seconds` is the time of an empty call. `wait` blocks until the result of a call is ready.
    """
    time_calls = functools.partial(_time_calls, call, wait)
    seconds_per_call = max(_warm_up(time_calls, sampling.warm_up, gather), 1e-9)
    least_seconds = _DISPATCHES_PER_SAMPLE * (floor_seconds or _DEFAULT_DISPATCH_SECONDS)  # of a sample
    calls = gather_maximum(gather, max(1, math.ceil(least_seconds / seconds_per_call)))
    # With a power of two, compared cases usually have equally many calls per sample.
    return _take_turns(time_calls, sampling, Samples([], 2 ** math.ceil(math.log2(calls)), None), gather)


def _take_turns(
    time_calls: Callable[[int], float], sampling: Sampling, samples: Samples, gather: Gather
) -> Iterator[Samples]:
    elapsed = 0.0
    while True:
        elapsed += _add_turn(time_calls, sampling, samples, elapsed, gather)
        samples.stop_reason = _stop_reason(samples, elapsed, sampling)
        yield samples


def _add_turn(
    time_calls: Callable[[int], float], sampling: Sampling, samples: Samples, elapsed: float, gather: Gather
) -> float:
    """Take one turn, add it to `samples`, and return its seconds. Earlier turns took `elapsed` seconds."""
    least_in_turn, most_in_turn = (math.ceil(n / sampling.turns) for n in (sampling.least, sampling.most))
    turn_seconds = 0.0
    if samples.turns and samples.seconds[-1] < _CACHE_REFILL_SECONDS:
        time_calls(1)  # refills the processor caches after other cases
    samples.turns.append(0)
    gc_was_enabled = gc.isenabled()
    gc.disable()
    try:
        gather([0.0])
        began = perf_counter()
        while len(samples.seconds) < sampling.most:
            seconds_per_call = time_calls(samples.calls_per_sample) / samples.calls_per_sample
            times, elapsed_in_turn = zip(*gather([seconds_per_call, perf_counter() - began]), strict=True)
            samples.seconds.append(max(times))
            samples.seconds_min.append(min(times))
            samples.slowest.append(times.index(max(times)))
            samples.turns[-1] += 1
            turn_seconds = max(elapsed_in_turn)
            if samples.turns[-1] < least_in_turn:
                continue
            is_long = samples.turns[-1] >= most_in_turn or turn_seconds >= _LONGEST_TURN * sampling.seconds
            if is_long or _stop_reason(samples, elapsed + turn_seconds, sampling):
                break
    finally:
        if gc_was_enabled:
            gc.enable()
    return turn_seconds


def _warm_up(time_calls: Callable[[int], float], least: float, gather: Gather) -> float:
    """Call a program until it gets no faster, and return the median time of its later calls in seconds.

    The warm-up takes about `least` to 10 * `least` seconds.
    """
    call_seconds: list[float] = []
    total_seconds = 0.0
    while True:
        call_seconds.append(gather_maximum(gather, time_calls(1)))
        total_seconds, half = total_seconds + call_seconds[-1], len(call_seconds) // 2
        has_time = total_seconds < 10 * least
        # The medians are compared only after every few calls, because sorting takes time.
        if has_time and (half < 2 or total_seconds < least or len(call_seconds) % max(1, half // 4)):
            continue
        later_median = statistics.median(call_seconds[half:])
        if not has_time or later_median >= 0.95 * statistics.median(call_seconds[:half]):
            return later_median


def _stop_reason(samples: Samples, elapsed: float, sampling: Sampling) -> str | None:
    sample_seconds = samples.seconds
    if len(sample_seconds) >= sampling.most:
        return "most"
    if len(sample_seconds) < sampling.least or len(samples.turns) < sampling.turns:
        return None
    interval = median_interval(sample_seconds) if sampling.width else None  # width=0 is never reached
    if interval is not None:
        median = statistics.median(sample_seconds)
        if max(interval[1] - median, median - interval[0]) <= sampling.width * median:
            return "width"
    return "seconds" if elapsed >= sampling.seconds else None


@functools.lru_cache(maxsize=4096)
def _enclosing_rank(count: int, confidence: float) -> int:
    """Return the rank k of the limits of the median's confidence interval, or 0 with too few samples.

    k is the largest rank for which the k-th smallest and the k-th largest of `count` samples enclose the
    median with at least the probability `confidence`.
    """
    # Exact integers, because 2**count exceeds all floats from 1,024 samples on; 1e-9 allows for rounding.
    allowed = Fraction(1 - confidence) / 2 * (1 + Fraction(1, 10**9)) * 2**count
    combinations = cumulative = 1  # binomial coefficient (count, k), and the sum of the coefficients up to k
    for k in range(count // 2 + 1):
        if cumulative > allowed:
            return k
        combinations = combinations * (count - k) // (k + 1)
        cumulative += combinations
    return 0


def median_interval(samples: Sequence[float], confidence: float = 0.95) -> tuple[float, float] | None:
    """Return the confidence interval (low, high) of the median, or None if there are too few samples."""
    k, ordered = _enclosing_rank(len(samples), confidence), sorted(samples)  # sign test
    return (ordered[k - 1], ordered[-k]) if k else None
