"""Tests of cases on several meshes: the fastest mesh of each device count represents its curve."""

import pytest

from scaling.analysis import answers, findings
from scaling.analysis import dataframe as one_table
from scaling.report import tables as report_tables
from tests.support import made_up
from tests.support.records import curves_of, only, record, sweeps_of


def on_mesh(shape, seconds, **fields):
    """Return a record on a mesh such as '2x1' (points x seeds)."""
    over_points, over_seeds = map(int, shape.split("x"))
    return record(over_points * over_seeds, seconds, split="both", mesh=shape, **fields)


TIMES = (("1x1", 8.0), ("2x1", 5.0), ("1x2", 4.0), ("4x1", 3.0), ("2x2", 2.0), ("1x4", 2.5))


@pytest.fixture
def study(tmp_path):
    records = [on_mesh(shape, seconds, padding=0.2 if shape == "1x4" else 0.0) for shape, seconds in TIMES]
    return findings.read(made_up.write(tmp_path / "made", records, scaling=["strong"]))


def test_curve_of_a_split_over_points_and_seeds_uses_the_fastest_mesh_per_device_count():
    curve = only(curves_of([on_mesh(*shape_and_seconds) for shape_and_seconds in TIMES]))
    assert [timing.case.mesh for timing in curve.timings] == ["1x1", "1x2", "2x2"]
    assert [point.speedup.value for point in curve.points] == [1, 2, 4]
    weak = [on_mesh(shape, seconds, points=12 * int(shape[0]) * int(shape[2])) for shape, seconds in TIMES]
    assert [timing.case.mesh for timing in only(curves_of(weak, ["weak"])).timings] == ["1x1", "1x2", "2x2"]
    assert curve.case.mesh is None and curve.name.endswith("fastest mesh") and "mesh=" not in curve.name


def test_only_the_fastest_mesh_per_device_count_is_on_the_curve(study):
    speedups = {
        timing.case.mesh: [
            point.speedup.value
            for _, point in study.curves_by_case.get((timing.environment, True, timing.case), {}).values()
        ]
        for timing in study.timings
    }
    assert speedups == {"1x1": [1], "1x2": [2], "2x2": [4], "2x1": [], "4x1": [], "1x4": []}


def test_exported_curve_rows_have_the_keys_of_their_records(study):
    keys = {record.key: record.case.mesh for record in study.records}
    assert [keys[key] for key in one_table.export_tables(study)["curves"]["key"]] == ["1x1", "1x2", "2x2"]


def test_size_sweep_uses_the_fastest_mesh_of_each_size():
    records = [
        on_mesh(shape, seconds * size, sizes={"p": size})
        for shape, seconds in (("2x1", 2.0), ("1x2", 1.0))
        for size in (4, 8)
    ]
    panel = only(sweeps_of(records))
    (line,) = panel.lines.values()
    assert [timing.case.mesh for _, timing in line] == ["1x2", "1x2"] and panel.case.mesh is None


def test_headline_names_the_mesh_of_the_fastest_case(study):
    headline = answers.answer_sentences(study)[0]
    assert "both split, mesh 2x2" in headline and "Speed-up: 4.00x" in headline


def test_table_of_measurements_reports_the_padding_of_each_case(study):
    tables = {
        table.anchor: [dict(zip(table.columns, row, strict=True)) for row in table.rows]
        for table in report_tables.folded_tables(study)
    }
    (row,) = [row for row in tables["measured"] if row["remarks"]]
    assert row["case"].endswith("mesh=1x4") and row["remarks"] == "20 % padding"
