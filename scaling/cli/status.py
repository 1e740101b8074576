"""Implement `scaling status`: find the state of each case (`StudyStatus`), and print counts and cases."""

import argparse
import contextlib
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from scaling.cli import streams
from scaling.cli.verbs import FAILED, INTERRUPTED, OK
from scaling.cluster import lost_cases, status_table, submission_files, wait
from scaling.cluster.cluster_settings import REJECTED
from scaling.cluster.job_state import TaskState, try_find_tasks
from scaling.cluster.journal import seconds_between
from scaling.core.case import Case, Refusal, label
from scaling.core.formatting import count_of, format_wait, list_first
from scaling.core.record import Record
from scaling.results import store
from scaling.workers.schedule import TRANSIENT_FAILURES

STATES = ("ok", "skipped", "failed", "running", "queued", "missing")
_WITHOUT_JOBS = ("ok", "skipped", "failed", "missing")  # columns of the table if no job was submitted
_LISTED = ("failed", "running", "skipped", "missing")  # states whose cases are listed individually
_MAX_LINES = 20  # maximum number of lines for one state
_MAX_PROBLEMS = 2  # maximum number of unreadable journals that are named
_NOT_BEGUN = "before its first case"  # part of the explanation if a job ended before its first case
_KEY_LENGTH = 8  # number of characters of a key to show


@dataclass(frozen=True)
class StatusLine:
    """The state of one replicate (repeated measurement) of a case, with an explanation."""

    state: str  # one of `STATES`
    key: str  # key of the case
    case: Case | None  # None if only the key is known
    words: str = ""  # explanation, such as the node and the attempt
    replicate: int = 0  # starting with 0


@dataclass(frozen=True)
class StudyStatus:
    """The states of the cases and cluster tasks of a results folder at one moment."""

    folder: Path
    tasks: Sequence[TaskState]
    lines: Sequence[StatusLine]  # one for each replicate of a case
    notes: Sequence[str]  # remarks, such as lines that cannot be read

    @property
    def counts(self) -> dict[str, Counter[str]]:
        """Return the number of case replicates in each state, as a dict from workload to `Counter`."""
        counts: dict[str, Counter[str]] = defaultdict(Counter)
        for line in self.lines:
            if line.case:
                counts[line.case.workload][line.state] += 1
        return counts

    @property
    def failed(self) -> bool:
        """Return whether a case has failed."""
        return any(line.state == "failed" for line in self.lines)


def execute(args: argparse.Namespace, console: Console) -> int:
    """Print the states of the cases and cluster tasks of a results folder.

    With --watch, print them again after every change, until no task is pending or running. Return exit
    status 130 if the user interrupts --watch, 1 if a case has failed, and otherwise 0.
    """
    folder = store.folder_of(args.folder)
    if not args.watch:
        status = load_status(folder)
        print_status(status, console, args.all)
        return FAILED if status.failed else OK
    streams.stop_with_reader()
    last_progress = None
    try:
        for tasks in wait.poll(folder):
            status = summarize_status(folder, tasks)
            progress = status.counts, [(t.state.name, t.journal.runs, len(t.journal.ended)) for t in tasks]
            if console.is_terminal or progress != last_progress:
                console.clear()  # only on a terminal
                print_status(status, console, args.all)
            last_progress = progress
    except KeyboardInterrupt:
        return INTERRUPTED
    return FAILED if status.failed else OK


def load_status(folder: Path) -> StudyStatus:
    """Query the scheduler, and return the states of all cases and cluster tasks of a results folder.

    If the scheduler does not answer, use the task states that are known from the files in the folder.
    """
    tasks, problem = try_find_tasks(folder)
    note = f"{problem}; the state of the jobs is not known now, these are their last reports"
    return summarize_status(folder, tasks, [note] if problem else [])


def summarize_status(folder: Path, tasks: Sequence[TaskState], notes: Sequence[str] = ()) -> StudyStatus:
    """Return the states of all cases of a results folder, given the states of its cluster tasks."""
    loaded = store.load(folder)
    every_record = [*loaded.records, *lost_cases.make_failed_records(tasks, loaded.records)]
    records = store.newest_by_replicate(every_record)
    cases = {record.key: record.case for record in records.values()}
    expected = store.expected_cases(folder, cases)
    cases |= {key: case for key, (case, _) in expected.items()}
    candidates = [
        StatusLine("missing", key, case, "", replicate)
        for key, (case, replicates) in expected.items()
        for replicate in range(replicates)
    ]
    candidates += _ended_lines(records.values(), tasks)
    candidates += _queued_lines(tasks, loaded.records)
    candidates += _running_lines(tasks, cases)
    lines = {(line.key, line.replicate): line for line in candidates}  # later lines replace earlier ones
    plans: dict[str, Counter[str]] = defaultdict(Counter)
    for record in store.latest(loaded.plans):
        plans[str(record.environment["hardware"]["name"])][record.status] += 1
    notes = [*notes, *filter(None, [store.explain_unreadable_study(folder)])]
    notes += streams.damaged_notes(loaded.damaged)
    if problems := [task.journal.problem for task in tasks if task.journal.problem]:
        notes.append(list_first(problems, _MAX_PROBLEMS))
    for name, counts in plans.items():
        text = ", ".join(f"{count} {status}" for status, count in counts.items())
        notes.append(f"for {name}, compiled and not run: {text}")
    if (folder / REJECTED).exists() and any(line.state == "missing" for line in lines.values()):
        why = (folder / REJECTED).read_text(errors="replace")
        notes.append(f"the last submission was rejected, nothing of it is in the queue: {why}")
    return StudyStatus(folder, tasks, list(lines.values()), notes)


def _ended_lines(records: Iterable[Record], tasks: Sequence[TaskState]) -> Iterator[StatusLine]:
    """Yield one `StatusLine` for each record."""
    nodes = {(*a.replicate_key, a.attempt): a.nodes for task in tasks for a in task.journal.attempts}
    for record in records:
        place = ""
        if tasks and record.status == "failed":
            on = _format_nodes(nodes.get((record.key, record.replicate, record.attempt), ()))
            place = f"{on}attempt {record.attempt}  "
        words = f"{place}{record.reason}: {record.text}"
        yield StatusLine(record.status, record.key, record.case, words, record.replicate)


def _queued_lines(tasks: Iterable[TaskState], records: Iterable[Record]) -> Iterator[StatusLine]:
    """Yield one `StatusLine` for each case replicate that a pending or running task will still run."""
    last = {(r.key, r.replicate): r for r in sorted(records, key=lambda r: r.started_at or "")}
    for task in [task for task in tasks if task.may_run]:
        begun = {attempt.replicate_key for attempt in task.running_attempts} | task.journal.ended
        with contextlib.suppress(Refusal):  # the task file is missing or malformed
            definition = submission_files.read_task(task.entry.path)
            limit = definition.settings.attempts or math.inf
            for item in definition.items:
                record = last.get(item.replicate_key)
                is_new = record is not None and (record.started_at or "") >= task.submission.made_at
                is_final = record and (record.reason not in TRANSIENT_FAILURES or record.attempt >= limit)
                if not (is_new and is_final) and item.replicate_key not in begun:
                    words = f"task {task.entry.name}"
                    yield StatusLine("queued", item.case.key, item.case, words, item.replicate)


def _running_lines(tasks: Iterable[TaskState], cases: Mapping[str, Case]) -> Iterator[StatusLine]:
    """Yield one `StatusLine` for each case replicate that runs now. `cases` is a dict from key to case."""
    for task in tasks:
        for attempt in task.running_attempts:
            began = attempt.began_at
            time = f", for {format_wait(seconds_between(began))}" if began else ""
            words = f"{_format_nodes(attempt.nodes)}attempt {attempt.attempt}{time}, task {task.entry.name}"
            yield StatusLine("running", attempt.key, cases.get(attempt.key), words, attempt.replicate)


def _format_nodes(nodes: Iterable[str]) -> str:
    names = ", ".join(name for name in nodes if name)
    return f"on {names}, " if names else ""


def case_lines(status: StudyStatus, every: bool = False) -> list[Text]:
    """Return one line of text for each failed, running, skipped or missing case, followed by the notes.

    Cases of a job that ended before its first case share one line, and each state has at most 20 lines. If
    `every` is true, each case has its own line, queued cases are included, and there is no limit.
    """
    texts: list[str] = []
    for state in (*_LISTED, "queued") if every else _LISTED:
        groups: dict[object, list[StatusLine]] = defaultdict(list)  # the cases that share a line
        for line in status.lines:
            if line.state == state:
                shared = line.words if _NOT_BEGUN in line.words and not every else (line.key, line.replicate)
                groups[shared].append(line)
        formatted = [_format_line(group) for group in groups.values()]
        if len(formatted) > _MAX_LINES and not every:
            omitted = len(formatted) - _MAX_LINES + 1
            formatted[-omitted:] = [f"{state:7} and {omitted} more; --all shows them"]
        texts += formatted
    notes = (Text(streams.make_printable(note), style="yellow") for note in status.notes)
    return [*(Text(streams.make_printable(text)) for text in texts), *notes]


def _format_line(lines: Sequence[StatusLine]) -> str:
    """Format state, key, label and explanation of a case. For several cases, the label is their number."""
    line, name = lines[0], count_of(len(lines), "case")
    if len(lines) == 1:
        name = label(line.case) if line.case else line.key
        name += f" replicate {line.replicate}" if line.replicate else ""
    return f"{line.state:7} {line.key[:_KEY_LENGTH]}  {name}  {line.words}".rstrip()


def print_status(status: StudyStatus, console: Console, every: bool) -> None:
    """Print a table of tasks, a table with the number of cases per state, and lines about single cases."""
    if status.tasks:
        console.print(status_table.task_table(status.tasks, every))
    if status.counts or not status.notes:
        states = STATES if status.tasks else _WITHOUT_JOBS
        replicated = any(line.replicate for line in status.lines)
        title = escape(str(status.folder)) + (", each replicate counted" if replicated else "")
        table = Table("workload", *states, title=title)
        for workload, counts in status.counts.items():
            table.add_row(escape(streams.make_printable(workload)), *(str(counts[state]) for state in states))
        console.print(table)
    for line in case_lines(status, every):
        console.print(line, soft_wrap=True)
