"""The table of jobs: tasks as people read them, a line for each that runs or is in trouble, the others folded, however many.

Knows tasks and how far they are; not records, nor how a table is drawn.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from scaling.cluster.job_state import UNKNOWN
from scaling.cluster.task_progress import TaskProgress
from scaling.core.formatting import count_of, format_wait

COLUMNS = ("task", "devices", "job", "state", "node", "elapsed", "cases", "why")
NARROW = ("task", "state", "elapsed", "cases")  # that are not to be broken
_SHOWN = 10  # tasks of one state, each in a line of its own
_LINES = 30  # of the table; those of the last submission, and the live ones, in any case
_NAMES = 2  # in a cell


@dataclass(frozen=True)
class TaskRow:
    """A line: a task, or several of one state in a submission."""

    tasks: tuple[TaskProgress, ...]
    alone: bool  # whether it stands for the one task, and not for what is left of many

    @property
    def open(self) -> bool:
        """Whether there is more to come of it."""
        return self.tasks[0].open

    @property
    def submission(self) -> str:
        """The name of the submission that they are from."""
        return self.tasks[0].entry.folder.name

    @property
    def cells(self) -> tuple[str, ...]:
        """What stands in the columns, after the name of the submission."""
        first, state = self.tasks[0], self.tasks[0].seen.state
        devices = ", ".join(dict.fromkeys(str(task.entry.shape.devices) for task in self.tasks))
        jobs = [task.entry.job or "" for task in self.tasks]
        job = jobs[0] if self.alone else _few(job.partition("_")[0] for job in jobs)
        ended, cases = (
            sum(len(task.ended) for task in self.tasks),
            sum(task.entry.cases for task in self.tasks),
        )
        return (
            _name(first) if self.alone else count_of(len(self.tasks), "task"), devices, job, state.name.lower(),
            _few(task.node for task in self.tasks if not task.waits), _elapsed(first) if self.alone else "", f"{ended}/{cases}",
            state.reason or (first.blocked if first.open and not first.waits else ""),
        )  # fmt: skip


def task_rows(tallies: Sequence[TaskProgress], every: bool = False) -> tuple[list[TaskRow], int]:
    """The lines of a table, the oldest submission first, and how many of what is long over were left out. every: all tasks."""
    groups: dict[tuple, list[TaskProgress]] = {}
    for task in tallies:
        groups.setdefault(
            (task.entry.folder, task.seen.state.name, task.seen.state.reason, task.blocked), []
        ).append(task)
    made = [row for group in groups.values() for row in _folded(group, every)]
    over = [row for row in made if not row.open and row.submission != made[-1].submission]
    left_out = [] if every else over[: max(0, len(made) - _LINES)]
    return [row for row in made if not any(row is other for other in left_out)], len(left_out)


def _folded(group: Sequence[TaskProgress], every: bool) -> list[TaskRow]:
    """Tasks of one state: those that wait, and those that came to their end, in one line, of others the first few."""
    first = group[0]
    quiet = first.waits or first.seen.state.name in ("COMPLETED", UNKNOWN)
    shown = len(group) if every or len(group) == 1 else 0 if quiet else _SHOWN
    if len(group) == shown + 1:
        shown += 1
    alone = [TaskRow((task,), True) for task in group[:shown]]
    return alone + ([TaskRow(tuple(group[shown:]), False)] if group[shown:] else [])


def _few(names: Iterable[str]) -> str:
    """Names once each, as many as fit."""
    several = list(dict.fromkeys(name for name in names if name))
    more = len(several) - _NAMES
    return ", ".join(several[:_NAMES]) + (f" and {more} more" if more > 0 else "")


def _name(task: TaskProgress) -> str:
    return task.entry.name + (f", run {task.runs}" if task.runs > 1 else "")


def _elapsed(task: TaskProgress) -> str:
    """How long it has run: as the scheduler says, or by its own words."""
    if task.waits or task.seen.state.name == UNKNOWN:
        return ""
    told = re.fullmatch(
        r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)", task.seen.state.elapsed
    )  # such as 1-02:03:04, or 3:04
    if told:
        days, hours, minutes, seconds = (int(number or 0) for number in told.groups())
        return format_wait(((days * 24 + hours) * 60 + minutes) * 60 + seconds)
    return "" if task.seconds is None else format_wait(task.seconds)
