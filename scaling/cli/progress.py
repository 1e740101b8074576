"""What a person sees while a study runs: a live line where there is a terminal, plain lines where there is none."""

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn

from scaling.core.formatting import count_of, format_duration, format_wait

_FIRST_SECONDS, _LONGEST_SECONDS = 5.0, 60.0  # between plain lines, each twice as long as the one before

_COLOURS = {"ok": "green", "planned": "green", "skipped": "yellow", "failed": "red"}


@contextlib.contextmanager
def examination(console: Console) -> Iterator[Callable[[int, int], None]]:
    """What a person sees while cases are examined: a live line, or plain lines now and then. Takes (done, total)."""
    bar = Progress(
        SpinnerColumn(), TextColumn("examining cases"), BarColumn(bar_width=24), MofNCompleteColumn(),
        console=console, transient=True, disable=not console.is_terminal,
    )  # fmt: skip
    task, due, wait = bar.add_task(""), time.monotonic() + _FIRST_SECONDS, _FIRST_SECONDS

    def note(done: int, total: int) -> None:
        nonlocal due, wait
        bar.update(task, completed=done, total=total)
        if not console.is_terminal and done < total and time.monotonic() >= due:
            console.print(f"examining: {done} of {count_of(total, 'case')}", soft_wrap=True, highlight=False)
            wait = min(2 * wait, _LONGEST_SECONDS)
            due = time.monotonic() + wait

    with bar:
        yield note


@contextlib.contextmanager
def display(
    console: Console, names: dict[str, str], total: int, skips: int
) -> Iterator[tuple[Callable[[dict[str, Any]], None], Counter]]:
    """A listener for events of the launcher, and the counts by status that it keeps. `names`: key -> a case in words."""
    counts: Counter = Counter()
    began = time.monotonic()
    bar = Progress(
        SpinnerColumn(), BarColumn(bar_width=24), MofNCompleteColumn(), TextColumn("{task.fields[state]}"),
        console=console, transient=True, disable=not console.is_terminal,
    )  # fmt: skip
    task = bar.add_task("", total=total + skips, state="starting")

    def listen(event: dict[str, Any]) -> None:
        if event["event"] == "waiting":
            who = ", ".join(map(str, event["by"])) or "one of another user"
            console.print(
                f"[yellow]waiting[/] for cores: another study on this host holds them (process {who})",
                highlight=False,
            )
            return
        name = names.get(event["key"], event["key"])
        if event["event"] == "end":
            counts[event["status"]] += 1
            number = f"[{sum(counts.values())}/{total + skips}]"
            words = (
                format_duration(event["seconds"][0])
                if event["seconds"]
                else ": ".join(filter(None, (event["reason"], event["text"])))
            )
            status = f"[{_COLOURS[event['status']]}]{event['status']:7}[/]"
            if event["status"] not in ("ok", "planned") or not console.is_terminal:
                console.print(
                    f"{escape(number)} {status} {escape(name)}  {escape(words)}",
                    soft_wrap=True,
                    highlight=False,
                )
            bar.advance(task)
        ran = sum(counts.values()) - skips
        left = (time.monotonic() - began) / ran * (total - ran) if ran > 0 else None
        done = "planned" if counts["planned"] else "ok"
        counted = f"{counts[done]} {done}, {counts['skipped']} skipped, {counts['failed']} failed"
        remaining = f", about {format_wait(left)} left" if left is not None else ""
        running = f" · {name}" if event["event"] == "begin" else ""
        bar.update(task, state=escape(f"{counted}{remaining}{running}")[: max(20, console.width - 50)])

    with bar:
        yield listen, counts
