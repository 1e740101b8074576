"""Build the srun or ssh commands that start workers on other nodes, and explain failed job steps."""

import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from scaling.core.environment import PROGRAM_VARIABLES
from scaling.workers.machine import ProcessShape

# Prefixes of the environment variables from which srun would read the options of the enclosing job.
JOB_OPTION_PREFIXES = (
    "SLURM_GPUS", "SLURM_GRES", "SLURM_TRES", "SLURM_CPU_BIND", "SLURM_CPUS_PER", "SLURM_MEM",
    "SLURM_NTASKS", "SLURM_TASKS_PER", "SLURM_DISTRIBUTION", "SLURM_HINT", "SLURM_EXPORT_ENV", "SLURM_EXACT",
    "SLURM_EXCLUSIVE", "SLURM_OVERLAP",
)  # fmt: skip
# Prefixes of the environment variables that are forwarded to a remote shell.
_FORWARDED_PREFIXES = (
    "JAX_", "XLA_", "CUDA_", "NCCL_", "TPU_", "LIBTPU_", "PYTHONPATH", "GLIBC_TUNABLES", *PROGRAM_VARIABLES,
)  # fmt: skip
_STEP_START_SECONDS = 600  # srun --immediate: an enclosing step may hold the resources, a node may still boot
_STEP_END_SECONDS = 30  # srun --wait: time for the other workers to end after the first one has ended
# Prefixes of messages of Slurm, and of the message of task.py at the time limit of a local task.
_SLURM_PREFIXES = ("srun:", "slurmstepd", "scaling: CANCELLED")
_CAUSES = {  # text in a Slurm message -> reason of the record
    "due to time limit": "timeout", "due to preemption": "preempted", "node fail": "node_failed",
    "exceeded memory limit": "out_of_memory", "exceeded job memory limit": "out_of_memory",
    "out of memory": "out_of_memory", "oom_kill": "out_of_memory", "oom-kill": "out_of_memory",
}  # fmt: skip


def explain_failure(lines: Sequence[str]) -> tuple[str, str] | None:
    """Return (reason, explanation) for a failed job step, or None if the cause is not known.

    `lines` contains the standard error of the step. The reason is a key of `scaling.core.record.REASONS`.
    """
    messages = [line for line in reversed(lines) if line.startswith(_SLURM_PREFIXES)]
    causes = ((reason, line) for line in messages for text, reason in _CAUSES.items() if text in line.lower())
    no_heartbeat = any("stopped sending heartbeats" in line for line in lines)  # a message of JAX
    text = "a process of the case stopped sending heartbeats: its node or its network failed"
    return next(causes, ("node_failed", text) if no_heartbeat else None)


def gpu_request(option: str, gres: str, shape: ProcessShape) -> dict[str, str]:
    """Return a Slurm option that requests the GPUs of a case, such as {"gres": "gpu:h100:4"}.

    `option` is the name of the option, such as "gpus_per_node". `gres` is a resource, such as "gpu:h100".
    """
    if option == "gres":
        return {"gres": f"{gres}:{shape.devices // shape.nodes}"}
    gpu_type = "".join(f"{word}:" for word in gres.split(":")[1:])
    gpu_count = shape.devices // (shape.nodes if option == "gpus_per_node" else shape.processes)
    return {option: f"{gpu_type}{gpu_count}"}


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
        """Return a list with one srun command, which starts all workers."""
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


@dataclass(frozen=True)
class SshShells:
    """Options to start workers on other hosts through a remote shell (ssh), in the current folder."""

    nodes: tuple[str, ...]  # names of the hosts
    shell: tuple[str, ...] = ("ssh", "-o", "BatchMode=yes")  # followed by the host name and the command

    def commands(
        self, shape: ProcessShape, worker: Sequence[str], variables: Mapping[str, str]
    ) -> list[list[str]]:
        """Return one remote shell command per process, which sets environment variables and runs `worker`."""
        forwarded = sorted(name for name in variables if name.startswith(_FORWARDED_PREFIXES))
        assignments = [f"{name}={variables[name]}" for name in forwarded]
        commands = []
        for host in self.nodes[: shape.nodes]:
            remote_command = shlex.join(["env", f"AD_SCALING_NODE={host}", *assignments, *worker])
            command = [*self.shell, host, f"cd {shlex.quote(os.getcwd())} && exec {remote_command}"]
            commands += [command] * (shape.processes // shape.nodes)
        return commands


Transport = SrunSteps | SshShells  # how worker processes are started on other nodes
