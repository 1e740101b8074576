"""Standard streams: what a command does when they are closed, or when nobody reads what it writes any more.

A command goes on without its output, so that its exit status still says what came of it. Knows nothing of
what is written.
"""

import io
import os
import sys
from typing import Any, TextIO


def prepare() -> None:
    """Make the standard streams safe to use.

    A closed stream, or a pipe without a reader, discards what is written.
    """
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            # The lowest free number, which is this one; the next file to be opened would have it otherwise.
            os.open(os.devnull, os.O_RDWR)
    sys.stdin = sys.stdin or open(0, closefd=False)  # noqa: SIM115
    sys.stdout, sys.stderr = _writer(1, sys.stdout), _writer(2, sys.stderr)


def stop_with_reader() -> None:
    """End the command with `BrokenPipeError` when its output has no reader.

    For commands that would otherwise not end.
    """
    raw = getattr(getattr(sys.stdout, "buffer", None), "raw", None)
    if isinstance(raw, _Output):
        raw.patient = False


class _Output(io.FileIO):
    """Return a descriptor to write to.

    It discards output once writing fails, because the reader is gone or the disk is full.
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


def _writer(number: int, stream: TextIO | None) -> io.TextIOWrapper:
    """Return a text stream on a descriptor; characters that it cannot encode become "?"."""
    raw = _Output(number, "w", closefd=False)
    encoding = getattr(stream, "encoding", None) or "utf-8"
    return io.TextIOWrapper(
        io.BufferedWriter(raw), encoding, errors="replace", line_buffering=number == 2 or raw.isatty()
    )
