"""What memory buys: which settings are compared, which nothing beats, and what is said of them."""

import dataclasses

import pytest

from scaling.analysis import answer, curves, findings, setting_comparison
from tests.support import made_up
from tests.support.records import record

HALF, SMALL, LARGE = (2.0, 50), (6.0, 10), (3.0, 90)  # seconds, bytes


def setting(seconds=1.0, memory=100, **fields):
    """A record of a setting that takes so much of a device."""
    return record(seconds=seconds, temp_bytes=memory - 3, argument_bytes=1, output_bytes=2, **fields)


def front(*records):
    """The only front of these."""
    (found,) = setting_comparison.pareto_fronts(records)
    return found


def several(**fields):
    """All at once, and three chunks: one that is on the front, the smallest, and one that is beaten."""
    return [setting(**fields), *(setting(s, m, chunk=int(s), **fields) for s, m in (HALF, SMALL, LARGE))]


def test_the_front_is_what_no_setting_beats_in_both_memory_and_time():
    found = front(*several())
    assert [(one.memory, one.timing.median, one.best) for one in found.settings] == [
        (10, 6.0, True), (50, 2.0, True), (90, 3.0, False), (100, 1.0, True)
    ]  # fmt: skip
    assert (found.smallest.name, found.fastest.name) == ("6 seeds at a time", "all at once")
    assert (
        found.smallest_within(2.0).memory == 50
        and found.smallest_within(1.5) is found.fastest
        and found.smallest_within(10).memory == 10
    )


SETTINGS = [
    {"chunk": 2},
    {"chunk": "auto"},
    {"block": 4},
    {"memory_limit": 10**9},
    {"storage": "host"},
    {"remat": "dots_saveable"},
]


@pytest.mark.parametrize("fields", SETTINGS, ids=str)
def test_what_trades_memory_for_time_is_a_setting(fields):
    found = front(setting(), setting(2.0, 50, **fields))
    assert len(found.settings) == 2 and found.smallest.name != "all at once"


@pytest.mark.parametrize("fields", [
    {"mode": "jacrev"}, {"batch": "whole"}, {"points": 24}, {"devices": 2}, {"api": "pmap"}, {"split": "seeds"},
    {"digest": "two"}, {"seeds": "colored"}, {"reduce": "gram"}, {"formulation": "rowwise"}, {"dtype": "float64"},
    {"forward": "W"}, {"overlap": True},
])  # fmt: skip
def test_everything_else_makes_another_program(fields):
    assert setting_comparison.pareto_fronts([setting(), setting(2.0, 50, chunk=2, **fields)]) == []


@pytest.mark.parametrize("fields", [{"cores": []}, {"mode": "value"}, {"temp_bytes": None}], ids=str)
def test_what_has_no_honest_time_no_derivative_or_no_bytes_is_on_no_front(fields):
    odd = {"temp_bytes": 1, "argument_bytes": 1, "output_bytes": 1} | fields
    assert (
        setting_comparison.pareto_fronts([record(seconds=1.0, **odd), record(seconds=2.0, block=2, **odd)])
        == []
    )


def test_bytes_are_those_that_a_program_asks_for_whatever_peak_was_seen():
    found = front(setting(), setting(2.0, 50, chunk=2, peak_bytes=500))
    assert [one.memory for one in found.settings] == [50, 100]


def test_processes_of_one_setting_are_one_setting():
    found = front(*(each for replicate in range(3) for each in several(replicate=replicate)))
    assert [one.timing.replicates for one in found.settings] == [3] * 4


def test_settings_that_memory_is_too_small_for_are_told_once_each():
    unfit = [
        setting(status="skipped", reason="too_large", block=8, replicate=replicate) for replicate in range(2)
    ]
    other = [
        setting(status="failed", reason="error", block=9),
        setting(status="skipped", reason="too_large", points=24),
    ]
    assert [each.case.block for each in front(*several(), *unfit, *other).not_fitting] == [8]


def test_a_memory_limit_keeps_curves_over_devices_apart():
    limits = [
        record(devices, 8.0 / devices, memory_limit=limit)
        for devices in (1, 2)
        for limit in (None, 10**9, 2 * 10**9)
    ]
    found = curves.scaling_curves(limits)
    assert [len(curve.points) for curve in found] == [2, 2, 2] and len({curve.name for curve in found}) == 3


@pytest.mark.parametrize("blocks, words", [
    (None, ""),
    ({"block": None, "chunk": 1, "storage": "device"}, "1 seed and all points at a time"),
    ({"block": 4, "chunk": None, "storage": "host"}, "all seeds and 4 points at a time, kept on the host"),
])  # fmt: skip
def test_what_chunk_auto_came_to_is_told_in_words(blocks, words):
    assert setting_comparison.automatic_blocks(record(blocks=blocks)) == words


@pytest.fixture
def read(tmp_path):
    def of(records):
        return findings.read(made_up.write(tmp_path / "made", records, scaling=["strong"]))

    return of


def test_the_answer_says_what_less_memory_costs(read):
    blocks = {"block": 3, "chunk": None, "storage": "device", "limit_bytes": 60, "probes": []}
    more = [setting(1.05, 80, block=6), setting(1.2, 60, chunk="auto", memory_limit=60, blocks=blocks)]
    unfit = setting(status="skipped", reason="too_large", block=8)
    (told,) = [
        line
        for line in answer.answer_sentences(read([*several(), *more, unfit]))
        if line.startswith("Memory against time")
    ]
    assert told.startswith(
        "Memory against time of linear jacobian by W: jacfwd (vmap) at o=3 p=5 points=12, shard_map, points split"
    )
    assert (
        "all at once is fastest, 1.00 s (1.00 to 1.00) in 100 B of a device; 6 points at a time: 80 % of the memory for"
        in told
    )
    assert "6 seeds at a time: 10 % of the memory for 6.00x (6.00 to 6.00) the time" in told
    assert (
        "chunk=auto, within 60.0 B (all seeds and 3 points at a time): 60 % of the memory for 1.20x" in told
    )
    assert told.endswith("; 1 setting did not fit.")


def test_where_the_fastest_is_the_smallest_that_is_said(read):
    (told,) = [
        line
        for line in answer.summarize(read([setting(), setting(2.0, 200, chunk=2)]))[1]
        if line.startswith("Memory")
    ]
    assert told.endswith(
        "all at once is fastest, 1.00 s (1.00 to 1.00) in 100 B of a device, and nothing is smaller."
    )


def test_no_setting_is_told_twice(read):
    (told,) = [
        line
        for line in answer.summarize(read([setting(), setting(1.05, 50, chunk="auto")]))[1]
        if line.startswith("Memory")
    ]
    assert told.count("of the memory for") == 1


def test_the_runner_up_is_another_mode_and_not_the_next_setting():
    found = curves.fastest_methods([*several(), setting(5.0, mode="jacrev")])
    assert [(row.first.case.chunk, row.second.case.mode) for row in found] == [(None, "jacrev")]
    (row,) = curves.fastest_methods(several())
    assert row.second.case.chunk == 2


def test_cases_that_are_known_by_a_number_and_by_auto_are_sorted_without_complaint():
    of = [setting(chunk=chunk, memory_limit=limit) for chunk in ("auto", 3, None) for limit in (5, None)]
    assert [timing.case.chunk for timing in curves.pool_processes(of)] == [None, None, 3, 3, "auto", "auto"]


def test_a_case_of_its_own_block_does_not_take_turns_with_others_by_that_name():
    of = dataclasses.replace(setting(block=4), block="turns")
    assert (of.case.block, of.block) == (4, "turns")
