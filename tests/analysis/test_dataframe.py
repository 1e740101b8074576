"""Tests of the table of records: one row per record, documented column names, and the same numbers as the findings."""

import pandas
import pytest

import scaling
from scaling.analysis import dataframe, findings
from scaling.core.case import Refusal
from tests.support import made_up, planned
from tests.support.records import processes, record


def write_study(*records, folder, scaling=("strong",)):
    return made_up.write(folder, list(records), scaling=list(scaling))


@pytest.fixture
def folder(tmp_path):
    """Return a study of two modes on one and two devices, in three processes each, with a failed and a skipped case."""
    rows = [r for d in (1, 2) for r in processes(("jacfwd", 2.0 / d), ("jacrev", 3.0 / d), devices=d)]
    rows += [
        record(status="failed", reason="timeout", points=24),
        record(status="skipped", reason="too_large", points=48),
    ]
    return write_study(*rows, folder=tmp_path / "made")


def test_row_of_a_record_has_its_case_its_time_and_its_curve_columns(folder):
    frame = scaling.load(folder)
    assert isinstance(frame, pandas.DataFrame) and len(frame) == 14
    assert frame.status.value_counts().to_dict() == {"ok": 12, "failed": 1, "skipped": 1}
    row = frame[(frame["mode"] == "jacfwd") & (frame.devices == 2)].iloc[0]
    expected = (5, 12, 1.0, 1.0, 1.0, 9)
    assert (row["sizes.p"], row.points, row["median"], row.low, row.high, row.samples) == expected
    expected = ("strong", pytest.approx(2), pytest.approx(1), 1)
    assert (row.kind, row.speedup, row.efficiency, row.baseline_devices) == expected
    assert frame[frame.status != "ok"][["median", "speedup", "certainty", "kind"]].isna().all(axis=None)


def test_only_the_fastest_method_has_a_certainty(folder, tmp_path):
    frame = scaling.load(folder)
    assert set(frame[frame.certainty.notna()]["mode"]) == {"jacfwd"}
    assert set(frame.certainty.dropna()) == {"sure"}
    one_process = write_study(
        record(seconds=2.0), record(seconds=3.0, mode="jacrev"), folder=tmp_path / "alone"
    )
    assert scaling.load(one_process).certainty.dropna().tolist() == ["not sure: measured in one process"]


def test_table_of_samples_has_the_columns_of_the_case(folder):
    frame, study = scaling.load(folder, samples=True), findings.read(folder)
    assert frame.seconds.tolist() == [second for r in study.records for second in r.seconds]
    assert frame.groupby(["mode", "devices"]).seconds.median().to_dict() == {
        ("jacfwd", 1): 2.0, ("jacfwd", 2): 1.0, ("jacrev", 1): 3.0, ("jacrev", 2): 1.5,
    }  # fmt: skip
    assert {"key", "replicate", "index", "status", "sizes.p"} <= set(frame)


def test_row_on_two_curves_has_the_one_with_more_device_counts(tmp_path):
    rows = [record(d, 8.0, points=6 * d) for d in (1, 2, 4)] + [record(2, 5.0, points=6)]
    frame = scaling.load(write_study(*rows, folder=tmp_path, scaling=("strong", "weak")))
    kinds = {(row.devices, row.points): row.kind for row in frame.itertuples()}
    assert kinds == {(1, 6): "weak", (2, 12): "weak", (4, 24): "weak", (2, 6): "strong"}


def test_exports_have_the_column_names_of_the_table(folder, tmp_path):
    from scaling.report import export

    written = export.write_exports(folder, ["csv", "parquet"], tmp_path)
    csv, parquet = written["csv"][0], written["parquet"][0]
    assert list(pandas.read_csv(csv)) == list(pandas.read_parquet(parquet)) == list(scaling.load(folder))


def test_number_of_nodes_is_the_one_in_the_record(tmp_path, make_record):
    environments = [{"hosts": ["a", "b"]}, {"hosts": ["a", "b"], "shape": {"nodes": 1}}, {"hosts": []}]
    rows = [make_record(environment=recorded, points=n + 1) for n, recorded in enumerate(environments)]
    frame = scaling.load(made_up.write(tmp_path, rows)).set_index("points")
    assert frame.nodes[[1, 2]].tolist() == [2, 1] and pandas.isna(frame.nodes[3])


def test_damaged_lines_are_reported_by_a_warning(folder):
    (folder / "z.jsonl").write_text("{}\n[")
    with pytest.warns(UserWarning, match=r"2 damaged lines left out, the first z.jsonl:1: ") as warned:
        assert len(scaling.load(folder)) == 14
    assert warned[0].filename == __file__


def test_folder_without_a_record_of_a_run_is_refused_and_not_an_empty_table(tmp_path):
    folder = made_up.write(tmp_path / "made", [planned.plan(1e-3)], scaling=["strong"])
    (folder / "z.jsonl").write_text("{}\n")
    with pytest.raises(
        Refusal, match=r"no record to load in .*; ignored: 1 damaged line, the first z\.jsonl:1"
    ):
        scaling.load(folder)


@pytest.mark.parametrize("name", ["nowhere", "empty", "file"])
def test_path_without_results_is_rejected_in_one_line(name, tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").touch()
    with pytest.raises(Refusal, match="no results in") as error:
        scaling.load(tmp_path / name)
    assert "\n" not in str(error.value)


def test_text_that_cannot_be_encoded_is_escaped(tmp_path, make_record):
    frame = dataframe.typed_columns(["a\ud800"], [{"a\ud800": "\ud800"}, {}])
    assert list(frame) == ["a\\ud800"] and frame.iloc[0, 0] == "\\ud800" and frame.isna().iloc[1, 0]


def test_columns_with_missing_texts_can_be_compared_and_combined():
    rows = [{"wrt": "W", "points": 7}, {}, {"wrt": "X", "points": 7}]
    frame = dataframe.typed_columns(["wrt", "points"], rows)
    frame = frame[frame["points"].notna()]
    assert list((frame["points"] == 7) & (frame["wrt"] == "W")) == [True, False]
    every = dataframe.typed_columns(["wrt", "mode"], [{"wrt": "W"}, {"mode": "jacfwd"}])
    assert list((every["wrt"] == "W") & (every["mode"] != "value")) == [True, False]
