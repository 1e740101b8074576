"""A task: what a job of a cluster runs, beginning where the run before it stopped.

`python -m scaling.cluster.task FILE` runs the cases in the file of a task that have no record yet.
A requeued job runs the same command again: what was running has failed once, what had not begun begins.
"""

import contextlib
import dataclasses
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from scaling.cluster import lost_cases, submission
from scaling.cluster.journal import Journal, current_job
from scaling.cluster.settings import ALLOCATION, HOSTS, SLURM, Cluster
from scaling.core import environment, store
from scaling.core.case import Refusal
from scaling.core.record import Record
from scaling.workers import cores, schedule, supervise
from scaling.workers.machine import AllocationLost
from scaling.workers.schedule import Schedule, ScheduledCase
from scaling.workers.transport import SrunSteps, SshShells, Transport, allocated_nodes, cpus_per_gpu

_PACKAGE = Path(__file__).resolve().parents[1]
_LOCK_SECONDS = 600.0  # for another run of the same task to end, on a node that the scheduler gave up
TIME_LIMIT = signal.SIGUSR1  # submit.py has it sent to a task of this machine
_STOPPED = 143  # exit status: ended by the scheduler
_EVENT_FIELDS = ("key", "replicate", "attempt", "seat", "status", "reason", "text", "seconds")


def main(words: Sequence[str]) -> int:
    """Run a task; 0 if each case has a record, 1 if these cannot be written, 143 if the task was stopped."""
    for number in (signal.SIGTERM, TIME_LIMIT):
        signal.signal(number, _stop)
    # An early warning of the scheduler: finished cases are recorded already.
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)
    path = Path(words[0])
    try:
        work = submission.read(path)
        with store.locked(path.parent, f".{path.stem}.lock", _LOCK_SECONDS) as lock:
            return _run(path, work, lock)
    except Refusal as refusal:
        print(f"scaling: {refusal}", file=sys.stderr)
    except OSError as error:
        print(f"scaling: cannot write: {error.strerror or error}; what is finished is kept", file=sys.stderr)
    return 1


def _stop(number: int, _frame: Any) -> None:
    if number == TIME_LIMIT:  # in the words of Slurm, for those who read the log
        print("scaling: CANCELLED DUE TO TIME LIMIT", file=sys.stderr, flush=True)
    raise KeyboardInterrupt


def _run(path: Path, work: submission.Work, lock: int) -> int:
    """Run a task, and report in its journal how it starts and ends; return the exit status."""
    journal = Journal(path)
    node = environment.node_name()
    nodes = list(allocated_nodes()) if work.cluster.name == SLURM else [node]
    journal.write("started", job=current_job(), node=node, nodes=nodes, pid=os.getpid())
    try:
        _run_missing(path, work, journal, lock)
    except KeyboardInterrupt:
        journal.write("stopped")
        return _STOPPED
    except AllocationLost as lost:
        journal.write("stopped", text=str(lost))
        return 1
    except OSError as error:
        with contextlib.suppress(OSError):
            journal.write("stopped", text=f"cannot write: {error.strerror or error}")
        raise
    journal.write("ended")
    return 0


def _run_missing(path: Path, work: submission.Work, journal: Journal, lock: int) -> None:
    """Record what an earlier run of the task began and did not end, then run what is missing."""
    results = path.parents[2]  # of RESULTS/jobs/STAMP/0001.json
    records = store.load(results).records
    text = "its job was stopped and started again while it ran"
    lost = lost_cases.lost_records(records, path, work, "killed", text)
    lost_cases.append_records(results, lost)
    jobs = remaining(work, [*records, *lost])
    planned = {
        key: schedule.planned_environment(work.machine, work.settings, key) for key in work.environments
    }
    plan = Schedule(jobs, (), 0, work.machine, planned)

    def listen(event: dict[str, Any]) -> None:
        if event["event"] == "waiting":
            journal.write("waiting", text=cores.describe_wait(event["by"]))
        else:
            fields = {name: event[name] for name in _EVENT_FIELDS if name in event}
            journal.write(event["event"], **fields)

    copied = _PACKAGE.is_relative_to(path.parent.resolve())
    where = make_site(work.cluster, journal.folder, work.nested, copied)
    supervise.run_schedule(plan, work.settings, results, lock, listen, site=where)


def make_site(
    cluster: Cluster, errors: Path | None = None, nested: bool = False, snapshot: bool = False
) -> supervise.Site:
    """Return where workers run: as steps of this allocation, on hosts, or here."""
    transport: Transport | None = None
    if cluster.name in (SLURM, ALLOCATION):
        transport = SrunSteps(
            allocated_nodes(), cluster.platform, cluster.gres, cluster.cores or cpus_per_gpu(),
            cluster.srun_words, cluster.gpu_option, cluster.mpi,
        )  # fmt: skip
    elif cluster.name == HOSTS:
        transport = SshShells(cluster.hosts, cluster.shell)
    environment = {
        "job": current_job(), "cluster": cluster.name, "nested": nested,
        "restarts": int(os.environ.get("SLURM_RESTART_COUNT", "0")),
        "code": "snapshot" if snapshot else "checkout",
    }  # fmt: skip
    return supervise.Site(transport, environment, errors, cluster.python or sys.executable)


def remaining(work: submission.Work, records: Sequence[Record]) -> tuple[tuple[ScheduledCase, ...], ...]:
    """Return the jobs without the cases that are done or exhausted, with the numbers of the next attempts."""
    past = schedule.history(records, work.environments.values())

    def next_attempt(item: ScheduledCase) -> list[ScheduledCase]:
        identity = (item.case.key, work.environments[item.answer.environment_key]["digest"], item.replicate)
        attempts = past.attempts[identity]
        # With retry=true an earlier failure does not count.
        exhausted = attempts >= item.attempt and past.is_exhausted(identity, work.settings)
        done = identity in past.good or exhausted
        return [] if done else [dataclasses.replace(item, attempt=attempts + 1)]

    jobs = (tuple(new for item in job for new in next_attempt(item)) for job in work.jobs)
    return tuple(job for job in jobs if job)


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        sys.exit(main(sys.argv[1:]))
    sys.exit(_STOPPED)
