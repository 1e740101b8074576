"""A seat: a worker that does what it is told, or several that share the devices of a case; started, asked, and ended.

Knows processes and pipes; not which cases there are, nor what to make of a death. Does not import JAX.
"""

import contextlib
import json
import os
import queue
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

from scaling import environment, memory

_START_SECONDS = 300.0  # for a worker to import JAX and open its devices


@dataclass(frozen=True)
class Side:
    """What runs the workers: this program, or another revision, interpreter or set of flags to be measured against it."""

    name: str = "this"
    python: str = sys.executable
    folder: Path | None = None  # where they start; None: here
    variables: Mapping[str, str] = field(default_factory=dict)


class Lost(Exception):
    """A worker came to its end, or past its time: why, as a reason of a record, and in words."""

    def __init__(self, reason: str, text: str) -> None:
        super().__init__(text)
        self.reason = reason


class Unwritable(OSError):
    """A record could not be written; the run stops, and what was written stays."""


@dataclass
class Seat:
    """Workers that are ready: what is said to one is said to all, and the first answers for all."""

    processes: list[subprocess.Popen]
    events: "queue.Queue[dict[str, Any]]"
    errors: list[TextIO]
    killed_before: int

    def ask(self, order: Mapping[str, Any], seconds: float) -> Iterator[dict[str, Any]]:
        """Say what to do, and hear what comes of it: every event up to the one that answers. Raises `Lost`."""
        for process in self.processes:
            assert process.stdin is not None
            with contextlib.suppress(BrokenPipeError):
                process.stdin.write(json.dumps(order) + "\n")
                process.stdin.flush()
        yield from self.hear(seconds)

    def hear(self, seconds: float) -> Iterator[dict[str, Any]]:
        """Events, up to one that is an answer."""
        deadline = time.monotonic() + seconds
        while True:
            try:
                event = self.events.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                raise Lost("timeout", "") from None
            if event["event"] == "exit":
                raise self._death(event["rank"], event["status"])
            if event["event"] == "unwritable":
                raise Unwritable(event["text"])
            yield event
            if event["event"] != "begin":
                return

    def _death(self, rank: int, status: int) -> Lost:
        """What is known of a process that ended by itself."""
        last = _last_line(self.errors[rank])
        by_kernel = status == -9 and memory.kills() > self.killed_before
        full = by_kernel or memory.ran_out(last)
        how = f"ended with status {status}" if status >= 0 else f"was killed by signal {-status}"
        how += " when the host's memory ran out" if by_kernel else ""
        which = f"process {rank}" if len(self.processes) > 1 else "the process"
        return Lost("out_of_memory" if full else "killed", f"{which} {how}: {last}".rstrip(": "))


@contextlib.contextmanager
def seat(job: Mapping[str, Any], side: Side, processes: int, platform: str, lock: int) -> Iterator[Seat]:
    """Workers of a job, ended when the context is left. Raises `Lost` when they do not start."""
    coordinator = f"127.0.0.1:{_free_port()}" if processes > 1 else None
    events: queue.Queue[dict[str, Any]] = queue.Queue()
    with contextlib.ExitStack() as stack:
        made = Seat([], events, [], memory.kills())
        for rank in range(processes):
            made.errors.append(stack.enter_context(tempfile.TemporaryFile("w+", errors="replace")))
            process = subprocess.Popen(
                [side.python, "-m", "scaling.worker"],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=made.errors[-1], text=True, pass_fds=(lock,),
                cwd=side.folder, env=_variables(side, platform), start_new_session=True,
            )  # fmt: skip
            made.processes.append(process)
            reader = threading.Thread(target=_read, args=(process, rank, events), daemon=True)
            reader.start()
            stack.callback(_end, process, reader)
            assert process.stdin is not None
            first = dict(job) | {"parent": os.getpid(), "lock": lock, "rank": rank, "processes": processes}
            with contextlib.suppress(BrokenPipeError):
                process.stdin.write(json.dumps(first | {"coordinator": coordinator}) + "\n")
                process.stdin.flush()
        for _ in made.hear(_START_SECONDS):
            pass
        yield made


def _variables(side: Side, platform: str) -> dict[str, str]:
    """What a worker starts with. It sets XLA_FLAGS itself: those that its own jaxlib needs."""
    return os.environ | {"GLIBC_TUNABLES": environment.variables(platform)["GLIBC_TUNABLES"]} | dict(side.variables)


def _end(process: subprocess.Popen, reader: threading.Thread) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)  # and what it started, such as a compiler, which would disturb the next
    process.wait()
    reader.join()
    with contextlib.suppress(BrokenPipeError):
        assert process.stdin is not None
        process.stdin.close()


def _read(process: subprocess.Popen, rank: int, events: "queue.Queue[dict[str, Any]]") -> None:
    """Pass on what the first worker says; a line that is none (torn by its death) is left out. Of the others, their end."""
    assert process.stdout is not None
    for line in process.stdout:
        with contextlib.suppress(ValueError):
            if rank == 0:
                events.put(json.loads(line))
    events.put({"event": "exit", "rank": rank, "status": process.wait()})


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _last_line(errors: TextIO) -> str:
    errors.seek(0, os.SEEK_END)
    errors.seek(max(0, errors.tell() - 4096))
    return environment.last_line(errors.read(), "")[:300]
