"""Tests of `results=PATH`: only a new, an empty or a results folder is accepted, and the path stays as it is written."""

import dataclasses

import pytest
from rich.console import Console

from scaling.cli.study_run import StudyRun, plan_run
from scaling.cluster.cluster_settings import ClusterSettings
from scaling.core.case import Case, Refusal
from scaling.results.results_folder import parse_results, refuse_other_files
from scaling.results.store import append_records
from scaling.study.compose import compose
from scaling.workers.machine import Machine
from scaling.workers.run_settings import RunSettings
from scaling.workers.schedule import PreflightResult

FOREIGN = [["thesis.tex"], ["report/index.html"], ["wandb/settings"], ["a/study.json", "a/b.jsonl"]]
ACCEPTED = [[], [".lock"], ["study.json", "thesis.tex"], ["a.jsonl", "notes"], ["versus-self/study.json"]]


def write_files(folder, names):
    for path in (folder / name for name in names):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()


@pytest.mark.parametrize("names", FOREIGN)
def test_a_folder_with_other_files_than_results_is_rejected(names, tmp_path):
    write_files(tmp_path, names)
    with pytest.raises(
        Refusal, match="is not empty and holds no results: give a new folder with results=PATH"
    ):
        parse_results(str(tmp_path))
    with pytest.raises(Refusal, match="give a new folder with --output PATH"):
        refuse_other_files(tmp_path, "--output ")


@pytest.mark.parametrize("names", ACCEPTED)
def test_a_new_folder_and_one_with_results_are_accepted(names, tmp_path):
    write_files(tmp_path, names)
    assert [parse_results(str(path)) for path in (tmp_path, tmp_path / "new")] == [tmp_path, tmp_path / "new"]


@pytest.mark.parametrize("path", ["2024_11_26", "1e3", "010", "0x10", "true", "a=b", "it's", "größe", "a(b)"])
def test_the_name_of_a_results_folder_stays_as_it_is_written(path):
    config, _ = compose(["study=linear", f"results={path}"])
    assert config["results"] == path


def test_a_results_folder_may_contain_the_name_of_the_study():
    config, _ = compose(["study=linear", "results=a/${hydra:runtime.choices.study}"])
    assert config["results"] == "a/linear"


def test_a_run_says_which_missing_cases_of_another_study_it_removes_from_study_json(
    tmp_path, make_record, capsys
):
    recorded = make_record()
    cases = [recorded.case, *(Case("linear", points=n, mode="jacfwd", api="jit") for n in (6, 12))]
    first, second = ([PreflightResult(case, None, None) for case in some] for some in (cases, cases[2:]))
    run = StudyRun(
        "one", None, RunSettings(bind=False), ClusterSettings("none"), Machine("cpu", None, 1), tmp_path, [], False,
        False, checked=first,
    )  # fmt: skip
    append_records(tmp_path, [recorded])
    for planned in (run, run, dataclasses.replace(run, name="two", checked=second)):
        assert "run earlier" not in capsys.readouterr().out
        plan_run(planned, Console(width=300))
    out = capsys.readouterr().out
    assert "1 missing case of study=one, run earlier: `scaling status` lists the cases of the last" in out
    plan_run(run, Console(width=300))
    assert "run earlier" not in capsys.readouterr().out
