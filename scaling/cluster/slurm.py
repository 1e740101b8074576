"""Slurm: what its commands say of its nodes and of jobs. Knows their words and formats; not what runs in a job."""

import datetime
import os
import re
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from scaling.cluster.settings import Cluster
from scaling.core.case import Refusal, unknown_name
from scaling.core.environment import last_line
from scaling.workers.machine import Machine
from scaling.workers.transport import allocated_nodes

LIVE = (
    "PENDING", "CONFIGURING", "RUNNING", "COMPLETING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SUSPENDED", "STOPPED",
    "RESIZING", "SIGNALING", "STAGE_OUT", "SPECIAL_EXIT", "RESV_DEL_HOLD",
)  # fmt: skip
_SECONDS = 60.0  # for a command of Slurm to answer
_ANY_NODES = 10**6  # nodes of a cluster that cannot be asked
_GONE = "Invalid job id"  # squeue has forgotten all of them


@dataclass(frozen=True)
class JobState:
    """What is known of a job: Slurm's own words."""

    name: str  # PENDING, RUNNING, COMPLETED, TIMEOUT, ...
    node: str = ""
    elapsed: str = ""
    reason: str = ""  # why it waits, or its exit code

    @property
    def live(self) -> bool:
        """Whether it waits, runs, or will again."""
        return self.name in LIVE


def ask(*words: str) -> str:
    """What a command of Slurm prints; a `Refusal` with its own words where it fails."""
    try:
        done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=_SECONDS)
    except FileNotFoundError:
        raise Refusal(
            f"there is no {words[0]} here: cluster=slurm is for a node that submits jobs; cluster=none runs here"
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

    Where the default partition has no such device and a constraint, a QOS or `per_node` is given, the nodes of all partitions
    count: the site then chooses the partition from these. `per_node` is trusted where sinfo shows no device at all.
    """
    known = _nodes(cluster)
    pools = _pools(cluster, known)
    nodes = next(
        (pool for pool in pools if any(node.devices for node in pool)), next(filter(None, pools), [])
    )
    found = {node.name: node.devices for node in nodes}
    most = max(found.values(), default=0)
    name = _name_of(cluster, nodes, known)
    if not most and not cluster.per_node:
        raise _no_device(cluster, known)
    each = min(cluster.per_node or most, most or cluster.per_node or 0)
    count = sum(has >= each for has in found.values()) if most else len(found)
    cpus = [node.cpus / node.devices for node in nodes if node.devices >= each and node.devices]
    return Machine(
        cluster.platform, cluster.device_kind, each, min(cluster.nodes or count, count), name, remote=True,
        untold=cluster.untold, cpus_each=min(cpus, default=None),
    )  # fmt: skip


def assumed_machine(cluster: Cluster) -> Machine:
    """Return the nodes of a cluster that cannot be asked, by its settings alone."""
    if not cluster.per_node:
        raise Refusal(
            "no sinfo here says how many devices a node has: set cluster.per_node, such as cluster.per_node=4"
        )
    return Machine(
        cluster.platform, cluster.device_kind, cluster.per_node, cluster.nodes or _ANY_NODES, "of cluster.nodes", remote=True,
        untold=cluster.untold,
    )  # fmt: skip


def _nodes(cluster: Cluster) -> list[SlurmNode]:
    """Return every node of every partition."""
    lines = ask("sinfo", "--noheader", "--Node", "--format=%R|%N|%X|%Y|%G|%P|%c|%f").splitlines()
    nodes = []
    for line in lines:
        partition, name, sockets, cores, gres, starred, cpus, features = line.split("|", 7)
        devices = _devices(cluster, int(sockets) * int(cores), gres)
        has = frozenset(features.split(","))
        nodes.append(SlurmNode(partition, starred.endswith("*"), name, devices, int(cpus), has))
    return nodes


def _pools(cluster: Cluster, known: Sequence[SlurmNode]) -> list[list[SlurmNode]]:
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


def _name_of(cluster: Cluster, nodes: Sequence[SlurmNode], known: Sequence[SlurmNode]) -> str:
    """Return where these nodes are, in words."""
    if cluster.partition is None and not all(node.default for node in nodes):
        return "of all partitions" + (f" with constraint {cluster.constraint}" if cluster.constraint else "")
    default = next((node.partition for node in known if node.default), "")
    return f"of partition {cluster.partition or default}"


def _no_device(cluster: Cluster, known: Sequence[SlurmNode]) -> Refusal:
    """Return the refusal for a partition whose nodes have no device of the platform, with the partitions that have one."""
    default = next((node.partition for node in known if node.default), "")
    where = f"partition {cluster.partition or default}"
    others = sorted({node.partition for node in known if node.devices})
    if others:
        advice = f"set cluster.partition to one that has: {', '.join(others)}; or cluster.constraint or cluster.qos"
    else:
        advice = "set cluster.gres to what `sinfo -o %G` calls it, or cluster.per_node to how many a node has"
    return Refusal(f"no node of {where} has a {cluster.gres}: {advice}")


def _devices(cluster: Cluster, cores: int, gres: str) -> int:
    """How many devices a node has: cores, or what its gres says, such as gpu:h100:8(S:0-1),shard:16."""
    if cluster.platform == "cpu":
        return cores
    wanted = cluster.gres.split(":")
    counts = 0
    for each in re.sub(r"\([^)]*\)", "", gres).split(","):
        *name, count = each.split(":")
        if name[: len(wanted)] == wanted and count.isdigit():
            counts += int(count)
    return counts


def allocation(cluster: Cluster) -> Machine:
    """The nodes of the allocation that this process runs in."""
    nodes = allocated_nodes()
    if cluster.platform == "cpu":
        told = os.environ.get("SLURM_JOB_CPUS_PER_NODE", "1")  # such as 4(x2),2
        has = min(int(word.split("(")[0]) for word in told.split(","))
    else:
        has = int(os.environ.get("SLURM_GPUS_ON_NODE") or cluster.per_node or 0)
    if not has:
        raise Refusal(
            "this allocation tells of no gpu: ask for some (--gres=gpu:4), or say how many with cluster.per_node=4"
        )
    each = min(cluster.per_node or has, has)
    return Machine(
        cluster.platform, cluster.device_kind, each, len(nodes), "of this allocation", True, cluster.untold
    )


def most_in_array() -> int:
    """How many tasks an array may have."""
    told = re.search(r"^MaxArraySize\s*=\s*(\d+)", ask("scontrol", "show", "config"), re.MULTILINE)
    return max(1, int(told.group(1)) - 1) if told else 1000


def states(jobs: Sequence[str]) -> dict[str, JobState]:
    """What is known of these jobs ('12_3'), by job; of one that Slurm has forgotten, nothing."""
    if not jobs:
        return {}
    known = accounted(jobs)
    ids = ",".join(sorted({job.partition("_")[0] for job in jobs}))
    try:
        waiting = ask(
            "squeue", "--noheader", "--array", "--states=all", f"--jobs={ids}", "--format=%i|%T|%N|%M|%r"
        )
    except Refusal as refusal:
        if _GONE not in str(refusal):
            raise
        waiting = ""
    told = set[str]()
    for line in waiting.splitlines():
        job, name, node, elapsed, reason = line.strip().split("|", 4)
        told.add(job)
        if JobState(name).live or job not in known or JobState(known[job].name).live:
            known[job] = JobState(name, node, elapsed, "" if reason == "None" else reason)
    # Accounting may never have heard of an end: what it believes to run, and the controller does not know, does not run.
    return {job: known[job] for job in jobs if job in known and (job in told or not known[job].live)}


def accounted(jobs: Iterable[str]) -> dict[str, JobState]:
    """What accounting remembers of jobs; nothing where there is none."""
    ids = ",".join(sorted({job.partition("_")[0] for job in jobs}))
    try:
        told = ask(
            "sacct", "--noheader", "--parsable2", "--allocations", f"--jobs={ids}",
            "--format=JobID,State,NodeList,Elapsed,ExitCode",
        )  # fmt: skip
    except Refusal:
        return {}
    found: dict[str, JobState] = {}
    for line in told.splitlines():
        job, name, node, elapsed, code = line.split("|")
        node = "" if node == "None assigned" else node
        state = JobState(name.split(" ")[0], node, elapsed, "" if code == "0:0" else f"exit code {code}")
        found |= dict.fromkeys(_each(job), state)
    return found


def remembered(name: str, since: str) -> list[str]:
    """Return the jobs of a name that accounting knows, also those that have ended; nothing where there is no accounting.

    since: when the first of them was submitted, in UTC.
    """
    start = datetime.datetime.fromisoformat(since).astimezone() - datetime.timedelta(minutes=5)
    try:
        told = ask(
            "sacct", "--noheader", "--parsable2", "--allocations", f"--name={name}", f"--starttime={start:%Y-%m-%dT%H:%M:%S}",
            "--format=JobID",
        )  # fmt: skip
    except Refusal:
        return []
    return [job for line in told.splitlines() for job in _each(line.strip())]


def _each(job: str) -> list[str]:
    """The jobs of a name such as 12_[0,3-5%2], which are those of an array that never began."""
    array, bracket, rest = job.partition("_[")
    if not bracket:
        return [job]
    spans = [span.split("-") for span in rest.rstrip("]").partition("%")[0].split(",")]
    return [f"{array}_{n}" for span in spans for n in range(int(span[0]), int(span[-1]) + 1)]


def cancel(jobs: Iterable[str]) -> None:
    """End jobs, and take those that wait from the queue; that one is over already is no error."""
    listed = list(jobs)
    for start in range(0, len(listed), 500):
        ask("scancel", "--quiet", *listed[start : start + 500])


def named(name: str) -> list[str]:
    """The jobs of that name that wait or run."""
    return ask("squeue", "--noheader", "--array", "--me", f"--name={name}", "--format=%i").split()
