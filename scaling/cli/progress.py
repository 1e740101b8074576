"""Show the progress of `scaling run` and `scaling plan`: a live bar on a terminal, otherwise plain lines."""

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn

from scaling.cli.streams import make_printable, print_lines
from scaling.core.formatting import count_of, format_duration, format_wait

_FIRST_SECONDS, _LONGEST_SECONDS = 5.0, 60.0  # first and longest interval between plain lines
_COLOURS = {"ok": "green", "planned": "green", "skipped": "yellow", "failed": "red"}


@contextlib.contextmanager
def examination(console: Console) -> Iterator[Callable[[int, int], None]]:
    """Yield a callback that shows the progress of the preflight check of the cases of a study.

    The callback takes the number of checked cases and the number of all cases. On a terminal, it updates a
    line. Otherwise, it prints lines at intervals that increase from 5 to 60 seconds.
    """
    next_line, wait = time.monotonic() + _FIRST_SECONDS, _FIRST_SECONDS
    with console.status("examining cases") as status:

        def note(done: int, total: int) -> None:
            nonlocal next_line, wait
            text = f"examining: {done} of {count_of(total, 'case')}"
            status.update(text)
            if not console.is_terminal and done < total and time.monotonic() >= next_line:
                print_lines(console, [text])
                wait = min(2 * wait, _LONGEST_SECONDS)
                next_line = time.monotonic() + wait

        yield note


@contextlib.contextmanager
def display(
    console: Console, names: dict[str, str], total: int, skips: int
) -> Iterator[tuple[Callable[[dict[str, Any]], None], Counter]]:
    """Yield a callback that shows the progress of a run, and a counter of the ended cases by status.

    The callback must be called with each event of the run. On a terminal, it updates a live bar, and prints a
    line for each skipped or failed case. Otherwise, it prints a line for each ended case.

    Args:
        console: The console to print to.
        names: The labels of the cases, as a dict from case key to label.
        total: The number of cases that run.
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
            console.print(make_printable(event["text"]), style="yellow", markup=False, highlight=False)
            return
        name = names.get(event["key"], event["key"])
        if event["event"] == "end":
            counts[event["status"]] += 1
            number = f"[{counts.total()}/{total + skips}]"
            result = make_printable(": ".join(filter(None, (event["reason"], event["text"]))))
            if event["seconds"]:
                result = format_duration(event["seconds"][0])
            if event["status"] not in ("ok", "planned") or not console.is_terminal:
                status = f"[{_COLOURS[event['status']]}]{event['status']:7}[/]"
                line = f"{escape(number)} {status} {escape(name)}  {escape(result)}"
                console.print(line, soft_wrap=True, highlight=False)
            bar.advance(task)
        ran = counts.total() - skips
        seconds = (time.monotonic() - began) / ran * (total - ran) if ran > 0 else None
        done = "planned" if counts["planned"] else "ok"
        state = f"{counts[done]} {done}, {counts['skipped']} skipped, {counts['failed']} failed"
        state += "" if seconds is None else f", about {format_wait(seconds)} left"
        state += f" · {name}" if event["event"] == "begin" else ""
        bar.update(task, state=escape(state)[: max(20, console.width - 50)])

    with bar:
        yield listen, counts
