"""Tests of interleaved sampling: cases of one problem alternate, a dying worker fails one case, and large cases run alone."""

import contextlib
import dataclasses
import queue
import random

import pytest

from scaling.core.case import AUTO, Case
from scaling.core.record import to_line
from scaling.launcher import supervise, worker_group
from scaling.launcher.machine import Machine
from scaling.launcher.run_settings import RunSettings
from scaling.launcher.schedule import PreflightResult, Schedule, ScheduledCase
from scaling.launcher.worker_group import AllocationLost, SshShells, Variant, WorkerDied
from scaling.results.store import append_records, latest_records, load

UNBOUND = RunSettings(bind=False)  # nothing is measured, so the tests need not wait for free cores
TOO_LARGE = {"event": "end", "line": "no record", "status": "skipped", "reason": "too_large"}
OUT_OF_MEMORY = {
    "event": "end", "line": "", "status": "failed", "reason": "out_of_memory", "text": "", "seconds": [],
}  # fmt: skip
ENVIRONMENT = {"digest": "e" * 12, "setting": "e" * 12, "platform": "cpu", "cores": [0]}


def make_items(*modes, points=(6,)):
    cases = [Case("linear", points=n, mode=mode, api="jit") for n in points for mode in modes]
    return [
        ScheduledCase(PreflightResult(case, None, None), position, 1) for position, case in enumerate(cases)
    ]


class FakeWorkers:
    """Simulated worker groups that log every request as (group, action, key) and reply as a script says."""

    def __init__(
        self, monkeypatch, reply=lambda group, message, count: None, turns_needed=lambda key, group: 3
    ):
        self.log, self.started, self.reply, self.turns_needed, self.counts = [], 0, reply, turns_needed, {}
        monkeypatch.setattr(worker_group, "open_worker_group", self.open_group)

    @contextlib.contextmanager
    def open_group(self, job, variant, shape, lock, transport, log, report_wait=None):
        self.started += 1
        yield self.Group(self, variant.name)

    @dataclasses.dataclass
    class Group:
        workers: "FakeWorkers"
        name: str
        seconds_left: float = 0.0

        def request(self, message, seconds):
            action, key, self.seconds_left = message["do"], message["key"], seconds
            self.workers.log.append((self.name, action, key))
            count = self.workers.counts[self.name, action, key] = (
                self.workers.counts.get((self.name, action, key), 0) + 1
            )
            event = self.workers.reply(self.name, message, count)
            if isinstance(event, WorkerDied):
                raise event
            default = {
                "prepare": {"event": "ready"}, "finish": {"event": "end", "line": "", "status": "ok", "reason": None},
                "turn": {"event": "ready", "enough": count >= self.workers.turns_needed(key, self.name)},
            }[action]  # fmt: skip
            yield event or default


def run(tmp_path, items, baseline=None, settings=None, events=None):
    plan = Schedule((tuple(items),), (), 0, Machine("cpu", None, 4), {(None, ()): ENVIRONMENT})
    (tmp_path / "other").mkdir(exist_ok=True)
    other = (Variant("other"), tmp_path / "other") if baseline else None
    supervise.run_schedule(
        plan, settings or UNBOUND, tmp_path, 0, (events if events is not None else []).append, other
    )


def test_cases_of_one_problem_are_interleaved_and_other_problems_are_not(monkeypatch, tmp_path):
    workers = FakeWorkers(monkeypatch)
    items = make_items("jacfwd", "jacrev", "vmap_grad", points=(6, 12))
    run(tmp_path, items)
    keys = {n: {item.case.key for item in items if item.case.points == n} for n in (6, 12)}
    turns = [key for _, action, key in workers.log if action == "turn"]
    assert set(turns[:9]) == keys[6] and set(turns[9:]) == keys[12]
    for start in range(0, 18, 3):
        assert len(set(turns[start : start + 3])) == 3, "each case has one turn per round"
    prepared = [i for i, (_, action, key) in enumerate(workers.log) if action == "prepare" and key in keys[6]]
    assert max(prepared) < min(i for i, (_, action, _) in enumerate(workers.log) if action == "turn")
    assert [workers.counts["this", "finish", item.case.key] for item in items] == [1] * 6


def test_the_order_of_turns_differs_between_rounds_and_depends_on_the_seed(monkeypatch, tmp_path):
    logs = []
    for seed in (3, 3, 4):
        workers = FakeWorkers(monkeypatch, turns_needed=lambda key, group: 6)
        run(
            tmp_path,
            make_items("jacfwd", "jacrev", "vmap_grad", "linearize"),
            settings=dataclasses.replace(UNBOUND, order_seed=seed),
        )
        logs.append([key for _, action, key in workers.log if action == "turn"])
    assert logs[0] == logs[1] != logs[2]
    assert len({tuple(logs[0][start : start + 4]) for start in range(0, 24, 4)}) > 2


def test_both_variants_of_a_comparison_take_the_same_number_of_turns(monkeypatch, tmp_path):
    [item] = make_items("jacfwd")
    workers = FakeWorkers(monkeypatch, turns_needed=lambda key, group: 3 if group == "this" else 7)
    run(tmp_path, [item], baseline=True)
    key = item.case.key
    assert workers.counts["this", "turn", key] == workers.counts["other", "turn", key] == 7
    assert workers.counts["this", "finish", key] == workers.counts["other", "finish", key] == 1


@pytest.mark.parametrize("action", ["prepare", "turn", "finish"])
def test_a_dying_worker_fails_one_case_and_the_others_run_in_a_new_process(action, monkeypatch, tmp_path):
    items = make_items("jacfwd", "jacrev", "vmap_grad")
    victim = random.Random(1).choice(items).case.key

    def reply(group, message, count):
        return (
            WorkerDied("killed", "was killed by signal 11")
            if message["do"] == action and message["key"] == victim
            else None
        )

    workers = FakeWorkers(monkeypatch, reply)
    events = []
    run(tmp_path, items, events=events)
    assert workers.started == 2 or action == "finish"
    [record] = load(tmp_path).records
    assert (record.key, record.status, record.reason) == (victim, "failed", "killed")
    finished = {key for _, logged, key in workers.log if logged == "finish"} - {victim}
    assert finished == {item.case.key for item in items} - {victim}
    assert sorted(event["key"] for event in events if event["event"] == "end") == sorted(
        item.case.key for item in items
    )


def test_a_dying_worker_of_one_variant_does_not_fail_the_other_variant(monkeypatch, tmp_path):
    [item] = make_items("jacfwd")
    workers = FakeWorkers(
        monkeypatch,
        lambda group, message, count: (
            WorkerDied("killed", "") if group == "other" and message["do"] == "turn" else None
        ),
    )
    run(tmp_path, [item], baseline=True)
    assert [r.reason for r in load(tmp_path / "other").records] == ["killed"]
    assert workers.counts["this", "finish", item.case.key] == 1


def test_a_baseline_that_dies_before_its_first_event_is_not_recorded_with_the_environment_of_this_program(
    monkeypatch, tmp_path
):
    monkeypatch.setitem(ENVIRONMENT, "source", "c" * 12)
    FakeWorkers(monkeypatch, lambda group, *_: WorkerDied("killed", "") if group == "other" else None)
    run(tmp_path, make_items("jacfwd"), baseline=True)
    [record] = load(tmp_path / "other").records
    assert (record.reason, record.environment["platform"]) == ("killed", "cpu")
    assert record.environment["source"] is None and record.setting != ENVIRONMENT["setting"]


def test_a_case_that_does_not_fit_in_memory_with_others_runs_again_alone(monkeypatch, tmp_path):
    items = make_items("jacfwd", "jacrev", "vmap_grad")
    large = items[1].case.key

    def reply(group, message, count):
        return TOO_LARGE if (message["do"], message["key"], count) == ("prepare", large, 1) else None

    workers = FakeWorkers(monkeypatch, reply)
    run(tmp_path, items)
    loaded = load(tmp_path)
    assert workers.started == 1 and loaded.records == loaded.damaged == []
    finished = [key for _, action, key in workers.log if action == "finish"]
    assert finished[-1] == large and len(finished) == 3


@pytest.mark.parametrize("action", ["prepare", "turn"])
def test_a_case_that_does_not_fit_for_one_variant_is_postponed_for_both(action, monkeypatch, tmp_path):
    items = make_items("jacfwd", "jacrev")
    large = items[1].case.key
    blocks = {}

    def reply(group, message, count):
        if message["do"] == "prepare":
            blocks[group, message["key"]] = message["block"]
        return (
            TOO_LARGE
            if (group, message["do"], message["key"], count) == ("other", action, large, 1)
            else None
        )

    workers = FakeWorkers(monkeypatch, reply)
    events = []
    run(tmp_path, items, baseline=True, events=events)
    for item in items:
        assert blocks["this", item.case.key] == blocks["other", item.case.key]
    assert sorted(e["key"] for e in events if e["event"] == "end") == sorted(i.case.key for i in items)
    assert load(tmp_path).damaged == load(tmp_path / "other").damaged == [], (
        "each record is of the second attempt"
    )
    assert workers.counts["this", "prepare", large] == 2 == workers.counts["other", "prepare", large]


def test_the_launcher_writes_the_record_of_each_case_that_ends(monkeypatch, tmp_path, make_record):
    items = make_items("jacfwd", points=(6, 12))
    fields = {"workload": "linear", "mode": "jacfwd", "api": "jit", "sizes": {}}
    lines = {(r := make_record(points=n, **fields)).key: to_line(r) for n in (6, 12)}

    def reply(group, message, count):
        if message["do"] == "finish":
            return {"event": "end", "line": lines[message["key"]], "status": "ok", "reason": None}
        return None

    events = []
    FakeWorkers(monkeypatch, reply)
    run(tmp_path, items, events=events)
    assert sorted(record.key for record in load(tmp_path).records) == sorted(lines)
    assert len([event for event in events if event["event"] == "end"]) == 2
    assert not any("line" in event for event in events)


def test_known_blocks_are_those_of_the_environment_of_the_run(monkeypatch, tmp_path, make_record):
    """Another machine may have more memory, and `chunk=auto` chooses the largest blocks that fit."""
    item = make_items("jacfwd")[0]
    case = dataclasses.replace(item.case, chunk=AUTO)
    item = dataclasses.replace(item, preflight=PreflightResult(case, None, None))
    blocks = [{"block": n, "chunk": None, "storage": "device", "probes": []} for n in (2, 3, 1)]
    digests = [ENVIRONMENT["digest"], ENVIRONMENT["digest"], "f" * 12]
    records = [make_record(digest=d, blocks=b) for d, b in zip(digests, blocks, strict=True)]
    append_records(tmp_path, [dataclasses.replace(record, case=case) for record in records])
    known = []
    FakeWorkers(monkeypatch, lambda group, message, count: known.append(message.get("known")))
    run(tmp_path, [item])
    assert known[0] == blocks[1]


def test_a_variant_that_does_not_start_twice_fails_only_its_own_cases(monkeypatch, tmp_path):
    items = make_items("jacfwd", "jacrev")
    workers = FakeWorkers(monkeypatch)
    original = workers.open_group

    def open_group(job, variant, *rest):
        if variant.name == "other":
            raise WorkerDied("killed", "unknown flag")
        return original(job, variant, *rest)

    monkeypatch.setattr(worker_group, "open_worker_group", open_group)
    run(tmp_path, items, baseline=True)
    assert {(r.key, r.reason) for r in load(tmp_path / "other").records} == {
        (item.case.key, "killed") for item in items
    }
    assert load(tmp_path).records == []
    assert all(workers.counts["this", "finish", item.case.key] == 1 for item in items)


def test_out_of_memory_with_others_is_recorded_only_if_the_case_dies_alone_too(monkeypatch, tmp_path):
    items = make_items("jacfwd", "jacrev")
    hungry = items[0].case.key

    def reply(group, message, count):
        if message["key"] == hungry and message["do"] == "prepare":
            return WorkerDied("out_of_memory", "std::bad_alloc")
        return None

    workers = FakeWorkers(monkeypatch, reply)
    run(tmp_path, items)
    assert workers.counts["this", "prepare", hungry] == 2
    assert [(r.key, r.reason) for r in load(tmp_path).records] == [(hungry, "out_of_memory")]


@pytest.mark.parametrize("points, dominated", [((6, 12), True), ((12, 6), False)])
def test_after_out_of_memory_larger_cases_are_skipped_and_smaller_ones_are_not(
    monkeypatch, tmp_path, points, dominated
):
    items = make_items("jacfwd", points=points)

    def reply(group, message, count):
        full = message["key"] == items[0].case.key and message["do"] == "prepare"
        return dict(OUT_OF_MEMORY) if full else None

    workers = FakeWorkers(monkeypatch, reply)
    run(tmp_path, items)
    skipped = [r for r in load(tmp_path).records if r.reason == "dominated"]
    assert [r.key for r in skipped] == ([items[1].case.key] if dominated else [])
    assert all(items[0].case.key in r.text for r in skipped)
    assert (("this", "finish", items[1].case.key) in workers.log) == (not dominated)


def test_after_out_of_memory_cases_of_another_mode_are_not_skipped(monkeypatch, tmp_path):
    first, second = make_items("jacrev", points=(6,)) + make_items("jacfwd", points=(12,))
    FakeWorkers(
        monkeypatch,
        lambda group, message, count: dict(OUT_OF_MEMORY) if message["key"] == first.case.key else None,
    )
    run(tmp_path, [first, second])
    assert load(tmp_path).records == []


def let_workers_fail_to_start(monkeypatch, text):
    @contextlib.contextmanager
    def fail_to_start(*_):
        raise WorkerDied("killed", text)
        yield

    monkeypatch.setattr(worker_group, "open_worker_group", fail_to_start)


def test_every_case_has_a_record_if_workers_cannot_start(monkeypatch, tmp_path):
    let_workers_fail_to_start(monkeypatch, "the process ended with status 1: ImportError: no jax")
    items = make_items("jacfwd", "jacrev", points=(6, 12))
    run(tmp_path, items)
    records = latest_records(load(tmp_path).records)
    assert {r.key for r in records} == {item.case.key for item in items}
    assert all(r.reason == "killed" and "no jax" in r.text for r in records)


def test_a_remote_shell_that_is_not_installed_is_named(tmp_path):
    options = supervise.WorkerOptions(SshShells(("a",), ("no-such-shell",)))
    machine = Machine("cpu", None, 1, remote=True)
    plan = Schedule((tuple(make_items("jacfwd")),), (), 0, machine, {(None, ()): ENVIRONMENT})
    with pytest.raises(AllocationLost, match="no-such-shell is not installed on this host"):
        supervise.run_schedule(plan, UNBOUND, tmp_path, None, lambda event: None, options=options)


def test_a_case_whose_remote_worker_dies_is_recorded_with_its_hosts(monkeypatch, tmp_path):
    let_workers_fail_to_start(monkeypatch, "")
    options = supervise.WorkerOptions(SshShells(("a", "b")))
    machine = Machine("cpu", None, 1, nodes=2, remote=True)
    plan = Schedule((tuple(make_items("jacfwd")),), (), 0, machine, {(None, ()): ENVIRONMENT})
    supervise.run_schedule(plan, UNBOUND, tmp_path, None, lambda event: None, options=options)
    assert [record.environment["hosts"] for record in load(tmp_path).records] == [["a"]]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_workers_enable_64_bits_only_for_float64_cases(dtype, monkeypatch, tmp_path):
    workers, headers = FakeWorkers(monkeypatch), []

    def open_group(header, *rest):
        headers.append(header)
        return workers.open_group(header, *rest)

    monkeypatch.setattr(worker_group, "open_worker_group", open_group)
    answer = PreflightResult(Case("linear", points=6, api="jit", dtype=dtype), None, None)
    run(tmp_path, [ScheduledCase(answer, 0, 1)])
    assert [header["x64"] for header in headers] == [dtype == "float64"]


def test_the_time_limit_of_a_case_applies_to_the_sum_of_its_turns(monkeypatch, tmp_path):
    limits = []
    workers = FakeWorkers(monkeypatch, turns_needed=lambda key, group: 4)
    original = workers.Group.request

    def request(self, message, seconds):
        limits.append(seconds)
        for event in original(self, message, seconds):
            self.seconds_left -= 2.0
            yield event

    monkeypatch.setattr(workers.Group, "request", request)
    for seconds in (20.0, 200.0):
        run(tmp_path, make_items("jacfwd"), settings=dataclasses.replace(UNBOUND, case_seconds=seconds))
        workers.counts.clear()
    assert limits[:5] == [20, 18, 16, 14, 12] and limits[5] > 20, "a record is written whatever time is left"
    assert limits[6:] == [200, 198, 196, 194, 192, 190], "the last call may take all the time that is left"


def test_the_time_in_which_the_launcher_is_stopped_is_not_part_of_the_time_limit(monkeypatch):
    """After Ctrl-Z and `fg`, the wait has ended, and the reply of the worker is in the pipe."""
    clock, waits = [0.0], []

    class Events(queue.Queue):
        def get(self, timeout):
            waits.append(timeout)
            clock[0] += 10_000.0
            if len(waits) == 1:
                raise queue.Empty
            return {"event": "turn"}

    monkeypatch.setattr(worker_group.time, "monotonic", lambda: clock[0])
    group = worker_group.WorkerGroup([], Events())
    assert list(group.receive(600.0)) == [{"event": "turn"}]
    assert group.seconds_left == 600.0 - sum(waits) > 590.0
