"""Implement `scaling cancel`: cancel the cluster tasks of a results folder, and print their number."""

import argparse

from rich.console import Console

from scaling.cli.output import print_lines
from scaling.cluster import task_state
from scaling.cluster.cluster_settings import LOCAL
from scaling.core.case import Refusal
from scaling.core.formatting import format_count
from scaling.results import store


def execute(args: argparse.Namespace, console: Console) -> None:
    """Cancel the pending and running cluster tasks of a results folder, and print their number.

    Raise `Refusal` if `scaling run` is submitting tasks, or if some tasks could not be found or cancelled.
    """
    folder = store.require_results_folder(args.folder)
    store.refuse_newer_schema(folder)
    with store.locked(folder):  # not while `scaling run` submits tasks
        tasks, problem = task_state.try_find_tasks(folder)
        cancelled = task_state.cancel(tasks)
    if cancelled:
        advice = "finished records are kept: repeat the `scaling run` command to continue"
        print_lines(console, [f"{format_count(len(cancelled), 'task')} cancelled; {advice}"])
    if others := [task for task in tasks if task.may_run and task not in cancelled]:
        hosts = ", ".join(sorted({task.submission.host for task in others if task.submission.kind == LOCAL}))
        fix = f"run `scaling cancel` on {hosts}" if hosts else "repeat this as their user when Slurm answers"
        text = f"{format_count(len(others), 'task')} not visible from this host: {fix}"
        problem = f"{problem}; {text}" if problem else text
    if problem:
        raise Refusal(problem)
    if not cancelled:
        print_lines(console, ["no task is pending or running"])
