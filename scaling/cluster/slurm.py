"""Run Slurm commands: find nodes and devices (sinfo), list jobs (squeue, sacct), cancel them (scancel)."""

import contextlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from scaling.cluster.cluster_settings import ALLOCATION, HOSTS, LOCAL, NONE, ClusterSettings
from scaling.core.case import Refusal, check_names
from scaling.core.formatting import last_line
from scaling.launcher.machine import Machine, local_machine

WAITING = (  # states of a job before its first start, or before it starts again
    "PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT", "RESV_DEL_HOLD",
)  # fmt: skip
ENDED = (  # final states. A job in any other state, even one of a later Slurm version, may still run.
    "BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED",
    "TIMEOUT",
)  # fmt: skip
UNKNOWN = "UNKNOWN"  # state of a task whose job cannot be observed from this process
LOST = "LOST"  # state of a task that apparently ended, or that never started
_TIMEOUT = 60.0  # seconds until a Slurm command fails
_ANY_NODES = 10**6  # assumed number of nodes if sinfo is not available
# Prefixes of the environment variables with which a user selects other jobs, partitions or formats.
_FILTERS = ("SCANCEL_", "SINFO_", "SQUEUE_")


@dataclass(frozen=True)
class JobState:
    """The state of a Slurm job or of a local task."""

    name: str  # state, such as PENDING, RUNNING, COMPLETED, or TIMEOUT
    node: str = ""  # name of the node, or a node list
    reason: str = ""  # reason why the job is pending, or its exit code

    @property
    def live(self) -> bool:
        """Return whether the job is pending or running. Unknown states of a later Slurm count as running."""
        return self.name not in (*ENDED, UNKNOWN, LOST)


def run_command(*arguments: str) -> str:
    """Run a Slurm command, such as squeue, and return its standard output.

    Raise `Refusal` if the command is not installed, fails, or takes more than 60 seconds.
    """
    require_installed(arguments[0])
    variables = {name: value for name, value in os.environ.items() if not name.startswith(_FILTERS)}
    variables["SLURM_BITSTR_LEN"] = "0"  # sacct truncates long array expressions otherwise
    if clusters := variables.get("SBATCH_CLUSTERS"):  # only sbatch reads it
        variables.setdefault("SLURM_CLUSTERS", clusters)
    try:
        process = subprocess.run(
            arguments, env=variables, capture_output=True, text=True, errors="replace", check=False,
            timeout=_TIMEOUT,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise Refusal(f"Slurm does not answer: {arguments[0]} exceeded {_TIMEOUT:.0f} s; try again") from None
    if process.returncode:
        raise Refusal(f"Slurm: {last_line(process.stderr, arguments[0] + ' failed')}")
    return process.stdout


def require_installed(*commands: str) -> None:
    """Raise `Refusal` if one of the commands of Slurm is not in PATH."""
    if missing := [command for command in commands if not shutil.which(command)]:
        reason = f"{missing[0]} is not installed on this host, or its folder is not in PATH"
        fix = "run cluster=slurm on a login node of the cluster; cluster=none runs on this host; a dry run "
        fix += "needs no Slurm if cluster.per_node is set"
        raise Refusal(f"{reason}: {fix}")


class SlurmNode(NamedTuple):
    """A node of a Slurm partition, as sinfo lists it."""

    partition: str
    in_default_partition: bool
    name: str
    devices: int  # number of devices of the requested platform
    cpus: int
    has_constraint: bool  # whether the node has a feature in the constraint of the cluster settings


def find_machine(cluster: ClusterSettings, dry_run: bool) -> Machine:
    """Return a `Machine`: the nodes and devices on which cases run with the given cluster settings.

    If `dry_run` is true and Slurm lists no suitable nodes, assume that there are enough nodes with
    `cluster.per_node` devices. Raise `Refusal` if required settings are missing, or if no node has devices of
    `cluster.platform`.
    """
    if cluster.name in (NONE, LOCAL):
        return local_machine()
    if cluster.name == ALLOCATION:
        return _allocation_machine(cluster)
    if cluster.name == HOSTS:
        if not cluster.hosts or not cluster.per_node:
            raise Refusal(
                "cluster=hosts needs their names and devices: cluster.hosts=[a,b] cluster.per_node=4"
            )
        description = f"of {', '.join(cluster.hosts)}"
        return _remote_machine(cluster, cluster.per_node, len(cluster.hosts), description)
    try:
        return partition_machine(cluster)
    except Refusal as refusal:
        if not (dry_run and cluster.per_node):
            raise
        if shutil.which("sinfo"):
            print(f"scaling: {refusal}; the scripts follow cluster.per_node", file=sys.stderr)
        return _remote_machine(cluster, cluster.per_node, _ANY_NODES, "of cluster.nodes")


def partition_machine(cluster: ClusterSettings) -> Machine:
    """Return a `Machine`: the nodes and devices of the partitions in the settings, as sinfo lists them.

    Raise `Refusal` if sinfo fails, if a partition does not exist, or if the number of devices is unknown.
    """
    all_nodes = _list_nodes(cluster)
    defaults = sorted({node.partition for node in all_nodes if node.in_default_partition})
    partitions = cluster.partition.split(",") if cluster.partition else defaults
    check_names("cluster.partition", partitions, sorted({node.partition for node in all_nodes}))
    constrained_nodes = [node for node in all_nodes if node.has_constraint] or all_nodes
    nodes = [node for node in constrained_nodes if node.partition in partitions]
    location = f"of partition {','.join(partitions)}" if partitions else "of a default partition"
    # Some sites derive the partition from the constraint, the QOS, or the number of devices.
    is_derived = not cluster.partition and (cluster.constraint or cluster.qos or cluster.per_node)
    if is_derived and not any(node.devices for node in nodes):
        nodes, location = constrained_nodes, "of all partitions"
    max_devices = max((node.devices for node in nodes), default=0)
    per_node = min(cluster.per_node or max_devices, max_devices) or cluster.per_node
    if not per_node:
        advice = "set cluster.gres to its name in `sinfo -o %G`, or cluster.per_node to the number per node"
        if others := ", ".join(sorted({node.partition for node in all_nodes if node.devices})):
            advice = f"set cluster.partition to one that has: {others}; or cluster.constraint or cluster.qos"
        device = "core" if cluster.platform == "cpu" else cluster.gres
        raise Refusal(f"no node {location} has a {device}: {advice}")
    usable_nodes = [node for node in nodes if node.devices >= per_node or not max_devices]
    cpus_each = min(node.cpus / node.devices for node in usable_nodes) if max_devices else None
    return _remote_machine(cluster, per_node, len({node.name for node in usable_nodes}), location, cpus_each)


def _remote_machine(
    cluster: ClusterSettings, per_node: int, nodes: int, description: str, cpus_each: float | None = None
) -> Machine:
    return Machine(
        cluster.platform, cluster.device_kind, per_node, min(cluster.nodes or nodes, nodes), description,
        remote=True, untold=cluster.unknown_fields, cpus_each=cpus_each,
    )  # fmt: skip


def _allocation_machine(cluster: ClusterSettings) -> Machine:
    """Return a `Machine`: the nodes and devices of this Slurm allocation."""
    nodes = allocated_nodes()
    if cluster.platform == "cpu":
        cpus_per_core = int(os.environ.get("SLURM_THREADS_PER_CORE") or 0)
        if not cpus_per_core:
            threads = [node.cpus // node.devices for node in _list_nodes(cluster) if node.name in nodes]
            cpus_per_core = max([1, *threads])
        available = max(1, (_cpus_per_node() or 1) // cpus_per_core)
    else:
        available = int(os.environ.get("SLURM_GPUS_ON_NODE") or cluster.per_node or 0)
    if not available:
        raise Refusal(
            "this allocation has no GPU: "
            "request GPUs (--gres=gpu:4), or set cluster.per_node, such as cluster.per_node=4"
        )
    per_node = min(cluster.per_node or available, available)
    return _remote_machine(cluster, per_node, len(nodes), "of this allocation")


def allocated_nodes() -> tuple[str, ...]:
    """Return the names of the nodes of this Slurm allocation. Raise `Refusal` outside an allocation."""
    node_list = os.environ.get("SLURM_JOB_NODELIST")
    if not node_list:
        raise Refusal(
            "cluster=allocation runs inside a Slurm allocation (sbatch or salloc); cluster=slurm submits jobs"
        )
    return tuple(run_command("scontrol", "show", "hostnames", node_list).split())


def _cpus_per_node() -> int | None:
    """Return the smallest number of CPUs that this Slurm job has on a node, or None outside a job."""
    text = os.environ.get("SLURM_JOB_CPUS_PER_NODE", "")  # such as 4(x2),2
    return min(map(int, re.findall(r"(\d+)(?:\(x\d+\))?", text)), default=None)


def cpus_per_gpu() -> float | None:
    """Return the number of CPUs per GPU in this Slurm job, or None outside a job with GPUs."""
    cpus, gpus = _cpus_per_node(), int(os.environ.get("SLURM_GPUS_ON_NODE") or 0)
    return cpus / gpus if cpus and gpus else None


def _list_nodes(cluster: ClusterSettings) -> list[SlurmNode]:
    """Return the nodes of all partitions, as sinfo lists them. With platform=cpu, every core is a device."""
    is_cpu = cluster.platform == "cpu"
    constraint_features = set(re.findall(r"[\w.:-]+", cluster.constraint or ""))
    sinfo_output = run_command("sinfo", "--all", "--noheader", "--Node", "--format=%R|%N|%X|%Y|%G|%P|%c|%f")
    return [
        SlurmNode(
            partition,
            marked.endswith("*"),
            name,
            _parse_count(sockets) * _parse_count(cores) if is_cpu else _count_resource(cluster.gres, gres),
            _parse_count(cpus),
            not constraint_features.isdisjoint(features.split(",")),
        )
        for partition, name, sockets, cores, gres, marked, cpus, features in _split_lines(sinfo_output, 8)
    ]


def _parse_count(text: str) -> int:
    """Return a number that sinfo prints, such as 1536 for "1.50K". Raise `Refusal` for other text."""
    if not re.fullmatch(r"\d+|\d+(\.50)?K", text):
        raise Refusal(f"sinfo prints {text!r} for a number of CPUs: ask the administrator of the cluster")
    return int(1024 * float(text[:-1])) if text.endswith("K") else int(text)


def _count_resource(requested: str, available: str) -> int:
    """Return the number of devices named `requested` in `available`, a list of Slurm generic resources.

    For example, "gpu:h100:8(S:0-1)" has 8 devices with the name "gpu" or "gpu:h100".
    """
    name = requested.split(":")
    resources = [gres.split(":") for gres in re.sub(r"\([^)]*\)", "", available).split(",")]
    return sum(int(words[-1]) for words in resources if words[: len(name)] == name and words[-1].isdigit())


def find_jobs(job_names: Sequence[str], job_ids: Sequence[str]) -> dict[tuple[str, str], JobState]:
    """Return {(job name, job ID): state} for the jobs that squeue or sacct lists.

    squeue lists the jobs with the names `job_names` that are pending, running, or ended recently. If the
    cluster has accounting, sacct adds the ended jobs with the IDs `job_ids` and the other jobs of their
    arrays. The ID of a job in an array has the form "12_3". Raise `Refusal` if squeue fails.
    """
    if not job_names:
        return {}
    options = ("--all", "--noheader", "--array", "--states=all", "--format=%i|%j|%T|%N|%r")
    squeue_output = run_command("squeue", *options, f"--name={','.join(job_names)}")
    states = _find_ended_jobs(job_ids) if job_ids else {}
    for job, name, state, node, reason in _split_lines(squeue_output, 5):  # a later state than that of sacct
        states[name, job] = JobState(state, node, "" if reason == "None" else reason)
    return states


def _find_ended_jobs(job_ids: Sequence[str]) -> dict[tuple[str, str], JobState]:
    """Return {(job name, job ID): final state} for the ended jobs that sacct lists, or {} if sacct fails."""
    options = ("--noheader", "--parsable2", "--allocations", "--format=JobID,JobName,State,NodeList,ExitCode")
    array_ids = ",".join(sorted({job.partition("_")[0] for job in job_ids}))
    states: dict[tuple[str, str], JobState] = {}
    with contextlib.suppress(Refusal):  # a cluster without accounting
        sacct_output = run_command("sacct", *options, f"--jobs={array_ids}")
        for job, name, state_text, node, exit_code in _split_lines(sacct_output, 5):
            reason = "" if exit_code == "0:0" else f"exit code {exit_code}"
            state = JobState(state_text.split(" ")[0], "" if node == "None assigned" else node, reason)
            if not state.live:
                states |= {(name, each): state for each in _expand_array(job)}
    return states


def _split_lines(text: str, count: int) -> list[list[str]]:
    """Return the `count` fields of each line of a text, separated by "|". Omit lines with fewer fields."""
    split_lines = [line.strip().split("|", count - 1) for line in text.splitlines()]
    return [fields for fields in split_lines if len(fields) == count]


def _expand_array(job: str) -> list[str]:
    """Return the job IDs in a Slurm array expression: 12_0, 12_3, 12_5 and 12_7 for "12_[0,3-7:2%2]"."""
    array, bracket, indices = job.partition("_[")
    if not bracket:
        return [job]
    ranges = re.findall(r"(\d+)(?:-(\d+))?(?::(\d+))?", indices.partition("%")[0])
    numbers = [range(int(first), int(last or first) + 1, int(step or 1)) for first, last, step in ranges]
    return [f"{array}_{number}" for each in numbers for number in each]


def cancel_jobs(job_name: str) -> None:
    """Cancel all pending and running Slurm jobs whose job name is `job_name`."""
    run_command("scancel", "--quiet", f"--name={job_name}")
