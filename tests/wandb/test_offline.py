"""Tests of publishing without a server: offline copies are readable by W&B, unique, and contain no local paths or secrets."""

import dataclasses
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from scaling.core.record import Writer
from scaling.results import store
from scaling.wandb import publish
from scaling.wandb.job import TrackingSettings
from scaling.wandb.publish import publish as published
from tests.support import wandb_study
from tests.support.commands import COMMAND
from tests.support.paths import TOP
from tests.support.wandb_server import KEY
from tests.support.wandb_study import offline_copies, read_back, record, runs_of, states, write_results

pytestmark = pytest.mark.wandb

OFFLINE = TrackingSettings(mode="offline", tags=("smoke",))


@pytest.fixture(autouse=True)
def environment(monkeypatch, tmp_path):
    wandb_study.clear_environment(monkeypatch, tmp_path)


@pytest.fixture(scope="module")
def published_folder(tmp_path_factory):
    """Return a folder that was published offline with a key in the environment, and the outcome."""
    folder = write_results(tmp_path_factory.mktemp("offline") / "made")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WANDB_API_KEY", KEY)
        return folder, published(folder, OFFLINE)


@pytest.fixture
def copy(published_folder, tmp_path):
    """Return a copy of the published folder that the test may change."""
    return Path(shutil.copytree(published_folder[0], tmp_path / "made", symlinks=True))


def test_rows_and_config_of_offline_copies_are_readable_by_wandb(published_folder):
    folder, outcome = published_folder
    assert states(outcome) == {"kept": 4} and outcome.succeeded
    for run in runs_of(folder):
        lines = read_back(folder, run)
        description = next(line["run"] for line in lines if line["type"] == "run")
        assert run.config.items() <= description["config"]["update"].items()
        assert (description["display_name"], description["run_group"], description["job_type"]) == (
            run.name,
            "made-up",
            run.config["kind"],
        )
        assert sorted(description["tags"]) == sorted(["smoke", *run.tags]) and lines[-1]["type"] == "exit"
        summary = {
            k: v for line in lines if line["type"] == "summary" for k, v in line["summary"]["update"].items()
        }
        assert run.summary.items() <= summary.items()
        history = [line["history"]["item"] for line in lines if line["type"] == "history"]
        shown = [{k: v for k, v in row.items() if not k.startswith("_")} for row in history]
        assert shown == run.rows


def test_no_temporary_file_remains(copy, tmp_path, monkeypatch):
    (temporary := tmp_path / "temporary").mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    monkeypatch.setattr(tempfile, "tempdir", None)  # the tempfile module caches the folder
    shutil.rmtree(copy / "wandb")
    assert states(published(copy, OFFLINE)) == {"kept": 4}
    assert not [*temporary.iterdir()]


def test_second_offline_publish_adds_no_run(copy):
    before = offline_copies(copy)
    outcome = published(copy, OFFLINE)
    assert states(outcome) == {"there before": 4}
    assert offline_copies(copy) == before
    assert len(outcome.lines) == 1


def test_deleted_and_truncated_copies_are_written_again_once(copy):
    truncated, deleted, *_ = (copy / "wandb" / name for name in offline_copies(copy))
    (log,) = truncated.glob("*.wandb")
    log.write_bytes(log.read_bytes()[:-20])
    shutil.rmtree(deleted)
    assert states(published(copy, OFFLINE)) == {"kept": 2, "there before": 2}
    assert len(offline_copies(copy)) == 4
    assert all(read_back(copy, run)[-1]["type"] == "exit" for run in runs_of(copy))


def test_publishing_deletes_no_file_that_it_did_not_make(copy, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    files = ["settings", "run-1/a.wandb", "offline-run-1-other/logs/debug.log", "linked/file", "latest-run"]
    (copy / "wandb" / "linked").symlink_to(tmp_path / "elsewhere")
    for path in (copy / "wandb" / name for name in files):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("of the user")
    shutil.rmtree(copy / "wandb" / next(name for name in offline_copies(copy) if len(name) > 30))
    assert states(published(copy, OFFLINE)) == {"kept": 1, "there before": 3}
    assert [(copy / "wandb" / name).read_text() for name in files] == ["of the user"] * len(files)
    copies = {
        name for name in os.listdir(copy / "wandb") if name not in {Path(name).parts[0] for name in files}
    }
    assert len(copies) == 4 and all(name.startswith("offline-run-") for name in copies)


@pytest.mark.parametrize("change", [{"project": "other"}, {"entity": "other", "tags": ("x",)}])
def test_a_copy_for_one_project_entity_and_tags_is_no_copy_for_another(copy, change):
    before = offline_copies(copy)
    assert states(published(copy, dataclasses.replace(OFFLINE, **change))) == {"kept": 4}
    assert set(before) < set(offline_copies(copy)) and len(offline_copies(copy)) == 8


def test_the_client_sees_no_variable_of_wandb_but_account_and_connection(tmp_path, monkeypatch):
    folder = write_results(tmp_path / "made")
    for name in ("NOTES", "HOST", "USERNAME", "RUN_ID", "CONFIG_PATHS", "DIR"):
        monkeypatch.setenv(f"WANDB_{name}", "hunter2")
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy")
    started = {}

    def start(command, **options):
        started.update(options["env"])
        raise OSError("not started")

    monkeypatch.setattr(publish, "ChildProcess", start)
    published(folder, OFFLINE)
    assert [name for name, value in started.items() if value == "hunter2"] == []
    assert started["HTTPS_PROXY"] == "http://proxy" and "WANDB_CONFIG_DIR" in started


def test_changed_rows_make_new_copies_only_of_their_runs(copy):
    Writer(copy).append(record("jacrev", 4, replicate=1, seconds=[0.011] * 8))
    # Only the run of the method and that of the study change.
    assert states(published(copy, OFFLINE)) == {"kept": 2, "there before": 2}


def test_written_files_contain_no_local_path_or_key(published_folder):
    folder, _ = published_folder
    private = [str(folder), str(Path.cwd()), str(Path.home()), str(TOP), sys.prefix, KEY]
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert any(path.suffix == ".wandb" for path in files)
    for path in files:
        assert [word for word in private if word.encode() in path.read_bytes()] == [], path


def test_wandb_mode_disabled_sends_and_writes_nothing(tmp_path, monkeypatch):
    folder = write_results(tmp_path / "made")
    monkeypatch.setenv("WANDB_MODE", "disabled")
    outcome = published(folder, TrackingSettings.from_config({}))
    assert not (folder / "wandb").exists() and outcome.succeeded
    assert outcome.lines == ("W&B: nothing was sent, because the mode is disabled",)


MISSING = "raise ModuleNotFoundError(\"No module named 'wandb'\", name='wandb')"


@pytest.mark.parametrize(
    ("text", "reason"),
    [("import time\ntime.sleep(1000)", "fell silent"), ("import os\nos._exit(3)", "status 3"),
     (MISSING, "No module named 'wandb'")],
)  # fmt: skip
def test_wandb_that_hangs_crashes_or_is_missing_gives_one_line_and_no_exception(
    tmp_path, monkeypatch, text, reason
):
    folder, package = write_results(tmp_path / "made"), tmp_path / "fake" / "wandb"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(text)
    monkeypatch.setenv("PYTHONPATH", str(package.parent))
    for name in ("_START_SECONDS", "_GRACE_SECONDS"):
        monkeypatch.setattr(publish, name, 4.0)
    start = time.monotonic()
    outcome = published(folder, TrackingSettings(mode="offline", timeout=0.5))
    assert time.monotonic() - start < 500  # the hanging package sleeps for 1000 s
    (line,) = outcome.lines
    assert reason in line and states(outcome) == {} and not outcome.succeeded
    assert f"`scaling publish {folder}` tries again" in line


def test_full_disk_gives_one_line_and_leaves_no_incomplete_copy(tmp_path):
    folder = write_results(tmp_path / "made")
    before = {path: path.read_bytes() for path in folder.glob("*.jsonl")}
    command = [str(COMMAND), "publish", str(folder), "--mode", "offline"]
    env = {name: value for name, value in os.environ.items() if not name.startswith("WANDB_")}

    def limit_file_size() -> None:  # the log of a run is larger than this limit
        resource.setrlimit(resource.RLIMIT_FSIZE, (2048, 2048))

    result = subprocess.run(
        command, capture_output=True, text=True, env=env, preexec_fn=limit_file_size, check=False
    )
    lines = [line for line in result.stdout.splitlines() if line]
    assert (result.returncode, result.stderr, len(lines)) == (1, "", 1) and "nothing was sent" in lines[0]
    assert {path: path.read_bytes() for path in folder.glob("*.jsonl")} == before
    assert offline_copies(folder) == []


def test_folder_that_cannot_be_published_gives_one_line_and_no_exception(tmp_path, monkeypatch):
    folder = write_results(tmp_path / "made")
    (folder / "wandb").write_text("a file where the directory should be")
    outcome = published(folder, OFFLINE)
    assert states(outcome) == {} and len(outcome.lines) == 1
    assert len(published(tmp_path / "nothing", OFFLINE).lines) == 1
    monkeypatch.setattr(publish, "study_runs", lambda *_, **__: 1 / 0)
    assert "division by zero" in published(folder, OFFLINE).lines[0]


def test_folder_is_not_published_by_two_processes_at_once(tmp_path, monkeypatch):
    folder = write_results(tmp_path / "made")
    monkeypatch.setattr(publish, "_LOCK_SECONDS", 0.1)
    with store.lock_folder(folder, ".wandb.lock"):
        outcome = published(folder, OFFLINE)
    assert "another run is working in" in outcome.lines[0] and not (folder / "wandb").exists()
