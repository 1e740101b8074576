"""What became of submissions: the state of every task, by the scheduler, by memory, or by the task itself.

Knows how to ask and what to remember; not how it is shown.
"""

import contextlib
import dataclasses
import os
import signal
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from scaling.cluster import slurm, submission
from scaling.cluster.journal import TaskAttempt, TaskJournal, read_journal
from scaling.cluster.settings import SLURM
from scaling.cluster.slurm import JobState
from scaling.cluster.submission import Submission, SubmittedTask
from scaling.core import environment, store
from scaling.core.case import Refusal
from scaling.workers import transport
from scaling.workers.schedule import NOT_BEGUN

UNKNOWN = "UNKNOWN"  # the state of a task whose scheduler is not asked
_WAITING = (
    "PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT", "RESV_DEL_HOLD",
)  # fmt: skip
_STATE_OF_REASON = {  # reason of a record -> state of a job, where only the log says it
    "timeout": "TIMEOUT", "preempted": "PREEMPTED", "node_failed": "NODE_FAIL",
    "out_of_memory": "OUT_OF_MEMORY",
}  # fmt: skip
_LOG_BYTES = 65536  # read from the end of a log
_STATES = "states.json"  # of a submission: the states of ended tasks, which a scheduler forgets


@dataclass(frozen=True)
class TaskState:
    """A submitted task with its state, and with its journal, which is read once."""

    submission: Submission
    entry: SubmittedTask
    state: JobState
    settled: bool = False  # whether its lost cases are recorded

    @cached_property
    def journal(self) -> TaskJournal:
        """Return the journal of the task."""
        return read_journal(self.entry.path)

    @property
    def open(self) -> bool:
        """Return whether the task waits or runs, or may, if no scheduler was asked."""
        return self.state.live or self.state.name == UNKNOWN

    @property
    def waits(self) -> bool:
        """Return whether the task has not started, or will start again."""
        return self.state.name in _WAITING

    @property
    def blocked(self) -> str:
        """Return what the running task waits for, in words; empty if it does not wait."""
        waiting = self.open and not self.waits and self.journal.last_event == "waiting"
        return self.journal.last_text if waiting else ""

    @property
    def running(self) -> list[TaskAttempt]:
        """Return the attempts that run now."""
        if not self.open or self.waits:
            return []
        return [each for each in self.journal.attempts if each.run == self.journal.runs and not each.ended_at]


def look_up(results: Path, asking: bool = True) -> list[TaskState]:
    """Return every task submitted for a results folder; a `Refusal` if the scheduler does not answer.

    asking: False asks no scheduler; what is neither remembered nor reported by the task is then `UNKNOWN`.
    """
    return [task for made in submission.all_of(results) for task in _look_up_submission(made, asking)]


def try_look_up(results: Path) -> tuple[list[TaskState], str]:
    """Return every task, and why the scheduler does not answer; empty if it does."""
    try:
        return look_up(results), ""
    except Refusal as refusal:
        return look_up(results, asking=False), str(refusal)


def _look_up_submission(made: Submission, asking: bool) -> list[TaskState]:
    """Return the tasks of a submission. New ends are remembered."""
    known = {
        name: (JobState(**ended["state"]), ended.get("settled", False))
        for name, ended in _read_states(made.folder).items()
    }
    tasks = [
        TaskState(made, entry, *known.get(entry.name, (JobState(UNKNOWN), False))) for entry in made.entries
    ]
    open_tasks = [task for task in tasks if task.entry.name not in known]
    if not open_tasks:
        return tasks
    found = {task.entry.name: task for task in _find_states(_with_jobs(open_tasks, asking), asking)}
    unsure = (UNKNOWN, "LOST") if made.kind == SLURM else (UNKNOWN,)  # accounting may know more later
    remember([task for task in found.values() if not task.state.live and task.state.name not in unsure])
    return [found.get(task.entry.name, task) for task in tasks]


def _with_jobs(tasks: Sequence[TaskState], asking: bool) -> list[TaskState]:
    """Return tasks of one submission with jobs, also if their launcher died before it noted these."""
    jobs = {task.entry.name: task.entry.job or task.journal.job for task in tasks}
    if asking and tasks[0].submission.kind == SLURM and None in jobs.values():
        jobs |= _find_jobs_by_name(tasks[0].submission, jobs)
    return [
        dataclasses.replace(task, entry=dataclasses.replace(task.entry, job=jobs[task.entry.name]))
        for task in tasks
    ]


def _find_jobs_by_name(made: Submission, jobs: Mapping[str, str | None]) -> dict[str, str]:
    """Return the jobs of the one array that was submitted and not noted, by task, from the name of its jobs.

    The launcher submits arrays in the order of their tasks and notes each before the next.
    """
    noted = {entry.job.partition("_")[0] for entry in made.entries if entry.job}
    array = [entry for entry in made.entries if not entry.job]
    array = [entry for entry in array if entry.shape == array[0].shape]
    found: dict[str, str] = {}
    for job in (*slurm.named(made.name), *slurm.accounted_by_name(made.name, made.made_at)):
        number, _, index = job.partition("_")
        place = int(index or 0)
        if number not in noted and place < len(array) and not jobs.get(array[place].name):
            found.setdefault(array[place].name, job)
    return found


def _find_states(tasks: Sequence[TaskState], asking: bool) -> list[TaskState]:
    """Return tasks of one submission, of which no end is known yet, with their states."""
    known: dict[str, JobState] = {}
    if asking and tasks[0].submission.kind == SLURM:
        known = slurm.states([task.entry.job for task in tasks if task.entry.job])
    noted = {entry.name for entry in tasks[0].submission.entries if entry.job}
    return [
        dataclasses.replace(task, state=_find_state(task, asking, known, task.entry.name in noted))
        for task in tasks
    ]


def _find_state(task: TaskState, asking: bool, known: Mapping[str, JobState], noted: bool) -> JobState:
    """Return the state of a task. known: by the scheduler. noted: whether its launcher noted its job."""
    made, job = task.submission, task.entry.job
    if job and job in known:
        return known[job]
    on_slurm = made.kind == SLURM
    answered = asking if on_slurm else made.host == environment.node_name()  # where its process can be seen
    if answered and not on_slurm and _find_process(task):
        return JobState("RUNNING" if task.journal.runs else "PENDING", task.journal.node)
    if answered and on_slurm and not noted and (job or made.young) and not task.journal.runs:
        return JobState("PENDING", reason="being submitted")
    reported = _reported_state(dataclasses.replace(task))  # with its journal as it is by now
    return reported if answered or reported.name == "COMPLETED" else JobState(UNKNOWN, reported.node)


def _reported_state(task: TaskState) -> JobState:
    """Return the end of a task by its journal or the log of its job; LOST if neither says."""
    journal = task.journal
    if not journal.runs:
        return JobState("LOST", reason="it never began, and the scheduler has forgotten it")
    if journal.last_event == "ended":
        return JobState("COMPLETED", journal.node)
    if name := state_in_log(task):
        return JobState(name, journal.node)
    if journal.last_event != "stopped":
        return JobState("LOST", journal.node, reason="it ended without a word")
    if journal.last_text:
        return JobState("FAILED", journal.node, reason=journal.last_text)
    if task.submission.kind == SLURM:
        reason = "it was stopped, and neither Slurm nor its log says why"
        return JobState("LOST", journal.node, reason=reason)
    return JobState("CANCELLED", journal.node)


def state_in_log(task: TaskState) -> str | None:
    """Return the state in which Slurm ended a job, by the log of the job; None if the log does not say."""
    for line in reversed(read_log(task, "err")):
        if why := transport.explain_failure([line]):
            return _STATE_OF_REASON[why[0]]
        if "CANCELLED AT" in line:
            return "CANCELLED"
    return None


def read_log(task: TaskState, kind: str) -> list[str]:
    """Return the last lines of the job of a task on standard error (err) or standard output (out)."""
    job = task.entry.job or task.journal.job
    lines: list[str] = []
    for path in sorted((task.entry.folder / "log").glob(f"{job}_*log.{kind}")) if job else ():
        with contextlib.suppress(OSError), path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - _LOG_BYTES))
            lines += file.read().decode(errors="replace").splitlines()
    return lines


def _find_process(task: TaskState) -> int | None:
    """Return the process that runs a task of this machine, or that started it; None if both are gone."""
    mark = str(task.entry.folder.resolve()).encode()  # the number may be that of another process by now
    for pid in (task.journal.pid, task.entry.job):
        with contextlib.suppress(OSError):
            if pid and mark in Path(f"/proc/{pid}/cmdline").read_bytes():
                return int(pid)
    return None


def remember(tasks: Iterable[TaskState], settled: bool = False) -> None:
    """Write down the states of ended tasks. settled: their lost cases are recorded."""
    for folder, group in _by_submission(tasks).items():
        states = {
            task.entry.name: {"state": dataclasses.asdict(task.state), "settled": settled} for task in group
        }
        with contextlib.suppress(OSError):  # a reader may not be allowed to write
            store.write_json(folder / _STATES, _read_states(folder) | states)


def _read_states(folder: Path) -> dict[str, dict[str, Any]]:
    """Return what is remembered of the tasks of a submission, by the name of the task."""
    return store.read_json(folder / _STATES) or {}


def _by_submission(tasks: Iterable[TaskState]) -> dict[Path, list[TaskState]]:
    groups: dict[Path, list[TaskState]] = defaultdict(list)
    for task in tasks:
        groups[task.entry.folder].append(task)
    return groups


def was_cancelled(tasks: Sequence[TaskState]) -> bool:
    """Return whether a task of the last submission was cancelled: the user does not want it."""
    return any(task.state.name == "CANCELLED" for task in _last_submission(tasks))


def was_refused(tasks: Sequence[TaskState]) -> bool:
    """Return whether a task of the last submission did not get what it requests: another would not."""
    attempts = (attempt for task in _last_submission(tasks) for attempt in task.journal.attempts)
    return any(attempt.reason == NOT_BEGUN for attempt in attempts)


def _last_submission(tasks: Sequence[TaskState]) -> list[TaskState]:
    return [task for task in tasks if task.entry.folder == tasks[-1].entry.folder]


def queued_cases(tasks: Iterable[TaskState]) -> set[tuple[str, int]]:
    """Return the cases, as (key, replicate), of tasks that wait or run, or may."""
    return {item.place for task in tasks if task.open for item in submission.read(task.entry.path).items}


def cancel(tasks: Iterable[TaskState]) -> int:
    """End the tasks that wait or run; return how many these are."""
    live = [task for task in tasks if task.state.live]
    for group in _by_submission(live).values():
        if group[0].submission.kind == SLURM:
            jobs = [task.entry.job for task in group if task.entry.job]
            slurm.cancel(jobs if len(jobs) == len(group) else jobs + slurm.named(group[0].submission.name))
            continue
        for process in filter(None, map(_find_process, group)):
            with contextlib.suppress(OSError):
                os.kill(process, signal.SIGTERM)
    return len(live)
