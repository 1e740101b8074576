"""Laws of what becomes of submissions: what lives is not taken for lost, and what was lost is on record once, as asked for."""

import dataclasses
import datetime
import types

import pytest

from scaling import launch, machine
from scaling.case import Case
from scaling.cluster import outcome, pack, slurm, submission
from scaling.cluster.settings import Cluster
from scaling.cluster.slurm import State
from scaling.machine import Machine
from scaling.preflight import Answer
from scaling.settings import Settings
from scaling.store import Writer, load
from scaling.workload import complete

NODES = Machine("cpu", None, 2, 2, "of partition main", remote=True)
SETTINGS = Settings(attempts=3)


@pytest.fixture
def made(tmp_path):
    """A submission of one task of four cases, not handed over yet."""
    cases = [complete(Case("poisson", points=16 * n, mode="jacrev")) for n in range(1, 5)]
    plan = launch.plan([Answer(case, None, None) for case in cases], SETTINGS, NODES, [])
    tasks = pack.tasks(plan, SETTINGS, [], 1e9)
    return submission.create(tmp_path, "20261121T201500-3f2a", Cluster(name="slurm"), tasks, SETTINGS, plan, False)


def aged(made, seconds):
    """The same, submitted so long ago."""
    then = datetime.datetime.now(datetime.UTC) - datetime.timedelta(seconds=seconds)
    old = dataclasses.replace(made, made_at=then.isoformat(timespec="seconds"))
    submission.save(old)
    return old


def asked(monkeypatch, states, named=()):
    """A Slurm that knows these jobs, and these by the name of the submission."""
    monkeypatch.setattr(slurm, "states", lambda jobs: {job: states[job] for job in jobs if job in states})
    monkeypatch.setattr(slurm, "named", lambda name: list(named))


@pytest.mark.parametrize(("age", "named", "state"), [(0, [], "PENDING"), (9999, ["7"], "PENDING"), (9999, [], "LOST")])
def test_a_task_that_is_being_handed_over_is_not_lost(made, tmp_path, monkeypatch, age, named, state):
    aged(made, age)
    asked(monkeypatch, {}, named)
    (seen,) = outcome.look(tmp_path)
    assert seen.state.name == state
    assert outcome.settle(tmp_path, [seen]) == 0 and not load(tmp_path).records  # nothing of it had begun
    assert len(outcome.queued([seen])) == (4 if state == "PENDING" else 0)


def test_what_was_lost_is_on_record_once_in_the_environment_that_was_asked_for(made, tmp_path, monkeypatch, make_record):
    made = submission.with_jobs(made, {"0001": "7"})
    first, second, *_ = submission.read(made.entries[0].path).items
    older = make_record(
        **{name: getattr(first.case, name) for name in ("workload", "points", "mode")}, status="failed", reason="killed"
    )
    Writer(tmp_path).append(dataclasses.replace(older, case=first.case))  # of other code: the first attempt of that
    journal = submission.Journal(made.entries[0].path)
    for item in (first, second):
        journal.say("begin", key=item.case.key, replicate=0, attempt=1)
    journal.say("end", key=second.case.key, replicate=0, status="ok")
    asked(monkeypatch, {"7": State("TIMEOUT", "n1")})
    monkeypatch.setattr(machine, "node_name", lambda: "the-login-node")
    assert outcome.settle(tmp_path, outcome.look(tmp_path)) == 1
    assert outcome.settle(tmp_path, outcome.look(tmp_path)) == 0
    (lost,) = [record for record in load(tmp_path).records if record.environment["digest"] != older.environment["digest"]]
    assert (lost.key, lost.reason, lost.attempt, lost.environment["hosts"]) == (first.case.key, "timeout", 1, [])
    assert lost.environment["digest"] == submission.read(made.entries[0].path).environments[None, ()]["digest"]


def test_a_task_of_another_host_is_neither_running_nor_lost(made, tmp_path):
    submission.save(dataclasses.replace(made, kind="local", host="elsewhere"))
    (seen,) = outcome.look(tmp_path)
    assert seen.state.name == outcome.UNKNOWN and not (made.folder / "states.json").exists()
    journal = submission.Journal(made.entries[0].path)
    journal.say("begin", key=submission.read(made.entries[0].path).items[0].case.key, replicate=0, attempt=1)
    assert outcome.settle(tmp_path, [seen]) == 0 and not load(tmp_path).records  # it may still bring it
    assert len(outcome.queued([seen])) == 4


@pytest.mark.parametrize(
    ("job", "jobs"),
    [("12", ["12"]), ("12_3", ["12_3"]), ("12_[0-2]", ["12_0", "12_1", "12_2"]), ("12_[1,4-5%2]", ["12_1", "12_4", "12_5"])],
)
def test_an_array_that_never_began_is_all_of_its_tasks(job, jobs):
    assert slurm._each(job) == jobs


def test_what_accounting_believes_to_run_and_the_controller_has_forgotten_does_not(monkeypatch):
    said = {"sacct": "12_0|RUNNING|n1|00:10|0:0\n12_1|COMPLETED|n1|00:10|0:0\n12_[2-3]|CANCELLED by 0|None assigned|00:00|0:0\n",
            "squeue": "12_4|PENDING||0:00|Priority\n"}  # fmt: skip
    monkeypatch.setattr(slurm, "ask", lambda *words: said[words[0]])
    found = slurm.states([f"12_{n}" for n in range(5)])
    assert {job: state.name for job, state in found.items()} == {
        "12_1": "COMPLETED", "12_2": "CANCELLED", "12_3": "CANCELLED", "12_4": "PENDING",
    }  # fmt: skip


def test_arrays_are_no_longer_than_the_cluster_allows(monkeypatch):
    from scaling.cluster import submit

    monkeypatch.setattr(slurm, "most_in_array", lambda: 10)
    shapes = [machine.Shape(1)] * 25 + [machine.Shape(2)] * 3
    entries = tuple(types.SimpleNamespace(shape=shape, name=str(n)) for n, shape in enumerate(shapes))
    arrays = submit._arrays(types.SimpleNamespace(entries=entries), Cluster(name="slurm"))
    assert [len(array) for array in arrays] == [10, 10, 5, 3]
    assert all(len({entry.shape for entry in array}) == 1 for array in arrays)
    assert [entry.name for array in arrays for entry in array] == [str(n) for n in range(28)]
