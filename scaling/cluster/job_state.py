"""Determine the states of submitted tasks from Slurm, processes, journals and logs, and cancel tasks."""

import contextlib
import dataclasses
import os
import signal
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from scaling.cluster import slurm, submission_files
from scaling.cluster.cluster_settings import SLURM, SUBMISSIONS
from scaling.cluster.journal import TaskAttempt, TaskJournal, read_journal
from scaling.cluster.slurm import LOST, UNKNOWN, JobState
from scaling.cluster.submission_files import Submission, SubmittedTask, TaskDefinition
from scaling.core import environment
from scaling.core.case import Case, Refusal
from scaling.results import store
from scaling.results.read_record import check_types
from scaling.workers import transport

END_REASONS = {  # state of an ended job -> (reason, text) of the "failed" records for its lost cases
    "TIMEOUT": (
        "timeout",
        "its job reached its time limit ({minutes:g} min, cluster.time) while it ran; "
        "cluster.time={more:g} gives it more",
    ),
    "DEADLINE": ("timeout", "its job reached its deadline while it ran"),
    "PREEMPTED": ("preempted", "its job was preempted by another while it ran"),
    "NODE_FAIL": ("node_failed", "a node of its job failed while it ran"),
    "BOOT_FAIL": ("node_failed", "a node of its job did not start"),
    "CANCELLED": ("cancelled", "its job was cancelled while it ran"),
    "OUT_OF_MEMORY": ("out_of_memory", "its job exceeded its requested memory while it ran"),
}
# Reason -> the first state with this reason.
_STATE_OF_REASON = {reason: state for state, (reason, _) in reversed(END_REASONS.items())}
_EXEC_SECONDS = 1.0  # time limit for a new process to start its program
_LOG_BYTES = 65536  # number of bytes at the end of a log that are read
_STATE_FIELDS = [field.name for field in dataclasses.fields(JobState)]
_STATES_FILE = "states.json"  # file in the folder of a submission with the final states of its tasks


@dataclass(frozen=True)
class TaskState:
    """A submitted task (a group of cases that run in one job) and the last queried state of its job."""

    submission: Submission
    entry: SubmittedTask  # the task, as listed in the submission
    state: JobState

    @cached_property
    def journal(self) -> TaskJournal:
        """Return a summary of the events in the journal files of the task."""
        return read_journal(self.entry.path)

    @cached_property
    def definition(self) -> TaskDefinition:
        """Return the content of the task file. Raise `Refusal` if the file is missing or malformed."""
        return submission_files.read_task(self.entry.path)

    @cached_property
    def cases(self) -> dict[str, Case]:
        """Return {case key: case} for the cases of the task, or {} if the task file cannot be read."""
        with contextlib.suppress(Refusal):
            return {item.case.key: item.case for item in self.definition.scheduled_cases}
        return {}

    @property
    def may_run(self) -> bool:
        """Return true if the task is pending or running, or if its state is unknown."""
        return self.state.live or self.state.name == UNKNOWN

    @property
    def is_pending(self) -> bool:
        """Return whether the job of the task waits to start, for the first time or after a requeue."""
        return self.state.name in slurm.WAITING

    @property
    def wait_message(self) -> str:
        """Return a message if the task waits for CPU cores, otherwise ""."""
        waiting = self.may_run and not self.is_pending and self.journal.last_event == "waiting"
        return self.journal.last_text if waiting else ""

    @property
    def current_attempts(self) -> list[TaskAttempt]:
        """Return the attempts of the current run of the task. An attempt runs one case.

        The list is empty if the task is pending or has ended.
        """
        is_started = self.may_run and not self.is_pending
        return [each for each in self.journal.attempts if is_started and each.run == self.journal.runs]

    @property
    def running_attempts(self) -> list[TaskAttempt]:
        """Return those of `current_attempts` that have not ended."""
        return [attempt for attempt in self.current_attempts if not attempt.ended_at]


def find_tasks(results: Path, query_scheduler: bool = True) -> list[TaskState]:
    """Return all tasks that were submitted for a results folder, with their states.

    If `query_scheduler` is false, Slurm is not queried. Raise `Refusal` if a submission.json file cannot be
    read, or if the state of a task is unknown because Slurm does not answer.
    """
    tasks, problem = try_find_tasks(results, query_scheduler)
    if problem:
        raise Refusal(problem)
    return tasks


def try_find_tasks(results: Path, query_scheduler: bool = True) -> tuple[list[TaskState], str]:
    """Return (tasks, error message) for all tasks that were submitted for a results folder.

    The message is "" if there is no error. Tasks of unreadable submissions are omitted. The state of a task
    is `UNKNOWN` if neither Slurm nor the files of the task show it. New final states are saved to disk.
    """
    submissions, problem = submission_files.read_submissions(results)
    queue, query_error = None, ""
    if query_scheduler:
        try:
            queue = slurm.list_jobs([each.name for each in submissions if _may_be_queued(each)])
        except Refusal as refusal:
            query_error = str(refusal)
    tasks = [task for each in submissions for task in _find_submitted_tasks(each, queue)]
    if any(task.submission.kind == SLURM and task.state.name == UNKNOWN for task in tasks):
        problem = "; ".join(filter(None, [problem, query_error]))
    return tasks, problem


def _may_be_queued(submission: Submission) -> bool:
    """Return whether the Slurm queue may contain jobs of a submission.

    The queue contains none if the submission does not use Slurm, or if all tasks have the saved state
    COMPLETED. Slurm may requeue a job that ended in any other state.
    """
    completed = [state.name == "COMPLETED" for state in _read_final_states(submission).values()]
    return submission.kind == SLURM and sum(completed) < len(submission.entries)


def _find_submitted_tasks(
    submission: Submission, queue: Mapping[str, Mapping[str, JobState]] | None
) -> list[TaskState]:
    """Return all tasks of a submission, with their states. Save new final states to disk.

    `queue` is {job name: {job ID: state}}, or None if Slurm did not answer or was not queried.
    """
    saved_states, on_slurm = _read_final_states(submission), submission.kind == SLURM
    entries = [
        dataclasses.replace(entry, job=entry.job or read_journal(entry.path).job)
        for entry in submission.entries
    ]
    states = dict(saved_states)
    if on_slurm and queue is not None:
        states |= _query_states(submission, entries, saved_states, queue.get(submission.name, {}))
    tasks = []
    for entry in entries:
        task = TaskState(submission, entry, states.get(entry.name, JobState(UNKNOWN)))
        tasks.append(dataclasses.replace(task, state=_find_state(task, queue is not None)))
    final_states = {} if on_slurm else dict(saved_states)
    final_states |= {task.entry.name: task.state for task in tasks if task.state.name in slurm.ENDED}
    if final_states != saved_states:
        _save_final_states(submission, final_states)
    return tasks


def _query_states(
    submission: Submission,
    entries: Sequence[SubmittedTask],
    saved_states: Mapping[str, JobState],
    queued_states: Mapping[str, JobState],
) -> dict[str, JobState]:
    """Return {task name: latest state} for the tasks `entries` of a Slurm submission.

    `saved_states` maps task names to the final states on disk. Other final states are queried with sacct.
    `queued_states` maps the IDs of jobs in the queue to their states. Tasks of unknown state are omitted.
    """
    unsaved = [entry.job for entry in entries if entry.job and entry.name not in saved_states]
    ended_jobs = slurm.list_ended_jobs(submission.name, unsaved)
    known_jobs = {entry.job for entry in entries}
    unassigned = [state for job, state in queued_states.items() if job not in known_jobs and state.live]
    states: dict[str, JobState] = {}
    for entry in entries:
        final = ended_jobs.get(entry.job or "") or saved_states.get(entry.name)
        # The launcher may have ended before it saved the job ID. The journal has the ID after the start.
        state = queued_states.get(entry.job) if entry.job else next(iter(unassigned), None)
        # A final state may precede a requeue. If the states are equal, keep the exit code from sacct.
        if newest := final if final and (state is None or state.name == final.name) else state:
            states[entry.name] = newest
    return states


def _read_final_states(submission: Submission) -> dict[str, JobState]:
    content = store.read_json(submission.folder / _STATES_FILE) or {}
    try:
        return {
            name: check_types(JobState(**{field: value["state"].get(field, "") for field in _STATE_FIELDS}))
            for name, value in content.items()
            if value["state"]["name"] in slurm.ENDED
        }  # fmt: skip
    except (AttributeError, KeyError, TypeError, ValueError):
        return {}  # the scheduler is asked again


def _save_final_states(submission: Submission, states: Mapping[str, JobState]) -> None:
    content = {name: {"state": dataclasses.asdict(state)} for name, state in states.items()}
    with contextlib.suppress(OSError):  # the user may only have read permission
        store.write_json(submission.folder / _STATES_FILE, content)


def _find_state(task: TaskState, is_queried: bool) -> JobState:
    """Return the latest state of a task, from `task.state`, its process, its journal or its log.

    `is_queried` states whether Slurm was queried for `task.state`.
    """
    if task.submission.kind == SLURM:
        is_observable = is_queried
    else:  # the process of a local task is visible on the host of the launcher only
        is_observable = task.submission.host == environment.node_name()
        if is_observable and _find_process(task):
            return JobState("RUNNING" if task.journal.runs else "PENDING", task.journal.node)
    if task.state.name != UNKNOWN:
        return task.state
    final = _read_final_state(dataclasses.replace(task))  # a copy reads the journal again
    is_of_slurm = task.submission.kind == SLURM
    if is_of_slurm and final.name == LOST and task.submission.folder.stat().st_uid != os.geteuid():
        is_observable = False  # Slurm may hide the jobs of other users (PrivateData)
    return final if is_observable or final.name == "COMPLETED" else JobState(UNKNOWN, final.node)


def _read_final_state(task: TaskState) -> JobState:
    journal, was_stopped = task.journal, task.journal.last_event == "stopped"
    if not journal.runs:
        return JobState(LOST, reason="never started: being submitted, or the scheduler has no record of it")
    if journal.last_event == "ended":
        return JobState("COMPLETED", journal.node)
    if name := find_state_in_log(task):
        return JobState(name, journal.node)
    if was_stopped and journal.last_text:
        return JobState("FAILED", journal.node, reason=journal.last_text)
    if was_stopped and task.submission.kind != SLURM:
        return JobState("CANCELLED", journal.node)
    return JobState(LOST, journal.node, reason="it ended, and no scheduler and no log gives a reason")


def find_state_in_log(task: TaskState) -> str | None:
    """Return the final state that the log of a job contains, such as "TIMEOUT", or None if there is none."""
    for line in reversed(read_log(task, "err")):
        if explanation := transport.explain_failure([line]):
            return _STATE_OF_REASON[explanation[0]]
        if "CANCELLED AT" in line:
            return "CANCELLED"
    return None


def read_log(task: TaskState, kind: str) -> list[str]:
    """Return the lines in the last 64 KiB of the log of a job, or [] if the log cannot be read.

    `kind` is "out" (standard output) or "err" (standard error). If the job was requeued, the output of
    earlier runs is omitted.
    """
    run_start = task.journal.log_starts[kind == "err"]  # a task that is requeued appends to the log
    with contextlib.suppress(OSError), task.entry.log_path(kind).open("rb") as file:
        file.seek(max(run_start, os.fstat(file.fileno()).st_size - _LOG_BYTES))
        return file.read().decode(errors="replace").splitlines()
    return []


def _find_process(task: TaskState) -> int | None:
    """Return the ID of the process that runs a task on this host, or None if there is no such process."""
    task_folder = f"{SUBMISSIONS}/{task.entry.folder.name}".encode()  # guards against a reused process ID
    for pid in (task.journal.pid, task.entry.job):  # the task, and the command `timeout` that runs it
        with contextlib.suppress(OSError):
            if pid and task_folder in _read_command(pid):
                return int(pid)
    return None


def _read_command(pid: int | str) -> bytes:
    """Return the command line of a process, or raise OSError if the process has ended."""
    deadline = time.monotonic() + _EXEC_SECONDS
    # The command line is empty while the process starts a program.
    while not (command := Path(f"/proc/{pid}/cmdline").read_bytes()) and time.monotonic() < deadline:
        os.readlink(f"/proc/{pid}/exe")  # raises OSError if the process is a zombie
    return command


def queued_cases(tasks: Iterable[TaskState]) -> set[tuple[str, int]]:
    """Return {(case key, replicate number)} for the cases that submitted tasks may still run.

    Raise `Refusal` if the file of one of these tasks cannot be read.
    """
    return {item.replicate_key for task in tasks if task.may_run for item in task.definition.scheduled_cases}


def cancel(tasks: Iterable[TaskState]) -> list[TaskState]:
    """Cancel the pending and running tasks among `tasks`, and return the cancelled tasks.

    Slurm cancels all jobs of the submissions of these tasks. If it refuses to cancel a submission, the other
    tasks are still cancelled before `Refusal` is raised.
    """
    live_tasks, refusals = [task for task in tasks if task.state.live], list[Refusal]()
    for name in {task.submission.name for task in live_tasks if task.submission.kind == SLURM}:
        try:
            slurm.cancel(name)
        except Refusal as refusal:
            refusals.append(refusal)
    for task in live_tasks:
        if task.submission.kind != SLURM and (process := _find_process(task)):
            with contextlib.suppress(OSError):
                if task.journal.runs:
                    os.kill(process, signal.SIGTERM)
                else:  # setup lines run, in the process group of their shell
                    os.killpg(process, signal.SIGTERM)
            _save_final_states(task.submission, {task.entry.name: JobState("CANCELLED", task.journal.node)})
    if refusals:
        raise refusals[0]
    return live_tasks
