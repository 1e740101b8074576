"""A command in a process that has it loaded already is the command."""

import subprocess

import pytest


@pytest.mark.parametrize(
    ("words", "status"),
    [(["--version"], 0), (["run", "study=rbff"], 2), (["status", "--help"], 0), (["rnu", "µs"], 2)],
    ids=str,
)
def test_it_says_what_one_says_that_is_started_from_nothing(words, status, scaling_command):
    loaded, anew = (scaling_command(words, anew=anew) for anew in (False, True))
    assert (loaded.returncode, loaded.stdout, loaded.stderr) == (anew.returncode, anew.stdout, anew.stderr)
    assert loaded.returncode == status and loaded.stdout + loaded.stderr


def test_its_folder_and_its_environment_are_its_own(scaling_command, tmp_path, monkeypatch):
    place = tmp_path / "elsewhere"
    (place / "results" / "linear").mkdir(parents=True)
    (place / "results" / "linear" / "study.json").write_text("{}")
    assert "there are results/linear" in scaling_command(["status", "nowhere"], cwd=place).stderr
    assert "there are" not in scaling_command(["status", "nowhere"]).stderr
    monkeypatch.delenv("OPENBLAS_NUM_THREADS", raising=False)
    words = [
        "run",
        "study=rbf",
        "points=${oc.env:OPENBLAS_NUM_THREADS}",
    ]  # which the process that has it loaded sets for itself
    assert "points must be" in scaling_command(words, env={"OPENBLAS_NUM_THREADS": "none"}).stderr
    assert "'OPENBLAS_NUM_THREADS' not found" in scaling_command(words).stderr


def test_one_that_takes_too_long_is_ended_and_the_next_is_not_kept_waiting(
    scaling_command, write_study, write_workload
):
    write_workload(head="import time\ntime.sleep(5)")
    with pytest.raises(subprocess.TimeoutExpired):
        scaling_command(write_study("{workload: mine, points: 6, api: jit}"), timeout=1)
    assert scaling_command(["--version"]).returncode == 0
