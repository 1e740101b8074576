"""A submission: what was handed to a cluster, in a folder of its own within the results, and what its tasks have told since.

    jobs/20261121T201500-3f2a/submission.json   what was asked for, and every task with its job
                              0001.json         a task: its cases, and how to run them
                              0001.run-1.jsonl  what happened when it ran, a line each; run-2 after it was requeued
                              0001.run-1/       what its workers complained of
                              code/             the package as it was
                              log/              what submitit and the scheduler write

Knows files; not who runs a task, nor what becomes of it (slurm.py).
"""

import dataclasses
import datetime
import itertools
import json
import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from scaling.cluster.pack import PackedTask
from scaling.cluster.settings import LISTS, SUBMISSIONS, Cluster
from scaling.core import store
from scaling.core.case import Refusal, from_dict, to_dict
from scaling.core.environment import node_name
from scaling.core.timing import Sampling
from scaling.workers.examined import Examined
from scaling.workers.machine import Machine, ProcessShape
from scaling.workers.schedule import Schedule, ScheduledCase
from scaling.workers.settings import RunSettings

FOLDER = SUBMISSIONS
SETUP_FAILED = "scaling: setup line failed with exit status"  # the line that a job writes before it ends
_FILE = "submission.json"
_YOUNG_SECONDS = 300.0
_MARGIN = 2.0  # times what a plan foresees
_LEAST_MINUTES = 10  # beside it: with less, submitit takes a preemption for a time limit


@dataclass(frozen=True)
class SubmittedTask:
    """A task of a submission: its file's name, its job, and what it is."""

    folder: Path
    name: str
    job: str | None  # None: it was not handed over
    shape: ProcessShape
    cases: int
    seconds: float  # as predicted
    minutes: float  # that it may take

    @property
    def path(self) -> Path:
        """The file of the task."""
        return self.folder / f"{self.name}.json"


@dataclass(frozen=True)
class Submission:
    """What was handed to a cluster at one time."""

    folder: Path
    kind: str  # of the cluster: its name
    made_at: str  # UTC, ISO 8601
    host: str
    minutes: float  # that a task may take, where no plan has foreseen how long it will
    entries: tuple[SubmittedTask, ...]
    pid: int | None = None  # of the process that submits it, on `host`

    @property
    def young(self) -> bool:
        """Whether the process that submits it may still be doing so."""
        if self.pid and self.host == node_name() and not Path(f"/proc/{self.pid}").exists():
            return False
        age = datetime.datetime.now(datetime.UTC) - datetime.datetime.fromisoformat(self.made_at)
        return age.total_seconds() < _YOUNG_SECONDS

    @property
    def name(self) -> str:
        """What its jobs are called."""
        return f"scaling-{self.folder.name}"


@dataclass(frozen=True)
class Work:
    """A task as its file says it: what to run, and how."""

    jobs: tuple[tuple[ScheduledCase, ...], ...]
    settings: RunSettings
    machine: Machine
    cluster: Cluster
    nested: bool
    environments: dict[tuple, dict[str, Any]]  # as planned, by `Answer.around`

    @property
    def items(self) -> list[ScheduledCase]:
        """All of its cases."""
        return [item for job in self.jobs for item in job]


def all_of(results: Path) -> list[Submission]:
    """Every submission of a folder of results, the oldest first; one that cannot be read is passed over."""
    found = []
    for path in sorted(results.glob(f"{FOLDER}/*/{_FILE}")):
        told = store.read_json(path)
        try:
            entries = tuple(
                SubmittedTask(
                    path.parent, e["task"], e["job"], ProcessShape(**e["shape"]), e["cases"], e["seconds"],
                    e.get("minutes", told["minutes"]),
                )
                for e in told["tasks"]
            )  # fmt: skip
            kind, made_at, host = told["kind"], told["made_at"], told["host"]
            found.append(
                Submission(path.parent, kind, made_at, host, told["minutes"], entries, told.get("pid"))
            )
        except (KeyError, TypeError):
            continue
    return found


def arrange(results: Path, stamp: str, cluster: Cluster, tasks: Sequence[PackedTask]) -> Submission:
    """Return a submission of tasks that have no job yet; nothing is written."""
    folder = results / FOLDER / stamp
    limits = dict[ProcessShape, float]()  # an array, which is of one shape, has one limit
    for task in tasks:
        limits[task.shape] = max(limit(task, cluster), limits.get(task.shape, 0.0))
    entries = tuple(
        SubmittedTask(
            folder, f"{number:04}", None, task.shape, len(task.items), task.seconds, limits[task.shape]
        )
        for number, task in enumerate(tasks, 1)
    )
    made_at = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    return Submission(folder, cluster.name, made_at, node_name(), cluster.time, entries, os.getpid())


def create(
    results: Path,
    stamp: str,
    cluster: Cluster,
    tasks: Sequence[PackedTask],
    settings: RunSettings,
    made: Schedule,
    nested: bool,
) -> Submission:
    """Write a submission whose tasks have no job yet."""
    handed = arrange(results, stamp, cluster, tasks)
    handed.folder.mkdir(parents=True)
    for entry, task in zip(handed.entries, tasks, strict=True):
        store.write_json(
            entry.path,
            _task_to_json(Work(task.jobs, settings, made.machine, cluster, nested, made.environments)),
        )
    save(handed)
    return handed


def limit(task: PackedTask, cluster: Cluster) -> float:
    """Minutes that a task may take: as the cluster says, or less where a plan has foreseen it; a short job is started sooner."""
    return (
        min(cluster.time, math.ceil(_MARGIN * task.seconds / 60) + _LEAST_MINUTES)
        if task.foreseen
        else cluster.time
    )


def save(submission: Submission) -> None:
    """Write what was handed over, with the jobs as they are known now."""
    tasks = [
        {
            "task": e.name, "job": e.job, "shape": dataclasses.asdict(e.shape), "cases": e.cases, "seconds": round(e.seconds, 1),
            "minutes": e.minutes,
        }
        for e in submission.entries
    ]  # fmt: skip
    told = {name: getattr(submission, name) for name in ("kind", "made_at", "host", "minutes", "pid")}
    told["tasks"] = tasks
    store.write_json(submission.folder / _FILE, told)


def with_jobs(submission: Submission, jobs: dict[str, str]) -> Submission:
    """The same with the jobs of these tasks, by name, on disk too."""
    entries = tuple(dataclasses.replace(e, job=jobs.get(e.name, e.job)) for e in submission.entries)
    changed = dataclasses.replace(submission, entries=entries)
    save(changed)
    return changed


def results_of(task: Path) -> Path:
    """The folder of results that a task is for."""
    return task.parent.parent.parent


def _task_to_json(work: Work) -> dict[str, Any]:
    return {
        "settings": dataclasses.asdict(work.settings),
        "machine": dataclasses.asdict(work.machine),
        "cluster": dataclasses.asdict(work.cluster) | {"sbatch": dict(work.cluster.sbatch)},
        "nested": work.nested,
        "environments": [[_listed(around), told] for around, told in work.environments.items()],
        "jobs": [[_item_to_json(item) for item in job] for job in work.jobs],
    }


def read(task: Path) -> Work:
    """A task from its file; a file that is none is a `Refusal`."""
    told = store.read_json(task)
    try:
        settings, cluster, machine = told["settings"], told["cluster"], told["machine"]
        return Work(
            tuple(tuple(map(_item_from_json, job)) for job in told["jobs"]),
            RunSettings(**settings | {"sampling": Sampling(**settings["sampling"])}),
            Machine(**machine | {"untold": tuple(machine["untold"])}),
            Cluster(**cluster | {name: tuple(cluster[name]) for name in LISTS} | {"sbatch": ()}),
            told["nested"],
            {
                (digest, tuple(map(tuple, engine))): around
                for (digest, engine), around in told["environments"]
            },
        )
    except (KeyError, TypeError, ValueError) as error:
        raise Refusal(f"{task.name} is no task of a submission: {error}") from None


def _listed(around: tuple) -> list[Any]:
    digest, engine = around
    return [digest, list(map(list, engine))]


def _item_to_json(item: ScheduledCase) -> dict[str, Any]:
    return {
        "case": to_dict(item.case), "order": item.order, "attempt": item.attempt, "replicate": item.replicate,
        "engine": dict(item.answer.engine), "workload_digest": item.answer.workload_digest,
    }  # fmt: skip


def _item_from_json(told: dict[str, Any]) -> ScheduledCase:
    answer = Examined(from_dict(told["case"]), None, told["workload_digest"], tuple(told["engine"].items()))
    return ScheduledCase(answer, told["order"], told["attempt"], told["replicate"])


class Journal:
    """What happens while a task runs, line by line, each written through at once; a file for every time that it starts."""

    def __init__(self, task: Path) -> None:
        number = 1
        while (path := task.with_suffix(f".run-{number}.jsonl")).exists():
            number += 1
        self.folder = task.with_suffix(f".run-{number}")  # for what workers complain of
        self.folder.mkdir(exist_ok=True)
        self._file: TextIO = path.open("x", encoding="utf-8")

    def say(self, event: str, **words: Any) -> None:
        """Write one event."""
        at = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        self._file.write(json.dumps({"at": at, "event": event} | words) + "\n")
        self._file.flush()


def journal(task: Path) -> Iterator[dict[str, Any]]:
    """Every event of a task, run after run, each with the number of its run; what a death tore is passed over."""
    for number in itertools.count(1):
        try:
            lines = (
                task.with_suffix(f".run-{number}.jsonl")
                .read_text(encoding="utf-8", errors="replace")
                .splitlines()
            )
        except FileNotFoundError:
            return
        for line in lines:
            try:
                event = json.loads(line)
            except ValueError:
                continue
            if isinstance(event, dict) and "event" in event:
                yield event | {"run": number}


def unfinished(task: Path) -> list[tuple[str, int, int]]:
    """What a task began and did not end, as (key, replicate, attempt)."""
    begun: dict[tuple[str, int], int] = {}
    for event in journal(task):
        place = str(event.get("key")), int(event.get("replicate", 0))
        if event["event"] == "begin":
            begun[place] = event["attempt"]
        elif event["event"] == "end":
            begun.pop(place, None)
    return [(key, replicate, attempt) for (key, replicate), attempt in begun.items()]


def job_here() -> str | None:
    """The job that this process is a part of, as a scheduler calls it."""
    array, task = os.environ.get("SLURM_ARRAY_JOB_ID"), os.environ.get("SLURM_ARRAY_TASK_ID")
    return (
        f"{array}_{task}"
        if array and task
        else os.environ.get("SLURM_JOB_ID") or os.environ.get("SUBMITIT_LOCAL_JOB_ID")
    )
