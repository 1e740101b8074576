"""The crew: every case has its end, what several have in common is compiled once, and a planner that dies ends one case alone.

The planners are stand-ins, a few lines without JAX: what a case does stands in its workload's name.
"""

import collections
import functools
import os
import time

import pytest

from scaling.core.case import Case
from scaling.plan import compile_pool
from scaling.workers.machine import AllocationLost
from scaling.workers.worker_group import RecordNotWritten, Variant

STAND_IN = """
import json, os, sys, time

out = os.fdopen(os.dup(1), "w")
job = json.loads(sys.stdin.readline())
if job.get("stillborn"):
    sys.exit("no compiler here")
log = open(os.path.join(job["log"], str(os.getpid())), "a")


def say(**what):
    print(json.dumps(what), file=out, flush=True)


say(event="started")
cases = {}
for line in sys.stdin:
    order = json.loads(line)
    key, what = order["key"], order["do"]
    case = cases.setdefault(key, order.get("case"))
    print(what, case["workload"], case.get("devices", 1), file=log, flush=True)
    word, _, rest = case["workload"].partition(".")
    if what == "trace" and word == "unbuildable":
        say(event="end", key=key, status="skipped", reason="not_defined", text="it has no meaning")
    elif what == "trace":
        # "alike" is one program whatever the number of devices; "apart" has none; others are their own.
        say(event="traced", key=key, program=None if word == "apart" else case["workload"])
    elif word == "dies" or (word == "once" and not os.path.exists(os.path.join(job["log"], "died"))):
        open(os.path.join(job["log"], "died"), "w").close()
        sys.exit("it fell over")
    elif word == "sleeps":
        time.sleep(60)
    elif word == "broken":
        say(event="end", key=key, status="failed", reason="error", text="the compiler refused")
    else:
        time.sleep(job["seconds"])
        say(event="end", key=key, status="planned", compile_seconds=0.5, trace_seconds=0.1, lower_seconds=0.2, output_bytes=7)
"""


@pytest.fixture
def plan(tmp_path, monkeypatch):
    """Plan cases with stand-ins: what was told of each case, in order; `plan.did` has what the planners did."""
    (tmp_path / "stand_in.py").write_text(STAND_IN)
    (tmp_path / "log").mkdir()
    monkeypatch.setattr(compile_pool, "Variant", functools.partial(_side, tmp_path))

    def run(cases, size=1, limit=30.0, tell=None, compiling=0.0, **header):
        told = []
        header = {"platform": "gpu", "log": str(tmp_path / "log"), "seconds": compiling} | header
        begun = []
        compile_pool.CompilePool(header, size, limit).compile_all(
            cases, tell or (lambda case, found: told.append((case, found))), begun.append
        )
        assert not alive(tmp_path / "log"), "no planner is left behind"
        run.begun = begun
        return told

    run.did = lambda: sorted(
        line for path in (tmp_path / "log").iterdir() for line in path.read_text().splitlines()
    )
    return run


def _side(folder, name, module, variables):
    assert module == "scaling.plan.compile_worker"
    return Variant(
        name, module="stand_in", folder=folder, variables=dict(variables) | {"PYTHONPATH": str(folder)}
    )


def alive(log):
    return [
        path.name for path in log.iterdir() if path.name.isdigit() and os.path.exists(f"/proc/{path.name}")
    ]


def case(does="apart", devices=1, **fields):
    return Case(does, points=840, devices=devices, **fields)


def statuses(told):
    return collections.Counter(
        (each.workload.partition(".")[0], found["status"], found.get("reason")) for each, found in told
    )


@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_every_case_is_told_once_whatever_the_size_of_the_crew(plan, size):
    cases = [case(f"own.{k}" if k % 2 else "alike", devices=k + 1) for k in range(6)] + [
        case("unbuildable"),
        case("broken"),
    ]
    told = plan(cases, size)
    assert sorted(each.key for each, _ in told) == sorted(each.key for each in cases)
    assert set(plan.begun) == set(cases)
    found = dict(told)
    assert found[case("unbuildable")] == {
        "status": "skipped",
        "reason": "not_defined",
        "text": "it has no meaning",
    }
    assert found[case("broken")]["text"] == "the compiler refused"
    assert all("event" not in fields and "key" not in fields for fields in found.values())


@pytest.mark.parametrize("size", [1, 3])
def test_what_several_cases_have_in_common_is_compiled_once(plan, size):
    cases = [case("alike", devices=n) for n in (1, 2, 4, 8)]
    told = plan(cases, size, compiling=0.3)
    assert len([line for line in plan.did() if line.startswith("compile")]) == 1
    first = next(each for each, found in told if "compiled_as" not in found)
    for each, found in told:
        assert found["status"] == "planned" and found["output_bytes"] == 7 and found["program"] == "alike"
        if each != first:
            assert found["compiled_as"] == first.key
            assert found["compile_seconds"] == 0.5, "those of the case that was compiled"
    assert len([line for line in plan.did() if line.startswith("trace")]) == 4


def test_the_largest_numbers_of_devices_come_first(plan):
    told = plan([case(f"own.{n}", devices=n) for n in (2, 840, 1, 56)])
    assert [each.devices for each, _ in told] == [840, 56, 2, 1]
    assert [each.devices for each in plan.begun] == [840, 56, 2, 1]


def test_what_has_no_program_in_common_is_compiled_for_itself(plan):
    told = plan([case("apart", devices=n) for n in (1, 2)])
    assert len([line for line in plan.did() if line.startswith("compile")]) == 2
    assert all("program" not in found and "compiled_as" not in found for _, found in told)


@pytest.mark.parametrize("size", [1, 2])
def test_a_planner_that_dies_fails_one_case_and_the_others_go_on(plan, size):
    told = plan([case("dies", devices=8), *(case("alike", devices=n) for n in (4, 2)), case("own")], size)
    assert statuses(told) == {
        ("dies", "failed", "killed"): 1,
        ("alike", "planned", None): 2,
        ("own", "planned", None): 1,
    }
    (died,) = [found for _, found in told if found["status"] == "failed"]
    assert "ended with status 1: it fell over" in died["text"]


def test_what_waited_for_a_case_whose_planner_died_tries_again(plan):
    cases = [case("once", devices=n) for n in (8, 4, 2, 1)]
    told = plan(cases, size=3, compiling=0.2)
    assert len({each for each, _ in told}) == len(told) == 4
    assert statuses(told) == {("once", "failed", "killed"): 1, ("once", "planned", None): 3}
    assert len([line for line in plan.did() if line.startswith("compile")]) == 2


def test_a_case_that_takes_too_long_is_stopped(plan):
    began = time.monotonic()
    told = plan([case("sleeps", devices=2), case("own")], limit=0.5)
    assert time.monotonic() - began < 10
    assert statuses(told) == {("sleeps", "failed", "timeout"): 1, ("own", "planned", None): 1}
    assert told[0][1]["text"] == "no end after 0.5 s (case_seconds)"


@pytest.mark.parametrize("size", [1, 3])
def test_where_nothing_can_be_told_the_crew_ends_with_that_error(plan, size):
    told = []

    def full(each, found):
        told.append(each)
        if len(told) == 1:
            raise RecordNotWritten("no space left on device")

    with pytest.raises(RecordNotWritten, match="no space left"):
        plan([case(f"own.{n}", devices=n) for n in range(1, 30)], size, tell=full, compiling=0.1)
    assert 1 <= len(told) < 20, "nothing more is begun"


def test_a_planner_that_does_not_start_ends_the_crew(plan):
    with pytest.raises(AllocationLost, match=r"the compile worker did not start: .*no compiler here"):
        plan([case("own"), case("apart")], stillborn=True)


def test_no_cases_start_no_planner(plan):
    assert plan([]) == [] and plan.did() == []
