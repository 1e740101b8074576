"""Implement `scaling status`: print the states of tasks and cases (`StudyStatus`) as tables and lines."""

import argparse
import datetime
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from scaling.cli.commands import FAILED, INTERRUPTED, OK
from scaling.cli.output import damaged_notes, make_printable, print_lines
from scaling.cluster import task_state
from scaling.cluster.cluster_settings import SUBMISSIONS
from scaling.cluster.task_state import TaskState
from scaling.core.case import Case, label
from scaling.core.formatting import format_count, format_wait, list_first
from scaling.core.grouping import group_by
from scaling.core.record import Record
from scaling.results import store

STATES = ("ok", "skipped", "failed", "running", "queued", "missing")
_OF_JOBS = ("running", "queued")  # states that exist only if jobs were submitted
_LISTED = ("failed", "running", "skipped", "missing")  # states whose cases are listed individually
_MAX_LINES = 20  # maximum number of lines for one state
_KEY_LENGTH = 8  # number of characters of a key to show
_TASK_COLUMNS = ("task", "devices", "job", "state", "node", "elapsed", "cases", "why")
_NARROW = ("state", "elapsed", "cases")  # columns whose cells are not wrapped
_MAX_NAMES = 2  # maximum number of names in a cell


@dataclass(frozen=True)
class StatusLine:
    """The state of one replicate (repeated measurement) of a case, with an explanation for the user."""

    state: str  # one of `STATES`
    case: Case
    explanation: str = ""  # such as the node and the attempt
    replicate: int = 0  # starting with 0


@dataclass(frozen=True)
class StudyStatus:
    """The states of the cases and cluster tasks of a results folder at one moment."""

    folder: Path
    tasks: Sequence[TaskState]
    lines: Sequence[StatusLine]  # one for each replicate of a case
    notes: Sequence[str]  # remarks, for example about unreadable lines of record files
    # Case key -> its records, and a new "failed" record if an ended job did not finish the case.
    records: Mapping[str, Sequence[Record]]

    @cached_property
    def cases(self) -> dict[str, Case]:
        """Return {case key: case} for all cases in `lines`."""
        return {line.case.key: line.case for line in self.lines}

    @property
    def counts(self) -> dict[str, Counter[str]]:
        """Return {workload: number of replicates in each state}."""
        groups = group_by(self.lines, lambda line: line.case.workload)
        return {workload: Counter(line.state for line in lines) for workload, lines in groups.items()}


def execute(args: argparse.Namespace, console: Console) -> int:
    """Print the states of the cases and cluster tasks of a results folder.

    Return exit status 130 if the user interrupts --watch, 1 if a case has failed, and otherwise 0.
    """
    folder, last_progress = store.require_results_folder(args.folder), None
    if args.watch:
        try:
            for tasks in task_state.poll(folder):
                status, progress = summarize_status(folder, tasks), task_state.progress_line(tasks)
                if console.is_terminal or progress != last_progress:
                    console.clear()  # only on a terminal
                    print_status(status, console, args.all)
                last_progress = progress
        except KeyboardInterrupt:
            return INTERRUPTED
    else:
        status = load_status(folder)
        print_status(status, console, args.all)
    return FAILED if any(line.state == "failed" for line in status.lines) else OK


def load_status(folder: Path) -> StudyStatus:
    """Return the states of all cases and cluster tasks of a results folder."""
    return summarize_status(folder, task_state.find_tasks(folder))


def summarize_status(folder: Path, tasks: Sequence[TaskState]) -> StudyStatus:
    """Return the states of all cases of a results folder, given the states of its cluster tasks."""
    loaded = store.load(folder)
    every_record = [*loaded.records, *task_state.make_failed_records(tasks, loaded.records)]
    newest = store.current_records(every_record, folder)
    records = list(store.newest_by_replicate(newest).values())
    study = store.read_study(folder, records)
    status_lines = [
        StatusLine("missing", case, "", replicate)
        for case, replicates in study.cases.values()
        for replicate in range(replicates)
    ]
    status_lines += [_ended_line(record, bool(tasks)) for record in records]
    status_lines += _live_lines(tasks, loaded.records)
    # Later lines replace earlier ones.
    lines = {(line.case.key, line.replicate): line for line in status_lines}
    unknown = dict.fromkeys(task.state.reason for task in tasks if task.state.name == task_state.UNKNOWN)
    notes = [
        f"{reason}; the state of these jobs is unknown: these are their last reports" for reason in unknown
    ]
    notes += [*filter(None, [study.problem]), *damaged_notes(loaded)]
    if tasks and not notes and any(line.state == "missing" for line in lines.values()):
        notes.append("repeat the `scaling run` command to submit the missing cases; finished ones are kept")
    if loaded.plans:
        plans = format_count(len(loaded.plans), "record")
        notes.append(f"{plans} of `scaling plan`, which `scaling report` shows")
    by_key = group_by(every_record, lambda record: record.key)
    return StudyStatus(folder, tasks, list(lines.values()), notes, by_key)


def _ended_line(record: Record, was_submitted: bool) -> StatusLine:
    """Return a `StatusLine` for a record. After a failure in a job, it names the nodes and the attempt."""
    explanation = f"{record.reason}: {record.text}"
    if was_submitted and record.status == "failed":
        nodes = _format_nodes(record.environment.get("hosts") or ())
        explanation = f"{nodes}attempt {record.attempt}  {explanation}"
    return StatusLine(record.status, record.case, explanation, record.replicate)


def _live_lines(tasks: Iterable[TaskState], records: Sequence[Record]) -> Iterator[StatusLine]:
    """Yield a `StatusLine` for each replicate of a case that is running or queued in one of the tasks."""
    for task in [task for task in tasks if task.may_run]:
        running, task_name = task.running_attempts, f"task {task.submitted.name} ({task.state.name.lower()})"
        begun = {attempt.replicate_key for attempt in task.current_attempts}
        for scheduled in task_state.remaining_cases(task.definition, records):
            if scheduled.replicate_key not in begun:
                yield StatusLine("queued", scheduled.case, task_name, scheduled.replicate)
        for attempt in [attempt for attempt in running if attempt.key in task.cases]:
            elapsed = f", for {format_wait(_seconds_between(attempt.began_at))}" if attempt.began_at else ""
            explanation = f"{_format_nodes(attempt.nodes)}attempt {attempt.attempt}{elapsed}, {task_name}"
            yield StatusLine("running", task.cases[attempt.key], explanation, attempt.replicate)


def _format_nodes(nodes: Iterable[str]) -> str:
    names = ", ".join(name for name in nodes if name)
    return f"on {names}, " if names else ""


def case_lines(status: StudyStatus, show_all: bool) -> list[str]:
    """Return a line of text for each failed, running, skipped or missing case, at most 20 for each state.

    If `show_all` is true, return all lines, and also a line for each queued case.
    """
    case_texts: list[str] = []
    for state in (*_LISTED, "queued") if show_all else _LISTED:
        formatted = [_format_line(line) for line in status.lines if line.state == state]
        if len(formatted) > _MAX_LINES and not show_all:
            omitted = len(formatted) - _MAX_LINES + 1
            formatted[-omitted:] = [f"{state:7} and {omitted} more; --all shows them"]
        case_texts += formatted
    return case_texts


def _format_line(line: StatusLine) -> str:
    name = label(line.case) + (f" replicate {line.replicate + 1}" if line.replicate else "")
    return f"{line.state:7} {line.case.key[:_KEY_LENGTH]}  {name}  {line.explanation}".rstrip()


def task_tables(tasks: Sequence[TaskState], show_all: bool) -> Iterator[Table]:
    """Yield a table of tasks for each submission.

    If `show_all` is false, tasks in the same state share a row, and ended tasks of earlier submissions are
    omitted.
    """
    last = tasks[-1].submitted.folder
    shown = [task for task in tasks if show_all or task.may_run or task.submitted.folder == last]
    for submitted in group_by(shown, lambda task: task.submitted.folder).values():
        folder = submitted[0].submitted.folder
        table = Table(title=escape(f"{SUBMISSIONS}/{folder.name}"))
        for column in _TASK_COLUMNS:
            table.add_column(column, no_wrap=column in _NARROW, overflow="fold")
        for cells in task_rows(submitted, show_all):
            table.add_row(*map(escape, cells))
        if folder == last and len(shown) < len(tasks):
            ended = format_count(len(tasks) - len(shown), "task")
            table.caption = f"{ended} of earlier submissions ended; --all shows them"
        yield table


def task_rows(tasks: Sequence[TaskState], show_all: bool = False) -> list[tuple[str, ...]]:
    """Return the rows of a table of tasks as tuples of text.

    If `show_all` is true, each task has its own row. Otherwise, tasks in the same state and run share a row.
    """
    groups = group_by(
        tasks,
        lambda task: (task.state.name, task.explanation, max(1, task.journal.runs)),
    )
    return [_row_cells(row) for row in ([[task] for task in tasks] if show_all else groups.values())]


def _row_cells(row: Sequence[TaskState]) -> tuple[str, ...]:
    state, journals = row[0].state, [task.journal for task in row]
    ended, cases = sum(len(journal.ended) for journal in journals), sum(task.submitted.cases for task in row)
    runs = journals[0].runs
    return (
        _list_names(task.submitted.name for task in row) + (f", run {runs}" if runs > 1 else ""),
        _list_names(str(task.submitted.shape.devices) for task in row),
        _list_names(task.submitted.job or "" for task in row),
        state.name.lower(),
        _list_names(task.state.node or task.journal.node for task in row if not task.is_pending),
        _format_elapsed(row),
        f"{ended}/{cases}",
        row[0].explanation,
    )


def _list_names(names: Iterable[str]) -> str:
    return list_first(list(dict.fromkeys(filter(None, names))), _MAX_NAMES)


def _format_elapsed(row: Sequence[TaskState]) -> str:
    """Return the longest elapsed time of the tasks in a row as text, or "" if no task has started."""
    times = [
        _seconds_between(task.journal.began_at, None if task.state.live else task.journal.last_at)
        for task in row
        if task.journal.began_at and not task.is_pending
    ]
    return format_wait(max(times)) if times else ""


def _seconds_between(began_at: str, ended_at: str | None = None) -> float:
    """Return the seconds from `began_at` to `ended_at` (default: now), but not less than 0.

    Both times are text in ISO 8601 format.
    """
    ended = datetime.datetime.fromisoformat(ended_at) if ended_at else datetime.datetime.now(datetime.UTC)
    return max(0.0, (ended - datetime.datetime.fromisoformat(began_at)).total_seconds())


def print_status(status: StudyStatus, console: Console, show_all: bool) -> None:
    """Print the tables of tasks, the number of cases in each state, a line per case, and notes.

    If `show_all` is false, long lists of tasks and cases are shortened.
    """
    if status.tasks:
        for table in task_tables(status.tasks, show_all):
            console.print(table)
    if status.counts or not status.notes:
        states = [state for state in STATES if status.tasks or state not in _OF_JOBS]
        replicated = any(line.replicate for line in status.lines)
        title = escape(str(status.folder)) + (", each replicate counted" if replicated else "")
        table = Table("workload", *states, title=title)
        for workload, counts in status.counts.items():
            table.add_row(escape(make_printable(workload)), *(str(counts[state]) for state in states))
        console.print(table)
    print_lines(console, case_lines(status, show_all))
    print_lines(console, status.notes, "yellow")
