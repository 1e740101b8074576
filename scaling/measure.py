"""Measuring: the stages of a program apart, and samples of its steady state.

Knows callables and clocks; not what they compute, nor whether it is right. Seconds throughout.
"""

import gc
import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from scaling.intervals import median_interval
from scaling.sampling import Samples, Sampling

_BATCH_SECONDS = 500e-6  # a sample shorter than some fifty dispatches of a JAX call (10 us on a CPU) is made of several calls


@dataclass(frozen=True)
class Stages:
    """A program made ready: what to call, and what each stage took; None for a stage that does not exist apart."""

    call: Callable[..., Any]
    compiled: Any
    trace_seconds: float | None = None
    lower_seconds: float | None = None
    compile_seconds: float | None = None


def stages(function: Callable, arguments: list[Any]) -> Stages:
    """Trace, lower and compile, each timed; one compiled callable comes back, and that one is timed later.

    An uncompiled function has no stages. `pmap` cannot be traced apart from being lowered.
    """
    if not hasattr(function, "lower"):
        return Stages(function, None)
    began = time.perf_counter()
    traced = function.trace(*arguments) if hasattr(function, "trace") else None
    traced_at = time.perf_counter()
    lowered = traced.lower() if traced is not None else function.lower(*arguments)
    lowered_at = time.perf_counter()
    compiled = lowered.compile()
    done = time.perf_counter()
    trace_seconds = traced_at - began if traced is not None else None
    return Stages(compiled, compiled, trace_seconds, lowered_at - traced_at, done - lowered_at)


def once(call: Callable[[], Any]) -> tuple[float, Any]:
    """One call, which returns when its result is there: (seconds, result)."""
    began = time.perf_counter()
    result = call()
    return time.perf_counter() - began, result


def sample(call: Callable[[], Any], sampling: Sampling) -> Samples:
    """Samples of the steady state, until the median is known well enough."""
    per_call = _warm_up(call, sampling.warm_up)
    batch = max(1, math.ceil(_BATCH_SECONDS / max(per_call, 1e-9)))
    seconds: list[float] = []
    collecting = gc.isenabled()
    gc.disable()
    try:
        began = time.perf_counter()
        while (reason := _stop(seconds, time.perf_counter() - began, sampling)) is None:
            start = time.perf_counter()
            for _ in range(batch):
                call()
            seconds.append((time.perf_counter() - start) / batch)
    finally:
        if collecting:
            gc.enable()
    return Samples(seconds, batch, reason)


def _warm_up(call: Callable[[], Any], least: float) -> float:
    """Call until calls and time are enough and the later half is no faster than the earlier; the median of the later half."""
    taken: list[float] = []
    while True:
        taken.append(once(call)[0])
        half = len(taken) // 2
        if sum(taken) >= 10 * least or (half >= 2 and sum(taken) >= least):
            later = statistics.median(taken[half:])
            if sum(taken) >= 10 * least or later >= 0.95 * statistics.median(taken[:half]):
                return later


def _stop(seconds: list[float], elapsed: float, sampling: Sampling) -> str | None:
    """Why to stop sampling now, or None."""
    if len(seconds) < sampling.least:
        return None
    interval = median_interval(seconds)
    if interval is not None:
        median = statistics.median(seconds)
        if max(interval[1] - median, median - interval[0]) <= sampling.width * median:
            return "width"
    if len(seconds) >= sampling.most:
        return "most"
    return "seconds" if elapsed >= sampling.seconds else None
