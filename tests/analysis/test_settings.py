"""Tests of settings of one program: which timings the table of settings compares, and the names and fields of settings."""

import dataclasses

import pytest

from scaling.analysis import findings, ranking
from scaling.analysis.ranking import find_baselines
from scaling.analysis.timings import (
    SPARSITY_STAGES,
    blocks_of,
    first_call_seconds,
    pool_processes,
    stage_seconds,
)
from scaling.core.record import COMPILING_STAGES
from scaling.report import tables as report_tables
from tests.support import made_up
from tests.support.records import curves_of, only, rank, record

COLORED = {
    "seeds": "colored",
    "detect_seconds": 3.0,
    "color_seconds": 1.0,
    "colors": {"columns": 9, "rows": 0},
    "nonzeros": 1280,
}
STAGES = {"trace_seconds": 0.5, "compile_seconds": 1.5, "first_seconds": 1.0}
GRADIENT = {"split": "data", "reduce": "points", "mode": "grad_of_sum"}


def setting(seconds=1.0, memory=100, **fields):
    """Return a record whose program needs `memory` bytes per device."""
    return record(seconds=seconds, temp_bytes=memory - 3, argument_bytes=1, output_bytes=2, **fields)


def group_settings(*records):
    return ranking.group_settings(pool_processes(records))


def table_rows(folder, records, anchor="settings"):
    """Return the rows of a folded table of a study with these records."""
    study = findings.read(made_up.write(folder / "made", records, scaling=["strong"]))
    tables = {table.anchor: table for table in report_tables.folded_tables(study)}
    table = tables.get(anchor)
    return [dict(zip(table.columns, row, strict=True)) for row in table.rows] if table else []


@pytest.mark.parametrize("fields", [
    {"chunk": 2}, {"chunk": "auto"}, {"block": 4}, {"memory_limit": 10**9}, {"storage": "host"},
    {"remat": "dots_saveable"}, {"seeds": "colored"}, {"forward": "W"},
], ids=str)  # fmt: skip
def test_cases_that_differ_only_in_settings_are_compared_the_fastest_first(fields):
    for seconds in (0.5, 2.0):
        program = only(group_settings(setting(), setting(seconds, **fields)))
        assert [timing.median for timing in program] == sorted([1.0, seconds])


@pytest.mark.parametrize("fields", [
    {"mode": "jacrev"}, {"batch": "whole"}, {"points": 24}, {"devices": 2}, {"api": "pmap"}, {"split": "seeds"},
    {"digest": "two"}, {"reduce": "gram"}, {"formulation": "rowwise"}, {"dtype": "float64"}, {"cores": []},
], ids=str)  # fmt: skip
def test_cases_that_differ_in_other_fields_are_not_compared(fields):
    assert group_settings(setting(), setting(2.0, chunk=2, **fields)) == []


def test_meshes_overlaps_and_processes_of_one_device_count_are_compared():
    meshes = [record(4, split="both", mesh=mesh, replicate=i) for mesh in ("1x4", "2x2") for i in range(3)]
    assert [len(timing.records) for timing in only(group_settings(*meshes))] == [3, 3]
    overlaps = [record(2, seconds, overlap=seconds < 4, **GRADIENT) for seconds in (4.0, 3.0)]
    assert [timing.case.overlap for timing in only(group_settings(*overlaps))] == [True, False]


def test_function_values_have_no_settings():
    assert group_settings(record(mode="value"), record(mode="value", block=2)) == []


def test_table_of_settings_states_the_time_and_the_memory_of_each(tmp_path):
    rows = table_rows(tmp_path, [setting(2.0, 50_000, chunk=2), setting(memory=100_000, peak_bytes=1)])
    assert [(row["time"], row["memory"]) for row in rows] == [
        ("1.00 s (1.00 to 1.00)", "0.10 MB"),
        ("2.00 s (2.00 to 2.00)", "0.05 MB"),
    ]
    assert [row["times as long"] for row in rows] == ["", "2.00x (2.00 to 2.00)"]
    assert rows[1]["case"].endswith("chunk=2")


def test_table_of_settings_states_what_coloring_costs(tmp_path):
    rows = table_rows(tmp_path, [record(seconds=0.5, **COLORED, **STAGES), record(seconds=2.5, **STAGES)])
    names = ("nonzeros", "seeds", "detecting and coloring", "first call")
    cells = [[row[name] for name in names] for row in rows]
    assert cells == [["1,280", "9", "4.00 s", "7.00 s"], ["", "", "", "3.00 s"]]
    assert rows[1]["times as long"].startswith("5.00x")


@pytest.mark.parametrize(
    "missing", [{"colors": {"columns": None}}, {"colors": None, "nonzeros": None}], ids=str
)
def test_records_without_color_counts_are_in_the_table_of_settings(tmp_path, missing):
    rows = table_rows(tmp_path, [record(**COLORED | missing), record(seconds=2.0)])
    assert len(rows) == 2 and "seeds" not in rows[0]


def test_table_of_settings_states_no_ratio_that_is_not_determined(tmp_path):
    wide = [1.0, 9.0, 0.5, 30.0, 2.0, 14.0, 0.2, 22.0, 3.0]
    rows = table_rows(tmp_path, [record(seconds=0.5), record(seconds=wide, chunk=2)])
    assert rows[1]["times as long"].startswith("not determined (")


def test_times_on_shared_cores_are_marked_in_the_table_of_settings(tmp_path):
    rows = table_rows(tmp_path, [record(seconds=0.5, chunk=2, cores=[]), record(seconds=2.0, cores=[])])
    assert [row["case"].endswith(" [unbound or oversubscribed]") for row in rows] == [True, True]


def test_communication_volume_is_a_remark(tmp_path):
    sent = {"collective_bytes": 2_000_000, **GRADIENT}
    records = [
        record(2, 3.0, overlap=True, collectives={"all-reduce": 6}, **sent),
        record(2, 4.0, collectives={"all-reduce": 1}, **sent),
    ]
    cells = {
        row["case"].endswith("overlapped"): row["remarks"]
        for row in table_rows(tmp_path, records, "measured")
    }
    assert cells == {False: "sends 2.00 MB in 1 all-reduce", True: "sends 2.00 MB in 6 all-reduces"}


def test_sparsity_detection_and_coloring_count_toward_the_first_call():
    timing = only(pool_processes([record(**COLORED, **STAGES)]))
    assert (
        stage_seconds(timing, *SPARSITY_STAGES),
        stage_seconds(timing, *COMPILING_STAGES),
        first_call_seconds(timing),
    ) == (4.0, 2.0, 7.0)
    assert stage_seconds(only(pool_processes([record(**STAGES)])), *SPARSITY_STAGES) is None


def test_sparse_and_dense_derivatives_have_separate_hand_written_baselines():
    exact = [record(seconds=1.0, mode="analytic"), record(seconds=4.0, mode="analytic", seeds="colored")]
    timings = pool_processes([record(seconds=2.0, **COLORED), record(seconds=8.0), *exact])
    assert {s.timing.case.seeds: s.by_hand[0] for s in find_baselines(timings) if s.timing.case.mode == "jacfwd"} == {
        "colored": 0.5, "identity": 8.0
    }  # fmt: skip
    (row,) = rank([record for timing in timings for record in timing.records])
    assert row.fastest.case.seeds == "colored"


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
    assert blocks_of(only(pool_processes([record(blocks=blocks)]))) == words


def test_runner_up_is_another_mode_unless_only_settings_differ():
    several = [setting(), setting(2.0, chunk=2), setting(6.0, chunk=6)]
    fastest = rank([*several, setting(5.0, mode="jacrev")])
    assert [(row.fastest.case.chunk, row.runner_up.case.mode) for row in fastest] == [(None, "jacrev")]
    (row,) = rank(several)
    assert row.runner_up.case.chunk == 2


def test_numeric_and_automatic_chunks_can_be_sorted():
    rows = [setting(chunk=chunk, memory_limit=limit) for chunk in ("auto", 3, None) for limit in (5, None)]
    assert [timing.case.chunk for timing in pool_processes(rows)] == [None, None, 3, 3, "auto", "auto"]


def test_block_size_of_a_case_and_block_name_of_a_record_are_separate():
    row = dataclasses.replace(setting(block=4), block="turns")
    assert (row.case.block, row.block) == (4, "turns")
