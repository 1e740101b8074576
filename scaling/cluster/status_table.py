"""Rows of the task table in `scaling status`: one row per running or failed task, shared rows for others."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from scaling.cluster.cluster_settings import parse_minutes
from scaling.cluster.job_state import UNKNOWN, TaskState
from scaling.cluster.journal import seconds_between
from scaling.core.formatting import count_of, format_wait, list_first

COLUMNS = ("task", "devices", "job", "state", "node", "elapsed", "cases", "why")
NARROW = ("task", "state", "elapsed", "cases")  # columns whose cells are not wrapped
_MAX_SINGLE_ROWS = 10  # number of tasks in one state that have their own row
_MAX_ROWS = 30  # maximum number, except for rows of the last submission and of open tasks
_MAX_NAMES = 2  # maximum number of names in a cell


@dataclass(frozen=True)
class TaskRow:
    """A row of the task table: one task, or several tasks of a submission in the same state.

    Attributes:
        tasks: The tasks of the row.
        is_single: Whether the row shows the details of a single task instead of a summary.
    """

    tasks: tuple[TaskState, ...]
    is_single: bool

    @property
    def open(self) -> bool:
        """Return whether the tasks of the row are pending or running, or their state is unknown."""
        return self.tasks[0].open

    @property
    def submission(self) -> str:
        """Return the name of the folder of the submission, such as "20261121T201500-3f2a"."""
        return self.tasks[0].entry.folder.name

    @property
    def cells(self) -> tuple[str, ...]:
        """Return the text of each cell of the row, in the order of `COLUMNS`."""
        first = self.tasks[0]
        devices = ", ".join(dict.fromkeys(str(task.entry.shape.devices) for task in self.tasks))
        nodes = _list_names(task.state.node or task.journal.node for task in self.tasks if not task.waits)
        ended = sum(len(task.journal.ended) for task in self.tasks)
        cases = f"{ended}/{sum(task.entry.cases for task in self.tasks)}"
        name, job, elapsed = count_of(len(self.tasks), "task"), "", ""
        if self.is_single:
            run = f", run {first.journal.runs}" if first.journal.runs > 1 else ""
            name, job, elapsed = first.entry.name + run, first.entry.job or "", _format_elapsed(first)
        else:
            job = _list_names((task.entry.job or "").partition("_")[0] for task in self.tasks)
        reason = first.state.reason or first.blocked
        return name, devices, job, first.state.name.lower(), nodes, elapsed, cases, reason


def task_rows(tasks: Sequence[TaskState], every: bool = False) -> tuple[list[TaskRow], int]:
    """Return the rows of the task table, oldest submission first, and the number of omitted rows.

    If there are too many rows, the oldest rows of ended tasks are omitted, except in the last submission.

    Args:
        tasks: States of all submitted tasks, oldest submission first.
        every: Whether to return one row for each task and omit none.
    """
    groups: dict[tuple[object, ...], list[TaskState]] = defaultdict(list)
    for task in tasks:
        groups[task.entry.folder, task.state.name, task.state.reason, task.blocked].append(task)
    rows = [row for group in groups.values() for row in _make_rows(group, every)]
    old_rows = [row for row in rows if not row.open and row.submission != rows[-1].submission]
    omitted = [] if every else old_rows[: max(0, len(rows) - _MAX_ROWS)]
    return [row for row in rows if row not in omitted], len(omitted)


def _make_rows(group: Sequence[TaskState], every: bool) -> list[TaskRow]:
    """Return rows for tasks in the same state: one row per task, or one row that several tasks share.

    Pending and completed tasks, and tasks in an unknown state, share a row. Of the other tasks, the first
    `_MAX_SINGLE_ROWS` have separate rows. If `every` is true, each task has a separate row.
    """
    if every:
        count = len(group)
    else:
        share_row = group[0].waits or group[0].state.name in ("COMPLETED", UNKNOWN)
        count = 0 if share_row else _MAX_SINGLE_ROWS
    if len(group) == count + 1:  # a shared row for one task saves nothing
        count += 1
    rows = [TaskRow((task,), True) for task in group[:count]]
    return rows + ([TaskRow(tuple(group[count:]), False)] if group[count:] else [])


def _list_names(names: Iterable[str]) -> str:
    return list_first(list(dict.fromkeys(name for name in names if name)), _MAX_NAMES)


def _format_elapsed(task: TaskState) -> str:
    """Return the elapsed time of a task, such as "2 h 05 min", or "" if unknown or not started."""
    if task.waits or task.state.name == UNKNOWN:
        return ""
    if minutes := parse_minutes(task.state.elapsed):  # such as 1-02:03:04, or 3:04
        return format_wait(60 * minutes)
    seconds = seconds_between(task.journal.began_at, None if task.open else task.journal.last_at)
    return "" if seconds is None else format_wait(seconds)
