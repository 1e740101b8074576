"""What the package made of its studies and of real results folders before its redesign, it still makes.

The data and how they were made: tests/golden/redesign/make.py.
Names, statuses and numbers are compared, not wording.
"""

import importlib.util
import json
import math
import os
import shutil
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.process

_GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "redesign"
_SPEC = importlib.util.spec_from_file_location("golden_redesign_make", _GOLDEN / "make.py")
make = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(make)

_PROGRAM = str(Path(sys.executable).parent / "scaling")
_ENVIRONMENT = {
    "JAX_PLATFORMS": "cpu",
    "PYTHONPATH": str(_GOLDEN),
    "PYTHONDONTWRITEBYTECODE": "1",
    "COLUMNS": "200",
}
_SLOWEST = 120.0  # seconds
_RESUMED = (  # folder, words of the study that is asked for again
    ("everything", ["run", "study=golden"]),
    ("everything", ["plan", "study=planned", "hardware=cpu", "devices=[1,2]"]),
    ("versus", ["run", "study=versus", "versus=xla:--xla_cpu_enable_fast_math=false", "replicates=3"]),
)


def _golden(name):
    return json.loads((_GOLDEN / f"{name}.json").read_text())


def _as_json(value):
    return json.loads(json.dumps(value))


def _same(old, new):
    """Whether two values are the same, numbers up to rounding."""
    try:
        return old == new or math.isclose(float(old), float(new), rel_tol=1e-6)
    except (TypeError, ValueError):
        return False


def _shown_alike(old, new):
    """Whether two lists of printed numbers are the same, but for the last of three digits."""
    if len(old) != len(new):
        return False
    pairs = zip(old, new, strict=True)
    return all(a == b or math.isclose(float(a), float(b), rel_tol=0.011) for a, b in pairs)


def _lost(old, new):
    """Return the lists of numbers in `old` that have no equal in `new`; each of `new` stands for one."""
    left, lost = list(new), []
    for numbers in old:
        found = next((each for each in left if _shown_alike(numbers, each)), None)
        left.remove(found) if found is not None else lost.append(numbers)
    return lost


@pytest.fixture(scope="module")
def command(loaded_command):
    """The command as tests/golden/redesign/make.py calls it."""
    steering = ("WANDB_", "HYDRA_", "XLA_", "JAX_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(steering)}
    environment = kept | _ENVIRONMENT
    return lambda words, cwd: loaded_command.run([_PROGRAM, *words], cwd, environment, _SLOWEST)


@pytest.fixture(scope="module")
def read(command, tmp_path_factory):
    """What is read from the results folders now."""
    return _as_json(make.reading(command, tmp_path_factory.mktemp("reading")))


@pytest.fixture(scope="module")
def surface(command, tmp_path_factory):
    """The public surface as it is now."""
    return _as_json(make.surface(command, tmp_path_factory.mktemp("surface")))


@pytest.mark.default
def test_every_study_has_the_same_case_keys_in_the_same_order(monkeypatch):
    monkeypatch.setattr(sys, "argv", sys.argv)  # composing replaces both
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")
    golden, found = _golden("keys"), _as_json(make.pack_keys(make.case_keys()))
    assert found["studies"].keys() >= golden["studies"].keys()
    for study, keys in golden["studies"].items():
        assert found["studies"][study] == keys, study
    for key, fields in golden["cases"].items():
        assert found["cases"][key] == fields


@pytest.mark.parametrize("folder", make.FOLDERS)
def test_exit_statuses_and_counts_of_a_results_folder_are_the_same(read, folder):
    golden, found = _golden("reading")["folders"][folder], read["folders"][folder]
    assert found["exit"] == golden["exit"]
    assert found["counts"] == golden["counts"]


@pytest.mark.parametrize("folder", make.FOLDERS)
def test_lint_finds_the_same_faults_as_often(read, folder):
    golden, found = _golden("reading")["folders"][folder], read["folders"][folder]
    assert [remark[:2] for remark in found["lint"]] == [remark[:2] for remark in golden["lint"]]


@pytest.mark.parametrize("folder", make.FOLDERS)
def test_exported_tables_hold_the_same_values(read, folder):
    golden, found = _golden("reading")["folders"][folder]["exports"], read["folders"][folder]["exports"]
    assert found.keys() >= golden.keys()
    for name, table in golden.items():
        columns = table["columns"]
        assert [column for column in found[name]["columns"] if column in columns] == columns, name
        assert len(found[name]["rows"]) == len(table["rows"]), name
        for old, new in zip(table["rows"], found[name]["rows"], strict=True):
            differ = {of: (value, new.get(of)) for of, value in old.items() if not _same(value, new.get(of))}
            assert not differ, (name, old.get("key"))


@pytest.mark.parametrize("folder", make.FOLDERS)
def test_files_for_extrap_hold_the_same_numbers(read, folder):
    golden, found = _golden("reading")["folders"][folder]["extrap"], read["folders"][folder]["extrap"]
    assert _lost(golden.values(), found.values()) == []


@pytest.mark.parametrize("folder", make.REPORTED)
def test_a_report_counts_the_same_cases(read, folder):
    golden, found = _golden("reading")["reports"][folder], read["reports"][folder]
    assert (found["exit"], found["last_line"]) == (golden["exit"], golden["last_line"])


@pytest.mark.parametrize("folder", make.REPORTED)
def test_tables_of_a_report_hold_the_same_rows_of_numbers(read, folder):
    old, new = (side["reports"][folder]["tables"].values() for side in (_golden("reading"), read))
    assert _lost([row for rows in old for row in rows], [row for rows in new for row in rows]) == []


@pytest.mark.parametrize("folder", make.REPORTED)
def test_answers_of_a_report_hold_the_same_numbers(read, folder):
    old, new = (side["reports"][folder]["answers"] for side in (_golden("reading"), read))
    old, new = ([[number] for line in lines for number in line] for lines in (old, new))
    assert _lost(old, new) == []


def test_comparison_of_two_variants_gives_the_same_verdicts(read):
    golden, found = _golden("reading")["compare"], read["compare"]
    assert found["exit"] == golden["exit"]
    assert [row[0] for row in found["rows"]] == [row[0] for row in golden["rows"]]
    for old, new in zip(golden["rows"], found["rows"], strict=True):
        assert all(_shown_alike(a, b) for a, b in zip(old[1:], new[1:], strict=True))


def test_verbs_options_and_fields_are_all_there(surface):
    golden = _golden("surface")
    assert surface["verbs"] == golden["verbs"]
    assert surface["help_exit"] == golden["help_exit"]
    assert set(surface["fields"]) >= set(golden["fields"])
    for verb, options in golden["options"].items():
        assert set(surface["options"][verb]) >= set(options), verb


@pytest.mark.parametrize("name", _golden("surface")["refused"])
def test_bad_input_ends_with_the_same_exit_status_in_one_line(surface, name):
    assert surface["refused"][name]["exit"] == _golden("surface")["refused"][name]["exit"]
    assert name not in surface["unclear"]


@pytest.fixture(scope="module")
def copied(command, tmp_path_factory):
    """Copies of the results folders, as if written in this environment, and a new record of each kind.

    The digest of the environment covers versions, source and processor; a skipped case tells what it is here.
    """
    cwd = tmp_path_factory.mktemp("resumed")
    make.copy_results(cwd)
    shutil.copytree(_GOLDEN / "conf", cwd / "conf")
    (cwd / "planned").mkdir()
    lines = [line for path in (cwd / "everything").glob("*.jsonl") for line in path.open()]
    ceilings = (line for line in lines if json.loads(line)["kind"] != "case")  # those of the hardware
    (cwd / "planned" / "ceilings.jsonl").write_text("".join(ceilings))
    for words in (["run", "results=measured"], ["plan", "hardware=cpu", "results=planned"]):
        done = command([words[0], "--config-dir", "conf", "study=probe", *words[1:]], cwd)
        assert done.returncode == 0, done.stderr
    written = {name: (cwd / name).glob("2*.jsonl") for name in ("measured", "planned")}
    fresh = {name: json.loads(path.read_text()) for name, (path,) in written.items()}
    here = {"None": fresh["measured"]["environment"], "cpu": fresh["planned"]["environment"]}
    for name in ("everything", "versus"):
        for path in (cwd / name).glob("*.jsonl"):
            lines = path.read_text().splitlines(keepends=True)
            path.write_text("".join(_moved(line, here) for line in lines))
    return cwd, fresh


def _moved(line, here):
    """Return the line of a record with the digests of the environment here; plans for other hardware stay."""
    environment = json.loads(line)["environment"]
    target = here.get(str(environment.get("hardware", {}).get("name")))
    if target is None:
        return line
    for field in ("digest", "setting"):
        line = line.replace(f'"{field}": "{environment[field]}"', f'"{field}": "{target[field]}"', 1)
    return line


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="the studies want two cores")
@pytest.mark.parametrize(("folder", "words"), _RESUMED, ids=["cases", "plan", "variants"])
def test_an_old_results_folder_resumes_with_nothing_run_twice(command, copied, folder, words):
    cwd, _ = copied
    before = {path: path.read_bytes() for path in (cwd / folder).rglob("*.jsonl")}
    done = command([words[0], "--config-dir", "conf", *words[1:], f"results={folder}"], cwd)
    assert done.returncode == 0, done.stderr
    assert {path: path.read_bytes() for path in (cwd / folder).rglob("*.jsonl")} == before


def test_a_new_record_has_every_field_of_an_old_one(copied):
    _, fresh = copied
    golden = _golden("surface")
    for record in fresh.values():
        assert record.keys() >= set(golden["record"])
        assert record["case"].keys() >= set(golden["case"])
        assert record["environment"].keys() >= set(golden["environment"])
