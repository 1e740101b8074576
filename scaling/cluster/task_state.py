"""Find submitted tasks and their states (`TaskState`), cancel them, and record cases that they lost.

The state of a task comes from Slurm or from its process, and otherwise from its journal and log.
"""

import contextlib
import dataclasses
import math
import os
import signal
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from scaling.cluster import slurm, submission_files
from scaling.cluster.cluster_settings import SLURM, SUBMISSIONS
from scaling.cluster.slurm import LOST, UNKNOWN, JobState
from scaling.cluster.submission_files import (
    Submission,
    SubmittedTask,
    TaskAttempt,
    TaskDefinition,
    TaskJournal,
    read_journal,
)
from scaling.core import environment
from scaling.core.case import Case, Refusal
from scaling.core.record import Record
from scaling.launcher import child_process
from scaling.launcher.schedule import History, ScheduledCase, build_history
from scaling.results import store

_END_REASONS = {  # state of an ended job -> (reason, text) of the "failed" records for its lost cases
    "TIMEOUT": (
        "timeout",
        "its job reached its time limit ({minutes:g} min) while it ran; a larger cluster.time gives it more",
    ),
    "DEADLINE": ("timeout", "its job reached its deadline while it ran"),
    "PREEMPTED": ("preempted", "its job was preempted by another while it ran"),
    "NODE_FAIL": ("node_failed", "a node of its job failed while it ran"),
    "BOOT_FAIL": ("node_failed", "a node of its job did not start"),
    "CANCELLED": ("cancelled", "its job was cancelled while it ran"),
    "OUT_OF_MEMORY": ("out_of_memory", "its job exceeded its requested memory while it ran"),
}
# Reason -> the first state with this reason.
_STATE_OF_REASON = {reason: state for state, (reason, _) in reversed(_END_REASONS.items())}
# Final states of a job after which cases that never began are not recorded as failed.
_NOT_RECORDED_BEFORE_START = ("CANCELLED", "DEADLINE", "PREEMPTED", "NODE_FAIL", "BOOT_FAIL")
# Prefixes of log lines that do not explain the cause.
_UNINFORMATIVE_PREFIXES = (
    " ", "Traceback", "subprocess.CalledProcessError", "submitit", "srun: Job step", "slurmstepd",
    "Command '[",
)  # fmt: skip
_NO_LOG = "no log: being submitted, never started, or its node does not see the results folder"
_HIDDEN = "Slurm may show it to its user only"  # PrivateData
_LOG_BYTES = 65536  # number of bytes at the end of a log that are read
_POLL_SECONDS = 3.0  # time between two polls
_RETRY_SECONDS = 300.0  # polling fails if the scheduler does not answer for this time


@dataclass(frozen=True)
class TaskState:
    """A submitted task (the cases that one job runs), and the state of its job when it was queried last."""

    submission: Submission
    submitted: SubmittedTask  # the task, as listed in the submission
    state: JobState

    @cached_property
    def journal(self) -> TaskJournal:
        """Return a summary of the events in the journal files of the task."""
        return read_journal(self.submitted.path)

    @cached_property
    def definition(self) -> TaskDefinition:
        """Return the content of the task file. Raise `Refusal` if the file is missing or malformed."""
        return submission_files.read_task(self.submitted.path)

    @cached_property
    def cases(self) -> dict[str, Case]:
        """Return {case key: case} for the task. Raise `Refusal` if its file is missing or malformed."""
        return {scheduled.case.key: scheduled.case for scheduled in self.definition.scheduled_cases}

    @property
    def may_run(self) -> bool:
        """Return whether the task is pending or running, or whether its state is unknown."""
        return self.state.live or self.state.name == UNKNOWN

    @property
    def is_pending(self) -> bool:
        """Return whether the job of the task waits to start, for the first time or after a requeue."""
        return self.state.name in slurm.WAITING

    @property
    def is_started(self) -> bool:
        """Return whether the task is running, or may be running because its state is unknown."""
        return self.may_run and not self.is_pending

    @property
    def explanation(self) -> str:
        """Return the reason for the state of the task, such as a wait for CPU cores, or "" if unknown."""
        is_waiting = self.is_started and self.journal.last_event == "waiting"
        return self.journal.last_text if is_waiting else self.state.reason

    @property
    def current_attempts(self) -> list[TaskAttempt]:
        """Return the attempts at cases in the current run of the task, or [] if it is not running."""
        return [each for each in self.journal.attempts if self.is_started and each.run == self.journal.runs]

    @property
    def running_attempts(self) -> list[TaskAttempt]:
        """Return the attempts at cases that are running."""
        return [attempt for attempt in self.current_attempts if not attempt.ended_at]


def find_tasks(results: Path) -> list[TaskState]:
    """Return a `TaskState` for each task that was submitted for a results folder.

    If a task cannot be observed, for example because Slurm does not answer, its files may show how it ended.
    If they do not, its state is `UNKNOWN`, with an explanation. Raise `Refusal` if a submission.json cannot
    be read.
    """
    submissions = submission_files.read_submissions(results)
    # Slurm may requeue the job of a task that has not run all its cases.
    queued = [
        submission
        for submission in submissions
        if submission.kind == SLURM
        and any(read_journal(submitted.path).last_event != "ended" for submitted in submission.tasks)
    ]
    problem, jobs = "", dict[tuple[str, str], JobState]()
    try:
        submitted_tasks = [submitted_task for submission in queued for submitted_task in submission.tasks]
        jobs = slurm.find_jobs(
            [each.name for each in queued], [each.job for each in submitted_tasks if each.job]
        )
    except Refusal as refusal:
        problem = str(refusal)
    return [task for each in submissions for task in _find_submitted_tasks(each, jobs, problem)]


def _find_submitted_tasks(
    submission: Submission, jobs: Mapping[tuple[str, str], JobState], problem: str
) -> Iterator[TaskState]:
    """Yield a `TaskState` for each task of a submission.

    `jobs` is {(job name, job ID): state}. `problem` says why Slurm does not answer, or is "".
    """
    known_jobs = {submitted_task.job for submitted_task in submission.tasks}
    named_jobs = {job: state for (name, job), state in jobs.items() if name == submission.name}
    # The launcher may have ended before it saved the job ID. A task that has started has it in its journal.
    unassigned = [state for job, state in named_jobs.items() if job not in known_jobs and state.live]
    for submitted_task in submission.tasks:
        listed = named_jobs.get(submitted_task.job) if submitted_task.job else next(iter(unassigned), None)
        task = TaskState(submission, submitted_task, listed or JobState(UNKNOWN))
        yield task if listed else dataclasses.replace(task, state=_find_state(task, problem))


def _find_state(task: TaskState, problem: str) -> JobState:
    """Return the state of a task whose job Slurm does not list, from its process, its journal or its log.

    `problem` says why Slurm does not answer, or is "".
    """
    is_on_slurm = task.submission.kind == SLURM
    if not is_on_slurm:
        # The process of a local task is visible on the host of the launcher only.
        host = task.submission.host
        problem = "" if host == environment.node_name() else f"its process is visible on {host} only"
        if not problem and _find_process(task):
            return JobState("RUNNING" if task.journal.runs else "PENDING", task.journal.node)
    final = _read_final_state(dataclasses.replace(task))  # a copy reads the journal again
    if is_on_slurm and final.name == LOST and task.submission.folder.stat().st_uid != os.geteuid():
        problem = problem or _HIDDEN
    # Slurm may requeue a job that ended otherwise.
    is_final = final.name in ("COMPLETED", "TIMEOUT") or (not is_on_slurm and final.name != LOST)
    return final if is_final or not problem else JobState(UNKNOWN, final.node, problem)


def _read_final_state(task: TaskState) -> JobState:
    """Return the final state of a task according to its journal and log, or `LOST`."""
    journal = task.journal
    if journal.last_event == "ended":
        return JobState("COMPLETED", journal.node)
    state_in_log, was_stopped = _find_state_in_log(task), journal.last_event == "stopped"
    has_output = journal.runs or task.submitted.log_path("err").exists()
    rules = [  # (whether the rule applies, state, reason). The first rule that applies determines the state.
        (state_in_log, state_in_log, ""),
        (not has_output, LOST, _NO_LOG),
        (was_stopped and journal.last_text, "FAILED", journal.last_text),
        (was_stopped and task.submission.kind != SLURM, "CANCELLED", ""),
        (True, LOST, "it ended, and neither the scheduler nor its log says how"),
    ]
    return next(JobState(name, journal.node, reason) for applies, name, reason in rules if applies)


def _find_process(task: TaskState) -> int | None:
    """Return the ID of the process that runs a task on this host, or None if there is no such process."""
    task_folder = f"{SUBMISSIONS}/{task.submitted.folder.name}".encode()  # guards against a reused process ID
    for pid in (task.journal.pid, task.submitted.job):  # the task, and the command `timeout` that runs it
        with contextlib.suppress(OSError):
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
            if not command:  # the process starts a program, or it is a zombie, for which this raises OSError
                os.readlink(f"/proc/{pid}/exe")
            if pid and (not command or task_folder in command):
                return int(pid)
    return None


def queued_cases(tasks: Iterable[TaskState]) -> set[tuple[str, int]]:
    """Return the case key and replicate number of each case that a submitted task may still run.

    Raise `Refusal` if a task file cannot be read.
    """
    return {
        scheduled.replicate_key
        for task in tasks
        if task.may_run
        for scheduled in task.definition.scheduled_cases
    }


def cancel_tasks(tasks: Iterable[TaskState]) -> list[TaskState]:
    """Cancel the pending and running tasks among `tasks`, and return the cancelled tasks.

    For a Slurm task, all jobs of its submission are cancelled. If Slurm cannot cancel a submission, raise
    `Refusal` after the other tasks are cancelled.
    """
    live_tasks, refusals = [task for task in tasks if task.state.live], list[Refusal]()
    for name in {task.submission.name for task in live_tasks if task.submission.kind == SLURM}:
        try:
            slurm.cancel_jobs(name)
        except Refusal as refusal:
            refusals.append(refusal)
    for task in live_tasks:
        if task.submission.kind != SLURM and (process := _find_process(task)):
            with contextlib.suppress(OSError):
                if task.journal.runs:
                    os.kill(process, signal.SIGTERM)
                else:  # setup lines run, or Python starts, in the process group of the shell
                    os.killpg(process, signal.SIGTERM)
                with task.submitted.log_path("err").open("a") as log:  # for _find_state_in_log
                    log.write("scaling: CANCELLED AT the request of a user\n")
    if refusals:
        raise refusals[0]
    return live_tasks


def poll(results: Path) -> Iterator[list[TaskState]]:
    """Yield the states of all submitted tasks every few seconds, until no task is pending or running.

    Raise `Refusal` if the first query fails, or if the scheduler does not answer for 300 seconds.
    """
    answered_at = -math.inf
    while True:
        tasks = find_tasks(results)
        unknown = [task for task in tasks if task.submission.kind == SLURM and task.state.name == UNKNOWN]
        if problems := [task.state.reason for task in unknown if task.state.reason != _HIDDEN]:
            if time.monotonic() - answered_at > _RETRY_SECONDS:
                raise Refusal(problems[0])
        else:
            answered_at = time.monotonic()
            yield tasks
            if not any(task.state.live for task in tasks):
                return
        time.sleep(_POLL_SECONDS)


def progress_line(tasks: Sequence[TaskState]) -> str:
    """Return text such as "2 running; 10 of 40 cases have ended", or "" if no task is pending or running."""
    live_tasks = [task for task in tasks if task.state.live]
    if not live_tasks:
        return ""
    folders = {task.submitted.folder for task in live_tasks}
    submitted = [task for task in tasks if task.submitted.folder in folders]
    ended, cases = sum(len(t.journal.ended) for t in submitted), sum(t.submitted.cases for t in submitted)
    states = Counter(task.state.name.lower() for task in live_tasks)
    counts = ", ".join(f"{count} {name}" for name, count in states.items())
    return f"{counts}; {ended} of {cases} cases have ended"


def record_lost_cases(results: Path, tasks: Sequence[TaskState]) -> int:
    """Append a "failed" record for each case that an ended job did not finish, and return their number."""
    failed_records = make_failed_records(tasks, store.load(results).records) if tasks else []
    store.append_records(results, failed_records)
    return len(failed_records)


def make_failed_records(tasks: Sequence[TaskState], records: Sequence[Record]) -> list[Record]:
    """Return a "failed" record for each case that an ended job did not finish. No file is written.

    `records` contains all records of the results folder. Raise `Refusal` if a task file cannot be read.
    """
    failed: list[Record] = []
    for task in tasks:
        if not task.may_run and (explanation := _explain_end(task)):
            failed += make_failed_records_of_task(records, task.submitted.path, task.definition, *explanation)
    return failed


def make_failed_records_of_task(
    records: Iterable[Record],
    path: Path,
    definition: TaskDefinition,
    reason: str,
    text: str,
    all_cases: bool = False,
) -> list[Record]:
    """Return a "failed" record for each case that a task began but did not finish.

    If `all_cases` is true, also return a record for each case that never began. Attempts with a record in
    `records` are omitted. `path` is the path of the task file, and `definition` is its content. `reason` is a
    key of `scaling.core.record.REASONS`, and `text` explains it.
    """
    unfinished = {attempt.replicate_key: attempt for attempt in read_journal(path).unfinished}
    history = _history_of_task(definition, records)
    failed = []
    for scheduled in definition.scheduled_cases:
        identity = scheduled.identity(definition.environments)
        begun = unfinished.get(scheduled.replicate_key)
        attempt = begun.attempt if begun else scheduled.attempt
        is_lost = begun or (all_cases and identity not in history.with_result)
        if is_lost and (identity, attempt) not in history.recorded:
            # Use the planned environment, because this process may run on another host.
            nodes = list(begun.nodes) if begun else []
            planned = definition.environments[scheduled.preflight.environment_key] | {"hosts": nodes}
            scheduled = dataclasses.replace(scheduled, attempt=attempt)
            record = scheduled.record_without_result(planned, definition.settings, "failed", reason, text)
            began_at = begun.began_at if begun else None
            failed.append(dataclasses.replace(record, started_at=began_at or record.started_at))
    return failed


def remaining_cases(definition: TaskDefinition, records: Iterable[Record]) -> list[ScheduledCase]:
    """Return the cases of a task that have no result and may be attempted again.

    The field `attempt` of a returned case is the number of its next attempt.
    """
    history, remaining = _history_of_task(definition, records), []
    for scheduled in definition.scheduled_cases:
        identity = scheduled.identity(definition.environments)
        attempts = history.attempts[identity]
        # With retry=true, failures before the submission do not count.
        is_exhausted = attempts >= scheduled.attempt and history.is_exhausted(identity, definition.settings)
        if identity not in history.with_result and not is_exhausted:
            remaining.append(dataclasses.replace(scheduled, attempt=attempts + 1))
    return remaining


def _history_of_task(definition: TaskDefinition, records: Iterable[Record]) -> History:
    keys = {scheduled.case.key for scheduled in definition.scheduled_cases}
    task_records = [record for record in records if record.key in keys]
    return build_history(task_records, definition.environments)


def _explain_end(task: TaskState) -> tuple[str, str, bool] | None:
    """Return the arguments `reason`, `text` and `all_cases` for `make_failed_records_of_task`.

    `task` has ended. Return None if no case of the task needs a "failed" record.
    """
    state_name, has_begun = task.state.name, bool(task.journal.attempts)
    has_log = task.submitted.log_path("err").exists()
    is_unstarted = state_name in _NOT_RECORDED_BEFORE_START or (state_name == LOST and not has_log)
    if (has_begun and state_name == "COMPLETED") or (not has_begun and is_unstarted):
        return None
    if state_name not in _END_REASONS:
        state_name = _find_state_in_log(task) or state_name
    if has_begun and state_name in _END_REASONS:
        reason, text = _END_REASONS[state_name]
        return reason, text.format(minutes=task.submission.minutes), False
    ending = ", ".join(filter(None, [state_name.lower(), task.state.reason]))
    cause = _find_cause(task) if has_log else "it wrote no log; its node must see the results folder"
    cause = cause or "`scaling logs` shows more"
    if has_begun:
        return "killed", f"its job ended ({ending}) while it ran: {cause}", False
    reason = "timeout" if state_name == "TIMEOUT" else "killed"
    return reason, f"its job ended ({ending}) before its first case: {cause}", True


def _find_cause(task: TaskState) -> str:
    """Return the message in the journal or logs of a task that explains its end, or "" if there is none."""
    if task.journal.last_event == "stopped" and task.journal.last_text:
        return task.journal.last_text
    stderr_lines = _read_job_log(task, "err")
    for number, line in enumerate(stderr_lines):
        if line.startswith(submission_files.SETUP_FAILED):
            output = " ".join(" ".join(stderr_lines[:number]).split())
            message = f"; the log says: {output}" if output else ""
            return environment.scrub(f"{line.removeprefix('scaling: ')}{message}")[:500]
    lines = [*_read_job_log(task, "out"), *stderr_lines]
    informative = [line for line in lines if not line.startswith(_UNINFORMATIVE_PREFIXES)]
    return child_process.last_informative_line(informative).removeprefix("scaling: ")


def _find_state_in_log(task: TaskState) -> str:
    """Return the final state of a job that its log shows, such as "TIMEOUT", or "" if it is unknown."""
    lines = _read_job_log(task, "err")
    for line in reversed(lines):
        if explanation := child_process.explain_failure([line]):
            return _STATE_OF_REASON[explanation[0]]
        if "CANCELLED AT" in line:
            return "CANCELLED"
    return "FAILED" if any(line.startswith(submission_files.SETUP_FAILED) for line in lines) else ""


def _read_job_log(task: TaskState, kind: str) -> list[str]:
    """Return the lines in the last 64 KiB of the log of a job, or [] if the log cannot be read.

    `kind` is "out" (standard output) or "err" (standard error). If the job was requeued, the output of
    earlier runs is omitted.
    """
    run_start = task.journal.log_starts[kind == "err"]  # a task that is requeued appends to the log
    with contextlib.suppress(OSError), task.submitted.log_path(kind).open("rb") as file:
        file.seek(max(run_start, os.fstat(file.fileno()).st_size - _LOG_BYTES))
        return file.read().decode(errors="replace").splitlines()
    return []
