"""Child processes: start one under the reaper, read what it says, tell how it ended, and end all that it left behind.

Knows streams, signals and exit statuses; not what a process is asked to do. Does not import JAX.
"""

import collections
import contextlib
import dataclasses
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Any

from scaling.core import environment

_REAPER = str(Path(__file__).with_name("reaper.py"))
_TAIL_LINES = 200
_LINE_CHARACTERS = 4096  # a longer line is read in pieces
_LOG_CHARACTERS = 64 * 2**20  # of a file of a worker's stderr; what follows is left out
_EVENT_CHARACTERS = 64 * 2**20  # of one event
_END_SECONDS = 5.0  # for the reaper, and for what reads the streams, to end
_SHOWN_CHARACTERS = 300
_NOISE = re.compile(r"[IW]\d{4} |WARNING: All log messages before absl")  # what XLA writes when nothing is wrong
Event = dict[str, Any]


def start(command: Sequence[str], given: str | None = None, **options: Any) -> subprocess.Popen:
    """Start a command under the reaper, in a session of its own. `given` is its standard input; None makes a pipe.

    The process that is returned is the reaper: it ends with the status of the command, after all descendants of the command.
    """
    first = json.dumps(list(command)) + "\n"
    reaper = [sys.executable, "-I", "-S", _REAPER, str(os.getpid())]
    if given is None:
        process = start_plain(reaper, **options)
        send(process, first)
        return process
    with tempfile.TemporaryFile("w+", encoding="utf-8") as file:  # a pipe would fill where nobody reads
        file.write(first + given)
        file.seek(0)
        return start_plain(reaper, stdin=file, **options)


def start_plain(command: Sequence[str], stdin: int | IO[str] = subprocess.PIPE, **options: Any) -> subprocess.Popen:
    """Start a command without the reaper, in a session of its own, with its output as pipes of text that may hold any byte."""
    return subprocess.Popen(
        command, stdin=stdin, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, encoding="utf-8", errors="replace",
        start_new_session=True, **options,
    )  # fmt: skip


def send(process: subprocess.Popen, text: str) -> None:
    """Write to the standard input of a process; one that has ended does not hear it."""
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError):
        process.stdin.write(text)
        process.stdin.flush()


def end(process: subprocess.Popen, readers: Sequence[threading.Thread] = ()) -> None:
    """End a process that `start` returned, and everything that it started."""
    process.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_END_SECONDS)
    kill_group(process)
    close(process, readers)


def close(process: subprocess.Popen, readers: Sequence[threading.Thread]) -> None:
    """Close the streams of a process that has ended, after those who read them are done."""
    for reader in readers:
        reader.join(_END_SECONDS)
    read = [] if any(reader.is_alive() for reader in readers) else [process.stdout, process.stderr]
    for stream in [process.stdin, *read]:
        with contextlib.suppress(OSError):
            if stream is not None:
                stream.close()


def kill_group(process: subprocess.Popen) -> None:
    """Kill the process group of a process, and wait for the process."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def read_events(process: subprocess.Popen, put: Callable[[Event], None]) -> threading.Thread:
    """Pass on each event, a JSON object on a line; then the exit status. Returns the thread that does so.

    A line that is no event, such as one torn by the death of the process, is left out.
    """

    def read() -> None:
        stream = process.stdout
        assert stream is not None
        while line := stream.readline(_EVENT_CHARACTERS):
            with contextlib.suppress(ValueError, RecursionError):
                if isinstance(event := json.loads(line), dict) and "event" in event:
                    put(event)
        put({"event": "exit", "status": process.wait()})

    return _started(read)


@dataclasses.dataclass
class Tail:
    """The last lines that a process wrote to its standard error."""

    lines: collections.deque[str]
    reader: threading.Thread

    def read(self) -> list[str]:
        """Return the lines so far; of a process that has ended, all."""
        self.reader.join(1.0)
        return list(self.lines)


def read_tail(process: subprocess.Popen, log: Path | None = None) -> Tail:
    """Keep the last lines of what a process writes to its standard error, and in a file, without secrets, if one is named."""
    lines: collections.deque[str] = collections.deque(maxlen=_TAIL_LINES)

    def read() -> None:
        stream = process.stderr
        assert stream is not None
        with contextlib.ExitStack() as stack:
            file = stack.enter_context(log.open("a", encoding="utf-8", errors="replace")) if log else None
            written = 0
            while line := stream.readline(_LINE_CHARACTERS):
                lines.append(line.rstrip("\n"))
                if file is not None and written < _LOG_CHARACTERS:
                    written += _log(file, line, written + len(line) >= _LOG_CHARACTERS)

    return Tail(lines, _started(read))


def _log(file: IO[str], line: str, last: bool) -> int:
    """Write a line to a log; a full disk loses the line, not the run. Returns its length."""
    with contextlib.suppress(OSError):
        file.write(environment.hide_secrets(line) + ("\n[the rest is left out]\n" if last else ""))
        file.flush()
    return len(line)


def _started(function: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=function, daemon=True)
    thread.start()
    return thread


def how_it_ended(status: int) -> str:
    """Return how a process ended, from the status that `subprocess` gives."""
    if status >= 0:
        return f"ended with status {status}"
    return f"was killed by signal {-status}{signal_name(-status)}"


def signal_name(number: int) -> str:
    """Return the name of a signal in parentheses after a space; nothing for an unknown one."""
    with contextlib.suppress(ValueError):
        return f" ({signal.Signals(number).name})"
    return ""


def last_line(lines: Sequence[str]) -> str:
    """Return the last line that tells something of why a process ended, without paths and secrets; "" where there is none."""
    told = [line for line in lines if line.strip() and not _NOISE.match(line)]
    return environment.last_line("\n".join(told), "")[:_SHOWN_CHARACTERS]
