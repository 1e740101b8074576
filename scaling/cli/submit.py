"""Cluster step of `scaling run`: pack the missing cases into tasks, submit, wait, and resubmit lost cases.

This module is imported only if the cluster accepts submissions or the results folder contains submissions.
"""

import dataclasses
import math
import shutil
from collections.abc import Callable, Sequence

from rich.console import Console
from rich.markup import escape

from scaling.cli.run import StudyRun, plan_run
from scaling.cluster import job_state, lost_cases, pack, sbatch, wait
from scaling.cluster.cluster_settings import LOCAL, SLURM, SUBMISSIONS
from scaling.core import store
from scaling.core.formatting import count_of, format_wait
from scaling.workers import schedule, supervise
from scaling.workers.schedule import PreflightResult


def submit_and_wait(
    job: StudyRun,
    answers: Sequence[PreflightResult],
    console: Console,
    between_groups: Callable[[], None] | None,
) -> tuple[schedule.Schedule, store.Loaded, bool]:
    """Submit the cases that have no result yet. If `job.wait` is set, wait and resubmit interrupted cases.

    An interrupted case failed for a reason that another attempt may avoid, such as preemption.

    Args:
        between_groups: A callback that is called while waiting for Slurm jobs, or None.

    Returns:
        The most recent schedule.
        The records of the results folder.
        Whether the results are incomplete because tasks are in the queue or were canceled.
    """
    away = between_groups if job.cluster.name == SLURM else None  # a local task runs on this machine
    for again in range(job.cluster.attempts or 1):
        job = dataclasses.replace(job, retry=job.retry and not again)  # retry only in the first round
        with store.locked(job.folder):
            made, loaded = plan_run(job, answers, [job.folder], console)
            if again:  # the first round has recorded the failures in preflight
                made = dataclasses.replace(made, failures=())
            submitted = _submit(job, made, loaded, console)
        if not submitted or not job.wait or not wait.wait_until_done(job.folder, console, away):
            return made, store.load(job.folder), submitted
        tasks = _find_task_states(job)
        last = [task for task in tasks if task.entry.folder == tasks[-1].entry.folder]
        if any(task.state.name == "CANCELLED" for task in last):
            console.print("cancelled; the same command continues")
            return made, loaded, True
        if any(a.reason == schedule.REQUEST_NOT_MET for task in last for a in task.journal.attempts):
            return made, store.load(job.folder), False
    with store.locked(job.folder):
        return *plan_run(dataclasses.replace(job, retry=False), answers, [job.folder], console), False


def settle_submissions(job: StudyRun, console: Console) -> set[tuple[str, int]]:
    """Write a "failed" record for each case that an ended job left without a record.

    Returns:
        The (case key, replicate number) of each case in a task that may still run.
    """
    tasks = _find_task_states(job)
    if lost := lost_cases.record_lost_cases(job.folder, tasks):
        console.print(f"{count_of(lost, 'case')} of earlier jobs did not finish; the records say why")
    if unknown := sum(task.state.name == job_state.UNKNOWN for task in tasks):
        text = f"{count_of(unknown, 'task')} cannot be queried from this host, and may still run"
        line = escape(f"{text}; if not, remove {job.folder / SUBMISSIONS}")
        console.print(line, soft_wrap=True, highlight=False)
    return job_state.queued_cases(tasks)


def queued_cases(job: StudyRun) -> set[tuple[str, int]]:
    """Return (case key, replicate number) of each case in a task that may still run. No record is written."""
    return job_state.queued_cases(_find_task_states(job, dry_run=True))


def _find_task_states(job: StudyRun, dry_run: bool = False) -> list[job_state.TaskState]:
    is_required = job.cluster.name == SLURM and not dry_run
    return job_state.find_tasks(job.folder, query_scheduler=is_required or shutil.which("squeue") is not None)


def _pack_tasks(job: StudyRun, made: schedule.Schedule, loaded: store.Loaded) -> list[pack.PackedTask]:
    if job.cluster.name == LOCAL:  # a single task
        return pack.pack(made, job.settings, loaded.records, math.inf, nested=True)
    budget = 60 * job.cluster.time * job.cluster.fill
    return pack.pack(made, job.settings, loaded.records, budget, job.nested)


def print_scripts(made: schedule.Schedule, job: StudyRun, console: Console) -> None:
    """Print the sbatch scripts that would submit the cases of the schedule `made`."""
    tasks = _pack_tasks(job, made, store.load(job.folder)) if made.sessions else []
    for text in sbatch.format_scripts(job.folder, job.cluster, tasks, made.machine):
        console.print(f"\n{text}", markup=False, soft_wrap=True, highlight=False)


def _submit(job: StudyRun, made: schedule.Schedule, loaded: store.Loaded, console: Console) -> bool:
    """Write records of skipped and failed cases, submit the others, and return whether any case is queued."""
    supervise.run_schedule(
        dataclasses.replace(made, sessions=()), job.settings, job.folder, None, lambda _: None
    )
    if not made.sessions:
        return bool(made.queued)
    tasks = _pack_tasks(job, made, loaded)
    submission = sbatch.submit(job.folder, job.cluster, tasks, job.settings, made, job.nested)
    jobs = ", ".join(dict.fromkeys((entry.job or "").partition("_")[0] for entry in submission.entries))
    longest, limit = max(task.seconds for task in tasks), job.cluster.time
    lines = [
        f"submitted {count_of(len(tasks), 'task')} of "
        f"{count_of(len({task.shape for task in tasks}), 'shape')} as job {jobs}, each about "
        f"{format_wait(longest)} or less; `scaling status {escape(str(job.folder))}` shows their progress"
    ]
    if longest > 60 * limit:
        words = f"one of them may take {format_wait(longest)}, longer than cluster.time={limit:g} minutes"
        lines.append(f"[yellow]{words}: cluster.time={math.ceil(1.5 * longest / 60)} is enough[/]")
    for line in lines:
        console.print(line, soft_wrap=True, highlight=False)
    return True
