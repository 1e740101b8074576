"""Main program of a cluster job: run the cases of a task file that have no result yet, with srun or ssh.

If Slurm requeues a job, the job runs the same command again. The new run writes a "failed" record for each
case that the previous run began but did not finish. Then it runs the remaining cases.
"""

import contextlib
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from scaling.cluster import submission_files, task_state
from scaling.cluster.cluster_settings import ALLOCATION, HOSTS, SLURM, ClusterSettings
from scaling.cluster.slurm import allocated_nodes, cpus_per_gpu
from scaling.cluster.submission_files import Journal, TaskDefinition
from scaling.core import environment
from scaling.core.case import Refusal
from scaling.launcher import schedule, supervise
from scaling.launcher.schedule import Schedule
from scaling.launcher.worker_group import AllocationLost, SrunSteps, SshShells, Transport
from scaling.results import store

_PACKAGE = Path(__file__).resolve().parents[1]
_LOCK_SECONDS = 600.0  # timeout for a previous run of the task, possibly on a failed node, to end
TIME_LIMIT = signal.SIGUSR1  # sent to a local task at its time limit, see sbatch.py
_STOPPED = 143  # exit status of a task that was stopped by the scheduler
_EVENT_FIELDS = ("key", "replicate", "attempt", "seat", "status", "reason", "text", "seconds")


def main(arguments: Sequence[str]) -> int:
    """Run the cases of the task file `arguments[0]`, and return the exit status.

    The status is 0 if every case has a record, 143 if the scheduler stopped the task, and 1 after an error.
    """
    for signal_number in (signal.SIGTERM, TIME_LIMIT):
        signal.signal(signal_number, _raise_interrupt)
    # Slurm sends SIGUSR2 before the time limit. Finished cases are recorded already.
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)
    path = Path(arguments[0])
    try:
        definition = submission_files.read_task(path)
        with store.lock_folder(path.parent, f".{path.stem}.lock", _LOCK_SECONDS) as lock:
            return _run_with_journal(path, definition, lock)
    except Refusal as refusal:
        print(f"scaling: {refusal}", file=sys.stderr)
    except OSError as error:
        print(f"scaling: cannot write: {error.strerror or error}; finished records are kept", file=sys.stderr)
    return 1


def _raise_interrupt(signal_number: int, _frame: Any) -> None:
    if signal_number == TIME_LIMIT:  # the same message as Slurm, which task_state.py recognizes
        print("scaling: CANCELLED DUE TO TIME LIMIT", file=sys.stderr, flush=True)
    raise KeyboardInterrupt


def _run_with_journal(path: Path, definition: TaskDefinition, lock: int) -> int:
    journal = Journal(path)
    node = environment.node_name()
    nodes = list(allocated_nodes()) if definition.cluster.name == SLURM else [node]
    log_starts = [os.fstat(stream).st_size for stream in (1, 2)]
    journal.write(
        "started", job=_current_job(), node=node, nodes=nodes, pid=os.getpid(), log_starts=log_starts
    )
    try:
        _run_missing_cases(path, definition, journal, lock)
    except KeyboardInterrupt:
        journal.write("stopped")
        return _STOPPED
    except AllocationLost as lost:
        journal.write("stopped", text=str(lost))
        return 1
    journal.write("ended")
    return 0


def _run_missing_cases(path: Path, definition: TaskDefinition, journal: Journal, lock: int) -> None:
    """Run the cases of a task that have no result yet.

    First, write a "failed" record for each case that an earlier run of the task began but did not finish.
    `path` is the path of the task file. `lock` is the file descriptor of the lock of the task.
    """
    results = path.parents[2]  # path is RESULTS/jobs/STAMP/0001.json
    records = store.load(results).records
    unfinished = task_state.make_failed_records_of_task(
        records, path, definition, "killed", "its job was requeued while it ran"
    )
    store.append_records(results, unfinished)
    planned = {
        key: schedule.planned_environment(definition.machine, definition.settings, key)
        for key in definition.environments
    }
    remaining = task_state.remaining_cases(definition, [*records, *unfinished])
    missing = Schedule(schedule.group_by_process(remaining), (), 0, definition.machine, planned)

    def listen(event: dict[str, Any]) -> None:
        journal.write(event["event"], **{name: event[name] for name in _EVENT_FIELDS if name in event})

    is_snapshot = _PACKAGE.is_relative_to(path.parent.resolve())
    options = make_worker_options(definition.cluster, journal.folder, definition.nested, is_snapshot)
    supervise.run_schedule(missing, definition.settings, results, lock, listen, options=options)


def make_worker_options(
    cluster: ClusterSettings, log_folder: Path | None = None, nested: bool = False, is_snapshot: bool = False
) -> supervise.WorkerOptions:
    """Return the options to start the worker processes of a cluster.

    The workers start with srun (in Slurm), with a remote shell (cluster=hosts), or as child processes on this
    host. Their standard error is written to files in `log_folder`. `nested` states whether all cases of a
    function run in one job, on any number of devices. `is_snapshot` states whether this process runs a copy
    of the package. Both are saved in the records.
    """
    transport: Transport | None = None
    if cluster.name in (SLURM, ALLOCATION):
        transport = SrunSteps(
            allocated_nodes(), cluster.platform, cluster.gres, cluster.cores or cpus_per_gpu(),
            cluster.srun_options, cluster.gpu_option, cluster.mpi,
        )  # fmt: skip
    elif cluster.name == HOSTS:
        transport = SshShells(cluster.hosts, cluster.shell)
    environment = {
        "job": _current_job(), "cluster": cluster.name, "nested": nested,
        "restarts": int(os.environ.get("SLURM_RESTART_COUNT", "0")),
        "code": "snapshot" if is_snapshot else "checkout",
    }  # fmt: skip
    return supervise.WorkerOptions(transport, environment, log_folder, cluster.python or sys.executable)


def _current_job() -> str | None:
    """Return the ID of the job that runs this process, or None outside a job.

    The ID of a job in a Slurm array has the form "12_3". The ID of a local job is a process ID.
    """
    array, task = os.environ.get("SLURM_ARRAY_JOB_ID"), os.environ.get("SLURM_ARRAY_TASK_ID")
    if array and task:
        return f"{array}_{task}"
    return os.environ.get("SLURM_JOB_ID") or os.environ.get("SUBMITIT_LOCAL_JOB_ID")


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        sys.exit(main(sys.argv[1:]))
    sys.exit(_STOPPED)
