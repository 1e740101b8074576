"""Following: what a user sees who waits for submissions to end.

Knows a console and states; not how jobs are run.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from scaling.cluster import job_state
from scaling.cluster.job_state import TaskState
from scaling.core.case import Refusal

_POLL_SECONDS = 2.0
_SLOWEST_SECONDS = 10.0  # between two looks, after hours
_PATIENCE_SECONDS = 300.0  # with a scheduler that has answered before
_ENDING_SECONDS = 10.0  # for cancelled tasks
_LARGEST_LOAD = 0.2  # of a core, from looking


def poll(results: Path) -> Iterator[list[TaskState]]:
    """Yield every task, until none waits or runs; a `Refusal` if the scheduler stops answering."""
    began = time.monotonic()
    answered = None
    while True:
        asked = time.monotonic()
        try:
            tasks = job_state.look_up(results)
            answered = asked
            yield tasks
            if not any(task.state.live for task in tasks):
                return
        except Refusal:
            if answered is None or asked - answered > _PATIENCE_SECONDS:
                raise
        now = time.monotonic()
        pause = min(_SLOWEST_SECONDS, _POLL_SECONDS + (now - began) / 60)
        time.sleep(max(pause, (now - asked) / _LARGEST_LOAD))


def wait_until_done(results: Path, console: Console, between: Callable[[], None] | None = None) -> bool:
    """Wait until no task of a folder waits or runs, and show the progress; False if the user stops waiting.

    between: called after each look.
    """
    shown = ""
    try:
        with console.status("") as status:
            for tasks in poll(results):
                line = progress_line(tasks)
                status.update(line)
                if line not in ("", shown) and not console.is_terminal:
                    console.print(line, soft_wrap=True, highlight=False)
                shown = line
                if between:
                    between()
    except KeyboardInterrupt:
        folder = escape(str(results))
        commands = f"`scaling status {folder}` shows the jobs, `scaling cancel {folder}` ends them"
        console.print(f"no longer waiting; {commands}", soft_wrap=True, highlight=False)
        return False
    return True


def wait_until_ended(results: Path) -> list[TaskState]:
    """Wait a moment for cancelled tasks to end; return those that have not."""
    deadline = time.monotonic() + _ENDING_SECONDS
    while tasks := [task for task in job_state.look_up(results) if task.state.live]:
        if time.monotonic() > deadline:
            break
        time.sleep(_ENDING_SECONDS / 20)
    return tasks


def progress_line(tasks: Sequence[TaskState]) -> str:
    """Return how many tasks are live, by state, and how many of their cases have ended; empty if none is."""
    live = [task for task in tasks if task.state.live]
    if not live:
        return ""
    folders = {task.entry.folder for task in live}
    submitted = [task for task in tasks if task.entry.folder in folders]
    ended, cases = (
        sum(len(task.journal.ended) for task in submitted),
        sum(task.entry.cases for task in submitted),
    )
    states = Counter(task.state.name.lower() for task in live)
    counts = ", ".join(f"{count} {name}" for name, count in states.items())
    return f"{counts}; {ended} of {cases} cases have ended"
