"""Implement `scaling logs`: select cases by key or label, and print their attempts and log files."""

import argparse
import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from rich.console import Console

from scaling.cli import streams
from scaling.cluster import lost_cases, submission_files
from scaling.cluster.job_state import TaskState, try_find_tasks
from scaling.cluster.journal import TaskAttempt, seconds_between
from scaling.core.case import Case, Refusal, label
from scaling.core.environment import hide_secrets
from scaling.core.formatting import format_wait, list_first
from scaling.core.record import Record
from scaling.results import store

_MAX_LINES = 1000  # maximum number of lines shown, from the end of a file
_MAX_CASES = 3  # maximum number of cases shown without --all, or named in an error message


class LogPart(NamedTuple):
    """A section of the output, such as the path and the content of a log file."""

    title: str
    text: str


@dataclass(frozen=True)
class StudyCases:
    """All cases of a results folder, with their records and the submitted cluster tasks."""

    results: Path
    records: list[Record]
    tasks: list[TaskState]
    keys: dict[Path, set[str]]  # task file -> keys of the cases that it contains or has begun
    cases: dict[str, Case]  # key -> case
    lost: list[Record]  # "failed" records, not written yet, of cases that ended jobs did not finish


def execute(args: argparse.Namespace, console: Console) -> None:
    """Print the logs of the cases that the command-line arguments select (see `select_keys`)."""
    study = load_cases(store.folder_of(args.folder))
    for number, part in enumerate(iterate_logs(study, select_keys(study, " ".join(args.key)), args.all)):
        if number:
            console.print()
        streams.print_lines(console, [part.title], "bold")
        print(streams.make_printable(part.text, "\n\t"), file=console.file)  # no markup and no wrapping


def load_cases(results: Path) -> StudyCases:
    """Read the cases, records and cluster tasks of a results folder."""
    tasks, _ = try_find_tasks(results)
    records = store.load(results).records
    cases = {record.key: record.case for record in records}
    cases |= {key: case for key, (case, _) in store.expected_cases(results, cases).items()}
    keys = {task.entry.path: {attempt.key for attempt in task.journal.attempts} for task in tasks}
    for path in keys:
        with contextlib.suppress(Refusal):  # the task file is missing or malformed
            by_key = {item.case.key: item.case for item in submission_files.read_task(path).items}
            keys[path].update(by_key)
            cases |= by_key
    return StudyCases(results, records, tasks, keys, cases, lost_cases.make_failed_records(tasks, records))


def select_keys(study: StudyCases, query: str) -> list[str]:
    """Return the keys of the cases that a query of `scaling logs` selects. Raise `Refusal` if there are none.

    The label or the beginning of the key of a case selects this case. The name of a workload selects its
    failed cases, or all its cases if none has failed. An empty query selects all failed cases, or the case
    that a task began last if none has failed.
    """
    keys = [key for key, case in study.cases.items() if case.workload == query]
    if query and not keys:
        return [find_key(study, query)]
    if not query:
        begun = [attempt for task in study.tasks for attempt in task.journal.attempts]
        keys = [attempt.key for attempt in sorted(begun, key=lambda a: a.began_at or "")[-1:]]
    records = sorted([*store.latest(study.records), *study.lost], key=lambda r: r.started_at or "")
    failed = [r.key for r in reversed(records) if r.status == "failed" and query in ("", r.case.workload)]
    chosen = dict.fromkeys(key for key in failed or keys if key in study.cases)
    return list(chosen) or [find_key(study, query)]


def iterate_logs(study: StudyCases, keys: Sequence[str], every: bool = False) -> Iterator[LogPart]:
    """Yield the log sections of several cases. A log file that several cases share is yielded once.

    Unless `every` is true, only the first 3 cases and the last 1000 lines of each file are included.
    """
    shown = keys if every else keys[:_MAX_CASES]
    yield from {part.title: part for key in shown for part in logs_of_case(study, key, every)}.values()
    if len(keys) > len(shown):
        yield LogPart(f"{len(keys) - len(shown)} more", "give a key to see another one, or --all")


def find_key(study: StudyCases, query: str) -> str:
    """Return the key of the only case that matches a query. Raise `Refusal` unless exactly one case matches.

    A case matches if the query is its label, the beginning of its label (at least two words), or the
    beginning of its key. If the query is the whole label of a case, other matches do not count.
    """
    words = " ".join(query.split())
    labels = {key: label(case) for key, case in study.cases.items()}
    matches = [key for key in labels if labels[key] == words] or [
        key for key in labels if key.startswith(query) or (" " in words and labels[key].startswith(words))
    ]
    if query and len(matches) == 1:
        return matches[0]
    if not matches:
        raise Refusal(f"no case {query!r} in {study.results}: `scaling status --all` shows the keys")
    problem = f"{query!r} matches {len(matches)} cases" if query else "no case has failed"
    named = list_first([f"{key} ({labels[key]})" for key in matches], _MAX_CASES)
    raise Refusal(f"{problem}: give the key of a case, such as {named}")


def logs_of_case(study: StudyCases, key: str, every: bool = False) -> Iterator[LogPart]:
    """Yield the log sections of one case: a list of its attempts, its worker logs, and its scheduler logs."""
    tasks = [task for task in study.tasks if key in study.keys[task.entry.path]]
    in_journals = {(attempt.replicate, attempt.attempt) for t in tasks for attempt in _attempts(t, key)}
    extra = [r for r in study.records if r.key == key and (r.replicate, r.attempt) not in in_journals]
    lines = [f"{_format_attempt(r.started_at, r.attempt, r.replicate)}: {_format_outcome(r)}" for r in extra]
    lines += [line for task in tasks for line in _describe_task(task, key)]
    text = hide_secrets("\n".join(lines)) or "it has no record, and no task will run it"
    yield LogPart(f"{key}  {label(study.cases[key])}", text)
    files = [path for task in tasks for path in _list_worker_logs(task, key)]
    scheduler_logs = [task.entry.log_path(kind) for task in tasks for kind in ("err", "out")]
    for path in [*files, *(path for path in scheduler_logs if path.exists() and path.stat().st_size)]:
        yield LogPart(str(path.relative_to(study.results)), _read_last_lines(path, every))


def _attempts(task: TaskState, key: str) -> list[TaskAttempt]:
    return [attempt for attempt in task.journal.attempts if attempt.key == key]


def _format_outcome(ended: Record | TaskAttempt, duration: str = "") -> str:
    return f"{ended.status}{duration}" + (f", {ended.reason}: {ended.text}" if ended.reason else "")


def _format_attempt(at: str | None, attempt: int, replicate: int) -> str:
    time = (at or "").partition("+")[0].partition(".")[0].replace("T", " ")
    return f"{time}  attempt {attempt}" + (f" of replicate {replicate}" if replicate else "")


def _describe_task(task: TaskState, key: str) -> list[str]:
    """Return a line for each attempt of a task at a case, or a line about the task if there is no attempt."""
    state, job = task.state, f", job {task.entry.job}" if task.entry.job else ""
    place = f"task {task.entry.folder.name}/{task.entry.name}{job}"
    if attempts := _attempts(task, key):
        return [_describe_attempt(task, attempt, place) for attempt in attempts]
    if task.journal.problem:
        return [f"{place}: {state.name.lower()}: {task.journal.problem}"]
    did_not_start = not task.may_run and state.name != "COMPLETED"
    words = lost_cases.find_cause(task) if did_not_start else task.wait_message
    reason = f" ({state.reason})" if state.reason and state.reason != words else ""
    why = ": ".join(filter(None, [reason, words]))
    verb = "waits in" if task.is_pending else "will run in" if task.may_run else "did not start in"
    return [f"{verb} {place}: {state.name.lower()}{why}"]


def _describe_attempt(task: TaskState, attempt: TaskAttempt, place: str) -> str:
    began = _format_attempt(attempt.began_at or attempt.ended_at, attempt.attempt, attempt.replicate)
    run = f", run {attempt.run}" if task.journal.runs > 1 else ""
    nodes = f", on {', '.join(attempt.nodes)}" if attempt.nodes else ""
    outcome = "not finished"
    if attempt.ended_at:
        seconds = seconds_between(attempt.began_at, attempt.ended_at) if attempt.began_at else None
        outcome = _format_outcome(attempt, "" if seconds is None else f" after {format_wait(seconds)}")
    elif attempt in task.running_attempts:
        outcome = "runs now"
    elif attempt.run == task.journal.runs and not task.may_run and (ended := lost_cases.explain_end(task)):
        outcome += f", {ended[0]}: {ended[1]}"
    return f"{began}, {place}{run}{nodes}: {outcome}"


def _list_worker_logs(task: TaskState, key: str) -> list[Path]:
    """Return the worker log files of a case, or of the last run if an ended task never began the case."""
    folder, name = task.entry.folder, task.entry.name
    workers = dict.fromkeys((a.run, worker) for a in _attempts(task, key) for worker in a.workers)
    if not workers and not task.may_run:
        return sorted(folder.glob(f"{name}.run-{task.journal.runs}/worker-*.log"))
    return [folder / f"{name}.run-{run}" / f"worker-{worker}.log" for run, worker in workers]


def _read_last_lines(path: Path, every: bool) -> str:
    """Return the last 1000 lines of a log file, or all lines if `every` is true. Hide secrets."""
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError as error:
        return f"[{error.strerror}]"
    omitted = 0 if every else max(0, len(lines) - _MAX_LINES)
    head = f"[{omitted} earlier lines are omitted; --all shows them]\n" if omitted else ""
    return head + hide_secrets("\n".join(lines[omitted:])) if lines else "[empty]"
