"""Tests against golden data from before the redesign: case keys, reports, exports and resuming of results folders.

tests/golden/redesign/make.py writes the data and documents them.
Names, statuses and numbers are compared, but not wording.
"""

import difflib
import functools
import importlib.util
import json
import math
import os
import shutil
import sys
from pathlib import Path

import pytest

from tests.support.commands import COMMAND, command_environment

pytestmark = pytest.mark.process

_GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "redesign"
_SPEC = importlib.util.spec_from_file_location("golden_redesign_make", _GOLDEN / "make.py")
make = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(make)

EXTENDED = "accelerator"  # this study contains every mode, and therefore also cases of modes that are newer
_RESUMED = (  # folder, arguments of the repeated command
    ("everything", ["run", "study=golden"]),
    ("everything", ["plan", "study=planned", "hardware=cpu", "devices=[1,2]"]),
    ("versus", ["run", "study=versus", "versus=xla:--xla_cpu_enable_fast_math=false", "replicates=3"]),
)


def _golden(name):
    return json.loads((_GOLDEN / f"{name}.json").read_text())


def _as_json(value):
    return json.loads(json.dumps(value))


def _equal(old, new):
    """Return whether two values are equal, numbers up to rounding."""
    try:
        return old == new or math.isclose(float(old), float(new), rel_tol=1e-6)
    except (TypeError, ValueError):
        return False


def _printed_equal(old, new):
    """Return whether two lists of printed numbers are equal up to the last of three digits."""
    if len(old) != len(new):
        return False
    pairs = zip(old, new, strict=True)
    return all(a == b or math.isclose(float(a), float(b), rel_tol=0.011) for a, b in pairs)


def _contained(old, new, gone):
    """Return whether a list of printed numbers has those of `old` in this order, except for `gone` of them."""
    blocks = difflib.SequenceMatcher(None, old, new, autojunk=False).get_matching_blocks()
    return len(old) - sum(block.size for block in blocks) <= gone


def _with_digits_of(old, new):
    """Return the numbers `new` with two decimals where `old` has that: numbers under 0.1 have three digits now."""
    shorter = [f"{float(number):.2f}" if 0.01 <= float(number) < 0.1 else number for number in new]
    return [short if short in old else number for short, number in zip(shorter, new, strict=True)]


def _missing_rows(old, new, equal=_printed_equal):
    """Return the lists of numbers in `old` without a match in `new`; each list in `new` matches at most one."""
    unmatched, missing = list(new), []
    for numbers in old:
        match = next((row for row in unmatched if equal(numbers, _with_digits_of(numbers, row))), None)
        unmatched.remove(match) if match is not None else missing.append(numbers)
    return missing


@pytest.fixture(scope="module")
def command(loaded_command):
    """Return a function that runs the command as tests/golden/redesign/make.py does."""
    environment = command_environment({"PYTHONPATH": str(_GOLDEN)})
    return lambda arguments, cwd: loaded_command.run([str(COMMAND), *arguments], cwd, environment, 120.0)


@pytest.fixture(scope="module")
def current(command, tmp_path_factory):
    """Return the current reading of the results folders."""
    return _as_json(make.reading(command, tmp_path_factory.mktemp("reading")))


@pytest.fixture(scope="module")
def surface(command, tmp_path_factory):
    """Return the current public surface."""
    return _as_json(make.surface(command, tmp_path_factory.mktemp("surface")))


@pytest.mark.default
def test_every_study_has_the_same_case_keys_in_the_same_order(monkeypatch):
    monkeypatch.setattr(sys, "argv", sys.argv)  # composing a study replaces both
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")
    golden, actual = _golden("keys"), make.case_keys()
    assert actual.keys() >= golden.keys()
    for study, keys in golden.items():
        found = actual[study]
        assert ([key for key in found if key in keys] if study == EXTENDED else found) == keys, study


@pytest.mark.thorough
@pytest.mark.parametrize("folder", make.FOLDERS)
def test_exit_statuses_counts_and_lint_of_a_results_folder_are_the_same(current, folder):
    golden, actual = _golden("reading")["folders"][folder], current["folders"][folder]
    assert actual["exit"] == golden["exit"]
    assert actual["counts"] == golden["counts"]
    assert [remark[:2] for remark in actual["lint"]] == [remark[:2] for remark in golden["lint"]]


@pytest.mark.thorough
@pytest.mark.parametrize("folder", make.FOLDERS)
def test_exported_tables_contain_the_same_values(current, folder):
    golden, actual = _golden("reading")["folders"][folder]["exports"], current["folders"][folder]["exports"]
    assert actual.keys() >= golden.keys()
    for name, table in golden.items():
        columns = table["columns"]
        assert [column for column in actual[name]["columns"] if column in columns] == columns, name
        assert len(actual[name]["rows"]) == len(table["rows"]), name
        for old, new in zip(table["rows"], actual[name]["rows"], strict=True):
            differ = {
                column: (value, new.get(column))
                for column, value in old.items()
                if not _equal(value, new.get(column))
            }
            assert not differ, (name, old.get("key"))


def _fractions(files):
    return {number for numbers in files.values() for number in numbers if "." in number}


# Strong and weak scaling share a file now, so that files differ in their parameters and comments.
@pytest.mark.thorough
@pytest.mark.parametrize("folder", make.FOLDERS)
def test_files_for_extrap_contain_the_same_times_and_operations(current, folder):
    golden, actual = _golden("reading")["folders"][folder]["extrap"], current["folders"][folder]["extrap"]
    assert _fractions(golden) <= _fractions(actual)


@pytest.mark.thorough
@pytest.mark.parametrize("folder", make.REPORTED)
def test_a_report_counts_the_same_cases(current, folder):
    golden, actual = _golden("reading")["reports"][folder], current["reports"][folder]
    assert (actual["exit"], actual["last_line"]) == (golden["exit"], golden["last_line"])


# Tables with a column that has an interval now (the time by hand), or no number if its
# interval is too wide for one or contains 1, or without a remark (time without overlap, memory of all at once, time of an
# empty call) -> how many numbers of a row this removes.
REMOVED_NUMBERS = {
    "Every measured case": 3, "Fastest mode of each problem": 2,
    "Fastest mode on each number of devices": 2,
}  # fmt: skip


@pytest.mark.thorough
@pytest.mark.parametrize("folder", make.REPORTED)
def test_tables_and_answers_of_a_report_contain_the_same_numbers(current, folder):
    old, new = (data["reports"][folder]["tables"] for data in (_golden("reading"), current))
    for title, gone in REMOVED_NUMBERS.items():
        equal = functools.partial(_contained, gone=gone)
        assert _missing_rows(old.pop(title, []), new.get(title, []), equal) == [], title
    # The table of all planned cases has the cases that were not planned, too.
    for title in [title for title in old if title.startswith("Not planned for ")]:
        every = new[f"Every case planned for {title.removeprefix('Not planned for ').partition(':')[0]}"]
        assert _missing_rows(old.pop(title), every, functools.partial(_contained, gone=0)) == [], title
    old, new = ([row for rows in tables.values() for row in rows] for tables in (old, new))
    assert _missing_rows(old, new) == []
    old, new = (data["reports"][folder]["answers"] for data in (_golden("reading"), current))
    old, new = ([[number] for line in lines for number in line] for lines in (old, new))
    assert _missing_rows(old, new) == []


@pytest.mark.thorough
def test_comparison_of_two_variants_gives_the_same_verdicts(current):
    golden, actual = _golden("reading")["compare"], current["compare"]
    assert actual["exit"] == golden["exit"]
    assert [row[0] for row in actual["rows"]] == [row[0] for row in golden["rows"]]
    for old, new in zip(golden["rows"], actual["rows"], strict=True):
        assert all(_printed_equal(a, b) for a, b in zip(old[1:], new[1:], strict=True))


@pytest.mark.thorough
def test_no_verb_option_or_field_is_missing(surface):
    golden = _golden("surface")
    assert [verb for verb in surface["verbs"] if verb in golden["verbs"]] == golden["verbs"]
    assert set(surface["help_exit"].values()) == {0}
    assert set(surface["help_exit"]) >= set(golden["help_exit"])
    assert set(surface["fields"]) >= set(golden["fields"])
    for verb, options in golden["options"].items():
        assert set(surface["options"][verb]) >= set(options), verb


@pytest.mark.thorough
@pytest.mark.parametrize("name", _golden("surface")["refused"])
def test_bad_input_exits_with_the_same_status_in_one_line(surface, name):
    assert surface["refused"][name]["exit"] == _golden("surface")["refused"][name]["exit"]
    assert name not in surface["unclear"]


@pytest.fixture(scope="module")
def copied_results(command, tmp_path_factory):
    """Copy the results folders with the digests of this environment, and write a new record of each kind.

    The digest covers versions, source and processor; it is read from new records of two small runs.
    """
    cwd = tmp_path_factory.mktemp("resumed")
    make.copy_results(cwd)
    shutil.copytree(_GOLDEN / "conf", cwd / "conf")
    (cwd / "planned").mkdir()
    lines = [line for path in (cwd / "everything").glob("*.jsonl") for line in path.open()]
    ceilings = (line for line in lines if json.loads(line)["kind"] != "case")  # ceilings of the hardware
    (cwd / "planned" / "ceilings.jsonl").write_text("".join(ceilings))
    for arguments in (["run", "results=measured"], ["plan", "hardware=cpu", "results=planned"]):
        done = command([arguments[0], "--config-dir", "conf", "study=probe", *arguments[1:]], cwd)
        assert done.returncode == 0, done.stderr
    written = {name: (cwd / name).glob("2*.jsonl") for name in ("measured", "planned")}
    new_records = {name: json.loads(path.read_text()) for name, (path,) in written.items()}
    environments = {
        "None": new_records["measured"]["environment"],
        "cpu": new_records["planned"]["environment"],
    }
    for name in ("everything", "versus"):
        for path in (cwd / name).glob("*.jsonl"):
            lines = path.read_text().splitlines(keepends=True)
            path.write_text("".join(_with_current_digests(line, environments) for line in lines))
    return cwd, new_records


def _with_current_digests(line, environments):
    """Return the line of a record with the current digests; plans for other hardware are unchanged."""
    environment = json.loads(line)["environment"]
    target = environments.get(str(environment.get("hardware", {}).get("name")))
    if target is None:
        return line
    for field in ("digest", "setting"):
        line = line.replace(f'"{field}": "{environment[field]}"', f'"{field}": "{target[field]}"', 1)
    return line


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="the studies need two cores")
@pytest.mark.parametrize(("folder", "arguments"), _RESUMED, ids=["cases", "plan", "variants"])
def test_an_old_results_folder_resumes_without_running_cases_again(
    command, copied_results, folder, arguments
):
    cwd, _ = copied_results
    before = {path: path.read_bytes() for path in (cwd / folder).rglob("*.jsonl")}
    done = command([arguments[0], "--config-dir", "conf", *arguments[1:], f"results={folder}"], cwd)
    assert done.returncode == 0, done.stderr
    assert {path: path.read_bytes() for path in (cwd / folder).rglob("*.jsonl")} == before


def test_a_new_record_has_every_field_of_an_old_one(copied_results):
    _, new_records = copied_results
    golden = _golden("surface")
    for record in new_records.values():
        assert record.keys() >= set(golden["record"])
        assert record["case"].keys() >= set(golden["case"])
        assert record["environment"].keys() >= set(golden["environment"])
