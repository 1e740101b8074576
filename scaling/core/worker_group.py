"""A seat: a worker that does what it is told, or several that share the devices of a case; started, asked, and ended.

Knows processes and pipes; not which cases there are, nor what to make of a death. Does not import JAX.
"""

import contextlib
import dataclasses
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scaling.core import child_process, environment, memory, user_frames
from scaling.core.child_process import Event, Tail
from scaling.core.machine import ProcessShape
from scaling.transport import remote

_START_SECONDS = 300.0  # for a worker to import JAX and open its devices
_WAIT_SECONDS = 86400.0  # for cores that others hold
_LEAVE_SECONDS = 3.0  # for the workers of a step to leave by themselves
_GENERAL = ("Exited with exit code", "task launch failed", "Terminating", "tasks terminated")  # srun, of any failure
_STEP_SECONDS = 30.0  # for Slurm to end a step


@dataclass(frozen=True)
class Variant:
    """What runs the workers: this program, or another revision, interpreter or set of flags to be measured against it."""

    name: str = "this"
    python: str = sys.executable
    module: str = "scaling.worker"
    folder: Path | None = None  # where they start; None: here
    variables: Mapping[str, str] = field(default_factory=dict)


class WorkerDied(Exception):
    """A worker came to its end, or past its time: why, as a reason of a record, and in words."""

    def __init__(self, reason: str, text: str) -> None:
        super().__init__(text)
        self.reason = reason


class AllocationLost(Exception):
    """Nothing can be started on other nodes: the allocation has ended, or is not what was asked for, or no shell reaches them."""


class RecordNotWritten(OSError):
    """A record could not be written; the run stops, and what was written stays."""


@dataclass
class WorkerGroup:
    """Workers that are ready: what is said to one is said to all, and the first answers for all."""

    shape: ProcessShape
    processes: list[subprocess.Popen]  # one for each worker, or the srun that stands for all of them
    events: "queue.Queue[dict[str, Any]]"
    errors: list[Tail]
    killed_before: int
    spoke: bool = False  # whether any worker said anything

    def ask(self, order: Mapping[str, Any], seconds: float) -> Iterator[dict[str, Any]]:
        """Say what to do, and hear what comes of it: every event up to the one that answers. Raises `Lost`."""
        self.say(order)
        yield from self.hear(seconds)

    def say(self, words: Mapping[str, Any]) -> None:
        """Say a thing to all."""
        for process in self.processes:
            _send(process, words)

    def hear(self, seconds: float) -> Iterator[dict[str, Any]]:
        """Events, up to one that is an answer."""
        deadline = time.monotonic() + seconds
        while True:
            try:
                event = self.events.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                raise WorkerDied("timeout", "") from None
            self.spoke |= event["event"] != "exit"
            if event["event"] == "exit":
                raise self._death(event["rank"], event["status"])
            if event["event"] == "refused":
                raise WorkerDied("not_as_asked", event["text"])
            if event["event"] == "unwritable":
                raise RecordNotWritten(event["text"])
            yield event
            if event["event"] not in ("here", "begin", "meet", "waiting"):
                return
            if event["event"] == "waiting":
                deadline = time.monotonic() + _WAIT_SECONDS

    def _death(self, rank: int, status: int) -> WorkerDied:
        """What is known of a process that ended by itself."""
        said = [line for line in self.errors[rank].read() if not line.startswith(user_frames.MARK)]  # of earlier cases
        last = _last_error_line(said)
        status = 128 - status if 128 < status <= 128 + signal.SIGRTMAX else status  # srun's way to tell of a signal
        by_kernel = status == -9 and memory.kills() > self.killed_before
        full = by_kernel or memory.ran_out(last)
        how = child_process.how_it_ended(status)
        how += " when the host's memory ran out" if by_kernel else ""
        which = "the process" if self.shape.processes == 1 else f"process {rank}" if len(self.processes) > 1 else "a process"
        if not full and (taken := remote.explain_failure(said)):
            return WorkerDied(taken[0], environment.scrub(taken[1]))
        return WorkerDied("out_of_memory" if full else "killed", f"{which} {how}: {last}".rstrip(": "))


@contextlib.contextmanager
def open_worker_group(
    header: Mapping[str, Any],
    side: Variant,
    shape: ProcessShape,
    platform: str,
    lock: int | None,
    within: remote.Within | None = None,
    errors: Path | None = None,
    waiting: Callable[[list[int]], None] = lambda _: None,
) -> Iterator[WorkerGroup]:
    """Workers of a job, ended when the context is left. Raises `Lost` when they do not start.

    within: how they are started on other nodes; None: here. errors: the file for what they complain of. waiting: called with the
    processes that hold the cores which a worker waits for.
    """
    events: queue.Queue[dict[str, Any]] = queue.Queue()
    first = dict(header) | {"shape": dataclasses.asdict(shape)}
    with contextlib.ExitStack() as stack:
        made = WorkerGroup(shape, [], events, [], memory.kills())
        worker = [side.python, "-m", side.module]
        variables = _variables(side, platform, within)
        commands = within.commands(shape, worker, variables) if within else [worker] * shape.processes
        for rank, command in enumerate(commands):
            begin = child_process.start_plain if within else child_process.start
            given = () if within or lock is None else (lock,)
            process = begin(command, cwd=side.folder, env=variables, pass_fds=given)
            made.processes.append(process)
            made.errors.append(child_process.read_tail(process, errors))
            reader = child_process.read_events(process, _of_rank(events, rank))
            stack.callback(_end_remote if within else child_process.end, process, [reader, made.errors[-1].reader])
            own = {"rank": rank} if len(commands) == shape.processes else {}  # Slurm tells the workers of a step
            _send(process, first | own | ({} if within else {"parent": process.pid, "lock": lock}))
        try:
            for event in made.hear(_START_SECONDS):
                if event["event"] == "meet":
                    made.say({"coordinator": event["address"]})
                if event["event"] == "waiting":
                    waiting(event["by"])
        except WorkerDied as lost:
            if within and lost.reason != "timeout" and not made.spoke:
                raise AllocationLost(str(lost)) from None
            raise
        yield made


def _of_rank(events: "queue.Queue[Event]", rank: int) -> Callable[[Event], None]:
    return lambda event: events.put(event | {"rank": rank})


def _send(process: subprocess.Popen, words: Mapping[str, Any]) -> None:
    child_process.send(process, json.dumps(words) + "\n")


def _variables(side: Variant, platform: str, within: remote.Within | None) -> dict[str, str]:
    """What a worker starts with, and srun, which is not to hear what the job around it was asked for.

    A worker sets XLA_FLAGS itself: those that its own jaxlib needs.
    """
    kept = {name: value for name, value in os.environ.items() if not (within and name.startswith(remote.OF_THE_JOB))}
    return kept | {"GLIBC_TUNABLES": environment.variables(platform)["GLIBC_TUNABLES"]} | dict(side.variables)


def _end_remote(process: subprocess.Popen, readers: Sequence[threading.Thread]) -> None:
    """End workers on other nodes: they go when nothing more will be said, and srun, asked to end, has them killed."""
    for way, seconds in ((_close, _LEAVE_SECONDS), (subprocess.Popen.terminate, _STEP_SECONDS)):
        way(process)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(seconds)
    child_process.kill_group(process)
    child_process.close(process, readers)


def _close(process: subprocess.Popen) -> None:
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError):
        process.stdin.close()


def _last_error_line(lines: list[str]) -> str:
    """What the worker said last itself, before what Slurm or a remote shell adds about its end."""
    own = [line for line in lines if not line.startswith(("srun:", "slurmstepd", "ssh:"))]
    own = [line for line in own if not line.startswith('Try "srun')]
    errors = [line for line in lines if ("error:" in line or "option" in line) and not any(words in line for words in _GENERAL)]
    return child_process.last_line(own or errors or lines)
