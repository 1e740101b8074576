"""Transports: how workers are started on other nodes, as a step of a Slurm allocation or through a remote
shell.

Knows the options of srun and of a shell; not what is started with them.
"""

import os
import re
import shlex
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from scaling.core.case import Refusal
from scaling.core.environment import last_line
from scaling.workers.machine import ProcessShape

_JOB_VARIABLES = (  # pass a job's request from Slurm to srun; a step of another shape must not have them
    "SLURM_GPUS", "SLURM_GRES", "SLURM_TRES", "SLURM_CPU_BIND", "SLURM_CPUS_PER", "SLURM_MEM",
    "SLURM_NTASKS", "SLURM_TASKS_PER", "SLURM_DISTRIBUTION", "SLURM_HINT", "SLURM_EXPORT_ENV", "SLURM_EXACT",
    "SLURM_EXCLUSIVE", "SLURM_OVERLAP",
)  # fmt: skip
# Prefixes of the variables that a remote shell passes on.
_FORWARDED = ("JAX_", "XLA_", "CUDA_", "NCCL_", "TPU_", "LIBTPU_", "PYTHONPATH", "GLIBC_TUNABLES")
_WAIT_SECONDS = 30  # between the end of the first worker of a step and the end of the step
_CAUSES = {  # words of srun and slurmstepd -> the reason of a record
    "due to time limit": "timeout", "due to preemption": "preempted", "node fail": "node_failed",
    "exceeded memory limit": "out_of_memory", "exceeded job memory limit": "out_of_memory",
    "out of memory": "out_of_memory", "oom_kill": "out_of_memory", "oom-kill": "out_of_memory",
}  # fmt: skip


def explain_failure(lines: Sequence[str]) -> tuple[str, str] | None:
    """Return why Slurm ended a step, as (reason of a record, line), or None.

    The line is taken from the output of srun and slurmstepd.
    """
    causes = ((reason, line) for line in lines for text, reason in _CAUSES.items() if text in line.lower())
    silent = any("stopped sending heartbeats" in line for line in lines)  # of JAX's coordination service
    text = "a process of the case stopped sending heartbeats: its node failed, or lost its network"
    return next(causes, ("node_failed", text) if silent else None)


class Transport:
    """How worker processes are started on other nodes."""

    explain_failure = staticmethod(explain_failure)

    def commands(
        self, shape: ProcessShape, worker: Sequence[str], variables: Mapping[str, str]
    ) -> list[list[str]]:
        """Return the commands that start the workers of a shape: one for each, or one for all."""
        raise NotImplementedError

    def environment(self, variables: Mapping[str, str]) -> dict[str, str]:
        """Return the environment variables of these commands, without the request of the job."""
        return {name: value for name, value in variables.items() if not name.startswith(_JOB_VARIABLES)}

    def host_names(self, count: int) -> list[str] | None:
        """Return the names of the first nodes, as records have them; None where only the workers know."""
        return None


def gpu_request(option: str, gres: str, shape: ProcessShape) -> dict[str, str]:
    """Return the option of sbatch or srun that requests the GPUs of a shape, by its long name.

    option: a member of `settings.GPU_OPTIONS`. gres: what Slurm calls a GPU, with or without its type.
    """
    if option == "gres":
        return {"gres": f"{gres}:{shape.devices // shape.nodes}"}
    kind = "".join(f"{word}:" for word in gres.split(":")[1:])
    count = shape.devices // (shape.nodes if option == "gpus_per_node" else shape.processes)
    return {option.replace("_", "-"): f"{kind}{count}"}


@dataclass(frozen=True)
class SrunSteps(Transport):
    """The nodes of an allocation, in which workers run as steps."""

    nodes: tuple[str, ...]
    platform: str
    gres: str = "gpu"  # name of an accelerator in Slurm, with or without its type
    cores: float | None = None  # for each accelerator
    arguments: tuple[str, ...] = ()  # additional options of srun, such as those of a container
    gpu_option: str = "gres"  # how GPUs are requested
    mpi: str | None = "none"  # the value of --mpi; None: the default of the cluster

    def commands(
        self, shape: ProcessShape, worker: Sequence[str], variables: Mapping[str, str]
    ) -> list[list[str]]:
        """Return the srun command that starts all workers of a shape.

        Its standard input is passed to each worker.
        """
        per_node = shape.processes // shape.nodes
        per_process = shape.devices // shape.processes
        words = [
            "srun", "--exact", "--mem=0", *([f"--mpi={self.mpi}"] if self.mpi else []),
            "--kill-on-bad-exit=1", f"--wait={_WAIT_SECONDS}", "--unbuffered", "--distribution=block",
            "--export=ALL",
            f"--nodes={shape.nodes}", f"--ntasks={shape.processes}", f"--ntasks-per-node={per_node}",
            f"--nodelist={','.join(self.nodes[: shape.nodes])}",
        ]  # fmt: skip
        if self.platform == "cpu":  # a device is a core, and not a thread of one
            words += [f"--cpus-per-task={per_process}", "--hint=nomultithread"]
        else:  # with GPUs per task, a worker would see its own alone
            option = "gres" if self.gpu_option == "gres" else "gpus_per_node"
            words += [f"--{name}={value}" for name, value in gpu_request(option, self.gres, shape).items()]
            words += [f"--cpus-per-task={max(1, int(self.cores * per_process))}"] if self.cores else []
        return [[*words, *self.arguments, *worker]]

    def host_names(self, count: int) -> list[str] | None:
        """Return the names of the first nodes of the allocation."""
        return list(self.nodes[:count])


@dataclass(frozen=True)
class SshShells(Transport):
    """Hosts on which a remote shell starts workers, in the current folder, which must exist there too."""

    hosts: tuple[str, ...]
    shell: tuple[str, ...] = ("ssh", "-o", "BatchMode=yes")

    def commands(
        self, shape: ProcessShape, worker: Sequence[str], variables: Mapping[str, str]
    ) -> list[list[str]]:
        """Return a shell command for each worker, with the variables that JAX reads.

        Commands for the same host are adjacent.
        """
        kept = sorted(name for name in variables if name.startswith(_FORWARDED))
        words = ["env", "AD_SCALING_NODE={}", *(f"{name}={variables[name]}" for name in kept), *worker]
        each = shape.processes // shape.nodes
        return [
            [*self.shell, host, f"cd {shlex.quote(os.getcwd())} && "
             f"exec {shlex.join(words).replace('{}', host)}"]
            for host in self.hosts[: shape.nodes] for _ in range(each)
        ]  # fmt: skip


def allocated_nodes() -> tuple[str, ...]:
    """Return the names of the nodes of the allocation that this process runs in."""
    node_list = os.environ.get("SLURM_JOB_NODELIST")
    if not node_list:
        raise Refusal(
            "cluster=allocation runs inside an allocation of Slurm (sbatch or salloc); "
            "cluster=slurm asks for one"
        )
    command = ["scontrol", "show", "hostnames", node_list]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Refusal(f"scontrol does not list the nodes of this allocation: {last_line(done.stderr)}")
    return tuple(done.stdout.split())


def cpus_per_node() -> int | None:
    """Return the smallest number of CPUs that this job has on any of its nodes; None outside a job."""
    text = os.environ.get("SLURM_JOB_CPUS_PER_NODE", "")  # such as 4(x2),2
    return min(map(int, re.findall(r"(\d+)(?:\(x\d+\))?", text)), default=None)


def cpus_per_gpu() -> float | None:
    """Return the CPUs of a node of this job for each of its GPUs; None if it has no GPU."""
    cpus, gpus = cpus_per_node(), int(os.environ.get("SLURM_GPUS_ON_NODE") or 0)
    return cpus / gpus if cpus and gpus else None
