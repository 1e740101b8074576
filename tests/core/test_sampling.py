"""Tests of sampling: its stopping rules, turns, calls per sample, and several processes."""

import itertools

import pytest

from scaling.core import timing
from scaling.core.timing import Sampling

STEADY = Sampling(width=0.02, least=7, most=60, seconds=0.2, warm_up=0.001, turns=3)


class Clock:
    """A clock that only `call` advances, by the next of these times in seconds."""

    def __init__(self, monkeypatch, seconds):
        self.now, self.calls, self.seconds = 0.0, 0, itertools.cycle(seconds)
        monkeypatch.setattr(timing, "perf_counter", lambda: self.now)

    def call(self):
        self.calls += 1
        self.now += next(self.seconds)


def take_samples(call, sampling=STEADY, **options):
    """Take turns until the stopping rule is met and return the samples."""
    return next(samples for samples in timing.sample_turns(call, sampling, **options) if samples.stop_reason)


def test_sampling_a_steady_call_stops_by_width_after_the_fewest_samples(monkeypatch):
    samples = take_samples(Clock(monkeypatch, [0.01]).call)
    assert samples.stop_reason == "width"
    assert (len(samples.seconds), len(samples.turns), sum(samples.turns)) == (9, 3, 9)
    assert samples.seconds == pytest.approx([0.01] * 9) and samples.calls_per_sample == 1


def test_sampling_a_varying_call_stops_at_a_limit_and_names_it(monkeypatch):
    times = [0.001, 0.002, 0.004, 0.008]
    long = take_samples(Clock(monkeypatch, times).call, Sampling(seconds=0.2, warm_up=0.0))
    assert long.stop_reason == "seconds"
    few = take_samples(Clock(monkeypatch, times).call, Sampling(most=8, seconds=9.0, warm_up=0.0))
    assert (few.stop_reason, len(few.seconds)) == ("most", 8)


@pytest.mark.parametrize("most", [7, 8, 60])
def test_samples_are_taken_in_at_least_the_requested_number_of_turns(monkeypatch, most):
    for seconds in ([1e-4], [1e-4, 3e-4]):
        sampling = Sampling(least=7, most=most, seconds=0.01, warm_up=0.0)
        samples = take_samples(Clock(monkeypatch, seconds).call, sampling)
        assert len(samples.turns) >= 3 and all(samples.turns) and len(samples.seconds) <= most


@pytest.mark.parametrize("floor", [1e-6, 1e-5, 1e-3])
def test_a_sample_repeats_a_short_call_until_it_takes_fifty_dispatch_latencies(monkeypatch, floor):
    samples = take_samples(Clock(monkeypatch, [1e-4]).call, floor_seconds=floor)
    least = max(1, round(50 * floor / 1e-4))
    assert least <= samples.calls_per_sample < 2 * least, (
        "a power of two, as compared cases must have the same"
    )
    assert samples.seconds == pytest.approx([1e-4] * len(samples.seconds)), "a time is per call"


def test_sampling_can_continue_after_its_stopping_rule(monkeypatch):
    turns = timing.sample_turns(Clock(monkeypatch, [0.01]).call, STEADY)
    reasons, counts = zip(*((s.stop_reason, len(s.seconds)) for s in itertools.islice(turns, 6)), strict=True)
    assert reasons == (None, None, "width", "width", "width", "width")
    assert counts[-1] > 9


def test_a_sample_of_several_processes_is_the_slowest_and_records_the_fastest(monkeypatch):
    factors = itertools.cycle([0.5, 2.0])

    def gather(values):
        return [values] if len(values) == 1 else [values, [values[0] * next(factors), values[1]]]

    samples = take_samples(Clock(monkeypatch, [0.01]).call, gather=gather)
    count = len(samples.seconds)
    assert samples.seconds == pytest.approx(([0.01, 0.02] * count)[:count])
    assert samples.seconds_min == pytest.approx(([0.005, 0.01] * count)[:count])
    assert samples.slowest == ([0, 1] * count)[:count]


def test_every_turn_except_the_first_begins_with_a_discarded_call(monkeypatch):
    clock = Clock(monkeypatch, [0.01])
    samples = take_samples(clock.call, Sampling(seconds=0.2, warm_up=0.0))
    warm_up = 1
    assert clock.calls == warm_up + len(samples.seconds) + len(samples.turns) - 1


def test_processes_synchronize_before_every_turn_and_after_every_sample(monkeypatch):
    gathered = []
    gather = lambda values: gathered.append(len(values)) or [values]  # noqa: E731
    samples = take_samples(Clock(monkeypatch, [0.01]).call, gather=gather)
    warm_up_and_samples = "".join(map(str, gathered)).partition("2")
    assert gathered.count(2) == len(samples.seconds)
    assert warm_up_and_samples[0].endswith("1") and gathered.count(1) >= len(samples.turns) + 2, (
        "to warm up, to agree on the calls per sample, and before each turn"
    )
