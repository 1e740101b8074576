"""Laws of taking turns: who is compared alternates, a death costs one record, and what did not fit beside others runs alone."""

import contextlib
import dataclasses
import random

import pytest

from scaling.core.case import Case
from scaling.core.store import Writer, latest, load
from scaling.workers import supervise, worker_group
from scaling.workers.machine import Machine
from scaling.workers.preflight_result import PreflightResult
from scaling.workers.run_settings import RunSettings
from scaling.workers.schedule import Schedule, ScheduledCase
from scaling.workers.worker_group import Variant, WorkerDied

UNBOUND = RunSettings(
    bind=False
)  # nothing is measured: cores that a study on this host holds are not waited for
ENVIRONMENT = {"digest": "e" * 12, "setting": "e" * 12, "platform": "cpu", "cores": [0]}


def items(*modes, points=(6,)):
    cases = [Case("linear", points=n, mode=mode, api="jit") for n in points for mode in modes]
    return [ScheduledCase(PreflightResult(case, None, None), order, 1) for order, case in enumerate(cases)]


class Stage:
    """Stands for the processes: hears every order, and answers as a script says. `log`: (seat, what, key) in order."""

    def __init__(self, monkeypatch, answers=lambda seat, order, count: None, needs=lambda key, seat: 3):
        self.log, self.started, self.answers, self.needs, self.seen = [], 0, answers, needs, {}
        monkeypatch.setattr(worker_group, "open_worker_group", self.seat)

    @contextlib.contextmanager
    def seat(self, job, variant, shape, platform, lock, transport, log, report_wait=None):
        self.started += 1
        yield self.Seat(self, variant.name)

    @dataclasses.dataclass
    class Seat:
        stage: "Stage"
        name: str

        def request(self, order, seconds):
            what, key = order["do"], order["key"]
            self.stage.log.append((self.name, what, key))
            count = self.stage.seen[self.name, what, key] = self.stage.seen.get((self.name, what, key), 0) + 1
            event = self.stage.answers(self.name, order, count)
            if isinstance(event, WorkerDied):
                raise event
            default = {
                "prepare": {"event": "ready"}, "forget": {"event": "forgotten"},
                "finish": {"event": "end", "status": "ok", "reason": None},
                "turn": {"event": "turn", "enough": count >= self.stage.needs(key, self.name)},
            }[what]  # fmt: skip
            yield event or default


def run(tmp_path, some, baseline=None, settings=None, heard=None, between=None):
    made = Schedule((tuple(some),), (), 0, Machine("cpu", None, 4), {(None, ()): ENVIRONMENT})
    (tmp_path / "other").mkdir(exist_ok=True)
    other = (Variant("other"), tmp_path / "other") if baseline else None
    supervise.run_schedule(
        made,
        settings or UNBOUND,
        tmp_path,
        0,
        (heard if heard is not None else []).append,
        other,
        None,
        between,
    )


def test_cases_of_one_problem_take_turns_and_others_come_before_or_after(monkeypatch, tmp_path):
    stage = Stage(monkeypatch)
    some = items("jacfwd", "jacrev", "vmap_grad", points=(6, 12))
    run(tmp_path, some)
    keys = {n: {item.case.key for item in some if item.case.points == n} for n in (6, 12)}
    turns = [key for _, what, key in stage.log if what == "turn"]
    assert set(turns[:9]) == keys[6] and set(turns[9:]) == keys[12]
    for start in range(0, 18, 3):
        assert len(set(turns[start : start + 3])) == 3, "each has its turn before any has another"
    prepared = [i for i, (_, what, key) in enumerate(stage.log) if what == "prepare" and key in keys[6]]
    assert max(prepared) < min(i for i, (_, what, _) in enumerate(stage.log) if what == "turn")
    assert [stage.seen["this", "finish", item.case.key] for item in some] == [1] * 6


def test_what_else_is_to_be_done_is_done_when_every_case_that_was_begun_has_ended(monkeypatch, tmp_path):
    stage, held = Stage(monkeypatch), []

    def between():
        whats = [what for _, what, _ in stage.log]
        held.append((whats.count("prepare"), whats.count("finish")))

    run(tmp_path, items("jacfwd", "jacrev", points=(6, 12)), between=between)
    assert held == [(2, 2), (4, 4)]


def test_the_order_of_turns_changes_from_round_to_round_and_comes_from_the_recorded_seed(
    monkeypatch, tmp_path
):
    logs = []
    for seed in (3, 3, 4):
        stage = Stage(monkeypatch, needs=lambda key, seat: 6)
        run(
            tmp_path,
            items("jacfwd", "jacrev", "vmap_grad", "linearize"),
            settings=dataclasses.replace(UNBOUND, order_seed=seed),
        )
        logs.append([key for _, what, key in stage.log if what == "turn"])
    assert logs[0] == logs[1] != logs[2]
    assert len({tuple(logs[0][start : start + 4]) for start in range(0, 24, 4)}) > 2


def test_both_sides_of_a_comparison_stop_together(monkeypatch, tmp_path):
    [item] = items("jacfwd")
    stage = Stage(monkeypatch, needs=lambda key, seat: 3 if seat == "this" else 7)
    run(tmp_path, [item], baseline=True)
    key = item.case.key
    assert stage.seen["this", "turn", key] == stage.seen["other", "turn", key] == 7
    assert stage.seen["this", "finish", key] == stage.seen["other", "finish", key] == 1


@pytest.mark.parametrize("what", ["prepare", "turn", "finish"])
def test_a_death_costs_the_record_of_the_case_that_it_befell_and_the_others_run_in_a_fresh_process(
    what, monkeypatch, tmp_path
):
    some = items("jacfwd", "jacrev", "vmap_grad")
    victim = random.Random(1).choice(some).case.key

    def answers(seat, order, count):
        return (
            WorkerDied("killed", "was killed by signal 11")
            if order["do"] == what and order["key"] == victim
            else None
        )

    stage = Stage(monkeypatch, answers)
    heard = []
    run(tmp_path, some, heard=heard)
    assert stage.started == 2 or what == "finish"
    [record] = load(tmp_path).records
    assert (record.key, record.status, record.reason) == (victim, "failed", "killed")
    ended = {key for _, done, key in stage.log if done == "finish"} - {victim}
    assert ended == {item.case.key for item in some} - {victim}
    assert sorted(event["key"] for event in heard if event["event"] == "end") == sorted(
        item.case.key for item in some
    )


def test_a_death_on_one_side_does_not_keep_the_other_from_its_record(monkeypatch, tmp_path):
    [item] = items("jacfwd")
    stage = Stage(
        monkeypatch,
        lambda seat, order, count: (
            WorkerDied("killed", "") if seat == "other" and order["do"] == "turn" else None
        ),
    )
    run(tmp_path, [item], baseline=True)
    assert [r.reason for r in load(tmp_path / "other").records] == ["killed"]
    assert stage.seen["this", "finish", item.case.key] == 1


def test_what_does_not_fit_beside_others_runs_again_by_itself(monkeypatch, tmp_path):
    some = items("jacfwd", "jacrev", "vmap_grad")
    shy = some[1].case.key

    def answers(seat, order, count):
        return {"event": "later"} if (order["do"], order["key"], count) == ("prepare", shy, 1) else None

    stage = Stage(monkeypatch, answers)
    run(tmp_path, some)
    assert stage.started == 1 and load(tmp_path).records == []
    order = [key for _, what, key in stage.log if what == "finish"]
    assert order[-1] == shy and len(order) == 3


@pytest.mark.parametrize("what", ["prepare", "turn"])
def test_a_pair_is_never_torn_what_does_not_fit_on_one_side_is_taken_back_on_both(
    what, monkeypatch, tmp_path
):
    some = items("jacfwd", "jacrev")
    shy = some[1].case.key
    blocks = {}

    def answers(seat, order, count):
        if order["do"] == "prepare":
            blocks[seat, order["key"]] = order["block"]
        return (
            {"event": "later"}
            if (seat, order["do"], order["key"], count) == ("other", what, shy, 1)
            else None
        )

    stage = Stage(monkeypatch, answers)
    run(tmp_path, some, baseline=True)
    for item in some:
        assert blocks["this", item.case.key] == blocks["other", item.case.key]
        for seat in ("this", "other"):
            assert stage.seen[seat, "finish", item.case.key] == 1
    assert stage.seen["this", "prepare", shy] == 2 == stage.seen["other", "prepare", shy]


def test_what_died_after_its_record_was_written_is_not_put_on_record_again(
    monkeypatch, tmp_path, make_record
):
    [item] = items("jacfwd")
    writer = Writer(tmp_path)
    blocks = []

    def answers(seat, order, count):
        if order["do"] == "prepare":
            blocks.append(order["block"])
        if order["do"] == "finish":
            written = make_record(
                workload="linear", points=6, mode="jacfwd", api="jit", sizes={}, block=blocks[-1]
            )
            assert written.key == item.case.key
            writer.append(written)
            return WorkerDied("killed", "was killed by signal 9")
        return None

    Stage(monkeypatch, answers)
    run(tmp_path, [item])
    assert [record.status for record in load(tmp_path).records] == ["ok"]


def test_a_side_that_does_not_start_twice_fails_its_own_cases_and_no_others(monkeypatch, tmp_path):
    some = items("jacfwd", "jacrev")
    stage = Stage(monkeypatch)
    whole = stage.seat

    def seat(job, side, *rest):
        if side.name == "other":
            raise WorkerDied("killed", "unknown flag")
        return whole(job, side, *rest)

    monkeypatch.setattr(worker_group, "open_worker_group", seat)
    run(tmp_path, some, baseline=True)
    assert {(r.key, r.reason) for r in load(tmp_path / "other").records} == {
        (item.case.key, "killed") for item in some
    }
    assert load(tmp_path).records == []
    assert all(stage.seen["this", "finish", item.case.key] == 1 for item in some)


def test_a_death_for_memory_beside_others_is_no_verdict_until_the_case_dies_alone(monkeypatch, tmp_path):
    some = items("jacfwd", "jacrev")
    hungry = some[0].case.key
    alone = []

    def answers(seat, order, count):
        if order["key"] == hungry and order["do"] == "prepare":
            alone.append(order["alone"])
            return WorkerDied("out_of_memory", "std::bad_alloc")
        return None

    Stage(monkeypatch, answers)
    run(tmp_path, some)
    assert alone == [False, True]
    assert [(r.key, r.reason) for r in load(tmp_path).records] == [(hungry, "out_of_memory")]


@pytest.mark.parametrize("points, dominated", [((6, 12), True), ((12, 6), False)])
def test_bigger_neighbours_of_what_ran_out_of_memory_are_skipped_and_smaller_ones_are_not(
    monkeypatch, tmp_path, points, dominated
):
    some = items("jacfwd", points=points)

    def answers(seat, order, count):
        full = order["key"] == some[0].case.key and order["do"] == "prepare"
        return (
            {"event": "end", "status": "failed", "reason": "out_of_memory", "text": "", "seconds": []}
            if full
            else None
        )

    stage = Stage(monkeypatch, answers)
    run(tmp_path, some)
    skipped = [r for r in load(tmp_path).records if r.reason == "dominated"]
    assert [r.key for r in skipped] == ([some[1].case.key] if dominated else [])
    assert all(some[0].case.key in r.text for r in skipped)
    assert (("this", "finish", some[1].case.key) in stage.log) == (not dominated)


def test_another_mode_is_no_neighbour(monkeypatch, tmp_path):
    first, second = items("jacrev", points=(6,)) + items("jacfwd", points=(12,))
    full = {"event": "end", "status": "failed", "reason": "out_of_memory", "text": "", "seconds": []}
    Stage(monkeypatch, lambda seat, order, count: full if order["key"] == first.case.key else None)
    run(tmp_path, [first, second])
    assert load(tmp_path).records == []


def test_workers_that_cannot_start_leave_a_record_of_every_case(monkeypatch, tmp_path):
    @contextlib.contextmanager
    def nobody(*_):
        raise WorkerDied("killed", "the process ended with status 1: ImportError: no jax")
        yield

    monkeypatch.setattr(worker_group, "open_worker_group", nobody)
    some = items("jacfwd", "jacrev", points=(6, 12))
    run(tmp_path, some)
    records = latest(load(tmp_path).records)
    assert {r.key for r in records} == {item.case.key for item in some}
    assert all(r.reason == "killed" and "no jax" in r.text for r in records)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_worker_has_64_bits_where_its_cases_have(dtype, monkeypatch, tmp_path):
    stage, headers = Stage(monkeypatch), []

    def seat(header, *more):
        headers.append(header)
        return stage.seat(header, *more)

    monkeypatch.setattr(worker_group, "open_worker_group", seat)
    answer = PreflightResult(Case("linear", points=6, api="jit", dtype=dtype), None, None)
    run(tmp_path, [ScheduledCase(answer, 0, 1)])
    assert [header["x64"] for header in headers] == [dtype == "float64"]


def test_a_case_has_its_time_limit_over_all_its_turns(monkeypatch, tmp_path):
    clock = [0.0]
    monkeypatch.setattr(supervise.time, "monotonic", lambda: clock[0])
    left = []
    stage = Stage(monkeypatch, needs=lambda key, seat: 4)
    whole = stage.Seat.request

    def request(self, order, seconds):
        left.append(seconds)
        clock[0] += 2.0
        yield from whole(self, order, seconds)

    monkeypatch.setattr(stage.Seat, "request", request)
    run(tmp_path, items("jacfwd"), settings=dataclasses.replace(UNBOUND, case_seconds=20.0))
    assert left[:-1] == [20, 18, 16, 14, 12], "a record is written whatever is left"
