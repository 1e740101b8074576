"""Laws of a sample: what is waited for, when sampling stops, how turns and processes share it, and what spoils it."""

import itertools
import time

import pytest

from scaling.core import timing
from scaling.core.timing import Sampling

STEADY = Sampling(width=0.02, least=7, most=60, seconds=0.2, warm_up=0.001, turns=3)


class Clock:
    """A clock that a test moves: `call` takes as long as the next of these times says."""

    def __init__(self, monkeypatch, seconds):
        self.now, self.calls, self.seconds = 0.0, 0, itertools.cycle(seconds)
        monkeypatch.setattr(time, "perf_counter", lambda: self.now)

    def call(self):
        self.calls += 1
        self.now += next(self.seconds)


def sampled(call, sampling=STEADY, **more):
    """Turns until the samples are enough."""
    return next(samples for samples in timing.sample_turns(call, sampling, **more) if samples.stop_reason)


def test_a_steady_call_stops_by_width_at_the_least_number_of_samples_and_turns(monkeypatch):
    samples = sampled(Clock(monkeypatch, [0.01]).call)
    assert samples.stop_reason == "width"
    assert (len(samples.seconds), len(samples.turns), sum(samples.turns)) == (9, 3, 9)
    assert samples.seconds == pytest.approx([0.01] * 9) and samples.calls_per_sample == 1


def test_a_wild_call_stops_at_a_cap_and_says_which(monkeypatch):
    wild = [0.001, 0.002, 0.004, 0.008]
    assert sampled(Clock(monkeypatch, wild).call, Sampling(seconds=0.2, warm_up=0.0)).stop_reason == "seconds"
    few = sampled(Clock(monkeypatch, wild).call, Sampling(most=8, seconds=9.0, warm_up=0.0))
    assert (few.stop_reason, len(few.seconds)) == ("most", 8)


@pytest.mark.parametrize("most", [7, 8, 60])
def test_no_number_of_samples_is_taken_in_fewer_turns_than_asked_for(monkeypatch, most):
    for seconds in ([1e-4], [1e-4, 3e-4]):
        samples = sampled(
            Clock(monkeypatch, seconds).call, Sampling(least=7, most=most, seconds=0.01, warm_up=0.0)
        )
        assert len(samples.turns) >= 3 and all(samples.turns) and len(samples.seconds) <= most


@pytest.mark.parametrize("floor", [1e-6, 1e-5, 1e-3])
def test_a_call_below_fifty_floors_is_made_so_often_in_a_sample_that_the_sample_is_not(monkeypatch, floor):
    samples = sampled(Clock(monkeypatch, [1e-4]).call, floor_seconds=floor)
    least = max(1, round(50 * floor / 1e-4))
    assert least <= samples.calls_per_sample < 2 * least, (
        "a power of two, so that two that are compared have the same"
    )
    assert samples.seconds == pytest.approx([1e-4] * len(samples.seconds)), "a time is that of one call"


def test_sampling_goes_on_after_it_is_enough_where_it_is_asked_to(monkeypatch):
    steps = timing.sample_turns(Clock(monkeypatch, [0.01]).call, STEADY)
    taken = [next(steps) for _ in range(6)]
    assert [step.stop_reason for step in taken] == [None, None, "width", "width", "width", "width"]
    assert len(taken[-1].seconds) > 9


def test_of_several_processes_the_slowest_of_each_sample_counts_and_the_fastest_is_kept(monkeypatch):
    theirs = itertools.cycle([0.5, 2.0])

    def gather(values):
        return [values] if len(values) == 1 else [values, [values[0] * next(theirs), values[1]]]

    samples = sampled(Clock(monkeypatch, [0.01]).call, gather=gather)
    count = len(samples.seconds)
    assert samples.seconds == pytest.approx(([0.01, 0.02] * count)[:count])
    assert samples.seconds_min == pytest.approx(([0.005, 0.01] * count)[:count])
    assert samples.slowest == ([0, 1] * count)[:count]


def test_every_turn_but_the_first_begins_with_a_call_that_does_not_count(monkeypatch):
    clock = Clock(monkeypatch, [0.01])
    samples = sampled(clock.call, Sampling(seconds=0.2, warm_up=0.0))
    warm_up = 1
    assert clock.calls == warm_up + len(samples.seconds) + len(samples.turns) - 1


def test_processes_meet_before_the_first_sample_of_a_turn_and_after_every_sample(monkeypatch):
    met = []
    samples = sampled(
        Clock(monkeypatch, [0.01]).call, gather=lambda values: met.append(len(values)) or [values]
    )
    turns = "".join(map(str, met)).partition("2")
    assert met.count(2) == len(samples.seconds)
    assert turns[0].endswith("1") and met.count(1) >= len(samples.turns) + 2, (
        "to warm up, to agree on a batch, and before each turn"
    )


def test_a_disturbed_turn_is_marked_and_its_samples_are_kept(monkeypatch):
    turn = itertools.count()
    samples = sampled(
        Clock(monkeypatch, [0.01]).call,
        start_turn=lambda: lambda: ["foreign_load"] if next(turn) == 1 else [],
    )
    assert samples.marked == {"foreign_load": [1]}
    assert len(samples.seconds) == sum(samples.turns)
