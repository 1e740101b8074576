"""Start the worker processes of a case on this host, with srun or ssh, and send requests (`WorkerGroup`).

child_process.py starts one process, reads its output, and explains its exit.
"""

import contextlib
import dataclasses
import os
import queue
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scaling.core import environment
from scaling.launcher import child_process, cores
from scaling.launcher.child_process import ChildProcess, Event
from scaling.launcher.machine import ProcessShape

_START_SECONDS = 300.0  # timeout to import JAX and initialize the devices
_EXIT_SECONDS = 3.0  # time for the workers of a job step to exit by themselves
_MAX_WAIT_SECONDS = 1.0  # maximum time of one wait for an event; a longer one includes a stop of this process
_STEP_SECONDS = 30.0  # time for Slurm to end a job step
_INTERMEDIATE_EVENTS = ("here", "begin", "meet", "waiting")  # events that are not replies
# Prefixes of the environment variables from which srun would read the options of the enclosing job.
_JOB_OPTION_PREFIXES = (
    "SLURM_GPUS", "SLURM_GRES", "SLURM_TRES", "SLURM_CPU_BIND", "SLURM_CPUS_PER", "SLURM_MEM",
    "SLURM_NTASKS", "SLURM_TASKS_PER", "SLURM_DISTRIBUTION", "SLURM_HINT", "SLURM_EXPORT_ENV", "SLURM_EXACT",
    "SLURM_EXCLUSIVE", "SLURM_OVERLAP",
)  # fmt: skip
# Prefixes of the environment variables that are forwarded to a remote shell.
_FORWARDED_PREFIXES = (
    "JAX_", "XLA_", "CUDA_", "NCCL_", "TPU_", "LIBTPU_", "PYTHONPATH", "GLIBC_TUNABLES",
    *environment.PROGRAM_VARIABLES,
)  # fmt: skip
_STEP_START_SECONDS = 600  # srun --immediate: an enclosing step may hold the resources, a node may still boot
_STEP_END_SECONDS = 30  # srun --wait: time for the other workers to end after the first one has ended


@dataclass(frozen=True)
class SrunSteps:
    """Options to start the workers of a case with srun, as one job step of a Slurm allocation."""

    nodes: tuple[str, ...]  # names of the nodes
    platform: str
    gres: str = "gpu"  # name of the accelerator resource in Slurm, with or without its type
    cores: float | None = None  # CPUs per accelerator, or None for the default of Slurm
    arguments: tuple[str, ...] = ()  # additional srun options, such as the options of a container
    gpu_option: str = "gres"  # option that requests GPUs, an element of `cluster_settings.GPU_OPTIONS`
    mpi: str | None = "none"  # value of the option --mpi, or None for the default of the cluster

    def commands(
        self, shape: ProcessShape, worker: Sequence[str], variables: Mapping[str, str]
    ) -> list[list[str]]:
        """Return a list with one command: srun, which starts all worker processes."""
        per_process = shape.devices // shape.processes
        if self.platform == "cpu":  # a device is a physical core, not a hardware thread
            resources = [f"--cpus-per-task={per_process}", "--hint=nomultithread"]
        else:  # request GPUs per node, because --gpus-per-task would hide the GPUs of the other workers
            option = "gres" if self.gpu_option == "gres" else "gpus_per_node"
            request = gpu_request(option, self.gres, shape)
            if self.cores:
                request["cpus_per_task"] = str(max(1, int(self.cores * per_process)))
            resources = [f"--{name.replace('_', '-')}={value}" for name, value in request.items()]
        command = [
            "srun", "--exact", "--mem=0", *([f"--mpi={self.mpi}"] if self.mpi else []),
            f"--immediate={_STEP_START_SECONDS}", "--kill-on-bad-exit=1", f"--wait={_STEP_END_SECONDS}",
            "--unbuffered", "--distribution=block", "--export=ALL", f"--nodes={shape.nodes}",
            f"--ntasks={shape.processes}", f"--ntasks-per-node={shape.processes // shape.nodes}",
            f"--nodelist={','.join(self.nodes[: shape.nodes])}", *resources, *self.arguments, *worker,
        ]  # fmt: skip
        return [command]


def gpu_request(option: str, gres: str, shape: ProcessShape) -> dict[str, str]:
    """Return the Slurm option that requests the GPUs of a case, in a dict such as {"gres": "gpu:4"}.

    `option` is "gres", "gpus_per_node" or "gpus_per_task". `gres` is a resource with or without its type,
    such as "gpu:h100".
    """
    if option == "gres":
        return {"gres": f"{gres}:{shape.devices // shape.nodes}"}
    gpu_type = "".join(f"{word}:" for word in gres.split(":")[1:])
    gpu_count = shape.devices // (shape.nodes if option == "gpus_per_node" else shape.processes)
    return {option: f"{gpu_type}{gpu_count}"}


@dataclass(frozen=True)
class SshShells:
    """Options to start workers on other hosts through a remote shell (ssh), in the current folder."""

    nodes: tuple[str, ...]  # names of the hosts
    shell: tuple[str, ...] = ("ssh", "-o", "BatchMode=yes")  # followed by the host name and the command

    def commands(
        self, shape: ProcessShape, worker: Sequence[str], variables: Mapping[str, str]
    ) -> list[list[str]]:
        """Return one command per process: a remote shell (ssh) that sets variables and runs `worker`.

        `worker` is the command of a worker process. Of the environment variables `variables`, those with a
        prefix in `_FORWARDED_PREFIXES` are set.
        """
        forwarded = sorted(name for name in variables if name.startswith(_FORWARDED_PREFIXES))
        assignments = [f"{name}={variables[name]}" for name in forwarded]
        commands = []
        for host in self.nodes[: shape.nodes]:
            remote_command = shlex.join(["env", f"AD_SCALING_NODE={host}", *assignments, *worker])
            command = [*self.shell, host, f"cd {shlex.quote(os.getcwd())} && exec {remote_command}"]
            commands += [command] * (shape.processes // shape.nodes)
        return commands


Transport = SrunSteps | SshShells  # how worker processes are started on other nodes


@dataclass(frozen=True)
class Variant:
    """A worker program, and how to start it. A comparison of two programs has two variants."""

    name: str = "this"
    python: str = sys.executable
    module: str = "scaling.worker"  # module that the interpreter runs with -m
    folder: Path | None = None  # working directory, or None for the current one
    variables: Mapping[str, str] = field(default_factory=dict)  # environment variables to add


class WorkerDied(Exception):
    """Raised when a worker process ends, reports that it cannot continue, or exceeds its time limit.

    `reason` is a key of `scaling.core.record.REASONS`. `text` describes the failure ("" after a timeout).
    `detail` is additional text, such as the last line of standard error. It may be empty.
    """

    def __init__(self, reason: str, text: str, detail: str = "") -> None:
        super().__init__(text + detail)
        self.reason, self.text, self.detail = reason, text, detail


class AllocationLost(Exception):
    """Raised if no worker process can be started, for example because the Slurm job has ended."""


@dataclass
class WorkerGroup:
    """The running worker processes that measure a case together, and the queue of their events."""

    processes: list[ChildProcess]  # one process per worker, or the srun process that started all of them
    events: "queue.Queue[Event]"  # events of all processes, with the index of the process as field "rank"
    transport: Transport | None = None  # how the workers were started on other nodes, or None for this host
    seconds_left: float = 0.0  # what the last request left of its time limit

    def request(self, request: Mapping[str, Any], seconds: float) -> Iterator[Event]:
        """Send a request to all workers, and yield their events. The last event is the reply.

        Raise `WorkerDied` if a worker ends, cannot continue, or does not reply within `seconds`.
        """
        self.send(request)
        yield from self.receive(seconds)

    def send(self, request: Mapping[str, Any]) -> None:
        """Send a request to all workers without waiting for a reply."""
        for process in self.processes:
            process.send(request)

    def close(self) -> None:
        """End all workers, if they have not ended."""
        for process in self.processes:
            process.close(*((_EXIT_SECONDS, _STEP_SECONDS) if self.transport else ()))

    def receive(self, seconds: float) -> Iterator[Event]:
        """Yield the events of the workers. The last event is the reply to a request.

        Raise `WorkerDied` if a worker ends, cannot continue, or does not reply within `seconds`. Time in
        which this process is stopped, for example by Ctrl-Z, is not counted.
        """
        self.seconds_left = seconds
        while True:
            began_at, wait = time.monotonic(), min(self.seconds_left, _MAX_WAIT_SECONDS)
            event = None
            with contextlib.suppress(queue.Empty):
                event = self.events.get(timeout=wait)
            self.seconds_left -= min(time.monotonic() - began_at, wait)
            if event is None:
                if self.seconds_left <= 0:
                    raise WorkerDied("timeout", "")
                continue
            if event["event"] == "exit":
                raise self._explain_death(event["rank"], event["status"])
            if event["event"] == "refused":
                fix = f"; {event['fix']}" if event.get("fix") else ""
                raise WorkerDied(event.get("reason", "not_as_asked"), event["text"], fix)
            yield event
            if event["event"] not in _INTERMEDIATE_EVENTS:
                return
            if event["event"] == "waiting":
                self.seconds_left = cores.WAIT_SECONDS + _START_SECONDS

    def _explain_death(self, rank: int, status: int) -> WorkerDied:
        process = self.processes[rank]
        reason, text, last_line = process.explain_exit(status)
        cause = child_process.explain_failure(process.stderr_lines()) if self.transport else None
        if cause and reason != "out_of_memory":
            return WorkerDied(cause[0], environment.scrub(cause[1]))
        return WorkerDied(reason, f"the process {text}", f": {last_line}" if last_line else "")


@contextlib.contextmanager
def open_worker_group(
    header: Mapping[str, Any],
    variant: Variant,
    shape: ProcessShape,
    lock: int | None,
    remote: Transport | None = None,
    log: Path | None = None,
    report_wait: Callable[[str], None] = lambda _: None,
) -> Iterator[WorkerGroup]:
    """Start the workers of a case, and yield their `WorkerGroup`. The workers end when the context exits.

    `header` contains the settings that each worker receives first. `lock` is a file descriptor that local
    workers inherit, or None. `remote` starts the workers on other nodes, and is None for this host.
    `report_wait` receives a message if a worker waits for CPU cores. Raise `WorkerDied` if a worker ends
    before it is ready, or `AllocationLost` if a remote worker ends before any worker has responded.
    """
    worker_command = [variant.python, "-m", variant.module]
    variables = _worker_variables(header["platform"], variant, is_remote=remote is not None)
    local_commands = [worker_command] * shape.processes
    commands = remote.commands(shape, worker_command, variables) if remote else local_commands
    events: queue.Queue[Event] = queue.Queue()
    group = WorkerGroup([], events, remote)
    with contextlib.closing(group):
        for rank, command in enumerate(commands):
            process = ChildProcess(
                command, log=log, cwd=variant.folder, env=variables,
                deliver=lambda event, rank=rank: events.put(event | {"rank": rank}),  # type: ignore[misc]
                pass_fds=() if remote or lock is None else (lock,),
            )  # fmt: skip
            group.processes.append(process)
            worker_header = {**header, "shape": dataclasses.asdict(shape)}
            if len(commands) == shape.processes:  # otherwise srun sets the ranks
                worker_header["rank"] = rank
            if remote is None:
                worker_header |= {"parent": os.getpid(), "lock": lock}
            process.send(worker_header)
        _wait_for_start(group, report_wait)
        yield group


def _worker_variables(platform: str, variant: Variant, is_remote: bool) -> dict[str, str]:
    """Return the environment variables for a worker.

    If `is_remote` is true, they are for srun or ssh, which start the worker. The options of an enclosing
    Slurm job are then left out, because srun would use them.
    """
    # GLIBC_TUNABLES must be set before the process starts. The worker itself adds the default XLA_FLAGS.
    tunables = environment.variables(platform)["GLIBC_TUNABLES"]
    dropped = _JOB_OPTION_PREFIXES if is_remote else ()
    inherited_variables = {name: value for name, value in os.environ.items() if not name.startswith(dropped)}
    return inherited_variables | {"GLIBC_TUNABLES": tunables} | dict(variant.variables)


def _wait_for_start(group: WorkerGroup, report_wait: Callable[[str], None]) -> None:
    """Wait until all workers are ready, and send them the address of the JAX coordinator."""
    responded = False
    try:
        for event in group.receive(_START_SECONDS):
            responded = True
            if event["event"] == "meet":  # rank 0 has chosen the address
                group.send({"coordinator": event["address"]})
            if event["event"] == "waiting":
                report_wait(event.get("text", "waits for cores"))
    except WorkerDied as death:
        if group.transport and death.reason != "timeout" and not responded:
            raise AllocationLost(str(death)) from None
        raise
