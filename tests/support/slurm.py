"""What tests of a real Slurm share: the fixture `cluster`, and its commands as functions."""

import os
import subprocess
import time
from pathlib import Path

import pytest

from tests.support import tiers

CLUSTER = Path(__file__).parents[2] / "slurm" / "cluster"
LONGEST = 120.0  # seconds that a command or a job's next state may take at the very most


@pytest.fixture(scope="session")
def cluster():
    """The names of the nodes of a Slurm that answers."""
    if reason := tiers.missing("slurm"):
        tiers.skip_or_fail("slurm", reason)
    return sorted(slurm("sinfo", "-h", "-N", "-p", "main", "-o", "%N").split())


def call(*words, **options):
    """A command and what became of it, without what a surrounding job would tell Slurm's clients."""
    env = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("SLURM_", "SBATCH_", "SACCT_"))
    }
    return subprocess.run(
        [str(word) for word in words], env=env, timeout=LONGEST, capture_output=True, text=True, check=False,
        stdin=subprocess.DEVNULL, **options,
    )  # fmt: skip


def slurm(*words, **options):
    """What a command says that must succeed."""
    done = call(*words, **options)
    assert done.returncode == 0, f"{' '.join(map(str, words))}: {done.stdout}{done.stderr}"
    return done.stdout.strip()


def submit(folder, script, *words):
    """Send a shell script to the queue; what it says is appended to job-NUMBER in the folder, an array's to job-NUMBER_INDEX."""
    words = ("--parsable", "--open-mode=append", f"--chdir={folder}", *words)
    words = (*words, "-o", "job-%A_%a" if any(word.startswith("--array") for word in words) else "job-%j")
    return slurm("sbatch", *words, "--wrap", script)


def states(job):
    """What accounting knows of a job, in order: a state for every time it was started, or for every index of an array."""
    return [
        line.split()[0]
        for line in slurm("sacct", "-X", "-D", "-n", "-P", "-o", "State", "-j", job).splitlines()
        if line
    ]


def wait_until(wanted, what):
    """Until a function gives something true, which comes back."""
    limit = time.monotonic() + LONGEST
    while time.monotonic() < limit:
        if found := wanted():
            return found
        time.sleep(0.2)
    raise AssertionError(f"{what}: not within {LONGEST:.0f} s")


def wait_for(job, *wanted):
    """Until accounting has these states of a job."""
    return wait_until(lambda: states(job) == list(wanted), f"job {job} being {', '.join(wanted)}")
