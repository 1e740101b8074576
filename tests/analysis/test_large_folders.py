"""Tests that the work of a report is proportional to the number of records; they count calls of functions, not seconds."""

import sys

import pytest

from scaling.analysis import answers, lint, ranking
from scaling.analysis.curves import Curve
from scaling.analysis.findings import read
from scaling.core.case import to_dict
from scaling.options import machine_peaks
from scaling.report import proposal, tables
from tests.support import made_up, planned

ENOUGH = 9  # samples


def count_calls(function, *arguments):
    """Return the number of calls of functions while `function(*arguments)` runs."""
    count = 0

    def note(_frame, event, _argument):
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(note)
    try:
        function(*arguments)
    finally:
        sys.setprofile(None)
    return count


@pytest.fixture
def read_records(tmp_path, make_record):
    """Return a function from the fields of records to their findings."""

    def write_and_read(rows):
        records = [
            make_record(api="shard_map", **{"seconds": [row["devices"]] * ENOUGH} | row) for row in rows
        ]
        return read(made_up.write(tmp_path / str(len(records)), records))

    return write_and_read


def functions(count):
    """Return the fields of records of `count` functions: one mode is slower on two devices, and the other one failed there."""
    failure = {"status": "failed", "reason": "error"}
    return [
        {"workload": f"function{i}", "mode": mode, "devices": devices} | (failure if mode == "jacrev" else {})
        for i in range(count)
        for mode in ("jacfwd", "jacrev")
        for devices in (1, 2)
    ]


def too_large_on_one_device(count):
    """Return the fields of records of `count` curves on two and four devices whose program ran out of memory on one."""
    failure = {"status": "failed", "reason": "out_of_memory"}
    return [
        {"points": 4 * i, "devices": devices} | (failure if devices == 1 else {})
        for i in range(1, count + 1)
        for devices in (1, 2, 4)
    ]


def environments(count):
    """Return the fields of records of one case in `count` environments."""
    return [{"devices": 1, "digest": f"{i:012x}"} for i in range(count)]


def chunks(count):
    """Return the fields of records of `count` chunk sizes."""
    return [{"devices": 1, "chunk": chunk} for chunk in range(1, count + 1)]


def find_baselines(found):
    return ranking.find_baselines(found.timings)


@pytest.mark.parametrize(
    "use, make_rows",
    [
        (answers.measured_answers, functions),
        (lint.lint_findings, too_large_on_one_device),
        (tables.environment_table, environments),
        (find_baselines, chunks),
    ],
)
def test_work_for_twice_as_many_records_is_about_twice_as_large(read_records, use, make_rows):
    few, many = (count_calls(use, read_records(make_rows(count))) for count in (60, 120))
    assert few > 60 and many < 2.3 * few


def test_the_peak_rates_of_the_machine_are_computed_as_often_for_many_curves_as_for_few(
    read_records, monkeypatch
):
    computed, peak_work = [], machine_peaks.peak_work
    monkeypatch.setattr(machine_peaks, "peak_work", lambda case: computed.append(case) or peak_work(case))
    sizes = {"k": 10, "terms": 1}
    peak = {"workload": "ceiling", "target": "copy", "mode": "value", "sizes": sizes, "points": 2}
    counts = []
    for count in (2, 4):
        computed.clear()
        rows = [{"points": 4 * i, "devices": devices} for i in range(1, count + 1) for devices in (1, 2)]
        found = read_records([*rows, peak | {"devices": 2}])
        assert len(found.curves) == count
        counts.append(len(computed))
    assert counts[0] == counts[1] > 0


def test_a_proposal_looks_up_each_curve_in_the_plans_instead_of_comparing_all_pairs(
    tmp_path, make_record, monkeypatch
):
    compared, counts, get_program = [], [], Curve.program.fget
    monkeypatch.setattr(proposal.files, "encode_figures", lambda *_: {})
    monkeypatch.setattr(
        Curve, "program", property(lambda curve: compared.append(curve) or get_program(curve))
    )
    for count in (10, 20):
        plans = [planned.plan(1.0, devices, workload=f"f{i}") for i in range(count) for devices in (1, 2)]
        records = [make_record(seconds=[1.0] * ENOUGH, **to_dict(plan.case)) for plan in plans]
        folder = made_up.write(tmp_path / str(count), [*plans, *records])
        found = read(folder)
        compared.clear()
        text = proposal.write_proposal(folder, found).read_text()
        assert f"f{count - 1}" in text
        counts.append(len(compared))
    assert 0 < counts[1] <= 2 * counts[0]
