"""A submission: what was submitted to a cluster, in a folder within the results, and what its tasks report.

    jobs/20261121T201500-3f2a/submission.json   what was asked for, and every task with its job
                              0001.json         a task: its cases, and how to run them
                              0001.run-1.jsonl  what happened when it ran, a line each; run-2 once requeued
                              0001.run-1/       the standard error of its workers
                              code/             the package as it was
                              log/              what submitit and the scheduler write

Knows files; not who runs a task, nor what becomes of it (job_state.py).
"""

import dataclasses
import datetime
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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

SETUP_FAILED = "scaling: setup line failed with exit status"  # the line that a job writes before it ends
_FILE = "submission.json"
_FIELDS = ("kind", "made_at", "host", "minutes")
_YOUNG_SECONDS = 300.0
_MARGIN = 2.0  # factor on the time that a plan predicts
_LEAST_MINUTES = 10  # added to it: with less, submitit takes a preemption for a time limit


@dataclass(frozen=True)
class SubmittedTask:
    """A task of a submission: the name of its file, its job, and what it is."""

    folder: Path
    name: str
    job: str | None  # None: it was not submitted
    shape: ProcessShape
    cases: int
    seconds: float  # as predicted
    minutes: float  # time limit

    @property
    def path(self) -> Path:
        """Return the file of the task."""
        return self.folder / f"{self.name}.json"


@dataclass(frozen=True)
class Submission:
    """What was submitted to a cluster at one time."""

    folder: Path
    kind: str  # name of the cluster settings
    made_at: str  # UTC, ISO 8601
    host: str
    minutes: float  # time limit of a task whose time no plan predicts
    entries: tuple[SubmittedTask, ...]
    pid: int | None = None  # of the process that submits it, on `host`

    @property
    def young(self) -> bool:
        """Return whether the process that submits it may still be doing so."""
        if self.pid and self.host == node_name() and not Path(f"/proc/{self.pid}").exists():
            return False
        age = datetime.datetime.now(datetime.UTC) - datetime.datetime.fromisoformat(self.made_at)
        return age.total_seconds() < _YOUNG_SECONDS

    @property
    def name(self) -> str:
        """Return the name of its jobs."""
        return f"scaling-{self.folder.name}"


@dataclass(frozen=True)
class Work:
    """The content of the file of a task: what to run, and how."""

    jobs: tuple[tuple[ScheduledCase, ...], ...]
    settings: RunSettings
    machine: Machine
    cluster: Cluster
    nested: bool
    environments: dict[tuple, dict[str, Any]]  # as planned, by `Examined.environment_key`

    @property
    def items(self) -> list[ScheduledCase]:
        """Return all cases."""
        return [item for job in self.jobs for item in job]


def all_of(results: Path) -> list[Submission]:
    """Return every submission of a results folder, the oldest first, without those that cannot be read."""
    found = []
    for path in sorted(results.glob(f"{SUBMISSIONS}/*/{_FILE}")):
        content = store.read_json(path)
        try:
            entries = tuple(
                SubmittedTask(
                    path.parent, task["task"], task["job"], ProcessShape(**task["shape"]), task["cases"],
                    task["seconds"], task.get("minutes", content["minutes"]),
                )
                for task in content["tasks"]
            )  # fmt: skip
            fields = {name: content[name] for name in _FIELDS}
            found.append(Submission(path.parent, entries=entries, pid=content.get("pid"), **fields))
        except (KeyError, TypeError):
            continue
    return found


def prepare(results: Path, stamp: str, cluster: Cluster, tasks: Sequence[PackedTask]) -> Submission:
    """Return a submission of tasks that have no job yet; nothing is written."""
    folder = results / SUBMISSIONS / stamp
    limits = dict[ProcessShape, float]()  # an array, which is of one shape, has one limit
    for task in tasks:
        limits[task.shape] = max(time_limit(task, cluster), limits.get(task.shape, 0.0))
    entries = tuple(
        SubmittedTask(
            folder, f"{number:04}", None, task.shape, len(task.items), task.seconds, limits[task.shape]
        )
        for number, task in enumerate(tasks, 1)
    )
    return Submission(
        folder,
        cluster.name,
        datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        node_name(),
        cluster.time,
        entries,
        os.getpid(),
    )


def create(
    results: Path,
    stamp: str,
    cluster: Cluster,
    tasks: Sequence[PackedTask],
    settings: RunSettings,
    plan: Schedule,
    nested: bool,
) -> Submission:
    """Write a submission whose tasks have no job yet."""
    made = prepare(results, stamp, cluster, tasks)
    made.folder.mkdir(parents=True)
    for entry, task in zip(made.entries, tasks, strict=True):
        work = Work(task.jobs, settings, plan.machine, cluster, nested, plan.environments)
        store.write_json(entry.path, _to_json(work))
    save(made)
    return made


def time_limit(task: PackedTask, cluster: Cluster) -> float:
    """Return the time limit of a task in minutes: that of the cluster, or less if a plan predicts its time.

    A short job starts sooner.
    """
    if not task.foreseen:
        return cluster.time
    return min(cluster.time, math.ceil(_MARGIN * task.seconds / 60) + _LEAST_MINUTES)


def save(submission: Submission) -> None:
    """Write what was submitted, with the jobs as they are known now."""
    content = {name: getattr(submission, name) for name in (*_FIELDS, "pid")}
    content["tasks"] = [
        {
            "task": task.name, "job": task.job, "shape": dataclasses.asdict(task.shape), "cases": task.cases,
            "seconds": round(task.seconds, 1), "minutes": task.minutes,
        }
        for task in submission.entries
    ]  # fmt: skip
    store.write_json(submission.folder / _FILE, content)


def save_jobs(submission: Submission, jobs: dict[str, str]) -> Submission:
    """Write and return the submission with the jobs of these tasks, by name."""
    entries = tuple(dataclasses.replace(e, job=jobs.get(e.name, e.job)) for e in submission.entries)
    changed = dataclasses.replace(submission, entries=entries)
    save(changed)
    return changed


def _to_json(work: Work) -> dict[str, Any]:
    """Return the content of the file of a task."""
    return {
        "settings": dataclasses.asdict(work.settings),
        "machine": dataclasses.asdict(work.machine),
        "cluster": dataclasses.asdict(work.cluster) | {"sbatch": dict(work.cluster.sbatch)},
        "nested": work.nested,
        "environments": list(work.environments.items()),
        "jobs": [
            [
                {
                    "case": to_dict(item.case), "order": item.order, "attempt": item.attempt,
                    "replicate": item.replicate, "engine": dict(item.answer.engine),
                    "workload_digest": item.answer.workload_digest,
                }
                for item in job
            ]
            for job in work.jobs
        ],
    }  # fmt: skip


def read(task: Path) -> Work:
    """Return the work of a task from its file; a `Refusal` if the file has another content."""
    content = store.read_json(task)
    try:
        settings, cluster, machine = content["settings"], content["cluster"], content["machine"]
        return Work(
            tuple(tuple(map(_item_from_json, job)) for job in content["jobs"]),
            RunSettings(**settings | {"sampling": Sampling(**settings["sampling"])}),
            Machine(**machine | {"untold": tuple(machine["untold"])}),
            Cluster(**cluster | {name: tuple(cluster[name]) for name in LISTS} | {"sbatch": ()}),
            content["nested"],
            {(digest, tuple(map(tuple, engine))): each for (digest, engine), each in content["environments"]},
        )
    except (KeyError, TypeError, ValueError) as error:
        raise Refusal(f"{task.name} is no task of a submission: {error}") from None


def _item_from_json(content: dict[str, Any]) -> ScheduledCase:
    engine = tuple(content["engine"].items())
    answer = Examined(from_dict(content["case"]), None, content["workload_digest"], engine)
    return ScheduledCase(answer, content["order"], content["attempt"], content["replicate"])
