"""Tests of the compile pool: every case gets a result, common programs are compiled once, a dying worker fails one case.

The compile workers are fakes of a few lines without JAX; the name of the workload selects what a case does.
"""

import collections
import contextlib
import functools
import os
import time

import pytest

from scaling.core.case import Case
from scaling.launcher.worker_group import AllocationLost, Variant
from scaling.plan import compile_pool

FAKE_WORKER = """
import json, os, sys, time

out = os.fdopen(os.dup(1), "w")
job = json.loads(sys.stdin.readline())
if job.get("stillborn"):
    sys.exit("no compiler here")
log = open(os.path.join(job["log"], str(os.getpid())), "a")


def send(**event):
    print(json.dumps(event), file=out, flush=True)


send(event="started")
for line in sys.stdin:
    case = json.loads(line)["case"]
    print("compile", case["workload"], case.get("devices", 1), file=log, flush=True)
    word, _, rest = case["workload"].partition(".")
    if word == "unbuildable":
        send(event="end", status="skipped", reason="not_defined", text="it has no meaning")
    elif word == "dies" or (word == "once" and not os.path.exists(os.path.join(job["log"], "died"))):
        open(os.path.join(job["log"], "died"), "w").close()
        sys.exit("it fell over")
    elif word == "sleeps":
        time.sleep(600)
    elif word == "broken":
        send(event="end", status="failed", reason="error", text="the compiler refused")
    else:
        time.sleep(job["seconds"])
        send(event="end", status="planned", compile_seconds=0.5, trace_seconds=0.1, lower_seconds=0.2, output_bytes=7)
"""


@pytest.fixture
def compile_cases(tmp_path, monkeypatch):
    """Compile cases with fake workers and return (case, result) pairs in order; `actions` lists those of the workers."""
    (tmp_path / "stand_in.py").write_text(FAKE_WORKER)
    (tmp_path / "log").mkdir()
    monkeypatch.setattr(compile_pool, "module_names", lambda folder: {"alike", "once"})
    monkeypatch.setattr(compile_pool, "Variant", functools.partial(_fake_variant, tmp_path))

    def run(cases, size=1, limit=30.0, report=None, compiling=0.0, **header):
        results = []
        header = {"platform": "gpu", "log": str(tmp_path / "log"), "seconds": compiling} | header
        report = report or (lambda case, result: results.append((case, result)))
        run.started = []
        with contextlib.closing(compile_pool.compile_cases(header, cases, size, limit)) as compiled:
            for case, result in compiled:
                if result is None:
                    run.started.append(case)
                else:
                    report(case, result)
        assert not live_workers(tmp_path / "log"), "no worker is left behind"
        return results

    run.actions = lambda: sorted(
        line for path in (tmp_path / "log").iterdir() for line in path.read_text().splitlines()
    )
    return run


def _fake_variant(folder, name, module, variables):
    assert module == "scaling.plan.compile_worker"
    return Variant(
        name, module="stand_in", folder=folder, variables=dict(variables) | {"PYTHONPATH": str(folder)}
    )


def live_workers(log):
    return [
        path.name for path in log.iterdir() if path.name.isdigit() and os.path.exists(f"/proc/{path.name}")
    ]


def case(workload="own", devices=1, **fields):
    return Case(workload, points=840, devices=devices, **fields)


def alike(devices, workload="alike", **fields):
    """Return a case that does the same work on each device as the others of this workload."""
    return Case(workload, points=5 * devices, devices=devices, **fields)


def statuses(results):
    return collections.Counter(
        (reported.workload.partition(".")[0], result["status"], result.get("reason"))
        for reported, result in results
    )


@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_every_case_is_reported_once_for_any_number_of_workers(compile_cases, size):
    cases = [case(f"own.{k}", devices=k + 1) if k % 2 else alike(k + 1) for k in range(6)]
    cases += [case("unbuildable"), case("broken")]
    results = compile_cases(cases, size)
    assert sorted(reported.key for reported, _ in results) == sorted(reported.key for reported in cases)
    by_case = dict(results)
    assert by_case[case("unbuildable")] == {
        "status": "skipped", "reason": "not_defined", "text": "it has no meaning",
        "program": case("unbuildable").key,
    }  # fmt: skip
    assert by_case[case("broken")]["text"] == "the compiler refused"
    assert all("event" not in fields and "rank" not in fields for fields in by_case.values())


@pytest.mark.parametrize("size", [1, 3])
def test_a_program_that_cases_share_is_compiled_once(compile_cases, size):
    results = compile_cases([alike(n) for n in (1, 2, 4, 8)], size, compiling=0.3)
    assert compile_cases.actions() == ["compile alike 8"] and compile_cases.started == [alike(8)]
    assert len(results) == 4
    for reported, result in results:
        assert result["status"] == "planned" and result["output_bytes"] == 7
        assert result["program"] == alike(1).key and result["compile_seconds"] == 0.5, "of the compiled case"
        assert result.get("compiled_as") == (None if reported == alike(8) else alike(8).key)


def test_cases_with_the_largest_device_counts_come_first(compile_cases):
    results = compile_cases([case(f"own.{n}", devices=n) for n in (2, 840, 1, 56)])
    assert [reported.devices for reported, _ in results] == [840, 56, 2, 1]
    assert [reported.devices for reported in compile_cases.started] == [840, 56, 2, 1]


def test_programs_of_a_user_which_may_depend_on_the_number_of_points_are_compiled_separately(compile_cases):
    compile_cases([alike(n, "own") for n in (1, 2)])
    assert len(compile_cases.actions()) == 2


@pytest.mark.parametrize("fields", [{"split": "data"}, {"split": "seeds"}, {"split": "both"}])
def test_programs_that_may_depend_on_the_number_of_devices_are_compiled_separately(compile_cases, fields):
    results = compile_cases([alike(n, **fields) for n in (1, 2)])
    assert len(compile_cases.actions()) == 2
    assert len({result["program"] for _, result in results}) == 2
    assert all("compiled_as" not in result for _, result in results)


@pytest.mark.parametrize("size", [1, 2])
def test_a_dying_compile_worker_fails_one_case_and_the_others_continue(compile_cases, size):
    results = compile_cases([case("dies", devices=8), *(alike(n) for n in (4, 2)), case("own")], size)
    assert statuses(results) == {
        ("dies", "failed", "killed"): 1,
        ("alike", "planned", None): 2,
        ("own", "planned", None): 1,
    }
    (died,) = [result for _, result in results if result["status"] == "failed"]
    assert "ended with status 1: it fell over" in died["text"]


def test_cases_waiting_for_a_shared_program_are_retried_if_its_worker_dies(compile_cases):
    results = compile_cases([alike(n, "once") for n in (8, 4, 2, 1)], size=3, compiling=0.2)
    assert len({reported for reported, _ in results}) == len(results) == 4
    assert statuses(results) == {("once", "failed", "killed"): 1, ("once", "planned", None): 3}
    assert len([line for line in compile_cases.actions() if line.startswith("compile")]) == 2


def test_a_case_is_stopped_after_its_time_limit(compile_cases):
    start = time.monotonic()
    results = compile_cases([case("sleeps", devices=2), case("own")], limit=0.5)
    assert time.monotonic() - start < 300  # the worker sleeps for 600 s
    assert statuses(results) == {("sleeps", "failed", "timeout"): 1, ("own", "planned", None): 1}
    assert results[0][1]["text"] == "timed out after 0.5 s (case_seconds)"


@pytest.mark.parametrize("size", [1, 3])
def test_the_pool_ends_with_the_error_if_a_record_cannot_be_written(compile_cases, size):
    def fail(reported, result):
        raise OSError("no space left on device")

    with pytest.raises(OSError, match="no space left"):
        compile_cases([case(f"own.{n}", devices=n) for n in range(1, 30)], size, report=fail, compiling=0.1)
    time.sleep(0.5)
    assert 1 <= len(compile_cases.actions()) <= 2 * size + 1, "no more cases are started"


def test_the_pool_ends_if_a_compile_worker_does_not_start(compile_cases):
    with pytest.raises(AllocationLost, match=r"the compile worker did not start: .*no compiler here"):
        compile_cases([case("own"), case("other")], stillborn=True)


def test_no_compile_worker_starts_without_cases(compile_cases):
    assert compile_cases([]) == [] and compile_cases.actions() == []
