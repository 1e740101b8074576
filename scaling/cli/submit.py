"""Submit the missing cases of `scaling run` as cluster tasks, wait for them, and print scripts (dry run)."""

import dataclasses
import math
from pathlib import Path

from rich.console import Console

from scaling.cli.output import print_lines
from scaling.cli.study_run import StudyRun, plan_run
from scaling.cluster import pack, sbatch, task_state
from scaling.cluster.cluster_settings import LOCAL
from scaling.core.formatting import format_count, format_wait
from scaling.results import store
from scaling.workers import supervise
from scaling.workers.schedule import Schedule


def submit_and_wait(run: StudyRun, console: Console) -> tuple[Schedule, store.Loaded, bool]:
    """Submit the cases that have no result. Return (schedule, records, is_waiting).

    If `run.wait` is true, wait until the tasks end, and write a "failed" record for each case that was lost.
    `schedule` is the latest schedule, and `records` are all records of the results folder. `is_waiting` is
    true if tasks are queued, and this process does not wait for them.
    """
    with store.locked(run.folder):
        schedule, loaded = plan_run(run, console)
        submitted = _submit(run, schedule, loaded, console)
    if not submitted or not run.wait:
        return schedule, store.load(run.folder), submitted
    _wait_until_done(run.folder, console)
    with store.locked(run.folder):
        schedule, loaded = plan_run(dataclasses.replace(run, retry=False), console)
    if schedule.missing:
        print_lines(console, ["repeat the command to run these cases; finished records are kept"])
    return schedule, loaded, False


def _wait_until_done(folder: Path, console: Console) -> None:
    """Show the progress of all submitted tasks until no task is pending or running.

    After Ctrl-C, raise `KeyboardInterrupt`. Its message names the commands that show and cancel the tasks.
    """
    last_line = ""
    try:
        with console.status("") as status:
            for tasks in task_state.poll(folder):
                line = task_state.progress_line(tasks)
                status.update(line)
                if line not in ("", last_line) and not console.is_terminal:
                    console.print(line, soft_wrap=True, highlight=False)
                last_line = line
    except KeyboardInterrupt:
        status_command, cancel_command = (store.format_command(verb, folder) for verb in ("status", "cancel"))
        commands = f"`{status_command}` shows the jobs, `{cancel_command}` ends them"
        raise KeyboardInterrupt(f"no longer waiting; {commands}") from None


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
