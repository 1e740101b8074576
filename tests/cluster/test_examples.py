"""Tests of conf/cluster/examples: each example composes without Slurm, and its job scripts equal a golden file.

After an intended change, AD_SCALING_GOLDEN=1 rewrites the golden files.
"""

import os
import re
import sys
from pathlib import Path

import pytest

from tests.support.paths import TOP

EXAMPLES = sorted(path.stem for path in (TOP / "conf" / "cluster" / "examples").glob("*.yaml"))
GOLDEN = Path(__file__).parent / "golden"
STUDY = [
    "run",
    "study=function",
    "workload=poisson",
    "points=[16,32]",
    "mode=jacrev",
    "devices=[1,2,8]",
    "results=here",
]
WITHOUT_SLURM = {"PATH": "/nowhere"}


def job_scripts(done, folder):
    """Return the sbatch scripts that a dry run printed, without the paths of this machine."""
    text = done.stdout[done.stdout.index("#!/bin/bash") :]
    return text.replace(str(folder.resolve()), "FOLDER").replace(sys.executable, "PYTHON").rstrip() + "\n"


def test_there_is_an_example_for_each_kind_of_site():
    assert {"apptainer", "lab", "perlmutter"} <= set(EXAMPLES)


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_dry_run_of_an_example_without_slurm_prints_its_golden_scripts(name, tmp_path, call_main):
    nodes = ["nodes=4"] if name == "lab" else []
    command = [*STUDY, f"cluster=examples/{name}", "dry_run=true", *(f"cluster.{node}" for node in nodes)]
    done = call_main(command, env=WITHOUT_SLURM)
    assert (done.returncode, done.stderr) == (0, "")
    assert not list(tmp_path.glob("here/**"))
    path = GOLDEN / f"{name}.sbatch"
    if os.environ.get("AD_SCALING_GOLDEN") == "1":
        path.write_text(job_scripts(done, tmp_path))
    assert job_scripts(done, tmp_path) == path.read_text()


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_requests_time_gpus_and_cpus_and_sets_the_nccl_interface(name):
    text = (GOLDEN / f"{name}.sbatch").read_text()
    for script in text.split("#!/bin/bash")[1:]:
        assert re.search(r"^#SBATCH --time=\d+$", script, re.MULTILINE)
        assert re.search(r"^#SBATCH --(gres=gpu|gpus-per-node=|gpus-per-task=)", script, re.MULTILINE)
        assert re.search(r"^#SBATCH --cpus-per-task=\d+$", script, re.MULTILINE)
        assert re.search(r"^export NCCL_SOCKET_IFNAME=\w+$", script, re.MULTILINE)
        assert "wckey" not in script


def test_a_dry_run_at_another_site_with_slurm_prints_the_same_scripts(tmp_path, call_main, commands):
    """sinfo lists nodes without the partition of the example."""
    commands(sinfo="echo 'main|n1|1|2|(null)|main*|2|(null)'")
    arguments = [*STUDY, "cluster=examples/lab", "cluster.nodes=4", "dry_run=true"]
    done = call_main(arguments, env={"PATH": f"{tmp_path}/bin:/usr/bin:/bin"})
    assert done.returncode == 0, done.stderr
    assert "unknown cluster.partition 'gpu': choose from main" in done.stderr
    rejected = call_main([*arguments, "cluster.per_node=null"], env={"PATH": f"{tmp_path}/bin:/usr/bin:/bin"})
    assert rejected.returncode == 2


def test_a_dry_run_without_slurm_requires_the_devices_per_node(call_main):
    done = call_main([*STUDY, "cluster=slurm", "cluster.platform=gpu", "dry_run=true"], env=WITHOUT_SLURM)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "a dry run needs no Slurm if cluster.per_node is set" in done.stderr


def test_a_submission_without_slurm_is_rejected(call_main, tmp_path):
    done = call_main([*STUDY, "cluster=examples/lab"], env=WITHOUT_SLURM)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "sinfo is not installed on this host" in done.stderr and not (tmp_path / "here").exists()
