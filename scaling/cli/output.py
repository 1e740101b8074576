"""Print the output of commands: standard streams, lines, notes on damaged files, progress of cases."""

import contextlib
import errno
import io
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TextIO

from rich.console import Console
from rich.text import Text

from scaling.core.formatting import format_count, format_duration
from scaling.results.store import Loaded

_STATUS_COLORS = {"ok": "green", "planned": "green", "skipped": "yellow", "failed": "red"}


def prepare_streams() -> None:
    """Replace the standard streams of `sys`, so that output to a closed stream or pipe is discarded."""
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            devnull = os.open(os.devnull, os.O_RDWR)  # the lowest free descriptor, which is `descriptor`
            os.set_inheritable(devnull, True)  # like a standard stream
    sys.stdin = sys.stdin or open(0, closefd=False)  # noqa: SIM115
    sys.stdout, sys.stderr = _open_text_stream(1, sys.stdout), _open_text_stream(2, sys.stderr)


def _open_text_stream(number: int, stream: TextIO | None) -> io.TextIOWrapper:
    raw = _DiscardingOutput(number, "w", closefd=False)
    encoding = getattr(stream, "encoding", None) or "utf-8"
    return io.TextIOWrapper(
        io.BufferedWriter(raw), encoding, errors="replace", line_buffering=number == 2 or raw.isatty()
    )


class _DiscardingOutput(io.FileIO):
    """A raw output stream that discards all output after the first write that fails with `OSError`."""

    def write(self, data: Any) -> int:
        try:
            return super().write(data) or 0
        except OSError as error:
            devnull = os.open(os.devnull, os.O_WRONLY)
            os.dup2(devnull, self.fileno())
            os.close(devnull)
            # EIO: the terminal was closed. `scaling status --watch` ends when nobody reads its output.
            is_watch = any(word.startswith("--w") for word in sys.argv)  # such as --wat
            if error.errno in (errno.EPIPE, errno.EIO) and not is_watch:
                return len(data)
            raise


def make_console() -> Console:
    """Return a rich console that prints to standard output, with 140 columns if this is not a terminal.

    A terminal with TERM=dumb, such as the shell of Emacs, shows no live progress.
    """
    is_terminal = sys.stdout.isatty()  # with FORCE_COLOR, rich would also draw live progress in a pipe
    is_live, width = is_terminal and os.environ.get("TERM") != "dumb", None if is_terminal else 140
    return Console(file=sys.stdout, force_terminal=is_live, width=width, highlight=False, emoji=False)


def make_printable(text: str, allowed: str = "") -> str:
    """Replace whitespace in `text` by spaces, and characters that cannot be printed by question marks.

    The characters in `allowed` are kept.
    """
    return "".join(
        char if char.isprintable() or char in allowed else " " if char.isspace() else "?" for char in text
    )


def print_lines(console: Console, lines: Iterable[str], style: str | None = None) -> None:
    """Print lines of text in a rich `style`, without line wrapping, markup or control characters."""
    for line in lines:
        console.print(make_printable(line), style=style, soft_wrap=True, highlight=False, markup=False)


def damaged_notes(loaded: Loaded) -> list[str]:
    """Return lines of text about the files of a results folder that are damaged or cannot be read.

    There is one line for each damaged plan, one for all unreadable files, and one for all damaged lines.
    """
    unreadable_files = loaded.unreadable_files
    damaged_plans = [text for text in loaded.damaged if text.split(": ")[0].endswith(".json")]
    damaged_lines = [text for text in loaded.damaged if text not in (*unreadable_files, *damaged_plans)]
    fix = "repeat the `scaling run` command to run their cases, and delete the lines to end this note"
    notes = (
        ("cannot be read", unreadable_files, "more file", "make it readable, or move it away"),
        ("damaged, ignored", damaged_lines, "more line", fix),
    )
    return damaged_plans + [
        f"{problem}: {texts[0]}{f' and {format_count(len(texts) - 1, noun)}' if texts[1:] else ''}; {fix}"
        for problem, texts, noun, fix in notes
        if texts
    ]


@contextlib.contextmanager
def show_preflight(console: Console) -> Iterator[Callable[[int, int], None]]:
    """Show on a terminal how many cases have been checked, and yield a function that updates this number.

    The arguments of the function are the number of checked cases and the number of all cases.
    """
    with console.status("examining cases") as status:
        yield lambda checked, total: status.update(f"examining: {checked} of {format_count(total, 'case')}")


@contextlib.contextmanager
def show_run(
    console: Console, labels: dict[str, str], total: int
) -> Iterator[tuple[Callable[[dict[str, Any]], None], Counter]]:
    """Show the progress of a run until the context exits. Yield a function and a counter.

    The function takes an event, such as the end of a case, and shows it. The counter contains the number of
    ended cases by status, such as "ok". `labels` maps case keys to labels. `total` is the number of cases,
    including cases that do not run.
    """
    counts, bar = Counter[str](), _make_progress_bar(console)
    task = bar.add_task("", total=total, state="starting")

    def listen(event: dict[str, Any]) -> None:
        if event["event"] == "waiting":
            print_lines(console, [event["text"]], "yellow")
            return
        case_label = labels.get(event["key"], event["key"])
        if event["event"] == "end":
            counts[event["status"]] += 1
            if event["status"] not in ("ok", "planned") or not console.is_terminal:
                line = _format_end(event, f"[{counts.total()}/{total}]", case_label)
                console.print(line, soft_wrap=True, highlight=False)
            bar.advance(task)
        done = "planned" if counts["planned"] else "ok"
        state = f"{counts[done]} {done}, {counts['skipped']} skipped, {counts['failed']} failed"
        state += f" · {case_label}" if event["event"] == "begin" else ""
        bar.update(task, state=state[: max(20, console.width - 36)])

    with bar:
        yield listen, counts


def _make_progress_bar(console: Console) -> Any:
    """Return a rich `Progress` that shows the text in the field `state` of its tasks."""
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        SpinnerColumn,
        TextColumn,
        TimeRemainingColumn,
    )

    return Progress(
        SpinnerColumn(), BarColumn(bar_width=12), MofNCompleteColumn(), TimeRemainingColumn(),
        TextColumn("{task.fields[state]}", markup=False),
        console=console, transient=True, disable=not console.is_terminal,
    )  # fmt: skip


def _format_end(event: dict[str, Any], position: str, case_label: str) -> Text:
    """Return a line on an ended case: `position`, such as "[3/40]", status, label, and time or reason."""
    result = make_printable(": ".join(filter(None, (event["reason"], event["text"]))))
    if event["seconds"]:
        result = format_duration(event["seconds"][0])
    status = f"{event['status']:7}", _STATUS_COLORS[event["status"]]
    return Text.assemble(f"{position} ", status, f" {case_label}  {result}")
