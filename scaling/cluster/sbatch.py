"""Submit packed tasks: copy the package, call sbatch with its options, or start a task on this host.

`format_scripts` returns the scripts of sbatch for a dry run.
"""

import contextlib
import io
import math
import os
import re
import secrets
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

from scaling.cluster import slurm, submission_files
from scaling.cluster.cluster_settings import SLURM, ClusterSettings
from scaling.cluster.pack import PackedTask
from scaling.cluster.submission_files import Submission, SubmittedTask, save_job_ids
from scaling.core import environment
from scaling.core.case import Refusal
from scaling.core.formatting import last_line
from scaling.core.grouping import group_by
from scaling.launcher.machine import Machine, ProcessShape
from scaling.launcher.run_settings import RunSettings
from scaling.launcher.schedule import Schedule
from scaling.launcher.worker_group import gpu_request
from scaling.results import store

_PACKAGE = Path(__file__).parents[1]
_KILL_SECONDS = 60  # time from the time limit of a local task to SIGKILL
_MAX_ARRAY_TASKS = 1000  # the default limit of Slurm
_TASK_LIMITS = ("job array specification", "SubmitJobLimit", "job submit limit")  # in messages of sbatch
_UNLIMITED = 10**6  # maximum number of running tasks of an array if `at_once` is not set
# The copy of the package precedes the folders that setup lines add to PYTHONPATH on the node.
_START_COMMAND = 'export PYTHONPATH="$PYTHONPATH_FIRST${PYTHONPATH:+:$PYTHONPATH}"; exec "$@"'
_JOB_VARIABLES = ("SLURM_", "SLURMD_", "SRUN_", "SBATCH_", "SUBMITIT_")  # prefixes of variables of a job
# Variables with such a prefix that are passed to sbatch, because they select the cluster or the account.
# Other variables would override options in the script, or belong to a surrounding job.
_SBATCH_VARIABLES = (
    "SLURM_CONF", "SLURM_JWT", "SLURM_CLUSTERS", "SBATCH_CLUSTERS", "SBATCH_ACCOUNT", "SBATCH_QOS",
    "SBATCH_RESERVATION", "SBATCH_WCKEY",
)  # fmt: skip


def submit(
    results: Path,
    cluster: ClusterSettings,
    tasks: Sequence[PackedTask],
    settings: RunSettings,
    schedule: Schedule,
    nested: bool,
) -> Submission:
    """Submit tasks to Slurm, or start the only task on this host if cluster=local.

    Return the `Submission` with the job IDs. The tasks run a copy of this package. `nested` states whether
    all cases of a function run in one job, on any number of devices. If sbatch fails, all jobs of the
    submission are cancelled.
    """
    results = resolve_results(results, cluster)
    if cluster.name == SLURM:
        slurm.require_installed("sbatch", "srun")
    stamp = f"{time.strftime('%Y%m%dT%H%M%S', time.gmtime())}-{secrets.token_hex(2)}"
    submission = submission_files.create_submission(
        results, stamp, cluster, tasks, settings, schedule, nested
    )
    try:
        # In a job, Slurm commands must query the cluster of the job.
        command = ["env", "-u", "SLURM_CLUSTERS", "-u", "SBATCH_CLUSTERS"]
        command += [*_copy_package(submission.folder / "code"), "sh", "-c", _START_COMMAND, "sh"]
        command += [sys.executable, "-m", "scaling.cluster.task"]
        if cluster.name != SLURM:
            return _start_process(submission, command, cluster)
        previous_array = None
        for submitted_tasks in _split_into_arrays(submission.tasks):
            options = _sbatch_options(
                submission, submitted_tasks[0], cluster, schedule.machine, previous_array
            )
            jobs = _submit_array(submission, submitted_tasks, command, options)
            submission = save_job_ids(submission, jobs)
            previous_array = next(iter(jobs.values())).partition("_")[0]
    except BaseException:
        _discard_submission(submission, cluster, results)
        raise
    return submission


def _discard_submission(submission: Submission, cluster: ClusterSettings, results: Path) -> None:
    """Cancel the jobs of a submission and delete its folder, or print why they cannot be cancelled."""
    try:
        if cluster.name == SLURM:
            slurm.cancel_jobs(submission.name)
        shutil.rmtree(submission.folder, ignore_errors=True)
    except Refusal as refusal:  # `scaling cancel` finds the jobs only if the folder exists
        fix = f"`{store.format_command('cancel', results)}` ends them"
        print(f"scaling: {refusal}; jobs may be queued: {fix}", file=sys.stderr)


def resolve_results(results: Path, cluster: ClusterSettings) -> Path:
    """Return `results` as an absolute path that jobs can use.

    Raise `Refusal` if the path contains a character that is invalid in PYTHONPATH or in the path of a log.
    """
    # A link `jobs` in the folder is not resolved, because a task writes records to the folder above `jobs`.
    path = str(results.resolve())
    unusable = r"[:%\\\x00-\x1f\udc80-\udcff]" if cluster.name == SLURM else ":"
    if character := re.search(unusable, path):
        reason = f"contains {character[0]!r}, which PYTHONPATH or the log of a job cannot contain"
        raise Refusal(f"the results folder {path!r} {reason}: choose another with results=PATH")
    return Path(path)


def _start_process(submission: Submission, command: Sequence[str], cluster: ClusterSettings) -> Submission:
    """Start the only task of a submission in the background. Return the submission with the process ID.

    The process waits until its ID is saved, so that later commands can find it. Then it runs `command`, with
    the path of the task file as the last argument.
    """
    (submitted_task,) = submission.tasks
    log_folder = shlex.quote(str(submission.folder / "log"))
    script = [
        "read -r _ || exit; exec < /dev/null",  # the input ends if the launcher ends before it saves the ID
        f"mkdir {log_folder}; exec > {log_folder}/$$_0_log.out 2>> {log_folder}/$$_0_log.err",
        "export SUBMITIT_LOCAL_JOB_ID=$$",
        *checked_setup(cluster.setup),
        # task.TIME_LIMIT is the same signal.
        f'exec timeout --signal=USR1 --kill-after={_KILL_SECONDS} {max(1, 60 * cluster.time):.0f} "$@"',
    ]
    variables = {name: value for name, value in os.environ.items() if not name.startswith(_JOB_VARIABLES)}
    process = subprocess.Popen(
        ["sh", "-c", "\n".join(script), "sh", *command, str(submitted_task.path)],
        env=variables, start_new_session=True, text=True,
        stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    submission = save_job_ids(submission, {submitted_task.name: str(process.pid)})
    print("start", file=process.stdin, flush=True)
    return submission


def _split_into_arrays(submitted_tasks: Sequence[SubmittedTask]) -> list[list[SubmittedTask]]:
    return [
        same_shape[start : start + _MAX_ARRAY_TASKS]
        for same_shape in group_by(submitted_tasks, lambda submitted_task: submitted_task.shape).values()
        for start in range(0, len(same_shape), _MAX_ARRAY_TASKS)
    ]


def _submit_array(
    submission: Submission,
    submitted_tasks: Sequence[SubmittedTask],
    command: Sequence[str],
    options: dict[str, Any],
) -> dict[str, str]:
    """Submit tasks as one Slurm job array, and return {task name: job ID}.

    Each task runs `command`, with the path of its task file as the last argument. `options` are the options
    of sbatch.
    """
    import submitit

    executor: Any = submitit.SlurmExecutor(submission.folder / "log")
    executor.update_parameters(**options)
    all_options = options | options["additional_parameters"]
    names = {name for name in _SBATCH_VARIABLES if not all_options.get(name.removeprefix("SBATCH_").lower())}
    sbatch_variables = {name: os.environ[name] for name in names & os.environ.keys()}
    suppressed_stderr = contextlib.redirect_stderr(io.StringIO())  # submitit repeats the message of sbatch
    try:
        with submitit.helpers.clean_env(), _ignore_interrupts(), suppressed_stderr, executor.batch():
            os.environ.update(sbatch_variables)
            paths = [str(submitted_task.path) for submitted_task in submitted_tasks]
            jobs = [executor.submit(subprocess.check_call, [*command, path]) for path in paths]
    except (submitit.core.utils.FailedJobError, submitit.core.utils.FailedSubmissionError) as error:
        output = environment.scrub(str(error).partition("\nJob instance will not")[0])
        messages = dict.fromkeys(re.findall(r"sbatch: (?:error: )?(.*\S)", output))
        too_many = any(text in output for text in _TASK_LIMITS)
        fix = "; a larger cluster.time or cluster.fill makes fewer tasks" if too_many else ""
        raise Refusal(f"Slurm: {'; '.join(messages) or last_line(output)}{fix}") from None
    return {
        submitted_task.name: job.job_id for submitted_task, job in zip(submitted_tasks, jobs, strict=True)
    }


@contextlib.contextmanager
def _ignore_interrupts() -> Iterator[None]:
    """Ignore SIGINT (Ctrl-C), SIGHUP and SIGTERM while a `with` block runs sbatch.

    An interrupted sbatch could leave jobs in the queue.
    """
    stop_signals = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)
    handlers = {number: signal.signal(number, signal.SIG_IGN) for number in stop_signals}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


def format_scripts(
    results: Path, cluster: ClusterSettings, tasks: Sequence[PackedTask], machine: Machine
) -> list[str]:
    """Return the sbatch scripts that `submit` would submit, one for each Slurm job array."""
    from submitit.slurm import slurm as submitit_slurm

    results = resolve_results(results, cluster)
    submission = submission_files.build_submission(results, "STAMP", cluster, tasks)
    folder, scripts = submission.folder / "log", list[str]()
    command = f"{shlex.quote(sys.executable)} -u -m submitit.core._submit {shlex.quote(str(folder))}"
    for submitted_tasks in _split_into_arrays(submission.tasks):
        options = _sbatch_options(
            submission, submitted_tasks[0], cluster, machine, "ARRAY" if scripts else None
        )
        count = len(submitted_tasks) if len(submitted_tasks) > 1 else None
        scripts.append(submitit_slurm._make_sbatch_string(command, folder, map_count=count, **options))
    return scripts


def _sbatch_options(
    submission: Submission,
    submitted_task: SubmittedTask,
    cluster: ClusterSettings,
    machine: Machine,
    previous_array: str | None,
) -> dict[str, Any]:
    """Return the sbatch options of a job array as {option name in submitit: value}.

    `submitted_task` is the first task of the array. `previous_array` is the job ID of the previous array, or
    None. If `cluster.at_once` limits the number of running tasks, the array starts after the previous array
    has ended.
    """
    shape, memory = submitted_task.shape, cluster.memory or 0
    per_process = shape.devices // shape.processes
    cores = 1 if cluster.platform == "cpu" else cluster.cores or machine.cpus_each
    # submitit writes this option with a hyphen. None leaves out an option.
    user_options = {
        name.replace("open_mode", "open-mode"): None if value is False else value
        for name, value in cluster.sbatch
    }
    extra_options = _extra_options(cluster, shape, user_options) | user_options
    options: dict[str, Any] = {
        "job_name": submission.name, "nodes": shape.nodes, "ntasks_per_node": shape.processes // shape.nodes,
        "time": math.ceil(cluster.time), "partition": cluster.partition, "account": cluster.account,
        "qos": cluster.qos, "constraint": cluster.constraint, "exclude": cluster.exclude,
        "exclusive": cluster.exclusive or None, "setup": checked_setup(cluster.setup), "use_srun": False,
        "array_parallelism": cluster.at_once or _UNLIMITED,
        "cpus_per_task": max(1, int(cores * per_process)) if cores else None,
        "mem": f"{memory}M" if memory % 1024 else f"{memory // 1024}G" if memory else None,
        "dependency": f"afterany:{previous_array}" if previous_array and cluster.at_once else None,
        "additional_parameters": {name: value for name, value in extra_options.items() if value is not None},
    }  # fmt: skip
    options |= {name: None for name, value in user_options.items() if value is None}
    # None disables the default wckey of submitit.
    return {name: value for name, value in options.items() if value is not None} | {"wckey": None}


def _extra_options(
    cluster: ClusterSettings, shape: ProcessShape, user_options: Collection[str]
) -> dict[str, Any]:
    """Return the sbatch options for which submitit has no parameter, as {name: value}.

    `user_options` contains the names of the options that the user sets. Defaults that they replace are left
    out.
    """
    options: dict[str, Any] = {"reservation": cluster.reservation}
    if not {"requeue", "no_requeue"} & set(user_options):
        options["requeue"] = True
    if cluster.platform != "cpu":
        return options | gpu_request(cluster.gpu_option, cluster.gres, shape)
    if not {"hint", "threads_per_core", "ntasks_per_core"} & set(user_options):
        options["hint"] = "nomultithread"
    return options


def checked_setup(lines: Sequence[str]) -> list[str]:
    """Return the lines of a shell script that runs setup commands, or [] if there are no commands.

    If a command fails, the script writes a message to standard error and ends the job.
    """
    if not lines:
        return []
    # A failed command inside a shell function, such as `module` of Lmod, does not end the job.
    script = [f"trap 'echo \"{submission_files.SETUP_FAILED} $?: $setup_line\" >&2' EXIT"]
    for line in lines:
        quoted_line = shlex.quote(" ".join(line.split()))
        script += [f"setup_line={quoted_line}", line, "status=$?; [ $status -eq 0 ] || exit $status"]
    return [*script, "trap - EXIT"]


def _copy_package(folder: Path) -> list[str]:
    """Copy this package into a folder. Return the environment variables to run the copy.

    Each variable has the form "NAME=VALUE". Raise `Refusal` if the source code changed while this command
    ran.
    """
    ignored = shutil.ignore_patterns("__pycache__", "*.pyc")
    try:
        shutil.copytree(_PACKAGE, folder / "scaling", ignore=ignored)
    except shutil.Error as error:  # (source, target, message) of each file
        raise OSError(error.args[0][0][-1]) from None
    if environment.package_hash(folder / "scaling") != environment.package_hash():
        raise Refusal("the source of the package changed while this command ran: run the command again")
    import_paths = [str(folder), os.getcwd(), *(entry or os.getcwd() for entry in sys.path[:1])]
    import_paths += filter(None, [os.environ.get("PYTHONPATH")])
    # PYTHONSAFEPATH excludes the working directory, which may contain another version of the package.
    variables = [f"PYTHONPATH_FIRST={os.pathsep.join(dict.fromkeys(import_paths))}", "PYTHONSAFEPATH=1"]
    commit, dirty = environment.commit()
    return [*variables, *([f"AD_SCALING_COMMIT={commit}{'+dirty' if dirty else ''}"] if commit else [])]
