"""A task: what a job of a cluster runs, from where it was left.

`python -m scaling.cluster.task FILE` runs what has no record yet of the cases in a task's file (submission.py). Requeued, the
same command goes on: what ran when it was stopped has failed once, what had not begun begins.
"""

import contextlib
import dataclasses
import os
import signal
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from scaling.cluster import submission
from scaling.cluster.settings import ALLOCATION, HOSTS, SLURM, Cluster
from scaling.core import environment, store
from scaling.core.case import Refusal
from scaling.core.record import Record
from scaling.workers import cores, schedule, supervise
from scaling.workers.schedule import Schedule, ScheduledCase
from scaling.workers.transport import SrunSteps, SshShells, allocated_nodes, cpus_per_gpu
from scaling.workers.worker_group import AllocationLost, Transport

_PACKAGE = Path(__file__).resolve().parents[1]
_LOCK_SECONDS = 600.0  # for another run of the same task to end, on a node that the scheduler gave up
_STOPPED = 143  # exit status: ended by the scheduler


def main(words: Sequence[str]) -> int:
    """Run a task; 0 when each of its cases has a record, 1 when they could not be written, 143 when it was stopped."""
    signal.signal(signal.SIGTERM, _stop)
    signal.signal(
        signal.SIGUSR2, signal.SIG_IGN
    )  # the scheduler's early warning: what is finished is on disk already
    path = Path(words[0])
    try:
        work = submission.read(path)
        with store.locked(path.parent, f".{path.stem}.lock", _LOCK_SECONDS) as lock:
            journal = submission.Journal(path)
            job = submission.job_here()
            journal.say(
                "started", job=job, node=environment.node_name(), nodes=_nodes(work.cluster), pid=os.getpid()
            )
            try:
                _run(path, work, journal, lock)
            except KeyboardInterrupt:
                journal.say("stopped")
                return _STOPPED
            except AllocationLost as gone:
                journal.say("stopped", text=str(gone))
                return 1
            except OSError as error:
                with contextlib.suppress(OSError):
                    journal.say("stopped", text=f"cannot write: {error.strerror or error}")
                raise
            journal.say("ended")
            return 0
    except Refusal as refusal:
        print(f"scaling: {refusal}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"scaling: cannot write: {error.strerror or error}; what is finished is kept", file=sys.stderr)
        return 1


def _stop(_signal: int, _frame: Any) -> None:
    raise KeyboardInterrupt


def _nodes(cluster: Cluster) -> list[str]:
    return list(allocated_nodes()) if cluster.name == SLURM else [environment.node_name()]


def _run(path: Path, work: submission.Work, journal: submission.Journal, lock: int) -> None:
    """Put on record what was lost when the task last ran, then run what is left."""
    results = submission.results_of(path)
    records = store.load(results).records
    if lost(results, records, path, work, "killed", "its job was stopped and started again while it ran"):
        records = store.load(results).records
    jobs = remaining(work, records)
    here = {
        around: schedule.planned_environment(work.machine, work.settings, around)
        for around in work.environments
    }
    made = Schedule(jobs, (), 0, work.machine, here)

    def listen(event: dict[str, Any]) -> None:
        if event["event"] == "waiting":
            journal.say("waiting", text=cores.describe_wait(event["by"]))
            return
        named = ("key", "replicate", "attempt", "seat", "status", "reason", "text", "seconds")
        journal.say(event["event"], **{name: event[name] for name in named if name in event})

    copied = _PACKAGE.is_relative_to(path.parent.resolve())
    where = site(work.cluster, journal.folder, work.nested, copied)
    supervise.run_schedule(made, work.settings, results, lock, listen, site=where)


def site(
    cluster: Cluster, errors: Path | None = None, nested: bool = False, snapshot: bool = False
) -> supervise.Site:
    """Where workers run: as steps of this allocation, or here; with what records are to hold of it."""
    told: dict[str, Any] = {"job": submission.job_here(), "cluster": cluster.name, "nested": nested}
    restarts = int(os.environ.get("SLURM_RESTART_COUNT", "0"))
    transport: Transport | None = None
    if cluster.name in (SLURM, ALLOCATION):
        transport = SrunSteps(
            allocated_nodes(), cluster.platform, cluster.gres, cluster.cores or cpus_per_gpu(), cluster.srun_words,
            cluster.gpu_option, cluster.mpi,
        )  # fmt: skip
    elif cluster.name == HOSTS:
        transport = SshShells(cluster.hosts, cluster.shell)
    told |= {"restarts": restarts, "code": "snapshot" if snapshot else "checkout"}
    return supervise.Site(transport, told, errors, cluster.python or sys.executable)


def remaining(work: submission.Work, records: Sequence[Record]) -> tuple[tuple[ScheduledCase, ...], ...]:
    """The jobs without what has a lasting record, or had its attempts; with the number of the attempt that is next."""
    past = schedule.history(records, work.environments.values())

    def left(item: ScheduledCase) -> ScheduledCase | None:
        identity = (item.case.key, work.environments[item.answer.environment_key]["digest"], item.replicate)
        tried = past.attempts[identity] >= item.attempt  # with retry=true an earlier failure does not count
        if identity in past.good or (tried and past.is_exhausted(identity, work.settings)):
            return None
        return dataclasses.replace(item, attempt=past.attempts[identity] + 1)

    jobs = (tuple(item for one in job if (item := left(one)) is not None) for job in work.jobs)
    return tuple(job for job in jobs if job)


def lost(
    results: Path,
    records: Iterable[Record],
    path: Path,
    work: submission.Work,
    reason: str,
    text: str,
    every: bool = False,
) -> int:
    """Put on record, once, what a task began and did not end, or (every) all that has no record of this attempt; how many."""
    found = lost_records(records, path, work, reason, text, every)
    writer = store.Writer(results)
    for record in found:
        writer.append(record)
    return len(found)


def lost_records(
    records: Iterable[Record], path: Path, work: submission.Work, reason: str, text: str, every: bool = False
) -> list[Record]:
    """Return the records of what a task began and did not end, or (every) of all that has no record of this attempt."""
    begun = {(key, replicate): attempt for key, replicate, attempt in submission.unfinished(path)}
    known = schedule.recorded_attempts(records, work.environments.values())
    found: list[Record] = []
    for item in work.items:
        attempt = begun.get(item.place, item.attempt if every else None)
        around = work.environments[
            item.answer.environment_key
        ]  # as it was asked for: where this process runs does not matter
        if attempt is None or (item.case.key, around["digest"], item.replicate, attempt) in known:
            continue
        blank = supervise.empty_record(
            dataclasses.replace(item, attempt=attempt), around | {"hosts": []}, work.settings
        )
        found.append(dataclasses.replace(blank, status="failed", reason=reason, text=text))
    return found


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        sys.exit(main(sys.argv[1:]))
    sys.exit(_STOPPED)
