"""Laws of publishing without a server: copies that W&B's own reader takes, nothing twice, no path and no secret, honest words."""

import json
import os
import resource
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

import scaling
from scaling.core import store
from scaling.wandb import client_process, publish
from scaling.wandb.publish import publish as published
from scaling.wandb.settings import TrackingSettings
from tests.support import wandb_study
from tests.support.wandb_server import KEY
from tests.support.wandb_study import copies, read_back, record, results, runs_of

pytestmark = pytest.mark.wandb

ROOT = Path(scaling.__file__).parents[1]
OFFLINE = TrackingSettings(mode="offline", tags=("smoke",))


@pytest.fixture(autouse=True)
def environment(monkeypatch, tmp_path):
    wandb_study.clear_environment(monkeypatch, tmp_path)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A folder that was published offline, with a key in the environment, and what publish said."""
    folder = results(tmp_path_factory.mktemp("offline") / "made")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WANDB_API_KEY", KEY)
        return folder, published(folder, OFFLINE)


@pytest.fixture
def copy(made, tmp_path):
    """A copy of the published folder, to be changed."""
    return Path(shutil.copytree(made[0], tmp_path / "made", symlinks=True))


def fake(folder: Path, text: str, monkeypatch) -> None:
    """Put a made-up wandb before the real one, in the other process."""
    package = folder / "fake" / "wandb"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(text)
    monkeypatch.setenv("PYTHONPATH", str(package.parent))


def test_every_row_and_all_of_the_config_is_read_back_by_the_reader_of_wandb(made):
    folder, said = made
    assert said.kept == 3 and said.well
    for run in runs_of(folder):
        lines = read_back(folder, run)
        told = next(line["run"] for line in lines if line["type"] == "run")
        assert run.config.items() <= told["config"]["update"].items()
        assert (told["display_name"], told["run_group"], told["job_type"]) == (
            run.name,
            "made-up",
            run.job_type,
        )
        assert told["tags"] == ["smoke"] and lines[-1]["type"] == "exit"
        summary = {
            k: v for line in lines if line["type"] == "summary" for k, v in line["summary"]["update"].items()
        }
        assert run.summary.items() <= summary.items()
        if run.job_type == "curve":
            history = [line["history"] for line in lines if line["type"] == "history"]
            assert [row["step"]["num"] for row in history] == [row["devices"] for row in run.rows]
            shown = [{k: v for k, v in row["item"].items() if not k.startswith("_")} for row in history]
            assert shown == run.rows
            (metric,) = [line["metric"] for line in lines if line["type"] == "metric"]
            assert (metric["glob_name"], metric["step_metric"]) == ("*", "devices")


def test_the_copy_of_the_study_holds_its_tables_its_figures_and_the_artifact_of_the_records(made):
    folder, _ = made
    run = next(run for run in runs_of(folder) if run.job_type == "study")
    for name, table in run.tables.items():
        (path,) = (folder / "wandb").glob(f"offline-run-*-{run.id}/files/media/table/{name}_*.json")
        assert json.loads(path.read_text())["data"] == table["data"]
    (image,) = (folder / "wandb").glob(f"offline-run-*-{run.id}/files/media/images/**/*.png")
    assert image.read_bytes() == (folder / "report" / "speedup.png").read_bytes()
    staged = [path.read_text() for path in (folder / "wandb" / "staging").rglob("*") if path.is_file()]
    assert "".join(f"{line}\n" for line in run.lines) in staged


def test_publishing_again_to_the_same_place_adds_no_run(copy):
    before = copies(copy)
    said = published(copy, OFFLINE)
    assert (said.kept, said.sent, said.before) == (0, 0, 3) and copies(copy) == before
    assert len(said.lines) == 1 and "nothing new" in said.lines[0]


def test_an_offline_copy_that_was_thrown_away_is_written_again(copy):
    shutil.rmtree(copy / "wandb")
    assert published(copy, OFFLINE).kept == 3


def test_the_copies_that_a_killed_publish_left_are_written_again_and_not_doubled(copy):
    torn = next((copy / "wandb").glob("offline-run-*/*.wandb"))
    torn.write_bytes(torn.read_bytes()[:-20])
    (copy / "wandb.json").unlink()  # it is written at the end
    assert published(copy, OFFLINE).kept == 3 and len(copies(copy)) == 3
    assert all(read_back(copy, run)[-1]["type"] == "exit" for run in runs_of(copy))


def test_changed_rows_make_a_new_copy_and_leave_the_others_alone(copy):
    store.Writer(copy).append(record("jacrev", 4, replicate=1, seconds=[0.011] * 8))
    said = published(copy, OFFLINE)
    assert said.kept == 2 and said.before == 1  # the curve and the study; the other curve is as it was


def test_nothing_that_is_written_holds_a_path_of_this_machine_or_a_key(made):
    folder, _ = made
    told = [str(folder), str(Path.cwd()), str(Path.home()), str(ROOT), sys.prefix, KEY]
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert any(path.suffix == ".wandb" for path in files) and (folder / "wandb.json") in files
    for path in files:
        content = path.read_bytes()
        assert [word for word in told if word.encode() in content] == [], path


def test_wandb_mode_disabled_sends_and_writes_nothing(tmp_path, monkeypatch):
    folder = results(tmp_path / "made")
    monkeypatch.setenv("WANDB_MODE", "disabled")
    said = published(folder, TrackingSettings(mode="online"))
    assert (
        not (folder / "wandb").exists()
        and not (folder / "wandb.json").exists()
        and "disabled" in said.lines[0]
    )


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("import time\ntime.sleep(1000)", "fell silent"),
        ("import os\nos._exit(3)", "died"),
        (
            "raise ModuleNotFoundError(\"No module named 'wandb'\", name='wandb')",
            "the package wandb is not installed",
        ),
    ],
)
def test_a_wandb_that_hangs_dies_or_is_not_there_is_one_line_and_no_exception(
    tmp_path, monkeypatch, text, reason
):
    folder = results(tmp_path / "made")
    fake(tmp_path, text, monkeypatch)
    monkeypatch.setattr(client_process, "_START_SECONDS", 1.0)
    monkeypatch.setattr(client_process, "_GRACE_SECONDS", 1.0)
    begun = time.monotonic()
    said = published(folder, TrackingSettings(mode="offline", timeout=0.5))
    assert time.monotonic() - begun < 30  # the hanging one would take a thousand
    (line,) = said.lines
    assert reason in line and said.failed == 3 and said.kept == 0 and not said.well
    assert f"`scaling publish {folder}` tries again" in line


def test_a_copy_that_was_cut_short_is_noticed(copy):
    from scaling.wandb import sending  # imports wandb

    path = next((copy / "wandb").glob("offline-run-*/*.wandb"))
    assert sending.is_whole(path)
    path.write_bytes(path.read_bytes()[:-20])
    assert not sending.is_whole(path)
    path.write_bytes(b"")
    assert not sending.is_whole(path)


def test_a_full_disk_is_one_line_and_leaves_the_records_and_no_torn_copy(tmp_path):
    folder = results(tmp_path / "made")
    before = {path: path.read_bytes() for path in folder.glob("*.jsonl")}
    command = [str(Path(sys.executable).with_name("scaling")), "publish", str(folder), "--mode", "offline"]
    kept = {name: value for name, value in os.environ.items() if not name.startswith("WANDB_")}

    def full() -> None:  # no file may grow beyond this: the log of a run does
        resource.setrlimit(resource.RLIMIT_FSIZE, (2048, 2048))

    done = subprocess.run(command, capture_output=True, text=True, env=kept, preexec_fn=full, check=False)
    lines = [line for line in done.stdout.splitlines() if line]
    assert done.returncode == 1 and len(lines) == 1 and "could not be kept" in lines[0] and done.stderr == ""
    assert {path: path.read_bytes() for path in folder.glob("*.jsonl")} == before and copies(folder) == []


def test_a_folder_that_cannot_be_published_is_one_line_and_no_exception(tmp_path, monkeypatch):
    folder = results(tmp_path / "made")
    (folder / "wandb").write_text("a file where the directory should be")
    said = published(folder, OFFLINE)
    assert said.failed == 3 and len(said.lines) == 1
    assert len(published(tmp_path / "nothing", OFFLINE).lines) == 1
    monkeypatch.setattr(publish, "tracked_runs", lambda *_, **__: 1 / 0)
    assert "division by zero" in published(folder, OFFLINE).lines[0]


def test_a_folder_that_is_being_published_is_not_published_beside_that(tmp_path, monkeypatch):
    folder = results(tmp_path / "made")
    monkeypatch.setattr(publish, "_LOCK_SECONDS", 0.1)
    with store.locked(folder, ".wandb.lock"):
        said = published(folder, OFFLINE)
    assert "being published already" in said.lines[0] and not (folder / "wandb").exists()
