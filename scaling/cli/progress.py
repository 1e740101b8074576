"""Show the progress of a study: a live progress bar on a terminal, otherwise plain lines."""

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn

from scaling.core.formatting import count_of, format_duration, format_wait

_FIRST_SECONDS, _LONGEST_SECONDS = 5.0, 60.0  # intervals between plain lines, doubled each time

_COLOURS = {"ok": "green", "planned": "green", "skipped": "yellow", "failed": "red"}


@contextlib.contextmanager
def examination(console: Console) -> Iterator[Callable[[int, int], None]]:
    """Context manager that shows the progress of preflight checks, and yields a callback.

    The callback must be called with (number of checked cases, number of all cases). The progress is shown as
    a live bar on a terminal, and otherwise as plain lines at increasing intervals.
    """
    bar = Progress(
        SpinnerColumn(), TextColumn("examining cases"), BarColumn(bar_width=24), MofNCompleteColumn(),
        console=console, transient=True, disable=not console.is_terminal,
    )  # fmt: skip
    task, next_line, wait = bar.add_task(""), time.monotonic() + _FIRST_SECONDS, _FIRST_SECONDS

    def note(done: int, total: int) -> None:
        nonlocal next_line, wait
        bar.update(task, completed=done, total=total)
        if not console.is_terminal and done < total and time.monotonic() >= next_line:
            console.print(f"examining: {done} of {count_of(total, 'case')}", soft_wrap=True, highlight=False)
            wait = min(2 * wait, _LONGEST_SECONDS)
            next_line = time.monotonic() + wait

    with bar:
        yield note


@contextlib.contextmanager
def display(
    console: Console, names: dict[str, str], total: int, skips: int
) -> Iterator[tuple[Callable[[dict[str, Any]], None], Counter]]:
    """Context manager that shows the progress of a run, as a live bar or as one line per case.

    The live bar is shown on a terminal only. The context manager yields two values: a callback, which must be
    called with each event of the run, and a counter of the ended cases by status.

    Args:
        names: A dict from the key of a case to the label to show.
        total: The number of cases to run.
        skips: The number of cases that are recorded without running.
    """
    counts, began = Counter[str](), time.monotonic()
    bar = Progress(
        SpinnerColumn(), BarColumn(bar_width=24), MofNCompleteColumn(), TextColumn("{task.fields[state]}"),
        console=console, transient=True, disable=not console.is_terminal,
    )  # fmt: skip
    task = bar.add_task("", total=total + skips, state="starting")

    def listen(event: dict[str, Any]) -> None:
        if event["event"] == "waiting":
            who = ", ".join(map(str, event["by"])) or "of another user"
            console.print(
                f"[yellow]waiting[/] for cores: another study on this host holds them (process {who})",
                highlight=False,
            )
            return
        name = names.get(event["key"], event["key"])
        if event["event"] == "end":
            counts[event["status"]] += 1
            number = f"[{sum(counts.values())}/{total + skips}]"
            result = format_duration(event["seconds"][0]) if event["seconds"] else ""
            result = result or ": ".join(filter(None, (event["reason"], event["text"])))
            if event["status"] not in ("ok", "planned") or not console.is_terminal:
                status = f"[{_COLOURS[event['status']]}]{event['status']:7}[/]"
                line = f"{escape(number)} {status} {escape(name)}  {escape(result)}"
                console.print(line, soft_wrap=True, highlight=False)
            bar.advance(task)
        ran = sum(counts.values()) - skips
        wait = format_wait((time.monotonic() - began) / ran * (total - ran)) if ran > 0 else ""
        done = "planned" if counts["planned"] else "ok"
        state = f"{counts[done]} {done}, {counts['skipped']} skipped, {counts['failed']} failed"
        state += f", about {wait} left" if wait else ""
        state += f" · {name}" if event["event"] == "begin" else ""
        bar.update(task, state=escape(state)[: max(20, console.width - 50)])

    with bar:
        yield listen, counts
