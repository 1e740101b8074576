"""Where a timing stands: against the hand-written derivative, the machine's roofs and floors, JAX, and what was published."""

import dataclasses

import pytest

from scaling.analysis import baselines, certainty, curves, published_results
from scaling.analysis.findings import read
from scaling.analysis.stages import first_call_seconds
from scaling.core.case import FIELDS, MODES, to_dict
from scaling.core.store import Writer
from scaling.report import page_tables
from scaling.study import preflight
from tests.support.composed import compose
from tests.support.records import record


def standings(*records):
    found = baselines.find_baselines(curves.pool_processes(records))
    return {(s.timing.case.engine, s.timing.case.mode, s.timing.case.devices): s for s in found}


def test_every_mode_is_compared_with_the_faster_of_two_that_are_written_by_hand():
    found = standings(
        record(seconds=6.0), record(seconds=3.0, mode="analytic"), record(seconds=2.0, mode="analytic_vmap")
    )
    assert [found["jax", mode, 1].by_hand[0] for mode in ("jacfwd", "analytic", "analytic_vmap")] == [
        3,
        1.5,
        1,
    ]


@pytest.mark.parametrize("other", [{"devices": 2}, {"points": 24}, {"digest": "two"}, {"cores": [0, 1]}])
def test_what_is_written_by_hand_elsewhere_is_no_floor(other):
    found = standings(record(seconds=6.0), record(mode="analytic", **({"seconds": 3.0} | other)))
    assert found["jax", "jacfwd", 1].by_hand is None


def ceiling(target, seconds=1.0, k=10, terms=1, **fields):
    """A ceiling of one point a device: a copy of k numbers is 8 k bytes, a sum over devices 4 k, a product 2 k**3 operations."""
    case = {
        "workload": "ceiling",
        "target": target,
        "mode": "value",
        "wrt": None,
        "sizes": {"k": k, "terms": terms},
    }
    return record(seconds=seconds, **case | {"points": fields.get("devices", 1)} | fields)


def test_the_roof_that_binds_is_the_one_that_takes_longest_of_those_that_were_measured():
    slow = [ceiling("copy"), ceiling("matmul"), ceiling("transcendental", terms=2), ceiling("all_reduce")]
    counted = {
        "argument_bytes": 20,
        "output_bytes": 60,
        "work": (1000, 1e3),
        "transcendentals": 5,
        "collective_bytes": 8,
    }
    (found,) = standings(record(seconds=4.0, **counted)).values()
    assert found.bound is None
    # Seconds, at 80 bytes, 2000 operations, 20 exponentials and 40 bytes a second.
    least = {"memory": 1.0, "arithmetic": 0.5, "transcendentals": 0.25, "communication": 0.2}
    for at, name in enumerate(least):
        found = standings(*slow[at:], record(seconds=4.0, **counted))["jax", "jacfwd", 1]
        assert found.bound == (name, least[name] / 4)


def test_what_is_not_counted_has_no_roof_and_what_is_faster_than_its_roof_says_so():
    unknown = {"argument_bytes": None, "work": (None, None)}
    assert standings(ceiling("copy"), ceiling("matmul"), record(**unknown))["jax", "jacfwd", 1].bound is None
    assert standings(ceiling("matmul"), record(work=(0, 0)))["jax", "jacfwd", 1].bound is None
    fast = record(seconds=0.5, argument_bytes=40, output_bytes=40, work=(None, None))
    assert standings(ceiling("copy"), fast)["jax", "jacfwd", 1].bound == ("memory", 2.0)


def test_of_copies_of_several_sizes_the_largest_that_moves_no_more_is_the_roof():
    copies = [
        ceiling("copy", 1.0, k=10),
        ceiling("copy", 20.0, k=100),
        ceiling("copy", 800.0, k=1000),
    ]  # 80, 40 and 10 a second
    for moved, speed in ((40, 80), (80, 80), (799, 80), (800, 40), (7999, 40), (80000, 10)):
        found = standings(*copies, record(argument_bytes=moved, output_bytes=0, work=(None, None)))
        assert found["jax", "jacfwd", 1].bound == ("memory", moved / speed)


@pytest.mark.parametrize(
    "other", [{"devices": 2}, {"dtype": "float64"}, {"precision": "default"}, {"cores": [0, 1]}]
)
def test_products_elsewhere_or_of_other_numbers_are_no_roof(other):
    assert standings(ceiling("matmul", **other), record(work=(1e3, 1e3)))["jax", "jacfwd", 1].bound is None
    assert standings(ceiling("matmul"), record(work=(1e3, 1e3)))["jax", "jacfwd", 1].bound is not None


def test_bytes_are_bytes_at_every_dtype_and_a_ceiling_stands_nowhere_itself():
    found = standings(
        ceiling("copy"), record(argument_bytes=20, output_bytes=60, dtype="float64", precision="default")
    )
    assert found["jax", "jacfwd", 1].bound == ("memory", 1.0)
    assert ("jax", "value", 1) not in found


@pytest.mark.parametrize(
    ("floors", "near"), [([0.1], 0.1), ([0.09, 0.11], 0.11), ([0.09], None), ([None], None)]
)
def test_a_time_under_ten_floors_is_near_its_floor(floors, near):
    (timing,) = curves.pool_processes(
        [record(seconds=0.99, floor_seconds=f, replicate=r) for r, f in enumerate(floors)]
    )
    assert certainty.near_floor(timing) == near


def test_the_report_says_what_the_machine_can_do_and_which_roof_binds_each_case(tmp_path):
    case = record(seconds=4.0, argument_bytes=20, output_bytes=60, work=(None, None), floor_seconds=1.0)
    tables = {title: [dict(zip(columns, row, strict=True)) for row in rows] for title, columns, rows in told(
        tmp_path, case, ceiling("copy", k=10**9, seconds=[4.0, 5.0] * 10), ceiling("call"))}  # fmt: skip
    found = read(tmp_path)
    assert {curve.case.workload for curve in found.curves} == {"linear"} and not found.size_sweeps, (
        "ceilings are no curves"
    )
    call, copy = tables["What the machine can do"]
    assert (call["what"], call["time"], call["a device"]) == ("call", "1.00 s (1.00 to 1.00)", "")
    assert (copy["what"], copy["a device"]) == ("copy", "1.78 GB/s (1.60 to 2.00)")
    (only,) = tables["Every measured case"]
    assert only["of the roof"] == "under 1 %: memory"
    assert only["remarks"] == "under ten floors: 1.00 s"


def test_a_roof_that_another_job_measured_binds_all_the_same():
    """Jobs of a cluster, on whichever nodes of one kind, are one machine."""
    job = {
        "job": "12_3",
        "restarts": 1,
        "hosts": ["n1", "n2"],
        "shape": {"devices": 1, "nodes": 1, "processes": 1},
    }
    case = record(seconds=4.0, argument_bytes=20, output_bytes=60, work=(None, None))
    there = dataclasses.replace(case, environment=case.environment | job)
    (found,) = standings(there, ceiling("copy", k=10**9, seconds=[4.0] * 20)).values()
    assert found.bound is not None and found.bound.name == "memory"


def test_an_environment_of_many_jobs_is_told_in_a_line(tmp_path):
    base = record(seconds=4.0)
    jobs = [
        dataclasses.replace(base, replicate=n, environment=base.environment | {"job": f"12_{n}"})
        for n in range(100)
    ]
    told(tmp_path, *jobs)
    assert (
        dict(page_tables.environment_table(read(tmp_path)).rows)["job"]
        == "12_0; 12_1; 12_2; 12_3; 12_4; 12_5; and 94 others"
    )


def told(tmp_path, *records):
    writer = Writer(tmp_path)
    for each in records:
        writer.append(each)
    return [(table.title, table.columns, table.rows) for table in page_tables.folded_tables(read(tmp_path))]


def test_a_peer_is_compared_with_the_fastest_of_jax_that_is_not_written_by_hand():
    jax = [record(seconds=4.0), record(seconds=2.0, mode="jacrev"), record(seconds=0.1, mode="analytic")]
    found = standings(
        *jax, record(seconds=10.0, mode="jacrev", engine="torch"), record(2, 5.0, engine="torch")
    )
    assert (
        found["torch", "jacrev", 1].over_jax[0] == 5 and found["torch", "jacrev", 1].jax.case.mode == "jacrev"
    )
    assert found["torch", "jacfwd", 2].over_jax is None
    assert all(s.over_jax is None for (engine, *_), s in found.items() if engine == "jax")


def test_peers_do_not_compete_for_jaxs_fastest_mode_nor_are_they_its_baseline():
    records = [
        record(seconds=4.0, api="jit"),
        record(seconds=1.0, api="jit", engine="torch", mode="jacrev"),
        record(2, 2.0),
    ]
    (one, two) = curves.fastest_methods(records)
    assert {one.first.case.engine, two.first.case.engine} == {"jax"}
    on_two = next(c for c in curves.scaling_curves(records) if c.points[-1].devices == 2)
    assert on_two.points[-1].against_jit == 2


def test_two_formulations_are_two_ways_to_one_problem():
    (found,) = curves.fastest_methods([record(seconds=4.0), record(seconds=2.0, formulation="rowwise")])
    assert found.first.case.formulation == "rowwise" and found.ratio == 2
    rows = [record(seconds=1.0, points=n, formulation=f) for n in (4, 8) for f in (None, "rowwise")]
    (panel,) = curves.size_sweeps(rows)
    assert {way.name for way in panel.lines} == {"jacfwd (vmap)", "jacfwd (vmap), rowwise"}


def test_the_first_call_counts_every_stage_before_it():
    (timing,) = curves.pool_processes(
        [record(trace_seconds=1.0, lower_seconds=2.0, compile_seconds=3.0, first_seconds=0.5)]
    )
    assert first_call_seconds(timing) == 6.5
    (pmapped,) = curves.pool_processes([record(lower_seconds=2.0, first_seconds=0.5)])
    assert first_call_seconds(pmapped) == 2.5
    assert first_call_seconds(curves.pool_processes([record()])[0]) is None


# What was published.


def poisson(**fields):
    case = {
        "workload": "poisson",
        "target": "gradient",
        "wrt": "lam",
        "points": 1000,
        "sizes": {},
        "batch": "whole",
        "api": "jit",
    }
    return record(**case | {"mode": "jacrev", "dtype": "float32"} | fields)


def table(tmp_path, *records):
    writer = Writer(tmp_path)
    for each in records:
        writer.append(each)
    return {(row[0], row[1], row[2]): row[3:] for row in published_results.published_rows(read(tmp_path))}


def test_a_published_figure_stands_beside_what_was_measured(tmp_path):
    rows = table(tmp_path, poisson(seconds=18.02e-6), poisson(seconds=0.0119, jit=False))
    assert rows["poisson, N = 1000", "gradient", "JAX compiled"] == ("9.01 µs", "18.0 µs", "2.00x")
    assert rows["poisson, N = 1000", "gradient", "JAX eager"] == ("11.9 ms", "11.9 ms", "1.00x")


@pytest.mark.parametrize(
    "fields", [{"remat": "dots_saveable"}, {"block": 8}, {"storage": "host"}, {"reduce": "gram"}], ids=str
)
def test_what_nobody_did_who_published_is_no_measure_of_what_they_did(tmp_path, fields):
    assert table(tmp_path, poisson(seconds=1.0, **fields)) == {}
    rows = table(tmp_path, poisson(seconds=18.02e-6))
    assert rows["poisson, N = 1000", "gradient", "JAX compiled"][1] == "18.0 µs"


def test_a_ratio_is_measured_as_a_ratio_and_a_first_call_with_its_stages(tmp_path):
    loss = poisson(seconds=4e-6, target="loss", mode="value", wrt=None)
    rbf = record(
        seconds=1e-4, workload="rbf", variant="source", target="grad", wrt="x", points=1, sizes={"m": 100, "d": 1}, api="jit",
        compile_seconds=0.05, first_seconds=0.000636,
    )  # fmt: skip
    rows = table(tmp_path, poisson(seconds=2e-6), loss, rbf)
    assert rows["poisson, N = 1000", "gradient", "JAX over the loss"][1] == "0.50x"
    assert rows["rbf, n = 100", "grad, first call", "JAX jacfwd"] == ("50.6 ms", "50.6 ms", "1.00x")


def test_what_has_no_time_says_why(tmp_path):
    zygote = poisson(
        status="skipped", reason="not_installed", text="julia is not installed; get it", engine="julia/Zygote"
    )
    rows = table(tmp_path, poisson(seconds=1e-5), zygote)
    assert (
        rows["poisson, N = 1000", "gradient", "Zygote, broadcast"][1]
        == "skipped: julia is not installed; get it"
    )
    assert rows["rbf, n = 100", "kernel", "JAX"][1] == "not in this study"


def test_a_published_ratio_never_mixes_environments_nor_oversubscribed_runs_nor_other_sizes(tmp_path):
    loss = {"target": "loss", "mode": "value", "wrt": None}
    rows = table(
        tmp_path, poisson(seconds=2e-6, digest="one"), poisson(seconds=4e-6, digest="two", **loss),
        poisson(seconds=9e-6, digest="three", cores=[0, 1]), poisson(seconds=8e-6, digest="three", chunk=16),
    )  # fmt: skip
    assert rows["poisson, N = 1000", "gradient", "JAX over the loss"][1] == "not in this study"
    assert rows["poisson, N = 1000", "gradient", "JAX compiled"][1].startswith("2.00 µs [environment one]")


def test_the_speed_of_memory_counts_for_a_function_of_ones_own_too():
    mine = record(argument_bytes=20, output_bytes=20, digest="other", work=(None, None))
    mine.environment["workload_digest"] = "m" * 16
    assert standings(ceiling("copy"), mine)["jax", "jacfwd", 1].bound == ("memory", 0.5)


def test_a_study_of_something_else_has_no_such_table(tmp_path):
    assert table(tmp_path, record(), record(mode="jacrev")) == {}


def test_every_published_row_names_fields_of_a_case_and_a_mode_that_there_is():
    for group in published_results._load_groups():
        for row in group["rows"]:
            for fields in (group["case"] | row["case"], group["case"] | row.get("over", {})):
                assert set(fields) <= set(FIELDS)
                assert fields.get("mode", "value") in MODES
            assert bool(row.get("times")) == ("over" in row)
            assert row.get("times") or row["published"]


@pytest.mark.contract
def test_every_published_row_has_a_case_in_the_study_of_the_sources():
    cases = [to_dict(answer.case) for answer in preflight.examine_cells(compose("study=sources"))]
    for group in published_results._load_groups():
        for row in group["rows"]:
            for fields in (group["case"] | row["case"], group["case"] | row.get("over", row["case"])):
                assert any(published_results._matches(case, fields) for case in cases), (
                    group["problem"],
                    row,
                )
