"""Lost cases: those that ended with the job of their task; why they did, and their records.

Knows tasks and records; not how the state of a task is found.
"""

import contextlib
import dataclasses
import math
from collections.abc import Iterable, Sequence
from pathlib import Path

from scaling.cluster import job_state, submission
from scaling.cluster.job_state import TaskState
from scaling.cluster.journal import read_journal
from scaling.core import environment, store
from scaling.core.case import Refusal
from scaling.core.record import Record
from scaling.workers import schedule

_REASONS = {  # state of a job -> the reason in records, and a text
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
    "OUT_OF_MEMORY": ("out_of_memory", "its job took more memory than it had requested while it ran"),
}
# States that are not the fault of a case that had not begun.
_BLAMELESS = ("CANCELLED", "PREEMPTED", "NODE_FAIL", "BOOT_FAIL", "LOST")
# How a line of a log begins that is not the reason itself.
_NOT_REASONS = (
    " ", "Traceback", "subprocess.CalledProcessError", "submitit", "srun: Job step", "slurmstepd",
    "Command '[",
)  # fmt: skip


def record_lost_cases(results: Path, tasks: Sequence[TaskState]) -> int:
    """Record the lost cases of each ended task, once for each task; return how many cases these are."""
    new = [task for task in tasks if not task.open and not task.settled]
    if not new:
        return 0
    found = unrecorded(new, store.load(results).records)
    append_records(results, found)
    job_state.remember(new, settled=True)  # last: done again, it writes nothing twice
    return len(found)


def unrecorded(tasks: Sequence[TaskState], records: Sequence[Record]) -> list[Record]:
    """Return the records that `record_lost_cases` would write now. Verbs that only read count these too."""
    found: list[Record] = []
    for task in tasks:
        if task.open or task.settled:
            continue
        if ended := explain_end(task):
            with contextlib.suppress(Refusal):  # the file of the task is gone
                work = submission.read(task.entry.path)
                found += lost_records(records, task.entry.path, work, *ended)
    return found


def lost_records(
    records: Iterable[Record],
    task: Path,
    work: submission.Work,
    reason: str,
    text: str,
    all_cases: bool = False,
) -> list[Record]:
    """Return records of what a task began and did not end, or of all its cases without a record."""
    from scaling.workers import supervise

    begun = {each.place: each.attempt for each in read_journal(task).unfinished}
    known = schedule.history(records, work.environments.values()).recorded
    found = []
    for item in work.items:
        attempt = begun.get(item.place, item.attempt if all_cases else None)
        # As it was asked for: where this process runs does not matter.
        planned = work.environments[item.answer.environment_key]
        if attempt is None or ((item.case.key, planned["digest"], item.replicate), attempt) in known:
            continue
        tried = dataclasses.replace(item, attempt=attempt)
        blank = supervise.empty_record(tried, planned | {"hosts": []}, work.settings)
        found.append(dataclasses.replace(blank, status="failed", reason=reason, text=text))
    return found


def append_records(results: Path, records: Iterable[Record]) -> None:
    """Write records to a new file of a results folder."""
    writer = store.Writer(results)
    for record in records:
        writer.append(record)


def explain_end(task: TaskState) -> tuple[str, str, bool] | None:
    """Return why unfinished cases of an ended task have no result; None if none is to be recorded.

    The reason of the records, their text, and whether all cases are lost, or those that had begun.
    """
    name, begun = task.state.name, bool(task.journal.attempts)
    if name in (("COMPLETED",) if begun else _BLAMELESS):
        return None
    if name not in _REASONS:
        name = job_state.state_in_log(task) or name
    code = f", {task.state.reason}" if task.state.reason.startswith("exit code") else ""
    words = find_cause(task)
    if not begun:
        why = f": {words}; `scaling logs` shows more" if words else ": `scaling logs` shows why"
        text = f"its job ended ({name.lower()}{code}) before its first case{why}"
        return "timeout" if name == "TIMEOUT" else "killed", text, True
    if name not in _REASONS:
        why = f": {words}" if words else ""
        return "killed", f"its job ended ({name.lower()}{code}) while it ran{why}", False
    reason, text = _REASONS[name]
    return reason, text.format(minutes=task.entry.minutes, more=math.ceil(2 * task.entry.minutes)), False


def find_cause(task: TaskState) -> str:
    """Return why a task ended, by its journal or else by the logs of its job; empty if neither says."""
    if task.journal.last_event == "stopped" and task.journal.last_text:
        return task.journal.last_text
    if text := _failed_setup(job_state.read_log(task, "err")):
        return text
    for kind in ("err", "out"):
        lines = [
            line
            for line in job_state.read_log(task, kind)
            if line.strip() and not line.startswith(_NOT_REASONS)
        ]
        if lines:
            return environment.last_line("\n".join(lines), "")[:300]
    return ""


def _failed_setup(lines: Sequence[str]) -> str:
    """Return which setup line ended a job, with what the job had written before; empty if none did."""
    marks = [number for number, line in enumerate(lines) if line.startswith(submission.SETUP_FAILED)]
    if not marks:
        return ""
    before = lines[marks[-2] + 1 if len(marks) > 1 else 0 : marks[-1]]
    written = " ".join(" ".join(before).split())
    message = f"; the log says: {written}" if written else ""
    return environment.scrub(f"{lines[marks[-1]].removeprefix('scaling: ')}{message}")[:500]
