"""Start a child process, exchange JSON lines, log its standard error, explain its exit (`ChildProcess`).

Workers, compile workers, preflight checks, and the W&B client all run as a `ChildProcess`. worker_group.py
starts several of them, on this host or on other nodes.
"""

import collections
import contextlib
import json
import os
import queue
import re
import signal
import subprocess
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TextIO

from scaling.core import environment, formatting

_KEPT_STDERR_LINES = 200
_MAX_STDERR_LINE_CHARACTERS = 4096  # longer lines of standard error are read in pieces
_MAX_LOG_CHARACTERS = 64 * 2**20
_END_SECONDS = 5.0  # timeout for the process and each reader thread to end
_MAX_SHOWN_CHARACTERS = 300
# Lines that do not explain an exit: information and warnings of XLA (the date is before or after the level),
# messages that srun writes at every start or failure, and tracebacks of cases that have a record.
_UNINFORMATIVE = re.compile(
    r"[IW]\d{4} |[\d-]{10} [\d:.]+: [IW] |WARNING: All log messages before absl|Try \"srun"
    r"|(srun|slurmstepd).*(tasks? [\d,-]+: (?!Out Of Memory)|task launch failed|Terminat|tasks terminated"
    r"|step aborted|support for cpu binding|Step created)"
    r"|\t?--"  # a flag of XLA, which prints them all after a value that it rejects
    r"|\[Gloo\] Rank \d+ is connected"  # the library with which processes on CPUs exchange data
    rf"|{re.escape(formatting.TRACEBACK_MARK)}"
    r"|\*\*\* (Check failure|SIG)|PC: @| +@ +0x"  # the stack trace that follows an error message of XLA
    r"| +\+-"  # a border in the traceback of an exception group
)
# Prefixes of messages of Slurm, and of the message of task.py at the time limit of a local task.
_SLURM_PREFIXES = ("srun:", "slurmstepd", "scaling: CANCELLED")
_CAUSES = {  # text in a Slurm message -> reason of the record
    "due to time limit": "timeout", "due to preemption": "preempted", "node fail": "node_failed",
    "exceeded memory limit": "out_of_memory", "exceeded job memory limit": "out_of_memory",
    "out of memory": "out_of_memory", "oom_kill": "out_of_memory", "oom-kill": "out_of_memory",
}  # fmt: skip
_SIGNAL_NAMES = {signal_number.value: f" ({signal_number.name})" for signal_number in signal.Signals}
Event = dict[str, Any]  # JSON object that a child process writes. The field "event" is its type.


class ChildProcess:
    """A child process that reads its standard input and writes JSON objects ("events") to standard output."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        log: Path | None = None,  # file to which standard error is appended, without secrets
        deliver: Callable[[Event], None] | None = None,  # a thread calls it with each event
        **options: Any,  # arguments of `subprocess.Popen`
    ) -> None:
        self._kills_before = _count_oom_kills()
        self._events: queue.Queue[Event] = queue.Queue()
        self._stderr: collections.deque[str] = collections.deque(maxlen=_KEPT_STDERR_LINES)
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            encoding="utf-8", errors="replace", start_new_session=True, **options,
        )  # fmt: skip
        loops = (self._read_stderr, (log,)), (self._read_events, (deliver or self._events.put,))
        self._readers = [threading.Thread(target=loop, args=args, daemon=True) for loop, args in loops]
        for reader in self._readers:
            reader.start()

    def send(self, message: Any) -> None:
        """Write a line of JSON to the standard input of the process, unless the process has closed it."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(message) + "\n")
            self._process.stdin.flush()

    def receive(self, seconds: float) -> Event | None:
        """Return the next event, or None if no event arrives within `seconds`.

        The last event is {"event": "exit", "status": exit status}.
        """
        with contextlib.suppress(queue.Empty):
            return self._events.get(timeout=seconds)
        return None

    def stderr_lines(self) -> list[str]:
        """Return the last lines of standard error, at most 200, without routine messages of XLA and Slurm."""
        self._readers[0].join(1.0)
        return list(self._stderr)

    def explain_exit(self, status: int) -> tuple[str, str, str]:
        """Return (reason, phrase, line), which explain why the process ended.

        `reason` is "out_of_memory" or "killed". `phrase` is a text such as "ended with status 1". `line` is
        the last informative line of standard error, or "". `status` is the exit status, which is -N or 128 +
        N after signal N.
        """
        status = 128 - status if 128 < status <= 128 + signal.SIGRTMAX else status
        last_line = last_informative_line(self.stderr_lines())
        oom_killed = status == -signal.SIGKILL and _count_oom_kills() > self._kills_before
        killed_by = f"was killed by signal {-status}{_SIGNAL_NAMES.get(-status, '')}"
        phrase = killed_by if status < 0 else f"ended with status {status}"
        phrase += " when the host's memory ran out" if oom_killed else ""
        reason = "out_of_memory" if oom_killed or environment.is_out_of_memory(last_line) else "killed"
        return reason, phrase, last_line

    def close(self, exit_seconds: float = 0.0, end_seconds: float = _END_SECONDS) -> None:
        """End the process with SIGTERM, and then kill its process group with SIGKILL.

        SIGKILL follows when the process has ended, at the latest after `end_seconds`. If `exit_seconds` is
        not 0, close standard input first, and give the process up to `exit_seconds` to exit before SIGTERM.
        """
        process = self._process
        if exit_seconds:
            self._close_stdin()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(exit_seconds)
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(end_seconds)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        for reader in self._readers:
            reader.join(_END_SECONDS)
        self._close_stdin()

    def _close_stdin(self) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()

    def _read_events(self, deliver: Callable[[Event], None]) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as stdout:
            for line in stdout:  # a record of many samples may be a long line
                with contextlib.suppress(ValueError, RecursionError):
                    if isinstance(event := json.loads(line), dict) and "event" in event:
                        deliver(event)
        deliver({"event": "exit", "status": self._process.wait()})

    def _read_stderr(self, log: Path | None) -> None:
        assert self._process.stderr is not None
        remaining = _MAX_LOG_CHARACTERS if log else 0
        # Closing the log raises OSError if the disk is full.
        with contextlib.suppress(OSError), self._process.stderr as stderr, _open_log(log) as log_file:
            while line := stderr.readline(_MAX_STDERR_LINE_CHARACTERS):
                if not _UNINFORMATIVE.match(line):
                    self._stderr.append(line.rstrip("\n"))
                if remaining > 0:
                    remaining -= len(line)
                    end = "" if remaining > 0 else "\n[log truncated]\n"
                    with contextlib.suppress(OSError):  # a full disk must not stop the run
                        log_file.write(environment.hide_secrets(line) + end)
                        log_file.flush()


def _open_log(log: Path | None) -> TextIO:
    """Open the file `log` for appending, or /dev/null if `log` is None or cannot be opened."""
    with contextlib.suppress(OSError):
        return open(log or os.devnull, "a", encoding="utf-8", errors="replace")
    return open(os.devnull, "a", encoding="utf-8")


def _count_oom_kills() -> int:
    """Return the number of processes in this cgroup that Linux killed because memory ran out.

    If the cgroup has no such number, return the number for this host. If both are unknown, return 0.
    """
    counter_files = [*(f"{folder}/memory.events" for folder in environment.cgroup_folders()), "/proc/vmstat"]
    counters = next(filter(None, map(environment.read_text, counter_files)), "")
    line = re.search(r"^oom_kill (\d+)$", counters, re.MULTILINE)
    return int(line.group(1)) if line else 0


def last_informative_line(stderr_lines: Sequence[str]) -> str:
    """Return the last line of standard error that may explain an exit, or "" if there is none.

    Paths and secrets are removed from the line.
    """
    informative = [line for line in stderr_lines if line.strip() and not _UNINFORMATIVE.match(line)]
    rejected_flags = [line for line in informative if "Couldn't interpret value" in line]
    variable = "XLA_FLAGS: " if rejected_flags else ""  # other messages of XLA name the variable
    last_line = formatting.last_line("\n".join(rejected_flags or informative), "").removeprefix("| ")
    return f"{variable}{last_line}"[:_MAX_SHOWN_CHARACTERS]


def explain_failure(stderr_lines: Sequence[str]) -> tuple[str, str] | None:
    """Return (reason, explanation) for a failed step of a Slurm job, or None if the reason is unknown.

    The function searches the standard error of the step. `reason` is a key of `scaling.core.record.REASONS`.
    """
    slurm_messages = [line for line in reversed(stderr_lines) if line.startswith(_SLURM_PREFIXES)]
    causes = (
        (reason, line) for line in slurm_messages for text, reason in _CAUSES.items() if text in line.lower()
    )
    no_heartbeat = any("stopped sending heartbeats" in line for line in stderr_lines)  # a message of JAX
    text = "a process of the case stopped sending heartbeats: its node or its network failed"
    return next(causes, ("node_failed", text) if no_heartbeat else None)


def rejects_variable(message: str) -> bool:
    """Return whether an error message of JAX or XLA rejects the value of an environment variable."""
    return re.search("XLA_FLAGS|for (environment 'JAX_|JAX flag jax_)", message) is not None
