"""Call sinfo, squeue, sacct and scancel: list nodes and job states, and find the `Machine` of a cluster."""

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
from scaling.core.case import Refusal, unknown_name
from scaling.core.formatting import last_line
from scaling.workers.machine import Machine, local_machine

WAITING = (  # states of a job before its first start, or before it starts again
    "PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT", "RESV_DEL_HOLD",
)  # fmt: skip
ENDED = (  # final states; a job in any other state may still run, also in a state of a later Slurm version
    "BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED",
    "TIMEOUT",
)  # fmt: skip
UNKNOWN = "UNKNOWN"  # state of a task whose job cannot be observed from this process
LOST = "LOST"  # state of a task that has ended or never started, as far as can be observed
_TIMEOUT = 60.0  # seconds, timeout of a Slurm command
_ANY_NODES = 10**6  # assumed number of nodes if sinfo is not available
# Prefixes of the environment variables with which a user selects other jobs for squeue and scancel.
_FILTERS = ("SCANCEL_", "SQUEUE_ACCOUNT", "SQUEUE_PARTITION", "SQUEUE_QOS", "SQUEUE_STATES", "SQUEUE_USERS")


@dataclass(frozen=True)
class JobState:
    """The state of a Slurm job or a local task."""

    name: str  # state, such as PENDING, RUNNING, COMPLETED, or TIMEOUT
    node: str = ""  # name of the node, or a node list
    reason: str = ""  # reason why the job is pending, or its exit code

    @property
    def live(self) -> bool:
        """Return whether the job is pending, is running, or will run again."""
        return self.name not in (*ENDED, UNKNOWN, LOST)


def run_command(*arguments: str) -> str:
    """Run a Slurm command, such as squeue, and return its standard output. Raise `Refusal` if it fails."""
    variables = {name: value for name, value in os.environ.items() if not name.startswith(_FILTERS)}
    variables["SLURM_BITSTR_LEN"] = "0"  # sacct truncates long array expressions otherwise
    if clusters := variables.get("SBATCH_CLUSTERS"):  # only sbatch reads it
        variables.setdefault("SLURM_CLUSTERS", clusters)
    try:
        done = subprocess.run(
            arguments, env=variables, capture_output=True, text=True, check=False, timeout=_TIMEOUT
        )
    except FileNotFoundError:
        raise Refusal(
            f"{arguments[0]} is not installed on this host: "
            "run cluster=slurm on a login node of the cluster; cluster=none runs on this host"
        ) from None
    except subprocess.TimeoutExpired:
        raise Refusal(f"Slurm does not answer: {arguments[0]} exceeded {_TIMEOUT:.0f} s; try again") from None
    if done.returncode:
        raise Refusal(f"Slurm: {last_line(done.stderr, arguments[0] + ' failed')}")
    return done.stdout


class SlurmNode(NamedTuple):
    """A node of a Slurm partition, as listed by sinfo."""

    partition: str
    in_default_partition: bool
    name: str
    devices: int  # number of devices of the requested platform
    cpus: int
    has_constraint: bool  # whether the constraint of the cluster settings names a feature of the node


def find_machine(cluster: ClusterSettings, dry_run: bool) -> Machine:
    """Return the `Machine` (nodes and devices) that the cluster settings select for a run.

    If Slurm cannot be queried in a dry run, use the node and device numbers in the cluster settings. Raise
    `Refusal` if required settings are missing, or if the nodes have no device of the platform.
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
        name = f"of {', '.join(cluster.hosts)}"
        return _remote_machine(cluster, cluster.per_node, len(cluster.hosts), name)
    try:
        return partition_machine(cluster)
    except Refusal as refusal:
        if not (dry_run and cluster.per_node):
            fix = "; for a dry run, set cluster.per_node, such as cluster.per_node=4" if dry_run else ""
            raise Refusal(f"{refusal}{fix}") from None
        if shutil.which("sinfo"):
            ignored = f"the Slurm of this host is ignored: {refusal}"
            print(f"scaling: {ignored}; the scripts follow cluster.per_node", file=sys.stderr)
        return _remote_machine(cluster, cluster.per_node, _ANY_NODES, "of cluster.nodes")


def partition_machine(cluster: ClusterSettings) -> Machine:
    """Return a `Machine` with the nodes that a job may use, and the devices and CPUs that sinfo reports.

    Search the configured or the default partition for nodes with a feature that the constraint names. If the
    default partition has no devices, but a constraint, a QOS, or `per_node` is set, search all partitions,
    because some sites derive the partition from these options. If `per_node` is not set, use the largest
    number of devices on a node. If sinfo lists no devices, each node has `per_node` devices. Raise `Refusal`
    if sinfo fails, or if the partition or number of devices is unknown.
    """
    all_nodes = _list_nodes(cluster)
    default = list(dict.fromkeys(node.partition for node in all_nodes if node.in_default_partition))
    names = cluster.partition.split(",") if cluster.partition else default
    partitions = sorted({node.partition for node in all_nodes})
    if unknown := [name for name in names if name not in partitions]:
        raise unknown_name("cluster.partition", unknown[0], partitions)
    candidates = [node for node in all_nodes if node.has_constraint] or all_nodes
    nodes = [node for node in candidates if node.partition in names]
    where = f"of partition {','.join(names)}"
    is_elsewhere = not cluster.partition and (cluster.constraint or cluster.qos or cluster.per_node)
    if is_elsewhere and not any(node.devices for node in nodes):
        nodes = candidates
        where = "of all partitions" + (f" with constraint {cluster.constraint}" if cluster.constraint else "")
    maximum = max((node.devices for node in nodes), default=0)
    per_node = min(cluster.per_node or maximum, maximum) or cluster.per_node
    if not per_node:
        advice = "set cluster.gres to its name in `sinfo -o %G`, or cluster.per_node to the number per node"
        if having := ", ".join(sorted({node.partition for node in all_nodes if node.devices})):
            advice = f"set cluster.partition to one that has: {having}; or cluster.constraint or cluster.qos"
        raise Refusal(f"no node of partition {','.join(names)} has a {cluster.gres}: {advice}")
    suitable = [node for node in nodes if node.devices >= per_node or not maximum]
    cpus = min(node.cpus / node.devices for node in suitable) if maximum else None
    return _remote_machine(cluster, per_node, len({node.name for node in suitable}), where, cpus)


def _remote_machine(
    cluster: ClusterSettings, per_node: int, nodes: int, name: str, cpus_each: float | None = None
) -> Machine:
    return Machine(
        cluster.platform, cluster.device_kind, per_node, min(cluster.nodes or nodes, nodes), name,
        remote=True, untold=cluster.untold, cpus_each=cpus_each,
    )  # fmt: skip


def _allocation_machine(cluster: ClusterSettings) -> Machine:
    nodes = allocated_nodes()
    gpus = int(os.environ.get("SLURM_GPUS_ON_NODE") or cluster.per_node or 0)
    available = (_cpus_per_node() or 1) if cluster.platform == "cpu" else gpus
    if not available:
        raise Refusal(
            "this allocation has no GPU: "
            "request GPUs (--gres=gpu:4), or set cluster.per_node, such as cluster.per_node=4"
        )
    per_node = min(cluster.per_node or available, available)
    return _remote_machine(cluster, per_node, len(nodes), "of this allocation")


def allocated_nodes() -> tuple[str, ...]:
    """Return the node names of the current Slurm allocation. Raise `Refusal` outside an allocation."""
    node_list = os.environ.get("SLURM_JOB_NODELIST")
    if not node_list:
        raise Refusal(
            "cluster=allocation runs inside a Slurm allocation (sbatch or salloc); cluster=slurm submits jobs"
        )
    return tuple(run_command("scontrol", "show", "hostnames", node_list).split())


def _cpus_per_node() -> int | None:
    """Return the smallest number of CPUs on any node of the current Slurm job, or None outside a job."""
    text = os.environ.get("SLURM_JOB_CPUS_PER_NODE", "")  # such as 4(x2),2
    return min(map(int, re.findall(r"(\d+)(?:\(x\d+\))?", text)), default=None)


def cpus_per_gpu() -> float | None:
    """Return the number of CPUs per GPU of the current Slurm job, or None if there is no job or no GPU."""
    cpus, gpus = _cpus_per_node(), int(os.environ.get("SLURM_GPUS_ON_NODE") or 0)
    return cpus / gpus if cpus and gpus else None


def _list_nodes(cluster: ClusterSettings) -> list[SlurmNode]:
    """Return all nodes that sinfo lists, once for each partition. On the CPU platform, a device is a core."""
    is_cpu, constraint = cluster.platform == "cpu", set(re.findall(r"[\w.:-]+", cluster.constraint or ""))
    text = run_command("sinfo", "--noheader", "--Node", "--format=%R|%N|%X|%Y|%G|%P|%c|%f")
    return [
        SlurmNode(
            partition,
            marked.endswith("*"),
            name,
            int(sockets) * int(cores) if is_cpu else _count_resource(cluster.gres, gres),
            int(cpus),
            not constraint.isdisjoint(features.split(",")),
        )
        for partition, name, sockets, cores, gres, marked, cpus, features in _split_lines(text, 8)
    ]


def _count_resource(requested: str, available: str) -> int:
    """Return the count of a resource, such as "gpu:h100", in Slurm GRES text, such as "gpu:h100:8(S:0-1)"."""
    name = requested.split(":")
    resources = [text.split(":") for text in re.sub(r"\([^)]*\)", "", available).split(",")]
    return sum(int(words[-1]) for words in resources if words[: len(name)] == name and words[-1].isdigit())


def list_jobs(names: Sequence[str]) -> dict[str, dict[str, JobState]]:
    """Return the jobs with the given names, as a dict from job name to a dict from job ID to state.

    squeue lists pending and running jobs, and jobs that ended in the last minutes. Each task of a job array
    has its own ID, such as "12_3". Raise `Refusal` if squeue fails.
    """
    jobs: dict[str, dict[str, JobState]] = {name: {} for name in names}
    if names:
        options = ("--noheader", "--array", "--states=all", "--format=%i|%j|%T|%N|%r")
        text = run_command("squeue", *options, f"--name={','.join(names)}")
        for job, name, state, node, reason in _split_lines(text, 5):
            jobs.get(name, {})[job] = JobState(state, node, "" if reason == "None" else reason)
    return jobs


def list_ended_jobs(name: str, jobs: Sequence[str]) -> dict[str, JobState]:
    """Return the final states of jobs in Slurm accounting, as a dict from job ID, such as "12_3", to state.

    Jobs with another name are ignored: another cluster may use the same IDs, and Slurm may reuse an ID.
    """
    options = ("--noheader", "--parsable2", "--allocations")
    columns = "--format=JobID,JobName,State,NodeList,ExitCode"
    ids = ",".join(sorted({job.partition("_")[0] for job in jobs}))
    states: dict[str, JobState] = {}
    with contextlib.suppress(Refusal):  # a cluster without accounting
        text = run_command("sacct", *options, columns, f"--jobs={ids}") if jobs else ""
        for job, job_name, end, node, code in _split_lines(text, 5):
            reason = "" if code == "0:0" else f"exit code {code}"
            state = JobState(end.split(" ")[0], "" if node == "None assigned" else node, reason)
            if job_name == name and not state.live:
                states |= dict.fromkeys(_expand_array(job), state)
    return states


def _split_lines(text: str, count: int) -> list[list[str]]:
    """Split each line at "|" into `count` fields. Skip lines with fewer fields, such as "CLUSTER: east"."""
    rows = [line.strip().split("|", count - 1) for line in text.splitlines()]
    return [row for row in rows if len(row) == count]


def _expand_array(job: str) -> list[str]:
    """Expand a Slurm array expression, such as "12_[0,3-4%2]", to job IDs: ["12_0", "12_3", "12_4"]."""
    array, bracket, indices = job.partition("_[")
    if not bracket:
        return [job]
    spans = [span.split("-") for span in indices.rstrip("]").partition("%")[0].split(",")]
    return [f"{array}_{n}" for span in spans for n in range(int(span[0]), int(span[-1]) + 1)]


def cancel(name: str) -> None:
    """Cancel the running and pending Slurm jobs with the given name."""
    run_command("scancel", "--quiet", f"--name={name}")
