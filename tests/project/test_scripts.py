"""`scripts/test` runs the tiers that are asked for, and looks at what the repository tracks."""

import hashlib
import shutil
import subprocess

import pytest
from packaging.requirements import Requirement

from tests.support.paths import TOP
from tests.support.tiers import TIERS

TOOL = """#!/bin/sh
[ "$2" != tests.support.tiers ] || { echo "slurm: none answers"; exit; }
echo "$(basename "$0")" "$@" >> called
"""
TWO = "-m pytest -n 2 --dist loadfile --no-loadscope-reorder -m"
THREE = TWO.replace("2", "3")
WAITING = "(contract or wandb) and not process"
ANY = " or ".join(TIERS)


@pytest.fixture
def clone(tmp_path):
    """A clone with stand-ins for the tools, and a file that is not tracked."""
    (tmp_path / "scripts").mkdir()
    for name in ("scripts/test", "scripts/environment", "pyproject.toml", "constraints.txt"):
        shutil.copy(TOP / name, tmp_path / name)
    inputs = b"".join(
        (tmp_path / name).read_bytes()
        for name in ("pyproject.toml", "constraints.txt", "scripts/environment")
    )
    tools = tmp_path / ".venv" / "bin"
    tools.mkdir(parents=True)
    (tmp_path / ".venv" / ".made-from").write_text(f"{hashlib.sha256(inputs).hexdigest()}  -\n")
    for name in ("ruff", "mypy", "python"):
        (tools / name).write_text(TOOL)
        (tools / name).chmod(0o755)
    for name in ("ours.py", "with a space.py", "gone.py"):
        (tmp_path / name).write_text("x = 1\n")
    for words in (["init", "-q"], ["add", "ours.py", "with a space.py", "gone.py"]):
        subprocess.run(["git", *words], cwd=tmp_path, check=True)
    (tmp_path / "spring.py").write_text("import  os\n")
    (tmp_path / "gone.py").unlink()
    return tmp_path


def called(clone, *words):
    """Return the commands that `scripts/test` ran, and what it printed."""
    (clone / "called").unlink(missing_ok=True)
    done = subprocess.run(["scripts/test", *words], cwd=clone, check=True, capture_output=True, text=True)
    return (clone / "called").read_text().splitlines(), done.stdout


def test_files_that_are_not_tracked_are_not_linted_and_do_not_stop_the_tests(clone):
    assert called(clone, "-k", "some")[0] == [
        "ruff check ours.py with a space.py",
        "ruff format --check ours.py with a space.py",
        "mypy",
        f"python {TWO} default or not ({ANY}) -k some",
    ]


def test_tiers_run_by_name_and_what_compares_times_runs_alone(clone):
    assert called(clone, "process", "quiet", "-x")[0][3:] == [
        f"python {THREE} (process or quiet) and not (slurm or quiet) -x",
        "python -m pytest -m (process or quiet) and quiet -x",
    ]


def test_the_contract_computes_while_jobs_wait(clone):
    first, *others = called(clone, "slurm", "contract")[0][3:]
    assert first == (f"python {THREE} (slurm or contract) and not (slurm or quiet or ({WAITING}))")
    assert sorted(others) == [
        "python -m pytest -m (slurm or contract) and slurm and not quiet",
        f"python {THREE} (slurm or contract) and {WAITING} and not (slurm or quiet)",
    ]


def test_all_runs_what_the_machine_can_and_names_the_rest(clone):
    ran, printed = called(clone, "--all")
    assert ran[3:] == [
        f"python {THREE} (not (slurm or none)) and not (slurm or quiet)",
        "python -m pytest -m (not (slurm or none)) and quiet",
    ]
    assert "slurm: none answers" in printed


def test_the_tests_of_a_path_run_whatever_their_tier(clone):
    assert called(clone, "ours.py::test_one", "-x")[0][3:] == ["python -m pytest ours.py::test_one -x"]


@pytest.mark.parametrize("python", ["3.11", "3.12", "3.13"])
def test_every_package_has_one_pin_for_each_python_and_jaxlib_that_of_jax(python):
    lines = [Requirement(line) for line in (TOP / "constraints.txt").read_text().splitlines()]
    pins = [pin for pin in lines if pin.marker is None or pin.marker.evaluate({"python_version": python})]
    versions = {pin.name: str(pin.specifier) for pin in pins}
    assert len(versions) == len(pins) and {pin.name for pin in lines} == set(versions)
    assert all(version.startswith("==") for version in versions.values())
    assert (
        versions["jax"] == versions["jaxlib"] == versions["jax-cuda12-plugin"] == versions["jax-cuda12-pjrt"]
    )
