"""Laws of publishing without a server: copies that W&B's own reader takes, nothing twice, no path and no secret, honest words."""

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
from scaling.wandb import process, publish
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
    """A folder that was published offline, with a key in the environment, and the outcome."""
    folder = results(tmp_path_factory.mktemp("offline") / "made")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WANDB_API_KEY", KEY)
        return folder, published(folder, OFFLINE)


@pytest.fixture
def copy(made, tmp_path):
    """A copy of the published folder, to be changed."""
    return Path(shutil.copytree(made[0], tmp_path / "made", symlinks=True))


def states(outcome) -> dict[str, int]:
    values = list(outcome.states.values())
    return {state: values.count(state) for state in sorted(set(values))}


def test_every_row_and_all_of_the_config_is_read_back_by_the_reader_of_wandb(made):
    folder, outcome = made
    assert states(outcome) == {"kept": 4} and outcome.succeeded and outcome.mode == "offline"
    for run in runs_of(folder):
        lines = read_back(folder, run)
        about = next(line["run"] for line in lines if line["type"] == "run")
        assert run.config.items() <= about["config"]["update"].items()
        assert (about["display_name"], about["run_group"], about["job_type"]) == (
            run.name,
            "made-up",
            run.job_type,
        )
        assert sorted(about["tags"]) == sorted(["smoke", *run.tags]) and lines[-1]["type"] == "exit"
        summary = {
            k: v for line in lines if line["type"] == "summary" for k, v in line["summary"]["update"].items()
        }
        assert run.summary.items() <= summary.items()
        history = [line["history"]["item"] for line in lines if line["type"] == "history"]
        shown = [{k: v for k, v in row.items() if not k.startswith("_")} for row in history]
        assert shown[: len(run.rows)] == run.rows and len(shown) == len(run.rows) + bool(run.tables)


def test_the_copy_of_the_study_holds_its_tables_its_figures_and_the_artifact_of_the_records(made):
    folder, _ = made
    run = runs_of(folder)[-1]
    for name, (_, rows) in run.tables.items():
        (path,) = (folder / "wandb").glob(f"offline-run-*-{run.digest}-*/files/media/table/{name}_*.json")
        assert store.read_json(path)["data"] == rows
    (image,) = (folder / "wandb").glob(f"offline-run-*-{run.digest}-*/files/media/images/**/*.png")
    assert image.read_bytes() == (folder / "report" / "speedup.png").read_bytes()
    staged = [path.read_text() for path in (folder / "wandb" / "staging").rglob("*") if path.is_file()]
    assert "".join(f"{line}\n" for line in run.lines) in staged


def test_publishing_again_to_the_same_place_adds_no_run(copy):
    before = copies(copy)
    outcome = published(copy, OFFLINE)
    assert states(outcome) == {"there before": 4} and copies(copy) == before and len(outcome.lines) == 1


def test_copies_that_were_thrown_away_or_torn_are_written_again_and_not_doubled(copy):
    torn, gone, *_ = (copy / "wandb" / name for name in copies(copy))
    (log,) = torn.glob("*.wandb")
    log.write_bytes(log.read_bytes()[:-20])
    shutil.rmtree(gone)
    assert states(published(copy, OFFLINE)) == {"kept": 2, "there before": 2} and len(copies(copy)) == 4
    assert all(read_back(copy, run)[-1]["type"] == "exit" for run in runs_of(copy))


def test_changed_rows_make_a_new_copy_and_leave_the_others_alone(copy):
    store.Writer(copy).append(record("jacrev", 4, replicate=1, seconds=[0.011] * 8))
    assert states(published(copy, OFFLINE)) == {"kept": 2, "there before": 2}  # the method and the study


def test_nothing_that_is_written_holds_a_path_of_this_machine_or_a_key(made):
    folder, _ = made
    private = [str(folder), str(Path.cwd()), str(Path.home()), str(ROOT), sys.prefix, KEY]
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert any(path.suffix == ".wandb" for path in files) and (folder / "wandb.json") in files
    for path in files:
        assert [word for word in private if word.encode() in path.read_bytes()] == [], path


def test_wandb_mode_disabled_sends_and_writes_nothing(tmp_path, monkeypatch):
    folder = results(tmp_path / "made")
    monkeypatch.setenv("WANDB_MODE", "disabled")
    outcome = published(folder, TrackingSettings.from_config({"mode": "online"}))
    assert not (folder / "wandb").exists() and not (folder / "wandb.json").exists() and outcome.succeeded
    assert outcome.lines == ("W&B: nothing was sent, WANDB_MODE is disabled",)


MISSING = "raise ModuleNotFoundError(\"No module named 'wandb'\", name='wandb')"


@pytest.mark.parametrize(
    ("text", "reason"),
    [("import time\ntime.sleep(1000)", "fell silent"), ("import os\nos._exit(3)", "died"),
     (MISSING, "No module named 'wandb'")],
)  # fmt: skip
def test_a_wandb_that_hangs_dies_or_is_not_there_is_one_line_and_no_exception(
    tmp_path, monkeypatch, text, reason
):
    folder, package = results(tmp_path / "made"), tmp_path / "fake" / "wandb"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(text)
    monkeypatch.setenv("PYTHONPATH", str(package.parent))
    for name in ("_START_SECONDS", "_GRACE_SECONDS"):
        monkeypatch.setattr(process, name, 4.0)
    began = time.monotonic()
    outcome = published(folder, TrackingSettings(mode="offline", timeout=0.5))
    assert time.monotonic() - began < 60  # the hanging one would take a thousand
    (line,) = outcome.lines
    assert reason in line and states(outcome) == {"lost": 4} and not outcome.succeeded
    assert f"`scaling publish {folder}` tries again" in line


def test_a_full_disk_is_one_line_and_leaves_the_records_and_no_torn_copy(tmp_path):
    folder = results(tmp_path / "made")
    before = {path: path.read_bytes() for path in folder.glob("*.jsonl")}
    command = [str(Path(sys.executable).with_name("scaling")), "publish", str(folder), "--mode", "offline"]
    kept = {name: value for name, value in os.environ.items() if not name.startswith("WANDB_")}

    def full() -> None:  # no file may grow beyond this: the log of a run does
        resource.setrlimit(resource.RLIMIT_FSIZE, (2048, 2048))

    done = subprocess.run(command, capture_output=True, text=True, env=kept, preexec_fn=full, check=False)
    lines = [line for line in done.stdout.splitlines() if line]
    assert done.returncode == 1 and len(lines) == 1 and "nothing was sent" in lines[0] and done.stderr == ""
    assert {path: path.read_bytes() for path in folder.glob("*.jsonl")} == before and copies(folder) == []


def test_a_folder_that_cannot_be_published_is_one_line_and_no_exception(tmp_path, monkeypatch):
    folder = results(tmp_path / "made")
    (folder / "wandb").write_text("a file where the directory should be")
    outcome = published(folder, OFFLINE)
    assert states(outcome) == {"lost": 4} and len(outcome.lines) == 1
    assert len(published(tmp_path / "nothing", OFFLINE).lines) == 1
    monkeypatch.setattr(publish, "study_runs", lambda *_, **__: 1 / 0)
    assert "division by zero" in published(folder, OFFLINE).lines[0]


def test_a_folder_that_is_being_published_is_not_published_beside_that(tmp_path, monkeypatch):
    folder = results(tmp_path / "made")
    monkeypatch.setattr(publish, "_LOCK_SECONDS", 0.1)
    with store.locked(folder, ".wandb.lock"):
        outcome = published(folder, OFFLINE)
    assert "another run is working in" in outcome.lines[0] and not (folder / "wandb").exists()
