"""Table of tasks in `scaling status`: a row for each running or failed task, one for others in a state."""

from collections import defaultdict
from collections.abc import Iterable, Sequence

from rich.markup import escape
from rich.table import Table

from scaling.cluster.cluster_settings import SUBMISSIONS, parse_minutes
from scaling.cluster.job_state import UNKNOWN, TaskState
from scaling.cluster.journal import seconds_between
from scaling.core.formatting import count_of, format_wait, list_first

_COLUMNS = ("task", "devices", "job", "state", "node", "elapsed", "cases", "why")
_NARROW = ("task", "state", "elapsed", "cases")  # columns whose cells are not wrapped
_MAX_SINGLE_ROWS = 10  # number of tasks in one state that have their own row
_MAX_ROWS = 30  # maximum number; rows of the last submission and of open tasks are always shown
_MAX_NAMES = 2  # maximum number of names in a cell
Row = Sequence[TaskState]  # one task, or several tasks of a submission in the same state


def task_table(tasks: Sequence[TaskState], every: bool) -> Table:
    """Return a table of all submitted tasks. If `every` is true, each task has its own row."""
    rows, omitted = task_rows(tasks, every)
    names = [row[0].entry.folder.name for row in rows]
    several = len(set(names)) > 1
    table = Table(title=None if several else escape(f"{SUBMISSIONS}/{names[0]}"))
    if omitted:
        table.caption = f"{omitted} lines about older results are omitted; --all shows them"
    for name in (*(["submission"] if several else []), *_COLUMNS):
        table.add_column(name, no_wrap=name in _NARROW, overflow="fold")
    for row, name, previous in zip(rows, names, [None, *names], strict=False):
        first = [name if name != previous else ""] if several else []
        table.add_row(*map(escape, (*first, *row_cells(row))))
    return table


def task_rows(tasks: Sequence[TaskState], every: bool = False) -> tuple[list[Row], int]:
    """Return the rows of the task table, oldest submission first, and the number of omitted rows.

    Tasks of a submission in the same state share a row if they are pending, completed or unknown, and from
    the 11th on otherwise. If there are more than 30 rows, the oldest rows are omitted, except those of open
    tasks and of the last submission. If `every` is true, each task has its own row, and none is omitted.
    """
    groups: dict[tuple[object, ...], list[TaskState]] = defaultdict(list)
    for task in tasks:
        groups[task.entry.folder, task.state.name, task.state.reason, task.blocked].append(task)
    rows: list[Row] = []
    for group in groups.values():
        share_row = group[0].waits or group[0].state.name in ("COMPLETED", UNKNOWN)
        single = len(group) if every else 0 if share_row else _MAX_SINGLE_ROWS
        rows += [[task] for task in group[:single]]
        rows += [group[single:]] if group[single:] else []
    last = rows[-1][0].entry.folder
    old = [id(row) for row in rows if not row[0].open and row[0].entry.folder != last]
    omitted = [] if every else old[: max(0, len(rows) - _MAX_ROWS)]
    return [row for row in rows if id(row) not in omitted], len(omitted)


def row_cells(row: Row) -> tuple[str, ...]:
    """Return the text of each cell of a row: task, devices, job, state, node, elapsed, cases, and why."""
    first, jobs, elapsed = row[0], [task.entry.job or "" for task in row], ""
    if len(row) == 1:
        run = f", run {first.journal.runs}" if first.journal.runs > 1 else ""
        name, elapsed = first.entry.name + run, _format_elapsed(first)
    else:
        name, jobs = count_of(len(row), "task"), [job.partition("_")[0] for job in jobs]
    devices = ", ".join(dict.fromkeys(str(task.entry.shape.devices) for task in row))
    nodes = _list_names(task.state.node or task.journal.node for task in row if not task.waits)
    ended, cases = sum(len(task.journal.ended) for task in row), sum(task.entry.cases for task in row)
    state, reason = first.state.name.lower(), first.state.reason or first.blocked
    return name, devices, _list_names(jobs), state, nodes, elapsed, f"{ended}/{cases}", reason


def _list_names(names: Iterable[str]) -> str:
    return list_first(list(dict.fromkeys(name for name in names if name)), _MAX_NAMES)


def _format_elapsed(task: TaskState) -> str:
    journal = task.journal
    if task.waits or task.state.name == UNKNOWN:
        return ""
    if minutes := parse_minutes(task.state.elapsed):  # such as 1-02:03:04, or 3:04
        return format_wait(60 * minutes)
    end = None if task.open else journal.last_at
    return format_wait(seconds_between(journal.began_at, end)) if journal.began_at else ""
