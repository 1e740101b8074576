"""Implement `scaling status`: print the state of every case of a results folder and of its cluster jobs."""

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
from scaling.core.case import Case, Refusal, from_dict, label
from scaling.core.formatting import count_of, format_wait
from scaling.core.record import Record
from scaling.results import store
from scaling.workers.schedule import TRANSIENT_FAILURES

STATES = ("ok", "skipped", "failed", "running", "queued", "missing")
_WITHOUT_JOBS = ("ok", "skipped", "failed", "missing")  # columns of the table if no job was submitted
_LISTED = ("failed", "running", "skipped", "missing")  # states whose cases are listed individually
_MOST_LINES = 20  # maximum number of lines for one state
_BEFORE = "before its first case"  # part of the text of each case if a job ended before its first case
_SHOWN = 8  # number of characters of a key to show


@dataclass(frozen=True)
class StatusLine:
    """The state of one replicate (repeated measurement) of a case, with an explanation."""

    state: str  # one of `STATES`
    key: str  # key of the case
    case: Case | None  # None if only the key is known
    words: str = ""  # explanation
    replicate: int = 0


@dataclass(frozen=True)
class StudyStatus:
    """The states of the cases and cluster tasks of a results folder at one moment."""

    folder: Path
    tasks: Sequence[TaskState]
    lines: Sequence[StatusLine]  # one for each replicate of a case
    notes: Sequence[str]  # remarks, such as lines that cannot be read

    @property
    def counts(self) -> dict[str, Counter[str]]:
        """Return a dict from workload to the number of replicates of its cases in each state."""
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
    """Print the states of the cases and tasks of a results folder, and return the exit status.

    With --watch, print the states again after every change until no task is pending or running. The exit
    status is 130 if the user interrupts --watch, 1 if a case has failed, and otherwise 0.
    """
    folder = store.folder_of(args.folder)
    if not args.watch:
        status = load_status(folder)
        print_status(status, console, args.all)
        return FAILED if status.failed else OK
    streams.stop_with_reader()
    shown = None
    try:
        for tasks in wait.poll(folder):
            status = summarize_status(folder, tasks)
            progress = status.counts, [(t.state.name, t.journal.runs, len(t.journal.ended)) for t in tasks]
            if console.is_terminal or progress != shown:
                console.clear()  # only on a terminal
                print_status(status, console, args.all)
            shown = progress
    except KeyboardInterrupt:
        return INTERRUPTED
    return FAILED if status.failed else OK


def load_status(folder: Path) -> StudyStatus:
    """Return the states of all cases and cluster tasks of a results folder.

    If the scheduler does not answer, the task states are read from files, and may be unknown.
    """
    tasks, problem = try_find_tasks(folder)
    note = f"{problem}; the state of the jobs is not known now, these are their last reports"
    return summarize_status(folder, tasks, [note] if problem else [])


def summarize_status(folder: Path, tasks: Sequence[TaskState], notes: Sequence[str] = ()) -> StudyStatus:
    """Return the states of all cases of a results folder, determined from its records and the task states."""
    loaded = store.load(folder)
    known = [*loaded.records, *lost_cases.find_unrecorded(tasks, loaded.records)]
    ordered = sorted(store.latest(known), key=lambda r: (r.started_at or "", r.attempt))
    records = {(record.key, record.replicate): record for record in ordered}  # the last record counts
    cases = {record.key: record.case for record in ordered}
    expected = expected_cases(folder, cases)
    cases |= {key: case for key, (case, _) in expected.items()}
    found = [
        StatusLine("missing", key, case, "", replicate)
        for key, (case, replicates) in expected.items()
        for replicate in range(replicates)
    ]
    found += _ended_lines(records.values(), tasks)
    found += _queued_lines(tasks, loaded.records)
    found += _running_lines(tasks, cases)
    lines = {(line.key, line.replicate): line for line in found}  # the last state of a replicate counts
    plans: dict[str, Counter[str]] = defaultdict(Counter)
    for record in store.latest(loaded.plans):
        plans[str(record.environment["hardware"]["name"])][record.status] += 1
    notes = [*notes, *(f"damaged, ignored: {line}" for line in loaded.damaged)]
    for name, counts in plans.items():
        text = ", ".join(f"{count} {status}" for status, count in counts.items())
        notes.append(f"for {name}, compiled and not run: {text}")
    if (folder / REJECTED).exists() and any(line.state == "missing" for line in lines.values()):
        why = (folder / REJECTED).read_text(errors="replace")
        notes.append(f"the last submission was rejected, nothing of it is in the queue: {why}")
    return StudyStatus(folder, tasks, list(lines.values()), notes)


def expected_cases(folder: Path, known: Mapping[str, Case]) -> dict[str, tuple[Case, int]]:
    """Return the cases listed in study.json, as a dict from key to (case, number of replicates).

    `known` are cases that are already parsed, by key. Unreadable entries are omitted.
    """
    study = store.read_json(folder / "study.json")
    entries = study.get("cases") if isinstance(study, dict) else None
    cases = {}
    for entry in entries if isinstance(entries, list) else []:
        with contextlib.suppress(Refusal, TypeError, KeyError, AttributeError):
            key = entry.get("key")
            case = known.get(key) or from_dict(entry["case"])
            cases[key if key in known else case.key] = case, store.replicates_of(entry)
    return cases


def _ended_lines(records: Iterable[Record], tasks: Sequence[TaskState]) -> Iterator[StatusLine]:
    nodes = {(*a.replicate_key, a.attempt): a.nodes for task in tasks for a in task.journal.attempts}
    for record in records:
        where = ""
        if tasks and record.status == "failed":
            on = _format_nodes(nodes.get((record.key, record.replicate, record.attempt), ()))
            where = f"{on}attempt {record.attempt}  "
        words = f"{where}{record.reason}: {record.text}"
        yield StatusLine(record.status, record.key, record.case, words, record.replicate)


def _queued_lines(tasks: Iterable[TaskState], records: Iterable[Record]) -> Iterator[StatusLine]:
    last = {(r.key, r.replicate): r for r in sorted(records, key=lambda r: r.started_at or "")}
    for task in [task for task in tasks if task.open]:
        begun = {attempt.replicate_key for attempt in task.running} | task.journal.ended
        with contextlib.suppress(Refusal):  # the task file is missing or malformed
            work = submission_files.read_task(task.entry.path)
            most = work.settings.attempts or math.inf
            for item in work.items:
                record = last.get(item.replicate_key)
                since = record is not None and (record.started_at or "") >= task.submission.made_at
                final = record and (record.reason not in TRANSIENT_FAILURES or record.attempt >= most)
                if not (since and final) and item.replicate_key not in begun:
                    words = f"task {task.entry.name}"
                    yield StatusLine("queued", item.case.key, item.case, words, item.replicate)


def _running_lines(tasks: Iterable[TaskState], cases: Mapping[str, Case]) -> Iterator[StatusLine]:
    for task, attempt in ((each, attempt) for each in tasks for attempt in each.running):
        began = attempt.began_at
        time = f", for {format_wait(seconds_between(began))}" if began else ""
        words = f"{_format_nodes(attempt.nodes)}attempt {attempt.attempt}{time}, task {task.entry.name}"
        yield StatusLine("running", attempt.key, cases.get(attempt.key), words, attempt.replicate)


def _format_nodes(nodes: Iterable[str]) -> str:
    names = ", ".join(name for name in nodes if name)
    return f"on {names}, " if names else ""


def case_lines(status: StudyStatus, every: bool = False) -> list[Text]:
    """Return a line for each failed, running, skipped or missing case, followed by the notes.

    If more than 20 cases are in one state, some are omitted. Cases whose job ended before its first case
    share a line. If `every` is true, there is a line for each of these cases and for each queued case.
    """
    texts: list[str] = []
    for state in (*_LISTED, *(["queued"] if every else [])):
        groups: dict[object, list[StatusLine]] = defaultdict(list)  # the cases that share a line
        for line in status.lines:
            if line.state == state:
                shared = line.words if _BEFORE in line.words and not every else (line.key, line.replicate)
                groups[shared].append(line)
        shown = list(groups.values())
        omitted = 0 if every or len(shown) <= _MOST_LINES else len(shown) - _MOST_LINES + 1
        texts += map(_format_line, shown[: len(shown) - omitted])
        texts += [f"{state:7} and {omitted} more; --all shows them"] if omitted else []
    return [*map(Text, texts), *(Text(note, style="yellow") for note in status.notes)]


def _format_line(lines: Sequence[StatusLine]) -> str:
    """Return a line with the state of a case, its key and its label, or the number of cases that share it."""
    line, name = lines[0], count_of(len(lines), "case")
    if len(lines) == 1:
        name = label(line.case) if line.case else line.key
        name += f" replicate {line.replicate}" if line.replicate else ""
    return f"{line.state:7} {line.key[:_SHOWN]}  {name}  {line.words}".rstrip()


def print_status(status: StudyStatus, console: Console, every: bool) -> None:
    """Print a table of the cluster tasks, if any, one of the numbers of cases, and lines about cases."""
    if status.tasks:
        console.print(status_table.task_table(status.tasks, every))
    if status.counts or not status.notes:
        states = STATES if status.tasks else _WITHOUT_JOBS
        replicated = any(line.replicate for line in status.lines)
        title = escape(str(status.folder)) + (", each replicate counted" if replicated else "")
        table = Table("workload", *states, title=title)
        for workload, counts in status.counts.items():
            table.add_row(escape(workload), *(str(counts[state]) for state in states))
        console.print(table)
    for line in case_lines(status, every):
        console.print(line, soft_wrap=True, highlight=False)
