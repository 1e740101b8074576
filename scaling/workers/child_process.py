"""Child processes that exchange JSON lines: start one, send to it, receive its events, say how it ended, and
end it.

Every process that this package talks to is a `ChildProcess`: workers, compilers, the examination of cases,
W&B and Julia. Knows streams, signals and exit statuses; not what a process is asked to do. Does not import
JAX.
"""

import collections
import contextlib
import json
import os
import queue
import re
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scaling.core import environment, memory
from scaling.workers import process_memory

_REAPER = str(Path(__file__).with_name("reaper.py"))
_TAIL_LINES = 200
_LINE_CHARACTERS = 4096  # a longer line is read in pieces
_LOG_CHARACTERS = 64 * 2**20  # of a log of standard error; what follows is left out
_EVENT_CHARACTERS = 64 * 2**20  # of one event
_END_SECONDS = 5.0  # for the reaper, and for the threads that read the streams, to end
_SHOWN_CHARACTERS = 300
# What XLA writes when nothing is wrong.
_NOISE = re.compile(r"[IW]\d{4} |WARNING: All log messages before absl")
Event = dict[str, Any]


@dataclass(frozen=True)
class ProcessExit:
    """How a process ended: the reason of a record, a description, and the last line of its standard error."""

    reason: str  # out_of_memory, killed
    text: str
    last_line: str


class ChildProcess:
    """A process, in a session of its own, that reads JSON lines and writes JSON objects, its events, on lines
    of their own.

    stdin_text: all of its standard input; None makes a pipe for `send`. reaped: whether it runs under the
    reaper, which ends with the status of the command, after all descendants of the command have been ended.
    log: a file for its standard error. deliver: is called with each event instead of `receive`. tagged:
    whether objects without a field "event" are ignored.

    """

    def __init__(
        self, command: Sequence[str], *, stdin_text: str | None = None, reaped: bool = True,
        log: Path | None = None, deliver: Callable[[Event], None] | None = None, tagged: bool = True,
        **options: Any,
    ) -> None:  # fmt: skip
        self._kills_before = process_memory.count_oom_kills()
        self._events: queue.Queue[Event] = queue.Queue()
        self._stderr: collections.deque[str] = collections.deque(maxlen=_TAIL_LINES)
        text = stdin_text or ""
        if reaped:
            text = f"{json.dumps(list(command))}\n{text}"
            command = [sys.executable, "-I", "-S", _REAPER, str(os.getpid())]
        with tempfile.TemporaryFile("w+", encoding="utf-8") as file:  # a pipe would fill where nobody reads
            file.write(text)
            file.seek(0)
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE if stdin_text is None else file, stdout=subprocess.PIPE,
                stderr=subprocess.PIPE, text=True, encoding="utf-8", errors="replace",
                start_new_session=True, **options,
            )  # fmt: skip
        self.pid = self._process.pid  # of the reaper where there is one
        if stdin_text is None:
            self._write(text)
        self._readers = [
            threading.Thread(target=self._read_stderr, args=(log,), daemon=True),
            threading.Thread(
                target=self._read_events, args=(deliver or self._events.put, tagged), daemon=True
            ),
        ]
        for reader in self._readers:
            reader.start()

    def send(self, value: Any) -> None:
        """Write a value as a line of JSON; a process that has ended does not receive it."""
        self._write(json.dumps(value) + "\n")

    def _write(self, text: str) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(text)
            self._process.stdin.flush()

    def receive(self, seconds: float | None = None) -> Event | None:
        """Return the next event, or None after `seconds`.

        The last event is {"event": "exit", "status": ...}.
        """
        with contextlib.suppress(queue.Empty):
            return self._events.get(timeout=seconds)
        return None

    def stderr_lines(self) -> list[str]:
        """Return the last lines of standard error so far; of a process that has ended, all of them."""
        self._readers[0].join(1.0)
        return list(self._stderr)

    def explain_exit(self, status: int, lines: Sequence[str] | None = None) -> ProcessExit:
        """Return why the process ended, from its status and what it wrote to standard error."""
        last = last_line(self.stderr_lines() if lines is None else lines)
        by_kernel = status == -signal.SIGKILL and process_memory.count_oom_kills() > self._kills_before
        text = (
            f"was killed by signal {-status}{signal_name(-status)}"
            if status < 0
            else f"ended with status {status}"
        )
        if by_kernel:
            text += " when the host's memory ran out"
        return ProcessExit(
            "out_of_memory" if by_kernel or memory.is_out_of_memory(last) else "killed", text, last
        )

    def close(self, leave_seconds: float = 0.0, end_seconds: float = _END_SECONDS) -> None:
        """End the process, and everything that it started, and close its streams.

        leave_seconds: for the process to end by itself, after its standard input is closed. end_seconds:
        after SIGTERM.
        """
        process = self._process
        if leave_seconds and process.stdin is not None:
            with contextlib.suppress(OSError):
                process.stdin.close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(leave_seconds)
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(end_seconds)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        for reader in self._readers:
            reader.join(_END_SECONDS)
        read = [] if any(reader.is_alive() for reader in self._readers) else [process.stdout, process.stderr]
        for stream in filter(None, [process.stdin, *read]):
            with contextlib.suppress(OSError):
                stream.close()

    def _read_events(self, deliver: Callable[[Event], None], tagged: bool) -> None:
        """Deliver each JSON object, then the exit status; ignore other lines, such as partial ones."""
        assert self._process.stdout is not None
        while line := self._process.stdout.readline(_EVENT_CHARACTERS):
            with contextlib.suppress(ValueError, RecursionError):
                if isinstance(event := json.loads(line), dict) and ("event" in event or not tagged):
                    deliver(event)
        deliver({"event": "exit", "status": self._process.wait()})

    def _read_stderr(self, log: Path | None) -> None:
        """Keep the last lines of standard error; write all to the log, if any, without secrets."""
        assert self._process.stderr is not None
        room = _LOG_CHARACTERS if log else 0
        with open(log or os.devnull, "a", encoding="utf-8", errors="replace") as file:
            while line := self._process.stderr.readline(_LINE_CHARACTERS):
                self._stderr.append(line.rstrip("\n"))
                if room > 0:
                    room -= len(line)
                    with contextlib.suppress(OSError):  # a full disk loses the line, not the run
                        file.write(environment.hide_secrets(line))
                        file.write("" if room > 0 else "\n[the rest is left out]\n")
                        file.flush()


def signal_name(number: int) -> str:
    """Return the name of a signal in parentheses after a space; nothing for an unknown one."""
    with contextlib.suppress(ValueError):
        return f" ({signal.Signals(number).name})"
    return ""


def last_line(lines: Sequence[str]) -> str:
    """Return the last line that explains why a process ended, or "".

    Paths and secrets are removed from the line.
    """
    relevant = [line for line in lines if line.strip() and not _NOISE.match(line)]
    return environment.last_line("\n".join(relevant), "")[:_SHOWN_CHARACTERS]
