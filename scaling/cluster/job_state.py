"""Class TaskState: the state of a submitted task, such as RUNNING, from Slurm, saved states, and journals."""

import contextlib
import dataclasses
import os
import signal
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from scaling.cluster import slurm, submission_files
from scaling.cluster.cluster_settings import SLURM
from scaling.cluster.journal import TaskAttempt, TaskJournal, read_journal
from scaling.cluster.slurm import JobState
from scaling.cluster.submission_files import Submission, SubmittedTask
from scaling.core import environment, store
from scaling.core.case import Refusal
from scaling.workers import transport

UNKNOWN = "UNKNOWN"  # state of a task whose job cannot be observed from this process
_WAITING = (
    "PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT", "RESV_DEL_HOLD",
)  # fmt: skip
_STATE_OF_REASON = {  # reason of a record -> state of the job
    "timeout": "TIMEOUT", "preempted": "PREEMPTED", "node_failed": "NODE_FAIL",
    "out_of_memory": "OUT_OF_MEMORY",
}  # fmt: skip
_LOG_BYTES = 65536  # number of bytes read from the end of a log
_STATES = "states.json"  # file in the folder of a submission


@dataclass(frozen=True)
class TaskState:
    """A submitted task (cases that run in one job) with the state of its job."""

    submission: Submission
    entry: SubmittedTask  # the task, as listed in the submission
    state: JobState
    settled: bool = False  # whether each case that the job left without a result has a record

    @cached_property
    def journal(self) -> TaskJournal:
        """Return the events that the task has written to disk so far. The files are read only once."""
        return read_journal(self.entry.path)

    @property
    def open(self) -> bool:
        """Return whether the task may still run: it is pending, running, or in an unknown state."""
        return self.state.live or self.state.name == UNKNOWN

    @property
    def waits(self) -> bool:
        """Return whether the job of the task is pending, before its first start or before a restart."""
        return self.state.name in _WAITING

    @property
    def blocked(self) -> str:
        """Return the message of a running task that waits for CPU cores, or "" if it does not wait."""
        waiting = self.open and not self.waits and self.journal.last_event == "waiting"
        return self.journal.last_text if waiting else ""

    @property
    def running(self) -> list[TaskAttempt]:
        """Return the attempts at cases that are running in this task now."""
        if not self.open or self.waits:
            return []
        attempts = self.journal.attempts
        return [attempt for attempt in attempts if attempt.run == self.journal.runs and not attempt.ended_at]


def find_tasks(results: Path, query_scheduler: bool = True, save: bool = True) -> list[TaskState]:
    """Return the states of all tasks that were submitted for a results folder. A task runs in one job.

    Args:
        query_scheduler: Whether to query Slurm. If False, a Slurm task is `UNKNOWN` unless its final state is
            saved on disk or its journal reports that it has completed.
        save: Whether to save the final states that are found.
    Raises:
        Refusal: If the scheduler cannot be queried.
    """
    submissions = submission_files.read_submissions(results)
    return [
        task
        for submission in submissions
        for task in _find_submitted_tasks(submission, query_scheduler, save)
    ]


def try_find_tasks(results: Path) -> tuple[list[TaskState], str]:
    """Return the states of all tasks, and an error message, which is "" if the scheduler answers.

    After an error, the states are those that `find_tasks` determines with `query_scheduler=False`.
    """
    try:
        return find_tasks(results), ""
    except Refusal as refusal:
        return find_tasks(results, query_scheduler=False), str(refusal)


def _find_submitted_tasks(submission: Submission, query_scheduler: bool, save: bool) -> list[TaskState]:
    saved, on_slurm = _read_states(submission.folder), submission.kind == SLURM
    tasks: dict[str, TaskState] = {}
    for entry in submission.entries:
        known = saved.get(entry.name, {"state": {"name": UNKNOWN}})
        state = JobState(**known["state"])
        tasks[entry.name] = TaskState(submission, entry, state, known.get("settled", False))
    jobs = {name: t.entry.job or t.journal.job for name, t in tasks.items() if name not in saved}
    if on_slurm and query_scheduler and None in jobs.values():
        jobs |= _find_jobs_by_name(submission, jobs)
    found = slurm.query_states(list(filter(None, jobs.values()))) if on_slurm and query_scheduler else {}
    for name, job in jobs.items():
        entry = tasks[name].entry
        # The copy of the task reads its journal after the query.
        task = dataclasses.replace(tasks[name], entry=dataclasses.replace(entry, job=job))
        state = found.get(job or "") or _find_unreported_state(task, query_scheduler, bool(entry.job))
        tasks[name] = dataclasses.replace(task, state=state)
    not_final = (*slurm.LIVE, UNKNOWN, *(["LOST"] if on_slurm else []))  # sacct may report more later
    if save:
        save_states(tasks[name] for name in jobs if tasks[name].state.name not in not_final)
    return list(tasks.values())


def _find_jobs_by_name(submission: Submission, jobs: Mapping[str, str | None]) -> dict[str, str]:
    """Return a dict from task name to job ID for the job array whose IDs the launcher did not save.

    There is at most one such array, because the launcher saves the IDs of each array before it submits the
    next. The array is found by its job name. All jobs of a submission have the same name.
    """
    saved = {entry.job.partition("_")[0] for entry in submission.entries if entry.job}
    array = [entry for entry in submission.entries if not entry.job]
    array = [entry for entry in array if entry.shape == array[0].shape]
    accounted = slurm.list_accounted_jobs(submission.name, submission.made_at)
    job_ids: dict[str, str] = {}
    for job in (*slurm.list_live_jobs(submission.name), *accounted):
        array_job, _, index = job.partition("_")
        task_index = int(index or 0)
        if array_job not in saved and task_index < len(array) and not jobs.get(array[task_index].name):
            job_ids.setdefault(array[task_index].name, job)
    return job_ids


def _find_unreported_state(task: TaskState, query_scheduler: bool, job_is_saved: bool) -> JobState:
    """Return the state of a task that Slurm does not report, from its process, journal and log.

    `job_is_saved` is whether submission.json contains the job ID of the task.
    """
    submission, on_slurm = task.submission, task.submission.kind == SLURM
    # The process of a local task is visible on the host of the launcher only.
    is_observable = query_scheduler if on_slurm else submission.host == environment.node_name()
    if is_observable and not on_slurm and _find_process(task):
        return JobState("RUNNING" if task.journal.runs else "PENDING", task.journal.node)
    may_be_submitted = not job_is_saved and (task.entry.job or submission.may_be_submitting)
    if is_observable and on_slurm and may_be_submitted and not task.journal.runs:
        return JobState("PENDING", reason="being submitted")
    reported = _read_final_state(dataclasses.replace(task))  # a copy reads the journal again
    return reported if is_observable or reported.name == "COMPLETED" else JobState(UNKNOWN, reported.node)


def _read_final_state(task: TaskState) -> JobState:
    journal = task.journal
    if not journal.runs:
        return JobState("LOST", reason="it never started, and the scheduler has no record of it")
    if journal.last_event == "ended":
        return JobState("COMPLETED", journal.node)
    if name := state_in_log(task):
        return JobState(name, journal.node)
    if journal.last_event != "stopped":
        return JobState("LOST", journal.node, reason="it ended without a message")
    if journal.last_text:
        return JobState("FAILED", journal.node, reason=journal.last_text)
    if task.submission.kind == SLURM:
        reason = "it was stopped, and neither Slurm nor its log gives a reason"
        return JobState("LOST", journal.node, reason=reason)
    return JobState("CANCELLED", journal.node)


def state_in_log(task: TaskState) -> str | None:
    """Return the final state that the log of a job indicates, such as "TIMEOUT", or None if unknown."""
    for line in reversed(read_log(task, "err")):
        if explanation := transport.explain_failure([line]):
            return _STATE_OF_REASON[explanation[0]]
        if "CANCELLED AT" in line:
            return "CANCELLED"
    return None


def read_log(task: TaskState, kind: str) -> list[str]:
    """Return the last lines of standard error (kind "err") or standard output ("out") of a task."""
    job = task.entry.job or task.journal.job
    lines: list[str] = []
    for path in sorted((task.entry.folder / "log").glob(f"{job}_*log.{kind}")) if job else ():
        with contextlib.suppress(OSError), path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - _LOG_BYTES))
            lines += file.read().decode(errors="replace").splitlines()
    return lines


def _find_process(task: TaskState) -> int | None:
    folder = str(task.entry.folder.resolve()).encode()  # guards against a reused process ID
    for pid in (task.journal.pid, task.entry.job):  # the task, and the command `timeout` that runs it
        with contextlib.suppress(OSError):
            if pid and folder in Path(f"/proc/{pid}/cmdline").read_bytes():
                return int(pid)
    return None


def save_states(tasks: Iterable[TaskState], settled: bool = False) -> None:
    """Save the states of ended tasks in the file states.json of their submission, with the flag `settled`."""
    for folder, group in _group_by_submission(tasks).items():
        states = {
            task.entry.name: {"state": dataclasses.asdict(task.state), "settled": settled} for task in group
        }
        with contextlib.suppress(OSError):  # the user may only have read permission
            store.write_json(folder / _STATES, _read_states(folder) | states)


def _read_states(folder: Path) -> dict[str, dict[str, Any]]:
    return store.read_json(folder / _STATES) or {}


def _group_by_submission(tasks: Iterable[TaskState]) -> dict[Path, list[TaskState]]:
    groups: dict[Path, list[TaskState]] = defaultdict(list)
    for task in tasks:
        groups[task.entry.folder].append(task)
    return groups


def queued_cases(tasks: Iterable[TaskState]) -> set[tuple[str, int]]:
    """Return (case key, replicate number) of each case in a task that is or may be pending or running."""
    return {
        item.replicate_key
        for task in tasks
        if task.open
        for item in submission_files.read_task(task.entry.path).items
    }


def cancel(tasks: Iterable[TaskState]) -> int:
    """Cancel all pending and running tasks among `tasks`. Return the number of canceled tasks."""
    live = [task for task in tasks if task.state.live]
    for group in _group_by_submission(live).values():
        if group[0].submission.kind == SLURM:
            jobs = [task.entry.job for task in group if task.entry.job]
            if len(jobs) < len(group):
                jobs += slurm.list_live_jobs(group[0].submission.name)
            slurm.cancel(jobs)
            continue
        for process in filter(None, map(_find_process, group)):
            with contextlib.suppress(OSError):
                os.kill(process, signal.SIGTERM)
    return len(live)
