"""Implement `scaling logs`: select cases by key or label, and print their attempts, tasks and log files."""

import argparse
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console

from scaling.cli.output import make_printable, print_lines
from scaling.cli.status import StudyStatus, load_status
from scaling.cluster.task_state import TaskState
from scaling.core.case import Refusal, label
from scaling.core.environment import hide_secrets
from scaling.core.record import Record
from scaling.results import store

_MAX_CASES = 3  # maximum number of cases shown without --all


def execute(args: argparse.Namespace, console: Console) -> None:
    """Print the logs of the cases that the arguments select by key or label."""
    study = load_status(store.require_results_folder(args.folder))
    if "" in args.key:
        raise Refusal("a key is empty: give the beginning of a key or label, or no key for the failed cases")
    keys = select_keys(study, " ".join(args.key))
    print_lines(console, study.notes, "yellow")
    shown_keys = keys if args.all else keys[:_MAX_CASES]
    sections = dict.fromkeys(section for key in shown_keys for section in logs_of_case(study, key))
    for log_title, log_text in sections:
        print_lines(console, [log_title], "bold")
        print(make_printable(log_text, "\n\t"), end="\n\n", file=console.file)  # no markup, no wrapping
    if len(keys) > len(shown_keys):
        print_lines(console, [f"{len(keys) - len(shown_keys)} more: give the key of one, or --all"])


def select_keys(study: StudyStatus, query: str) -> list[str]:
    """Return the keys of the cases whose key or label begins with `query`.

    If some of these cases failed, return only the keys of the failed cases. Raise `Refusal` if no case
    matches.
    """
    labels = {key: label(case) for key, case in study.cases.items()}
    matches = [key for key, text in labels.items() if key.startswith(query) or text.startswith(query)]
    if not matches:
        raise Refusal(f"no case {query!r} in {study.folder}: `scaling status --all` shows the keys")
    failed = {line.case.key for line in study.lines if line.state == "failed"}
    return [key for key in matches if key in failed] or matches


def logs_of_case(study: StudyStatus, key: str) -> Iterator[tuple[str, str]]:
    """Yield (title, text) pairs for a case: its attempts, the logs of its workers, the logs of its jobs."""
    tasks = [task for task in study.tasks if key in task.cases]
    records = store.sort_by_start(study.records.get(key, []))
    lines = [*map(_describe_record, records), *(_describe_task(task, key) for task in tasks)]
    text = hide_secrets("\n".join(lines)) or "it has no record, and no task will run it"
    yield f"{key}  {label(study.cases[key])}", text
    files = [path for task in tasks for path in _list_worker_logs(task, key)]
    job_logs = [task.submitted.log_path(kind) for task in tasks for kind in ("err", "out")]
    for path in [*files, *(path for path in job_logs if path.exists() and path.stat().st_size)]:
        yield str(path.relative_to(study.folder)), _read_log_file(path)


def _describe_record(record: Record) -> str:
    started_at = (record.started_at or "").partition("+")[0].partition(".")[0].replace("T", " ")
    replicate = f" of replicate {record.replicate + 1}" if record.replicate else ""
    explanation = f", {record.reason}: {record.text}" if record.reason else ""
    return f"{started_at}  attempt {record.attempt}{replicate}: {record.status}{explanation}"


def _describe_task(task: TaskState, key: str) -> str:
    """Return a line of text with the state of a task and its running attempts at the case `key`."""
    job = f", job {task.submitted.job}" if task.submitted.job else ""
    running = [
        f"attempt {attempt.attempt} runs now on {', '.join(attempt.nodes)}"
        for attempt in task.running_attempts
        if attempt.key == key
    ]
    description = "; ".join(filter(None, [task.state.name.lower(), task.explanation, *running]))
    return f"task {task.submitted.folder.name}/{task.submitted.name}{job}: {description}"


def _list_worker_logs(task: TaskState, key: str) -> list[Path]:
    """Return the paths of the logs of all workers that ran the case `key`.

    If the task ended before the case began, return the logs of the last run of the task.
    """
    folder, name = task.submitted.folder, task.submitted.name
    attempts = [attempt for attempt in task.journal.attempts if attempt.key == key]
    workers = dict.fromkeys((attempt.run, worker) for attempt in attempts for worker in attempt.workers)
    if not workers and not task.may_run:
        return sorted(folder.glob(f"{name}.run-{task.journal.runs}/worker-*.log"))
    return [folder / f"{name}.run-{run}" / f"worker-{worker}.log" for run, worker in workers]


def _read_log_file(path: Path) -> str:
    """Return the content of a log file, with secrets hidden, or the reason why it cannot be read."""
    try:
        text = store.read_file(path).decode(errors="replace")
    except OSError as error:
        return f"[{error.strerror}]"
    return hide_secrets(text.rstrip("\n")) or "[empty]"
