"""Workers on hosts that a remote shell reaches; here one that takes every host for this one."""

import os
import signal
import subprocess
import time

import pytest

from scaling.core.store import load
from scaling.workers import cores

pytestmark = pytest.mark.process

needs_two_cores = pytest.mark.skipif(len(cores.usable_cores()) < 2, reason="two hosts of one core each")
SHELL = """#!/bin/sh
[ "$1" != nowhere ] || { echo "Host key verification failed." >&2; exit 255; }
shift
exec env -i PATH="$PATH" HOME="$HOME" sh -c "$1"  # as on another host, nothing is inherited
"""


@pytest.fixture
def words(tmp_path, write_study):
    """A study on two hosts of one core each; `more` goes into the grid."""
    shell = tmp_path / "shell"
    shell.write_text(SHELL)
    shell.chmod(0o755)

    def call(hosts="[a,b]", more="workload: residual, mode: [jacfwd, jacrev]"):
        study = write_study(f"{{{more}, points: 64, devices: [1, 2]}}")
        return [
            *study,
            "cluster=hosts",
            f"cluster.hosts={hosts}",
            f"cluster.shell=[{shell}]",
            "cluster.per_node=1",
            "results=out",
        ]

    return call


@needs_two_cores
def test_a_case_has_a_worker_on_each_host_with_a_core_of_its_own(words, scaling_command, tmp_path):
    done = scaling_command(words())
    assert done.returncode == 0, done.stdout + done.stderr
    records = load(tmp_path / "out").records
    told = {
        (r.case.devices, tuple(r.environment["hosts"]), r.environment["shape"]["processes"], r.honest)
        for r in records
    }
    assert told == {(1, ("a",), 1, True), (2, ("a", "b"), 2, True)} and {r.status for r in records} == {"ok"}
    again = scaling_command(words())
    assert "0 cases to run" in again.stdout and load(tmp_path / "out").records == records


def test_a_host_that_cannot_be_reached_ends_the_run_in_one_line_and_costs_no_record(
    words, scaling_command, tmp_path
):
    done = scaling_command(words("[nowhere]"))
    assert done.returncode == 2 and "devices=2 exceed the 1 core" in done.stderr
    done = scaling_command([*words("[nowhere,b]"), "devices=1"])
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "Host key verification failed." in done.stderr and not load(tmp_path / "out").records


def test_hosts_that_are_not_named_are_asked_for(write_study, scaling_command):
    done = scaling_command([*write_study("{workload: residual, points: 64, mode: jacfwd}"), "cluster=hosts"])
    assert (done.returncode, done.stderr.count("\n")) == (
        2,
        1,
    ) and "cluster.hosts=[a,b] cluster.per_node=4" in done.stderr


def test_workers_elsewhere_go_when_their_launcher_is_killed(words, start_command, write_workload, tmp_path):
    """Even one that is in the middle of something, and would hear nothing for an hour."""
    write_workload(head="import time", body="if RUNNING: time.sleep(3600)\nreturn jnp.sin(x)[:2] * x[2]")
    started = start_command([*words(more="workload: mine"), "devices=1", "cluster.hosts=[marked]"])
    until = time.monotonic() + 60

    def workers():
        told = subprocess.run(
            ["pgrep", "-f", "^[^ ]*python[^ ]* -m scaling.worker"],
            capture_output=True,
            text=True,
            check=False,
        )
        mine = [int(pid) for pid in told.stdout.split()]
        return [pid for pid in mine if b"AD_SCALING_NODE=marked" in _environment(pid)]

    while not workers() and time.monotonic() < until:
        time.sleep(0.1)
    assert workers()
    os.kill(started.pid, signal.SIGKILL)
    while workers() and time.monotonic() < until:
        time.sleep(0.1)
    assert not workers()


def _environment(pid):
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return file.read()
    except OSError:
        return b""
