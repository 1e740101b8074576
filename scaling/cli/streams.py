"""Standard streams: what a command does when they are closed, or when nobody reads what it writes any more.

A command goes on without its output, so that its exit status still says what came of it. Knows nothing of
what is written.
"""

import io
import os
import sys
from typing import Any, TextIO


def prepare() -> None:
    """Make the standard streams safe to use: closed ones lead nowhere, and so does a pipe whose reader is gone."""
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            # The lowest free number, which is this one; the next file to be opened would have it otherwise.
            os.open(os.devnull, os.O_RDWR)
    sys.stdin = sys.stdin or open(0, closefd=False)  # noqa: SIM115
    sys.stdout, sys.stderr = _writer(1, sys.stdout), _writer(2, sys.stderr)


def stop_with_reader() -> None:
    """Let the command end with `BrokenPipeError` when nobody reads its output any more: for one that would never end."""
    raw = getattr(getattr(sys.stdout, "buffer", None), "raw", None)
    if isinstance(raw, _Output):
        raw.patient = False


class _Output(io.FileIO):
    """A descriptor to write to, which leads nowhere once it cannot be written to: its reader is gone, or the disk is full."""

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


def _writer(number: int, stream: TextIO | None) -> io.TextIOWrapper:
    """Return a stream for text on a descriptor. A character that the encoding lacks becomes a question mark."""
    raw = _Output(number, "w", closefd=False)
    encoding = getattr(stream, "encoding", None) or "utf-8"
    return io.TextIOWrapper(
        io.BufferedWriter(raw), encoding, errors="replace", line_buffering=number == 2 or raw.isatty()
    )
