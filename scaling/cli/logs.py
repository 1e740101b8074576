"""Implement `scaling logs`: select cases by key or label, and print their attempts and log files."""

import argparse
import functools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from scaling.cli import streams
from scaling.cluster import lost_cases
from scaling.cluster.job_state import TaskState, try_find_tasks
from scaling.core.case import Case, Refusal, label
from scaling.core.environment import hide_secrets
from scaling.core.grouping import group_by
from scaling.core.record import Record
from scaling.results import results_folder, store

_MAX_LINES = 1000  # maximum number of lines shown without --all, from the end of a file
_MAX_CASES = 3  # maximum number of cases shown without --all


@dataclass(frozen=True)
class StudyCases:
    """All cases of a results folder, with their records and the submitted cluster tasks."""

    results: Path
    records: list[Record]  # includes unwritten "failed" records for cases that ended jobs did not finish
    tasks: list[TaskState]
    cases: dict[str, Case]  # key -> case
    damaged: list[str]  # a message for each unreadable line of a record file; attempts may be missing
    problem: str  # why the state of some tasks is unknown, or ""

    @functools.cached_property
    def records_by_key(self) -> dict[str, list[Record]]:
        """Return {case key: list of the records of the case}."""
        return group_by(self.records, lambda record: record.key)


def execute(args: argparse.Namespace, console: Console) -> None:
    """Print the logs of the cases that the command-line arguments select (see `select_keys`)."""
    study = load_cases(results_folder.require_results_folder(args.folder))
    streams.print_lines(console, streams.damaged_notes(study.damaged), "yellow")
    keys = select_keys(study, " ".join(args.key))
    if study.problem:
        streams.print_lines(console, [study.problem], "yellow")
    shown_keys = keys if args.all else keys[:_MAX_CASES]
    sections = dict.fromkeys(section for key in shown_keys for section in logs_of_case(study, key, args.all))
    for title, text in sections:
        streams.print_lines(console, [title], "bold")
        print(streams.make_printable(text, "\n\t"), end="\n\n", file=console.file)  # no markup, no wrapping
    if len(keys) > len(shown_keys):
        streams.print_lines(console, [f"{len(keys) - len(shown_keys)} more: give the key of one, or --all"])


def load_cases(results: Path) -> StudyCases:
    """Read the cases, records and cluster tasks of a results folder."""
    tasks, problem = try_find_tasks(results)
    loaded = store.load(results)
    records = loaded.records + lost_cases.make_failed_records(tasks, loaded.records)
    cases = {record.key: record.case for record in records}
    cases |= {key: case for key, (case, _) in store.read_study(results, cases).cases.items()}
    cases |= {key: case for task in tasks for key, case in task.cases.items()}
    return StudyCases(results, records, tasks, cases, loaded.damaged, problem)


def select_keys(study: StudyCases, query: str) -> list[str]:
    """Return the keys of the cases whose label or key begins with `query`. Raise `Refusal` if there is none.

    If the query is the whole label of a case, only this case matches. If any matching case failed, only the
    failed ones are returned, latest first. If none failed, the empty query returns only the case that was
    started last.
    """
    query = " ".join(query.split())
    labels = {key: label(case) for key, case in study.cases.items()}
    matches = [key for key, case_label in labels.items() if case_label == query] or [
        key for key, case_label in labels.items() if key.startswith(query) or case_label.startswith(query)
    ]
    if not labels:
        raise Refusal(f"no case in {study.results}: `scaling run` makes some")
    if not matches:
        raise Refusal(f"no case {query!r} in {study.results}: `scaling status --all` shows the keys")
    latest = sorted(store.latest(study.records), key=lambda record: record.started_at or "", reverse=True)
    matching = set(matches)
    failed = [record.key for record in latest if record.status == "failed" and record.key in matching]
    if failed or query:
        return list(dict.fromkeys(failed)) or matches
    attempts = [attempt for task in study.tasks for attempt in task.journal.attempts if attempt.key in labels]
    if not attempts:
        raise Refusal("no case has failed: give the key of a case, which `scaling status --all` shows")
    return [max(attempts, key=lambda attempt: attempt.began_at or "").key]


def logs_of_case(study: StudyCases, key: str, show_all: bool = False) -> Iterator[tuple[str, str]]:
    """Yield (title, text) for the history of a case, and for each worker log file and job log file.

    If `show_all` is false, yield only the last lines of long log files.
    """
    tasks = [task for task in study.tasks if key in task.cases]
    records = store.sort_by_start(study.records_by_key.get(key, []))
    lines = [*map(_describe_record, records), *(_describe_task(task, key) for task in tasks)]
    text = hide_secrets("\n".join(lines)) or "it has no record, and no task will run it"
    yield f"{key}  {label(study.cases[key])}", text
    files = [path for task in tasks for path in _list_worker_logs(task, key)]
    job_logs = [task.entry.log_path(kind) for task in tasks for kind in ("err", "out")]
    for path in [*files, *(path for path in job_logs if path.exists() and path.stat().st_size)]:
        yield str(path.relative_to(study.results)), _read_last_lines(path, show_all)


def _describe_record(record: Record) -> str:
    started_at = (record.started_at or "").partition("+")[0].partition(".")[0].replace("T", " ")
    replicate = f" of replicate {record.replicate + 1}" if record.replicate else ""
    explanation = f", {record.reason}: {record.text}" if record.reason else ""
    return f"{started_at}  attempt {record.attempt}{replicate}: {record.status}{explanation}"


def _describe_task(task: TaskState, key: str) -> str:
    """Return a line with the state of a task and the attempts at the case `key` that it is running."""
    state, job = task.state, f", job {task.entry.job}" if task.entry.job else ""
    ended_early = not task.may_run and state.name != "COMPLETED"
    cause = lost_cases.find_cause(task) if ended_early else task.wait_message
    reasons = dict.fromkeys(filter(None, [state.reason, cause]))
    running = [
        f"attempt {attempt.attempt} runs now on {', '.join(attempt.nodes)}"
        for attempt in task.running_attempts
        if attempt.key == key
    ]
    description = "; ".join([state.name.lower(), *reasons, *running])
    return f"task {task.entry.folder.name}/{task.entry.name}{job}: {description}"


def _list_worker_logs(task: TaskState, key: str) -> list[Path]:
    """Return the log files of all workers that ran the case `key`.

    If the task ended before the case began, return the log files of the last run of the task.
    """
    folder, name = task.entry.folder, task.entry.name
    attempts = [attempt for attempt in task.journal.attempts if attempt.key == key]
    workers = dict.fromkeys((attempt.run, worker) for attempt in attempts for worker in attempt.workers)
    if not workers and not task.may_run:
        return sorted(folder.glob(f"{name}.run-{task.journal.runs}/worker-*.log"))
    return [folder / f"{name}.run-{run}" / f"worker-{worker}.log" for run, worker in workers]


def _read_last_lines(path: Path, show_all: bool) -> str:
    """Return the last 1000 lines of a log file (all lines if `show_all` is true), with secrets hidden."""
    try:
        lines = store.read_file(path).decode(errors="replace").splitlines()
    except OSError as error:
        return f"[{error.strerror}]"
    omitted = 0 if show_all else max(0, len(lines) - _MAX_LINES)
    omission_note = f"[{omitted} earlier lines are omitted; --all shows them]\n" if omitted else ""
    return omission_note + hide_secrets("\n".join(lines[omitted:])) if lines else "[empty]"
