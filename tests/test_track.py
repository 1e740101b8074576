"""Laws of the projection onto W&B: nothing twice, never the cost of a study, no path and no secret, honest words."""

import dataclasses
import http.server
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import yaml

from scaling import store
from scaling.case import Case, Refusal
from scaling.reading.curves import curves
from scaling.record import Record
from scaling.tracking import handover, track

KEY = "planted0secret0" * 3  # wandb wants at least 40 characters
NOWHERE = "http://127.0.0.1:9"
ROOT = Path(track.__file__).parents[2]
SECONDS = {1: 0.040, 2: 0.022, 4: 0.013}


@pytest.fixture(autouse=True)
def environment(monkeypatch, tmp_path):
    """No key, no netrc and no settings but those of a test."""
    for name in list(os.environ):
        if name.startswith("WANDB_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("NETRC", str(tmp_path / "no-netrc"))
    monkeypatch.setenv("WANDB_CONFIG_DIR", str(tmp_path / "no-config"))


def record(mode: str, devices: int, **fields) -> Record:
    made_on: dict = {"digest": "e1", "platform": "cpu", "device_kind": "A Processor", "cores": list(range(devices))}
    made_on["versions"] = {"jax": "0.10.2", "numpy": "2.3.1"}
    case = Case("rbf", target="grad_map", sizes={"m": 48}, points=32, mode=mode, devices=devices)
    samples = [SECONDS[devices] * (1 + 0.001 * i) for i in range(8)]
    return Record(case, **{"status": "ok", "environment": made_on, "seconds": samples} | fields)


def results(folder: Path) -> Path:
    """A made-up folder: two curves of three points, one failure with its reason, and a figure."""
    folder.mkdir()
    store.write_json(folder / "study.json", {"study": "made-up", "scaling": ["strong"]})
    writer = store.Writer(folder)
    for mode in ("jacfwd", "jacrev"):
        for devices in SECONDS:
            writer.append(record(mode, devices))
    writer.append(record("linearize", 2, status="failed", reason="wrong_answer", text="off by 0.3", seconds=[]))
    (folder / "report").mkdir()
    from matplotlib.figure import Figure

    Figure(figsize=(1, 0.7)).savefig(folder / "report" / "speedup.png")
    return folder


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    """A folder that was published offline, with a key in the environment, and what publish said."""
    folder = results(tmp_path_factory.mktemp("offline") / "made")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WANDB_API_KEY", KEY)
        return folder, track.publish(folder, track.Settings(mode="offline", tags=("smoke",)))


@pytest.fixture
def copy(published, tmp_path):
    """A copy of the published folder, to be changed."""
    return Path(shutil.copytree(published[0], tmp_path / "made", symlinks=True))


def copies(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "wandb").glob("*run-*"))


def read_back(folder: Path, run: track.Run) -> list[dict]:
    """What W&B's own reader finds in the offline copy of a run."""
    (path,) = (folder / "wandb").glob(f"offline-run-*-{run.id}/*.wandb")
    command = [str(Path(sys.executable).with_name("wandb")), "leet", "inspect", "--json", str(path)]
    return [json.loads(line) for line in subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()]


def config_of(lines: list[dict]) -> dict:
    return next(line["run"] for line in lines if line["type"] == "run")["config"]["update"]


def fake(folder: Path, text: str, monkeypatch) -> None:
    """Put a made-up wandb before the real one, in the other process."""
    package = folder / "fake" / "wandb"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(text)
    monkeypatch.setenv("PYTHONPATH", str(package.parent))


def test_every_row_of_a_curve_is_read_back_by_the_reader_of_wandb(published):
    folder, said = published
    drawn = {curve.name: curve for curve in curves(store.load(folder).records)}
    runs = [run for run in track.plan(folder) if run.job_type == "curve"]
    assert {run.name for run in runs} == set(drawn) and len(runs) == 2 and said.kept == 3
    for run in runs:
        lines = read_back(folder, run)
        history = [line["history"] for line in lines if line["type"] == "history"]
        assert [row["step"]["num"] for row in history] == list(SECONDS)
        for row, point in zip(history, drawn[run.name].points, strict=True):
            told = {k: v for k, v in dataclasses.asdict(point).items() if v is not None}
            assert {k: v for k, v in row["item"].items() if k in told} == told
            assert row["item"]["ideal"] == point.devices
        (metric,) = [line["metric"] for line in lines if line["type"] == "metric"]
        assert (metric["glob_name"], metric["step_metric"]) == ("*", "devices")


def test_a_run_can_be_filtered_by_every_field_of_its_case_and_by_where_it_was_made(published):
    folder, _ = published
    run = next(run for run in track.plan(folder) if "jacrev" in run.name)
    lines = read_back(folder, run)
    config = config_of(lines)
    fields = {name for name in Case.__dataclass_fields__ if name != "devices"}
    assert fields | {"study", "kind", "environment", "device_kind", "versions", "rows", "supersedes"} <= set(config)
    assert config["mode"] == "jacrev" and config["sizes"] == {"m": 48} and config["device_kind"] == "A Processor"
    assert config["study"] == "made-up" and config["environment"] == "e1" and config["versions"]["jax"] == "0.10.2"
    told = next(line["run"] for line in lines if line["type"] == "run")
    assert (told["run_group"], told["job_type"], told["tags"]) == ("made-up", "curve", ["smoke"])


def test_the_run_of_the_study_holds_every_record_the_figures_and_the_counts(published):
    folder, _ = published
    run = next(run for run in track.plan(folder) if run.job_type == "study")
    lines = read_back(folder, run)
    (table_file,) = (folder / "wandb").glob(f"offline-run-*-{run.id}/files/media/table/*.json")
    table = json.loads(table_file.read_text())
    rows = [dict(zip(table["columns"], row, strict=True)) for row in table["data"]]
    for row, made in zip(rows, store.load(folder).records, strict=True):
        assert (row["key"], row["status"], row["text"], row["samples"]) == (made.key, made.status, made.text, len(made.seconds))
    (image,) = (folder / "wandb").glob(f"offline-run-*-{run.id}/files/media/images/**/*.png")
    assert image.read_bytes() == (folder / "report" / "speedup.png").read_bytes()
    summary = {k: v for line in lines if line["type"] == "summary" for k, v in line["summary"]["update"].items()}
    assert {"ok": 6, "failed": 1, "skipped": 0, "cases": 7}.items() <= summary.items()


def test_a_weak_curve_says_its_points_per_device_and_keeps_its_identity_when_a_smaller_device_count_comes(tmp_path):
    folders = []
    for name, counts in (("late", (2, 4)), ("whole", (1, 2, 4))):
        folder = tmp_path / name
        folder.mkdir()
        store.write_json(folder / "study.json", {"study": "made-up", "scaling": ["weak"]})
        writer = store.Writer(folder)
        for devices in counts:
            made = record("jacfwd", devices, flops=1e6, hbm_bytes=2e5)
            writer.append(dataclasses.replace(made, case=dataclasses.replace(made.case, points=32 * devices)))
        folders.append(next(run for run in track.plan(folder) if run.job_type == "curve"))
    late, whole = folders
    assert late.series == whole.series and late.id != whole.id
    assert whole.config["points_per_device"] == 32 and "points" not in whole.config
    assert [row["points"] for row in whole.rows] == [32, 64, 128]


def test_publishing_again_to_the_same_place_adds_no_run(copy):
    before = copies(copy)
    said = track.publish(copy, track.Settings(mode="offline"))
    assert (said.kept, said.sent, said.skipped) == (0, 0, 3) and copies(copy) == before
    assert len(said.lines) == 1 and "nothing new" in said.lines[0]


def test_an_offline_copy_that_was_thrown_away_is_written_again(copy):
    shutil.rmtree(copy / "wandb")
    assert track.publish(copy, track.Settings(mode="offline")).kept == 3


def test_changed_rows_make_a_new_run_that_names_the_one_it_supersedes(copy):
    old = {run.name: run for run in track.plan(copy)}
    writer = store.Writer(copy)
    writer.append(record("jacrev", 4, replicate=1, seconds=[0.011] * 8))
    said = track.publish(copy, track.Settings(mode="offline"))
    assert said.kept == 2 and said.skipped == 1  # the curve and the study; the other curve is as it was
    new = next(run for run in track.plan(copy) if "jacrev" in run.name)
    assert new.id != old[new.name].id
    assert config_of(read_back(copy, new))["supersedes"] == [old[new.name].id]
    assert config_of(read_back(copy, old[new.name]))["supersedes"] == []


def test_a_server_that_cannot_be_reached_costs_its_timeout_and_everything_is_kept_offline(tmp_path, monkeypatch):
    folder = results(tmp_path / "made")
    monkeypatch.setenv("WANDB_BASE_URL", NOWHERE)
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    begun = time.monotonic()
    said = track.publish(folder, track.Settings(timeout=2))
    assert time.monotonic() - begun < 2 + 8
    assert (said.mode, said.sent, said.kept, said.failed) == ("online", 0, 3, 0)
    (line,) = said.lines
    assert f"W&B could not be reached (no answer from {NOWHERE} in 2 s); kept 3 runs offline in {folder / 'wandb'};" in line
    assert f"`scaling publish {folder}` sends them again" in line
    assert len(copies(folder)) == 3 and all(name.startswith("offline-run-") for name in copies(folder))
    for run in track.plan(folder):
        assert read_back(folder, run)[-1]["type"] == "exit"
    assert KEY.encode() not in b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())


def test_nothing_that_is_written_holds_a_path_of_this_machine_or_a_key(published):
    folder, _ = published
    told = [str(folder), str(Path.cwd()), str(Path.home()), str(ROOT), sys.prefix, KEY]
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert any(path.suffix == ".wandb" for path in files) and (folder / "wandb.json") in files
    for path in files:
        content = path.read_bytes()
        assert [word for word in told if word.encode() in content] == [], path


@pytest.mark.parametrize("mode", ["onlin", None, "disabled"])
def test_an_unknown_mode_is_refused_with_those_there_are(mode):
    with pytest.raises(Refusal, match="auto, online, offline"):
        track.Settings.from_config({"name": "wandb", "mode": mode})


BAD = [
    {"projekt": "x"},
    {"project": "a/b"},
    {"project": None},
    {"entity": ""},
    {"timeout": 0},
    {"timeout": "20"},
    {"tags": "one"},
]


@pytest.mark.parametrize("config", BAD)
def test_a_bad_setting_is_refused_by_its_name(config):
    with pytest.raises(Refusal, match=next(iter(config))):
        track.Settings.from_config(config)


def test_a_key_in_a_config_is_refused_without_repeating_it():
    with pytest.raises(Refusal, match="WANDB_API_KEY") as refusal:
        track.Settings.from_config({"api_key": KEY})
    assert KEY not in str(refusal.value)


def test_the_config_file_states_the_defaults():
    config = yaml.safe_load((ROOT / "conf" / "tracking" / "wandb.yaml").read_text())
    assert track.Settings.from_config(config) == track.Settings()
    assert set(config) == {"name"} | {field.name for field in dataclasses.fields(track.Settings)}
    assert yaml.safe_load((ROOT / "conf" / "tracking" / "none.yaml").read_text()) == {"name": "none"}


def test_auto_goes_online_only_with_a_key_for_the_server_in_question(tmp_path, monkeypatch):
    def mode() -> str:
        return track._mode(track.Settings())[0]

    monkeypatch.setenv("WANDB_BASE_URL", "https://wandb.example.org/")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    assert mode() == "offline"
    (tmp_path / "netrc").write_text(f"machine api.wandb.ai login user password {KEY}\n")
    assert mode() == "offline"
    (tmp_path / "netrc").write_text(f"machine wandb.example.org login user password {KEY}\n")
    assert mode() == "online"
    (tmp_path / "netrc").unlink()
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    assert mode() == "online"
    monkeypatch.setenv("WANDB_MODE", "offline")
    assert mode() == "offline" and track._mode(track.Settings(mode="online"))[0] == "offline"


def test_wandb_mode_disabled_sends_and_writes_nothing(tmp_path, monkeypatch):
    folder = results(tmp_path / "made")
    monkeypatch.setenv("WANDB_MODE", "disabled")
    said = track.publish(folder, track.Settings(mode="online"))
    assert not (folder / "wandb").exists() and not (folder / "wandb.json").exists() and "disabled" in said.lines[0]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("import time\ntime.sleep(1000)", "fell silent"),
        ("import os\nos._exit(3)", "died"),
        ("raise ModuleNotFoundError(\"No module named 'wandb'\", name='wandb')", "the package wandb is not installed"),
    ],
)
def test_a_wandb_that_hangs_dies_or_is_not_there_is_one_line_and_no_exception(tmp_path, monkeypatch, text, reason):
    folder = results(tmp_path / "made")
    fake(tmp_path, text, monkeypatch)
    monkeypatch.setattr(handover, "_START_SECONDS", 1.0)
    monkeypatch.setattr(handover, "_GRACE_SECONDS", 1.0)
    begun = time.monotonic()
    said = track.publish(folder, track.Settings(mode="offline", timeout=0.5))
    assert time.monotonic() - begun < 6
    (line,) = said.lines
    assert reason in line and said.failed == 3 and said.kept == 0 and f"`scaling publish {folder}` tries again" in line


def test_a_full_disk_that_cuts_a_copy_short_is_noticed(copy):
    import wandb

    path = next((copy / "wandb").glob("offline-run-*/*.wandb"))
    assert handover._is_whole(wandb, path)
    path.write_bytes(path.read_bytes()[:-20])
    assert not handover._is_whole(wandb, path)
    path.write_bytes(b"")
    assert not handover._is_whole(wandb, path)


FAKE = """
import pathlib
from types import SimpleNamespace
Settings, Image, Table = dict, str, dict
util = SimpleNamespace(get_core_path=lambda: {reader!r})
nothing = lambda *_, **__: None
teardown = nothing

def init(id, mode, **words):
    if mode == "online" and id == {refused!r}:
        raise ValueError("this id was deleted")
    copy = pathlib.Path.cwd() / "wandb" / f"{{mode}}-run-1-{{id}}" / "run.wandb"
    copy.parent.mkdir()
    return SimpleNamespace(
        settings=SimpleNamespace(sync_file=str(copy)), log=nothing, define_metric=nothing, summary={{}}, finish=nothing
    )
"""


def test_one_run_that_the_server_refuses_does_not_stop_the_others(tmp_path, monkeypatch):
    folder = results(tmp_path / "made")
    refused = track.plan(folder)[1]
    reader = tmp_path / "reader"
    reader.write_text('#!/bin/sh\necho \'{"type":"exit"}\'\n')
    reader.chmod(0o755)
    fake(tmp_path, FAKE.format(refused=refused.id, reader=str(reader)), monkeypatch)
    said = track.publish(folder, track.Settings(mode="online"))
    assert (said.sent, said.kept, said.failed) == (2, 1, 0) and "this id was deleted" in " ".join(said.lines)


def test_a_folder_that_cannot_be_published_is_one_line_and_no_exception(tmp_path, monkeypatch):
    folder = results(tmp_path / "made")
    (folder / "wandb").write_text("a file where the directory should be")
    said = track.publish(folder, track.Settings(mode="offline"))
    assert said.failed == 3 and len(said.lines) == 1
    assert len(track.publish(tmp_path / "nothing", track.Settings(mode="offline")).lines) == 1
    monkeypatch.setattr(track, "curves", lambda *_, **__: 1 / 0)
    assert "division by zero" in track.publish(folder, track.Settings(mode="offline")).lines[0]


class Server(http.server.BaseHTTPRequestHandler):
    """As much of W&B's server as a curve and a study need; remembers the rows that each run sent."""

    rows: dict[str, list[dict]]

    def log_message(self, *_):
        pass

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path.endswith("/graphql"):
            return self.answer({"data": self.data(body["query"], body.get("variables") or {})})
        history = body.get("files", {}).get("wandb-history.jsonl", {}).get("content", [])
        self.rows.setdefault(self.path.split("/")[-2], []).extend(json.loads(row) for row in history)
        return self.answer({})

    def do_PUT(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.answer({})

    def data(self, query, told):
        upload = {"id": "f", "uploadUrl": f"http://{self.headers['Host']}/up", "uploadHeaders": [], "name": "n"}
        upload["displayName"] = "records.table.json"
        project = {"id": "p", "name": told.get("project"), "entity": {"id": "e", "name": "someone"}}
        node = upload | {"storagePath": "x", "uploadMultipartUrls": None, "artifact": {"id": "a"}}
        files = [upload | {"name": name} for name in told.get("files", [])]
        bucket = {"id": "x", "name": told.get("name"), "config": "{}", "project": project}
        artifact = {"id": "a", "state": "PENDING", "artifactSequence": {"id": "s", "latestArtifact": None}}
        answers = {
            "upsertBucket": {"bucket": bucket, "inserted": True},
            "createRunFiles": {"runID": "x", "uploadHeaders": [], "files": files},
            "createArtifactManifest": {"artifactManifest": {"id": "m", "file": upload}},
            "createArtifactFiles": {"files": {"edges": [{"node": node}]}},
            "createArtifact": {"artifact": artifact},
            "commitArtifact": {"artifact": {"id": "a", "digest": "d"}},
        }
        name = next((name for name in answers if f"{name}(" in query), None)
        if name:
            return {name: answers[name]}
        if "ArtifactType" in query:
            return {"project": {"artifact": None}}
        return {"viewer": {"id": "v", "entity": "someone", "flags": "{}", "teams": {"edges": []}}} if "viewer" in query else {}

    def answer(self, value):
        body = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@pytest.fixture
def server(monkeypatch):
    """The rows that a W&B server on this machine was sent, by run."""
    rows: dict[str, list[dict]] = {}
    handler = type("Handler", (Server,), {"rows": rows})
    running = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=running.serve_forever, daemon=True).start()
    monkeypatch.setenv("WANDB_BASE_URL", f"http://127.0.0.1:{running.server_port}")
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    yield rows
    running.shutdown()


def test_offline_copies_do_not_stop_a_later_online_publish_and_that_one_is_sent_once(copy, server):
    offline = copies(copy)
    said = track.publish(copy, track.Settings(entity="someone"))
    address = f"{os.environ['WANDB_BASE_URL']}/someone/ad-scaling"
    assert (said.mode, said.sent, said.kept, said.failed, said.reason) == ("online", 3, 0, 0, None)
    assert said.lines == (f"W&B: sent 3 runs to {address} (not read back)",)
    assert set(offline) <= set(copies(copy))
    for run in track.plan(copy):
        if run.job_type == "curve":
            assert [{k: v for k, v in row.items() if not k.startswith("_")} for row in server[run.id]] == run.rows
    sent = json.dumps(server)
    again = track.publish(copy, track.Settings(entity="someone"))
    assert (again.sent, again.skipped) == (0, 3) and json.dumps(server) == sent and address in again.lines[0]
    assert KEY not in (copy / "wandb.json").read_text() and urlsplit(address).netloc in (copy / "wandb.json").read_text()


def test_a_password_in_the_address_of_the_server_is_never_written(monkeypatch):
    monkeypatch.setenv("WANDB_BASE_URL", "https://user:hunter22@wandb.example.org")
    assert track._place(track.Settings(), "online")["base_url"] == "https://wandb.example.org"


def test_importing_track_starts_neither_jax_nor_wandb():
    ask = "import sys, scaling.tracking.track; print([name for name in ('jax', 'wandb') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.strip() == "[]"
