"""Implement `scaling cancel`: cancel the cluster tasks of a results folder, and print their number."""

import argparse

from rich.console import Console

from scaling.cli.output import print_lines
from scaling.cluster import task_state
from scaling.core.case import Refusal
from scaling.core.formatting import format_count
from scaling.results import store


def execute(args: argparse.Namespace, console: Console) -> None:
    """Cancel the pending and running cluster tasks of a results folder, and print their number.

    Raise `Refusal` if `scaling run` is submitting tasks, or if some tasks may still run because they could
    not be cancelled.
    """
    folder = store.require_results_folder(args.folder)
    store.refuse_newer_schema(folder)
    with store.lock_folder(folder):  # not while `scaling run` submits tasks
        tasks = task_state.find_tasks(folder)
        cancelled = task_state.cancel_tasks(tasks)
    if cancelled:
        advice = "finished records are kept: repeat the `scaling run` command to continue"
        print_lines(console, [f"{format_count(len(cancelled), 'task')} cancelled; {advice}"])
    if unknown := [task.state.reason for task in tasks if task.state.name == task_state.UNKNOWN]:
        reasons = "; ".join(dict.fromkeys(unknown))
        raise Refusal(
            f"{format_count(len(unknown), 'task')} may still run, and cannot be cancelled here: {reasons}"
        )
    if not cancelled:
        print_lines(console, ["no task is pending or running"])
