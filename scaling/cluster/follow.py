"""Following: what a person sees who waits for submissions to end. Knows a console and outcomes; not how jobs are run."""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from scaling.cluster import job_state, task_progress
from scaling.cluster.job_state import TaskState
from scaling.core.case import Refusal

_POLL_SECONDS = 2.0
_SLOWEST_SECONDS = 10.0  # for those who wait for hours
_PATIENCE_SECONDS = 300.0  # with a scheduler that has answered before
_GOING_SECONDS = 10.0  # for what was cancelled
_SHARE = 0.2  # of a core at most, for looking


def poll(results: Path) -> Iterator[list[TaskState]]:
    """What is known of every task, again and again, until none waits or runs. A `Refusal` if nobody answers, or not any more."""
    began = time.monotonic()
    heard = None
    while True:
        looked = time.monotonic()
        try:
            seen = job_state.look_up(results)
            heard = looked
            yield seen
            if not any(one.state.live for one in seen):
                return
        except Refusal:
            if heard is None or looked - heard > _PATIENCE_SECONDS:
                raise
        now = time.monotonic()
        poll = min(_SLOWEST_SECONDS, _POLL_SECONDS + (now - began) / 60)
        time.sleep(max(poll, (now - looked) / _SHARE))


def until_done(results: Path, console: Console, between: Callable[[], None] | None = None) -> bool:
    """Wait until no task of a folder waits or runs, telling how it goes; False if the person had enough of it.

    between: called after each look.
    """
    said = ""
    try:
        with console.status("") as status:
            for seen in poll(results):
                words = progress_line(seen)
                status.update(words)
                if words not in ("", said) and not console.is_terminal:
                    console.print(words, soft_wrap=True, highlight=False)
                said = words
                if between:
                    between()
    except KeyboardInterrupt:
        folder = escape(str(results))
        words = (
            f"left to itself; `scaling status {folder}` tells how it does, `scaling cancel {folder}` ends it"
        )
        console.print(words, soft_wrap=True, highlight=False)
        return False
    return True


def until_gone(results: Path) -> list[TaskState]:
    """Wait a moment for tasks that were cancelled; those that are still there."""
    deadline = time.monotonic() + _GOING_SECONDS
    while left := [one for one in job_state.look_up(results) if one.state.live]:
        if time.monotonic() > deadline:
            break
        time.sleep(_GOING_SECONDS / 20)
    return left


def progress_line(seen: Sequence[TaskState]) -> str:
    """The tasks that wait or run by state, and how far their submissions have come; nothing if there are none."""
    live = task_progress.progress_of(one for one in seen if one.state.live)
    if not live:
        return ""
    states = Counter(task.seen.state.name.lower() for task in live)
    submitted = {task.seen.submission.folder for task in live}
    whole = task_progress.progress_of(one for one in seen if one.submission.folder in submitted)
    ended, cases = sum(len(task.ended) for task in whole), sum(task.entry.cases for task in whole)
    return f"{', '.join(f'{count} {name}' for name, count in states.items())}; {ended} of {cases} cases have ended"
