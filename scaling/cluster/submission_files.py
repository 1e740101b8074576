"""Read and write the files of a submission: submission.json, task files and journals.

    jobs/20261121T201500-3f2a/submission.json   settings of the submission, and its tasks with their job IDs
                              0001.json         task file: the cases of a task, and how to run them
                              0001.run-1.jsonl  journal of run 1 of the task (run 2 follows a requeue), with a
                                                line of JSON for each event
                              0001.run-1/       standard error of the workers of run 1
                              code/             copy of the package
                              log/              standard output and standard error of the jobs

sbatch.py submits the tasks, task.py writes the journals, and task_state.py determines the states of tasks.
"""

import contextlib
import dataclasses
import datetime
import itertools
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from scaling.cluster.cluster_settings import SUBMISSIONS, ClusterSettings
from scaling.cluster.pack import PackedTask
from scaling.core.case import Refusal, from_dict, to_dict
from scaling.core.environment import node_name
from scaling.core.timing import Sampling
from scaling.launcher.machine import Machine, ProcessShape
from scaling.launcher.run_settings import RunSettings
from scaling.launcher.schedule import PreflightResult, Schedule, ScheduledCase, group_by_process
from scaling.results import store
from scaling.results.read_record import check_entries, check_types, type_check

SETUP_FAILED = "scaling: setup line failed with exit status"  # beginning of a line in the log of a job
_SUBMISSION_FILE = "submission.json"
# Field of an event in a journal -> test of its JSON value. An event has some of these fields.
_EVENT_CHECKS = {
    **dict.fromkeys(("event", "key"), type_check(str)),
    **dict.fromkeys(("replicate", "attempt", "pid"), type_check(int)),
    **dict.fromkeys(("job", "node", "text"), type_check(str | None)),
    "at": lambda value: isinstance(value, str) and _is_time(value),
    "seat": type_check(int | None),
    "nodes": type_check(list[str]),
    "log_starts": lambda value: type_check(list[int])(value) and len(value) == 2,
}


@dataclass(frozen=True)
class SubmittedTask:
    """A task (a group of cases that run in one job), as listed in submission.json."""

    folder: Path  # folder of the submission
    name: str  # name of the task file without its suffix, such as "0001"
    job: str | None  # job ID, or None if the task is not submitted yet
    shape: ProcessShape
    cases: int  # number of cases

    @property
    def path(self) -> Path:
        """Return the path of the task file."""
        return self.folder / f"{self.name}.json"

    def log_path(self, kind: str) -> Path:
        """Return the path of the standard output (`kind` is "out") or standard error ("err") of the job."""
        return self.folder / "log" / f"{self.job}_0_log.{kind}"  # the name that submitit chooses


@dataclass(frozen=True)
class Submission:
    """The content of submission.json: the tasks of a submission, with their job IDs and common settings."""

    folder: Path
    kind: str  # name of the cluster settings, such as slurm or local
    host: str  # host name of the launcher
    minutes: float  # time limit of each task
    tasks: tuple[SubmittedTask, ...]

    @property
    def name(self) -> str:
        """Return the name of all Slurm jobs of the submission, such as "scaling-20261121T201500-3f2a"."""
        return f"scaling-{self.folder.name}"


@dataclass(frozen=True)
class TaskDefinition:
    """The content of a task file: the cases of a task, and the settings to run them."""

    scheduled_cases: tuple[ScheduledCase, ...]
    settings: RunSettings
    machine: Machine  # nodes and devices of the cluster
    cluster: ClusterSettings
    nested: bool  # whether all device counts run in one allocation
    environments: dict[tuple, dict[str, Any]]  # `PreflightResult.environment_key` -> planned environment


def read_submissions(results: Path) -> list[Submission]:
    """Return the submissions of a results folder, the oldest first, or [] if there are none.

    Raise `Refusal` if a submission.json cannot be read.
    """
    submissions, path = [], results / SUBMISSIONS / "*" / _SUBMISSION_FILE
    try:
        for folder in sorted((results / SUBMISSIONS).iterdir()):
            path = folder / _SUBMISSION_FILE
            if path.is_symlink() and not path.exists():
                raise ValueError("a link to no file")
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):  # it is being created
                submissions.append(_submission_from_json(folder, store.parse_json(store.read_file(path))))
    except FileNotFoundError:
        return []
    except (OSError, KeyError, TypeError, ValueError):
        name = path.relative_to(results)
        fix = f"restore it or its permissions, or delete the folder {name.parent} if none of them runs"
        raise Refusal(f"cannot read {name}, its tasks may still run: {fix}") from None
    return submissions


def _submission_from_json(folder: Path, content: Any) -> Submission:
    """Return a `Submission` with the content of submission.json.

    Raise KeyError, TypeError or ValueError if the content is malformed.
    """
    submitted_tasks = [
        check_types(SubmittedTask(folder, task["task"], task["job"], shape, task["cases"]))
        for task in content["tasks"]
        for shape in [check_types(ProcessShape(**task["shape"]))]
    ]
    if not all(
        re.fullmatch(r"\w+", f"{submitted_task.name}{submitted_task.job or ''}")
        for submitted_task in submitted_tasks
    ):
        raise ValueError("a name of a task or job that cannot be part of a path")
    # The launcher may have ended before it saved the job ID.
    submitted_tasks = [
        dataclasses.replace(each, job=each.job or read_journal(each.path).job) for each in submitted_tasks
    ]
    return check_types(
        Submission(folder, content["kind"], content["host"], content["minutes"], tuple(submitted_tasks))
    )


def build_submission(
    results: Path, stamp: str, cluster: ClusterSettings, tasks: Sequence[PackedTask]
) -> Submission:
    """Return a new `Submission` with the folder jobs/`stamp` and without job IDs. No file is written."""
    folder = results / SUBMISSIONS / stamp
    submitted_tasks = tuple(
        SubmittedTask(folder, f"{number:04}", None, task.shape, len(task.scheduled_cases))
        for number, task in enumerate(tasks, 1)
    )
    return Submission(folder, cluster.name, node_name(), cluster.time, submitted_tasks)


def create_submission(
    results: Path,
    stamp: str,
    cluster: ClusterSettings,
    tasks: Sequence[PackedTask],
    settings: RunSettings,
    schedule: Schedule,
    nested: bool,
) -> Submission:
    """Write submission.json and the task files to the folder jobs/`stamp`, and return the `Submission`.

    `nested` states whether all cases of a function run in one job, on any number of devices.
    """
    submission = build_submission(results, stamp, cluster, tasks)
    submission.folder.mkdir(parents=True)
    for submitted_task, task in zip(submission.tasks, tasks, strict=True):
        task_content = {
            "settings": dataclasses.asdict(settings),
            "machine": dataclasses.asdict(schedule.machine),
            "cluster": dataclasses.asdict(cluster),
            "nested": nested,
            "environments": list(schedule.environments.items()),
            "jobs": [
                [_scheduled_to_json(scheduled) for scheduled in session]
                for session in group_by_process(task.scheduled_cases)
            ],
        }
        store.write_json(submitted_task.path, task_content)
    write_submission(submission)
    return submission


def write_submission(submission: Submission) -> None:
    """Write the file submission.json of a submission."""
    tasks = [
        {"task": task.name, "job": task.job, "shape": dataclasses.asdict(task.shape), "cases": task.cases}
        for task in submission.tasks
    ]
    content = {
        "kind": submission.kind,
        "host": submission.host,
        "minutes": submission.minutes,
        "tasks": tasks,
    }
    store.write_json(submission.folder / _SUBMISSION_FILE, content)


def save_job_ids(submission: Submission, jobs: dict[str, str]) -> Submission:
    """Update submission.json with `jobs`, which is {task name: job ID}, and return the new `Submission`."""
    submitted_tasks = tuple(
        dataclasses.replace(submitted_task, job=jobs.get(submitted_task.name, submitted_task.job))
        for submitted_task in submission.tasks
    )
    updated = dataclasses.replace(submission, tasks=submitted_tasks)
    write_submission(updated)
    return updated


def read_task(task: Path) -> TaskDefinition:
    """Return the content of the task file `task`. Raise `Refusal` if it is missing or malformed."""
    content = store.read_json(task)
    try:
        return _task_from_json(content)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        problem = "it is missing or contains no JSON" if content is None else str(error)
        file = f"{SUBMISSIONS}/{task.parent.name}/{task.name}"
        fix = f"restore it, or end its job with `scaling cancel` and delete {SUBMISSIONS}/{task.parent.name}"
        raise Refusal(f"{file} is not a valid task file ({problem}): {fix}") from None


def _task_from_json(content: Any) -> TaskDefinition:
    """Return a `TaskDefinition` with the content of a task file.

    Raise AttributeError, KeyError, TypeError or ValueError if the content is malformed.
    """
    settings, cluster, machine = content["settings"], content["cluster"], content["machine"]
    environments = {_to_tuple(key): environment for key, environment in content["environments"]}
    definition = TaskDefinition(
        tuple(_scheduled_from_json(scheduled) for session in content["jobs"] for scheduled in session),
        check_types(RunSettings(**settings | {"sampling": check_types(Sampling(**settings["sampling"]))})),
        check_types(Machine(**{name: _to_tuple(value) for name, value in machine.items()})),
        check_types(ClusterSettings(**{name: _to_tuple(value) for name, value in cluster.items()})),
        content["nested"],
        environments,
    )
    for environment in check_types(definition).environments.values():
        check_entries("environment", environment)
    if (
        not {scheduled.preflight.environment_key for scheduled in definition.scheduled_cases}
        <= environments.keys()
    ):
        raise ValueError("a case has no environment")
    return definition


def _to_tuple(value: Any) -> Any:
    """Return a JSON value with all lists, including nested lists, converted to tuples."""
    return tuple(map(_to_tuple, value)) if isinstance(value, list) else value


def _scheduled_to_json(scheduled: ScheduledCase) -> dict[str, Any]:
    return {
        "case": to_dict(scheduled.case), "order": scheduled.order, "attempt": scheduled.attempt,
        "replicate": scheduled.replicate, "engine": dict(scheduled.preflight.engine),
        "workload_digest": scheduled.preflight.workload_digest,
    }  # fmt: skip


def _scheduled_from_json(content: dict[str, Any]) -> ScheduledCase:
    case, engine = from_dict(content["case"]), tuple(content["engine"].items())
    preflight = check_types(PreflightResult(case, None, content["workload_digest"], engine))
    return check_types(ScheduledCase(preflight, content["order"], content["attempt"], content["replicate"]))


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

    @property
    def replicate_key(self) -> tuple[str, int]:
        """Return (case key, replicate number), which is the same for all attempts at a replicate."""
        return self.key, self.replicate


@dataclass(frozen=True)
class TaskJournal:
    """A summary of the journal files of a task (one file per run). Times are text in ISO 8601 format."""

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
        """Return the case key and replicate number of each case that has ended."""
        return {attempt.replicate_key for attempt in self.attempts if attempt.ended_at}

    @property
    def unfinished(self) -> list[TaskAttempt]:
        """Return the last attempt at each replicate of a case, if this attempt has not ended."""
        last = {attempt.replicate_key: attempt for attempt in self.attempts}
        return [attempt for attempt in last.values() if not attempt.ended_at]


def read_journal(task: Path) -> TaskJournal:
    """Return a summary of all journal files of a task. `task` is the path of its task file."""
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
            fields.setdefault("began_at" if event["event"] == "begin" else "ended_at", event.get("at"))
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

    The number of the run, starting with 1, is added to each event as its entry "run".
    """
    for run, path in enumerate(itertools.takewhile(Path.exists, _journal_paths(task)), 1):
        for line in store.read_file(path).decode(errors="replace").splitlines():
            with contextlib.suppress(ValueError, RecursionError):  # the last line may be incomplete
                event = json.loads(line)
                if isinstance(event, dict) and _is_event(event):
                    yield event | {"run": run}


def _is_event(event: dict[str, Any]) -> bool:
    are_valid = all(is_valid(event[name]) for name, is_valid in _EVENT_CHECKS.items() if name in event)
    return are_valid and "event" in event and ("key" in event or event["event"] not in ("begin", "end"))


def _is_time(text: str) -> bool:
    try:
        return datetime.datetime.fromisoformat(text).tzinfo is not None
    except ValueError:
        return False


class Journal:
    """A new journal file of a running task, to which events are appended."""

    def __init__(self, task: Path) -> None:
        path = next(path for path in _journal_paths(task) if not path.exists())
        self.folder = path.with_suffix("")  # for the worker-N.log files
        self.folder.mkdir(exist_ok=True)
        self._file: TextIO = path.open("x", encoding="utf-8")

    def write(self, event: str, **fields: Any) -> None:
        """Append a line of JSON with the name of the event, the current time, and the given fields."""
        at = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        self._file.write(json.dumps({"at": at, "event": event} | fields) + "\n")
        self._file.flush()
