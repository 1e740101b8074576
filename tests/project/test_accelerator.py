"""Tests of scripts/accelerator: it runs with only jax, numpy, the standard library and its own checkout."""

import json
import re
import shutil
import subprocess
import sys

import pytest
from omegaconf import OmegaConf

from scaling.core.case import APIS, BATCHES, DTYPES, MODES, PRECISIONS, SPLITS, module_names
from scaling.results.store import load
from scaling.study.case_rules import complete
from scaling.study.grid import expand_study
from tests.support.commands import command_environment
from tests.support.imported import NOT_IN_THE_WORKER
from tests.support.paths import TOP

pytestmark = pytest.mark.process

STUDY = TOP / "conf" / "study" / "accelerator.yaml"
WORKLOADS = {*module_names("workloads")} - {"ceiling"}


@pytest.fixture
def run_script(tmp_path):
    """Run the script from a copy of the checkout with another version, where of other packages only jax and numpy import."""
    copy, missing = tmp_path / "copy", tmp_path / "missing"
    for name in ("scaling", "scripts", "conf"):
        shutil.copytree(TOP / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    (copy / "scaling" / "__init__.py").write_text('__version__ = "0.0.copy"\n')
    missing.mkdir()
    for name in (*NOT_IN_THE_WORKER, "markupsafe", "yaml", "pytest", "torch"):
        (missing / f"{name}.py").write_text(f"raise ImportError('{name} is not installed')\n")

    def run(*options):
        script = [sys.executable, str(copy / "scripts" / "accelerator")]
        command = [*script, "--small", "--seconds", "0.01", "--results", "here", *options]
        environment = command_environment({"PYTHONPATH": str(missing)})
        return subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120, check=False
        )

    run.copy = copy
    return run


def test_the_study_file_is_the_same_as_yaml_and_as_json():
    assert OmegaConf.to_container(OmegaConf.load(STUDY)) == json.loads(STUDY.read_text())


def test_the_study_contains_every_mode_dtype_precision_and_api():
    cases = [complete(cell.case) for cell in expand_study(json.loads(STUDY.read_text()), {})]
    for field, expected in {
        "mode": MODES, "precision": PRECISIONS, "api": APIS, "batch": BATCHES, "split": SPLITS, "jit": (True, False),
    }.items():  # fmt: skip
        assert {getattr(case, field) for case in cases} == {*expected}, field
    assert {(case.workload, case.dtype) for case in cases} == {
        (name, dtype) for name in WORKLOADS for dtype in DTYPES
    }


def test_the_study_has_no_where_of_its_own():
    study = json.loads(STUDY.read_text())
    assert expand_study(study, {"where": "True"}) == expand_study(study, {}), (
        "a grid has a `where` of its own"
    )


def test_the_device_counts_that_the_help_shows_are_accepted():
    cells = expand_study(json.loads(STUDY.read_text()), {"devices": [1, 2]})
    assert {cell.case.mesh for cell in cells if cell.case.split == "both"} == {"1x1", "2x1", "1x2"}


@pytest.mark.thorough
def test_the_script_runs_from_its_own_checkout_and_resumes(run_script, tmp_path):
    done = run_script("where=api == 'shard_map'")
    assert done.returncode == 0, done.stdout + done.stderr
    records = load(tmp_path / "here").records
    assert {record.case.workload for record in records} == {*WORKLOADS, "ceiling"}
    assert {record.status for record in records} == {"ok"}
    assert {record.environment["versions"]["ad_scaling"] for record in records} == {"0.0.copy"}
    assert max(record.case.points for record in records if record.case.kind == "case") <= 32
    assert done.stdout.splitlines()[-1] == f"{len(records)} ok, 0 skipped, 0 failed"
    assert re.search(r"^matmul .* GFLOP/s$", done.stdout, re.MULTILINE)
    assert "0 cases to run" in run_script("where=api == 'shard_map'").stdout


def test_a_wrong_answer_is_reported_with_its_error_and_fails_the_script(run_script):
    study = {"title": "One case", "grids": [{"workload": "poisson", "mode": "analytic", "points": 8}]}
    (run_script.copy / "conf" / "study" / "accelerator.yaml").write_text(json.dumps(study))
    workload = run_script.copy / "scaling" / "workloads" / "poisson.py"
    assert "lam: c / lam - 1," in workload.read_text()
    workload.write_text(workload.read_text().replace("lam: c / lam - 1,", "lam: c / lam - 2,"))
    done = run_script()
    assert done.returncode == 1
    assert re.search(
        r"^failed: poisson .* wrong_answer: .*\(error \S+, tolerance \S+\)$", done.stdout, re.MULTILINE
    )
    assert done.stdout.splitlines()[-1] == "0 ok, 0 skipped, 1 failed"


@pytest.mark.thin(3, "thorough")
@pytest.mark.parametrize(
    "option",
    [
        pytest.param(f"--results=here/{'x' * 300}", id="a long name"),
        *("--results=copy", "--seconds=nan", "dtype=float23", "devises=1", "dtype", "devices=4096"),
        "where=devices == 4096",
    ],
)
def test_bad_input_is_rejected_in_one_line_before_anything_starts(run_script, tmp_path, option):
    done = run_script(option)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("accelerator: ") and done.stderr.count("\n") == 1
    assert not (tmp_path / "here").exists()
