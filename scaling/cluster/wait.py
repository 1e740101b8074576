"""Wait for submitted tasks to end, and show their progress."""

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import Console

from scaling.cluster import job_state
from scaling.core.case import Refusal
from scaling.results.store import format_command

_POLL_SECONDS = 3.0  # time between two polls
_RETRY_SECONDS = 300.0  # polling fails if the scheduler does not answer for this time


def poll(results: Path) -> Iterator[list[job_state.TaskState]]:
    """Yield the states of all submitted tasks every few seconds, until no task is pending or running.

    Raise `Refusal` if the first query fails, or if the scheduler does not answer for 300 seconds.
    """
    answered_at = None
    while True:
        try:
            tasks = job_state.find_tasks(results)
            answered_at = time.monotonic()
            yield tasks
            if not any(task.state.live for task in tasks):
                return
        except Refusal:
            if answered_at is None or time.monotonic() - answered_at > _RETRY_SECONDS:
                raise
        time.sleep(_POLL_SECONDS)


def wait_until_done(results: Path, console: Console) -> None:
    """Show the progress of all submitted tasks until no task is pending or running.

    After Ctrl-C, raise `KeyboardInterrupt`. Its message names the commands that show and cancel the tasks.
    """
    last_line = ""
    try:
        with console.status("") as status:
            for tasks in poll(results):
                line = progress_line(tasks)
                status.update(line)
                if line not in ("", last_line) and not console.is_terminal:
                    console.print(line, soft_wrap=True, highlight=False)
                last_line = line
    except KeyboardInterrupt:
        status_command, cancel_command = (format_command(verb, results) for verb in ("status", "cancel"))
        commands = f"`{status_command}` shows the jobs, `{cancel_command}` ends them"
        raise KeyboardInterrupt(f"no longer waiting; {commands}") from None


def progress_line(tasks: Sequence[job_state.TaskState]) -> str:
    """Return text such as "2 running; 10 of 40 cases have ended", or "" if no task is pending or running."""
    live_tasks = [task for task in tasks if task.state.live]
    if not live_tasks:
        return ""
    folders = {task.entry.folder for task in live_tasks}
    submitted = [task for task in tasks if task.entry.folder in folders]
    ended, cases = sum(len(t.journal.ended) for t in submitted), sum(t.entry.cases for t in submitted)
    states = Counter(task.state.name.lower() for task in live_tasks)
    counts = ", ".join(f"{count} {name}" for name, count in states.items())
    return f"{counts}; {ended} of {cases} cases have ended"
