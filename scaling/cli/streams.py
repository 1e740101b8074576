"""Print lines of text, and make stdin, stdout and stderr safe to use if they are closed.

Output to a closed stream or a broken pipe is discarded, so that the command continues and its exit status is
that of its work.
"""

import io
import os
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from rich.console import Console


def make_printable(text: str, kept: str = "") -> str:
    """Return text that cannot control a terminal, such as the message of an exception of a user's module.

    White space, such as a line break, becomes a space. Other characters that cannot be printed become "?".
    The characters in `kept` are unchanged.
    """
    return "".join(
        char if char.isprintable() or char in kept else " " if char.isspace() else "?" for char in text
    )


def print_lines(console: "Console", lines: Iterable[str]) -> None:
    """Print lines as plain text. Rich neither wraps nor highlights them, and does not interpret markup.

    Characters that cannot be printed are replaced, see `make_printable`.
    """
    from rich.markup import escape

    for line in lines:
        console.print(escape(make_printable(line)), soft_wrap=True, highlight=False)


def print_damaged(console: "Console", damaged: Iterable[str]) -> None:
    """Print the lines of records that cannot be read, each as "file:line: reason"."""
    print_lines(console, (f"damaged, ignored: {line}" for line in damaged))


def prepare() -> None:
    """Replace the standard streams of `sys`, so that output to a closed stream or pipe is discarded."""
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            # `os.open` returns the lowest free descriptor, which is `number`.
            os.open(os.devnull, os.O_RDWR)
    sys.stdin = sys.stdin or open(0, closefd=False)  # noqa: SIM115
    sys.stdout, sys.stderr = _open_text_stream(1, sys.stdout), _open_text_stream(2, sys.stderr)


def stop_with_reader() -> None:
    """Make writes to standard output raise `BrokenPipeError` after the reader has closed the pipe.

    A command that may run forever, such as `scaling status --watch`, must call this function, so that it ends
    with its reader.
    """
    raw = getattr(getattr(sys.stdout, "buffer", None), "raw", None)
    if isinstance(raw, _DiscardingOutput):
        raw.ignores_broken_pipe = False


class _DiscardingOutput(io.FileIO):
    """A raw output stream on a file descriptor that discards all output after a failed write.

    The first failed write raises its error, except for a broken pipe if `ignores_broken_pipe` is true.
    """

    ignores_broken_pipe = True

    def write(self, data: Any) -> int:
        try:
            return super().write(data) or 0
        except OSError as error:
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, self.fileno())
            os.close(null)
            if isinstance(error, BrokenPipeError) and self.ignores_broken_pipe:
                return len(data)
            raise


def _open_text_stream(number: int, stream: TextIO | None) -> io.TextIOWrapper:
    """Return a text stream on a file descriptor that discards output after a failed write."""
    raw = _DiscardingOutput(number, "w", closefd=False)
    encoding = getattr(stream, "encoding", None) or "utf-8"
    return io.TextIOWrapper(
        io.BufferedWriter(raw), encoding, errors="replace", line_buffering=number == 2 or raw.isatty()
    )
