"""Tests of the baselines of a timing: hand-written derivatives, roofs and floors of the machine, and JAX."""

import dataclasses

import pytest

from scaling.analysis import ranking
from scaling.analysis.findings import read
from scaling.analysis.timings import first_call_seconds, pool_processes, significant_floor
from scaling.core.record import Writer
from scaling.report.tables import environment_table, folded_tables
from tests.support.records import curves_of, rank, record, sweeps_of


def baselines_of(*records):
    all_baselines = ranking.find_baselines(pool_processes(records))
    return {(s.timing.case.engine, s.timing.case.mode, s.timing.case.devices): s for s in all_baselines}


def test_each_mode_is_compared_with_the_fastest_hand_written_derivative():
    by_method = baselines_of(
        record(seconds=6.0), record(seconds=3.0, mode="analytic"), record(seconds=2.0, mode="analytic_vmap")
    )
    assert [by_method["jax", mode, 1].by_hand[0] for mode in ("jacfwd", "analytic", "analytic_vmap")] == [
        3,
        1.5,
        1,
    ]


@pytest.mark.parametrize("other", [{"devices": 2}, {"points": 24}, {"digest": "two"}, {"cores": [0, 1]}])
def test_hand_written_derivative_of_another_problem_or_environment_is_no_baseline(other):
    by_method = baselines_of(record(seconds=6.0), record(mode="analytic", **({"seconds": 3.0} | other)))
    assert by_method["jax", "jacfwd", 1].by_hand is None


def peak(target, seconds=1.0, k=10, terms=1, **fields):
    """Return a machine peak, one point per device: a copy moves 8 k bytes, an all-reduce 4 k bytes, a matmul does 2 k**3 FLOPs."""
    case = {
        "workload": "ceiling",
        "target": target,
        "mode": "value",
        "wrt": None,
        "sizes": {"k": k, "terms": terms},
    }
    return record(seconds=seconds, **case | {"points": fields.get("devices", 1)} | fields)


def test_binding_roof_is_the_measured_one_with_the_longest_time():
    peaks = [peak("copy"), peak("matmul"), peak("transcendental", terms=2), peak("all_reduce")]
    counted = {
        "argument_bytes": 20,
        "output_bytes": 60,
        "work": (1000, 1e3),
        "transcendentals": 5,
        "collective_bytes": 8,
    }
    (baseline,) = baselines_of(record(seconds=4.0, **counted)).values()
    assert baseline.bound is None
    # Seconds at 80 bytes/s, 2000 FLOP/s, 20 transcendentals/s and 40 bytes/s of all-reduce.
    least = {"memory": 1.0, "arithmetic": 0.5, "transcendentals": 0.25, "communication": 0.2}
    for index, name in enumerate(least):
        baseline = baselines_of(*peaks[index:], record(seconds=4.0, **counted))["jax", "jacfwd", 1]
        assert baseline.bound == (name, least[name] / 4)


def test_uncounted_work_has_no_roof_and_a_roof_fraction_may_exceed_one():
    unknown = {"argument_bytes": None, "work": (None, None)}
    assert baselines_of(peak("copy"), peak("matmul"), record(**unknown))["jax", "jacfwd", 1].bound is None
    assert baselines_of(peak("matmul"), record(work=(0, 0)))["jax", "jacfwd", 1].bound is None
    fast = record(seconds=0.5, argument_bytes=40, output_bytes=40, work=(None, None))
    assert baselines_of(peak("copy"), fast)["jax", "jacfwd", 1].bound == ("memory", 2.0)


def test_roof_is_the_largest_copy_that_moves_no_more_bytes_than_the_case():
    # The copies reach 80, 40 and 10 bytes/s.
    copies = [peak("copy", 1.0, k=10), peak("copy", 20.0, k=100), peak("copy", 800.0, k=1000)]
    for moved, speed in ((40, 80), (80, 80), (799, 80), (800, 40), (7999, 40), (80000, 10)):
        by_method = baselines_of(*copies, record(argument_bytes=moved, output_bytes=0, work=(None, None)))
        assert by_method["jax", "jacfwd", 1].bound == ("memory", moved / speed)


@pytest.mark.parametrize(
    "other", [{"devices": 2}, {"dtype": "float64"}, {"precision": "default"}, {"cores": [0, 1]}]
)
def test_matmuls_on_other_devices_or_dtypes_are_no_roof(other):
    assert baselines_of(peak("matmul", **other), record(work=(1e3, 1e3)))["jax", "jacfwd", 1].bound is None
    assert baselines_of(peak("matmul"), record(work=(1e3, 1e3)))["jax", "jacfwd", 1].bound is not None


def test_copy_roof_applies_to_every_dtype_and_machine_peaks_have_no_baseline():
    by_method = baselines_of(
        peak("copy"), record(argument_bytes=20, output_bytes=60, dtype="float64", precision="default")
    )
    assert by_method["jax", "jacfwd", 1].bound == ("memory", 1.0)
    assert ("jax", "value", 1) not in by_method


@pytest.mark.parametrize(
    ("floors", "near"), [([0.1], 0.1), ([0.09, 0.11], 0.11), ([0.09], None), ([None], None)]
)
def test_time_below_ten_floors_is_near_the_floor(floors, near):
    (timing,) = pool_processes(
        [record(seconds=0.99, floor_seconds=f, replicate=r) for r, f in enumerate(floors)]
    )
    assert significant_floor(timing) == near


def test_report_lists_the_machine_peaks_and_the_binding_roof_of_each_case(tmp_path):
    case = record(seconds=4.0, argument_bytes=20, output_bytes=60, work=(None, None), floor_seconds=1.0)
    tables = {title: [dict(zip(columns, row, strict=True)) for row in rows] for title, columns, rows in report_tables(
        tmp_path, case, peak("copy", k=10**9, seconds=[4.0, 5.0] * 10), peak("call"))}  # fmt: skip
    study = read(tmp_path)
    assert {curve.case.workload for curve in study.curves} == {"linear"} and not study.size_sweeps, (
        "machine peaks are on no curve"
    )
    call, copy = tables["What the machine can do"]
    assert (call["what"], call["time"], call["a device"]) == ("call", "1.00 s (1.00 to 1.00)", "")
    assert (copy["what"], copy["a device"]) == ("copy", "1.78 GB/s (1.60 to 2.00)")
    (case_row,) = tables["Every measured case"]
    assert case_row["of the roof"] == "under 1 %: memory"
    assert case_row["remarks"] == "under 10x the overhead of a call: 1.00 s"


def test_roof_measured_by_another_job_applies():
    """All jobs on nodes of one kind of a cluster count as one machine."""
    job = {
        "job": "12_3",
        "restarts": 1,
        "hosts": ["n1", "n2"],
        "shape": {"devices": 1, "nodes": 1, "processes": 1},
    }
    case = record(seconds=4.0, argument_bytes=20, output_bytes=60, work=(None, None))
    in_other_job = dataclasses.replace(case, environment=case.environment | job)
    (baseline,) = baselines_of(in_other_job, peak("copy", k=10**9, seconds=[4.0] * 20)).values()
    assert baseline.bound is not None and baseline.bound[0] == "memory"


def test_environment_of_many_jobs_is_reported_in_one_line(tmp_path):
    base = record(seconds=4.0)
    jobs = [
        dataclasses.replace(base, replicate=n, environment=base.environment | {"job": f"12_{n}"})
        for n in range(100)
    ]
    report_tables(tmp_path, *jobs)
    assert (
        dict(environment_table(read(tmp_path)).rows)["job"]
        == "12_0; 12_1; 12_2; 12_3; 12_4; 12_5 and 94 more"
    )


def report_tables(tmp_path, *records):
    writer = Writer(tmp_path)
    for item in records:
        writer.append(item)
    return [(table.title, table.columns, table.rows) for table in folded_tables(read(tmp_path))]


def test_peer_is_compared_with_the_fastest_jax_mode():
    jax = [record(seconds=4.0), record(seconds=2.0, mode="jacrev"), record(seconds=0.1, mode="analytic")]
    by_method = baselines_of(
        *jax, record(seconds=10.0, mode="jacrev", engine="torch"), record(2, 5.0, engine="torch")
    )
    assert by_method["torch", "jacrev", 1].over_jax[0] == 5
    assert by_method["torch", "jacrev", 1].jax.case.mode == "jacrev"
    assert by_method["torch", "jacfwd", 2].over_jax is None
    assert all(s.over_jax is None for (engine, *_), s in by_method.items() if engine == "jax")


def test_peers_are_neither_the_fastest_mode_nor_the_baseline_of_jax():
    records = [
        record(seconds=4.0, api="jit"),
        record(seconds=1.0, api="jit", engine="torch", mode="jacrev"),
        record(2, 2.0),
    ]
    (first, second) = rank(records)
    assert {first.fastest.case.engine, second.fastest.case.engine} == {"jax"}
    on_two = next(c for c in curves_of(records) if c.points[-1].devices == 2)
    assert on_two.points[-1].against_jit.value == 2


def test_program_without_compilation_is_not_the_plain_jit_program():
    eager = record(seconds=4.0, api="jit", jit=False)
    (on_two,) = (c for c in curves_of([eager, record(2, 2.0)]) if c.case.jit)
    assert on_two.points[-1].against_jit is None


def test_formulations_are_methods_for_the_same_problem():
    (ranking,) = rank([record(seconds=4.0), record(seconds=2.0, formulation="rowwise")])
    assert ranking.fastest.case.formulation == "rowwise" and ranking.ratio.value == 2
    rows = [record(seconds=1.0, points=n, formulation=f) for n in (4, 8) for f in (None, "rowwise")]
    (panel,) = sweeps_of(rows)
    assert {method.name for method in panel.lines} == {"jacfwd (vmap)", "jacfwd (vmap), rowwise"}


def test_first_call_includes_every_stage_before_it():
    (timing,) = pool_processes(
        [record(trace_seconds=1.0, lower_seconds=2.0, compile_seconds=3.0, first_seconds=0.5)]
    )
    assert first_call_seconds(timing) == 6.5
    (pmapped,) = pool_processes([record(lower_seconds=2.0, first_seconds=0.5)])
    assert first_call_seconds(pmapped) == 2.5
    assert first_call_seconds(pool_processes([record()])[0]) is None


# Published results.


def test_memory_roof_applies_to_user_functions():
    mine = record(argument_bytes=20, output_bytes=20, digest="other", work=(None, None))
    mine.environment["workload_digest"] = "m" * 16
    assert baselines_of(peak("copy"), mine)["jax", "jacfwd", 1].bound == ("memory", 0.5)
