"""Tests of lost cases: live tasks are never treated as lost, and every lost case gets exactly one record."""

import dataclasses
import json
import os
import types

import pytest

from scaling.cluster import sbatch, slurm, submission_files, task_state
from scaling.cluster.slurm import JobState
from scaling.cluster.submission_files import Journal, read_journal
from scaling.core import environment
from scaling.core.case import Case, Refusal
from scaling.core.record import Writer
from scaling.launcher import schedule
from scaling.launcher.machine import Machine, ProcessShape
from scaling.launcher.schedule import PreflightResult
from scaling.results.store import load
from scaling.study.case_rules import complete
from tests.cluster.conftest import SETTINGS, start_journal, states_in, submit_cases

NODES = Machine("cpu", None, 2, 2, "of partition main", remote=True)


@pytest.fixture
def submission(tmp_path):
    """Create a submission of one task of four cases that has no job yet."""
    return submit_cases(
        tmp_path, [complete(Case("poisson", points=16 * n, mode="jacrev")) for n in range(1, 5)]
    )


def with_job(submission):
    """Save the ID of the job of the first task."""
    return submission_files.save_job_ids(submission, {"0001": "7"})


def first_task(submission, state, reason=""):
    """Return the first task of a submission in a state."""
    return task_state.TaskState(submission, submission.tasks[0], JobState(state, reason=reason))


def fake_slurm(monkeypatch, states):
    """Simulate a Slurm that lists these jobs with the name of each submission, without accounting."""
    monkeypatch.setattr(
        slurm, "find_jobs", lambda names, _: {(name, job): states[job] for name in names for job in states}
    )


@pytest.mark.parametrize(("named", "state"), [(["7"], "PENDING"), ([], "LOST")])
def test_a_task_whose_job_was_not_submitted_is_lost_and_leaves_no_record(
    submission, tmp_path, monkeypatch, named, state
):
    fake_slurm(monkeypatch, dict.fromkeys(named, JobState("PENDING")))
    (found,) = task_state.find_tasks(tmp_path)
    assert found.state.name == state
    assert task_state.record_lost_cases(tmp_path, [found]) == 0 and not load(tmp_path).records
    assert len(task_state.queued_cases([found])) == (4 if state == "PENDING" else 0)


def test_a_lost_case_is_recorded_once_in_the_requested_environment(
    submission, tmp_path, monkeypatch, make_record
):
    submission = with_job(submission)
    first, second, *_ = submission_files.read_task(submission.tasks[0].path).scheduled_cases
    earlier = dataclasses.replace(make_record("failed", reason="killed"), case=first.case)
    Writer(tmp_path).append(earlier)  # an attempt with other code
    journal = Journal(submission.tasks[0].path)
    for item in (first, second):
        journal.write("begin", key=item.case.key, replicate=0, attempt=1)
    journal.write("end", key=second.case.key, replicate=0, status="ok")
    fake_slurm(monkeypatch, {"7": JobState("TIMEOUT", "n1")})
    monkeypatch.setattr(environment, "node_name", lambda: "the-login-node")
    assert task_state.record_lost_cases(tmp_path, task_state.find_tasks(tmp_path)) == 1
    assert task_state.record_lost_cases(tmp_path, task_state.find_tasks(tmp_path)) == 0
    (lost,) = [record for record in load(tmp_path).records if record.environment != earlier.environment]
    began_at = read_journal(submission.tasks[0].path).attempts[0].began_at
    assert (lost.key, lost.reason, lost.attempt, lost.started_at) == (first.case.key, "timeout", 1, began_at)
    assert lost.environment["hosts"] == []
    requested = submission_files.read_task(submission.tasks[0].path).environments[None, ()]
    assert lost.environment["digest"] == requested["digest"]


def test_a_job_without_cases_left_to_run_leaves_no_failed_record(
    submission, tmp_path, monkeypatch, make_record
):
    submission = with_job(submission)
    definition = submission_files.read_task(submission.tasks[0].path)
    done = make_record(digest=definition.environments[None, ()]["digest"])
    for item in definition.scheduled_cases:  # another job has run them, at another attempt
        Writer(tmp_path).append(dataclasses.replace(done, case=item.case, attempt=2))
    fake_slurm(monkeypatch, {"7": JobState("COMPLETED", "n1")})
    assert task_state.record_lost_cases(tmp_path, task_state.find_tasks(tmp_path)) == 0
    assert {record.status for record in load(tmp_path).records} == {"ok"}


def test_a_local_task_of_another_host_is_in_an_unknown_state(submission, tmp_path):
    submission_files.write_submission(dataclasses.replace(submission, kind="local", host="elsewhere"))
    (found,) = task_state.find_tasks(tmp_path)
    assert found.state.name == task_state.UNKNOWN
    start_journal(submission)
    assert task_state.record_lost_cases(tmp_path, [found]) == 0  # it may still finish
    assert not load(tmp_path).records
    assert len(task_state.queued_cases([found])) == 4


def test_a_local_task_that_is_just_starting_a_program_is_found(submission, monkeypatch):
    """The command line of its process is empty then. A task that is not found counts as lost and runs again."""
    monkeypatch.setattr(task_state.Path, "read_bytes", lambda _: b"")
    entry = dataclasses.replace(submission.tasks[0], job=str(os.getpid()))
    assert (
        task_state._find_process(task_state.TaskState(submission, entry, JobState("UNKNOWN"))) == os.getpid()
    )


@pytest.mark.parametrize(
    ("job", "jobs"),
    [
        ("12", ["12"]),
        ("12_3", ["12_3"]),
        ("12_[0-2]", ["12_0", "12_1", "12_2"]),
        ("12_[1,4-5%2]", ["12_1", "12_4", "12_5"]),
        ("12_[0-4:2]", ["12_0", "12_2", "12_4"]),
    ],
)
def test_the_id_of_a_pending_array_is_expanded_to_all_tasks(job, jobs):
    assert slurm._expand_array(job) == jobs


def test_filters_in_the_environment_of_the_user_do_not_reach_slurm(tmp_path, monkeypatch):
    command = tmp_path / "squeue"
    command.write_text("#!/bin/sh\nenv | grep -E '^(SINFO|SQUEUE|SCANCEL|SLURM)_'\n")
    command.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    for name in ("SQUEUE_STATES", "SQUEUE_LICENSES", "SINFO_PARTITION", "SCANCEL_INTERACTIVE", "SLURM_CONF"):
        monkeypatch.setenv(name, "x")
    variables = slurm.run_command("squeue").splitlines()
    assert sorted(variables) == ["SLURM_BITSTR_LEN=0", "SLURM_CONF=x"]


def test_a_job_unknown_to_the_controller_is_not_running_even_if_accounting_says_so(monkeypatch):
    rows = ["12_0|x|RUNNING|n1", "12_1|x|COMPLETED|n1", "12_[2-3]|x|CANCELLED by 0|None assigned"]
    monkeypatch.setattr(slurm, "run_command", lambda *_: "".join(f"{row}|0:0\n" for row in rows))
    states = slurm._find_ended_jobs([f"12_{n}" for n in range(4)])
    ended = {("x", "12_1"): "COMPLETED", ("x", "12_2"): "CANCELLED", ("x", "12_3"): "CANCELLED"}
    assert {job: state.name for job, state in states.items()} == ended


@pytest.mark.parametrize(
    ("accounted", "listed", "state", "reason"),
    [
        ("PREEMPTED|n1|0:0", "COMPLETED|n1|None", "COMPLETED", ""),
        ("PREEMPTED|n1|0:0", "PENDING||BeginTime", "PENDING", "BeginTime"),
        ("FAILED|n1|3:0", "FAILED|n1|NonZeroExitCode", "FAILED", "NonZeroExitCode"),
    ],
)
def test_the_controller_overrides_an_earlier_end_of_a_requeued_job(
    submission, tmp_path, monkeypatch, accounted, listed, state, reason
):
    submission_files.save_job_ids(submission, {"0001": "12"})
    output = {"sacct": f"12|{submission.name}|{accounted}\n", "squeue": f"12|{submission.name}|{listed}\n"}
    monkeypatch.setattr(slurm, "run_command", lambda *arguments: output[arguments[0]])
    (found,) = task_state.find_tasks(tmp_path)
    assert (found.state.name, found.state.reason) == (state, reason)


def test_job_arrays_do_not_exceed_a_limit(monkeypatch):
    monkeypatch.setattr(sbatch, "_MAX_ARRAY_TASKS", 10)
    shapes = [ProcessShape(1)] * 25 + [ProcessShape(2)] * 3
    entries = [types.SimpleNamespace(shape=shape, name=str(n)) for n, shape in enumerate(shapes)]
    arrays = sbatch._split_into_arrays(entries)
    assert [len(array) for array in arrays] == [10, 10, 5, 3]
    assert all(len({entry.shape for entry in array}) == 1 for array in arrays)
    assert [entry.name for array in arrays for entry in array] == [str(n) for n in range(28)]


def write_log(submission, text, kind="err"):
    """Write a log file of the job."""
    (submission.folder / "log").mkdir(exist_ok=True)
    (submission.folder / "log" / f"7_0_log.{kind}").write_text(text)


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
def test_without_accounting_the_end_of_a_job_is_read_from_its_log(
    submission, tmp_path, monkeypatch, text, state, reason
):
    submission = with_job(submission)
    start_journal(submission).write("stopped")
    write_log(submission, text)
    fake_slurm(monkeypatch, {})
    tasks = task_state.find_tasks(tmp_path)
    assert [found.state.name for found in tasks] == [state]
    task_state.record_lost_cases(tmp_path, tasks)
    assert [record.reason for record in load(tmp_path).records] == [reason]


@pytest.mark.parametrize(
    ("text", "state", "cause"),
    [
        (f"{submission_files.SETUP_FAILED} 1: module load x\n", "FAILED", "exit status 1: module load x"),
        ("no such interpreter\n", "LOST", "no such interpreter"),
        (CANCELLED.format("") + f"{submission_files.SETUP_FAILED} 143: sleep 9\n", "CANCELLED", None),
        (None, "LOST", None),
    ],
)
def test_without_accounting_a_job_that_ended_before_its_first_case_is_explained_by_its_log(
    submission, tmp_path, monkeypatch, text, state, cause
):
    submission = with_job(submission)
    if text is not None:
        write_log(submission, text)
    fake_slurm(monkeypatch, {})
    (found,) = task_state.find_tasks(tmp_path)
    assert found.state.name == state
    assert task_state.record_lost_cases(tmp_path, [found]) == (4 if cause else 0)
    assert all(record.reason == "killed" and cause in record.text for record in load(tmp_path).records)


def test_a_timeout_is_recorded_with_its_limit_and_the_setting_to_increase(submission):
    submission = dataclasses.replace(submission, minutes=60.0)
    start_journal(submission)
    reason, text, _ = task_state._explain_end(first_task(submission, "TIMEOUT"))
    assert reason == "timeout" and "(60 min) while it ran; a larger cluster.time gives it more" in text


@pytest.mark.parametrize("begun", [True, False])
def test_a_failed_job_is_explained_with_the_lines_of_its_log(submission, begun):
    submission = with_job(submission)
    if begun:
        start_journal(submission)

    def explain():
        return task_state._explain_end(first_task(submission, "FAILED", "exit code 3:0"))[1]

    write_log(submission, "Traceback (most recent call last):\n  File x\nsubprocess.CalledProcessError: no\n")
    write_log(submission, "submitit INFO starting\nbecause of [Errno 28] No space left on device\n", "out")
    assert "No space left on device" in explain()
    write_log(submission, "scaling: slurm_script: line 17: module: command not found\n")
    assert ": slurm_script: line 17: module: command not found" in explain() and "scaling: " not in explain()
    write_log(
        submission,
        "Lmod has detected the following error:\n  unknown: cuda\n"
        "scaling: setup line failed with exit status 1: module load cuda\n",
    )
    text = explain()
    words = (
        "exit status 1: module load cuda; the log says: Lmod has detected the following error: unknown: cuda"
    )
    assert words in text
    assert "exit code 3:0" in text
    text = "the process ended with status 2: execve(): python: No such file"
    start_journal(submission).write("stopped", text=text)
    assert "execve(): python: No such file" in explain()


def test_a_job_without_a_log_is_explained_with_a_folder_that_its_node_does_not_see(submission):
    submission = with_job(submission)
    text = task_state._explain_end(first_task(submission, "FAILED", "exit code 0:53"))[1]
    assert text.endswith("before its first case: it wrote no log; its node must see the results folder")


@pytest.mark.parametrize("name", ["CANCELLED", "DEADLINE"])
def test_a_job_that_ended_in_the_queue_leaves_its_cases_missing(name, submission):
    assert task_state._explain_end(first_task(submission, name, "exit code 1:0")) is None


@pytest.fixture
def orphaned(tmp_path):
    """Create a submission of an array of two tasks and a single task, whose launcher died before it saved job ids."""
    cases = [
        complete(Case("poisson", points=16 * n, mode="jacrev", devices=d))
        for n, d in ((1, 1), (2, 1), (3, 2))
    ]
    return submit_cases(tmp_path, cases, seconds=0.0)


def test_jobs_of_a_dead_launcher_are_found_by_name_until_their_journals_contain_the_ids(
    orphaned, tmp_path, monkeypatch
):
    states = {"12_0": JobState("RUNNING", "n1"), "12_1": JobState("PENDING", reason="Resources")}
    fake_slurm(monkeypatch, states)
    assert all(found.state.live for found in task_state.find_tasks(tmp_path))
    for number, entry in enumerate(orphaned.tasks[:2]):
        Journal(entry.path).write("started", job=f"12_{number}", node="n1", nodes=["n1"], pid=1)
    assert states_in(tmp_path) == ["RUNNING", "PENDING", "LOST"]


def test_tasks_that_a_dead_launcher_did_not_submit_are_not_queued(orphaned, tmp_path, monkeypatch):
    fake_slurm(monkeypatch, {})
    tasks = task_state.find_tasks(tmp_path)
    assert {each.state.name for each in tasks} == {"LOST"} and not task_state.queued_cases(tasks)


def test_cancel_ends_jobs_whose_ids_were_never_saved(orphaned, tmp_path, monkeypatch):
    fake_slurm(monkeypatch, {"12_0": JobState("RUNNING", "n1")})
    cancelled = []
    monkeypatch.setattr(slurm, "cancel_jobs", cancelled.append)
    assert len(task_state.cancel_tasks(task_state.find_tasks(tmp_path))) == len(orphaned.tasks)
    assert cancelled == [orphaned.name]


def test_a_final_failure_runs_once_more_with_retry(submission, tmp_path, make_record):
    """The task that retries it runs it once, even if the task is requeued later."""
    cases = [item.case for item in submission_files.read_task(submission.tasks[0].path).scheduled_cases]
    answers = [PreflightResult(case, None, None) for case in cases]
    work = submission_files.read_task(submission.tasks[0].path)
    (recorded,) = work.environments.values()

    def failed(attempt):
        item = dataclasses.replace(work.scheduled_cases[0], attempt=attempt)
        return item.record_without_result(recorded, SETTINGS, "failed", "wrong_answer", "")

    def attempts(jobs):
        return {item.case.key: item.attempt for job in jobs for item in job}

    key = work.scheduled_cases[0].case.key
    assert key not in attempts(schedule.make_schedule(answers, SETTINGS, NODES, [failed(1)]).sessions)
    again = schedule.make_schedule(answers, SETTINGS, NODES, [failed(1)], retry=True)
    assert attempts(again.sessions)[key] == 2
    retried = dataclasses.replace(
        work, scheduled_cases=[item for session in again.sessions for item in session]
    )
    assert attempts([task_state.remaining_cases(retried, [failed(1)])])[key] == 2
    assert key not in attempts([task_state.remaining_cases(retried, [failed(1), failed(2)])])
    assert key not in attempts([task_state.remaining_cases(work, [failed(1)])])


NAIVE_TIME = '{"event": "begin", "key": "x", "replicate": 0, "attempt": 1, "at": "2026-11-30T19:11:48"}'


@pytest.mark.parametrize("line", ['{"event": "begin", "ke', "[]", "{}", "7", NAIVE_TIME])
def test_a_damaged_line_of_a_journal_is_skipped(submission, line):
    start_journal(submission)
    entry = submission.tasks[0]
    undamaged = read_journal(entry.path)
    with entry.path.with_suffix(".run-1.jsonl").open("a") as file:
        file.write(line + "\n")
    assert read_journal(entry.path) == undamaged and len(undamaged.attempts) == 1


def write_damaged_submission(submission, where, value):
    """Replace one field of submission.json, or the whole content if `where` is empty."""
    path = submission.folder / "submission.json"
    content = json.loads(path.read_text())
    *parents, name = where or ("nothing",)
    inner = content
    for parent in parents:
        inner = inner[parent]
    inner[name] = value
    path.write_text(json.dumps(content if where else value))


@pytest.mark.parametrize(
    ("where", "value"),
    [
        ((), []),
        (("tasks",), None),
        (("tasks", 0, "shape"), None),
        (("tasks", 0, "task"), "a\0"),
        (("tasks", 0, "job"), "../1"),
    ],
    ids=ascii,
)
def test_a_submission_that_cannot_be_read_is_refused(submission, tmp_path, where, value):
    write_damaged_submission(submission, where, value)
    line = r"cannot read (jobs/\S+)/submission\.json, its tasks may still run: .* delete the folder \1 if none of"
    with pytest.raises(Refusal, match=line):
        task_state.find_tasks(tmp_path)


@pytest.mark.parametrize("name", ["", "20261121T201500-3f2a", "20261121T201500-3f2a/submission.json"])
def test_a_submission_at_a_path_that_cannot_be_followed_is_refused(submission, tmp_path, name):
    """A symbolic link to itself stands for a folder without permission, because the tests may run as root."""
    path = tmp_path / "jobs" / name
    path.rename(tmp_path / "moved")
    path.symlink_to(path)
    with pytest.raises(Refusal, match=r"cannot read jobs/.*submission\.json, its tasks may still run"):
        task_state.find_tasks(tmp_path)


def test_a_submission_that_is_a_link_to_no_file_is_refused_and_not_taken_for_one_that_begins(
    submission, tmp_path
):
    path = submission.folder / "submission.json"
    path.unlink()
    assert task_state.find_tasks(tmp_path) == []
    path.symlink_to("gone")
    with pytest.raises(Refusal, match=r"cannot read jobs/.*submission\.json, its tasks may still run"):
        task_state.find_tasks(tmp_path)
