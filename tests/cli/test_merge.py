"""What becomes of results folders that are joined: all is kept, nothing is doubled, and nothing changes where it came from."""

import fcntl
import json
import signal
import subprocess
import sys
import time

import pytest

from scaling.analysis import findings
from scaling.cli import merge as merging
from scaling.core import store
from scaling.core.case import Refusal
from scaling.core.record import to_line
from scaling.workers.machine import ProcessShape
from tests.support import made_up


@pytest.fixture
def two(tmp_path, make_record):
    """Folders of two clusters, each with an environment of its own and one record of both; their files have the same name."""
    common = make_record(points=99, digest="both")
    made_up.write(
        tmp_path / "a", [make_record(points=p, digest="one") for p in (6, 8)] + [common], "first", ["strong"]
    )
    made_up.write(
        tmp_path / "b", [make_record(points=p, digest="two") for p in (6, 8)] + [common], "second", ["weak"]
    )
    return [str(tmp_path / name) for name in "ab"]


def bytes_of(folder):
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def lines_of(folder):
    return sorted(to_line(record) for record in store.load(folder).records)


def test_every_record_of_both_is_there_once(two, tmp_path):
    *folders, last = merging.merge(two, str(tmp_path / "c"))
    assert lines_of(tmp_path / "c") == sorted({*lines_of(tmp_path / "a"), *lines_of(tmp_path / "b")})
    assert ": 5 records added, 5 in all; 3 environments" in last
    assert f"{two[0]}: 3 records added" in folders and f"{two[1]}: 2 records added, 1 there before" in folders


def test_nothing_changes_where_it_came_from(two, tmp_path):
    before = [bytes_of(tmp_path / name) for name in "ab"]
    merging.merge(two, str(tmp_path / "c"))
    assert [bytes_of(tmp_path / name) for name in "ab"] == before


def test_merging_again_changes_no_byte_and_says_that_nothing_was_added(two, tmp_path):
    merging.merge(two, str(tmp_path / "c"))
    (tmp_path / "b" / "torn.jsonl").write_text('{"half')
    merging.merge(two, str(tmp_path / "c"))
    before = bytes_of(tmp_path / "c")
    again = merging.merge(two, str(tmp_path / "c"))
    assert bytes_of(tmp_path / "c") == before and ": 0 records added, 5 in all" in again[-1]


def test_what_came_later_is_added_in_files_of_its_own(two, tmp_path, make_record):
    merging.merge(two, str(tmp_path / "c"))
    before = bytes_of(tmp_path / "c")
    with (tmp_path / "a" / "records.jsonl").open("a") as file:
        file.write(to_line(make_record(points=10, digest="one")) + "\n")
    assert ": 1 record added, 6 in all" in merging.merge(two, str(tmp_path / "c"))[-1]
    after = bytes_of(tmp_path / "c")
    assert {name: after[name] for name in before} == before and len(after) == len(before) + 1


def test_a_folder_merged_with_itself_is_itself(two, tmp_path):
    merging.merge([two[0], two[0]], str(tmp_path / "c"))
    whole, kept = bytes_of(tmp_path / "a"), bytes_of(tmp_path / "c")
    assert kept.pop(".lock") == b"" and kept.pop("study.json") and whole.pop("study.json")
    assert kept == whole
    merging.merge([two[0], two[0]], two[0])
    assert {
        name: content for name, content in bytes_of(tmp_path / "a").items() if name.endswith("jsonl")
    } == whole


def test_a_folder_can_be_added_to(two, tmp_path):
    whole = sorted({*lines_of(tmp_path / "a"), *lines_of(tmp_path / "b")})
    merging.merge([two[1]], two[0])
    assert lines_of(tmp_path / "a") == whole


def test_the_report_of_what_was_merged_keeps_environments_apart(two, tmp_path, scaling_command):
    done = scaling_command(["merge", *two, "--output", "c"])
    assert done.returncode == 0, done.stderr
    assert "3 environments, kept apart" in done.stdout
    assert scaling_command(["report", "c"]).returncode == 0
    found = findings.read(tmp_path / "c")
    assert found.has_mixed_environments and len(found.environments) == 3 and found.missing == []


def test_studies_are_united_and_what_differs_is_told(two, tmp_path):
    for name, title in zip("ab", ("One", "Another"), strict=True):
        told = json.loads((tmp_path / name / "study.json").read_text())
        (tmp_path / name / "study.json").write_text(
            json.dumps(told | {"title": title, "sampling": {"least": 7}})
        )
    merged = merging.merge(two, str(tmp_path / "c"))
    study = json.loads((tmp_path / "c" / "study.json").read_text())
    assert (study["study"], study["scaling"], study["title"]) == ("first + second", ["strong", "weak"], "One")
    assert study["sampling"] == {"least": 7} and len(study["cases"]) == 3
    assert "the studies differ in their title: 'One' is kept" in merged


def test_damaged_lines_are_told_and_kept_apart(two, tmp_path):
    torn = '{"half of a record'
    (tmp_path / "b" / "torn.jsonl").write_text(to_line(store.load(tmp_path / "b").records[0]) + "\n" + torn)
    merged = merging.merge(two, str(tmp_path / "c"))
    assert any("1 damaged line kept apart in damaged/" in line for line in merged)
    assert store.load(tmp_path / "c").damaged == []
    assert (tmp_path / "c" / "damaged" / "torn.txt").read_text() == torn + "\n"


def test_the_same_measurement_made_twice_is_told(tmp_path, make_record):
    for name, seconds in (("a", 0.001), ("b", 0.002)):
        made_up.write(tmp_path / name, [make_record(seconds=[seconds] * 7)])
    merged = merging.merge([str(tmp_path / "a"), str(tmp_path / "b")], str(tmp_path / "c"))
    assert any(": 2 records added" in line for line in merged)
    assert any(line.startswith("of 1 measurement there are several records") for line in merged)


KILLED = """
import os, sys
from scaling.cli import merge
rename, left = os.replace, [int(sys.argv[1])]
def dying(*words):
    left[0] -= 1
    if left[0] < 0:
        os.kill(os.getpid(), 9)
    rename(*words)
os.replace = dying
merge.merge(sys.argv[2:4], sys.argv[4])
"""


@pytest.mark.parametrize("after", [0, 1, 2])
def test_what_a_death_interrupted_the_same_command_completes(two, tmp_path, after):
    words = [sys.executable, "-c", KILLED, str(after), *two, str(tmp_path / "c")]
    assert subprocess.run(words, check=False).returncode == -signal.SIGKILL
    merging.merge(two, str(tmp_path / "c"))
    assert lines_of(tmp_path / "c") == sorted({*lines_of(tmp_path / "a"), *lines_of(tmp_path / "b")})
    assert store.load(tmp_path / "c").damaged == []


def test_a_folder_in_which_a_run_works_is_read_but_not_written_to(two, tmp_path):
    with (tmp_path / "a" / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        merged = merging.merge(two, str(tmp_path / "c"))
        assert [line for line in merged if "a run is working there" in line and line.startswith(two[0])]
        with pytest.raises(Refusal, match=r"a run is working in .*--output"):
            merging.merge([two[1]], two[0])


def test_tasks_that_may_still_run_are_told_and_not_copied(two, tmp_path):
    jobs = tmp_path / "a" / "jobs" / "20261122T000000-abcd"
    jobs.mkdir(parents=True)
    shape = dict.fromkeys(ProcessShape.__annotations__, 1)
    tasks = [
        {"task": name, "job": "7", "shape": shape, "cases": 3, "seconds": 1.0} for name in ("0001", "0002")
    ]
    made_at = time.strftime("%Y-%m-%dT%H:%M:%S+00:00", time.gmtime())
    told = {"kind": "slurm", "made_at": made_at, "host": "elsewhere", "minutes": 5, "tasks": tasks}
    (jobs / "submission.json").write_text(json.dumps(told))
    (jobs / "0001.run-1.jsonl").write_text('{"event": "started"}\n{"event": "ended"}\n')
    (jobs / "0002.run-1.jsonl").write_text('{"event": "started"}\n')
    before = bytes_of(tmp_path / "a")
    merged = merging.merge(two, str(tmp_path / "c"))
    assert any("1 task of its jobs may still run" in line for line in merged)
    assert not (tmp_path / "c" / "jobs").exists() and bytes_of(tmp_path / "a") == before


BAD = {
    "no such folder": (["nowhere", "a"], "c", "no results in 'nowhere'"),
    "inside an input": (["a", "b"], "a/c", "lies inside a, one of the folders to merge"),
    "alone": (["a"], "c", "name two results folders or more"),
    "a file": (["a", "b"], "file", "cannot write to file"),
    "something else": (["a", "b"], "other", "other is not empty and holds no results"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_refused_before_anything_is_written(name, two, tmp_path, monkeypatch):
    inputs, output, told = BAD[name]
    (tmp_path / "file").touch()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.tex").touch()
    monkeypatch.chdir(tmp_path)
    before = bytes_of(tmp_path)
    with pytest.raises(Refusal, match=told):
        merging.merge(inputs, output)
    assert bytes_of(tmp_path) == before and not (tmp_path / "c").exists()


def test_a_study_file_that_somebody_damaged_stops_no_merge(two, tmp_path):
    store.write_json(tmp_path / "a" / "study.json", {"scaling": [["weak"], 5], "cases": 7, "study": {"a": 1}})
    store.write_json(tmp_path / "b" / "study.json", {"scaling": 5})
    assert ": 5 records added" in merging.merge(two, str(tmp_path / "c"))[-1]
    assert len(findings.read(tmp_path / "c").curves) > 0


def test_a_file_that_cannot_be_read_is_named(two, tmp_path):
    (tmp_path / "b" / "x.jsonl").mkdir()
    with pytest.raises(Refusal, match=r"cannot read .*x\.jsonl: Is a directory"):
        merging.merge(two, str(tmp_path / "c"))
