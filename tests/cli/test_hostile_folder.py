"""Tests of results folders with foreign content: records of a newer schema, pipes, devices and damaged lines."""

import errno
import json
import os
import shutil
import socket
import stat

import pytest

import scaling
from scaling.cli import status
from scaling.core.record import SCHEMA, to_line
from scaling.results import store
from tests.support.verbs import VERBS, verb_arguments

pytestmark = pytest.mark.thin(20, "thorough")


def contents(folder):
    """Map every path in a folder to the bytes of the file, or None."""
    return {path: path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


@pytest.mark.covering(1)
@pytest.mark.parametrize("location", ["record", "study.json", "plan-v5p.json"])
@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_rejects_a_newer_schema_and_writes_nothing(verb, location, folders, scaling_command):
    folder, record = folders
    newer = {"schema": SCHEMA + 1, "versions": {"ad_scaling": "7.8.9"}, "anything": [1]}
    if location == "record":
        environment = record.environment | {"versions": newer["versions"]}
        newer = json.loads(to_line(record)) | {
            "schema": SCHEMA + 1,
            "environment": environment,
            "a new field": 1,
        }
        (folder / "z.jsonl").write_text(to_line(record) + "\n" + json.dumps(newer) + "\n")
    else:
        store.write_json(folder / location, newer)
    before = contents(folder.parent)
    done = scaling_command(verb_arguments(verb, record))
    assert done.returncode == 2, done.stdout + done.stderr
    assert done.stderr.count("\n") == 1 and "Traceback" not in done.stderr
    assert f"schema {SCHEMA + 1}" in done.stderr
    assert scaling.__version__ in done.stderr
    assert contents(folder.parent) == before


def test_a_newer_schema_is_rejected_whatever_else_the_line_contains(folders):
    folder, _ = folders
    for line in (
        {"schema": 2},
        {"schema": 99, "environment": None},
        {"schema": 1.5, "environment": {"versions": 3}},
    ):
        (folder / "z.jsonl").write_text(json.dumps(line))
        for read in (store.load, store.refuse_newer_schema):
            with pytest.raises(store.Refusal, match=f"schema {line['schema']}.*install"):
                read(folder)


@pytest.mark.parametrize(
    "line", [{"schema": "2"}, {"schema": True}, {"schema": [2]}, {"schema": None}, {"schema": 0}, [2], 2]
)
def test_a_line_without_a_valid_schema_is_damaged_but_not_rejected(line, folders):
    folder, record = folders
    (folder / "z.jsonl").write_text(json.dumps(line))
    store.refuse_newer_schema(folder)
    loaded = store.load(folder)
    assert loaded.records == [record] and len(loaded.damaged) == 1


def make_socket(path):
    with socket.socket(socket.AF_UNIX) as unix_socket:
        unix_socket.bind(str(path))


def make_link_to_pipe(path):
    os.mkfifo(path.with_suffix(".pipe"))
    path.symlink_to(path.with_suffix(".pipe").name)


SPECIAL = {
    "pipe": os.mkfifo, "socket": make_socket, "device": lambda path: path.symlink_to("/dev/zero"), "folder": os.mkdir,
    "loop": lambda path: path.symlink_to(path.name), "link to a pipe": make_link_to_pipe,
    "link to nothing": lambda path: path.symlink_to("gone"),
}  # fmt: skip


@pytest.mark.parametrize("kind", SPECIAL)
def test_a_path_that_is_not_a_regular_file_is_reported_and_skipped(kind, folders, monkeypatch):
    folder, record = folders
    make = SPECIAL[kind]
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
def test_no_verb_blocks_on_a_pipe_among_the_records(verb, folders, scaling_command):
    folder, record = folders
    for path in (folder / "b.jsonl", folder / "plan-x.json"):
        os.mkfifo(path)
    nothing = ["where=False"] if verb == "plan" else []  # compiles nothing
    done = scaling_command([*verb_arguments(verb, record), *nothing], timeout=60)
    assert "Traceback" not in done.stderr
    assert stat.S_ISFIFO((folder / "b.jsonl").stat().st_mode)
    if verb == "merge from it":
        assert done.returncode == 2 and "b.jsonl" in done.stderr and not (folder.parent / "merged").exists()


@pytest.mark.parametrize(
    "content",
    [b"{", b"\xff", b"[]", b'{"cases": 3}', b'{"cases": [3]}', b'{"cases": [{"case": {"field": 1}}]}', None],
)
def test_status_report_and_lint_say_that_the_study_cannot_be_read(content, folders, scaling_command):
    folder, _ = folders
    path = folder / "study.json"
    path.unlink(missing_ok=True)
    assert store.read_study(folder).problem == ""
    if content is None:
        path.mkdir()
    else:
        path.write_bytes(content)
    line = "study.json cannot be read: missing cases are unknown; repeat the `scaling run` command"
    for verb, text in (("status", line), ("lint", line), ("report", "study.json that cannot be read (1)")):
        assert text in scaling_command([verb, "DIR"]).stdout, verb


@pytest.mark.parametrize("verb", [["export", "DIR"], ["publish", "DIR", "--mode", "disabled"]])
def test_export_and_publish_list_damaged_lines(verb, folders, scaling_command):
    folder, _ = folders
    (folder / "damaged.jsonl").write_text('{"half\n')
    done = scaling_command(verb)
    assert "damaged, ignored: damaged.jsonl:1: not a complete line of JSON, as after" in done.stdout
    assert "delete the lines to end this note" in done.stdout and done.returncode == 0, done.stderr


@pytest.mark.parametrize(("verb", "written"), [("publish", "wandb"), ("report", "report")])
def test_a_folder_in_which_a_verb_may_not_write_is_refused(verb, written, folders, scaling_command):
    folder, _ = folders
    (folder / written).touch()  # not a folder, so that root may not write into it either
    done = scaling_command([verb, "DIR"])
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and done.stdout == ""
    assert f"{written}: change the permissions, or give a copy of" in done.stderr


def test_a_comparison_is_refused_if_its_page_cannot_be_written(folders, scaling_command):
    folder, _ = folders
    copy = shutil.copytree(folder, folder.with_name("another"))
    (copy / "report").touch()  # not a folder, so that root may not write into it either
    done = scaling_command(["compare", "DIR", str(copy)])
    assert (done.returncode, done.stderr.count("\n"), done.stdout) == (2, 1, "")
    assert "report: change the permissions, or give a copy of" in done.stderr
    assert scaling_command(["compare", "DIR", str(copy), "--markdown", "-"]).returncode == 0


@pytest.mark.parametrize("verb", ["export", "publish"])
def test_a_folder_without_records_is_refused(verb, folders, scaling_command):
    folder, _ = folders
    for path in folder.glob("*.jsonl"):
        path.write_text('{"half\n')
    done = scaling_command([verb, "DIR"])
    assert (done.returncode, done.stderr.count("\n"), done.stdout) == (2, 1, "")
    assert f"no record to {verb} in " in done.stderr and "`scaling run` makes some" in done.stderr


def test_a_plan_file_that_cannot_be_read_is_reported(folders):
    folder, record = folders
    (folder / "plan-mine.json").write_text("[1]")
    assert store.load(folder).records == [record]
    (problem,) = store.load(folder).damaged
    assert problem.startswith("plan-mine.json: ")
    assert "`scaling plan` command, which writes it again" in problem
    assert status.load_status(folder).notes == [problem]


def test_all_damaged_lines_are_one_note(folders, scaling_command):
    folder, _ = folders
    (folder / "train.jsonl").write_text('{"loss": 1}\n' * 500)
    (folder / "half.jsonl").write_text('{"half\n')
    (note,) = status.load_status(folder).notes
    assert note.startswith("damaged, ignored: half.jsonl:1: ") and " and 500 more lines; repeat the" in note
    assert scaling_command(["export", "DIR"]).stdout.count("damaged, ignored") == 1


def test_files_that_cannot_be_opened_are_not_called_damaged(folders, monkeypatch):
    folder, record = folders
    (folder / "half.jsonl").write_text('{"half\n')
    (folder / "first.jsonl").write_text(f"{to_line(record)}\n")
    (folder / "link.jsonl").symlink_to("nowhere")
    read_file = store.read_file

    def read_or_fail(path):
        if path.name in ("first.jsonl", "study.json"):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return read_file(path)

    (folder / "study.json").write_text("{}")
    monkeypatch.setattr(store, "read_file", read_or_fail)
    monkeypatch.setattr(os, "access", lambda path, mode: os.path.basename(path) != "study.json")
    problem, denied, damaged = status.load_status(folder).notes
    assert problem == "study.json cannot be read: missing cases are unknown; make it readable"
    assert denied == (
        "cannot be read: first.jsonl: Permission denied and 1 more file; make it readable, or move it away"
    )
    assert damaged.startswith("damaged, ignored: half.jsonl:1: ") and damaged.endswith("to end this note")


@pytest.mark.usefixtures("folders")
def test_a_comparison_without_a_common_case_names_the_damaged_lines(scaling_command, tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "half.jsonl").write_text('{"half\n')
    error = scaling_command(["compare", "DIR", str(tmp_path / "empty")]).stderr
    assert error.rstrip().endswith("run the same study for both; B: 1 damaged line left out")
