"""Folders of results that hold what no run of this version wrote: a newer schema, pipes and devices, absurd values."""

import json
import os
import socket
import stat

import pytest

import scaling
from scaling.core import store
from scaling.core.record import SCHEMA, to_line
from tests.support.verbs import VERBS, words_of

pytestmark = pytest.mark.thin(20, "process")


def contents(folder):
    """Return every file of a folder with what it holds."""
    return {path: path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


@pytest.mark.parametrize("where", ["record", "study.json", "plan-v5p.json"])
@pytest.mark.parametrize("verb", VERBS)
def test_a_schema_from_the_future_is_refused_by_every_verb_and_nothing_is_written(
    verb, where, folders, scaling_command
):
    folder, record = folders
    newer = {"schema": SCHEMA + 1, "versions": {"ad_scaling": "7.8.9"}, "anything": [1]}
    if where == "record":
        environment = record.environment | {"versions": newer["versions"]}
        newer = json.loads(to_line(record)) | {
            "schema": SCHEMA + 1,
            "environment": environment,
            "a new field": 1,
        }
        (folder / "z.jsonl").write_text(to_line(record) + "\n" + json.dumps(newer) + "\n")
    else:
        store.write_json(folder / where, newer)
    before = contents(folder.parent)
    done = scaling_command(words_of(verb, record))
    assert done.returncode == 2, done.stdout + done.stderr
    assert done.stderr.count("\n") == 1 and "Traceback" not in done.stderr
    assert (
        f"schema {SCHEMA + 1}" in done.stderr
        and "7.8.9" in done.stderr
        and scaling.__version__ in done.stderr
    )
    assert contents(folder.parent) == before


def test_a_newer_schema_is_refused_whatever_else_the_line_holds(folders):
    folder, _ = folders
    for told in (
        {"schema": 2},
        {"schema": 99, "environment": None},
        {"schema": 1.5, "environment": {"versions": 3}},
    ):
        (folder / "z.jsonl").write_text(json.dumps(told))
        for look in (store.load, store.check_schemas):
            with pytest.raises(store.Refusal, match=f"schema {told['schema']}.*install"):
                look(folder)


@pytest.mark.parametrize(
    "told", [{"schema": "2"}, {"schema": True}, {"schema": [2]}, {"schema": None}, {"schema": 0}, [2], 2]
)
def test_what_is_no_newer_schema_is_damage_and_no_refusal(told, folders):
    folder, record = folders
    (folder / "z.jsonl").write_text(json.dumps(told))
    store.check_schemas(folder)
    loaded = store.load(folder)
    assert loaded.records == [record] and len(loaded.damaged) == 1


def make_pipe(path):
    os.mkfifo(path)


def make_socket(path):
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(path))


def make_device(path):
    path.symlink_to("/dev/zero")


def make_folder(path):
    path.mkdir()


def make_loop(path):
    path.symlink_to(path.name)


def make_link_to_pipe(path):
    os.mkfifo(path.with_suffix(".pipe"))
    path.symlink_to(path.with_suffix(".pipe").name)


SPECIAL = [make_pipe, make_socket, make_device, make_folder, make_loop, make_link_to_pipe]


@pytest.mark.parametrize("make", SPECIAL)
def test_what_is_no_regular_file_is_named_and_passed_over(make, folders, monkeypatch):
    folder, record = folders
    monkeypatch.chdir(folder)  # the address of a socket is short
    make(folder / "b.jsonl")
    loaded = store.load(folder)
    assert loaded.records == [record]
    assert len(loaded.damaged) == 1 and loaded.damaged[0].startswith("b.jsonl: ")
    make(folder / "plan-x.json")
    (folder / "study.json").unlink()
    make(folder / "study.json")
    assert store.read_json(folder / "study.json") is None
    assert store.load(folder).records == [record]


@pytest.mark.parametrize("verb", VERBS)
def test_a_pipe_among_the_records_never_makes_a_verb_wait(verb, folders, scaling_command):
    folder, record = folders
    for path in (folder / "b.jsonl", folder / "plan-x.json"):
        os.mkfifo(path)
    done = scaling_command(words_of(verb, record), timeout=60)
    assert "Traceback" not in done.stderr
    assert stat.S_ISFIFO((folder / "b.jsonl").stat().st_mode)
    if verb == "merge from it":
        assert done.returncode == 2 and "b.jsonl" in done.stderr and not (folder.parent / "merged").exists()


def test_a_pipe_in_the_place_of_the_study_never_makes_a_verb_wait(folders, scaling_command):
    folder, _ = folders
    (folder / "study.json").unlink()
    os.mkfifo(folder / "study.json")
    assert scaling_command(["status", "DIR"], timeout=60).returncode == 0
