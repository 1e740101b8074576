"""Submitting: tasks become job arrays of Slurm, one for each shape, or a process of this machine.

Knows submitit and the options of sbatch; not what a task does (task.py).
"""

import contextlib
import io
import math
import os
import secrets
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from scaling.cluster import slurm, submission
from scaling.cluster.pack import PackedTask
from scaling.cluster.settings import REJECTED, SLURM, Cluster
from scaling.cluster.submission import Submission, SubmittedTask
from scaling.core import environment, store
from scaling.core.case import Refusal
from scaling.workers.machine import Machine, ProcessShape
from scaling.workers.schedule import Schedule
from scaling.workers.settings import RunSettings
from scaling.workers.transport import gpu_request

_PACKAGE = Path(__file__).parents[1]
_TAKE_BACK_SECONDS = 30.0
_KILL_SECONDS = 60  # between the time limit of a task of this machine and its end
_UNLIMITED = 10**6  # tasks of an array that run at a time
# What a module or a setup line adds to PYTHONPATH on the node comes after the copy of the code.
_START = 'export PYTHONPATH="$PYTHONPATH_FIRST${PYTHONPATH:+:$PYTHONPATH}"; exec "$@"'
_JOB_VARIABLES = ("SLURM_", "SLURMD_", "SRUN_", "SBATCH_", "SUBMITIT_")  # prefixes


def submit(
    results: Path,
    cluster: Cluster,
    tasks: Sequence[PackedTask],
    settings: RunSettings,
    plan: Schedule,
    nested: bool,
) -> Submission:
    """Submit tasks with a copy of the code. If one is rejected, none stays in the queue: a `Refusal`."""
    stamp = f"{time.strftime('%Y%m%dT%H%M%S', time.gmtime())}-{secrets.token_hex(2)}"  # sorts by time
    made = submission.create(results, stamp, cluster, tasks, settings, plan, nested)
    (results / REJECTED).unlink(missing_ok=True)
    try:
        command = ["env", *_copy_package(made.folder / "code"), "sh", "-c", _START, "sh"]
        command += [sys.executable, "-m", "scaling.cluster.task"]
        if cluster.name != SLURM:
            return submission.save_jobs(made, _start_process(made, command, cluster))
        before = None
        for entries in _split_into_arrays(made, slurm.max_array_tasks()):
            jobs = _submit_array(
                made, entries, command, _sbatch_options(made, entries[0], cluster, plan.machine, before)
            )
            made = submission.save_jobs(made, jobs)
            before = next(iter(jobs.values())).partition("_")[0]
    except BaseException as error:
        with contextlib.suppress(Refusal):
            if cluster.name == SLURM:
                _take_back(made)
        shutil.rmtree(made.folder, ignore_errors=True)
        if isinstance(error, Refusal):  # `scaling status` says why nothing is in the queue
            store.replace_file(results / REJECTED, str(error).encode())
        raise
    return made


def _take_back(made: Submission) -> None:
    """Cancel all jobs of a submission, and wait until none of them writes any more."""
    end = time.monotonic() + _TAKE_BACK_SECONDS
    while (jobs := slurm.named(made.name)) and time.monotonic() < end:
        slurm.cancel(jobs)
        time.sleep(0.5)


def _start_process(made: Submission, command: Sequence[str], cluster: Cluster) -> dict[str, str]:
    """Start the one task of a submission on this machine, in the background; return its job, by its name."""
    log = made.folder.resolve() / "log"
    log.mkdir()
    (entry,) = made.entries
    script = [
        f"exec > {shlex.quote(str(log))}/$$_0_log.out 2> {shlex.quote(str(log))}/$$_0_log.err",
        "export SUBMITIT_LOCAL_JOB_ID=$$",
        *checked_setup(cluster.setup),
        # The signal is task.TIME_LIMIT.
        f'exec timeout --signal=USR1 --kill-after={_KILL_SECONDS} {60 * cluster.time:.0f} "$@"',
    ]
    variables = {name: value for name, value in os.environ.items() if not name.startswith(_JOB_VARIABLES)}
    process = subprocess.Popen(
        ["sh", "-c", "\n".join(script), "sh", *command, str(entry.path.resolve())],
        env=variables, start_new_session=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    return {entry.name: str(process.pid)}


def _split_into_arrays(made: Submission, most: int) -> list[list[SubmittedTask]]:
    """Return the tasks of each array: those of one shape together, at most `most` in an array."""
    shapes: dict[ProcessShape, list[SubmittedTask]] = defaultdict(list)
    for entry in made.entries:
        shapes[entry.shape].append(entry)
    return [group[start : start + most] for group in shapes.values() for start in range(0, len(group), most)]


def _submit_array(
    made: Submission, entries: Sequence[SubmittedTask], command: Sequence[str], options: dict[str, Any]
) -> dict[str, str]:
    """Submit an array; return the job of each task, by its name."""
    import submitit
    from submitit.core.utils import FailedJobError

    executor: Any = submitit.SlurmExecutor((made.folder / "log").resolve())
    executor.update_parameters(**options)
    silent = contextlib.redirect_stderr(io.StringIO())  # submitit repeats the message of sbatch
    try:
        with submitit.helpers.clean_env(), _interrupts_ignored(), silent, executor.batch():
            jobs = [
                executor.submit(subprocess.check_call, [*command, str(entry.path.resolve())])
                for entry in entries
            ]
    except FailedJobError as error:
        raise Refusal(f"Slurm: {_sbatch_message(str(error))}") from None
    return {entry.name: job.job_id for entry, job in zip(entries, jobs, strict=True)}


@contextlib.contextmanager
def _interrupts_ignored() -> Iterator[None]:
    """Ignore Ctrl-C and a closed terminal, here and in child processes: a submitted job must be noted."""
    before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGHUP, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _sbatch_message(text: str) -> str:
    """Return the message of sbatch within the text of an error of submitit."""
    parts = [line.partition("sbatch: ")[2].removeprefix("error: ") for line in text.splitlines()]
    messages = dict.fromkeys(environment.scrub(part).strip() for part in parts if part)
    return "; ".join(messages) or environment.last_line(text)


def format_scripts(
    results: Path, cluster: Cluster, tasks: Sequence[PackedTask], machine: Machine
) -> list[str]:
    """Return the text of each sbatch script that `submit` would submit; needs no Slurm and writes nothing."""
    import submitit

    class Unchecked(submitit.SlurmExecutor):
        """An executor that does not look for srun."""

        @classmethod
        def affinity(cls) -> int:
            return 1

    made = submission.prepare(results, "STAMP", cluster, tasks)
    texts: list[str] = []
    for entries in _split_into_arrays(made, slurm.max_array_tasks()):
        executor = Unchecked((made.folder / "log").resolve())
        before = "ARRAY" if texts else None
        executor.update_parameters(**_sbatch_options(made, entries[0], cluster, machine, before))
        if len(entries) > 1:
            executor.parameters["map_count"] = len(entries)
        texts.append(executor._make_submission_file_text(executor._submitit_command_str, ""))
    return texts


def _sbatch_options(
    made: Submission, entry: SubmittedTask, cluster: Cluster, machine: Machine, before: str | None
) -> dict[str, Any]:
    """Return the options of sbatch for an array of tasks like this one, by the names of submitit.

    before: the array that must end first, if `at_once` limits the tasks.
    """
    shape = entry.shape
    per_process = shape.devices // shape.processes
    more = {
        name: value for name, value in {"requeue": True, **dict(cluster.sbatch)}.items() if value is not False
    }
    if cluster.reservation:
        more["reservation"] = cluster.reservation
    if cluster.platform == "cpu":
        cpus: float | None = per_process
        more["hint"] = "nomultithread"
    else:
        cores = cluster.cores or machine.cpus_each
        cpus = max(1, int(cores * per_process)) if cores else None
        more |= gpu_request(cluster.gpu_option, cluster.gres, shape)
    memory = cluster.memory or 0
    options: dict[str, Any] = {
        "job_name": made.name, "nodes": shape.nodes, "ntasks_per_node": shape.processes // shape.nodes,
        "time": math.ceil(entry.minutes), "partition": cluster.partition, "account": cluster.account,
        "qos": cluster.qos, "constraint": cluster.constraint, "exclude": cluster.exclude,
        "exclusive": cluster.exclusive or None, "setup": checked_setup(cluster.setup), "use_srun": False,
        "array_parallelism": cluster.at_once or _UNLIMITED, "cpus_per_task": cpus,
        "mem": f"{memory}M" if memory % 1024 else f"{memory // 1024}G" if memory else None,
        "dependency": f"afterany:{before}" if before and cluster.at_once else None,
        "additional_parameters": more,
    }  # fmt: skip
    given = {name: value for name, value in options.items() if value is not None}
    return given | {"wckey": None}  # by default submitit sets one


def checked_setup(lines: Sequence[str]) -> list[str]:
    """Return shell lines that run each setup line in turn and end the job with its exit status if it fails.

    The exit status of the whole line counts, not that of a command inside a shell function such as Lmod's
    `module`. The message on standard error begins with `submission.SETUP_FAILED`.
    """
    if not lines:
        return []
    shell = [f"trap 'echo \"{submission.SETUP_FAILED} $?: $setup_line\" >&2' EXIT"]
    for line in lines:
        name = shlex.quote(" ".join(line.split()))
        shell += [f"setup_line={name}", line, "status=$?; [ $status -eq 0 ] || exit $status"]
    return [*shell, "trap - EXIT"]


def _copy_package(folder: Path) -> list[str]:
    """Copy this package, so that a queued task runs what was submitted; return variables that lead to it."""
    ignored = shutil.ignore_patterns("__pycache__", "*.pyc")
    shutil.copytree(_PACKAGE, folder / "scaling", ignore=ignored)
    if environment.source(folder / "scaling") != environment.source():
        raise Refusal("the package has changed since this command began: run the command again")
    paths = [str(folder.resolve()), os.getcwd(), *(entry or os.getcwd() for entry in sys.path[:1])]
    paths += filter(None, [os.environ.get("PYTHONPATH")])
    # Python must not look in the working directory first, where another version may lie.
    variables = [f"PYTHONPATH_FIRST={os.pathsep.join(dict.fromkeys(paths))}", "PYTHONSAFEPATH=1"]
    commit, dirty = environment.commit()
    return [*variables, *([f"AD_SCALING_COMMIT={commit}{'+dirty' if dirty else ''}"] if commit else [])]
