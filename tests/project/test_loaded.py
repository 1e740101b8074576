"""Tests of the fork server of the tests: a forked command behaves like one in a new interpreter."""

import subprocess

import pytest


@pytest.mark.parametrize(
    ("arguments", "status"),
    [(["--version"], 0), (["run", "study=rbff"], 2), (["status", "--help"], 0), (["rnu", "µs"], 2)],
    ids=str,
)
def test_a_forked_command_has_the_output_and_status_of_a_new_process(arguments, status, scaling_command):
    forked, fresh = (scaling_command(arguments, fresh=fresh) for fresh in (False, True))
    assert (forked.returncode, forked.stdout, forked.stderr) == (fresh.returncode, fresh.stdout, fresh.stderr)
    assert forked.returncode == status and forked.stdout + forked.stderr


def test_a_forked_command_has_its_own_folder_and_environment(scaling_command, tmp_path, monkeypatch):
    folder = tmp_path / "elsewhere"
    (folder / "results" / "linear").mkdir(parents=True)
    (folder / "results" / "linear" / "study.json").write_text("{}")
    assert "there are results/linear" in scaling_command(["status", "nowhere"], cwd=folder).stderr
    assert "there are" not in scaling_command(["status", "nowhere"]).stderr
    monkeypatch.delenv("OPENBLAS_NUM_THREADS", raising=False)
    arguments = [
        "run",
        "study=rbf",
        "points=${oc.env:OPENBLAS_NUM_THREADS}",
    ]  # the fork server sets this variable for itself
    assert "points must be" in scaling_command(arguments, env={"OPENBLAS_NUM_THREADS": "none"}).stderr
    assert "'OPENBLAS_NUM_THREADS' not found" in scaling_command(arguments).stderr


def test_a_forked_command_is_killed_after_its_timeout(scaling_command, write_study, write_workload):
    write_workload(head="import time\ntime.sleep(5)")
    with pytest.raises(subprocess.TimeoutExpired):
        scaling_command(write_study("{workload: mine, points: 6, api: jit}"), timeout=1)
    assert scaling_command(["--version"]).returncode == 0
