"""Coloured seeds and overlapped sending: what each is compared with, when it pays, and what is said of it."""

import dataclasses

import pytest

from scaling.analysis import answer, curves, findings, setting_comparison, stages
from scaling.analysis.baselines import find_baselines
from scaling.report import page_tables
from tests.support import made_up
from tests.support.records import only, record

FEW = {
    "seeds": "colored",
    "detect_seconds": 3.0,
    "color_seconds": 1.0,
    "colors": {"columns": 9, "rows": 0},
    "nonzeros": 1280,
}
FIRST = {"trace_seconds": 0.5, "compile_seconds": 1.5, "first_seconds": 1.0}
SENT = {"split": "data", "reduce": "points", "mode": "grad_of_sum"}


def colored(*records):
    return only(setting_comparison.coloring_gains(curves.pool_processes(records)))


def told(folder, records, head):
    """What is said of a folder with these records that begins so."""
    found = findings.read(made_up.write(folder / "made", records, scaling=["strong"]))
    of = {
        table.anchor: [dict(zip(table.columns, row, strict=True)) for row in table.rows]
        for table in page_tables.folded_tables(found)
    }
    return [line for line in answer.answer_sentences(found) if line.startswith(head)], of


def test_finding_seeds_is_part_of_the_first_call():
    timing = only(curves.pool_processes([record(**FEW, **FIRST)]))
    assert (
        stages.sparsity_seconds(timing),
        stages.compiling_seconds(timing),
        stages.first_call_seconds(timing),
    ) == (
        4.0,
        2.0,
        7.0,
    )
    assert stages.sparsity_seconds(only(curves.pool_processes([record(**FIRST)]))) is None


def test_few_seeds_stand_beside_the_fastest_way_with_all_of_them():
    found = colored(
        record(seconds=0.5, **FEW),
        record(seconds=6.0),
        record(seconds=2.0, mode="jacrev"),
        record(seconds=1.0, mode="analytic"),
    )
    assert (found.other.case.mode, found.ratio[0], found.seeds) == ("jacrev", 4.0, 9)


@pytest.mark.parametrize(
    "elsewhere", [{"points": 24}, {"devices": 2}, {"digest": "two"}, {"dtype": "float64"}], ids=str
)
def test_what_was_measured_elsewhere_is_no_rival(elsewhere):
    assert colored(record(seconds=0.5, **FEW), record(seconds=6.0, **elsewhere)).other is None


def test_it_pays_from_the_evaluation_on_that_makes_up_for_all_that_came_before():
    # 7 s and 0.5 s for each later evaluation, against 3 s and 2.5 s for each: level after two more.
    few, every = record(seconds=0.5, **FEW, **FIRST), record(seconds=2.5, **FIRST)
    assert colored(few, every).break_even == 3
    assert colored(dataclasses.replace(few, detect_seconds=3.5), every).break_even == 4
    assert colored(dataclasses.replace(few, detect_seconds=0.0, color_seconds=0.0), every).break_even == 1
    assert colored(few, dataclasses.replace(every, compile_seconds=90.0)).break_even == 1
    assert colored(record(seconds=4.0, **FEW, **FIRST), every).break_even is None


def test_what_is_written_by_hand_needs_no_seeds():
    assert (
        setting_comparison.coloring_gains(curves.pool_processes([record(mode="analytic", seeds="colored")]))
        == []
    )


def test_entries_written_by_hand_are_no_measure_for_the_whole_derivative_nor_the_other_way_round():
    by_hand = [record(seconds=1.0, mode="analytic"), record(seconds=4.0, mode="analytic", seeds="colored")]
    timings = curves.pool_processes([record(seconds=2.0, **FEW), record(seconds=8.0), *by_hand])
    assert {s.timing.case.seeds: s.by_hand[0] for s in find_baselines(timings) if s.timing.case.mode == "jacfwd"} == {
        "colored": 0.5, "identity": 8.0
    }  # fmt: skip
    (row,) = curves.fastest_methods([record for timing in timings for record in timing.records])
    assert row.first.case.seeds == "colored" and row.by_hand == 0.5


def test_the_answer_and_a_table_say_what_colouring_took_and_when_it_pays(tmp_path):
    lines, of = told(
        tmp_path, [record(seconds=0.5, **FEW, **FIRST), record(seconds=2.5, **FIRST)], "Sparsity"
    )
    assert (
        "with 9 seeds for 1,280 nonzeros, found in 4.00 s; jacfwd (vmap) with all seeds takes 5.00x"
        in lines[0]
    )
    assert lines[0].endswith("so that it pays after 3 evaluations.")
    (row,) = of["sparsity"]
    assert (row["detecting and colouring"], row["compiling"]) == ("4.00 s", "2.00 s")
    assert (row["seeds"], row["nonzeros"], row["pays after"]) == ("9", "1,280", "3 evaluations")


@pytest.mark.parametrize("odd", [{"colors": {"columns": None}}, {"colors": None, "nonzeros": None}], ids=str)
def test_a_record_that_tells_no_colours_stops_no_report(tmp_path, odd):
    (line,), of = told(tmp_path, [record(**FEW | odd)], "Sparsity")
    assert " seeds for" not in line and len(of["sparsity"]) == 1


def test_what_never_pays_is_said_to(tmp_path):
    lines, of = told(
        tmp_path, [record(seconds=4.0, **FEW, **FIRST), record(seconds=2.5, **FIRST)], "Sparsity"
    )
    assert lines[0].endswith("so that it never pays.") and of["sparsity"][0]["pays after"] == "never"
    lines, of = told(tmp_path, [record(seconds=4.0, **FEW, **FIRST)], "Sparsity")
    assert lines[0].endswith("found in 4.00 s.") and of["sparsity"][0]["all seeds"] == "not measured"


def sending(seconds, overlap, devices=2, **fields):
    kinds = {"collective_bytes": 2_000_000, "collectives": {"all-reduce": 6 if overlap else 1}}
    return record(devices, seconds, overlap=overlap, **SENT | kinds | fields)


def test_overlapped_sending_stands_beside_the_same_that_sends_at_the_end():
    found = only(
        setting_comparison.overlap_gains(
            curves.pool_processes([sending(3.0, True), sending(4.0, False), sending(9.0, False, points=24)])
        )
    )
    assert found.ratio == pytest.approx((4 / 3,) * 3) and found.other.median == 4.0
    assert (
        setting_comparison.overlap_gains(
            curves.pool_processes([sending(3.0, True), sending(4.0, False, digest="two")])
        )
        == []
    )


def test_what_is_sent_and_what_overlapping_brings_are_said(tmp_path):
    lines, of = told(tmp_path, [sending(3.0, True), sending(4.0, False)], "Overlapped sending")
    assert lines[0].endswith(
        "data split, overlapped, 2 devices: sending everything at the end takes 1.33x (1.33 to 1.33) as long."
    )
    cells = {row["case"].endswith("overlapped"): row["remarks"] for row in of["measured"]}
    assert cells == {
        False: "sends 2.00 MB in 1 all-reduce",
        True: "without overlap 1.33x (1.33 to 1.33) as long, sends 2.00 MB in 6 all-reduce",
    }


def test_what_cannot_be_told_apart_is_said_not_to_be(tmp_path):
    noisy = [1.0, 1.4, 0.8, 1.1, 0.9, 1.3, 1.2, 0.7, 1.05]
    (line,) = told(tmp_path, [sending(noisy, True), sending(1.0, False)], "Overlapped sending")[0]
    assert line.endswith("not distinguished.")


def test_where_the_ratio_is_not_determined_nothing_is_said_of_when_it_pays(tmp_path):
    noisy = [1.0, 9.0, 0.5, 30.0, 2.0, 14.0, 0.2, 22.0, 3.0]
    (line,) = told(
        tmp_path, [record(seconds=0.5, **FEW, **FIRST), record(seconds=noisy, **FIRST)], "Sparsity"
    )[0]
    assert "is not determined (" in line and "pays" not in line
