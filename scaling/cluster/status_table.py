"""Build the tables of submitted tasks for `scaling status`. Tasks in the same state share a row."""

from collections.abc import Iterable, Iterator, Sequence

from rich.markup import escape
from rich.table import Table

from scaling.cluster.cluster_settings import SUBMISSIONS
from scaling.cluster.job_state import TaskState
from scaling.cluster.journal import seconds_between
from scaling.core.formatting import count_of, format_wait, list_first
from scaling.workers.schedule import group_by

_COLUMNS = ("task", "devices", "job", "state", "node", "elapsed", "cases", "why")
_NARROW = ("state", "elapsed", "cases")  # columns whose cells are not wrapped
_MAX_NAMES = 2  # maximum number of names in a cell


def task_tables(tasks: Sequence[TaskState], every: bool) -> Iterator[Table]:
    """Yield a table with the tasks of each submission.

    Unless `every` is true, tasks in the same state share a row, and earlier submissions show no ended tasks.
    """
    last = tasks[-1].entry.folder
    shown = [task for task in tasks if every or task.may_run or task.entry.folder == last]
    for submitted in group_by(shown, lambda task: task.entry.folder):
        folder = submitted[0].entry.folder
        table = Table(title=escape(f"{SUBMISSIONS}/{folder.name}"))
        for column in _COLUMNS:
            table.add_column(column, no_wrap=column in _NARROW, overflow="fold")
        for cells in task_rows(submitted, every):
            table.add_row(*map(escape, cells))
        if folder == last and len(shown) < len(tasks):
            ended = count_of(len(tasks) - len(shown), "task")
            table.caption = f"{ended} of earlier submissions have ended; --all shows them"
        yield table


def task_rows(tasks: Sequence[TaskState], every: bool = False) -> list[tuple[str, ...]]:
    """Return the table rows for the tasks of a submission. Each row contains the text for `_COLUMNS`."""
    groups = group_by(tasks, lambda task: (task.state.name, task.state.reason, task.wait_message))
    return [_row_cells(row) for row in ([[task] for task in tasks] if every else groups)]


def _row_cells(row: Sequence[TaskState]) -> tuple[str, ...]:
    state, journals = row[0].state, [task.journal for task in row]
    ended, cases = sum(len(journal.ended) for journal in journals), sum(task.entry.cases for task in row)
    restarts = max(journal.runs for journal in journals)
    return (
        _list_names(task.entry.name for task in row) + (f", run {restarts}" if restarts > 1 else ""),
        _list_names(str(task.entry.shape.devices) for task in row),
        _list_names(task.entry.job or "" for task in row),
        state.name.lower(),
        _list_names(task.state.node or task.journal.node for task in row if not task.is_pending),
        _format_elapsed(row),
        f"{ended}/{cases}",
        state.reason or row[0].wait_message,
    )


def _list_names(names: Iterable[str]) -> str:
    return list_first(list(dict.fromkeys(filter(None, names))), _MAX_NAMES)


def _format_elapsed(row: Sequence[TaskState]) -> str:
    """Format the longest time from the start of a task to its end or, while it runs, to now."""
    started = [task for task in row if task.journal.began_at and not task.is_pending]
    times = [
        seconds_between(str(task.journal.began_at), None if task.state.live else task.journal.last_at)
        for task in started
    ]
    return format_wait(max(times)) if times else ""
