"""Tests of the W&B runs of a results folder: which runs there are, their content, and when a changed run gets a new digest."""

import dataclasses
import json
import math

import pytest

from scaling.analysis import findings
from scaling.core.record import Writer
from scaling.wandb import publish
from scaling.wandb.publish import make_plots
from tests.support import made_up, wandb_study
from tests.support.wandb_study import SECONDS, record, runs_of, write_results, write_weak_results


def metric_values(run, stem: str) -> dict[str, list]:
    """Return the values of each metric whose name begins with `stem`."""
    names = {name for row in run.rows for name in row if name.startswith(stem)}
    return {name: [row[name] for row in run.rows if name in row] for name in sorted(names)}


def test_each_workload_and_method_has_a_run_and_the_study_has_one(tmp_path):
    records = list(made_up.study(300))
    all_runs = runs_of(made_up.write(tmp_path / "made", records))
    pairs = {(row.case.workload, row.case.mode) for row in records if row.case.kind == "case"}
    methods = [run for run in all_runs if run.config["kind"] == "method"]
    assert {(run.config["workload"], run.config["mode"]) for run in methods} == pairs
    assert len(methods) == len(pairs) == len(all_runs) - 1 and all_runs[-1].config["kind"] == "study"
    assert len({run.series for run in all_runs}) == len(all_runs)


def test_rows_of_a_run_are_the_values_of_its_curve_with_their_intervals(folder):
    study = findings.read(folder)
    for run, curve in zip(runs_of(folder), study.curves, strict=False):
        assert run.config["mode"] == curve.case.mode
        points = curve.points
        times = [point.timing.estimate for point in points]
        for stem, estimates in (("time/", times), ("speedup/", [point.speedup for point in points])):
            values = list(metric_values(run, stem).values())  # the metric, its high end and its low end
            for actual, at in zip(values, (0, 2, 1), strict=True):
                expected = [estimate[at] for estimate in estimates if estimate[at] is not None]
                assert actual == pytest.approx(expected, rel=1e-5)
        assert [row["devices"] for row in run.rows] == [point.devices for point in points]
    assert metric_values(runs_of(folder)[-1], "ideal/") == {"ideal/from_1": [1, 2, 4]}


def test_time_over_size_is_plotted_separately_for_each_device_count(tmp_path):
    folder = write_results(tmp_path / "made")
    for m in (96, 192):
        Writer(folder).append(record("jacfwd", 2, sizes={"m": m}))
    (run,) = (run for run in runs_of(folder) if run.config.get("mode") == "jacfwd")
    rows = [row for row in run.rows if "size" in row]
    assert [row["size"] for row in rows] == [48, 96, 192] and not any("devices" in row for row in rows)
    (plot,) = (plot for plot in make_plots(findings.read(folder)) if plot.kind == "size")
    assert "2 devices" in plot.title and plot.x_title == "m" and all(plot.metric in row for row in rows)


def test_plots_of_different_problems_never_share_a_metric(tmp_path):
    folder = write_results(tmp_path / "made")
    for target in ("a b", "a_b"):
        for devices in SECONDS:
            Writer(folder).append(record("jacfwd", devices, target=target))
    plots = make_plots(findings.read(folder))
    assert len({plot.metric for plot in plots}) == len(plots) == 6


def test_plots_of_programs_that_differ_in_the_compilation_cache_have_different_titles(tmp_path):
    folder = write_results(tmp_path / "made")
    for cache in ("cold", "warm"):
        for devices in SECONDS:
            case = dataclasses.replace(record("jacfwd", devices).case, cache=cache)
            Writer(folder).append(dataclasses.replace(record("jacfwd", devices), case=case))
    titles = [plot.title for plot in make_plots(findings.read(folder)) if plot.metric.startswith("time/")]
    assert len(titles) == 3
    assert {title.rpartition(", ")[2] for title in titles} == {"cold cache", "points split", "warm cache"}


def test_case_that_failed_in_an_older_environment_and_then_succeeded_counts_as_ok(folder):
    (failed,) = [row for row in findings.read(folder).records if row.status == "failed"]
    environment = failed.environment | {"digest": "newer"}
    again = record("linearize", 2, environment=environment, started_at="2026-01-02T00:00:00+00:00")
    Writer(folder).append(again)
    summary = runs_of(folder)[-1].summary
    assert summary == {"cases": 7, "ok": 7}


def test_config_of_a_run_has_the_common_fields_of_its_cases_and_its_environment(folder):
    run = next(run for run in runs_of(folder) if run.config.get("mode") == "jacrev")
    expected = {
        "mode": "jacrev", "size_m": 48, "points": 32, "study": "made-up", "environment": "e1", "host": "node-7",
        "version_jax": "0.10.2", "device_kind": "A Processor", "kind": "method", "method": "jacrev (vmap)",
    }  # fmt: skip
    assert expected.items() <= run.config.items() and "devices" not in run.config
    assert run.tags == ("method", "rbf", "jacrev", "shard_map") and run.config["study"] == "made-up"
    assert run.summary == {"cases": 3, "ok": 3}


def test_two_results_folders_of_one_study_have_no_series_in_common(tmp_path):
    folders = [write_results(tmp_path / name, study="a") for name in ("a", "b")]
    series, other = [{run.series for run in runs_of(folder)} for folder in folders]
    assert series & other == set() and len(series) == len(other)
    digests = [runs_of(folder)[-1].config["study_digest"] for folder in folders]
    assert digests == [runs_of(folder)[-1].series for folder in folders]


@pytest.mark.parametrize("name", ["hosts", "versions"])
def test_an_environment_without_hosts_or_versions_does_not_stop_a_publication(tmp_path, name):
    folder = write_results(tmp_path / "made")
    Writer(folder).append(
        record("grad_of_sum", 2, environment={"digest": "e2", "platform": "cpu", name: None})
    )
    assert any(run.config.get("mode") == "grad_of_sum" for run in runs_of(folder))


def test_method_with_only_failures_has_a_run_tagged_failures(folder):
    run = next(run for run in runs_of(folder) if run.config.get("mode") == "linearize")
    assert run.rows == [] and run.summary == {"cases": 1, "failed": 1} and run.tags[-1] == "failures"


def test_run_of_the_study_counts_its_cases(folder):
    assert runs_of(folder)[-1].summary == {"cases": 7, "ok": 6, "failed": 1}


def test_each_environment_has_its_own_run_and_name(folder):
    other = {
        "digest": "e2",
        "platform": "gpu",
        "device_kind": "x",
        "cores": None,
        "versions": {},
        "hosts": [],
    }
    Writer(folder).append(record("jacfwd", 4, environment=other))
    names = [run.name for run in runs_of(folder) if run.config.get("mode") == "jacfwd"]
    assert sorted(names) == [f"rbf jacfwd (vmap) [environment {name}]" for name in ("e1", "e2")]


def test_a_long_name_of_a_run_keeps_its_environment(tmp_path):
    tmp_path.joinpath("study.json").write_text("{}")
    for digest in ("e1", "e2"):
        long = record("jacfwd", 1)
        case = dataclasses.replace(long.case, workload="package." * 30 + "module")
        Writer(tmp_path).append(
            dataclasses.replace(long, case=case, environment=long.environment | {"digest": digest})
        )
    names = sorted(run.name for run in runs_of(tmp_path)[:-1])
    assert [(len(name), name[-17:]) for name in names] == [
        (128, " [environment e1]"),
        (128, " [environment e2]"),
    ]


def test_only_series_with_constant_work_per_device_are_plotted_as_weak_scaling(tmp_path):
    kinds = []
    for growth in (0.0, 1e5):
        folder = write_weak_results(tmp_path / str(growth), (1, 2, 4), growth=growth)
        plots = make_plots(findings.read(folder))
        kinds.append({plot.kind for plot in plots if plot.x == "devices" and plot.x_count > 1})
    assert kinds == [{"weak"}, set()]


def test_digest_of_a_run_changes_only_with_its_rows(folder):
    before = {run.name: run for run in runs_of(folder)}
    Writer(folder).append(record("jacrev", 4, replicate=1, seconds=[0.011] * 8))
    after = {run.name: run for run in runs_of(folder)}
    changed = {name for name, run in after.items() if run.digest != before[name].digest}
    assert changed == {name for name in after if "jacrev" in name or name == "made-up"}
    assert all(after[name].series == before[name].series for name in after)


@pytest.mark.parametrize(
    "value", [math.nan, math.inf, {}, [1, {"a": None}], "\ud800 alone", 10**30, 0.1 + 0.2, None]
)
def test_values_of_a_run_are_strict_json_and_numbers_are_rounded(value):
    encoded = publish._encode_fields({"a": value, "\udcff": 1})
    assert json.loads(json.dumps(encoded, allow_nan=False)) == encoded and "\udcff" not in encoded
    assert json.dumps(encoded, ensure_ascii=False).encode()
    assert (
        publish._encode_fields({"a": 0.1 + 0.2})
        == publish._encode_fields({"a": 0.3})
        != publish._encode_fields({"a": 0.30001})
    )


def test_runs_do_not_depend_on_other_files_in_the_folder(folder):
    before = runs_of(folder)
    (folder / "wandb").mkdir()
    assert runs_of(folder) == before and wandb_study.offline_copies(folder) == []
