"""Worker groups: the worker processes that share the devices of a case are started, given orders, and ended.

Knows processes and pipes; not which cases there are, nor what follows from a death. Does not import JAX.
"""

import contextlib
import dataclasses
import os
import queue
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scaling.core import environment, user_frames
from scaling.workers import child_process
from scaling.workers.child_process import ChildProcess, Event
from scaling.workers.machine import AllocationLost, ProcessShape

if TYPE_CHECKING:
    from scaling.workers.transport import Transport

_START_SECONDS = 300.0  # for a worker to import JAX and open its devices
_WAIT_SECONDS = 86400.0  # for cores that others hold
_LEAVE_SECONDS = 3.0  # for the workers of a step to leave by themselves
_STEP_SECONDS = 30.0  # for Slurm to end a step
# What srun writes about any failure.
_GENERAL = ("Exited with exit code", "task launch failed", "Terminating", "tasks terminated")
_INTERMEDIATE = ("here", "begin", "meet", "waiting")  # events that answer no order


@dataclass(frozen=True)
class Variant:
    """The program that runs the workers.

    It is this program, or a revision, interpreter or set of flags to compare it with.
    """

    name: str = "this"
    python: str = sys.executable
    module: str = "scaling.worker"
    folder: Path | None = None  # working directory; None: the current one
    variables: Mapping[str, str] = field(default_factory=dict)


class WorkerDied(Exception):
    """A worker ended, or exceeded its time: the reason of a record, and a text."""

    def __init__(self, reason: str, text: str) -> None:
        super().__init__(text)
        self.reason = reason


class RecordNotWritten(OSError):
    """A record could not be written; the run stops, and what was written stays."""


@dataclass
class WorkerGroup:
    """Workers that are ready: each order is sent to all of them, and the first answers for all."""

    shape: ProcessShape
    processes: list[ChildProcess]  # one for each worker, or the srun that started all of them
    events: "queue.Queue[Event]"
    transport: "Transport | None" = None
    responded: bool = False  # whether any worker sent an event

    def ask(self, order: Mapping[str, Any], seconds: float) -> Iterator[Event]:
        """Send an order; yield every event up to the one that answers it. Raises `WorkerDied`."""
        self.send(order)
        yield from self.receive(seconds)

    def send(self, order: Mapping[str, Any]) -> None:
        """Send an order to all workers."""
        for process in self.processes:
            process.send(order)

    def receive(self, seconds: float) -> Iterator[Event]:
        """Yield events up to one that is an answer. Raises `WorkerDied`."""
        deadline = time.monotonic() + seconds
        while True:
            try:
                event = self.events.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                raise WorkerDied("timeout", "") from None
            if event["event"] == "exit":
                raise self._explain_death(event["rank"], event["status"])
            self.responded = True
            if event["event"] == "refused":
                raise WorkerDied("not_as_asked", event["text"])
            if event["event"] == "unwritable":
                raise RecordNotWritten(event["text"])
            yield event
            if event["event"] not in _INTERMEDIATE:
                return
            if event["event"] == "waiting":
                deadline = time.monotonic() + _WAIT_SECONDS

    def _explain_death(self, rank: int, status: int) -> WorkerDied:
        """Return why a process ended by itself."""
        process = self.processes[rank]
        lines = [line for line in process.stderr_lines() if not line.startswith(user_frames.MARK)]
        # srun reports a signal like this.
        status = 128 - status if 128 < status <= 128 + signal.SIGRTMAX else status
        ended = process.explain_exit(status, _relevant_lines(lines))
        if ended.reason != "out_of_memory":
            if self.transport and (cause := self.transport.explain_failure(lines)):
                return WorkerDied(cause[0], environment.scrub(cause[1]))
            if line := next((line for line in lines if "out of memory" in line.lower()), None):
                return WorkerDied("out_of_memory", environment.scrub(line))
        several = f"process {rank}" if len(self.processes) > 1 else "a process"
        which = "the process" if self.shape.processes == 1 else several
        return WorkerDied(ended.reason, f"{which} {ended.text}: {ended.last_line}".rstrip(": "))


@contextlib.contextmanager
def open_worker_group(
    header: Mapping[str, Any], variant: Variant, shape: ProcessShape, platform: str, lock: int | None,
    transport: "Transport | None" = None, log: Path | None = None,
    waiting: Callable[[list[int]], None] = lambda _: None,
) -> Iterator[WorkerGroup]:  # fmt: skip
    """Start the workers of a job, and end them when the context is left. Raises `WorkerDied` when they do not
    start.

    transport: how they are started on other nodes; None: on this host. log: a file for their standard error.
    waiting: called with the processes that hold the cores which a worker waits for.

    """
    worker = [variant.python, "-m", variant.module]
    variables = _worker_variables(variant, platform, transport)
    commands = transport.commands(shape, worker, variables) if transport else [worker] * shape.processes
    events: queue.Queue[Event] = queue.Queue()
    with contextlib.ExitStack() as stack:
        processes = []
        for rank, command in enumerate(commands):
            process = ChildProcess(
                command, reaped=transport is None, log=log, cwd=variant.folder, env=variables,
                deliver=lambda event, rank=rank: events.put(event | {"rank": rank}),  # type: ignore[misc]
                pass_fds=() if transport or lock is None else (lock,),
            )  # fmt: skip
            stack.callback(process.close, *((_LEAVE_SECONDS, _STEP_SECONDS) if transport else ()))
            processes.append(process)
            first = {**header, "shape": dataclasses.asdict(shape)}
            if len(commands) == shape.processes:  # srun gives the workers of a step their ranks
                first["rank"] = rank
            if transport is None:
                first |= {"parent": process.pid, "lock": lock}
            process.send(first)
        group = WorkerGroup(shape, processes, events, transport)
        _await_start(group, waiting)
        yield group


def _await_start(group: WorkerGroup, waiting: Callable[[list[int]], None]) -> None:
    """Wait until the workers are ready. Raises `AllocationLost` where none on other nodes sent anything."""
    try:
        for event in group.receive(_START_SECONDS):
            if event["event"] == "meet":
                group.send({"coordinator": event["address"]})
            if event["event"] == "waiting":
                waiting(event["by"])
    except WorkerDied as death:
        if group.transport and death.reason != "timeout" and not group.responded:
            raise AllocationLost(str(death)) from None
        raise


def _worker_variables(variant: Variant, platform: str, transport: "Transport | None") -> dict[str, str]:
    """Return the environment variables of a worker, without XLA_FLAGS.

    The worker sets the flags that its jaxlib needs.
    """
    kept = transport.environment(os.environ) if transport else dict(os.environ)
    return (
        kept | {"GLIBC_TUNABLES": environment.variables(platform)["GLIBC_TUNABLES"]} | dict(variant.variables)
    )


def _relevant_lines(lines: Sequence[str]) -> list[str]:
    """Return the lines of a worker without those that Slurm or a remote shell adds at its end.

    If the worker wrote none, return the added lines.
    """
    written = [line for line in lines if not line.startswith(("srun:", "slurmstepd", "ssh:", 'Try "srun'))]
    if child_process.last_line(written):
        return written
    specific = (line for line in lines if "error:" in line or "option" in line)
    return [line for line in specific if not any(text in line for text in _GENERAL)] or list(lines)
