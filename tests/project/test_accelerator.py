"""The accelerator check runs on a bare node: from jax, numpy, the standard library, and the checkout that it stands in."""

import json
import re
import shutil
import subprocess
import sys

import pytest
from omegaconf import OmegaConf

from scaling.core.case import APIS, BATCHES, DTYPES, MODES, PRECISIONS, SPLITS, built_in
from scaling.core.store import load
from scaling.study.completion import complete
from scaling.study.grid import expand_study
from tests.support.commands import command_environment
from tests.support.imported import NOT_IN_THE_WORKER
from tests.support.paths import TOP

pytestmark = pytest.mark.process

STUDY = TOP / "conf" / "study" / "accelerator.yaml"
WORKLOADS = {*built_in("workloads")} - {"ceiling"}


@pytest.fixture
def bare(tmp_path):
    """The script in a copy of the checkout that calls itself another version, where nothing but jax and numpy can be imported."""
    copy, missing = tmp_path / "copy", tmp_path / "missing"
    for name in ("scaling", "scripts", "conf"):
        shutil.copytree(TOP / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    (copy / "scaling" / "__init__.py").write_text('__version__ = "0.0.copy"\n')
    missing.mkdir()
    for name in (*NOT_IN_THE_WORKER, "yaml", "pytest", "torch"):
        (missing / f"{name}.py").write_text(f"raise ImportError('{name} is not installed')\n")

    def run(*words):
        command = [
            sys.executable,
            str(copy / "scripts" / "accelerator"),
            "--small",
            "--seconds",
            "0.01",
            "--results",
            "here",
            *words,
        ]
        environment = command_environment({"PYTHONPATH": str(missing)})
        return subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120, check=False
        )

    run.copy = copy
    return run


def test_hydra_reads_the_same_study_as_a_machine_without_a_reader_of_yaml():
    assert OmegaConf.to_container(OmegaConf.load(STUDY)) == json.loads(STUDY.read_text())


def test_the_study_has_every_mode_dtype_precision_and_way_to_call():
    cases = [complete(cell.case) for cell in expand_study(json.loads(STUDY.read_text()), {})]
    for field, every in {
        "mode": MODES, "precision": PRECISIONS, "api": APIS, "batch": BATCHES, "split": SPLITS, "jit": (True, False),
    }.items():  # fmt: skip
        assert {getattr(case, field) for case in cases} == {*every}, field
    assert {(case.workload, case.dtype) for case in cases} == {
        (name, dtype) for name in WORKLOADS for dtype in DTYPES
    }


def test_where_is_left_to_the_command_line():
    study = json.loads(STUDY.read_text())
    assert expand_study(study, {"where": "True"}) == expand_study(study, {}), (
        "a grid excludes something of its own"
    )


def test_it_runs_from_its_own_checkout_with_jax_and_numpy_alone_and_goes_on_where_it_was(bare, tmp_path):
    done = bare("where=api == 'shard_map'")
    assert done.returncode == 0, done.stdout + done.stderr
    records = load(tmp_path / "here").records
    assert {record.case.workload for record in records} == {*WORKLOADS, "ceiling"}
    assert {record.status for record in records} == {"ok"}
    assert {record.environment["versions"]["ad_scaling"] for record in records} == {"0.0.copy"}
    assert max(record.case.points for record in records if record.case.kind == "case") <= 32
    assert done.stdout.splitlines()[-1] == f"{len(records)} ok, 0 skipped, 0 failed"
    assert re.search(r"^matmul .* GFLOP/s$", done.stdout, re.MULTILINE)
    assert "0 cases to run" in bare("where=api == 'shard_map'").stdout


def test_a_wrong_answer_is_told_with_its_error_and_fails_the_check(bare, tmp_path):
    study = {"title": "One case", "grids": [{"workload": "poisson", "mode": "analytic", "points": 8}]}
    (bare.copy / "conf" / "study" / "accelerator.yaml").write_text(json.dumps(study))
    workload = bare.copy / "scaling" / "workloads" / "poisson.py"
    assert "lam: c / lam - 1," in workload.read_text()
    workload.write_text(workload.read_text().replace("lam: c / lam - 1,", "lam: c / lam - 2,"))
    done = bare()
    assert done.returncode == 1
    assert re.search(
        r"^failed: poisson .* wrong_answer: .*\(error \S+, tolerance \S+\)$", done.stdout, re.MULTILINE
    )
    assert done.stdout.splitlines()[-1] == "0 ok, 0 skipped, 1 failed"


@pytest.mark.parametrize(
    "word", ["dtype=float23", "devises=1", "dtype", "devices=4096", "where=devices == 4096"]
)
def test_bad_input_is_refused_in_one_line_before_anything_starts(bare, tmp_path, word):
    done = bare(word)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("accelerator: ") and done.stderr.count("\n") == 1
    assert not (tmp_path / "here").exists()
