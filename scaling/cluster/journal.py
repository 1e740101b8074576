"""Read and write the journal of a task, a file with one line of JSON for each event of the task."""

import contextlib
import datetime
import itertools
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from scaling.results.read_record import type_check
from scaling.results.store import read_file

# Field of an event -> test of its JSON value. An event has some of these fields.
_FIELD_CHECKS = {
    **dict.fromkeys(("event", "key"), type_check(str)),
    **dict.fromkeys(("replicate", "attempt", "pid"), type_check(int)),
    **dict.fromkeys(("job", "node", "reason", "text"), type_check(str | None)),
    "at": lambda value: isinstance(value, str) and _is_time(value),
    "seat": type_check(int | None),
    "nodes": type_check(list[str]),
    "log_starts": lambda value: type_check(list[int])(value) and len(value) == 2,
}


@dataclass(frozen=True)
class TaskAttempt:
    """An attempt to run a case during one run of its task. Times are text in ISO 8601 format."""

    run: int  # number of the run of the task (2 or more after a requeue)
    key: str  # case key
    replicate: int  # starting with 0
    attempt: int  # starting with 1
    nodes: tuple[str, ...]
    workers: tuple[int, ...] = ()  # numbers of the workers that ran the case
    began_at: str | None = None
    ended_at: str | None = None  # None if the case is running, or if the task ended before the case
    reason: str | None = None  # reason of the record, if the case failed or was skipped

    @property
    def replicate_key(self) -> tuple[str, int]:
        """Return (case key, replicate number), which identifies a repeated measurement of a case."""
        return self.key, self.replicate


@dataclass(frozen=True)
class TaskJournal:
    """A summary of all journal files of a task (one file per run). Times are text in ISO 8601 format."""

    attempts: tuple[TaskAttempt, ...]
    runs: int  # number of runs, or 0 if the task has never started
    job: str | None  # Slurm job ID of the last run, or None
    node: str  # name of the node of the last run, or ""
    pid: int | None  # process ID of the last run, or None
    began_at: str | None  # start time of the last run, or None
    log_starts: Sequence[int]  # sizes in bytes of the logs "out" and "err" when the last run started
    last_event: str  # name of the last event, such as "ended", or ""
    last_text: str  # text of the last event, or ""
    last_at: str | None  # time of the last event, or None

    @property
    def ended(self) -> set[tuple[str, int]]:
        """Return {(case key, replicate number)} for the cases that have ended."""
        return {attempt.replicate_key for attempt in self.attempts if attempt.ended_at}

    @property
    def unfinished(self) -> list[TaskAttempt]:
        """Return the attempts that have begun but not ended.

        If a replicate of a case was attempted several times, only the last attempt is considered.
        """
        last = {attempt.replicate_key: attempt for attempt in self.attempts}
        return [attempt for attempt in last.values() if not attempt.ended_at]


def read_journal(task: Path) -> TaskJournal:
    """Return a summary of all journal files of a task, given the path of its task file."""
    attempts: dict[tuple[int, str, int, int], dict[str, Any]] = {}
    start: dict[str, Any] = {}
    event: dict[str, Any] = {}  # after the loop, the last event
    for event in _read_events(task):
        if event["event"] == "started":
            start = event
        elif event["event"] in ("begin", "end"):
            identity = (event["run"], event["key"], event.get("replicate", 0), event.get("attempt", 1))
            fields = attempts.setdefault(identity, {"nodes": tuple(start.get("nodes", ())), "workers": ()})
            if event.get("seat") not in (None, *fields["workers"]):
                fields["workers"] += (event["seat"],)
            if event["event"] == "begin":
                fields["began_at"] = fields.get("began_at") or event.get("at")
            else:
                fields |= {"ended_at": event.get("at"), "reason": event.get("reason")}
    return TaskJournal(
        tuple(TaskAttempt(*identity, **fields) for identity, fields in attempts.items()),
        event.get("run", 0), start.get("job"), start.get("node") or "", start.get("pid"), start.get("at"),
        start.get("log_starts", (0, 0)),
        event.get("event", ""), event.get("text") or "", event.get("at"),
    )  # fmt: skip


def _journal_paths(task: Path) -> Iterator[Path]:
    return (task.with_suffix(f".run-{run}.jsonl") for run in itertools.count(1))


def _read_events(task: Path) -> Iterator[dict[str, Any]]:
    """Yield the events in all journal files of a task, from the first run to the last. Skip invalid lines.

    An event is a dict. Its entry "run" is the number of the run of the task, starting with 1.
    """
    for run, path in enumerate(itertools.takewhile(Path.exists, _journal_paths(task)), 1):
        for line in read_file(path).decode(errors="replace").splitlines():
            with contextlib.suppress(ValueError, RecursionError):  # the last line may be incomplete
                event = json.loads(line)
                if isinstance(event, dict) and _is_event(event):
                    yield event | {"run": run}


def _is_event(event: dict[str, Any]) -> bool:
    are_valid = all(is_valid(event[name]) for name, is_valid in _FIELD_CHECKS.items() if name in event)
    return are_valid and "event" in event and ("key" in event or event["event"] not in ("begin", "end"))


def _is_time(text: str) -> bool:
    try:
        return datetime.datetime.fromisoformat(text).tzinfo is not None
    except ValueError:
        return False


class Journal:
    """A writer that appends the events of a running task to a new journal file."""

    def __init__(self, task: Path) -> None:
        path = next(path for path in _journal_paths(task) if not path.exists())
        self.folder = path.with_suffix("")  # for the worker-N.log files
        self.folder.mkdir(exist_ok=True)
        self._file: TextIO = path.open("x", encoding="utf-8")

    def write(self, event: str, **fields: Any) -> None:
        """Append one line of JSON with the name of the event, the current time, and the given fields."""
        at = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        self._file.write(json.dumps({"at": at, "event": event} | fields) + "\n")
        self._file.flush()


def current_job() -> str | None:
    """Return the ID of the job that runs this process, or None outside a job.

    A task of a Slurm array has an ID such as "12_3". The ID of a local job is a process ID.
    """
    array, task = os.environ.get("SLURM_ARRAY_JOB_ID"), os.environ.get("SLURM_ARRAY_TASK_ID")
    if array and task:
        return f"{array}_{task}"
    return os.environ.get("SLURM_JOB_ID") or os.environ.get("SUBMITIT_LOCAL_JOB_ID")


def seconds_between(began_at: str, ended_at: str | None = None) -> float:
    """Return the time from `began_at` to `ended_at` in seconds, or 0 if it is negative.

    Both times are in ISO 8601 format. The default of `ended_at` is the current time.
    """
    ended = datetime.datetime.fromisoformat(ended_at) if ended_at else datetime.datetime.now(datetime.UTC)
    return max(0.0, (ended - datetime.datetime.fromisoformat(began_at)).total_seconds())
