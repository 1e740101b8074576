"""Print lines without control characters, and discard output after a stream is closed or a pipe breaks."""

import errno
import io
import os
import sys
from collections.abc import Iterable, Sequence
from typing import Any, TextIO

from rich.console import Console

from scaling.core.formatting import format_count


def make_printable(text: str, allowed: str = "") -> str:
    """Replace whitespace with spaces, and other characters that are not printable with question marks.

    The characters in `allowed` are not replaced.
    """
    return "".join(
        char if char.isprintable() or char in allowed else " " if char.isspace() else "?" for char in text
    )


def print_lines(console: Console, lines: Iterable[str], style: str | None = None) -> None:
    """Print lines of text in a rich `style`, without line wrapping, markup or control characters."""
    for line in lines:
        console.print(make_printable(line), style=style, soft_wrap=True, highlight=False, markup=False)


def damaged_notes(damaged: Sequence[str]) -> list[str]:
    """Return notes on `damaged`: on each plan, on unreadable files of records, and on damaged lines."""
    files = [text for text in damaged if text.split(": ")[0].endswith(".jsonl")]  # without a line number
    plans = [text for text in damaged if text.split(": ")[0].endswith(".json")]
    lines = [text for text in damaged if text not in (*files, *plans)]
    fix = "repeat the `scaling run` command to run their cases, and delete the lines to end this note"
    notes = (
        ("cannot be read", files, "more file", "make it readable, or move it away"),
        ("damaged, ignored", lines, "more line", fix),
    )
    return plans + [
        f"{problem}: {texts[0]}{f' and {format_count(len(texts) - 1, noun)}' if texts[1:] else ''}; {fix}"
        for problem, texts, noun, fix in notes
        if texts
    ]


def prepare() -> None:
    """Replace the standard streams of `sys`, so that output to a closed stream or pipe is discarded."""
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            devnull = os.open(os.devnull, os.O_RDWR)  # the lowest free descriptor, which is `descriptor`
            os.set_inheritable(devnull, True)  # like a standard stream
    sys.stdin = sys.stdin or open(0, closefd=False)  # noqa: SIM115
    sys.stdout, sys.stderr = _open_text_stream(1, sys.stdout), _open_text_stream(2, sys.stderr)


def raise_on_broken_pipe() -> None:
    """Make writes to a broken pipe raise `BrokenPipeError`, so that `scaling status --watch` ends."""
    raw = getattr(getattr(sys.stdout, "buffer", None), "raw", None)
    if isinstance(raw, _DiscardingOutput):
        raw.ignores_broken_pipe = False


class _DiscardingOutput(io.FileIO):
    """A raw output stream that discards all output after the first write that fails with `OSError`."""

    ignores_broken_pipe = True  # whether writes to a broken pipe are discarded without an exception

    def write(self, data: Any) -> int:
        try:
            return super().write(data) or 0
        except OSError as error:
            devnull = os.open(os.devnull, os.O_WRONLY)
            os.dup2(devnull, self.fileno())
            os.close(devnull)
            # EIO: the terminal was closed.
            if error.errno in (errno.EPIPE, errno.EIO) and self.ignores_broken_pipe:
                return len(data)
            raise


def _open_text_stream(number: int, stream: TextIO | None) -> io.TextIOWrapper:
    raw = _DiscardingOutput(number, "w", closefd=False)
    encoding = getattr(stream, "encoding", None) or "utf-8"
    return io.TextIOWrapper(
        io.BufferedWriter(raw), encoding, errors="replace", line_buffering=number == 2 or raw.isatty()
    )
