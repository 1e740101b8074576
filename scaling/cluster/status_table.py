"""Build the table of submitted tasks of `scaling status`, where tasks in the same state may share a row."""

from collections.abc import Iterable, Sequence

from rich.markup import escape
from rich.table import Table

from scaling.cluster.cluster_settings import SUBMISSIONS, parse_minutes
from scaling.cluster.job_state import UNKNOWN, TaskState
from scaling.cluster.journal import seconds_between
from scaling.core.formatting import count_of, format_wait, list_first
from scaling.workers.schedule import group_by

_COLUMNS = ("task", "devices", "job", "state", "node", "elapsed", "cases", "why")
_NARROW = ("task", "state", "elapsed", "cases")  # columns whose cells are not wrapped
_MAX_SINGLE_ROWS = 10  # number of tasks in one state that have their own row
_MAX_ROWS = 30  # maximum number of rows; the last submission and tasks that may still run are always shown
_MAX_NAMES = 2  # maximum number of names in a cell
Row = Sequence[TaskState]  # one task, or several tasks of a submission in the same state


def task_table(tasks: Sequence[TaskState], every: bool) -> Table:
    """Return the rows of `task_rows` as a table for the terminal."""
    rows, omitted = task_rows(tasks, every)
    submissions = [row[0].entry.folder.name for row in rows]
    has_several = len(set(submissions)) > 1
    table = Table(title=None if has_several else escape(f"{SUBMISSIONS}/{submissions[0]}"))
    if omitted:
        table.caption = f"{omitted} lines about older results are omitted; --all shows them"
    for column in (*(["submission"] if has_several else []), *_COLUMNS):
        table.add_column(column, no_wrap=column in _NARROW, overflow="fold")
    for row, name, previous in zip(rows, submissions, [None, *submissions], strict=False):
        submission = [name if name != previous else ""] if has_several else []
        table.add_row(*map(escape, (*submission, *row_cells(row))))
    return table


def task_rows(tasks: Sequence[TaskState], every: bool = False) -> tuple[list[Row], int]:
    """Return the rows of the task table, oldest submission first, and the number of omitted rows.

    The tasks of a submission are grouped by state and reason. A group of pending, completed or unknown tasks
    shares one row. In any other group, the first 10 tasks have one row each, and the rest share one row. If
    there are more than 30 rows, the oldest are omitted, except for rows of the last submission and of tasks
    that may still run. If `every` is true, each task has its own row, and no row is omitted.
    """
    rows: list[Row] = []
    for group in group_by(tasks, lambda t: (t.entry.folder, t.state.name, t.state.reason, t.wait_message)):
        share_row = group[0].is_pending or group[0].state.name in ("COMPLETED", UNKNOWN)
        single_rows = len(group) if every else 0 if share_row else _MAX_SINGLE_ROWS
        rows += [[task] for task in group[:single_rows]]
        rows += [group[single_rows:]] if group[single_rows:] else []
    last = rows[-1][0].entry.folder
    old = [id(row) for row in rows if not row[0].may_run and row[0].entry.folder != last]
    omitted = [] if every else old[: max(0, len(rows) - _MAX_ROWS)]
    return [row for row in rows if id(row) not in omitted], len(omitted)


def row_cells(row: Row) -> tuple[str, ...]:
    """Return the text of each cell in a table row, in the order of `_COLUMNS`."""
    first, jobs, elapsed = row[0], [task.entry.job or "" for task in row], ""
    if len(row) == 1:
        run = f", run {first.journal.runs}" if first.journal.runs > 1 else ""
        name, elapsed = first.entry.name + run, _format_elapsed(first)
    else:
        name, jobs = count_of(len(row), "task"), [job.partition("_")[0] for job in jobs]
    devices = ", ".join(dict.fromkeys(str(task.entry.shape.devices) for task in row))
    nodes = _list_names(task.state.node or task.journal.node for task in row if not task.is_pending)
    ended, cases = sum(len(task.journal.ended) for task in row), sum(task.entry.cases for task in row)
    state, reason = first.state.name.lower(), first.state.reason or first.wait_message
    return name, devices, _list_names(jobs), state, nodes, elapsed, f"{ended}/{cases}", reason


def _list_names(names: Iterable[str]) -> str:
    return list_first(list(dict.fromkeys(name for name in names if name)), _MAX_NAMES)


def _format_elapsed(task: TaskState) -> str:
    journal = task.journal
    if task.is_pending or task.state.name == UNKNOWN:
        return ""
    if minutes := parse_minutes(task.state.elapsed):  # such as 1-02:03:04, or 3:04
        return format_wait(60 * minutes)
    end = None if task.may_run else journal.last_at
    return format_wait(seconds_between(journal.began_at, end)) if journal.began_at else ""
