"""Laws of publishing to a server, by the real client: exactly the rows of the records, once, whatever the server does."""

import itertools
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from scaling.core import store
from scaling.wandb import client_process
from scaling.wandb.publish import publish
from scaling.wandb.settings import TrackingSettings
from tests.support import wandb_server, wandb_study
from tests.support.wandb_server import ENTITY, KEY, serving
from tests.support.wandb_study import brought, copies, record, results, runs_of

pytestmark = pytest.mark.wandb

NOWHERE = "http://127.0.0.1:9"
SETTINGS = TrackingSettings(entity=ENTITY, timeout=5, dashboard=False)


@pytest.fixture
def server(monkeypatch, tmp_path):
    with serving(monkeypatch, tmp_path) as running:
        yield running


@pytest.fixture
def folder(tmp_path):
    return results(tmp_path / "made")


def test_the_server_has_exactly_the_rows_of_the_records_and_the_same_publish_adds_nothing(server, folder):
    said = publish(folder, SETTINGS)
    assert said.well and (said.sent, said.before) == (3, 0) and brought(server, folder)
    address = f"{server.url}/{ENTITY}/ad-scaling"
    assert said.lines == (
        f"W&B: published to {address}, read back and equal: 2 curves new; the study's own run is new",
    )
    before = json.dumps({name: run.node() for name, run in server.runs.items()})
    again = publish(folder, SETTINGS)
    assert (
        again.well
        and (again.sent, again.before, again.superseded) == (0, 3, 0)
        and "2 curves as before" in again.lines[0]
    )
    assert json.dumps({name: run.node() for name, run in server.runs.items()}) == before and brought(
        server, folder
    )
    assert copies(folder) == []  # the server has them: nothing is left on the disk


def test_another_machine_without_our_ledger_adds_nothing(server, folder, tmp_path):
    publish(folder, SETTINGS)
    other = shutil.copytree(
        folder, tmp_path / "elsewhere", ignore=shutil.ignore_patterns("wandb*", ".wandb*")
    )
    said = publish(other, SETTINGS)
    assert (said.sent, said.before) == (0, 3) and len(server.runs) == 3 and brought(server, other)


def test_what_changed_is_a_new_run_and_the_old_one_is_tagged(server, folder):
    publish(folder, SETTINGS)
    old = {run.id for run in runs_of(folder)}
    store.Writer(folder).append(record("jacrev", 4, replicate=1, seconds=[0.011] * 8))
    said = publish(folder, SETTINGS)
    assert (said.sent, said.before, said.superseded) == (2, 1, 2) and brought(server, folder)
    assert "1 curve new, 1 superseded, 1 as before; the study's own run is new" in said.lines[0]
    new = {run.id for run in runs_of(folder)}
    assert {name for name, run in server.runs.items() if "superseded" in run.tags} == old - new
    assert all("_wandb" in run.config for run in server.runs.values())  # what it draws over stays said
    again = publish(folder, SETTINGS)
    assert (again.sent, again.before, again.superseded) == (0, 3, 0) and len(server.runs) == 5


def test_a_curve_that_is_refused_since_is_superseded_as_well(server, tmp_path):
    folder = wandb_study.weak(tmp_path / "grown", (1, 2))
    publish(folder, SETTINGS)
    assert [run.values["kind"] for run in server.of("curve")] == ["weak"]
    store.Writer(folder).append(record("jacfwd", 4, points=128, flops=2e6, compulsory_bytes=200000))
    assert publish(folder, SETTINGS).well
    assert [run for run in server.of("curve") if run.values["kind"] == "weak"] == [] and brought(
        server, folder
    )


def test_the_study_brings_its_figures_its_tables_and_its_records(server, folder):
    publish(folder, SETTINGS)
    (run,) = server.of("study")
    image = next(content for name, content in run.files.items() if name.endswith(".png"))
    assert image == (folder / "report" / "speedup.png").read_bytes()
    for name, table in next(each for each in runs_of(folder) if each.job_type == "study").tables.items():
        (content,) = [
            content for path, content in run.files.items() if path.startswith(f"media/table/{name}_")
        ]
        assert json.loads(content)["data"] == table["data"]
    (kept,) = [kept for kept in server.artifacts.values() if kept["artifactTypeName"] == "records"]
    assert (
        kept["state"] == "COMMITTED"
        and kept["files"]["records.jsonl"] == next(folder.glob("*.jsonl")).read_bytes()
    )


def failing(trouble):
    """Every seventh request goes wrong this way, the first one among them, and so do uploads and history."""
    count = itertools.count()
    return lambda _path: trouble if next(count) % 7 == 0 else None


@pytest.mark.parametrize("trouble", [500, "close", 0.5])
def test_a_server_that_fails_now_and_then_changes_nothing_of_what_arrives(server, folder, trouble):
    server.trouble = failing(trouble)
    assert publish(folder, TrackingSettings(entity=ENTITY, timeout=20, dashboard=False)).well
    assert len(server.runs) == 3 and brought(server, folder)


def test_a_server_that_breaks_down_in_the_middle_costs_nothing_that_the_next_publish_does_not_bring(
    server, folder
):
    server.trouble = lambda _path: "close" if len(server.runs) >= 2 else None
    said = publish(folder, TrackingSettings(entity=ENTITY, timeout=2, dashboard=False))
    assert not said.well and said.kept + said.sent == 3 and len(copies(folder)) == said.kept
    assert len(said.lines) == 1 and f"`scaling publish {folder}` sends them again" in said.lines[0]
    server.trouble = lambda _path: None
    assert publish(folder, SETTINGS).well and brought(server, folder)
    assert publish(folder, SETTINGS).before == 3


def test_rows_that_never_arrive_are_no_success_and_are_sent_again(server, folder):
    server.trouble = lambda path: 404 if path.endswith("file_stream") else None
    said = publish(folder, TrackingSettings(entity=ENTITY, timeout=2, dashboard=False))
    assert not said.well and said.differ == 3 and said.sent == 0
    assert "sent 3 runs, 0 read back as they are, 3 differ: rbf grad_map" in said.lines[0]
    server.trouble = lambda _path: None
    assert publish(folder, SETTINGS).well and brought(server, folder)


@pytest.mark.parametrize("lost", ["/kept", "/artifacts"])
def test_a_file_that_never_arrives_is_no_success_and_is_sent_again(server, folder, lost):
    server.trouble = lambda path: 403 if path.startswith(lost) else None
    said = publish(folder, TrackingSettings(entity=ENTITY, timeout=2, dashboard=False))
    assert not said.well and (said.sent, said.differ) == (2, 1)
    server.trouble = lambda _path: None
    assert publish(folder, SETTINGS).well and brought(server, folder)


def another_row(body):
    part = (body.get("files") or {}).get("wandb-history.jsonl")
    if part:
        rows = [json.loads(line) for line in part["content"]]
        part["content"] = [json.dumps(row | {"seconds": row.get("seconds", 0) * 1.001}) for row in rows]


def no_end(body):
    body.pop("complete", None)


@pytest.mark.parametrize(("change", "differ"), [(another_row, 2), (no_end, 3)])
def test_what_was_changed_on_the_way_is_noticed_and_sent_again(server, folder, change, differ):
    honest = server.stream

    def lie(name, body):
        change(body)
        honest(name, body)

    server.stream = lie
    said = publish(folder, TrackingSettings(entity=ENTITY, timeout=1, dashboard=False))
    assert said.differ == differ and not said.well
    server.stream = honest
    assert publish(folder, SETTINGS).well and brought(server, folder)


def test_of_several_attempts_at_a_run_that_differs_only_the_last_is_not_tagged(server, folder):
    honest = server.stream

    def lie(name, body):
        another_row(body)
        honest(name, body)

    server.stream = lie
    for attempt in (1, 2):
        said = publish(folder, TrackingSettings(entity=ENTITY, timeout=1, dashboard=False))
        assert said.differ == 2 and not said.well
        assert len(server.of("curve")) == 2 and len(server.of("curve", current=False)) == 2 * attempt
    server.stream = honest
    assert publish(folder, SETTINGS).superseded == 2 and brought(server, folder)
    assert publish(folder, SETTINGS).before == 3


def children(process: subprocess.Popen) -> list[int]:
    """Return the processes that a process started."""
    return [
        int(word) for word in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    ]


@pytest.mark.parametrize(("begun", "everything"), [(1, True), (2, False)])
def test_a_killed_publish_is_completed_by_the_next_without_duplicates(server, folder, begun, everything):
    server.trouble = lambda path: 0.3 if path.endswith("file_stream") else 0.05
    command = [
        str(Path(sys.executable).with_name("scaling")),
        "publish",
        "--no-dashboard",
        "--entity",
        ENTITY,
        str(folder),
    ]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    while len(server.runs) < begun:
        assert process.poll() is None
        time.sleep(0.01)
    for one in [process.pid, *(children(process) if everything else [])]:
        os.kill(one, signal.SIGKILL)
    process.wait()
    server.trouble = lambda _path: None
    said = publish(folder, TrackingSettings(entity=ENTITY, timeout=20, dashboard=False))
    assert said.well and said.sent + said.before == 3 and brought(server, folder)
    assert {run.told["displayName"] for run in server.runs.values()} == {run.name for run in runs_of(folder)}
    again = publish(folder, SETTINGS)
    assert again.before == 3 and brought(server, folder) and copies(folder) == []


def test_a_series_of_a_killed_publish_that_is_no_longer_made_is_superseded(server, tmp_path, monkeypatch):
    folder, events = wandb_study.weak(tmp_path / "grown", (1, 2)), client_process.events

    def killed(*words):
        yield from events(*words)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(client_process, "events", killed)
        with pytest.raises(KeyboardInterrupt):
            publish(folder, SETTINGS)
    assert [run.values["kind"] for run in server.of("curve")] == ["weak"]
    store.Writer(folder).append(record("jacfwd", 4, points=128, flops=2e6, hbm_bytes=2e5))
    assert publish(folder, SETTINGS).well and brought(server, folder)


def test_a_run_whose_id_was_deleted_on_the_server_comes_under_another(server, folder):
    server.deleted = {run.id for run in runs_of(folder)[:1]}
    assert publish(folder, SETTINGS).well and brought(server, folder)
    assert publish(folder, SETTINGS).before == 3


def test_one_run_that_the_server_refuses_does_not_stop_the_others(server, folder):
    refused, as_ever = runs_of(folder)[1].id, server.do_UpsertBucket

    def upsert(told):
        if told.get("name") == refused:
            raise ValueError("over the quota")
        return as_ever(told)

    server.do_UpsertBucket = upsert
    said = publish(folder, SETTINGS)
    assert (said.sent, said.kept, said.failed, said.well) == (
        2,
        1,
        0,
        False,
    ) and "over the quota" in " ".join(said.lines)
    server.do_UpsertBucket = as_ever
    assert publish(folder, SETTINGS).well and brought(server, folder)


def test_a_wrong_key_is_one_line_and_everything_is_kept_offline(server, folder):
    server.key = "another" * 8
    said = publish(folder, SETTINGS)
    assert not said.well and (said.sent, said.kept) == (0, 3) and len(said.lines) == 1
    assert "does not accept the key" in said.lines[0] and KEY not in said.lines[0]


def test_a_server_that_cannot_be_reached_costs_its_timeout_and_everything_is_kept_offline(
    server, folder, monkeypatch
):
    monkeypatch.setenv("WANDB_BASE_URL", NOWHERE)
    begun = time.monotonic()
    said = publish(folder, TrackingSettings(timeout=2))
    assert time.monotonic() - begun < 60  # the client would go on for hours
    assert (said.mode, said.sent, said.kept, said.failed, said.well) == ("online", 0, 3, 0, False)
    (line,) = said.lines
    assert (
        f"W&B took nothing (no answer from {NOWHERE} in 2 s); kept 3 runs offline in {folder / 'wandb'};"
        in line
    )
    assert f"`scaling publish {folder}` sends them again" in line and len(copies(folder)) == 3


def test_what_went_there_before_is_not_kept_a_second_time_when_the_server_is_away(server, folder):
    publish(folder, SETTINGS)
    server.trouble = lambda _path: "close"
    said = publish(folder, TrackingSettings(entity=ENTITY, timeout=1, dashboard=False))
    assert not said.well and (said.kept, said.failed) == (0, 0) and copies(folder) == []
    assert (
        len(said.lines) == 1
        and "3 runs went there before and could not be looked at now (no answer" in said.lines[0]
    )


def test_what_was_published_is_not_kept_offline_as_well(server, folder):
    publish(folder, SETTINGS)
    said = publish(folder, TrackingSettings(mode="offline", entity=ENTITY))
    assert (said.kept, said.before, said.failed) == (0, 3, 0) and copies(folder) == []


def test_offline_copies_are_taken_by_wandb_sync_and_not_sent_again_after_that(server, folder):
    assert publish(folder, TrackingSettings(mode="offline", entity=ENTITY)).kept == 3
    command = [str(Path(sys.executable).with_name("wandb")), "sync", *sorted(
        str(path.relative_to(folder)) for path in (folder / "wandb").glob("offline-run-*")
    )]  # fmt: skip
    subprocess.run(command, cwd=folder, capture_output=True, check=True)
    assert brought(server, folder)
    assert [kept["state"] for kept in server.artifacts.values() if kept["artifactTypeName"] == "records"] == [
        "COMMITTED"
    ]
    said = publish(folder, SETTINGS)
    assert (said.sent, said.before) == (0, 3) and len(server.runs) == 3


def test_nothing_that_is_sent_holds_a_path_of_this_machine_or_a_key(server, folder):
    publish(folder, SETTINGS)
    told = [str(folder), str(Path.cwd()), str(Path.home()), sys.prefix, KEY]
    sent = [json.dumps(run.node()) for run in server.runs.values()] + [
        json.dumps(run.rows) for run in server.runs.values()
    ]
    sent += [
        content.decode(errors="replace") for run in server.runs.values() for content in run.files.values()
    ]
    sent += [(folder / "wandb.json").read_text(), *(str(kept) for kept in server.artifacts.values())]
    assert [word for word in told for text in sent if word in text] == []


def test_no_request_holds_a_path_the_host_a_remote_of_git_or_a_key(server, folder):
    remote = "https://someone:hunter22@git.example.org/secret/project.git"
    for words in (["init", "-q"], ["remote", "add", "origin", remote]):
        subprocess.run(["git", *words], cwd=folder.parent, check=True, capture_output=True)
    assert publish(folder, TrackingSettings(entity=ENTITY, timeout=10)).well
    sent = b"\n".join(server.bodies).decode(errors="replace")
    assert "records.jsonl" in sent and "figures/speedup" in sent
    told = [
        str(folder),
        str(Path.cwd()),
        str(Path.home()),
        tempfile.gettempdir() + "/",
        sys.prefix,
        KEY,
        "hunter22",
        "git.example",
    ]
    assert [word for word in told if word in sent] == []
    assert not re.search(rf"\b{re.escape(socket.gethostname())}\b", sent)


def test_the_server_of_these_tests_keeps_every_page_of_a_long_listing(server):
    server.projects.add("p")
    for number in range(5):
        server.runs[str(number)] = wandb_server.Stored(str(number), "p", told={"groupName": "g"})
    first = server.do_Runs({"project": "p", "perPage": 3, "filters": '{"group": "g"}'})["project"]["runs"]
    rest = server.do_Runs({"project": "p", "perPage": 3, "cursor": first["pageInfo"]["endCursor"]})[
        "project"
    ]["runs"]
    assert (len(first["edges"]), first["pageInfo"]["hasNextPage"], len(rest["edges"])) == (3, True, 2)
