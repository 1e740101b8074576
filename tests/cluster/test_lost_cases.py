"""Laws of what becomes of submissions: what lives is not taken for lost, and what was lost is on record once, as asked for."""

import dataclasses
import datetime
import types

import pytest

from scaling.cluster import job_state, lost_cases, pack, slurm, submission_files, task
from scaling.cluster.cluster_settings import ClusterSettings
from scaling.cluster.journal import Journal
from scaling.cluster.slurm import JobState
from scaling.core import environment
from scaling.core.case import Case
from scaling.core.store import Writer, load
from scaling.study.completion import complete
from scaling.workers import schedule, supervise
from scaling.workers.machine import Machine, ProcessShape
from scaling.workers.preflight_result import PreflightResult
from scaling.workers.run_settings import RunSettings

NODES = Machine("cpu", None, 2, 2, "of partition main", remote=True)
SETTINGS = RunSettings(attempts=3)


@pytest.fixture
def made(tmp_path):
    """A submission of one task of four cases, not handed over yet."""
    cases = [complete(Case("poisson", points=16 * n, mode="jacrev")) for n in range(1, 5)]
    plan = schedule.make_schedule([PreflightResult(case, None, None) for case in cases], SETTINGS, NODES, [])
    tasks = pack.pack(plan, SETTINGS, [], 1e9)
    return submission_files.create_submission(
        tmp_path, "20261121T201500-3f2a", ClusterSettings(name="slurm"), tasks, SETTINGS, plan, False
    )


def aged(made, seconds):
    """The same, submitted so long ago."""
    then = datetime.datetime.now(datetime.UTC) - datetime.timedelta(seconds=seconds)
    old = dataclasses.replace(made, made_at=then.isoformat(timespec="seconds"))
    submission_files.write_submission(old)
    return old


def asked(monkeypatch, states, named=()):
    """A Slurm that knows these jobs, and these by the name of the submission."""
    monkeypatch.setattr(
        slurm, "query_states", lambda jobs: {job: states[job] for job in jobs if job in states}
    )
    monkeypatch.setattr(slurm, "list_live_jobs", lambda name: list(named))


@pytest.mark.parametrize(
    ("age", "named", "state"), [(0, [], "PENDING"), (9999, ["7"], "PENDING"), (9999, [], "LOST")]
)
def test_a_task_that_is_being_handed_over_is_not_lost(made, tmp_path, monkeypatch, age, named, state):
    aged(made, age)
    asked(monkeypatch, {}, named)
    (seen,) = job_state.find_tasks(tmp_path)
    assert seen.state.name == state
    assert (
        lost_cases.record_lost_cases(tmp_path, [seen]) == 0 and not load(tmp_path).records
    )  # nothing of it had begun
    assert len(job_state.queued_cases([seen])) == (4 if state == "PENDING" else 0)


def test_what_was_lost_is_on_record_once_in_the_environment_that_was_asked_for(
    made, tmp_path, monkeypatch, make_record
):
    made = submission_files.save_job_ids(made, {"0001": "7"})
    first, second, *_ = submission_files.read_task(made.entries[0].path).items
    older = make_record(
        **{name: getattr(first.case, name) for name in ("workload", "points", "mode")},
        status="failed",
        reason="killed",
    )
    Writer(tmp_path).append(
        dataclasses.replace(older, case=first.case)
    )  # of other code: the first attempt of that
    journal = Journal(made.entries[0].path)
    for item in (first, second):
        journal.write("begin", key=item.case.key, replicate=0, attempt=1)
    journal.write("end", key=second.case.key, replicate=0, status="ok")
    asked(monkeypatch, {"7": JobState("TIMEOUT", "n1")})
    monkeypatch.setattr(environment, "node_name", lambda: "the-login-node")
    assert lost_cases.record_lost_cases(tmp_path, job_state.find_tasks(tmp_path)) == 1
    assert lost_cases.record_lost_cases(tmp_path, job_state.find_tasks(tmp_path)) == 0
    (lost,) = [
        record
        for record in load(tmp_path).records
        if record.environment["digest"] != older.environment["digest"]
    ]
    assert (lost.key, lost.reason, lost.attempt, lost.environment["hosts"]) == (
        first.case.key,
        "timeout",
        1,
        [],
    )
    assert (
        lost.environment["digest"]
        == submission_files.read_task(made.entries[0].path).environments[None, ()]["digest"]
    )


def test_a_task_of_another_host_is_neither_running_nor_lost(made, tmp_path):
    submission_files.write_submission(dataclasses.replace(made, kind="local", host="elsewhere"))
    (seen,) = job_state.find_tasks(tmp_path)
    assert seen.state.name == job_state.UNKNOWN and not (made.folder / "states.json").exists()
    journal = Journal(made.entries[0].path)
    journal.write(
        "begin",
        key=submission_files.read_task(made.entries[0].path).items[0].case.key,
        replicate=0,
        attempt=1,
    )
    assert (
        lost_cases.record_lost_cases(tmp_path, [seen]) == 0 and not load(tmp_path).records
    )  # it may still bring it
    assert len(job_state.queued_cases([seen])) == 4


@pytest.mark.parametrize(
    ("job", "jobs"),
    [
        ("12", ["12"]),
        ("12_3", ["12_3"]),
        ("12_[0-2]", ["12_0", "12_1", "12_2"]),
        ("12_[1,4-5%2]", ["12_1", "12_4", "12_5"]),
    ],
)
def test_an_array_that_never_began_is_all_of_its_tasks(job, jobs):
    assert slurm._expand_array(job) == jobs


def test_what_accounting_believes_to_run_and_the_controller_has_forgotten_does_not(monkeypatch):
    said = {"sacct": "12_0|RUNNING|n1|00:10|0:0\n12_1|COMPLETED|n1|00:10|0:0\n12_[2-3]|CANCELLED by 0|None assigned|00:00|0:0\n",
            "squeue": "12_4|PENDING||0:00|Priority\n"}  # fmt: skip
    monkeypatch.setattr(slurm, "run_command", lambda *words: said[words[0]])
    found = slurm.query_states([f"12_{n}" for n in range(5)])
    assert {job: state.name for job, state in found.items()} == {
        "12_1": "COMPLETED", "12_2": "CANCELLED", "12_3": "CANCELLED", "12_4": "PENDING",
    }  # fmt: skip


def test_arrays_are_no_longer_than_the_cluster_allows():
    from scaling.cluster import sbatch

    shapes = [ProcessShape(1)] * 25 + [ProcessShape(2)] * 3
    entries = tuple(types.SimpleNamespace(shape=shape, name=str(n)) for n, shape in enumerate(shapes))
    arrays = sbatch._split_into_arrays(types.SimpleNamespace(entries=entries), 10)
    assert [len(array) for array in arrays] == [10, 10, 5, 3]
    assert all(len({entry.shape for entry in array}) == 1 for array in arrays)
    assert [entry.name for array in arrays for entry in array] == [str(n) for n in range(28)]


def began(made, task=0, last=None):
    """A task that has begun its first case, with its last word."""
    entry = made.entries[task]
    journal = Journal(entry.path)
    journal.write("started", job="7", node="n1", nodes=["n1"], pid=1)
    journal.write(
        "begin", key=submission_files.read_task(entry.path).items[0].case.key, replicate=0, attempt=1
    )
    if last:
        journal.write(*last[:1], **(last[1] if len(last) > 1 else {}))


def log(made, text, kind="err"):
    """What Slurm and the job wrote."""
    (made.folder / "log").mkdir(exist_ok=True)
    (made.folder / "log" / f"7_0_log.{kind}").write_text(text)


CANCELLED = "slurmstepd-n1: error: *** JOB 7 ON n1 CANCELLED AT 2026-11-22T16:00:00{} ***\n"


@pytest.mark.parametrize(
    ("text", "state", "reason"),
    [
        (CANCELLED.format(" DUE TO TIME LIMIT"), "TIMEOUT", "timeout"),
        (CANCELLED.format(" DUE TO PREEMPTION"), "PREEMPTED", "preempted"),
        (CANCELLED.format(" DUE TO NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS"), "NODE_FAIL", "node_failed"),
        (CANCELLED.format(""), "CANCELLED", "cancelled"),
        (CANCELLED.format(" DUE TO PREEMPTION") + "again\n" + CANCELLED.format(" DUE TO TIME LIMIT"), "TIMEOUT", "timeout"),
        (CANCELLED.format("") + "slurmstepd-n1: error: Exceeded job memory limit\n", "OUT_OF_MEMORY", "out_of_memory"),
        ("", "LOST", "killed"),
    ],
)  # fmt: skip
def test_without_accounting_the_log_of_a_job_says_how_it_ended(
    made, tmp_path, monkeypatch, text, state, reason
):
    made = submission_files.save_job_ids(made, {"0001": "7"})
    began(made, last=("stopped",))
    log(made, text)
    asked(monkeypatch, {})
    seen = job_state.find_tasks(tmp_path)
    assert [one.state.name for one in seen] == [state]
    lost_cases.record_lost_cases(tmp_path, seen)
    assert [record.reason for record in load(tmp_path).records] == [reason]


def test_an_end_that_nobody_can_tell_yet_is_told_when_accounting_answers_again(made, tmp_path, monkeypatch):
    made = submission_files.save_job_ids(made, {"0001": "7"})
    began(made, last=("stopped",))
    asked(monkeypatch, {})
    assert [one.state.name for one in job_state.find_tasks(tmp_path)] == ["LOST"]
    asked(monkeypatch, {"7": JobState("TIMEOUT", "n1")})
    assert [one.state.name for one in job_state.find_tasks(tmp_path)] == ["TIMEOUT"]


def test_a_time_limit_is_recorded_with_a_longer_one_to_ask_for(made):
    entry = dataclasses.replace(made.entries[0], minutes=60.0)
    began(made)
    reason, text, _ = lost_cases.explain_end(job_state.TaskState(made, entry, JobState("TIMEOUT")))
    assert reason == "timeout" and "(60 min, cluster.time)" in text and "cluster.time=120" in text


@pytest.mark.parametrize("begun", [True, False])
def test_a_job_that_failed_says_why_in_its_own_words(made, begun):
    made = submission_files.save_job_ids(made, {"0001": "7"})
    if begun:
        began(made)

    def explained():
        seen = job_state.TaskState(made, made.entries[0], JobState("FAILED", reason="exit code 3:0"))
        return lost_cases.explain_end(seen)[1]

    log(made, "Traceback (most recent call last):\n  File x\nsubprocess.CalledProcessError: no\n")
    log(made, "submitit INFO starting\nbecause of [Errno 28] No space left on device\n", "out")
    assert "No space left on device" in explained()
    log(made, "slurm_script: line 17: module: command not found\n")
    assert "module: command not found" in explained()
    log(
        made,
        "Lmod has detected the following error:\n  unknown: cuda\n"
        "scaling: setup line failed with exit status 1: module load cuda\n",
    )
    said = explained()
    assert (
        "exit status 1: module load cuda; the log says: Lmod has detected the following error: unknown: cuda"
        in said
    )
    assert "exit code 3:0" in said
    began(made, last=("stopped", {"text": "the process ended with status 2: execve(): python: No such file"}))
    assert "execve(): python: No such file" in explained()


@pytest.fixture
def array(tmp_path):
    """A submission of three tasks, an array of two and one of one, whose launcher died before it noted any job."""
    cases = [
        complete(Case("poisson", points=16 * n, mode="jacrev", devices=d))
        for n, d in ((1, 1), (2, 1), (3, 2))
    ]
    plan = schedule.make_schedule([PreflightResult(case, None, None) for case in cases], SETTINGS, NODES, [])
    tasks = pack.pack(plan, SETTINGS, [], 0.0)
    made = submission_files.create_submission(
        tmp_path, "20261121T201500-3f2a", ClusterSettings(name="slurm"), tasks, SETTINGS, plan, False
    )
    dead = dataclasses.replace(made, pid=2**22 + 1)
    submission_files.write_submission(dead)
    return dead


def test_the_jobs_of_a_launcher_that_died_are_found_by_their_name(array, tmp_path, monkeypatch):
    known = {"12_0": JobState("RUNNING", "n1"), "12_1": JobState("PENDING", reason="Resources")}
    asked(monkeypatch, known, ["12_0", "12_1"])
    first = array.entries[0].shape
    found = {
        one.entry.job: one.state.name
        for one in job_state.find_tasks(tmp_path)
        if one.entry.shape == first or one.entry.job
    }
    count = sum(entry.shape == first for entry in array.entries)
    assert found == dict(list({"12_0": "RUNNING", "12_1": "PENDING"}.items())[:count])


def test_what_a_launcher_that_died_did_not_hand_over_is_not_in_the_queue(array, tmp_path, monkeypatch):
    asked(monkeypatch, {}, [])
    seen = job_state.find_tasks(tmp_path)
    assert {one.state.name for one in seen} == {"LOST"} and not job_state.queued_cases(seen)


def test_cancel_ends_jobs_that_were_never_noted(array, tmp_path, monkeypatch):
    asked(monkeypatch, {"12_0": JobState("RUNNING", "n1")}, ["12_0"])
    ended = []
    monkeypatch.setattr(slurm, "cancel", lambda jobs: ended.extend(jobs))
    assert job_state.cancel(job_state.find_tasks(tmp_path)) == 1
    assert ended == ["12_0"]


def test_what_failed_for_good_runs_once_more_with_retry(made, tmp_path, make_record):
    """The task that was submitted to retry it runs it once, also when it is requeued after that."""
    cases = [item.case for item in submission_files.read_task(made.entries[0].path).items]
    answers = [PreflightResult(case, None, None) for case in cases]
    work = submission_files.read_task(made.entries[0].path)
    (around,) = work.environments.values()

    def failed(attempt):
        blank = supervise.empty_record(dataclasses.replace(work.items[0], attempt=attempt), around, SETTINGS)
        return dataclasses.replace(blank, reason="wrong_answer", text="")

    def attempts(jobs):
        return {item.case.key: item.attempt for job in jobs for item in job}

    key = work.items[0].case.key
    assert key not in attempts(schedule.make_schedule(answers, SETTINGS, NODES, [failed(1)]).sessions)
    again = schedule.make_schedule(answers, SETTINGS, NODES, [failed(1)], retry=True)
    assert attempts(again.sessions)[key] == 2
    retried = dataclasses.replace(work, sessions=again.sessions)
    assert attempts(task.remaining_sessions(retried, [failed(1)]))[key] == 2
    assert key not in attempts(task.remaining_sessions(retried, [failed(1), failed(2)]))
    assert key not in attempts(task.remaining_sessions(work, [failed(1)]))
