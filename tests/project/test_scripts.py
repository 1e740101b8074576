"""Tests of scripts/test: it runs the requested tiers and lints only tracked files."""

import hashlib
import os
import shutil
import subprocess
import sys

import pytest
from packaging.requirements import Requirement

from tests.support.paths import TOP
from tests.support.tiers import TIERS

FAKE_TOOL = """#!/bin/sh
[ "$2" != tests.support.tiers ] || { echo "slurm: none answers"; exit; }
echo "$(basename "$0")" "$@" >> called
"""
THREE_WORKERS = "-m pytest -n 3 --dist loadfile --no-loadscope-reorder -m"
FOUR_WORKERS = THREE_WORKERS.replace("3", "4")
NEEDS_TWO_CORES = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
ANY_TIER = " or ".join(TIERS)


@pytest.fixture
def clone(tmp_path):
    """Make a repository with fake tools and an untracked file."""
    (tmp_path / "scripts").mkdir()
    for name in ("scripts/test", "scripts/smoke", "scripts/environment", "pyproject.toml", "constraints.txt"):
        shutil.copy(TOP / name, tmp_path / name)
    dependencies = (tmp_path / "pyproject.toml").read_bytes().partition(b"[tool.")[0]
    others = [(tmp_path / name).read_bytes() for name in ("constraints.txt", "scripts/environment")]
    inputs = b"".join([dependencies, *others, f"{tmp_path}\n".encode()])
    tools = tmp_path / ".venv" / "bin"
    tools.mkdir(parents=True)
    (tmp_path / ".venv" / ".made-from").write_text(f"{hashlib.sha256(inputs).hexdigest()}  -\n")
    for name in ("ruff", "mypy", "python", "scaling"):
        (tools / name).write_text(FAKE_TOOL)
        (tools / name).chmod(0o755)
    python_files = ("ours.py", "with a space.py", "gone.py", "scripts/accelerator")
    for name in python_files:
        (tmp_path / name).write_text("x = 1\n")
    for arguments in (["init", "-q"], ["add", *python_files]):
        subprocess.run(["git", *arguments], cwd=tmp_path, check=True)
    (tmp_path / "spring.py").write_text("import  os\n")
    (tmp_path / "gone.py").unlink()
    return tmp_path


def run_script(clone, *arguments):
    """Return the commands that `scripts/test` ran, and what it printed."""
    (clone / "called").unlink(missing_ok=True)
    done = subprocess.run(["scripts/test", *arguments], cwd=clone, check=True, capture_output=True, text=True)
    return (clone / "called").read_text().splitlines(), done.stdout


def test_tracked_python_files_are_linted_and_untracked_ones_do_not_stop_the_tests(clone):
    assert run_script(clone, "-k", "some")[0] == [
        "ruff check ours.py scripts/accelerator with a space.py",
        "ruff format --check ours.py scripts/accelerator with a space.py",
        "mypy",
        f"python {THREE_WORKERS} default or not ({ANY_TIER}) -k some",
    ]


def test_tiers_run_by_name_and_the_tier_quiet_runs_alone(clone):
    assert run_script(clone, "process", "quiet", "-x")[0][3:] == [
        f"python {FOUR_WORKERS} (process or quiet) and not (slurm or quiet) -x",
        "python -m pytest -m (process or quiet) and quiet -x",
    ]


def test_other_tests_run_while_slurm_jobs_wait_and_those_of_quiet_after_them(clone):
    *together, last = run_script(clone, "slurm", "process", "quiet")[0][3:]
    assert sorted(together) == [
        "python -m pytest -m (slurm or process or quiet) and slurm and not quiet",
        f"python {FOUR_WORKERS} (slurm or process or quiet) and not (slurm or quiet)",
    ]
    assert last == "python -m pytest -m (slurm or process or quiet) and quiet"


def test_all_runs_the_possible_tiers_and_names_the_others(clone):
    commands, printed = run_script(clone, "--all")
    assert commands[3:] == [
        f"python {FOUR_WORKERS} (not (slurm or none)) and not (slurm or quiet)",
        "python -m pytest -m (not (slurm or none)) and quiet",
    ]
    assert "slurm: none answers" in printed


def test_the_default_run_can_be_left_out(clone):
    assert run_script(clone, "--not-default", "process")[0] == [
        f"python {FOUR_WORKERS} ((process) and not default and not thorough) and not (slurm or quiet)"
    ]
    commands, _ = run_script(clone, "--not-default")
    assert commands[0] == (
        f"python {FOUR_WORKERS} ((not (slurm or none)) and not default) and not (slurm or quiet)"
    )


def test_tests_of_a_path_run_whatever_their_tier(clone):
    assert run_script(clone, "ours.py::test_one", "-x")[0][3:] == ["python -m pytest ours.py::test_one -x"]


@pytest.mark.parametrize(
    ("cores", "arguments", "added"),
    [(1, [], "devices=[1] "), (1, ["devices=1"], ""), pytest.param(2, [], "", marks=NEEDS_TWO_CORES)],
)
def test_the_smoke_study_runs_on_a_machine_with_one_core(cores, arguments, added, clone):
    some = sorted(os.sched_getaffinity(0))[:cores]
    command = ["taskset", "-c", ",".join(map(str, some)), "scripts/smoke", *arguments, "points=8"]
    done = subprocess.run(command, cwd=clone, check=True, capture_output=True, text=True)
    words = "".join(f"{argument} " for argument in arguments)
    assert (clone / "called").read_text() == f"scaling run study=smoke {added}{words}points=8\n"
    assert ("may use one CPU core" in done.stdout) == bool(added)


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (["launch", "--bogus"], 2, "takes no arguments, not '--bogus'"),
        (["sparse", "0"], 2, "takes [1-9]"),
        (["sparse", "70"], 0, ""),
        (["trust", "seconds"], 2, "=.*, not 'seconds'"),
        (["trust", "sampling.seconds=0.1"], 0, ""),
    ],
)
def test_a_benchmark_rejects_arguments_that_it_does_not_read(arguments, status, words, clone):
    shutil.copy(TOP / "scripts/bench", clone / "scripts/bench")
    (clone / "scripts/benchmarks").mkdir()
    (clone / "scripts/benchmarks" / f"{arguments[0]}.py").touch()
    done = subprocess.run(
        ["scripts/bench", *arguments], cwd=clone, check=False, capture_output=True, text=True
    )
    assert done.returncode == status and words in done.stderr and not done.stdout
    assert (clone / "called").exists() == (status == 0)


@pytest.mark.parametrize("python", ["3.11", "3.12", "3.13", "3.14"])
def test_every_package_has_one_pin_per_python_and_jaxlib_has_that_of_jax(python):
    lines = [Requirement(line) for line in (TOP / "constraints.txt").read_text().splitlines()]
    pins = [pin for pin in lines if pin.marker is None or pin.marker.evaluate({"python_version": python})]
    versions = {pin.name: str(pin.specifier) for pin in pins}
    assert len(versions) == len(pins) and {pin.name for pin in lines} == set(versions)
    assert all(version.startswith("==") for version in versions.values())
    assert (
        versions["jax"] == versions["jaxlib"] == versions["jax-cuda12-plugin"] == versions["jax-cuda12-pjrt"]
    )


def test_a_changed_setting_of_a_tool_keeps_the_environment_and_a_changed_dependency_does_not(clone):
    pyproject, path = clone / "pyproject.toml", clone / ".venv" / "kept"
    source = ["bash", "-euc", "source scripts/environment"]
    path.touch()
    pyproject.write_text(pyproject.read_text() + "\n[tool.other]\n")
    assert subprocess.run(source, cwd=clone, capture_output=True).returncode == 0
    assert path.exists()
    pyproject.write_text(pyproject.read_text().replace('"numpy', '"numpy >= 1", "numpy', 1))
    makes_none = clone / "python"
    makes_none.write_text('#!/bin/sh\n[ "$1" = -c ] && echo "$0"\n')
    makes_none.chmod(0o755)
    environment = os.environ | {"PYTHON": str(makes_none)}
    process = subprocess.run(source, cwd=clone, env=environment, capture_output=True, text=True)
    assert "install your extras" in process.stdout and not path.exists()


def test_the_path_of_a_clone_may_contain_spaces(clone):
    """pip splits PIP_CONSTRAINT at spaces, as the fake Python does."""
    clone = clone.rename(clone.with_name("with a space"))
    shutil.rmtree(clone / ".venv")
    python = clone / "python"
    python.write_text("""#!/bin/sh
case "$*" in
  -c*) echo "$0" ;;
  *"pip install"*) cat $PIP_CONSTRAINT > constraints ;;
  "-m venv"*) mkdir -p .venv/bin && cp "$0" .venv/bin/python ;;
esac
""")
    python.chmod(0o755)
    command = ["bash", "-euc", "source scripts/environment"]
    subprocess.run(command, cwd=clone, env=os.environ | {"PYTHON": str(python)}, check=True)
    assert (clone / "constraints").read_text() == (clone / "constraints.txt").read_text()


def test_help_of_a_benchmark_needs_no_environment(clone):
    shutil.copytree(TOP / "scripts", clone / "scripts", dirs_exist_ok=True)
    shutil.rmtree(clone / ".venv")
    command = ["scripts/bench", "trust", "--help"]
    process = subprocess.run(command, cwd=clone, capture_output=True, text=True, check=True)
    assert process.stdout.strip() and not (clone / ".venv").exists()


@pytest.mark.parametrize("name", ["extrap", "peers", "plan", "vega"])
def test_a_script_without_arguments_rejects_them_and_explains_itself_before_any_work(name, clone):
    for copied in (name, "no_arguments"):
        shutil.copy(TOP / "scripts" / copied, clone / "scripts" / copied)
    shutil.rmtree(clone / ".venv")
    script = clone / "scripts" / name
    rejected = subprocess.run([script, "--bogus"], capture_output=True, text=True, check=False)
    message = f"scripts/{name} takes no arguments, not '--bogus'\n"
    assert (rejected.returncode, rejected.stdout, rejected.stderr) == (2, "", message)
    explained = subprocess.run([script, "--help"], capture_output=True, text=True, check=True)
    assert explained.stdout.strip() and not explained.stderr
    assert not (clone / ".venv").exists() and not (clone / ".venv-extrap").exists()


@pytest.mark.thorough
def test_an_active_environment_that_is_out_of_date_is_made_anew(clone):
    shutil.rmtree(clone / ".venv")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", ".venv"], cwd=clone, check=True)
    path = f"{clone / '.venv' / 'bin'}{os.pathsep}{os.environ['PATH']}"
    offline = os.environ | {"PATH": path, "PIP_NO_INDEX": "1"}
    subprocess.run(["bash", "-c", "source scripts/environment"], cwd=clone, env=offline, capture_output=True)
    assert (clone / ".venv" / "bin" / "pip").exists()
