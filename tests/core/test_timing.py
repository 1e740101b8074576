"""Tests of timing: each compilation stage is timed once, and a call until its result is ready."""

import time
from types import SimpleNamespace

from scaling.core import compile_case, timing


def test_a_module_that_replaces_the_clock_does_not_change_the_measured_time(monkeypatch):
    monkeypatch.setattr(time, "perf_counter", lambda: 0.0)
    seconds, _ = timing.time_once(lambda: time.sleep(0.01))
    assert seconds >= 0.01


class Stage:
    """A compilation stage of JAX that takes a fixed time on a fake clock."""

    jaxpr = SimpleNamespace(eqns=())

    def __init__(self, now):
        self.now = now

    def trace(self, *_):
        return self._after(1.0)

    def lower(self, *_):
        return self._after(2.0)

    def compile(self, **_):
        return self._after(4.0)

    def _after(self, seconds):
        self.now[0] += seconds
        return self


def test_tracing_lowering_and_compiling_are_timed_once_each(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(timing, "perf_counter", lambda: now[0])
    stages = compile_case.compile_stages(Stage(now), [])
    assert (stages.trace_seconds, stages.lower_seconds, stages.compile_seconds) == (1.0, 2.0, 4.0)
