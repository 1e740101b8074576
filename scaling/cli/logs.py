"""Implement `scaling logs`: print the task journals, worker logs and scheduler logs of a case."""

import argparse
import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.markup import escape

from scaling.cli import status
from scaling.cli.verbs import OK
from scaling.cluster import lost_cases, submission_files
from scaling.cluster.job_state import TaskState, try_find_tasks
from scaling.cluster.journal import TaskAttempt, seconds_between
from scaling.core import environment
from scaling.core.case import Case, Refusal, label
from scaling.core.formatting import format_wait, list_first
from scaling.core.record import Record
from scaling.results import store

_MOST_NAMED = 3  # maximum number of keys in an error message
_MOST_LINES = 1000  # maximum number of lines shown, from the end of a file
_MOST_SHOWN = 3  # maximum number of cases shown without --all


class LogPart(NamedTuple):
    """A section of the output of `scaling logs`, such as the path and the content of a log file."""

    title: str
    text: str


@dataclass(frozen=True)
class KnownCases:
    """All cases of a results folder, their records (results of runs), and the submitted cluster tasks."""

    results: Path
    records: list[Record]
    tasks: list[TaskState]
    keys: dict[Path, set[str]]  # task file -> keys of its cases
    cases: dict[str, Case]  # key -> case
    lost: list[Record]  # "failed" records, not written yet, of cases that ended jobs did not finish


def execute(args: argparse.Namespace, console: Console) -> int:
    """Print the logs of the cases that `select_keys` selects for the arguments, and return exit status 0."""
    known = load_cases(store.folder_of(args.folder))
    for number, part in enumerate(iterate_logs(known, select_keys(known, " ".join(args.key)), args.all)):
        if number:
            console.print()
        console.print(f"[bold]{escape(part.title)}[/]", soft_wrap=True, highlight=False)
        print(part.text, file=console.file)  # printed unchanged: no markup and no wrapping
    return OK


def load_cases(results: Path) -> KnownCases:
    """Return the cases, records and cluster tasks of a results folder."""
    tasks, _ = try_find_tasks(results)
    records = store.load(results).records
    cases = {record.key: record.case for record in records}
    cases |= {key: case for key, (case, _) in status.expected_cases(results, cases).items()}
    keys: dict[Path, set[str]] = {}
    for task in tasks:
        with contextlib.suppress(Refusal):  # the task file is missing or malformed
            by_key = {item.case.key: item.case for item in submission_files.read_task(task.entry.path).items}
            keys[task.entry.path] = set(by_key)
            cases |= by_key
    return KnownCases(results, records, tasks, keys, cases, lost_cases.find_unrecorded(tasks, records))


def select_keys(known: KnownCases, given: str) -> list[str]:
    """Return the keys of the cases whose logs `scaling logs` prints.

    If `given` is the label or the beginning of the key of a case, return its key. If it is a workload, return
    the keys of its failed cases, or of all its cases if none has failed. If it is "", return the keys of all
    failed cases, or of the case that a task began last. Raise `Refusal` if no case matches.
    """
    keys = [key for key, case in known.cases.items() if case.workload == given]
    if given and not keys:
        return [find_key(known, given)]
    if not given:
        begun = [attempt for task in known.tasks for attempt in task.journal.attempts]
        keys = [attempt.key for attempt in sorted(begun, key=lambda a: a.began_at or "")[-1:]]
    records = sorted([*store.latest(known.records), *known.lost], key=lambda r: r.started_at or "")
    failed = [r.key for r in reversed(records) if r.status == "failed" and given in ("", r.case.workload)]
    chosen = dict.fromkeys(key for key in failed or keys if key in known.cases)
    return list(chosen) or [find_key(known, given)]


def iterate_logs(known: KnownCases, keys: Sequence[str], every: bool = False) -> Iterator[LogPart]:
    """Yield the log sections of the given cases. A log file that several cases share is yielded once.

    Unless `every` is true, include only the first 3 cases and the last 1000 lines of each file.
    """
    parts: dict[str, LogPart] = {}
    for key in keys if every else keys[:_MOST_SHOWN]:
        for part in logs_of_case(known, key, every):
            parts.setdefault(part.title, part)
    yield from parts.values()
    if not every and len(keys) > _MOST_SHOWN:
        yield LogPart(f"{len(keys) - _MOST_SHOWN} more", "give a key to see another one, or --all")


def find_key(known: KnownCases, given: str) -> str:
    """Return the key of the case that `given` identifies. Raise `Refusal` unless exactly one case matches.

    `given` is the label of the case, the first words of its label (at least two), or the first characters of
    its key.
    """
    words = " ".join(given.split())
    labels = {key: label(case) for key, case in known.cases.items()}
    matches = [key for key in labels if labels[key] == words] or [
        key for key in labels if key.startswith(given) or (" " in words and labels[key].startswith(words))
    ]
    if given and len(matches) == 1:
        return matches[0]
    if not matches:
        raise Refusal(f"no case {given!r} in {known.results}: `scaling status --all` shows the keys")
    found = f"{given!r} matches {len(matches)} cases" if given else "no case has failed"
    named = list_first([f"{key} ({labels[key]})" for key in matches], _MOST_NAMED)
    raise Refusal(f"{found}: give the key of a case, such as {named}")


def logs_of_case(known: KnownCases, key: str, every: bool = False) -> Iterator[LogPart]:
    """Yield the log sections of one case: a list of its attempts, the worker logs, and the scheduler logs."""
    tasks = [t for t in known.tasks if key in known.keys.get(t.entry.path, ()) or _attempts(t, key)]
    in_journals = {(attempt.replicate, attempt.attempt) for t in tasks for attempt in _attempts(t, key)}
    extra = [r for r in known.records if r.key == key and (r.replicate, r.attempt) not in in_journals]
    lines = [f"{_format_attempt(r.started_at, r.attempt, r.replicate)}: {_format_outcome(r)}" for r in extra]
    lines += [line for task in tasks for line in _describe_task(task, key)]
    text = environment.hide_secrets("\n".join(lines))
    yield LogPart(f"{key}  {label(known.cases[key])}", text or "it has no record, and no task will run it")
    files = [path for task in tasks for path in _list_worker_logs(task, key)]
    scheduler_logs = [task.entry.log_path(kind) for task in tasks for kind in ("err", "out")]
    for path in [*files, *(path for path in scheduler_logs if path.exists() and path.stat().st_size)]:
        yield LogPart(str(path.relative_to(known.results)), _read_last_lines(path, every))


def _attempts(task: TaskState, key: str) -> list[TaskAttempt]:
    return [attempt for attempt in task.journal.attempts if attempt.key == key]


def _format_outcome(ended: Record | TaskAttempt, duration: str = "") -> str:
    return f"{ended.status}{duration}" + (f", {ended.reason}: {ended.text}" if ended.reason else "")


def _format_attempt(at: str | None, attempt: int, replicate: int) -> str:
    time = (at or "").partition("+")[0].partition(".")[0].replace("T", " ")
    return f"{time}  attempt {attempt}" + (f" of replicate {replicate}" if replicate else "")


def _describe_task(task: TaskState, key: str) -> list[str]:
    state, job = task.state, f", job {task.entry.job}" if task.entry.job else ""
    place = f"task {task.entry.folder.name}/{task.entry.name}{job}"
    if attempts := _attempts(task, key):
        return [_describe_attempt(task, attempt, place) for attempt in attempts]
    did_not_start = not task.open and state.name != "COMPLETED"
    words = lost_cases.find_cause(task) if did_not_start else task.blocked
    reason = f" ({state.reason})" if state.reason and state.reason != words else ""
    why = ": ".join(filter(None, [reason, words]))
    became = "waits in" if task.waits else "will run in" if task.open else "did not start in"
    return [f"{became} {place}: {state.name.lower()}{why}"]


def _describe_attempt(task: TaskState, attempt: TaskAttempt, place: str) -> str:
    began = _format_attempt(attempt.began_at or attempt.ended_at, attempt.attempt, attempt.replicate)
    run = f", run {attempt.run}" if task.journal.runs > 1 else ""
    nodes = f", on {', '.join(attempt.nodes)}" if attempt.nodes else ""
    outcome = "not finished"
    if attempt.ended_at:
        seconds = seconds_between(attempt.began_at, attempt.ended_at) if attempt.began_at else None
        outcome = _format_outcome(attempt, "" if seconds is None else f" after {format_wait(seconds)}")
    elif attempt in task.running:
        outcome = "runs now"
    elif attempt.run == task.journal.runs and not task.open and (ended := lost_cases.explain_end(task)):
        outcome += f", {ended[0]}: {ended[1]}"
    return f"{began}, {place}{run}{nodes}: {outcome}"


def _list_worker_logs(task: TaskState, key: str) -> list[Path]:
    """Return the log files of the workers that ran a case, or of the last run if an ended task ran none."""
    folder, name = task.entry.folder, task.entry.name
    workers = dict.fromkeys((a.run, worker) for a in _attempts(task, key) for worker in a.workers)
    if not workers and not task.open:
        return sorted(folder.glob(f"{name}.run-{task.journal.runs}/worker-*.log"))
    return [folder / f"{name}.run-{run}" / f"worker-{worker}.log" for run, worker in workers]


def _read_last_lines(path: Path, every: bool) -> str:
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError as error:
        return f"[{error.strerror}]"
    omitted = 0 if every else max(0, len(lines) - _MOST_LINES)
    head = f"[{omitted} earlier lines are omitted; --all shows them]\n" if omitted else ""
    return head + environment.hide_secrets("\n".join(lines[omitted:])) if lines else "[empty]"
