"""Make "failed" records for cases that a job did not finish, and list the cases that remain to be run."""

import dataclasses
import math
from collections.abc import Iterable, Sequence
from pathlib import Path

from scaling.cluster import submission_files
from scaling.cluster.job_state import END_REASONS, TaskState, find_state_in_log, read_log
from scaling.cluster.slurm import LOST
from scaling.cluster.submission_files import read_journal
from scaling.core import environment
from scaling.core.record import Record
from scaling.results import store
from scaling.workers import child_process
from scaling.workers.schedule import History, ScheduledCase, build_history

# Final states of a job after which cases that never began are not recorded as failed.
_NOT_RECORDED_BEFORE_START = ("CANCELLED", "DEADLINE", "PREEMPTED", "NODE_FAIL", "BOOT_FAIL")
# Prefixes of log lines that do not explain the cause.
_UNINFORMATIVE_PREFIXES = (
    " ", "Traceback", "subprocess.CalledProcessError", "submitit", "srun: Job step", "slurmstepd",
    "Command '[",
)  # fmt: skip


def record_lost_cases(results: Path, tasks: Sequence[TaskState]) -> int:
    """Append a "failed" record for each case whose job ended early. Return the number of records."""
    failed_records = make_failed_records(tasks, store.load(results).records) if tasks else []
    store.append_records(results, failed_records)
    return len(failed_records)


def make_failed_records(tasks: Sequence[TaskState], records: Sequence[Record]) -> list[Record]:
    """Return a "failed" record for each case whose job ended before the case was recorded.

    `records` contains all records of the results folder. Raise `Refusal` if a task file cannot be read.
    """
    failed: list[Record] = []
    for task in tasks:
        if not task.may_run and (explanation := explain_end(task)):
            failed += make_failed_records_of_task(records, task.entry.path, task.definition, *explanation)
    return failed


def make_failed_records_of_task(
    records: Iterable[Record],
    path: Path,
    definition: submission_files.TaskDefinition,
    reason: str,
    text: str,
    all_cases: bool = False,
) -> list[Record]:
    """Return a "failed" record for each case that a task began but did not finish.

    If `all_cases` is true, also return a record for each case that never began. Omit attempts that already
    have a record in `records`. `path` is the path of the task file, and `definition` is its content. `reason`
    is a key of `scaling.core.record.REASONS`, and `text` explains it.
    """
    unfinished = {attempt.replicate_key: attempt for attempt in read_journal(path).unfinished}
    history = _history_of_task(definition, records)
    failed = []
    for item in definition.scheduled_cases:
        identity = item.identity(definition.environments)
        begun = unfinished.get(item.replicate_key)
        attempt = begun.attempt if begun else item.attempt
        is_lost = begun or (all_cases and identity not in history.with_result)
        if is_lost and (identity, attempt) not in history.recorded:
            # Use the planned environment, because this process may run on another host.
            planned = definition.environments[item.preflight.environment_key] | {"hosts": []}
            item = dataclasses.replace(item, attempt=attempt)
            record = item.record_without_result(planned, definition.settings, "failed", reason, text)
            began_at = begun.began_at if begun else None
            failed.append(dataclasses.replace(record, started_at=began_at or record.started_at))
    return failed


def remaining_cases(
    definition: submission_files.TaskDefinition, records: Iterable[Record]
) -> list[ScheduledCase]:
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


def _history_of_task(definition: submission_files.TaskDefinition, records: Iterable[Record]) -> History:
    keys = {item.case.key for item in definition.scheduled_cases}
    task_records = [record for record in records if record.key in keys]
    return build_history(task_records, definition.environments)


def explain_end(task: TaskState) -> tuple[str, str, bool] | None:
    """Return (reason, text, all_cases) for the "failed" records of a task, or None if none are needed.

    `reason` is a key of `scaling.core.record.REASONS`, and `text` explains why the job of the task ended.
    `all_cases` is true if cases that never began also need a record.
    """
    name, has_begun = task.state.name, bool(task.journal.attempts)
    has_log = task.entry.log_path("err").exists()
    is_unstarted = name in _NOT_RECORDED_BEFORE_START or (name == LOST and not has_log)
    if (has_begun and name == "COMPLETED") or (not has_begun and is_unstarted):
        return None
    if name not in END_REASONS:
        name = find_state_in_log(task) or name
    if has_begun and name in END_REASONS:
        reason, text = END_REASONS[name]
        minutes = task.submission.minutes
        return reason, text.format(minutes=minutes, more=math.ceil(2 * minutes)), False
    exit_code = f", {task.state.reason}" if task.state.reason.startswith("exit code") else ""
    ending, cause = f"its job ended ({name.lower()}{exit_code})", find_cause(task)
    if has_begun:
        return "killed", f"{ending} while it ran{f': {cause}' if cause else ''}", False
    log_hint = f": {cause}; `scaling logs` shows more" if cause else ": `scaling logs` shows why"
    if not has_log:
        log_hint = ": it wrote no log; its node must see the results folder"
    return "timeout" if name == "TIMEOUT" else "killed", f"{ending} before its first case{log_hint}", True


def find_cause(task: TaskState) -> str:
    """Return the message in the journal or logs that explains why a task ended, or "" if there is none."""
    if task.journal.last_event == "stopped" and task.journal.last_text:
        return task.journal.last_text
    stderr_lines = read_log(task, "err")
    for number, line in enumerate(stderr_lines):
        if line.startswith(submission_files.SETUP_FAILED):
            output = " ".join(" ".join(stderr_lines[:number]).split())
            message = f"; the log says: {output}" if output else ""
            return environment.scrub(f"{line.removeprefix('scaling: ')}{message}")[:500]
    lines = [*read_log(task, "out"), *stderr_lines]
    informative = [line for line in lines if not line.startswith(_UNINFORMATIVE_PREFIXES)]
    return child_process.last_informative_line(informative).removeprefix("scaling: ")
