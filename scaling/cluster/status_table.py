"""The table of tasks: a line for each task that runs or failed; tasks that wait or are done share lines.

Knows the states of tasks; not records, nor how a table is drawn.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from scaling.cluster.job_state import UNKNOWN, TaskState
from scaling.cluster.journal import seconds_between
from scaling.cluster.settings import parse_minutes
from scaling.core.formatting import count_of, format_wait

COLUMNS = ("task", "devices", "job", "state", "node", "elapsed", "cases", "why")
NARROW = ("task", "state", "elapsed", "cases")  # columns whose cells are not broken
_MOST_SHOWN = 10  # tasks of one state, each in a line
_MOST_LINES = 30  # of the table; those of the last submission, and of live tasks, are shown in any case
_MOST_NAMES = 2  # in a cell


@dataclass(frozen=True)
class TaskRow:
    """A line of the table: a task, or several of one state in a submission."""

    tasks: tuple[TaskState, ...]
    alone: bool  # whether the line is about one task, and not about the rest of many

    @property
    def open(self) -> bool:
        """Return whether the tasks wait or run, or may."""
        return self.tasks[0].open

    @property
    def submission(self) -> str:
        """Return the name of the submission."""
        return self.tasks[0].entry.folder.name

    @property
    def cells(self) -> tuple[str, ...]:
        """Return the texts of the columns."""
        first = self.tasks[0]
        devices = ", ".join(dict.fromkeys(str(task.entry.shape.devices) for task in self.tasks))
        nodes = _list_names(task.state.node or task.journal.node for task in self.tasks if not task.waits)
        ended = sum(len(task.journal.ended) for task in self.tasks)
        cases = f"{ended}/{sum(task.entry.cases for task in self.tasks)}"
        name, job, elapsed = count_of(len(self.tasks), "task"), "", ""
        if self.alone:
            run = f", run {first.journal.runs}" if first.journal.runs > 1 else ""
            name, job, elapsed = first.entry.name + run, first.entry.job or "", _format_elapsed(first)
        else:
            job = _list_names((task.entry.job or "").partition("_")[0] for task in self.tasks)
        why = first.state.reason or first.blocked
        return name, devices, job, first.state.name.lower(), nodes, elapsed, cases, why


def task_rows(tasks: Sequence[TaskState], every: bool = False) -> tuple[list[TaskRow], int]:
    """Return the lines of the table, the oldest submission first, and how many old lines were left out.

    every: whether each task has a line, and none is left out.
    """
    groups: dict[tuple[object, ...], list[TaskState]] = defaultdict(list)
    for task in tasks:
        groups[task.entry.folder, task.state.name, task.state.reason, task.blocked].append(task)
    rows = [row for group in groups.values() for row in _fold(group, every)]
    old = [row for row in rows if not row.open and row.submission != rows[-1].submission]
    left_out = [] if every else old[: max(0, len(rows) - _MOST_LINES)]
    return [row for row in rows if row not in left_out], len(left_out)


def _fold(group: Sequence[TaskState], every: bool) -> list[TaskRow]:
    """Return the lines of the tasks in one state.

    Waiting and finished tasks share one line; otherwise each of the first tasks has its own.
    """
    if every:
        count = len(group)
    else:
        done_or_waits = group[0].waits or group[0].state.name in ("COMPLETED", UNKNOWN)
        count = 0 if done_or_waits else _MOST_SHOWN
    if len(group) == count + 1:
        count += 1
    rows = [TaskRow((task,), True) for task in group[:count]]
    return rows + ([TaskRow(tuple(group[count:]), False)] if group[count:] else [])


def _list_names(names: Iterable[str]) -> str:
    """Return distinct names, as many as fit."""
    distinct = list(dict.fromkeys(name for name in names if name))
    more = len(distinct) - _MOST_NAMES
    return ", ".join(distinct[:_MOST_NAMES]) + (f" and {more} more" if more > 0 else "")


def _format_elapsed(task: TaskState) -> str:
    """Return how long a task has run: as the scheduler says, or by its journal."""
    if task.waits or task.state.name == UNKNOWN:
        return ""
    if minutes := parse_minutes(task.state.elapsed):  # such as 1-02:03:04, or 3:04
        return format_wait(60 * minutes)
    seconds = seconds_between(task.journal.began_at, None if task.open else task.journal.last_at)
    return "" if seconds is None else format_wait(seconds)
