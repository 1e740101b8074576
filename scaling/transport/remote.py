"""Steps: how workers are started on nodes that are not this one: as a step of an allocation of Slurm, or through a remote shell.

Knows the words of srun and of a shell; not what is started with them.
"""

import os
import re
import shlex
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from scaling.core.case import Refusal
from scaling.core.environment import last_line
from scaling.core.machine import ProcessShape

OF_THE_JOB = (  # variables by which Slurm tells srun what its job was asked for, and a step of another shape must not
    "SLURM_GPUS", "SLURM_GRES", "SLURM_TRES", "SLURM_CPU_BIND", "SLURM_CPUS_PER", "SLURM_MEM", "SLURM_NTASKS", "SLURM_TASKS_PER",
    "SLURM_DISTRIBUTION", "SLURM_HINT", "SLURM_EXPORT_ENV", "SLURM_EXACT", "SLURM_EXCLUSIVE", "SLURM_OVERLAP",
)  # fmt: skip
_CARRIED = ("JAX_", "XLA_", "CUDA_", "NCCL_", "TPU_", "LIBTPU_", "PYTHONPATH", "GLIBC_TUNABLES")  # variables, by how they begin


_WAIT_SECONDS = 30  # from the end of the first worker of a step to the end of the step


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
class SrunSteps:
    """An allocation in which workers run as steps."""

    nodes: tuple[str, ...]
    platform: str
    gres: str = "gpu"  # what a device of an accelerator is called, with or without its type
    cores: float | None = None  # of each accelerator
    arguments: tuple[str, ...] = ()  # more for srun, such as a container's
    gpu_option: str = "gres"  # how GPUs are requested
    mpi: str | None = "none"  # the value of --mpi; None: the default of the cluster

    def commands(self, shape: ProcessShape, worker: Sequence[str], variables: Mapping[str, str]) -> list[list[str]]:
        """The one srun that starts all workers of a shape; standard input goes to each."""
        each = shape.processes // shape.nodes
        held = shape.devices // shape.processes
        words = [
            "srun", "--exact", "--mem=0", *([f"--mpi={self.mpi}"] if self.mpi else []),
            "--kill-on-bad-exit=1", f"--wait={_WAIT_SECONDS}", "--unbuffered", "--distribution=block", "--export=ALL",
            f"--nodes={shape.nodes}", f"--ntasks={shape.processes}", f"--ntasks-per-node={each}",
            f"--nodelist={','.join(self.nodes[: shape.nodes])}",
        ]  # fmt: skip
        if self.platform == "cpu":
            words += [f"--cpus-per-task={held}", "--hint=nomultithread"]  # a device is a core, and not a thread of one
        else:
            option = "gres" if self.gpu_option == "gres" else "gpus_per_node"  # per task, a worker would see its own GPUs alone
            words += [f"--{name}={value}" for name, value in gpu_request(option, self.gres, shape).items()]
            words += [f"--cpus-per-task={max(1, int(self.cores * held))}"] if self.cores else []
        return [[*words, *self.arguments, *worker]]


@dataclass(frozen=True)
class SshShells:
    """Hosts on which a remote shell starts workers, in this folder, which they must have too."""

    hosts: tuple[str, ...]
    shell: tuple[str, ...] = ("ssh", "-o", "BatchMode=yes")

    def commands(self, shape: ProcessShape, worker: Sequence[str], variables: Mapping[str, str]) -> list[list[str]]:
        """A shell for each worker, those of one host one after another; what steers JAX goes with it."""
        kept = sorted(name for name in variables if name.startswith(_CARRIED))
        words = ["env", "AD_SCALING_NODE={}", *(f"{name}={variables[name]}" for name in kept), *worker]
        each = shape.processes // shape.nodes
        return [
            [*self.shell, host, f"cd {shlex.quote(os.getcwd())} && exec {shlex.join(words).replace('{}', host)}"]
            for host in self.hosts[: shape.nodes] for _ in range(each)
        ]  # fmt: skip


Within = SrunSteps | SshShells


def explain_failure(said: Sequence[str]) -> tuple[str, str] | None:
    """Why Slurm ended a step, by what srun and slurmstepd said: the reason of a record, and their line; None where it did not."""
    known = (
        ("due to time limit", "timeout"), ("due to preemption", "preempted"), ("node fail", "node_failed"),
        ("exceeded memory limit", "out_of_memory"), ("exceeded job memory limit", "out_of_memory"),
        ("out of memory", "out_of_memory"), ("oom_kill", "out_of_memory"), ("oom-kill", "out_of_memory"),
    )  # fmt: skip
    found = next(((reason, line) for line in said for words, reason in known if words in line.lower()), None)
    if found is None and any("stopped sending heartbeats" in line for line in said):  # JAX's coordination service
        return "node_failed", "a process of the case stopped sending heartbeats: its node failed, or lost its network"
    return found


def allocated_nodes() -> tuple[str, ...]:
    """The names of the nodes of the allocation that this process runs in."""
    told = os.environ.get("SLURM_JOB_NODELIST")
    if not told:
        raise Refusal("cluster=allocation runs inside an allocation of Slurm (sbatch or salloc); cluster=slurm asks for one")
    done = subprocess.run(["scontrol", "show", "hostnames", told], capture_output=True, text=True, check=False)
    if done.returncode:
        raise Refusal(f"the nodes of this allocation cannot be told: {last_line(done.stderr)}")
    return tuple(done.stdout.split())


def cpus_per_node() -> int | None:
    """Return the smallest number of CPUs that this job has on any of its nodes; None outside a job."""
    counts = re.findall(r"(\d+)(?:\(x\d+\))?", os.environ.get("SLURM_JOB_CPUS_PER_NODE", ""))  # such as 4(x2),2
    return min(map(int, counts), default=None)


def cpus_per_gpu() -> float | None:
    """Return the CPUs of a node of this job for each of its GPUs; None if it has no GPU."""
    cpus, gpus = cpus_per_node(), int(os.environ.get("SLURM_GPUS_ON_NODE") or 0)
    return cpus / gpus if cpus and gpus else None
