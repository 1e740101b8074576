"""Laws of publishing to a server, by the real client: exactly the rows of the records, once, whatever the server does."""

import dataclasses
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
from scaling.wandb.publish import publish
from scaling.wandb.settings import TrackingSettings
from tests.support import wandb_server
from tests.support.wandb_server import ENTITY, KEY, serving
from tests.support.wandb_study import brought, copies, record, results, runs_of

pytestmark = pytest.mark.wandb

NOWHERE = "http://127.0.0.1:9"
SETTINGS = TrackingSettings(entity=ENTITY, timeout=5, dashboard=False)
QUICK = dataclasses.replace(SETTINGS, timeout=2)


@pytest.fixture
def server(monkeypatch, tmp_path):
    with serving(monkeypatch, tmp_path) as running:
        yield running


@pytest.fixture
def folder(tmp_path):
    return results(tmp_path / "made")


def states(outcome) -> dict[str, int]:
    values = list(outcome.states.values())
    return {state: values.count(state) for state in sorted(set(values))}


def test_the_server_has_exactly_the_rows_of_the_records_and_the_same_publish_adds_nothing(server, folder):
    outcome = publish(folder, SETTINGS)
    assert outcome.succeeded and states(outcome) == {"published": 4} and brought(server, folder)
    page = f"{server.url}/{ENTITY}/ad-scaling"
    assert outcome.lines == (f"W&B: published to {page}, read back and equal: runs 4 new",)
    before = json.dumps({name: run.node() for name, run in server.runs.items()})
    again = publish(folder, SETTINGS)
    assert again.succeeded and states(again) == {"unchanged": 4} and "runs 4 as before" in again.lines[0]
    assert json.dumps({name: run.node() for name, run in server.runs.items()}) == before
    assert copies(folder) == []  # the server has them: nothing is left on the disk


def test_another_machine_adds_nothing(server, folder, tmp_path):
    publish(folder, SETTINGS)
    other = shutil.copytree(
        folder, tmp_path / "elsewhere", ignore=shutil.ignore_patterns("wandb*", ".wandb*")
    )
    assert states(publish(other, SETTINGS)) == {"unchanged": 4} and brought(server, other)


def test_what_changed_is_a_new_run_and_the_old_one_is_tagged(server, folder):
    publish(folder, SETTINGS)
    old = {run.digest for run in runs_of(folder)}
    store.Writer(folder).append(record("jacrev", 4, replicate=1, seconds=[0.011] * 8))
    outcome = publish(folder, SETTINGS)
    assert states(outcome) == {"published": 2, "unchanged": 2} and brought(server, folder)
    assert "runs 2 new, 2 as before, 2 superseded" in outcome.lines[0]
    new = {run.digest for run in runs_of(folder)}
    tagged = {run.values["digest"] for run in server.runs.values() if "superseded" in run.tags}
    assert tagged == old - new
    assert all("_wandb" in run.config for run in server.runs.values())  # what it draws over stays said
    assert states(publish(folder, SETTINGS)) == {"unchanged": 4} and len(server.runs) == 6


def test_the_study_brings_its_figures_its_tables_and_its_records(server, folder):
    publish(folder, SETTINGS)
    (run,) = server.of("study")
    image = next(content for name, content in run.files.items() if name.endswith(".png"))
    assert image == (folder / "report" / "speedup.png").read_bytes()
    for name, (_, rows) in runs_of(folder)[-1].tables.items():
        (content,) = [
            content for path, content in run.files.items() if path.startswith(f"media/table/{name}_")
        ]
        assert json.loads(content)["data"] == rows
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
    assert publish(folder, dataclasses.replace(SETTINGS, timeout=20)).succeeded
    assert len(server.runs) == 4 and brought(server, folder)


def test_a_server_that_breaks_down_in_the_middle_costs_nothing_that_the_next_publish_does_not_bring(
    server, folder
):
    server.trouble = lambda _path: "close" if len(server.runs) >= 2 else None
    outcome = publish(folder, QUICK)
    assert not outcome.succeeded and len(copies(folder)) == states(outcome).get("kept", 0) > 0
    assert f"`scaling publish {folder}` tries again" in outcome.lines[-1]
    server.trouble = lambda _path: None
    assert publish(folder, SETTINGS).succeeded and brought(server, folder) and copies(folder) == []
    assert states(publish(folder, SETTINGS)) == {"unchanged": 4}


LOST = [("file_stream", 4), ("/kept", 1), ("/artifacts", 1)]


@pytest.mark.parametrize(("lost", "differ"), LOST, ids=["rows", "files", "records"])
def test_what_never_arrives_is_no_success_is_tagged_and_is_sent_again(server, folder, lost, differ):
    server.trouble = lambda path: 403 if lost in path else None
    outcome = publish(folder, QUICK)
    assert not outcome.succeeded and states(outcome)["differs"] == differ and copies(folder) == []
    assert len([run for run in server.runs.values() if "superseded" not in run.tags]) == 4 - differ
    server.trouble = lambda _path: None
    assert publish(folder, SETTINGS).succeeded and brought(server, folder)


def another_row(body):
    part = (body.get("files") or {}).get("wandb-history.jsonl")
    if part:
        rows = [json.loads(line) for line in part["content"]]
        part["content"] = [
            json.dumps({k: v * 1.001 if k.startswith("time/") else v for k, v in row.items()}) for row in rows
        ]


def no_end(body):
    body.pop("complete", None)


@pytest.mark.parametrize(("change", "differ"), [(another_row, 2), (no_end, 4)])
def test_what_was_changed_on_the_way_is_noticed_and_sent_again(server, folder, change, differ):
    honest = server.stream

    def lie(name, body):
        change(body)
        honest(name, body)

    server.stream = lie
    outcome = publish(folder, dataclasses.replace(SETTINGS, timeout=1))
    assert states(outcome)["differs"] == differ and not outcome.succeeded
    server.stream = honest
    assert publish(folder, SETTINGS).succeeded and brought(server, folder)


def test_a_run_that_arrived_late_is_found_by_the_next_publish_and_shown(server, folder):
    server.trouble = lambda path: 3.0 if path.endswith("file_stream") else None
    publish(folder, dataclasses.replace(SETTINGS, timeout=1.5))
    server.trouble = lambda _path: None
    time.sleep(3)
    assert publish(folder, SETTINGS).succeeded and brought(server, folder)


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
    assert publish(folder, dataclasses.replace(SETTINGS, timeout=20)).succeeded and brought(server, folder)
    assert {run.told["displayName"] for run in server.runs.values()} == {run.name for run in runs_of(folder)}
    assert states(publish(folder, SETTINGS)) == {"unchanged": 4} and copies(folder) == []


def test_one_run_that_the_server_refuses_does_not_stop_the_others(server, folder):
    refused, as_ever = runs_of(folder)[1].digest, server.do_UpsertBucket

    def upsert(told):
        if (told.get("name") or "").startswith(refused):
            raise ValueError("over the quota")
        return as_ever(told)

    server.do_UpsertBucket = upsert
    outcome = publish(folder, SETTINGS)
    assert states(outcome) == {"published": 3, "refused": 1} and "over the quota" in outcome.lines[-1]
    server.do_UpsertBucket = as_ever
    assert publish(folder, SETTINGS).succeeded and brought(server, folder)


def test_a_wrong_key_is_said_and_everything_is_kept_offline(server, folder):
    server.key = "another" * 8
    outcome = publish(folder, SETTINGS)
    assert not outcome.succeeded and states(outcome) == {"kept": 4}
    assert "credentials" in " ".join(outcome.lines) and KEY not in " ".join(outcome.lines)


def test_without_a_key_everything_is_kept_offline_and_it_is_well_unless_online_was_asked_for(
    server, folder, monkeypatch
):
    monkeypatch.delenv("WANDB_API_KEY")
    outcome = publish(folder, SETTINGS)
    assert (
        outcome.succeeded
        and outcome.mode == "offline"
        and states(outcome) == {"kept": 4}
        and server.runs == {}
    )
    assert not publish(folder, dataclasses.replace(SETTINGS, mode="online")).succeeded


def test_a_server_that_cannot_be_reached_costs_its_timeout_and_everything_is_kept_offline(
    server, folder, monkeypatch
):
    monkeypatch.setenv("WANDB_BASE_URL", NOWHERE)
    begun = time.monotonic()
    outcome = publish(folder, TrackingSettings(timeout=2))
    assert time.monotonic() - begun < 60  # the client would go on for hours
    assert states(outcome) == {"kept": 4} and not outcome.succeeded and len(copies(folder)) == 4
    kept, reason = outcome.lines
    assert f"kept 4 runs offline in {folder / 'wandb'}" in kept and NOWHERE in reason


def test_what_was_published_is_not_kept_offline_as_well(server, folder):
    publish(folder, SETTINGS)
    outcome = publish(folder, dataclasses.replace(SETTINGS, mode="offline"))
    assert states(outcome) == {"there before": 4} and copies(folder) == []
    server.trouble = lambda _path: "close"
    outcome = publish(folder, dataclasses.replace(SETTINGS, timeout=1))
    assert not outcome.succeeded and states(outcome) == {"there before": 4} and copies(folder) == []


def sync(folder: Path) -> None:
    """Send the offline copies with W&B's own command."""
    command = [
        str(Path(sys.executable).with_name("wandb")),
        "sync",
        *(f"wandb/{name}" for name in copies(folder)),
    ]
    subprocess.run(command, cwd=folder, capture_output=True, check=True)


def test_offline_copies_are_taken_by_wandb_sync_and_not_sent_again_after_that(server, folder):
    assert states(publish(folder, dataclasses.replace(SETTINGS, mode="offline"))) == {"kept": 4}
    sync(folder)
    assert brought(server, folder)
    found = [kept["state"] for kept in server.artifacts.values() if kept["artifactTypeName"] == "records"]
    assert found == ["COMMITTED"]
    assert states(publish(folder, SETTINGS)) == {"unchanged": 4} and len(server.runs) == 4


def test_copies_of_what_was_published_are_removed_and_one_that_is_synced_nevertheless_doubles_no_rows(
    server, folder, tmp_path
):
    publish(folder, dataclasses.replace(SETTINGS, mode="offline"))
    elsewhere = shutil.copytree(folder, tmp_path / "elsewhere", symlinks=True)
    assert publish(folder, SETTINGS).succeeded and copies(folder) == []
    sync(elsewhere)
    assert publish(folder, SETTINGS).succeeded and brought(server, folder)


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
    assert publish(folder, TrackingSettings(entity=ENTITY, timeout=10)).succeeded
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
