"""Tests of workers on hosts behind a remote shell; the shell of the tests runs every command on this host."""

import os
import signal
import subprocess

import pytest

from scaling.launcher import cores
from scaling.results.store import load
from tests.support.commands import wait_until

pytestmark = pytest.mark.process

needs_two_cores = pytest.mark.skipif(len(cores.usable_cores()) < 2, reason="two hosts of one core each")
SHELL = """#!/bin/sh
[ "$1" != nowhere ] || { echo "Host key verification failed." >&2; exit 255; }
shift
exec env -i PATH="$PATH" HOME="$HOME" sh -c "$1"  # as on another host, no variable is inherited
"""


@pytest.fixture
def command(tmp_path, write_study):
    """Return the arguments that run a study on two hosts of one core each; `more` is added to the study."""
    shell = tmp_path / "shell"
    shell.write_text(SHELL)
    shell.chmod(0o755)

    def build(hosts="[a,b]", more="workload: residual, mode: jacfwd"):
        study = write_study(f"{{{more}, points: 64, devices: [1, 2]}}")
        words = f"cluster=hosts cluster.hosts={hosts} cluster.shell=[{shell}] cluster.per_node=1 results=out"
        return [*study, *words.split()]

    return build


@needs_two_cores
def test_a_case_has_one_worker_per_host_each_on_its_own_core(command, scaling_command, tmp_path):
    done = scaling_command(command())
    assert done.returncode == 0, done.stdout + done.stderr
    records = load(tmp_path / "out").records
    layouts = {
        (r.case.devices, tuple(r.environment["hosts"]), r.environment["shape"]["processes"], r.honest)
        for r in records
    }
    assert layouts == {(1, ("a",), 1, True), (2, ("a", "b"), 2, True)} and {r.status for r in records} == {
        "ok"
    }
    again = scaling_command(command())
    assert "0 cases to run" in again.stdout and load(tmp_path / "out").records == records


def test_an_unreachable_host_ends_the_run_in_one_line_without_a_record(command, scaling_command, tmp_path):
    done = scaling_command(command("[nowhere]"))
    assert done.returncode == 2 and "devices=2 exceed the 1 core" in done.stderr
    done = scaling_command([*command("[nowhere,b]"), "devices=1"])
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "Host key verification failed." in done.stderr and not load(tmp_path / "out").records


def test_missing_hosts_are_rejected_with_an_example(write_study, scaling_command):
    done = scaling_command([*write_study("{workload: residual, points: 64, mode: jacfwd}"), "cluster=hosts"])
    assert (done.returncode, done.stderr.count("\n")) == (
        2,
        1,
    ) and "cluster.hosts=[a,b] cluster.per_node=4" in done.stderr


def test_remote_workers_end_when_their_launcher_is_killed(command, start_command, write_workload):
    """This includes a worker that is busy for an hour."""
    write_workload(head="import time", body="if RUNNING: time.sleep(3600)\nreturn jnp.sin(x)[:2] * x[2]")
    started = start_command([*command("[marked]", more="workload: mine"), "devices=1"])

    def workers():
        listing = subprocess.run(
            ["pgrep", "-f", "^[^ ]*python[^ ]* -m scaling.worker"],
            capture_output=True,
            text=True,
            check=False,
        )
        pids = [int(pid) for pid in listing.stdout.split()]
        return [pid for pid in pids if b"AD_SCALING_NODE=marked" in _read_environment(pid)]

    wait_until(workers, "a worker")
    os.kill(started.pid, signal.SIGKILL)
    wait_until(lambda: not workers(), "the end of the worker")


def _read_environment(pid):
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return file.read()
    except OSError:
        return b""
