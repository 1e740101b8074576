"""Helpers for tests on a real Slurm: the fixture `cluster`, and the commands of Slurm as functions."""

import os
import subprocess
import time
from pathlib import Path

import pytest

from tests.support import tiers
from tests.support.commands import wait_until

CLUSTER = Path(__file__).parents[2] / "slurm" / "cluster"
TIMEOUT = 120.0  # seconds, timeout of a command and of a change of a job's state


@pytest.fixture(scope="session")
def cluster():
    """Return the sorted names of the nodes of the running Slurm."""
    if reason := tiers.missing("slurm"):
        tiers.skip_or_fail("slurm", reason)
    return sorted(slurm("sinfo", "-h", "-N", "-p", "main", "-o", "%N").split())


def run_command(*arguments, **options):
    """Run a command and return the completed process. Variables of a surrounding job are removed from its environment."""
    env = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("SLURM_", "SBATCH_", "SACCT_"))
    }
    return subprocess.run(
        [str(argument) for argument in arguments], env=env, timeout=TIMEOUT, capture_output=True, text=True, check=False,
        stdin=subprocess.DEVNULL, **options,
    )  # fmt: skip


def slurm(*arguments, **options):
    """Run a command that must succeed and return its output."""
    done = run_command(*arguments, **options)
    assert done.returncode == 0, f"{' '.join(map(str, arguments))}: {done.stdout}{done.stderr}"
    return done.stdout.strip()


def submit(folder, script, *arguments):
    """Submit a shell script; its output is appended to the file job-NUMBER in the folder, that of an array to job-NUMBER_INDEX."""
    arguments = ("--parsable", "--open-mode=append", f"--chdir={folder}", *arguments)
    arguments = (
        *arguments,
        "-o",
        "job-%A_%a" if any(argument.startswith("--array") for argument in arguments) else "job-%j",
    )
    return slurm("sbatch", *arguments, "--wrap", script)


def job_states(job):
    """Return the states of a job in accounting: one for every start of the job, or one for every index of an array."""
    return [
        line.split()[0]
        for line in slurm("sacct", "-X", "-D", "-n", "-P", "-o", "State", "-j", job).splitlines()
        if line
    ]


def wait_for(job, *expected):
    """Wait until accounting has these states of a job."""
    return wait_until(lambda: job_states(job) == list(expected), f"job {job} being {', '.join(expected)}")


def start_requeued_job(job):
    """Start a requeued job in 2 s. Otherwise, Slurm waits 16 s for the end of all of its processes.

    Slurm rejects a job that restarts in the same second in which its credential was revoked.
    """
    wait_until(lambda: "PENDING" in slurm("squeue", "-h", "-j", job, "-o", "%T"), f"job {job} being requeued")
    time.sleep(2)
    slurm("scontrol", "update", f"JobId={job}", "StartTime=now")
