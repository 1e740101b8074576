"""Tests of what `scaling run` does before a study starts: the study is checked, nothing is installed."""

import subprocess

import pytest

from scaling.cli import run as running
from scaling.core.case import Refusal
from scaling.study import preflight, variants

BAD = {
    "a value of a case": "points: 0",
    "a value that has no effect": "points: 6, chunk: 4, mode: analytic",
    "more devices than cores": "points: 4000, devices: 4000",
}


@pytest.mark.parametrize("bad", BAD)
def test_a_study_is_checked_before_it_runs(bad, call_main, write_study, monkeypatch, tmp_path):
    started = []
    monkeypatch.setattr(running, "_run_and_report", lambda *_: started.append(1) or 0)
    done = call_main(write_study(f"{{workload: linear, {BAD[bad]}}}"))
    assert (done.returncode, started) == (2, []), done.stderr
    assert not (tmp_path / "results").exists()
    assert (call_main(write_study("{workload: linear, points: 6}")).returncode, started) == (0, [1])


@pytest.mark.parametrize("tracking", ["wandb", "none"])
def test_a_run_that_leaves_its_cases_in_the_queue_says_how_to_publish_them(
    tracking, call_main, write_study, monkeypatch
):
    monkeypatch.setattr(running, "_submit_and_wait", lambda *_: None)
    words = write_study("{workload: linear, points: 6}")
    done = call_main([*words, "cluster=local", "wait=false", f"tracking={tracking}"])
    is_named = "publish later with `scaling publish results/mine`" in done.stdout
    assert (done.returncode, is_named) == (0, tracking == "wandb")


def test_a_dry_run_prepares_no_program_to_compare_with(call_main, write_study, monkeypatch):
    monkeypatch.setattr(variants, "open_variant", None)
    words = (*write_study("{workload: linear, points: 6}"), "dry_run=true")
    for versus in ("jax:0.9.0", "python:/bin/false", "xla:--xla=1", "self"):
        done = call_main([*words, f"versus={versus}"])
        assert done.returncode == 0 and "nothing was started" in done.stdout, done.stderr
    done = call_main([*words, "versus=jax:--help"])
    assert done.returncode == 2 and "is not a version" in done.stderr


def test_a_program_that_the_system_cannot_execute_is_rejected_in_one_line(tmp_path):
    program = tmp_path / "python"
    program.write_bytes(b"\0")
    program.chmod(0o755)
    with (
        pytest.raises(Refusal, match="Exec format error: name a Python interpreter that has JAX"),
        variants.open_variant(f"python:{program}"),
    ):
        pass


def test_a_module_of_the_user_with_the_name_of_a_workload_is_rejected_although_answers_are_cached(
    call_main, tmp_path, write_study, monkeypatch
):
    (tmp_path / "linear.py").write_text("def workload(case):\n    return None\n")
    monkeypatch.setattr(preflight, "load_answers", lambda *_: pytest.fail("the cache was read"))
    done = call_main([*write_study("{workload: linear, points: 6}"), "dry_run=true"])
    assert done.returncode == 2 and "rename that file" in done.stderr


def test_a_revision_of_a_repository_elsewhere_is_rejected_in_one_line(tmp_path, monkeypatch):
    for words in (["init", "-q"], ["commit", "-q", "--allow-empty", "-m", "x"]):
        identity = ["-c", "user.email=a@b", "-c", "user.name=a"]
        subprocess.run(["git", *identity, *words], cwd=tmp_path, check=True)
    monkeypatch.setenv("GIT_DIR", str(tmp_path / ".git"))
    monkeypatch.setenv("GIT_WORK_TREE", str(tmp_path))
    monkeypatch.chdir("/")
    with pytest.raises(Refusal, match="needs a git repository with this folder"):
        variants.name_variant("commit:HEAD")
    monkeypatch.chdir(tmp_path)
    assert variants.name_variant("commit:HEAD").name.startswith("commit-")
