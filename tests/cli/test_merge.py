"""Tests of `scaling merge`: every record is kept exactly once, and the input folders do not change."""

import fcntl
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from scaling.analysis import findings
from scaling.cli import merge as merging
from scaling.core.case import Refusal
from scaling.core.record import to_line
from scaling.report.terminal import summary_lines
from scaling.results import store
from tests.support import made_up


@pytest.fixture
def sources(tmp_path, make_record):
    """Write the results folders of two clusters; each has its own environment, and one file is in both."""
    common = f"{to_line(make_record(points=99, digest='both'))}\n"
    for name, digest, study, scaling in (("a", "one", "first", "strong"), ("b", "two", "second", "weak")):
        records = [make_record(points=points, digest=digest) for points in (6, 8)]
        folder = made_up.write(tmp_path / name, records, study, [scaling])
        (folder / "records.jsonl").rename(folder / f"{name}.jsonl")
        (folder / "common.jsonl").write_text(common)
    return [str(tmp_path / name) for name in "ab"]


def file_contents(folder):
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def lines_in(*folders):
    return sorted({to_line(record) for folder in folders for record in store.load(folder).records})


@pytest.fixture
def merge(sources, tmp_path):
    """Return a function that merges both folders into a third one and returns what it prints."""
    return lambda: merging.merge(sources, str(tmp_path / "c"))


def test_merge_keeps_every_record_of_both_folders_once(merge, sources, tmp_path):
    [line] = merge()
    assert len(store.load(tmp_path / "c").records) == 5
    assert lines_in(tmp_path / "c") == lines_in(tmp_path / "a", tmp_path / "b")
    command = f"`scaling report {tmp_path / 'c'}` shows them"
    assert line == f"{tmp_path / 'c'}: 5 records copied, 5 in all; {command}"


def test_a_folder_in_a_printed_command_is_quoted_for_the_shell(sources, tmp_path):
    total_line = merging.merge(sources, str(tmp_path / "both of us"))[-1]
    assert total_line.endswith(f"; `scaling report '{tmp_path / 'both of us'}'` shows them")
    *_, report, lint = summary_lines(findings.read(tmp_path / "both of us"), Path("both of us"))
    assert report.startswith("scaling report 'both of us'") and lint.startswith("scaling lint 'both of us'")


def test_merge_does_not_change_the_inputs(merge, tmp_path):
    before = [file_contents(tmp_path / name) for name in "ab"]
    merge()
    assert [file_contents(tmp_path / name) for name in "ab"] == before


def test_merging_again_changes_no_byte_and_copies_no_record(merge, tmp_path):
    merge()
    (tmp_path / "b" / "incomplete.jsonl").write_text('{"half')
    before = file_contents(tmp_path / "c")
    assert ": 0 records copied, 5 in all" in merge()[-1]
    assert file_contents(tmp_path / "c") == before


def test_later_records_of_a_file_are_copied_and_none_is_lost_or_doubled(merge, tmp_path, make_record):
    merge()
    earlier = (tmp_path / "a" / "a.jsonl").read_bytes()
    with (tmp_path / "a" / "a.jsonl").open("a") as file:
        file.write(to_line(make_record(points=10, digest="one")) + "\n")
    assert ": 1 record copied, 6 in all" in merge()[-1]
    (tmp_path / "a" / "a.jsonl").write_bytes(earlier)  # a copy from before, which is shorter
    assert ": 0 records copied" in merge()[-1] and len(store.load(tmp_path / "c").records) == 6


def test_records_of_an_earlier_merge_are_not_doubled(merge, sources, tmp_path):
    lines = "".join(path.read_text() for path in sorted((tmp_path / "a").glob("*.jsonl")))
    for name in "bc":  # an input folder and the output folder
        (tmp_path / name).mkdir(exist_ok=True)
        (tmp_path / name / "merged-0123456789ab.jsonl").write_text(lines.replace("\n", "\r\n"))
    assert ": 2 records copied, 5 in all" in merge()[-1]
    assert len(store.load(tmp_path / "c").records) == 5


def test_other_records_in_files_with_the_same_name_are_all_copied(merge, sources, tmp_path):
    (tmp_path / "b" / "b.jsonl").rename(tmp_path / "b" / "a.jsonl")
    merge()
    assert lines_in(tmp_path / "c") == lines_in(tmp_path / "a", tmp_path / "b")


def test_merging_a_folder_with_itself_copies_each_record_once(sources, tmp_path):
    merging.merge([sources[0], sources[0]], str(tmp_path / "c"))
    expected = {name: text for name, text in file_contents(tmp_path / "a").items() if name != "study.json"}
    assert lines_in(tmp_path / "c") == lines_in(tmp_path / "a")
    merging.merge([sources[0], sources[0]], sources[0])
    contents = file_contents(tmp_path / "a")
    assert {name: contents[name] for name in contents if name.endswith("jsonl")} == expected


def test_merge_can_add_to_an_existing_results_folder(sources, tmp_path):
    expected = lines_in(tmp_path / "a", tmp_path / "b")
    merging.merge([sources[1]], sources[0])
    assert lines_in(tmp_path / "a") == expected


def test_the_report_of_a_merged_folder_keeps_environments_apart(sources, tmp_path, scaling_command):
    done = scaling_command(["merge", *sources, "--output", "c"])
    assert done.returncode == 0, done.stderr
    assert scaling_command(["report", "c"]).returncode == 0
    results = findings.read(tmp_path / "c")
    assert results.has_mixed_environments and len(results.environments) == 3 and results.missing == []


def test_studies_are_merged_and_the_first_title_is_kept(merge, tmp_path):
    for name, title in zip("ab", ("One", "Another"), strict=True):
        path = tmp_path / name / "study.json"
        store.write_json(path, store.read_json(path) | {"title": title})
    merge()
    study = store.read_json(tmp_path / "c" / "study.json")
    assert (study["study"], study["scaling"], study["title"]) == ("first + second", ["strong", "weak"], "One")
    assert len(study["cases"]) == 2


def test_damaged_lines_are_named_and_not_copied_and_the_records_of_their_file_are(
    merge, tmp_path, make_record
):
    line = to_line(make_record(points=10, digest="two"))
    (tmp_path / "b" / "incomplete.jsonl").write_text(line + '\n{"half of a record')
    damaged, _ = merge()
    assert damaged.startswith(
        f"{tmp_path / 'b'}: damaged, ignored: incomplete.jsonl:2: not a complete line of JSON"
    )
    assert store.load(tmp_path / "c").damaged == [] and len(store.load(tmp_path / "c").records) == 6
    assert lines_in(tmp_path / "c") == lines_in(tmp_path / "a", tmp_path / "b")


DYING_MERGE = """
import os, sys
from scaling.cli import merge
rename, remaining = os.replace, [int(sys.argv[1])]
def dying(*words):
    remaining[0] -= 1
    if remaining[0] < 0:
        os.kill(os.getpid(), 9)
    rename(*words)
os.replace = dying
merge.merge(sys.argv[2:4], sys.argv[4])
"""


@pytest.mark.parametrize("after", [0, 1])
def test_repeating_a_killed_merge_completes_it(merge, sources, tmp_path, after):
    command = [sys.executable, "-c", DYING_MERGE, str(after), *sources, str(tmp_path / "c")]
    assert subprocess.run(command, check=False).returncode == -signal.SIGKILL
    merge()
    assert lines_in(tmp_path / "c") == lines_in(tmp_path / "a", tmp_path / "b")
    assert store.load(tmp_path / "c").damaged == []


def test_merge_reads_but_does_not_write_a_folder_in_use_by_a_run(merge, sources, tmp_path):
    with (tmp_path / "a" / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert ": 5 records copied" in merge()[-1]
        with pytest.raises(Refusal, match=r"another run is working in .*give another folder"):
            merging.merge([sources[1]], sources[0])


def test_the_other_program_of_a_comparison_is_not_copied_which_is_reported(merge, tmp_path):
    other, target = tmp_path / "a" / "versus-self", tmp_path / "c" / "versus-self"
    other.mkdir()
    [line] = [line for line in merge() if "versus" in line]
    assert line.startswith(f"{other} is not copied: copy it to {target}, or ") and not target.exists()


def test_jobs_are_not_copied(merge, tmp_path):
    (tmp_path / "a" / "jobs" / "20261122T000000-abcd").mkdir(parents=True)
    merge()
    assert not (tmp_path / "c" / "jobs").exists()


BAD_INPUTS = {
    "no such folder": (["nowhere", "a"], "c", "no results in 'nowhere'"),
    "output is a file": (["a", "b"], "file", "cannot write to --output file: .*--output PATH"),
    "output is a loop": (["a", "b"], "loop", "cannot write to --output loop: "),
    "output has other content": (["a", "b"], "other", "other is not empty and holds no results"),
}


@pytest.mark.parametrize("name", BAD_INPUTS)
def test_bad_input_is_rejected_before_anything_is_written(name, sources, tmp_path, monkeypatch):
    inputs, output, message = BAD_INPUTS[name]
    (tmp_path / "file").touch()
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.tex").touch()
    monkeypatch.chdir(tmp_path)
    before = file_contents(tmp_path)
    with pytest.raises(Refusal, match=message):
        merging.merge(inputs, output)
    assert file_contents(tmp_path) == before and not (tmp_path / "c").exists()


def test_a_damaged_study_file_does_not_stop_a_merge(merge, sources, tmp_path):
    store.write_json(tmp_path / "a" / "study.json", {"scaling": [["weak"], 5], "cases": 7, "study": {"a": 1}})
    store.write_json(tmp_path / "b" / "study.json", {"scaling": 5})
    lines = merge()
    assert ": 5 records copied" in lines[-1]
    assert any(line.startswith(f"{sources[0]}: study.json cannot be read") for line in lines)
    assert len(findings.read(tmp_path / "c").curves) > 0


def test_an_unreadable_file_is_named_in_the_error(merge, tmp_path):
    (tmp_path / "b" / "x.jsonl").mkdir()
    with pytest.raises(Refusal, match=r"cannot read .*x\.jsonl: Is a directory"):
        merge()


@pytest.mark.parametrize("content", [None, b"{", b"[]"])
def test_an_unreadable_study_file_of_the_output_folder_is_not_replaced(merge, tmp_path, content):
    path = tmp_path / "c" / "study.json"
    path.parent.mkdir()
    path.mkdir() if content is None else path.write_bytes(content)
    with pytest.raises(Refusal, match=r"c: study\.json cannot be read: .*or remove it"):
        merge()
    assert content is None or path.read_bytes() == content


def test_a_plan_that_differs_from_one_of_the_same_name_is_reported(merge, tmp_path):
    for name, title in zip("ab", ("one", "two"), strict=True):
        store.write_json(tmp_path / name / "plan-v5p.json", store.schema_and_version() | {"title": title})
    lines = merge()
    (line,) = (line for line in lines if "plan-v5p.json" in line)
    assert line.startswith(str(tmp_path / "b")) and "it differs from" in line and "is not copied" in line
    assert store.read_json(tmp_path / "c" / "plan-v5p.json")["title"] == "one"
