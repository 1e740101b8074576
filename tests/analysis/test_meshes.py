"""Meshes: of several on as many devices the fastest stands for its curve, and they are compared with each other."""

import pytest

from scaling.analysis import answer, curves, findings, setting_comparison
from scaling.analysis import dataframe as one_table
from scaling.report import page_tables
from tests.support import made_up
from tests.support.records import only, record


def laid_out(shape, seconds, **fields):
    """A record on a mesh."""
    over_points, over_seeds = map(int, shape.split("x"))
    return record(over_points * over_seeds, seconds, split="both", mesh=shape, **fields)


STUDY = (("1x1", 8.0), ("2x1", 5.0), ("1x2", 4.0), ("4x1", 3.0), ("2x2", 2.0), ("1x4", 2.5))


@pytest.fixture
def found(tmp_path):
    records = [laid_out(shape, seconds, padding=0.2 if shape == "1x4" else 0.0) for shape, seconds in STUDY]
    return findings.read(made_up.write(tmp_path / "made", records, scaling=["strong"]))


def test_the_curve_of_a_split_over_both_is_that_of_the_fastest_mesh_on_each_number_of_devices():
    curve = only(curves.scaling_curves([laid_out(*each) for each in STUDY]))
    assert [timing.case.mesh for timing in curve.timings] == ["1x1", "1x2", "2x2"]
    assert [point.speedup for point in curve.points] == [1, 2, 4]
    assert curve.case.mesh is None and curve.name.endswith("fastest mesh") and "mesh=" not in curve.name


def test_a_weak_curve_takes_the_fastest_mesh_as_well():
    weak = [laid_out(shape, seconds, points=12 * int(shape[0]) * int(shape[2])) for shape, seconds in STUDY]
    assert [timing.case.mesh for timing in only(curves.scaling_curves(weak, ["weak"])).timings] == [
        "1x1",
        "1x2",
        "2x2",
    ]


def test_a_place_on_a_curve_is_that_of_the_fastest_mesh_alone(found):
    speedups = {
        timing.case.mesh: [point.speedup for point in found.points_of(timing).values()]
        for timing in found.timings
    }
    assert speedups == {"1x1": [1], "1x2": [2], "2x2": [4], "2x1": [], "4x1": [], "1x4": []}


def test_points_of_curves_are_exported_with_the_keys_of_their_records(found):
    keys = {record.key: record.case.mesh for record in found.records}
    assert [keys[row["key"]] for row in one_table.curve_table(found).rows] == ["1x1", "1x2", "2x2"]


def test_meshes_of_as_many_devices_are_compared_and_a_single_one_is_not(found):
    assert [[timing.case.mesh for timing, _ in each.rows] for each in found.mesh_comparisons] == [
        ["1x2", "2x1"],
        ["2x2", "1x4", "4x1"],
    ]
    assert [ratio[0] for _, ratio in found.mesh_comparisons[1].rows] == [1, 1.25, 1.5]


def test_the_fastest_is_called_so_where_the_next_can_be_told_apart():
    noisy = [1.0, 1.4, 0.8, 1.1, 0.9, 1.3, 1.2, 0.7, 1.05]
    apart, alike = (
        [laid_out("2x1", 1.0), laid_out("1x2", 2.0)],
        [laid_out("2x1", 1.0), laid_out("1x2", noisy)],
    )
    assert [
        only(setting_comparison.compare_settings(curves.pool_processes(each), "mesh")).distinguished
        for each in (apart, alike)
    ] == [True, False]


@pytest.mark.parametrize(
    "fields",
    [{"mode": "jacrev"}, {"chunk": 2}, {"points": 24}, {"digest": "two"}, {"reduce": "gram"}],
    ids=str,
)
def test_meshes_of_other_programs_are_not_compared(fields):
    assert (
        setting_comparison.compare_settings(
            curves.pool_processes([laid_out("2x1", 1.0), laid_out("1x2", 2.0, **fields)]), "mesh"
        )
        == []
    )


def test_a_panel_over_sizes_has_the_fastest_mesh_of_each():
    of = [
        laid_out(shape, seconds * size, sizes={"p": size})
        for shape, seconds in (("2x1", 2.0), ("1x2", 1.0))
        for size in (4, 8)
    ]
    panel = only(curves.size_sweeps(of))
    (line,) = panel.lines.values()
    assert [timing.case.mesh for _, timing in line] == ["1x2", "1x2"] and panel.case.mesh is None


def test_the_answer_names_the_fastest_mesh_the_next_and_the_slowest(found):
    (told,) = [line for line in answer.answer_sentences(found) if line.startswith("Mesh (points x seeds) of")]
    assert (
        "linear jacobian by W: jacfwd (vmap) at o=3 p=5 points=12, shard_map, 4 devices: 2x2 is fastest"
        in told
    )
    assert "; 1x4 takes 1.25x (1.25 to 1.25), the slowest, 4x1, 1.50x (1.50 to 1.50) as long." in told


def test_the_headline_names_the_mesh_and_the_curve_does_not(found):
    told = answer.answer_sentences(found)[0]
    assert "both split, mesh 2x2" in told and "That is 4.00x" in told


def test_padding_stands_beside_what_is_padded(found):
    of = {
        table.anchor: [dict(zip(table.columns, row, strict=True)) for row in table.rows]
        for table in page_tables.folded_tables(found)
    }
    (row,) = [row for row in of["measured"] if row["remarks"]]
    assert row["case"].endswith("mesh=1x4") and row["remarks"] == "20 % padding"
