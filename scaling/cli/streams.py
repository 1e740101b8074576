"""Print plain lines, and replace stdin, stdout and stderr so that a command continues if they are closed.

Output to a closed stream or a broken pipe is discarded. The command continues, and its exit status remains
meaningful.
"""

import io
import os
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from rich.console import Console


def print_lines(console: "Console", lines: Iterable[str]) -> None:
    """Print each line as plain text, without wrapping or markup."""
    from rich.markup import escape

    for line in lines:
        console.print(escape(line), soft_wrap=True, highlight=False)


def prepare() -> None:
    """Replace the standard streams, so that output to a closed stream or pipe is discarded without error."""
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            # `os.open` returns the lowest free descriptor, so that no other file takes this one later.
            os.open(os.devnull, os.O_RDWR)
    sys.stdin = sys.stdin or open(0, closefd=False)  # noqa: SIM115
    sys.stdout, sys.stderr = _open_text_stream(1, sys.stdout), _open_text_stream(2, sys.stderr)


def stop_with_reader() -> None:
    """Make writes to standard output raise `BrokenPipeError` after the reader has closed the pipe.

    A command that may run forever, such as `scaling status --watch`, must call this function.
    """
    raw = getattr(getattr(sys.stdout, "buffer", None), "raw", None)
    if isinstance(raw, _DiscardingOutput):
        raw.patient = False


class _DiscardingOutput(io.FileIO):
    """A raw output stream on a file descriptor that discards all output after a failed write.

    If `patient` is set, a broken pipe raises no error. Other errors are raised once.
    """

    patient = True

    def write(self, data: Any) -> int:
        try:
            return super().write(data) or 0
        except OSError as error:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self.fileno())
            os.close(nowhere)
            if isinstance(error, BrokenPipeError) and self.patient:
                return len(data)
            raise


def _open_text_stream(number: int, stream: TextIO | None) -> io.TextIOWrapper:
    raw = _DiscardingOutput(number, "w", closefd=False)
    encoding = getattr(stream, "encoding", None) or "utf-8"
    return io.TextIOWrapper(
        io.BufferedWriter(raw), encoding, errors="replace", line_buffering=number == 2 or raw.isatty()
    )
