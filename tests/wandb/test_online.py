"""Tests of publishing to a server with the real client: the server gets exactly the rows of the records, once, despite errors."""

import copy
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

from scaling.core.record import Writer
from scaling.wandb.job import TrackingSettings
from scaling.wandb.publish import publish
from tests.support import wandb_server
from tests.support.commands import COMMAND
from tests.support.wandb_server import ENTITY, KEY, run_server
from tests.support.wandb_study import is_published, offline_copies, record, runs_of, states, write_results

pytestmark = pytest.mark.wandb

NOWHERE = "http://127.0.0.1:9"
SETTINGS = TrackingSettings(entity=ENTITY, timeout=5, dashboard=False)
QUICK = dataclasses.replace(SETTINGS, timeout=2)
REMOTE = "https://someone:hunter22@git.example.org/secret/project.git"


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    """Publish a folder in a Git repository once; return the server, the folder and the outcome, which no test may change."""
    folder = tmp_path_factory.mktemp("published")
    for arguments in (["init", "-q"], ["remote", "add", "origin", REMOTE]):
        subprocess.run(["git", *arguments], cwd=folder, check=True, capture_output=True)
    with pytest.MonkeyPatch.context() as patch, run_server(patch, folder) as server:
        made = write_results(folder / "made")
        yield server, made, publish(made, TrackingSettings(entity=ENTITY, timeout=5))


@pytest.fixture
def published_copy(published, server, tmp_path):
    """Return a server that has all that was published, and a copy of the folder. A test may change both."""
    original, made, _ = published
    for name in ("runs", "views", "projects"):
        setattr(server, name, copy.deepcopy(getattr(original, name)))
    return server, Path(shutil.copytree(made, tmp_path / "made"))


def test_server_gets_exactly_the_rows_of_the_records_and_a_second_publish_adds_none(published):
    server, folder, outcome = published
    assert outcome.succeeded and states(outcome) == {"published": 4} and is_published(server, folder)
    page = f"{server.url}/{ENTITY}/ad-scaling"
    assert outcome.lines[0] == f"W&B: published to {page}, read back and equal: runs 4 new"
    before = json.dumps({name: run.node() for name, run in server.runs.items()})
    again = publish(folder, SETTINGS)
    assert again.succeeded and states(again) == {"unchanged": 4} and "runs 4 as before" in again.lines[0]
    assert json.dumps({name: run.node() for name, run in server.runs.items()}) == before
    assert offline_copies(folder) == []  # all runs are on the server, so no offline copy remains


def test_publishing_the_same_records_from_another_machine_adds_nothing(published, tmp_path):
    server, folder, _ = published
    ignored = shutil.ignore_patterns("wandb*", ".wandb*")
    other = shutil.copytree(folder, tmp_path / "elsewhere" / folder.name, ignore=ignored)
    assert states(publish(other, SETTINGS)) == {"unchanged": 4} and is_published(server, other)


def test_changed_rows_make_new_runs_and_tag_the_old_ones_superseded(published_copy):
    server, folder = published_copy
    old_digests = {run.digest for run in runs_of(folder)}
    Writer(folder).append(record("jacrev", 4, replicate=1, seconds=[0.011] * 8))
    outcome = publish(folder, SETTINGS)
    assert states(outcome) == {"published": 2, "unchanged": 2} and is_published(server, folder)
    assert "runs 2 new, 2 as before, 2 superseded" in outcome.lines[0]
    new_digests = {run.digest for run in runs_of(folder)}
    tagged = {run.values["digest"] for run in server.runs.values() if "superseded" in run.tags}
    assert tagged == old_digests - new_digests
    assert all("_wandb" in run.config for run in server.runs.values())  # the x axes of its metrics are kept
    assert states(publish(folder, SETTINGS)) == {"unchanged": 4} and len(server.runs) == 6


def test_intermittent_server_errors_do_not_change_what_arrives(server, folder):
    """Every seventh request fails, the first included: with a status, by a closed connection, or by a delay in turn."""
    count = itertools.count()
    faults = itertools.cycle([500, "close", 0.5])
    server.fault = lambda _path: next(faults) if next(count) % 7 == 0 else None
    assert publish(folder, dataclasses.replace(SETTINGS, timeout=20)).succeeded
    assert len(server.runs) == 4 and is_published(server, folder)


def test_next_publish_completes_one_interrupted_by_a_server_failure(server, folder):
    server.fault = lambda _path: "close" if len(server.runs) >= 2 else None
    outcome = publish(folder, QUICK)
    assert not outcome.succeeded and len(offline_copies(folder)) == states(outcome).get("kept", 0) > 0
    assert f"`scaling publish {folder}` tries again" in outcome.lines[-1]
    server.fault = lambda _path: None
    assert publish(folder, SETTINGS).succeeded and is_published(server, folder)
    assert offline_copies(folder) == []


def test_lost_data_fails_the_publish_is_tagged_and_is_sent_again(server, folder):
    server.fault = lambda path: 403 if "file_stream" in path else None
    outcome = publish(folder, QUICK)
    assert not outcome.succeeded and states(outcome) == {"differs": 4} and offline_copies(folder) == []
    assert "not all arrived (" in outcome.lines[-1]
    assert all("superseded" in run.tags for run in server.runs.values()) and len(server.runs) == 4
    server.fault = lambda _path: None
    assert publish(folder, SETTINGS).succeeded and is_published(server, folder)


def change_times(body):
    part = (body.get("files") or {}).get("wandb-history.jsonl")
    if part:
        rows = [json.loads(line) for line in part["content"]]
        part["content"] = [
            json.dumps({k: v * 1.001 if k.startswith("time/") else v for k, v in row.items()}) for row in rows
        ]


def drop_completion(body):
    body.pop("complete", None)


@pytest.mark.thin(2, "thorough")
@pytest.mark.parametrize(("change", "differ"), [(change_times, 2), (drop_completion, 4)])
def test_altered_data_is_detected(server, folder, change, differ):
    original = server.append_history

    def tampered(name, body):
        change(body)
        original(name, body)

    server.append_history = tampered
    outcome = publish(folder, dataclasses.replace(SETTINGS, timeout=1))
    assert states(outcome)["differs"] == differ and not outcome.succeeded


@pytest.mark.thorough
def test_run_that_arrives_late_is_recognized_by_the_next_publish(server, folder):
    server.fault = lambda path: 3.0 if path.endswith("file_stream") else None
    publish(folder, dataclasses.replace(SETTINGS, timeout=1.5))
    server.fault = lambda _path: None
    time.sleep(3)
    assert publish(folder, SETTINGS).succeeded and is_published(server, folder)


def children(process: subprocess.Popen) -> list[int]:
    """Return the process ids of the children of a process."""
    return [
        int(word) for word in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    ]


@pytest.mark.thin(2, "thorough")
@pytest.mark.parametrize(("runs_before_kill", "kill_children"), [(1, True), (2, False)])
def test_killed_publish_is_completed_by_the_next_without_duplicates(
    server, folder, runs_before_kill, kill_children
):
    server.fault = lambda path: 0.3 if path.endswith("file_stream") else 0.05
    command = [str(COMMAND), "publish", "--no-dashboard", "--entity", ENTITY, str(folder)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    while len(server.runs) < runs_before_kill:
        assert process.poll() is None
        time.sleep(0.01)
    for pid in [process.pid, *(children(process) if kill_children else [])]:
        os.kill(pid, signal.SIGKILL)
    process.wait()
    server.fault = lambda _path: None
    assert publish(folder, dataclasses.replace(SETTINGS, timeout=20)).succeeded
    assert is_published(server, folder) and offline_copies(folder) == []
    assert {run.metadata["displayName"] for run in server.runs.values()} == {
        run.name for run in runs_of(folder)
    }


def test_run_rejected_by_the_server_is_kept_offline_and_does_not_stop_the_others(server, folder):
    rejected, original = runs_of(folder)[1].digest, server.do_UpsertBucket

    def upsert(variables):
        if (variables.get("name") or "").startswith(rejected):
            raise ValueError("over the quota")
        return original(variables)

    server.do_UpsertBucket = upsert
    outcome = publish(folder, SETTINGS)
    assert states(outcome) == {"kept": 1, "published": 3} and "over the quota" in outcome.lines[-1]
    server.do_UpsertBucket = original
    assert publish(folder, SETTINGS).succeeded and is_published(server, folder)
    assert offline_copies(folder) == []


def test_wrong_key_is_reported_and_all_runs_are_kept_offline(server, folder):
    server.key = "another" * 8
    outcome = publish(folder, SETTINGS)
    assert not outcome.succeeded and states(outcome) == {"kept": 4}
    assert "credentials" in " ".join(outcome.lines) and KEY not in " ".join(outcome.lines)


def test_publish_without_a_key_is_offline_and_fails_only_if_online_was_requested(server, folder, monkeypatch):
    monkeypatch.delenv("WANDB_API_KEY")
    outcome = publish(folder, SETTINGS)
    assert outcome.succeeded
    assert states(outcome) == {"kept": 4}
    assert server.runs == {}
    assert not publish(folder, dataclasses.replace(SETTINGS, mode="online")).succeeded


def test_unreachable_server_costs_the_timeout_and_all_runs_are_kept_offline(server, folder, monkeypatch):
    monkeypatch.setenv("WANDB_BASE_URL", NOWHERE)
    start = time.monotonic()
    outcome = publish(folder, TrackingSettings(timeout=2))
    assert time.monotonic() - start < 500  # the client would retry for hours
    assert states(outcome) == {"kept": 4} and not outcome.succeeded and len(offline_copies(folder)) == 4
    kept, reason = outcome.lines
    assert f"kept 4 runs offline in {folder / 'wandb'}" in kept and NOWHERE in reason


def sync(folder: Path) -> None:
    """Send the offline copies with `wandb sync`, from another folder."""
    copies = [f"{folder.name}/wandb/{name}" for name in offline_copies(folder)]
    command = [str(Path(sys.executable).with_name("wandb")), "sync", *copies]
    subprocess.run(command, cwd=folder.parent, capture_output=True, check=True)


def test_offline_copies_can_be_sent_by_wandb_sync_and_are_not_sent_twice(server, folder):
    assert states(publish(folder, dataclasses.replace(SETTINGS, mode="offline"))) == {"kept": 4}
    sync(folder)
    assert is_published(server, folder)
    assert states(publish(folder, SETTINGS)) == {"unchanged": 4} and len(server.runs) == 4
    assert offline_copies(folder) == []


@pytest.mark.thorough
def test_copies_synced_after_the_same_runs_were_published_are_tagged(published_copy):
    server, folder = published_copy
    assert states(publish(folder, dataclasses.replace(SETTINGS, mode="offline"))) == {"kept": 4}
    sync(folder)
    assert len(server.runs) == 8
    assert publish(folder, SETTINGS).succeeded and is_published(server, folder)


def test_requests_contain_no_local_path_host_name_git_remote_or_key(published):
    server, folder, outcome = published
    assert outcome.succeeded and len(server.views) == 2  # the dashboard was sent too
    sent = b"\n".join(server.bodies).decode(errors="replace")
    assert "jacrev" in sent
    private = [str(folder), str(Path.cwd()), str(Path.home()), tempfile.gettempdir() + "/", sys.prefix, KEY]
    private += ["hunter22", "git.example"]
    assert [word for word in private if word in sent] == []
    assert not re.search(rf"\b{re.escape(socket.gethostname())}\b", sent)


def test_server_serves_long_listings_in_pages(server):
    server.projects.add("p")
    for number in range(5):
        server.runs[str(number)] = wandb_server.StoredRun(str(number), "p", metadata={"groupName": "g"})
    first = server.do_Runs({"project": "p", "perPage": 3, "filters": '{"group": "g"}'})["project"]["runs"]
    cursor = first["pageInfo"]["endCursor"]
    rest = server.do_Runs({"project": "p", "perPage": 3, "cursor": cursor})["project"]["runs"]
    assert (len(first["edges"]), first["pageInfo"]["hasNextPage"], len(rest["edges"])) == (3, True, 2)
