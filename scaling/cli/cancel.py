"""Implement `scaling cancel`: call cluster/job_state.py to cancel tasks of a folder, and print how many."""

import argparse

from rich.console import Console

from scaling.cli.streams import print_lines
from scaling.cluster import job_state, wait
from scaling.core.formatting import count_of
from scaling.results import store


def execute(args: argparse.Namespace, console: Console) -> None:
    """Cancel the pending and running cluster tasks of a results folder, and print how many."""
    folder = store.folder_of(args.folder)
    count = job_state.cancel(job_state.find_tasks(folder))
    if not count:
        print_lines(console, ["no task is pending or running"])
        return
    still_ending = len(wait.wait_until_ended(folder))
    ending = f", {still_ending} of them are still ending" if still_ending else ""
    advice = "finished records are kept, and the same `scaling run` continues"
    print_lines(console, [f"{count_of(count, 'task')} cancelled{ending}; {advice}"])
