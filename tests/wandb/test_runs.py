"""Laws of the projection onto W&B: which runs a folder makes, and when a changed one is another."""

import dataclasses
import subprocess
import sys
from pathlib import Path

import pytest

import scaling
from scaling.analysis.curves import scaling_curves
from scaling.core import store
from scaling.core.case import Case, to_dict
from scaling.wandb import runs
from scaling.wandb.runs import finished_curves
from scaling.wandb.tracked_run import TrackedRun
from tests.support import wandb_study
from tests.support.wandb_study import SECONDS, record, results, runs_of, weak

ROOT = Path(scaling.__file__).parents[1]


@pytest.fixture
def folder(tmp_path):
    return results(tmp_path / "made")


def only(folder: Path, job_type: str) -> list[TrackedRun]:
    return [run for run in runs_of(folder) if run.job_type == job_type]


def test_the_rows_of_a_curve_are_its_points_with_the_ideal_beside_them(folder):
    drawn = {curve.name: curve for curve in scaling_curves(store.load(folder).records)}
    made = only(folder, "curve")
    assert {run.name for run in made} == set(drawn) and len(made) == 2
    for run in made:
        for row, point in zip(run.rows, drawn[run.name].points, strict=True):
            told = {name: value for name, value in dataclasses.asdict(point).items() if value is not None}
            assert row == told | {"ideal": point.devices / point.baseline_devices, "ideal_efficiency": 1.0}
            assert {
                "seconds",
                "low",
                "high",
                "speedup",
                "speedup_low",
                "speedup_high",
                "efficiency",
                "efficiency_low",
            } <= set(row)


def test_a_run_can_be_filtered_by_every_field_of_its_case_and_by_where_it_was_made(folder):
    config = next(run for run in only(folder, "curve") if "jacrev" in run.name).config
    fields = {name for name in Case.__dataclass_fields__ if name != "devices"}
    assert fields | {
        "study",
        "study_digest",
        "kind",
        "environment",
        "device_kind",
        "versions",
        "rows",
        "series",
    } <= set(config)
    assert config["mode"] == "jacrev" and config["sizes"] == {"m": 48} and config["size_m"] == 48
    assert (
        config["study"] == "made-up"
        and config["environment"] == "e1"
        and config["versions"]["jax"] == "0.10.2"
    )
    assert config["baseline_devices"] == 1
    assert (
        config["device_kind"] == "A Processor" and config["host"] == "node-7" and config["kind"] == "strong"
    )


def test_the_run_of_the_study_holds_every_record_the_fastest_modes_the_figures_and_the_counts(folder):
    (run,) = only(folder, "study")
    table = run.tables["records"]
    rows = [dict(zip(table["columns"], row, strict=True)) for row in table["data"]]
    for row, made in zip(rows, store.load(folder).records, strict=True):
        assert (row["key"], row["status"], row["text"], row["samples"]) == (
            made.key,
            made.status,
            made.text,
            len(made.seconds),
        )
    assert {"ok": 6, "failed": 1, "skipped": 0, "cases": 7}.items() <= run.summary.items()
    assert len(run.tables["fastest"]["data"]) == len(SECONDS) and list(run.images) == ["report/speedup.png"]
    assert run.lines == tuple((next(folder.glob("*.jsonl"))).read_text().splitlines())


def test_a_torn_figure_is_no_figure(folder):
    picture = folder / "report" / "speedup.png"
    picture.write_bytes(picture.read_bytes()[:-20])
    assert only(folder, "study")[0].images == {}


def test_a_weak_curve_says_its_points_per_device_and_keeps_its_identity_when_a_smaller_device_count_comes(
    tmp_path,
):
    late, whole = (only(weak(tmp_path / str(len(n)), n), "curve")[0] for n in ((2, 4), (1, 2, 4)))
    assert late.series == whole.series and late.id != whole.id
    assert whole.config["points_per_device"] == 32 and "points" not in whole.config
    assert [row["points"] for row in whole.rows] == [32, 64, 128]


def test_strong_and_weak_rows_have_no_name_in_common_but_where_they_stand(folder, tmp_path):
    strong = {name for run in only(folder, "curve") for row in run.rows for name in row}
    grown = {
        name for run in only(weak(tmp_path / "weak", (1, 2, 4)), "curve") for row in run.rows for name in row
    }
    assert strong & grown == {"devices", "points"} and "weak/speedup" in grown


def test_a_series_whose_work_grows_is_nowhere_called_weak(tmp_path):
    refused = weak(tmp_path / "refused", (1, 2, 4), more=1e5)
    for run in runs_of(refused):
        assert run.config["kind"] != "weak" and not [
            name for row in run.rows for name in row if "weak" in name
        ]
    assert [run for run in runs_of(weak(tmp_path / "weak", (1, 2, 4))) if run.config["kind"] == "weak"]


def test_the_parts_of_the_fitted_laws_stand_in_the_summary_with_their_intervals(tmp_path, monkeypatch):
    monkeypatch.setattr(wandb_study, "SECONDS", {n: 0.04 * (0.05 + 0.95 / n) for n in (1, 2, 4, 8, 16, 32)})
    folder = tmp_path / "long"
    folder.mkdir()
    store.write_json(folder / "study.json", {"study": "made-up", "scaling": ["strong"]})
    writer = store.Writer(folder)
    for devices in wandb_study.SECONDS:
        writer.append(record("jacfwd", devices))
    summary = only(folder, "curve")[0].summary
    low, value, high = (summary[f"law/Amdahl/serial{end}"] for end in ("_low", "", "_high"))
    assert low <= value <= high and value == pytest.approx(0.05, abs=0.01) and summary["law/best"]


def test_the_id_of_a_run_changes_with_its_rows_and_with_nothing_else(folder):
    before = {run.name: run for run in runs_of(folder)}
    store.Writer(folder).append(record("jacrev", 4, replicate=1, seconds=[0.011] * 8))
    after = {run.name: run for run in runs_of(folder)}
    changed = {name for name, run in after.items() if run.id != before[name].id}
    assert changed == {name for name in after if "jacrev" in name or name == "made-up"}
    assert all(after[name].series == before[name].series for name in after)


def test_the_last_bits_of_a_number_make_no_other_run():
    assert runs._digest([0.1 + 0.2, {"a": 1.0}]) == runs._digest([0.3, {"a": 1.0000000001}])
    assert runs._digest([0.3]) != runs._digest([0.30001])


def planned(folder: Path, *cases: Case) -> None:
    """Say that these are the cases of the study."""
    cells = [{"key": case.key, "case": to_dict(case)} for case in cases]
    store.write_json(folder / "study.json", {"study": "made-up", "scaling": ["strong"], "cases": cells})


def test_while_a_study_runs_a_curve_waits_for_all_that_its_rows_may_rest_on(folder):
    there = [made.case for made in store.load(folder).records]
    ids = {run.id for run in only(folder, "curve")}
    planned(folder, *there)
    assert {run.id for run in finished_curves(folder, 1, (), 9)} == ids
    assert finished_curves(folder, 1, ids, 9) == [] and len(finished_curves(folder, 1, (), 1)) == 1
    assert finished_curves(folder, 2, (), 9) == []  # a second replicate is to come
    planned(
        folder, *there, Case("rbf", target="grad_map", sizes={"m": 48}, points=32, api="jit")
    )  # the baseline of all of them
    assert finished_curves(folder, 1, (), 9) == []
    planned(folder, *there, Case("rbf", target="grad_map", sizes={"m": 64}, points=32))  # of another problem
    assert {run.id for run in finished_curves(folder, 1, (), 9)} == ids


def test_an_early_run_is_what_the_last_publish_makes_of_it(folder):
    planned(folder, *(made.case for made in store.load(folder).records))
    late = {run.id: run for run in only(folder, "curve")}
    for run in finished_curves(folder, 1, (), 9):
        assert run == late[run.id]


def test_importing_what_publishes_starts_neither_jax_nor_wandb():
    ask = (
        "import sys, scaling.wandb.publish; print([name for name in ('jax', 'wandb') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.strip() == "[]"
