"""Tests of what `scaling run` and `scaling plan` do before a study starts: all studies are checked, nothing is installed."""

import subprocess
import sys

import pytest

from scaling.cli import main, plan, submit
from scaling.cli import run as running
from scaling.core.case import Refusal
from scaling.plan import plan_study
from scaling.study import preflight, variants


@pytest.fixture
def call(tmp_path, monkeypatch, preflight_in_this_process):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["scaling"])
    monkeypatch.setenv("HYDRA_FULL_ERROR", "0")
    return lambda *words: main.main(list(words))


BAD = {
    "a value of a case": "points: 0",
    "a value that has no effect": "points: 6, chunk: 4, mode: analytic",
    "more devices than cores": "points: 4000, devices: 4000",
}


@pytest.mark.parametrize("bad", BAD)
def test_every_study_of_a_multirun_is_checked_before_any_runs(
    bad, call, write_study, monkeypatch, capsys, tmp_path
):
    write_study("{workload: linear, points: 6}", "good")
    write_study(f"{{workload: linear, {BAD[bad]}}}", "bad")
    started = []
    monkeypatch.setattr(running, "_run_and_report", lambda *_: started.append(1) or 0)
    words = ("run", "--config-dir", "my_conf", "--multirun")
    assert (call(*words, "study=good,bad"), started) == (2, []), capsys.readouterr()
    assert not (tmp_path / "results").exists()
    assert (call(*words, "study=good,good"), started) == (0, [1, 1])


def test_every_plan_of_a_multirun_is_checked_before_any_is_compiled(call, monkeypatch):
    def prepare(config, name, note):
        if name == "rbf":
            raise Refusal("not valid")
        return name

    planned = []
    monkeypatch.setattr(plan_study, "prepare_plan", prepare)
    monkeypatch.setattr(plan, "_plan_and_report", lambda study, *_: planned.append(study) or 0)
    assert (call("plan", "--multirun", "study=plan,rbf", "hardware=v5p"), planned) == (2, [])
    assert (call("plan", "--multirun", "study=plan,linear", "hardware=v5p"), planned) == (
        0,
        ["plan", "linear"],
    )


@pytest.mark.parametrize("tracking", ["wandb", "none"])
def test_a_run_that_leaves_its_cases_in_the_queue_says_how_to_publish_them(
    tracking, call, write_study, monkeypatch, capsys
):
    monkeypatch.setattr(submit, "submit_and_wait", lambda *_: (None, None, True))
    words = write_study("{workload: linear, points: 6}")
    assert call(*words, "cluster=local", "wait=false", f"tracking={tracking}") == 0
    assert ("publish later with `scaling publish results/mine`" in capsys.readouterr().out) == (
        tracking == "wandb"
    )


def test_a_dry_run_prepares_no_program_to_compare_with(call, write_study, monkeypatch, capsys):
    monkeypatch.setattr(variants, "open_variant", None)
    words = (*write_study("{workload: linear, points: 6}"), "dry_run=true")
    for versus in ("jax:0.9.0", "python:/bin/false", "xla:--xla=1", "self"):
        assert call(*words, f"versus={versus}") == 0, capsys.readouterr().err
    assert "nothing was started" in capsys.readouterr().out
    assert call(*words, "versus=jax:--help") == 2 and "is not a version" in capsys.readouterr().err


def test_a_module_of_the_user_with_the_name_of_a_workload_is_rejected_although_answers_are_cached(
    call, tmp_path, write_study, monkeypatch, capsys
):
    (tmp_path / "linear.py").write_text("def workload(case):\n    return None\n")
    monkeypatch.setattr(preflight, "load_answers", lambda *_: pytest.fail("the cache was read"))
    assert call(*write_study("{workload: linear, points: 6}"), "dry_run=true") == 2
    assert "rename that file" in capsys.readouterr().err


def test_a_revision_of_a_repository_elsewhere_is_rejected_in_one_line(tmp_path, monkeypatch):
    for words in (["init", "-q"], ["commit", "-q", "--allow-empty", "-m", "x"]):
        identity = ["-c", "user.email=a@b", "-c", "user.name=a"]
        subprocess.run(["git", *identity, *words], cwd=tmp_path, check=True)
    monkeypatch.setenv("GIT_DIR", str(tmp_path / ".git"))
    monkeypatch.setenv("GIT_WORK_TREE", str(tmp_path))
    monkeypatch.chdir("/")
    with pytest.raises(Refusal, match="this folder is not in one"):
        variants.name_variant("commit:HEAD")
    monkeypatch.chdir(tmp_path)
    assert variants.name_variant("commit:HEAD").name.startswith("commit-")
