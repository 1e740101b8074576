"""Tests of memory settings: which ones are compared, which are on the Pareto front of memory and time, and their sentences."""

import dataclasses

import pytest

from scaling.analysis import findings, method_settings, summary
from scaling.analysis.timings import automatic_blocks, pool_processes
from tests.support import made_up
from tests.support.records import curves_of, rank, record

HALF, SMALL, LARGE = (2.0, 50), (6.0, 10), (3.0, 90)  # seconds, bytes


def setting(seconds=1.0, memory=100, **fields):
    """Return a record whose program needs `memory` bytes per device."""
    return record(seconds=seconds, temp_bytes=memory - 3, argument_bytes=1, output_bytes=2, **fields)


def front(*records):
    (result,) = pareto_fronts(records)
    return result


def several(**fields):
    """Return four settings: all seeds at once, a chunk on the front, the smallest chunk, and a dominated chunk."""
    return [setting(**fields), *(setting(s, m, chunk=int(s), **fields) for s, m in (HALF, SMALL, LARGE))]


def test_front_holds_the_settings_that_none_dominates_in_memory_and_time():
    result = front(*several())
    assert [(t.requested_bytes, t.median) for t in result] == [(10, 6.0), (50, 2.0), (100, 1.0)]
    assert [t.method.memory_setting for t in result[::2]] == ["6 seeds at a time", ""]


SETTINGS = [
    {"chunk": 2},
    {"chunk": "auto"},
    {"block": 4},
    {"memory_limit": 10**9},
    {"storage": "host"},
    {"remat": "dots_saveable"},
]


@pytest.mark.parametrize("fields", SETTINGS, ids=str)
def test_fields_that_trade_memory_for_time_are_settings(fields):
    result = front(setting(), setting(2.0, 50, **fields))
    assert len(result) == 2 and result[0].method.memory_setting


@pytest.mark.parametrize("fields", [
    {"mode": "jacrev"}, {"batch": "whole"}, {"points": 24}, {"devices": 2}, {"api": "pmap"}, {"split": "seeds"},
    {"digest": "two"}, {"seeds": "colored"}, {"reduce": "gram"}, {"formulation": "rowwise"}, {"dtype": "float64"},
    {"forward": "W"}, {"overlap": True},
])  # fmt: skip
def test_other_fields_make_a_different_program(fields):
    assert pareto_fronts([setting(), setting(2.0, 50, chunk=2, **fields)]) == []


@pytest.mark.parametrize("fields", [{"cores": []}, {"mode": "value"}, {"temp_bytes": None}], ids=str)
def test_cases_without_valid_time_derivative_or_memory_are_on_no_front(fields):
    memory = {"temp_bytes": 1, "argument_bytes": 1, "output_bytes": 1} | fields
    assert pareto_fronts([record(seconds=1.0, **memory), record(seconds=2.0, block=2, **memory)]) == []


def test_memory_is_what_the_program_requests_not_the_measured_peak():
    result = front(setting(), setting(2.0, 50, chunk=2, peak_bytes=500))
    assert [timing.requested_bytes for timing in result] == [50, 100]


def test_processes_of_a_setting_are_pooled():
    result = front(*(row for replicate in range(3) for row in several(replicate=replicate)))
    assert [timing.replicates for timing in result] == [3] * 3


def test_cases_with_different_memory_limits_are_on_different_curves():
    limits = [
        record(devices, 8.0 / devices, memory_limit=limit)
        for devices in (1, 2)
        for limit in (None, 10**9, 2 * 10**9)
    ]
    result = curves_of(limits)
    assert [len(curve.points) for curve in result] == [2, 2, 2]
    assert len({curve.name for curve in result}) == 3


@pytest.mark.parametrize("blocks, words", [
    (None, ""),
    ({"block": None, "chunk": 1, "storage": "device"}, "1 seed and all points at a time"),
    ({"block": 4, "chunk": None, "storage": "host"}, "all seeds and 4 points at a time, kept on the host"),
])  # fmt: skip
def test_blocks_chosen_by_chunk_auto_are_described(blocks, words):
    assert automatic_blocks(record(blocks=blocks)) == words


def pareto_fronts(records):
    """Return the Pareto fronts of the newest of these records."""
    return method_settings.pareto_fronts(pool_processes(records))


@pytest.fixture
def read(tmp_path):
    def read_records(records):
        return findings.read(made_up.write(tmp_path / "made", records, scaling=["strong"]))

    return read_records


def test_answer_states_the_time_that_less_memory_costs(read):
    blocks = {"block": 3, "chunk": None, "storage": "device", "limit_bytes": 60, "probes": []}
    more = [setting(1.05, 80, block=6), setting(1.2, 60, chunk="auto", memory_limit=60, blocks=blocks)]
    (text,) = [
        line
        for line in summary.answer_sentences(read([*several(), *more]))
        if line.startswith("Memory against time")
    ]
    assert text.startswith(
        "Memory against time of linear jacobian by W: jacfwd (vmap) at o=3 p=5 points=12, shard_map, points split"
    )
    assert (
        "all at once has the shortest time, 1.00 s (1.00 to 1.00) in 100 B of a device; "
        "6 points at a time: 80 % of the memory" in text
    )
    assert "6 seeds at a time: 10 % of the memory, it takes 6.00x (6.00 to 6.00) as long" in text


def test_answer_states_that_the_fastest_setting_is_also_the_smallest(read):
    processes = [
        row for i in range(2) for row in (setting(replicate=i), setting(2.0, 200, chunk=2, replicate=i))
    ]
    (text,) = [line for line in summary.answer_sentences(read(processes)) if line.startswith("Memory")]
    assert text.endswith(
        "all at once has the shortest time, 1.00 s (1.00 to 1.00) in 100 B of a device, and nothing is smaller."
    )


def test_runner_up_is_another_mode_unless_only_settings_differ():
    fastest = rank([*several(), setting(5.0, mode="jacrev")])
    assert [(row.fastest.case.chunk, row.runner_up.case.mode) for row in fastest] == [(None, "jacrev")]
    (row,) = rank(several())
    assert row.runner_up.case.chunk == 2


def test_numeric_and_automatic_chunks_can_be_sorted():
    rows = [setting(chunk=chunk, memory_limit=limit) for chunk in ("auto", 3, None) for limit in (5, None)]
    assert [timing.case.chunk for timing in pool_processes(rows)] == [None, None, 3, 3, "auto", "auto"]


def test_block_size_of_a_case_and_block_name_of_a_record_are_separate():
    row = dataclasses.replace(setting(block=4), block="turns")
    assert (row.case.block, row.block) == (4, "turns")
