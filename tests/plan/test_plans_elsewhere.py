"""Tests of plans in other verbs: lint, status and merge distinguish planned from measured records and keep both."""

import json

import pytest

from scaling.analysis import findings, lint
from scaling.cli import merge
from scaling.cli import status as statuses
from scaling.core.record import to_line
from scaling.results import store
from tests.support import made_up, planned


def test_a_folder_of_plans_is_not_publishable_and_status_lists_planned_cases(tmp_path):
    made_up.write(tmp_path / "alone", [planned.plan(1e-3, devices) for devices in (1, 2)], None, ["strong"])
    (tmp_path / "alone" / "study.json").unlink()
    remarks = lint.lint_findings(findings.read(tmp_path / "alone"))
    assert [(remark.rule, remark.severity) for remark in remarks] == [
        ("nothing measured, only planned", "warning")
    ]
    status = statuses.load_status(tmp_path / "alone")
    assert status.counts == {} and status.notes == [
        "2 records of `scaling plan`, which `scaling report` shows"
    ]
    made_up.write(tmp_path / "one", [planned.plan(1e-3, 1)], None, ["strong"])
    assert "1 record of `scaling plan`, which" in " ".join(statuses.load_status(tmp_path / "one").notes)


def test_merged_plans_keep_their_hardware_and_appear_once(tmp_path):
    folders = [tmp_path / name for name in "ab"]
    for folder, devices in zip(folders, (1, 2), strict=True):
        made_up.write(folder, [planned.plan(1e-3, 1), planned.plan(1e-3, devices)], None, ["strong"])
        store.write_json(folder / "plan-mine.json", {"hardware": {"title": f"A machine, by {folder.name}"}})
        (folder / "records.jsonl").rename(folder / f"{folder.name}.jsonl")
    for copied in (2, 0):
        merged = merge.merge([str(folder) for folder in folders], str(tmp_path / "c"))
        assert f": {copied} records copied" in merged[-1] and len(store.load(tmp_path / "c").plans) == 2
    (forecast,) = findings.read(tmp_path / "c").forecasts
    assert forecast.title == "A machine, by a"


DAMAGED = {  # path in the record, and a damaged value
    "device kind that is a number": (("environment", "device_kind"), 5),
    "no platform": (("environment", "platform"), None),
    "hardware without a name": (("environment", "hardware"), {}),
    "hardware that is a text": (("environment", "hardware"), "v5p"),
    "a missing time part": (("predicted", "communication"), None),
    "a time part that is a text": (("predicted", "waiting"), "x"),
    "a bound that is a number": (("predicted", "bound"), 5),
    "a method that is a list": (("predicted", "by"), [1]),
    "an interval without its median": (("predicted", "low"), 1.0),
    "samples that are texts": (("predicted", "draws"), ["x"]),
    "bytes that are a text": (("messages",), [{"kind": "all-reduce", "bytes": "x", "group": 2}]),
    "a kernel that is a number": (("kernels",), [1]),
    "status ok without a run": (("status",), "ok"),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_plan_is_skipped_and_named(name, tmp_path):
    path, value = DAMAGED[name]
    fields = json.loads(to_line(planned.plan(1e-3, 2)))
    *parents, last = path
    parent = fields
    for step in parents:
        parent = parent[step]
    parent[last] = value
    made_up.write(tmp_path, [planned.plan(1e-3, 1)])
    (tmp_path / "other.jsonl").write_text(json.dumps(fields) + "\n")
    loaded = store.load(tmp_path)
    assert len(loaded.plans) == 1 and len(loaded.damaged) == 1 and "other.jsonl:1" in loaded.damaged[0]
    assert len(findings.read(tmp_path).forecasts) == 1
