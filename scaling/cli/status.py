"""The status of a folder of results: what became of every case that was asked for, and of the jobs that see to the rest.

Knows records, tasks, and how they are told to a person; starts nothing and ends nothing.
"""

import contextlib
import itertools
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from scaling.cluster import follow, job_state, status_table, submission, task_progress
from scaling.cluster.job_state import TaskState
from scaling.cluster.task_progress import TaskProgress
from scaling.core import store
from scaling.core.case import Case, Refusal, from_dict, label
from scaling.core.formatting import count_of, format_wait
from scaling.core.record import Record
from scaling.workers.schedule import PASSING

STATES = ("ok", "skipped", "failed", "running", "queued", "missing")
_UNSUBMITTED = ("ok", "skipped", "failed", "missing")  # what there is where nothing was handed to a cluster
_TOLD = ("failed", "running", "skipped", "missing")  # case by case
_LINES = 20  # of one state
_BEFORE = "before its first case"  # in the reason of what a job lost without having begun it
_SHORT = 6  # characters of a key, at least


@dataclass(frozen=True)
class StatusLine:
    """A word on one case."""

    state: str
    key: str
    case: Case | None  # None: nobody knows it any more
    words: str = ""
    replicate: int = 0

    @property
    def place(self) -> tuple[str, int]:
        """Return what is counted: (key, replicate)."""
        return self.key, self.replicate


@dataclass(frozen=True)
class StudyStatus:
    """What is known of a folder at one moment."""

    folder: Path
    tasks: list[TaskProgress]
    counts: dict[str, Counter]  # workload -> how many cases are in which state, each replicate counted
    lines: list[StatusLine]  # on what is not simply ok
    keys: list[str]  # of all cases
    replicated: bool  # whether a case has several replicates
    notes: list[str]  # what else is to be known

    @property
    def failed(self) -> bool:
        """Whether any case has."""
        return any(line.state == "failed" for line in self.lines)

    @property
    def moved(self) -> tuple:
        """What differs from another moment if anything has happened between."""
        return self.counts, [
            (task.entry.path, task.seen.state.name, task.runs, len(task.ended)) for task in self.tasks
        ]


def look(folder: Path) -> StudyStatus:
    """The status now. Where the scheduler cannot be asked it is told from what is on disk."""
    try:
        return read(folder, job_state.look_up(folder))
    except Refusal as refusal:
        seen = job_state.look_up(folder, asking=False)
        return read(folder, seen, [f"{refusal}; what jobs do now is not known, this is what they have told"])


def read(folder: Path, seen: Sequence[TaskState], notes: Sequence[str] = ()) -> StudyStatus:
    """The status as of what is known of its tasks."""
    tasks, loaded = task_progress.progress_of(seen), store.load(folder)
    known = [*loaded.records, *job_state.unrecorded(seen, loaded.records)]
    states = store.states(known)
    ordered = sorted(
        store.latest(known), key=lambda r: (r.status == states[r.key, r.replicate], r.started_at or "")
    )
    records = {
        (record.key, record.replicate): record for record in ordered
    }  # of several, the last with the status that counts
    cases = {record.key: record.case for record in ordered}
    wanted = _expected(folder, cases)
    cases |= {key: case for key, (case, _) in wanted.items()}
    now = [*_queued(tasks, loaded.records), *_running(tasks, cases)]
    said = [*_ended(records.values(), tasks), *now]
    states |= {line.place: line.state for line in now}  # the last counts
    every = [
        StatusLine("missing", key, case, "", number)
        for key, (case, count) in wanted.items()
        for number in range(count)
    ]
    said += [line for line in every if line.place not in states]
    states |= {line.place: "missing" for line in said if line.place not in states}
    counts: dict[str, Counter] = {case.workload: Counter() for case in cases.values()}
    for (key, _), state in states.items():
        if key in cases:
            counts[cases[key].workload][state] += 1
    lines = [line for line in said if states[line.place] == line.state]
    damaged = [f"damaged, passed over: {line}" for line in loaded.damaged]
    keys = list({*cases, *(key for key, _ in states)})
    replicated = any(number for _, number in states)
    return StudyStatus(
        folder, tasks, counts, lines, keys, replicated, [*notes, *_planned(loaded.plans), *damaged]
    )


def _planned(plans: Iterable[Record]) -> list[str]:
    """How many cases were planned for each hardware, in words."""
    counts: dict[str, Counter] = {}
    for record in store.latest(plans):
        counts.setdefault(str(record.environment["hardware"]["name"]), Counter())[record.status] += 1
    told = {
        name: ", ".join(f"{count} {status}" for status, count in each.items())
        for name, each in counts.items()
    }
    return [f"for {name}, compiled and not run: {words}" for name, words in told.items()]


def asked(folder: Path, known: Mapping[str, Case]) -> dict[str, Case]:
    """The cases that the folder's study was last asked for, by key; what cannot be read as a case is left out.

    known: cases that need not be read again.
    """
    return {key: case for key, (case, _) in _expected(folder, known).items()}


def _expected(folder: Path, known: Mapping[str, Case]) -> dict[str, tuple[Case, int]]:
    """Return the same with the number of replicates of each case."""
    told = store.read_json(folder / "study.json")
    entries = told.get("cases") if isinstance(told, dict) else None
    cases = {}
    for entry in entries if isinstance(entries, list) else []:
        with contextlib.suppress(Refusal, TypeError, KeyError, AttributeError):
            case = known.get(entry.get("key")) or from_dict(entry["case"])
            cases[entry["key"] if entry.get("key") in known else case.key] = case, store.replicates_of(entry)
    return cases


def _ended(records: Iterable[Record], tasks: Sequence[TaskProgress]) -> Iterator[StatusLine]:
    """What came to an end that is not ok, and where, if that was not here."""
    attempts = {attempt.identity: attempt for task in tasks for attempt in task.attempts}
    for record in records:
        where = ""
        if tasks and record.status == "failed":
            attempt = attempts.get((record.key, record.replicate, record.attempt))
            where = f"{_on(attempt.nodes) if attempt else ''}attempt {record.attempt}  "
        if record.status != "ok":
            yield StatusLine(
                record.status,
                record.key,
                record.case,
                f"{where}{record.reason}: {record.text}",
                record.replicate,
            )


def _queued(tasks: Iterable[TaskProgress], records: Iterable[Record]) -> Iterator[StatusLine]:
    """What tasks that wait or run are still to begin."""
    last = {
        (record.key, record.replicate): record for record in sorted(records, key=lambda r: r.started_at or "")
    }
    for task in tasks:
        if not task.open or (work := _work(task)) is None:
            continue
        begun = {attempt.place for attempt in task.running} | task.ended
        for item in work.items:
            record = last.get(item.place)
            here = record and (record.started_at or "") >= task.seen.submission.made_at
            final = record and (
                record.reason not in PASSING or record.attempt >= (work.settings.attempts or math.inf)
            )
            if item.place not in begun and not (here and final):
                yield StatusLine(
                    "queued", item.case.key, item.case, f"task {task.entry.name}", item.replicate
                )


def _running(tasks: Iterable[TaskProgress], cases: Mapping[str, Case]) -> Iterator[StatusLine]:
    for task in tasks:
        for attempt in task.running:
            seconds = task_progress.since(attempt.began_at) if attempt.began_at else None
            words = f"{_on(attempt.nodes)}attempt {attempt.attempt}" + (
                "" if seconds is None else f", for {format_wait(seconds)}"
            )
            yield StatusLine(
                "running",
                attempt.key,
                cases.get(attempt.key),
                f"{words}, task {task.entry.name}",
                attempt.replicate,
            )


def _on(nodes: Iterable[str]) -> str:
    names = ", ".join(name for name in nodes if name)
    return f"on {names}, " if names else ""


def _work(task: TaskProgress) -> submission.Work | None:
    """What a task is to do; None if its file is gone."""
    with contextlib.suppress(Refusal):
        return submission.read(task.entry.path)
    return None


def tables(status: StudyStatus, every: bool = False) -> list[Table]:
    """The jobs, if there are any, and the cases by workload."""
    states = STATES if status.tasks else _UNSUBMITTED
    title = escape(str(status.folder)) + (", each replicate counted" if status.replicated else "")
    cases = Table("workload", *states, title=title)
    for workload, counts in status.counts.items():
        cases.add_row(escape(workload), *(str(counts[state]) for state in states))
    shown = [cases] if status.counts or not status.notes else []
    return [_jobs(status.tasks, every), *shown] if status.tasks else shown


def _jobs(tasks: Sequence[TaskProgress], every: bool) -> Table:
    """A table of tasks; the name of a submission stands once."""
    rows, left_out = status_table.task_rows(tasks, every)
    names = [row.submission for row in rows]
    several = len(set(names)) > 1
    made = Table(title=None if several else escape(f"{submission.FOLDER}/{names[0]}"))
    made.caption = (
        f"{left_out} lines of what is long over are left out; --all shows them" if left_out else None
    )
    for name in (*(["submission"] if several else []), *status_table.COLUMNS):
        made.add_column(name, no_wrap=name in status_table.NARROW, overflow="fold")
    for row, before in zip(rows, [None, *names], strict=False):
        first = [row.submission if row.submission != before else ""] if several else []
        made.add_row(*map(escape, (*first, *row.cells)))
    return made


def lines(status: StudyStatus, every: bool = False) -> list[Text]:
    """A line for each case that is not simply ok or in the queue, so many of a state, and what else is to be known."""
    made = []
    short = shortest(status.keys)
    for state in (*_TOLD, *(["queued"] if every else [])):
        told = [line for line in status.lines if line.state == state]
        if not every:
            made += _of_tasks(told, short)
            told = [line for line in told if _BEFORE not in line.words]
        shown = told if every or len(told) <= _LINES else told[: _LINES - 1]
        for line in shown:
            name = (label(line.case) if line.case else line.key) + (
                f" replicate {line.replicate}" if line.replicate else ""
            )
            made.append(Text(f"{state:7} {line.key[:short]}  {name}  {line.words}".rstrip()))
        if len(shown) < len(told):
            made.append(Text(f"{state:7} and {len(told) - len(shown)} more; --all shows them"))
    return made + [Text(note, style="yellow") for note in status.notes]


def _of_tasks(told: Sequence[StatusLine], short: int) -> list[Text]:
    """Return a line for all cases that a task did not begin, with their number: they have one reason."""
    groups: dict[tuple[str, str], list[StatusLine]] = {}
    for line in told:
        if _BEFORE in line.words:
            groups.setdefault((line.state, line.words), []).append(line)
    made = []
    for (state, words), several in groups.items():
        first = several[0]
        name = label(first.case) if len(several) == 1 and first.case else count_of(len(several), "case")
        made.append(Text(f"{state:7} {first.key[:short]}  {name}  {words}"))
    return made


def shortest(keys: Iterable[str]) -> int:
    """How many characters of a key tell it from all others."""
    ordered = sorted(keys)
    length = _SHORT
    for one, other in itertools.pairwise(ordered):
        while one[:length] == other[:length] and length < len(one):
            length += 1
    return length


def show(status: StudyStatus, console: Console, every: bool = False) -> None:
    """Print it."""
    for each in tables(status, every):
        console.print(each)
    for line in lines(status, every):
        console.print(line, soft_wrap=True, highlight=False)


def watch(folder: Path, console: Console, every: bool = False) -> StudyStatus | None:
    """Show it again and again until nothing waits or runs: in place, or anew upon every change where there is no terminal.

    None: the person had enough of it.
    """
    before = None
    with contextlib.suppress(KeyboardInterrupt), contextlib.ExitStack() as stack:
        live = stack.enter_context(Live(console=console, auto_refresh=False)) if console.is_terminal else None
        for seen in follow.poll(folder):
            status = read(folder, seen)
            if live:
                live.update(Group(*tables(status, every), *lines(status, every)), refresh=True)
            elif status.moved != before:
                show(status, console, every)
            before = status.moved
        return status
    return None
