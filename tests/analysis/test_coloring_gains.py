"""Tests of the gains of colored seeds and of overlapped all-reduces: baselines, break-even counts and reported sentences."""

import dataclasses

import pytest

from scaling.analysis import findings, method_settings, summary
from scaling.analysis.baselines import find_baselines
from scaling.analysis.method_settings import break_even_calls
from scaling.analysis.timings import SPARSITY_STAGES, first_call_seconds, pool_processes, stage_seconds
from scaling.core.record import COMPILING_STAGES
from scaling.report import tables as report_tables
from tests.support import made_up
from tests.support.records import compare_settings, only, rank, record

COLORED = {
    "seeds": "colored",
    "detect_seconds": 3.0,
    "color_seconds": 1.0,
    "colors": {"columns": 9, "rows": 0},
    "nonzeros": 1280,
}
STAGES = {"trace_seconds": 0.5, "compile_seconds": 1.5, "first_seconds": 1.0}
GRADIENT = {"split": "data", "reduce": "points", "mode": "grad_of_sum"}


def pair_of(*records):
    """Return the timing with colored seeds and the fastest one without."""
    return only(method_settings.pair_colored(pool_processes(records)))


def report(folder, records, head):
    """Return the sentences of the answer that begin with `head`, and a dict from anchor to the rows of each folded table."""
    study = findings.read(made_up.write(folder / "made", records, scaling=["strong"]))
    tables = {
        table.anchor: [dict(zip(table.columns, row, strict=True)) for row in table.rows]
        for table in report_tables.folded_tables(study)
    }
    return [sentence for sentence in summary.answer_sentences(study) if sentence.startswith(head)], tables


def test_sparsity_detection_and_coloring_count_toward_the_first_call():
    timing = only(pool_processes([record(**COLORED, **STAGES)]))
    assert (
        stage_seconds(timing, *SPARSITY_STAGES),
        stage_seconds(timing, *COMPILING_STAGES),
        first_call_seconds(timing),
    ) == (4.0, 2.0, 7.0)
    assert stage_seconds(only(pool_processes([record(**STAGES)])), *SPARSITY_STAGES) is None


def test_colored_seeds_are_compared_with_the_fastest_method_that_uses_all_seeds():
    colored, uncolored = pair_of(
        record(seconds=0.5, **COLORED),
        record(seconds=6.0),
        record(seconds=2.0, mode="jacrev"),
        record(seconds=1.0, mode="analytic"),
    )
    assert (colored.case.seeds, uncolored.case.mode, uncolored.median) == ("colored", "jacrev", 2.0)


@pytest.mark.parametrize(
    "elsewhere", [{"points": 24}, {"devices": 2}, {"digest": "two"}, {"dtype": "float64"}], ids=str
)
def test_colored_seeds_are_not_compared_across_problems_devices_or_environments(elsewhere):
    assert pair_of(record(seconds=0.5, **COLORED), record(seconds=6.0, **elsewhere))[1] is None


def test_break_even_is_the_first_evaluation_at_which_the_total_time_is_no_longer():
    def break_even(*records):
        return break_even_calls(*pair_of(*records))

    # The first evaluation takes 7 s and each later one 0.5 s, against 3 s and 2.5 s: equal after two later ones.
    colored, uncolored = record(seconds=0.5, **COLORED, **STAGES), record(seconds=2.5, **STAGES)
    assert break_even(colored, uncolored) == 3
    assert break_even(dataclasses.replace(colored, detect_seconds=3.5), uncolored) == 4
    assert break_even(dataclasses.replace(colored, detect_seconds=0.0, color_seconds=0.0), uncolored) == 1
    assert break_even(colored, dataclasses.replace(uncolored, compile_seconds=90.0)) == 1
    assert break_even(record(seconds=4.0, **COLORED, **STAGES), uncolored) is None


def test_times_on_shared_cores_are_marked_in_the_table_of_sparse_derivatives(tmp_path):
    records = [record(seconds=0.5, **COLORED, cores=[]), record(seconds=2.0, cores=[])]
    (row,) = report(tmp_path, records, "")[1]["sparsity"]
    assert row["case"].endswith(" [unbound or oversubscribed]")


def test_hand_written_derivatives_with_colored_seeds_are_not_compared():
    assert method_settings.pair_colored(pool_processes([record(mode="analytic", seeds="colored")])) == []


def test_sparse_and_dense_derivatives_have_separate_hand_written_baselines():
    exact = [record(seconds=1.0, mode="analytic"), record(seconds=4.0, mode="analytic", seeds="colored")]
    timings = pool_processes([record(seconds=2.0, **COLORED), record(seconds=8.0), *exact])
    assert {s.timing.case.seeds: s.by_hand[0] for s in find_baselines(timings) if s.timing.case.mode == "jacfwd"} == {
        "colored": 0.5, "identity": 8.0
    }  # fmt: skip
    (row,) = rank([record for timing in timings for record in timing.records])
    assert row.fastest.case.seeds == "colored"


def row_of(folder, *records):
    """Return the row of the table of sparse derivatives of a study."""
    _, tables = report(folder, records, "")
    return only(tables["sparsity"])


def test_table_reports_coloring_time_and_break_even_count(tmp_path):
    row = row_of(tmp_path, record(seconds=0.5, **COLORED, **STAGES), record(seconds=2.5, **STAGES))
    assert (row["detecting and coloring"], row["compiling"]) == ("4.00 s", "2.00 s")
    assert (row["seeds"], row["nonzeros"], row["pays after"]) == ("9", "1,280", "3 evaluations")
    assert row["times as long"].startswith("5.00x")


@pytest.mark.parametrize(
    "missing", [{"colors": {"columns": None}}, {"colors": None, "nonzeros": None}], ids=str
)
def test_records_without_color_counts_are_still_reported(tmp_path, missing):
    assert "seeds" not in row_of(tmp_path, record(**COLORED | missing))


def test_coloring_that_never_pays_off_is_reported_as_such(tmp_path):
    colored = record(seconds=4.0, **COLORED, **STAGES)
    assert row_of(tmp_path, colored, record(seconds=2.5, **STAGES))["pays after"] == "never"
    assert row_of(tmp_path, colored)["all seeds"] == "not measured"


@pytest.mark.parametrize("level", [0.96, 1.09])
def test_coloring_neither_pays_nor_never_pays_if_the_times_are_not_distinguished(tmp_path, level):
    noisy = [level * s for s in (1.0, 1.4, 0.8, 1.1, 0.9, 1.3, 1.2, 0.7, 1.05)]
    row = row_of(tmp_path, record(seconds=noisy, **COLORED, **STAGES), record(seconds=1.1, **STAGES))
    assert row["pays after"] == "not distinguished"


def gradient(seconds, overlap, devices=2, **fields):
    kinds = {"collective_bytes": 2_000_000, "collectives": {"all-reduce": 6 if overlap else 1}}
    return record(devices, seconds, overlap=overlap, **GRADIENT | kinds | fields)


def test_overlapped_all_reduce_is_compared_with_the_same_case_without_overlap():
    def compare(*records):
        return compare_settings(records)

    compared = only(compare(gradient(3.0, True), gradient(4.0, False), gradient(9.0, False, points=24)))
    assert compared.fastest.case.overlap and compared.runner_up.median == 4.0
    assert compared.ratio == pytest.approx((4 / 3,) * 3)
    assert compare(gradient(3.0, True), gradient(4.0, False, digest="two")) == []


def test_communication_volume_and_overlap_gain_are_reported(tmp_path):
    lines, tables = report(tmp_path, [gradient(3.0, True), gradient(4.0, False)], "Comparison by overlap")
    assert lines[0].endswith(
        "shard_map, data split, 2 devices: overlap=true takes 3.00 s (3.00 to 3.00); overlap=false takes "
        "1.33x (1.33 to 1.33) as long; not sure: measured in one process."
    )
    cells = {row["case"].endswith("overlapped"): row["remarks"] for row in tables["measured"]}
    assert cells == {False: "sends 2.00 MB in 1 all-reduce", True: "sends 2.00 MB in 6 all-reduces"}


def test_indistinguishable_times_with_and_without_overlap_are_reported_as_such(tmp_path):
    noisy = [1.0, 1.4, 0.8, 1.1, 0.9, 1.3, 1.2, 0.7, 1.05]
    (sentence,) = report(tmp_path, [gradient(noisy, True), gradient(1.0, False)], "Comparison by overlap")[0]
    assert "; overlap=true takes " in sentence and sentence.endswith("; not distinguished.")


def test_no_break_even_is_reported_if_the_ratio_is_not_determined(tmp_path):
    noisy = [1.0, 9.0, 0.5, 30.0, 2.0, 14.0, 0.2, 22.0, 3.0]
    row = row_of(tmp_path, record(seconds=0.5, **COLORED, **STAGES), record(seconds=noisy, **STAGES))
    assert row["times as long"].startswith("not determined (")
    assert row["pays after"] == "not distinguished"
