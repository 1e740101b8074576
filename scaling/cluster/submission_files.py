"""Read and write the JSON of a submission: submission.json (`Submission`) and task files (`TaskDefinition`).

    jobs/20261121T201500-3f2a/submission.json   settings of the submission, and its tasks with their job IDs
                              0001.json         task file: the cases of a task, and how to run them
                              0001.run-1.jsonl  journal of run 1 of the task (run 2 follows a requeue)
                              0001.run-1/       standard error of the workers of run 1
                              code/             copy of the package
                              log/              standard output and standard error of the jobs

sbatch.py submits the tasks, and job_state.py determines their states.
"""

import contextlib
import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scaling.cluster.cluster_settings import LISTS, SUBMISSIONS, ClusterSettings
from scaling.cluster.pack import PackedTask
from scaling.core.case import Refusal, from_dict, to_dict
from scaling.core.environment import node_name
from scaling.core.timing import Sampling
from scaling.results import store
from scaling.results.read_record import check_entries, check_types
from scaling.workers.machine import Machine, ProcessShape
from scaling.workers.run_settings import RunSettings
from scaling.workers.schedule import PreflightResult, Schedule, ScheduledCase, group_by_process

SETUP_FAILED = "scaling: setup line failed with exit status"  # beginning of a line in the log of a job
_SUBMISSION_FILE = "submission.json"
_STORED_FIELDS = ("kind", "host", "minutes")


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
        """Return the path of a log of the job. `kind` is "out" (stdout) or "err" (stderr)."""
        return self.folder / "log" / f"{self.job}_0_log.{kind}"  # the name that submitit chooses


@dataclass(frozen=True)
class Submission:
    """The content of submission.json: the settings of a submission, and its tasks with their job IDs."""

    folder: Path
    kind: str  # name of the cluster settings, such as slurm or local
    host: str  # host name of the launcher
    minutes: float  # time limit of each task
    entries: tuple[SubmittedTask, ...]

    @property
    def name(self) -> str:
        """Return the job name of all Slurm jobs of the submission, such as "scaling-20261121T201500-3f2a"."""
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
    """Return the submissions of a results folder, the oldest first. Raise `Refusal` if one cannot be read."""
    submissions, path = [], results / SUBMISSIONS / "*" / _SUBMISSION_FILE
    try:
        for folder in sorted((results / SUBMISSIONS).iterdir()):
            path = folder / _SUBMISSION_FILE
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
    """Parse submission.json as a `Submission`. Raise KeyError, TypeError or ValueError if it is malformed."""
    entries = tuple(
        check_types(SubmittedTask(folder, task["task"], task["job"], shape, task["cases"]))
        for task in content["tasks"]
        for shape in [check_types(ProcessShape(**task["shape"]))]
    )
    fields = {name: content[name] for name in _STORED_FIELDS}
    return check_types(Submission(folder, **fields, entries=entries))


def build_submission(
    results: Path, stamp: str, cluster: ClusterSettings, tasks: Sequence[PackedTask]
) -> Submission:
    """Return a new `Submission` with the folder jobs/`stamp` and without job IDs. No file is written."""
    folder = results / SUBMISSIONS / stamp
    entries = tuple(
        SubmittedTask(folder, f"{number:04}", None, task.shape, len(task.scheduled_cases))
        for number, task in enumerate(tasks, 1)
    )
    return Submission(folder, cluster.name, node_name(), cluster.time, entries)


def create_submission(
    results: Path,
    stamp: str,
    cluster: ClusterSettings,
    tasks: Sequence[PackedTask],
    settings: RunSettings,
    schedule: Schedule,
    nested: bool,
) -> Submission:
    """Create a `Submission` and its files in the folder jobs/`stamp`, and return it.

    The files are submission.json and the task files. `nested` states whether all device counts run in one
    job.
    """
    submission = build_submission(results, stamp, cluster, tasks)
    submission.folder.mkdir(parents=True)
    for entry, task in zip(submission.entries, tasks, strict=True):
        task_content = {
            "settings": dataclasses.asdict(settings),
            "machine": dataclasses.asdict(schedule.machine),
            "cluster": dataclasses.asdict(cluster),
            "nested": nested,
            "environments": list(schedule.environments.items()),
            "jobs": [
                [_item_to_json(item) for item in session]
                for session in group_by_process(task.scheduled_cases)
            ],
        }
        store.write_json(entry.path, task_content)
    write_submission(submission)
    return submission


def write_submission(submission: Submission) -> None:
    """Write the file submission.json of a submission."""
    tasks = [
        {"task": task.name, "job": task.job, "shape": dataclasses.asdict(task.shape), "cases": task.cases}
        for task in submission.entries
    ]
    content = {name: getattr(submission, name) for name in _STORED_FIELDS} | {"tasks": tasks}
    store.write_json(submission.folder / _SUBMISSION_FILE, content)


def save_job_ids(submission: Submission, jobs: dict[str, str]) -> Submission:
    """Add {task name: job ID} to a submission, update submission.json, and return the updated submission."""
    entries = submission.entries
    entries = tuple(dataclasses.replace(entry, job=jobs.get(entry.name, entry.job)) for entry in entries)
    updated = dataclasses.replace(submission, entries=entries)
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
    """Convert the content of a task file to a `TaskDefinition`.

    Raise AttributeError, KeyError, TypeError or ValueError if the content is malformed.
    """
    settings, cluster, machine = content["settings"], content["cluster"], content["machine"]
    lists = {name: tuple(cluster[name]) for name in LISTS} | {"sbatch": tuple(map(tuple, cluster["sbatch"]))}
    environments = {
        (digest, tuple(map(tuple, engine))): environment
        for (digest, engine), environment in content["environments"]
    }
    definition = TaskDefinition(
        tuple(_item_from_json(item) for session in content["jobs"] for item in session),
        check_types(RunSettings(**settings | {"sampling": check_types(Sampling(**settings["sampling"]))})),
        check_types(Machine(**machine | {"untold": tuple(machine["untold"])})),
        check_types(ClusterSettings(**cluster | lists)),
        content["nested"],
        environments,
    )
    for environment in check_types(definition).environments.values():
        check_entries("environment", environment)
    if not {item.preflight.environment_key for item in definition.scheduled_cases} <= environments.keys():
        raise ValueError("a case has no environment")
    return definition


def _item_to_json(item: ScheduledCase) -> dict[str, Any]:
    return {
        "case": to_dict(item.case), "order": item.order, "attempt": item.attempt,
        "replicate": item.replicate, "engine": dict(item.preflight.engine),
        "workload_digest": item.preflight.workload_digest,
    }  # fmt: skip


def _item_from_json(content: dict[str, Any]) -> ScheduledCase:
    case, engine = from_dict(content["case"]), tuple(content["engine"].items())
    preflight = check_types(PreflightResult(case, None, content["workload_digest"], engine))
    return check_types(ScheduledCase(preflight, content["order"], content["attempt"], content["replicate"]))
