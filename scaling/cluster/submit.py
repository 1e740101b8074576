"""Submitting: tasks handed to a cluster through submitit, an array for each shape, with the code as it is now.

Knows submitit and what a scheduler is asked for; not what a task does (task.py).
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
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from scaling.cluster import pack, slurm, submission
from scaling.cluster.settings import SLURM, Cluster
from scaling.cluster.submission import Submission
from scaling.core import environment
from scaling.core.case import Refusal
from scaling.workers.machine import Machine, ProcessShape
from scaling.workers.schedule import Schedule
from scaling.workers.settings import RunSettings
from scaling.workers.transport import gpu_request

_PACKAGE = Path(__file__).parents[1]
_TAKE_BACK_SECONDS = 30.0
_MANY = 10**6  # tasks of an array, where no Slurm says how many it may have
# What of PYTHONPATH a module or a setup line has set on the node comes after the copy of the code.
_START = 'export PYTHONPATH="$PYTHONPATH_FIRST${PYTHONPATH:+:$PYTHONPATH}"; exec "$@"'


def stamp() -> str:
    """A name for a submission that sorts by time."""
    return f"{time.strftime('%Y%m%dT%H%M%S', time.gmtime())}-{secrets.token_hex(2)}"


def submit(
    results: Path,
    cluster: Cluster,
    tasks: Sequence[pack.PackedTask],
    settings: RunSettings,
    plan: Schedule,
    nested: bool,
) -> Submission:
    """Hand tasks over. Where any is rejected, none stays in the queue, and the scheduler's own words are the `Refusal`."""
    made = submission.create(results, stamp(), cluster, tasks, settings, plan, nested)
    try:
        code = snapshot(made.folder / "code")
        before = None
        most = slurm.most_in_array() if cluster.name == SLURM else 1
        for entries in _arrays(made, most):
            jobs = _handed_over(made, entries, cluster, code, before, plan.machine)
            made = submission.with_jobs(made, jobs)
            before = next(iter(jobs.values())).partition("_")[0]
    except BaseException:
        with contextlib.suppress(Refusal):
            if cluster.name == SLURM:
                _take_back(made)
        shutil.rmtree(made.folder, ignore_errors=True)
        raise
    return made


def _take_back(made: Submission) -> None:
    """Cancel all of it, and wait until none of it writes any more."""
    end = time.monotonic() + _TAKE_BACK_SECONDS
    while (left := slurm.named(made.name)) and time.monotonic() < end:
        slurm.cancel(left)
        time.sleep(0.5)


def _arrays(made: Submission, most: int) -> list[list[submission.SubmittedTask]]:
    """Return the entries of each array: those of one shape together, at most `most` in an array."""
    shapes: dict[ProcessShape, list[submission.SubmittedTask]] = {}
    for entry in made.entries:
        shapes.setdefault(entry.shape, []).append(entry)
    return [group[start : start + most] for group in shapes.values() for start in range(0, len(group), most)]


def _handed_over(
    made: Submission, entries: Sequence[submission.SubmittedTask], cluster: Cluster, code: dict[str, str], before: str | None,
    machine: Machine,
) -> dict[str, str]:  # fmt: skip
    """Hand over an array, to begin when the one before it has ended if tasks are counted; the job of each entry, by its name."""
    import submitit
    from submitit.core.utils import FailedJobError

    kind = submitit.SlurmExecutor if cluster.name == SLURM else submitit.LocalExecutor
    executor: Any = kind((made.folder / "log").resolve())
    slurms = cluster.name == SLURM
    executor.update_parameters(
        **(_asked(made, entries[0], cluster, machine, before) if slurms else _local(cluster))
    )
    variables = [f"{name}={value}" for name, value in code.items()]
    start = ["env", *variables, "sh", "-c", _START, "sh", sys.executable, "-m", "scaling.cluster.task"]
    try:
        silent = contextlib.redirect_stderr(io.StringIO())  # submitit repeats what sbatch says
        with submitit.helpers.clean_env(), _surviving(), silent, executor.batch():
            jobs = [
                executor.submit(subprocess.check_call, [*start, str(entry.path.resolve())])
                for entry in entries
            ]
    except FailedJobError as error:
        raise Refusal(f"Slurm: {_own_words(str(error))}") from None
    return {entry.name: job.job_id for entry, job in zip(entries, jobs, strict=True)}


def _own_words(text: str) -> str:
    """What sbatch said, of all that surrounds it."""
    lines = [
        line.partition("sbatch: ")[2].removeprefix("error: ")
        for line in text.splitlines()
        if "sbatch: " in line
    ]
    return "; ".join(
        dict.fromkeys(environment.scrub(line).strip() for line in lines)
    ) or environment.last_line(text)


def scripts(results: Path, cluster: Cluster, tasks: Sequence[pack.PackedTask], machine: Machine) -> list[str]:
    """Return the text of each sbatch script that `submit` would hand over; needs no Slurm and writes nothing."""
    import submitit

    class Unchecked(submitit.SlurmExecutor):
        """An executor that does not look for srun."""

        @classmethod
        def affinity(cls) -> int:
            return 1

    made = submission.arrange(results, "STAMP", cluster, tasks)
    try:
        most = slurm.most_in_array()
    except Refusal:  # no Slurm here, or none that answers
        most = _MANY
    texts: list[str] = []
    for entries in _arrays(made, most):
        before = "ARRAY" if texts else None
        executor = Unchecked((made.folder / "log").resolve())
        executor.update_parameters(**_asked(made, entries[0], cluster, machine, before))
        if len(entries) > 1:
            executor.parameters["map_count"] = len(entries)
        texts.append(executor._make_submission_file_text(executor._submitit_command_str, ""))
    return texts


def _asked(
    made: Submission, entry: submission.SubmittedTask, cluster: Cluster, machine: Machine, before: str | None
) -> dict[str, Any]:
    """What sbatch is asked for, of an array of entries like this one, by the names that submitit has for it."""
    shape = entry.shape
    held = shape.devices // shape.processes
    more = {
        name: value for name, value in {"requeue": True, **dict(cluster.sbatch)}.items() if value is not False
    }
    if cluster.reservation:
        more["reservation"] = cluster.reservation
    asked: dict[str, Any] = {
        "job_name": made.name, "nodes": shape.nodes, "ntasks_per_node": shape.processes // shape.nodes,
        "time": math.ceil(entry.minutes), "partition": cluster.partition, "account": cluster.account, "qos": cluster.qos,
        "constraint": cluster.constraint, "exclude": cluster.exclude, "exclusive": cluster.exclusive or None,
        "wckey": None, "setup": checked_setup(cluster.setup), "array_parallelism": cluster.at_once or 10**6, "use_srun": False,
        "additional_parameters": more,
    }  # fmt: skip
    if cluster.platform == "cpu":
        asked["cpus_per_task"] = held
        more["hint"] = "nomultithread"
    else:
        more |= gpu_request(cluster.gpu_option, cluster.gres, shape)
        cores = cluster.cores or machine.cpus_each
        asked["cpus_per_task"] = max(1, int(cores * held)) if cores else None
    if cluster.memory:
        asked["mem"] = f"{cluster.memory // 1024}G" if cluster.memory % 1024 == 0 else f"{cluster.memory}M"
    if before and cluster.at_once:
        asked["dependency"] = f"afterany:{before}"
    return {
        name: value for name, value in asked.items() if value is not None or name == "wckey"
    }  # submitit has one of its own


def checked_setup(lines: Sequence[str]) -> list[str]:
    """Return shell lines that run each setup line in turn and end the job with its exit status if it fails.

    The exit status of the whole line counts, not that of a command inside a shell function such as Lmod's `module`. The message
    on standard error begins with `submission.SETUP_FAILED`.
    """
    if not lines:
        return []
    shell = [f"trap 'echo \"{submission.SETUP_FAILED} $?: $setup_line\" >&2' EXIT"]
    for line in lines:
        shell += [
            f"setup_line={shlex.quote(' '.join(line.split()))}",
            line,
            "status=$?; [ $status -eq 0 ] || exit $status",
        ]
    return [*shell, "trap - EXIT"]


def _local(cluster: Cluster) -> dict[str, Any]:
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")  # submitit would hide every GPU
    gpus = [int(word) for word in visible.split(",") if word.strip().isdigit()]
    setup = (
        ["\n".join(lines)] if (lines := checked_setup(cluster.setup)) else []
    )  # submitit joins its words by `&&`
    return {"timeout_min": cluster.time, "setup": setup} | (
        {"visible_gpus": gpus, "gpus_per_node": len(gpus)} if gpus else {}
    )


@contextlib.contextmanager
def _surviving() -> Iterator[None]:
    """What is started in here outlives this process, its terminal, a Ctrl-C and a pipe: children keep ignored signals."""
    before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGHUP, signal.SIGINT)}
    files = [os.dup(number) for number in range(3)]
    nowhere = os.open(os.devnull, os.O_RDWR)
    try:
        for number in range(3):
            os.dup2(nowhere, number)
        yield
    finally:
        for number, file in enumerate(files):
            os.dup2(file, number)
            os.close(file)
        os.close(nowhere)
        for number, handler in before.items():
            signal.signal(number, handler)


def snapshot(folder: Path) -> dict[str, str]:
    """Copy this package, so that a queued task runs what was submitted; the variables with which it finds the copy."""
    ignored = shutil.ignore_patterns("__pycache__", "*.pyc")
    shutil.copytree(_PACKAGE, folder / "scaling", ignore=ignored)
    if environment.source(folder / "scaling") != environment.source():
        raise Refusal(
            "the package has changed since this command began: give it again, so that what is told is what will run"
        )
    here = [entry or os.getcwd() for entry in sys.path[:1]]
    paths = [str(folder.resolve()), os.getcwd(), *here, *filter(None, [os.environ.get("PYTHONPATH")])]
    commit, dirty = environment.commit()
    return {
        "PYTHONPATH_FIRST": os.pathsep.join(dict.fromkeys(paths)),
        "PYTHONSAFEPATH": "1",  # `-m` would look in the working directory first, where another version may lie
        **({"AD_SCALING_COMMIT": commit + "+dirty" * bool(dirty)} if commit else {}),
    }
