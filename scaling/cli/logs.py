"""The logs of a case: what the journals of its tasks, its workers and the scheduler wrote about it.

Knows where each of them writes; prints nothing.
"""

import contextlib
import difflib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from scaling.cli import status
from scaling.cluster import job_state, submission, task_progress
from scaling.cluster.task_progress import TaskAttempt, TaskProgress
from scaling.core import environment, store
from scaling.core.case import Case, Refusal, label
from scaling.core.formatting import format_wait
from scaling.core.record import Record

_LEAST = 4  # characters of a key
_NEAR = 3  # keys that are named
_LINES = 1000  # of a file, the last ones
_CASES = 3  # that are shown where no key is given


@dataclass(frozen=True)
class LogPart:
    """Something that was written, and where."""

    title: str
    text: str


@dataclass(frozen=True)
class KnownCases:
    """What there is in a folder of results to find a case by."""

    results: Path
    records: list[Record]
    tasks: list[TaskProgress]
    keys: dict[Path, set[str]]  # of the cases of each task
    cases: dict[str, Case]
    lost: list[Record]  # what jobs lost and the next run will put on record


def look(results: Path) -> KnownCases:
    """All that is known of a folder now; of a scheduler that cannot be asked, what is remembered."""
    try:
        seen = job_state.look_up(results)
    except Refusal:
        seen = job_state.look_up(results, asking=False)
    records = store.load(results).records
    lost = job_state.unrecorded(seen, records)
    cases = {record.key: record.case for record in records}
    cases |= status.asked(results, cases)
    keys: dict[Path, set[str]] = {}
    for one in seen:
        with contextlib.suppress(Refusal):
            mine = {item.case.key: item.case for item in submission.read(one.entry.path).items}
            keys[one.entry.path] = set(mine)
            cases |= mine
    return KnownCases(results, records, task_progress.progress_of(seen), keys, cases, lost)


def select(known: KnownCases, given: str) -> list[str]:
    """Return the keys of the cases to show: the one that is named, or those of a workload or of all that failed, the last first.

    given: a key, a label, the name of a workload, or nothing. Where nothing has failed, all cases of the workload count, or the
    case that a task began last.
    """
    workloads = {case.workload for case in known.cases.values()}
    if given and given not in workloads:
        return [find(known, given)]
    ordered = sorted(
        [*store.latest(known.records), *known.lost], key=lambda r: r.started_at or "", reverse=True
    )
    mine = [record for record in ordered if given in ("", record.case.workload)]
    keys = [record.key for record in mine if record.status == "failed"]
    if not keys and given:
        keys = [record.key for record in mine] or [
            key for key, case in known.cases.items() if case.workload == given
        ]
    begun = [attempt for task in known.tasks for attempt in task.attempts]
    if not keys and not given and begun:
        keys = [max(begun, key=lambda attempt: attempt.began_at or "").key]
    return list(dict.fromkeys(key for key in keys if key in known.cases)) or [find(known, given)]


def show(known: KnownCases, keys: Sequence[str], every: bool = False) -> Iterator[LogPart]:
    """Yield what became of the first few of these cases; a file that several share comes once."""
    shown: set[str] = set()
    for key in keys if every else keys[:_CASES]:
        for part in parts(known, key, every):
            if part.title not in shown:
                yield part
            shown.add(part.title)
    if not every and len(keys) > _CASES:
        yield LogPart(f"{len(keys) - _CASES} more", "give a key to see another one, or --all")


def find(known: KnownCases, given: str) -> str:
    """Return the one key that begins like that, or that of the one case with this label; a `Refusal` otherwise."""
    words = " ".join(given.split())
    labelled = [key for key, case in known.cases.items() if label(case) == words]
    labelled = labelled or [
        key for key, case in known.cases.items() if label(case).startswith(words) and " " in words
    ]
    if len(labelled) == 1:
        return labelled[0]
    if labelled:
        raise Refusal(
            f"{words!r} is how {len(labelled)} cases begin, give a key: {_named(labelled, known.cases)}"
        )
    if not given:
        failed = [record.key for record in store.latest(known.records) if record.status == "failed"]
        some = failed or list(known.cases)
        raise Refusal(
            f"name a case, by its key or its label: {_named(list(dict.fromkeys(some)), known.cases)}"
        )
    if len(given) < _LEAST:
        raise Refusal(
            f"{given!r} is too short for a key: give {_LEAST} characters or more, `scaling status --all` shows them"
        )
    begun = [key for key in known.cases if key.startswith(given)]
    if len(begun) == 1:
        return begun[0]
    if begun:
        raise Refusal(f"{given!r} begins {len(begun)} keys, give more of it: {_named(begun, known.cases)}")
    ours = {key[: len(given)]: key for key in known.cases}
    near = [ours[close] for close in difflib.get_close_matches(given, ours, n=_NEAR)]
    more = f"near it are {_named(near, known.cases)}" if near else "`scaling status --all` shows the keys"
    raise Refusal(f"no case {given!r} in {known.results}: {more}")


def _named(keys: Sequence[str], cases: Mapping[str, Case]) -> str:
    words = ", ".join(f"{key} ({label(cases[key])})" for key in keys[:_NEAR])
    return words + (f" and {len(keys) - _NEAR} more" if len(keys) > _NEAR else "")


def parts(known: KnownCases, key: str, every: bool = False) -> Iterator[LogPart]:
    """What became of a case, then what its workers wrote, then the scheduler. every: files from their first line on."""
    tasks = [
        task for task in known.tasks if key in known.keys.get(task.entry.path, ()) or _attempts(task, key)
    ]
    told = {attempt.identity for task in tasks for attempt in task.attempts}
    others = [r for r in known.records if r.key == key and (key, r.replicate, r.attempt) not in told]
    lines = [_recorded(record) for record in others] + [line for task in tasks for line in _story(task, key)]
    title = f"{key}  {label(known.cases[key])}"
    yield LogPart(
        title,
        environment.hide_secrets("\n".join(lines)) or "nothing has become of it, and no task is to run it",
    )
    files = [file for task in tasks for file in _workers(task, key)] + [
        file for task in tasks for file in _scheduler(task)
    ]
    for path, more in files:
        yield LogPart(f"{path.relative_to(known.results)}{more}", _contents(path, every))


def _attempts(task: TaskProgress, key: str) -> list[TaskAttempt]:
    return [attempt for attempt in task.attempts if attempt.key == key]


def _recorded(record: Record) -> str:
    """What became of an attempt of which no task tells."""
    why = f", {record.reason}: {record.text}" if record.reason else ""
    return f"{_time(record.started_at)}  attempt {record.attempt}{_replicate(record.replicate)}: {record.status}{why}"


def _story(task: TaskProgress, key: str) -> list[str]:
    """What became of a case in a task, a line for each attempt, or why there is none."""
    attempts = _attempts(task, key)
    if attempts:
        return [_line(task, attempt) for attempt in attempts]
    state = task.seen.state
    words = job_state.last_words(task.entry) if not task.open and state.name != "COMPLETED" else ""
    words = words or (task.blocked if task.open else "")
    why = ": ".join(
        filter(None, [f" ({state.reason})" if state.reason and state.reason != words else "", words])
    )
    became = "waits in" if task.waits else "is to run in" if task.open else "did not begin in"
    return [f"{became} {_place(task)}: {state.name.lower()}{why}"]


def _line(task: TaskProgress, attempt: TaskAttempt) -> str:
    on = f", on {', '.join(attempt.nodes)}" if attempt.nodes else ""
    run = f", run {attempt.run}" if task.runs > 1 else ""
    began = attempt.began_at or attempt.ended_at
    where = f"attempt {attempt.attempt}{_replicate(attempt.replicate)}, {_place(task)}{run}{on}"
    return f"{_time(began)}  {where}: {_how(task, attempt)}"


def _how(task: TaskProgress, attempt: TaskAttempt) -> str:
    """How an attempt ended, or that it did not."""
    if attempt.ended_at:
        took = task_progress.since(attempt.began_at, attempt.ended_at) if attempt.began_at else None
        why = f", {attempt.reason}: {attempt.text}" if attempt.reason else ""
        return f"{attempt.status}{'' if took is None else f' after {format_wait(took)}'}{why}"
    if attempt in task.running:
        return "runs now"
    if attempt.run < task.runs or task.open:
        return "no end: its job was stopped, to be started again"
    ended = job_state.explain_end(task.seen, True)
    return f"no end, {ended[0]}: {ended[1]}" if ended else "no end, though its task has ended"


def _place(task: TaskProgress) -> str:
    return f"task {task.entry.folder.name}/{task.entry.name}" + (
        f", job {task.entry.job}" if task.entry.job else ""
    )


def _replicate(number: int) -> str:
    return f" of replicate {number}" if number else ""


def _time(at: str | None) -> str:
    return (at or "").partition("+")[0].partition(".")[0].replace("T", " ")


def _workers(task: TaskProgress, key: str) -> Iterator[tuple[Path, str]]:
    """The files of the workers that had a case, and with how many they were shared."""
    seats = {seat for attempt in _attempts(task, key) for seat in attempt.seats}
    if not seats and not task.open:  # what kept workers from starting stands in the files of all of them
        for path in sorted(task.entry.folder.glob(f"{task.entry.name}.run-{task.runs}/worker-*.log")):
            yield path, ""
        return
    shared = Counter((attempt.run, seat) for attempt in task.attempts for seat in attempt.seats)
    for run, seat in dict.fromkeys(
        (attempt.run, seat) for attempt in _attempts(task, key) for seat in attempt.seats
    ):
        path = task.entry.folder / f"{task.entry.name}.run-{run}" / f"worker-{seat}.log"
        yield path, f" (of {shared[run, seat]} cases)" if shared[run, seat] > 1 else ""


def _scheduler(task: TaskProgress) -> Iterator[tuple[Path, str]]:
    """The files of a task's job that hold anything."""
    for job in dict.fromkeys(
        job for job in (task.entry.job, *(attempt.job for attempt in task.attempts)) if job
    ):
        for path in sorted((task.entry.folder / "log").glob(f"{job}_*log.*")):
            if path.stat().st_size:
                yield path, ""


def _contents(path: Path, every: bool) -> str:
    """Return what a file holds, without secrets; of a long one, the end. Paths stay: logs are the user's own."""
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError as error:
        return f"[{error.strerror}]"
    left_out = 0 if every else max(0, len(lines) - _LINES)
    head = [f"[{left_out} lines before these; --all shows them]"] if left_out else []
    return "\n".join([*head, environment.hide_secrets("\n".join(lines[left_out:]))]) if lines else "[empty]"
