"""Slurm: what its commands say about nodes and jobs.

Knows their options and formats; not what runs in a job.
"""

import contextlib
import datetime
import os
import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

from scaling.cluster.settings import Cluster
from scaling.core.case import Refusal, unknown_name
from scaling.core.environment import last_line
from scaling.workers.machine import Machine
from scaling.workers.transport import allocated_nodes, cpus_per_node

LIVE = (
    "PENDING", "CONFIGURING", "RUNNING", "COMPLETING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SUSPENDED",
    "STOPPED", "RESIZING", "SIGNALING", "STAGE_OUT", "SPECIAL_EXIT", "RESV_DEL_HOLD",
)  # fmt: skip
_SECONDS = 60.0  # for a command of Slurm to answer
_ANY_NODES = 10**6  # nodes of a cluster that cannot be asked
_FORGOTTEN = "Invalid job id"  # of squeue, for jobs that have all ended


@dataclass(frozen=True)
class JobState:
    """What is known of a job, in the terms of Slurm."""

    name: str  # PENDING, RUNNING, COMPLETED, TIMEOUT, ...
    node: str = ""
    elapsed: str = ""
    reason: str = ""  # why it waits, or its exit code

    @property
    def live(self) -> bool:
        """Return whether the job waits, runs, or will run again."""
        return self.name in LIVE


def ask(*words: str) -> str:
    """Return what a command of Slurm prints; a `Refusal` with the message of the command if it fails."""
    try:
        done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=_SECONDS)
    except FileNotFoundError:
        raise Refusal(
            f"there is no {words[0]} here: "
            "cluster=slurm is for a node that submits jobs; cluster=none runs here"
        ) from None
    except subprocess.TimeoutExpired:
        raise Refusal(
            f"Slurm does not answer: {words[0]} took more than {_SECONDS:.0f} s; try again"
        ) from None
    if done.returncode:
        raise Refusal(f"Slurm: {last_line(done.stderr, words[0] + ' failed')}")
    return done.stdout


@dataclass(frozen=True)
class SlurmNode:
    """A node in a partition, as sinfo shows it."""

    partition: str
    default: bool  # whether the partition is the default one
    name: str
    devices: int  # of the platform that is asked for
    cpus: int
    features: frozenset[str]


def machine(cluster: Cluster) -> Machine:
    """Return the nodes that a job may run on: of its partition, or of the default one.

    If the default partition has no such device and a constraint, a QOS or `per_node` is given, the nodes of
    all partitions count: the site then chooses the partition by these. `per_node` is trusted if sinfo shows
    no device.
    """
    known = _list_nodes(cluster)
    pools = _node_pools(cluster, known)
    with_devices = (pool for pool in pools if any(node.devices for node in pool))
    nodes = next(with_devices, next(filter(None, pools), []))
    devices = {node.name: node.devices for node in nodes}
    most = max(devices.values(), default=0)
    name = _describe_nodes(cluster, nodes, known)
    if not most:
        if not cluster.per_node:
            raise _no_device(cluster, known)
        return _remote_machine(cluster, cluster.per_node, len(devices), name)
    each = min(cluster.per_node or most, most)
    cpus = min(node.cpus / node.devices for node in nodes if node.devices >= each)
    return _remote_machine(cluster, each, sum(has >= each for has in devices.values()), name, cpus)


def _remote_machine(
    cluster: Cluster, per_node: int, nodes: int, name: str, cpus_each: float | None = None
) -> Machine:
    """Return nodes of a cluster as a machine, at most `cluster.nodes` of them."""
    return Machine(
        cluster.platform, cluster.device_kind, per_node, min(cluster.nodes or nodes, nodes), name,
        remote=True, untold=cluster.untold, cpus_each=cpus_each,
    )  # fmt: skip


def assumed_machine(cluster: Cluster) -> Machine:
    """Return the nodes of a cluster that cannot be asked, by its settings alone."""
    if not cluster.per_node:
        raise Refusal(
            "no sinfo here says how many devices a node has: set cluster.per_node, such as cluster.per_node=4"
        )
    return _remote_machine(cluster, cluster.per_node, _ANY_NODES, "of cluster.nodes")


def _list_nodes(cluster: Cluster) -> list[SlurmNode]:
    """Return every node of every partition."""
    nodes = []
    for line in ask("sinfo", "--noheader", "--Node", "--format=%R|%N|%X|%Y|%G|%P|%c|%f").splitlines():
        partition, name, sockets, cores, gres, starred, cpus, features = line.split("|", 7)
        devices = _count_devices(cluster, int(sockets) * int(cores), gres)
        has = frozenset(features.split(","))
        nodes.append(SlurmNode(partition, starred.endswith("*"), name, devices, int(cpus), has))
    return nodes


def _node_pools(cluster: Cluster, known: Sequence[SlurmNode]) -> list[list[SlurmNode]]:
    """Return the sets of nodes to look at for devices, the most likely first."""
    if cluster.partition:
        partitions = sorted({node.partition for node in known})
        names = cluster.partition.split(",")
        for name in names:
            if name not in partitions:
                raise unknown_name("cluster.partition", name, partitions)
        first = [node for node in known if node.partition in names]
        return [_with_features(cluster, first), first]
    first = [node for node in known if node.default]
    if not (cluster.constraint or cluster.qos or cluster.per_node):
        return [first]
    return [_with_features(cluster, first), _with_features(cluster, known), first, list(known)]


def _with_features(cluster: Cluster, nodes: Sequence[SlurmNode]) -> list[SlurmNode]:
    """Return the nodes that have a feature that the constraint names."""
    named = set(re.findall(r"[\w.:-]+", cluster.constraint or ""))
    return [node for node in nodes if named & node.features]


def _describe_nodes(cluster: Cluster, nodes: Sequence[SlurmNode], known: Sequence[SlurmNode]) -> str:
    """Return where these nodes are, in words."""
    if cluster.partition is None and not all(node.default for node in nodes):
        return "of all partitions" + (f" with constraint {cluster.constraint}" if cluster.constraint else "")
    return f"of {_partition(cluster, known)}"


def _partition(cluster: Cluster, known: Sequence[SlurmNode]) -> str:
    """Return the partition of jobs, in words."""
    default = next((node.partition for node in known if node.default), "")
    return f"partition {cluster.partition or default}"


def _no_device(cluster: Cluster, known: Sequence[SlurmNode]) -> Refusal:
    """Return the refusal for a partition whose nodes have no device of the platform."""
    advice = "set cluster.gres to what `sinfo -o %G` calls it, or cluster.per_node to how many a node has"
    if others := ", ".join(sorted({node.partition for node in known if node.devices})):
        advice = f"set cluster.partition to one that has: {others}; or cluster.constraint or cluster.qos"
    return Refusal(f"no node of {_partition(cluster, known)} has a {cluster.gres}: {advice}")


def _count_devices(cluster: Cluster, cores: int, gres: str) -> int:
    """Return the devices of a node: its cores, or the count in its gres, such as gpu:h100:8(S:0-1)."""
    if cluster.platform == "cpu":
        return cores
    wanted = cluster.gres.split(":")
    count = 0
    for each in re.sub(r"\([^)]*\)", "", gres).split(","):
        *name, number = each.split(":")
        if name[: len(wanted)] == wanted and number.isdigit():
            count += int(number)
    return count


def allocation(cluster: Cluster) -> Machine:
    """Return the nodes of the allocation that this process runs in."""
    nodes = allocated_nodes()
    gpus = int(os.environ.get("SLURM_GPUS_ON_NODE") or cluster.per_node or 0)
    has = (cpus_per_node() or 1) if cluster.platform == "cpu" else gpus
    if not has:
        raise Refusal(
            "this allocation has no gpu: "
            "request some (--gres=gpu:4), or set cluster.per_node, such as cluster.per_node=4"
        )
    each = min(cluster.per_node or has, has)
    return Machine(
        cluster.platform, cluster.device_kind, each, len(nodes), "of this allocation", True, cluster.untold
    )


def max_array_tasks() -> int:
    """Return how many tasks an array may have: the default of Slurm if it does not answer."""
    with contextlib.suppress(Refusal):
        size = re.search(r"^MaxArraySize\s*=\s*(\d+)", ask("scontrol", "show", "config"), re.MULTILINE)
        if size:
            return max(1, int(size.group(1)) - 1)
    return 1000


def states(jobs: Sequence[str]) -> dict[str, JobState]:
    """Return what is known of these jobs (such as 12_3), by job, without those that Slurm has forgotten."""
    if not jobs:
        return {}
    ids = ",".join(sorted({job.partition("_")[0] for job in jobs}))
    known = _accounted_states(ids)
    try:
        lines = ask(
            "squeue", "--noheader", "--array", "--states=all", f"--jobs={ids}", "--format=%i|%T|%N|%M|%r"
        )
    except Refusal as refusal:
        if _FORGOTTEN not in str(refusal):
            raise
        lines = ""
    listed = set[str]()
    for line in lines.splitlines():
        job, name, node, elapsed, reason = line.strip().split("|", 4)
        listed.add(job)
        if name in LIVE or job not in known or known[job].live:
            known[job] = JobState(name, node, elapsed, "" if reason == "None" else reason)
    # Accounting may miss an end: a job that runs by accounting and is unknown to the controller does not run.
    return {job: known[job] for job in jobs if job in known and (job in listed or not known[job].live)}


def _accounted_states(ids: str) -> dict[str, JobState]:
    """Return what accounting remembers of jobs, by job."""
    found: dict[str, JobState] = {}
    for line in _ask_accounting(f"--jobs={ids}", "--format=JobID,State,NodeList,Elapsed,ExitCode"):
        job, name, node, elapsed, code = line.split("|")
        reason = "" if code == "0:0" else f"exit code {code}"
        state = JobState(name.split(" ")[0], "" if node == "None assigned" else node, elapsed, reason)
        found |= dict.fromkeys(_expand_array(job), state)
    return found


def accounted_by_name(name: str, since: str) -> list[str]:
    """Return the jobs of a name that accounting knows, also those that have ended.

    since: when the first of them was submitted, in UTC.
    """
    start = datetime.datetime.fromisoformat(since).astimezone() - datetime.timedelta(minutes=5)
    lines = _ask_accounting(f"--name={name}", f"--starttime={start:%Y-%m-%dT%H:%M:%S}", "--format=JobID")
    return [job for line in lines for job in _expand_array(line.strip())]


def _ask_accounting(*words: str) -> list[str]:
    """Return the lines that sacct prints; none if there is no accounting."""
    try:
        return ask("sacct", "--noheader", "--parsable2", "--allocations", *words).splitlines()
    except Refusal:
        return []


def _expand_array(job: str) -> list[str]:
    """Return the jobs of a name such as 12_[0,3-5%2], which are those of an array that never began."""
    array, bracket, rest = job.partition("_[")
    if not bracket:
        return [job]
    spans = [span.split("-") for span in rest.rstrip("]").partition("%")[0].split(",")]
    return [f"{array}_{n}" for span in spans for n in range(int(span[0]), int(span[-1]) + 1)]


def cancel(jobs: Sequence[str]) -> None:
    """End jobs, and take those that wait from the queue; a job that has ended is no error."""
    for start in range(0, len(jobs), 500):
        ask("scancel", "--quiet", *jobs[start : start + 500])


def named(name: str) -> list[str]:
    """Return the jobs of a name that wait or run."""
    return ask("squeue", "--noheader", "--array", "--me", f"--name={name}", "--format=%i").split()
