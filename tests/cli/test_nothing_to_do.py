"""A study whose cases all have records starts no process, and rewrites no report whose inputs are the same."""

import json
import subprocess
import sys

import pytest

from scaling.core import store
from scaling.core.case import Case
from scaling.report import freshness
from scaling.study import preflight
from scaling.study.grid import GridCell

MOST_LOADED = 70  # modules of the package
STUDY = "{grids: [{workload: linear, points: [6, 12], api: jit}]}"


@pytest.fixture
def finished(scaling_command, write_study):
    """The words of a study that was run to its end."""
    words = [*write_study(STUDY, name="mine"), "bind=false", "sampling.seconds=0.01", "results=out"]
    assert scaling_command(words).returncode == 0
    return words


def times(folder):
    return {path.name: path.stat().st_mtime_ns for path in (folder / "report").iterdir()}


def test_the_same_command_again_examines_nothing_and_leaves_the_report_alone(
    finished, scaling_command, tmp_path
):
    folder, log = tmp_path / "out", tmp_path / "started"
    before = times(folder)
    (tmp_path / "sitecustomize.py").write_text(
        f"import sys\nprint(sys.orig_argv, file=open({str(log)!r}, 'a'))\n"
    )
    examined = "scaling.study.preflight_process"
    again = scaling_command(finished, env={"PYTHONPATH": str(tmp_path)})
    assert again.returncode == 0 and "0 cases to run, 2 done before" in again.stdout, again.stderr
    assert "2 ok, 0 skipped, 0 failed" in again.stdout
    assert times(folder) == before and not (log.exists() and examined in log.read_text())
    (folder / ".examined.json").unlink()
    assert scaling_command(finished, env={"PYTHONPATH": str(tmp_path)}).returncode == 0
    assert examined in log.read_text()


def test_the_same_command_again_loads_few_modules(finished, tmp_path):
    ask = "import sys; from scaling.cli import main; main.main(sys.argv[1:]); print(*sys.modules, sep='\\n')"
    command = [sys.executable, "-c", ask, *finished[finished.index("run") :]]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    loaded = done.stdout.splitlines()
    assert (
        len([name for name in loaded if name.partition(".")[0] == "scaling"]) <= MOST_LOADED
        and "jax" not in loaded
    )


def test_a_report_is_written_again_when_a_record_is_added_or_a_file_is_missing(
    finished, scaling_command, tmp_path, make_record
):
    folder = tmp_path / "out"
    before = times(folder)
    store.Writer(folder).append(make_record(workload="linear", points=24, api="jit", sizes={}))
    assert scaling_command(["report", "out"]).returncode == 0
    assert times(folder)["index.html"] != before["index.html"]
    digest = freshness.inputs_digest(folder)
    assert freshness.is_current(folder, digest)
    (folder / "report" / "table.md").unlink()
    assert not freshness.is_current(folder, digest)


def test_answers_are_kept_for_the_same_cells_of_built_in_workloads_only(finished, tmp_path, monkeypatch):
    cells = [GridCell(Case("linear", points=6, api="jit"), "strong")]
    assert preflight.cache_key([GridCell(Case("mine.own", points=6), "strong")]) is None
    assert preflight.cache_key([GridCell(Case("linear", points=6, engine="numpy"), "strong")]) is None
    key = preflight.cache_key(cells)
    assert key != preflight.cache_key([GridCell(Case("linear", points=7, api="jit"), "strong")])
    monkeypatch.setenv("JAX_ENABLE_X64", "1")
    assert key != preflight.cache_key(cells)


@pytest.mark.parametrize("damage", ["case", "unfit", "engine"])
def test_damaged_answers_are_asked_for_again(finished, scaling_command, tmp_path, damage):
    path = tmp_path / "out" / ".examined.json"
    kept = json.loads(path.read_text())
    kept["answers"][0][damage] = {"workload": 7}
    path.write_text(json.dumps(kept))
    again = scaling_command(finished)
    assert again.returncode == 0 and "0 cases to run, 2 done before" in again.stdout
    assert json.loads(path.read_text())["answers"][0][damage] != {"workload": 7}
