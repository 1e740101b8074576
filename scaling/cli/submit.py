"""Submit the missing cases of `scaling run` as cluster tasks, wait for them, and resubmit lost cases."""

import dataclasses
import math

from rich.console import Console

from scaling.cli.streams import print_lines
from scaling.cli.study_run import StudyRun, find_task_states, plan_run
from scaling.cluster import pack, sbatch, wait
from scaling.cluster.cluster_settings import LOCAL
from scaling.core.formatting import format_count, format_wait
from scaling.results import store
from scaling.workers import supervise
from scaling.workers.history import REQUEST_NOT_MET
from scaling.workers.schedule import Schedule


def submit_and_wait(run: StudyRun, console: Console) -> tuple[Schedule, store.Loaded, bool]:
    """Submit the cases that have no result. Return (schedule, records, is_incomplete).

    If `run.wait` is true, wait until the tasks end, and submit interrupted cases again. `schedule` is the
    latest schedule. `records` contains the records of the results folder, as they were before the wait if
    tasks were cancelled. `is_incomplete` is true if tasks are queued or were cancelled.
    """
    for round_number in range(run.cluster.attempts or 1):
        run = dataclasses.replace(run, retry=run.retry and round_number == 0)
        with store.locked(run.folder):
            schedule, loaded = plan_run(run, console)
            if round_number > 0:  # the first round has recorded the failures in preflight
                schedule = dataclasses.replace(schedule, failures=())
            submitted = _submit(run, schedule, loaded, console)
        if not submitted or not run.wait:
            return schedule, store.load(run.folder), submitted
        wait.wait_until_done(run.folder, console)
        tasks = find_task_states(run)
        latest_tasks = [task for task in tasks if task.entry.folder == tasks[-1].entry.folder]
        if any(task.state.name == "CANCELLED" for task in latest_tasks):
            console.print("cancelled: repeat the command to continue")
            return schedule, loaded, True
        attempts = (attempt for task in latest_tasks for attempt in task.journal.attempts)
        if any(attempt.reason == REQUEST_NOT_MET for attempt in attempts):
            return schedule, store.load(run.folder), False
    with store.locked(run.folder):
        return *plan_run(dataclasses.replace(run, retry=False), console), False


def _pack_tasks(run: StudyRun, schedule: Schedule, loaded: store.Loaded) -> list[pack.PackedTask]:
    is_local = run.cluster.name == LOCAL  # a single task
    budget = math.inf if is_local else 60 * run.cluster.time * run.cluster.fill
    return pack.pack(schedule, run.settings, loaded.records, budget, run.nested or is_local)


def print_scripts(run: StudyRun, schedule: Schedule, loaded: store.Loaded, console: Console) -> None:
    """Print the sbatch scripts that would submit the cases of a schedule."""
    tasks = _pack_tasks(run, schedule, loaded) if schedule.sessions else []
    for text in sbatch.format_scripts(run.folder, run.cluster, tasks, schedule.machine):
        console.print(f"\n{text}", markup=False, soft_wrap=True)


def _submit(run: StudyRun, schedule: Schedule, loaded: store.Loaded, console: Console) -> bool:
    """Submit the cases of a schedule that can run, and write records of its skipped and failed cases.

    Return whether any case is queued, including the cases of earlier submissions.
    """
    without_runs = dataclasses.replace(schedule, sessions=())
    supervise.run_schedule(without_runs, run.settings, run.folder, None, lambda _: None)
    if not schedule.sessions:
        return bool(schedule.queued)
    tasks = _pack_tasks(run, schedule, loaded)
    submission = sbatch.submit(run.folder, run.cluster, tasks, run.settings, schedule, run.nested)
    jobs = list(dict.fromkeys((entry.job or "").partition("_")[0] for entry in submission.entries))
    job_names = f"{'jobs' if len(jobs) > 1 else 'job'} {', '.join(jobs)}"
    longest, limit = max(task.seconds for task in tasks), run.cluster.time
    sizes = format_count(len({task.shape for task in tasks}), "allocation size")
    counts = f"{format_count(len(tasks), 'task')} with {sizes}"
    duration = f"each about {format_wait(longest)} or less"
    progress_advice = f"`{store.format_command('status', run.folder)}` shows their progress"
    print_lines(console, [f"submitted {counts} as {job_names}, {duration}; {progress_advice}"])
    if longest > 60 * limit:
        warning = f"one of them may take {format_wait(longest)}, longer than cluster.time={limit:g} minutes"
        print_lines(console, [f"{warning}: cluster.time={math.ceil(1.5 * longest / 60)} is enough"], "yellow")
    return True
