"""Show the progress of `scaling run` and `scaling plan`: a live bar on a terminal, otherwise plain lines."""

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from scaling.cli.streams import make_printable, print_lines
from scaling.core.formatting import format_count, format_duration

_STATUS_COLORS = {"ok": "green", "planned": "green", "skipped": "yellow", "failed": "red"}


@contextlib.contextmanager
def show_preflight(console: Console) -> Iterator[Callable[[int, int], None]]:
    """Yield a function f(done, total) that shows on a terminal how many cases have been checked."""
    with console.status("examining cases") as status:
        yield lambda done, total: status.update(f"examining: {done} of {format_count(total, 'case')}")


@contextlib.contextmanager
def show_run(
    console: Console, labels: dict[str, str], total: int
) -> Iterator[tuple[Callable[[dict[str, Any]], None], Counter]]:
    """Show the progress of a run within this context, and yield (listen, counts).

    `listen(event)` shows an event, such as the end of a case. `counts[status]` is the number of cases that
    ended with this status. `labels` maps case keys to labels. `total` is the number of cases, including cases
    that are skipped or fail without a run.
    """
    counts = Counter[str]()
    bar = Progress(
        SpinnerColumn(), BarColumn(bar_width=12), MofNCompleteColumn(), TimeRemainingColumn(),
        TextColumn("{task.fields[state]}", markup=False),
        console=console, transient=True, disable=not console.is_terminal,
    )  # fmt: skip
    task = bar.add_task("", total=total, state="starting")

    def listen(event: dict[str, Any]) -> None:
        if event["event"] == "waiting":
            print_lines(console, [event["text"]], "yellow")
            return
        case_label = labels.get(event["key"], event["key"])
        if event["event"] == "end":
            counts[event["status"]] += 1
            position = f"[{counts.total()}/{total}]"
            result = make_printable(": ".join(filter(None, (event["reason"], event["text"]))))
            if event["seconds"]:
                result = format_duration(event["seconds"][0])
            if event["status"] not in ("ok", "planned") or not console.is_terminal:
                status = f"{event['status']:7}", _STATUS_COLORS[event["status"]]
                line = Text.assemble(f"{position} ", status, f" {case_label}  {result}")
                console.print(line, soft_wrap=True, highlight=False)
            bar.advance(task)
        done = "planned" if counts["planned"] else "ok"
        state = f"{counts[done]} {done}, {counts['skipped']} skipped, {counts['failed']} failed"
        state += f" · {case_label}" if event["event"] == "begin" else ""
        bar.update(task, state=state[: max(20, console.width - 36)])

    with bar:
        yield listen, counts
