"""Tests of repeated runs: a complete study starts no preflight process and does not rewrite an up-to-date report."""

import json
import os
import shutil
import subprocess
import sys

import pytest

from scaling.core.case import Case
from scaling.core.record import Writer
from scaling.report import terminal
from scaling.study import preflight
from scaling.study.grid import GridCell
from tests.support.commands import COMMAND, COMMAND_TIMEOUT, QUICK, command_environment

MAX_LOADED = 70  # modules of the package
STUDY = "{grids: [{workload: linear, points: [6, 12], api: jit}]}"
ARGUMENTS = ("run", "--config-dir", "my_conf", "study=mine", *QUICK, "bind=false", "results=out")


@pytest.fixture(scope="module")
def folder_of_completed(loaded_command, tmp_path_factory):
    """Run a study to completion once and return its folder."""
    folder = tmp_path_factory.mktemp("completed")
    (folder / "my_conf" / "study").mkdir(parents=True)
    (folder / "my_conf" / "study" / "mine.yaml").write_text(STUDY)
    done = loaded_command.run([str(COMMAND), *ARGUMENTS], folder, command_environment(), COMMAND_TIMEOUT)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture
def completed(folder_of_completed, tmp_path):
    """Copy the folder of the completed study and return the arguments of its command."""
    shutil.copytree(folder_of_completed, tmp_path, dirs_exist_ok=True)
    return [*ARGUMENTS]


def report_mtimes(folder):
    return {path.name: path.stat().st_mtime_ns for path in (folder / "report").iterdir()}


def test_repeating_a_complete_run_skips_the_preflight_and_keeps_the_report(
    completed, scaling_command, tmp_path
):
    folder, log = tmp_path / "out", tmp_path / "started"
    before = report_mtimes(folder)
    (tmp_path / "sitecustomize.py").write_text(
        f"import sys\nprint(sys.orig_argv, file=open({str(log)!r}, 'a'))\n"
    )
    preflight_module = "scaling.study.preflight_process"
    again = scaling_command(completed, env={"PYTHONPATH": str(tmp_path)})
    assert again.returncode == 0 and "0 cases to run, 2 already done" in again.stdout, again.stderr
    assert "2 ok, 0 skipped, 0 failed" in again.stdout
    assert report_mtimes(folder) == before and not (log.exists() and preflight_module in log.read_text())
    (folder / ".examined.json").unlink()
    assert scaling_command(completed, env={"PYTHONPATH": str(tmp_path)}).returncode == 0
    assert preflight_module in log.read_text()


def test_repeating_a_complete_run_loads_few_modules(completed, tmp_path):
    code = "import sys; from scaling.cli import main; main.main(sys.argv[1:]); print(*sys.modules, sep='\\n')"
    command = [sys.executable, "-c", code, *completed[completed.index("run") :]]
    done = subprocess.run(
        command, cwd=tmp_path, env=command_environment(), capture_output=True, text=True, check=True
    )
    loaded = done.stdout.splitlines()
    assert len([name for name in loaded if name.partition(".")[0] == "scaling"]) <= MAX_LOADED
    assert "jax" not in loaded


def test_an_unchanged_report_is_printed_again_without_reading_the_records(
    completed, scaling_command, tmp_path
):
    first = scaling_command(["report", "out", "efficiency=0.6"])
    code = "import sys; from scaling.cli import main; main.main(['report', 'out', 'efficiency=0.6'])"
    code += "; assert not any(name.startswith('scaling.analysis') for name in sys.modules), sys.modules"
    again = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=command_environment(), capture_output=True, text=True
    )
    assert again.returncode == 0, again.stderr
    assert again.stdout == first.stdout and "2 ok, 0 skipped, 0 failed" in first.stdout


def test_a_report_is_rewritten_if_a_record_was_added_or_a_file_is_truncated_or_missing(
    completed, scaling_command, tmp_path, make_record
):
    folder = tmp_path / "out"
    before = report_mtimes(folder)
    Writer(folder).append(make_record(workload="linear", points=24, api="jit", sizes={}))
    assert scaling_command(["report", "out"]).returncode == 0
    assert report_mtimes(folder)["index.html"] != before["index.html"]
    digest = terminal.inputs_digest(folder)
    assert terminal.load_saved_output(folder, digest)
    os.truncate(folder / "report" / "index.html", 1000)  # as after an interrupted copy of the folder
    assert not terminal.load_saved_output(folder, digest)
    assert scaling_command(["report", "out"]).returncode == 0
    assert terminal.load_saved_output(folder, digest)
    (folder / "report" / "table.md").unlink()
    assert not terminal.load_saved_output(folder, digest)


def test_a_report_is_outdated_after_a_change_of_a_template_or_style_sheet(tmp_path, monkeypatch):
    monkeypatch.setattr(terminal, "__file__", str(tmp_path / "terminal.py"))
    digests = set()
    for name in ("page.css", "page.js", "page.html.jinja"):
        digests.add(terminal.inputs_digest(tmp_path / "out"))
        (tmp_path / name).write_text("body {}")
    assert len(digests | {terminal.inputs_digest(tmp_path / "out")}) == 4


def test_preflight_results_are_cached_per_case_for_built_in_workloads_only(monkeypatch):
    cells = [GridCell(Case("linear", points=6, api="jit"), "strong")]
    assert preflight.cache_key([GridCell(Case("mine.own", points=6), "strong")]) is None
    assert preflight.cache_key([GridCell(Case("linear", points=6, engine="autograd"), "strong")]) is None
    key = preflight.cache_key(cells)
    assert key != preflight.cache_key([GridCell(Case("linear", points=7, api="jit"), "strong")])
    monkeypatch.setenv("JAX_ENABLE_X64", "1")
    assert key != preflight.cache_key(cells)


def test_damaged_cached_preflight_results_are_recomputed(completed, scaling_command, tmp_path):
    path = tmp_path / "out" / ".examined.json"
    cached = json.loads(path.read_text())
    cached["answers"][0]["case"] = {"workload": 7}
    path.write_text(json.dumps(cached))
    again = scaling_command(completed)
    assert again.returncode == 0 and "0 cases to run, 2 already done" in again.stdout
    assert json.loads(path.read_text())["answers"][0]["case"] != {"workload": 7}
