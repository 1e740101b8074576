"""Tests of submissions with scripts in place of Slurm's commands: what sbatch gets, and what is left if it fails."""

import contextlib
import errno
import os
import shutil
import signal
import subprocess
import types
from pathlib import Path

import pytest

from scaling.cli import main
from scaling.cluster import sbatch, submission_files, task_state
from scaling.cluster.cluster_settings import ClusterSettings, parse_cluster_settings
from scaling.core.case import Refusal
from tests.cluster.conftest import SETTINGS


@pytest.fixture
def submit(make_plan, commands, monkeypatch, tmp_path):
    """Submit tasks of two shapes, and so two job arrays, with the given scripts; squeue lists no job by default."""
    monkeypatch.setattr(sbatch, "_copy_package", lambda _: [])
    for name in [name for name in os.environ if name.startswith(("SLURM_", "SBATCH_"))]:
        monkeypatch.delenv(name)

    def call(results=tmp_path / "here", kind="slurm", **scripts):
        plan, tasks, _ = make_plan(kind, 1 if kind == "local" else 2)
        commands(**{"sbatch": "exit 1", "srun": "", "squeue": "", "sacct": "", "scancel": ""} | scripts)
        results.mkdir(exist_ok=True)
        cluster = parse_cluster_settings(
            {"name": kind, "qos": "normal"} if kind == "slurm" else {"name": kind}
        )
        return sbatch.submit(results, cluster, tasks, SETTINGS, plan, False)

    return call


def count_up(folder):
    """Return a shell line that sets n to the number of calls."""
    return f"echo >> {folder}/count; n=$(wc -l < {folder}/count)"


def test_sbatch_gets_the_cluster_and_account_of_the_user_and_no_other_variable_of_a_job(
    submit, tmp_path, monkeypatch
):
    kept = ("SLURM_CONF", "SLURM_CLUSTERS", "SBATCH_CLUSTERS", "SBATCH_ACCOUNT", "SBATCH_RESERVATION")
    removed = [
        "SBATCH_QOS",
        "SBATCH_TIMELIMIT",
        "SBATCH_JOB_NAME",
        "SBATCH_MEM_BIND",
        "SLURM_JOB_ID",
        "SLURM_NTASKS",
    ]

    def accept(**_):
        return submit(sbatch=f"env > {tmp_path}/env; {count_up(tmp_path)}; echo Submitted batch job $n")

    accept()  # outside a job
    for name in (*kept, *removed):
        monkeypatch.setenv(name, "x")
    assert {entry.job for entry in accept().tasks} == {"3", "4"}
    names = {line.partition("=")[0] for line in (tmp_path / "env").read_text().splitlines()}
    assert names >= set(kept) and not names & set(removed)  # qos is that of cluster.qos
    assert all(os.environ[name] == "x" for name in (*kept, *removed))


def reject_second(folder):
    """Return the script of an sbatch whose second call fails."""
    message = "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation"
    return (
        f"{count_up(folder)}; [ $n = 1 ] || {{ echo '{message}' >&2; exit 1; }}; echo Submitted batch job 12"
    )


def test_if_sbatch_fails_all_jobs_of_the_submission_are_cancelled(submit, tmp_path):
    with pytest.raises(Refusal, match="Socket timed out"):
        submit(sbatch=reject_second(tmp_path), scancel=f'echo "$@" > {tmp_path}/cancelled')
    assert "--name=scaling-" in (tmp_path / "cancelled").read_text() and not list(
        tmp_path.glob("here/jobs/*")
    )


def test_if_scancel_fails_the_jobs_stay_known_and_can_be_cancelled(submit, tmp_path, capsys):
    results = tmp_path / "here"
    with pytest.raises(Refusal, match="Socket timed out"):
        submit(sbatch=reject_second(tmp_path), scancel="echo no answer >&2; exit 1")
    assert f"no answer; jobs may be queued: `scaling cancel {results}` ends them" in capsys.readouterr().err
    [submission] = submission_files.read_submissions(results)
    squeue = tmp_path / "bin" / "squeue"
    squeue.write_text(f"#!/bin/sh\n[ -e {tmp_path}/no ] || echo '12|{submission.name}|RUNNING|n1|None'\n")
    assert [task.state.name for task in task_state.find_tasks(results)] == ["RUNNING", "LOST"]
    (tmp_path / "bin" / "scancel").write_text(f"#!/bin/sh\ntouch {tmp_path}/no\n")
    assert len(task_state.cancel_tasks(task_state.find_tasks(results))) == 1
    assert [task.state.name for task in task_state.find_tasks(results)] == ["LOST", "LOST"]


@pytest.mark.parametrize("name", ["INT", "HUP", "TERM"])
def test_a_signal_stops_no_sbatch_that_slurm_may_have_answered(name, submit):
    def stop(*_):
        raise AssertionError

    number = signal.Signals[f"SIG{name}"]
    earlier = signal.signal(number, stop)
    try:
        submission = submit(sbatch=f"kill -{name} $PPID $$; sleep 0.1; echo Submitted batch job 5")
    finally:
        assert signal.signal(number, earlier) == stop
    assert {entry.job for entry in submission.tasks} == {"5"}


@pytest.mark.parametrize(
    "message",
    ["Invalid job array specification", "Job violates accounting/QOS policy (job submit limit, ...)"],
)
def test_a_limit_on_the_number_of_tasks_is_reported_with_the_settings_that_make_fewer(submit, message):
    with pytest.raises(Refusal, match=r"; a larger cluster\.time or cluster\.fill makes fewer tasks"):
        submit(sbatch=f"echo 'sbatch: error: Batch job submission failed: {message}' >&2; exit 1")


@pytest.mark.parametrize("command", ["sbatch", "srun"])
def test_a_missing_command_of_slurm_is_reported_before_a_file_is_written(
    submit, command, monkeypatch, tmp_path
):
    monkeypatch.setattr(shutil, "which", lambda name: None if name == command else f"/usr/bin/{name}")
    with pytest.raises(Refusal, match=f"{command} is not installed on this host, or its folder is not in"):
        submit()
    assert not list(tmp_path.glob("here/*"))


def test_an_sbatch_that_prints_no_job_id_is_an_error_in_one_line(submit, tmp_path):
    with pytest.raises(Refusal) as error:
        submit(sbatch="echo Your request was accepted.")
    assert str(error.value) == 'Slurm: Could not make sense of sbatch output "Your request was accepted."'
    assert not list(tmp_path.glob("here/jobs/*"))


@pytest.mark.filterwarnings("ignore:No submission happened")
@pytest.mark.parametrize("kind", ["slurm", "local"])
def test_records_of_a_job_go_to_its_results_folder_if_the_folder_jobs_is_a_link(
    kind, submit, tmp_path, monkeypatch
):
    results = tmp_path / "real"
    (tmp_path / "elsewhere").mkdir()
    results.mkdir()
    (results / "jobs").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "linked").symlink_to(results)
    commands = []
    import submitit

    monkeypatch.setattr(
        submitit.SlurmExecutor, "submit", lambda _, function, command: commands.append(command)
        or types.SimpleNamespace(job_id="7"),
    )  # fmt: skip
    if kind == "local":
        monkeypatch.setattr(
            subprocess,
            "Popen",
            lambda command, **_: commands.append(command) or types.SimpleNamespace(pid=7, stdin=None),
        )
    submit(tmp_path / "linked", kind)
    assert {Path(command[-1]).parents[2] for command in commands} == {results}


@pytest.mark.parametrize(
    ("name", "kind", "character"),
    [
        ("eff:2", "local", "':'"), ("eff:2", "slurm", "':'"), ("eff_50%thr", "slurm", "'%'"), ("a%j", "slurm", "'%'"),
        (os.fsdecode(b"caf\xe9"), "slurm", r"'\\udce9'"), ("a\nb", "slurm", r"'\\n'"),
    ],
)  # fmt: skip
def test_a_results_folder_whose_path_a_job_cannot_use_is_refused_before_anything_is_submitted(
    name, kind, character, submit, tmp_path
):
    with pytest.raises(Refusal, match=f"contains {character}, which .*: choose another with results=PATH"):
        submit(tmp_path / name, kind, sbatch="echo Submitted batch job 12")
    assert not list((tmp_path / name).iterdir()) and not (tmp_path / "bin" / "calls").exists()
    with pytest.raises(Refusal, match="choose another"):
        sbatch.format_scripts(tmp_path / name, ClusterSettings(name=kind), [], None)


@pytest.mark.parametrize("name", ["eff_50%thr", os.fsdecode(b"caf\xe9")])
def test_a_local_task_may_have_such_a_results_folder_if_pythonpath_does_not_split_it(
    name, submit, tmp_path, monkeypatch
):
    monkeypatch.setattr(
        sbatch, "_start_process", lambda submission, *_: sbatch.save_job_ids(submission, {"0001": "7"})
    )
    assert submit(tmp_path / name, "local").tasks[0].job == "7"


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, {"requeue": True, "hint": "nomultithread"}),
        ({"no-requeue": True}, {"no_requeue": True, "hint": "nomultithread"}),
        ({"no_requeue": True, "hint": "multithread"}, {"no_requeue": True, "hint": "multithread"}),
        ({"threads-per-core": 2, "requeue": False}, {"threads_per_core": 2}),
        ({"mem": 0, "requeue": None}, {"mem": 0, "hint": "nomultithread"}),
    ],
    ids=str,
)
def test_default_options_of_sbatch_are_added_only_if_the_user_gave_none_of_their_kind(
    options, expected, make_plan
):
    plan, [task], _ = make_plan()
    entry = types.SimpleNamespace(shape=task.shape)
    cluster = parse_cluster_settings({"name": "slurm", "sbatch": options})
    submission = types.SimpleNamespace(name="scaling-x")
    made = sbatch._sbatch_options(submission, entry, cluster, plan.machine, None)
    assert made["additional_parameters"] == expected


@pytest.mark.parametrize("gpu_option", ["gres", "gpus_per_node"])
def test_an_option_of_the_user_replaces_the_option_of_that_name(gpu_option, make_plan, tmp_path):
    plan, tasks, _ = make_plan()
    names = [gpu_option.replace("_", "-"), "cpus-per-task", "open-mode", "reservation"]
    options = dict.fromkeys(names, "mine")
    settings = {"platform": "gpu", "gpu_option": gpu_option, "reservation": "ours", "sbatch": options}
    cluster = parse_cluster_settings({"name": "slurm"} | settings)
    (script,) = sbatch.format_scripts(tmp_path, cluster, tasks, plan.machine)
    assert [line for name in sorted(options) for line in script.splitlines() if name in line] == [
        f"#SBATCH --{name}=mine" for name in sorted(options)
    ]


@pytest.mark.parametrize("value", [None, False])
def test_a_null_option_of_the_user_leaves_out_the_option_of_that_name(value, make_plan, tmp_path):
    plan, tasks, _ = make_plan()
    names = ["qos", "mem", "exclusive", "cpus-per-task", "ntasks-per-node", "hint"]
    settings = {"qos": "q", "memory": 4096, "exclusive": True}
    scripts = [
        sbatch.format_scripts(
            tmp_path, parse_cluster_settings({"name": "slurm", **settings, **user}), tasks, plan.machine
        )[0]
        for user in ({}, {"sbatch": dict.fromkeys(names, value)})
    ]
    assert [[name for name in names if f"--{name}" in script] for script in scripts] == [names, []]


OPTIONS = [
    "job-name",
    "job_name",
    "clusters",
    "array",
    "output",
    "error",
    "nodes",
    "parsable",
    "partition",
    "test_only",
    "time",
]


@pytest.mark.parametrize("option", OPTIONS)
def test_options_that_find_the_jobs_or_contradict_the_settings_cannot_be_set(option):
    names = "array, clusters, error, job-name, nodes, output, parsable, partition, test-only, time"
    with pytest.raises(Refusal, match=f"cluster.sbatch must be .* without {names}"):
        parse_cluster_settings({"name": "slurm", "sbatch": {option: "x"}})


def test_a_full_disk_at_submission_is_one_short_line(tmp_path, monkeypatch, capsys):
    def copy(*_, **__):
        why = "[Errno 28] No space left on device: 'case.py'"
        raise shutil.Error([(f"scaling/{n}.py", f"copy/{n}.py", why) for n in range(99)])

    monkeypatch.setattr(shutil, "copytree", copy)
    monkeypatch.setattr(main, "_run_command", lambda *_: sbatch._copy_package(tmp_path))
    assert main._run_and_explain([], None) == 1
    error = capsys.readouterr().err
    assert os.strerror(errno.ENOSPC) in error and len(error) < 200, error


def test_a_time_limit_below_a_second_is_a_limit(make_submission, monkeypatch):
    scripts = []
    monkeypatch.setattr(
        subprocess,
        "Popen",
        lambda command, **_: scripts.append(command[2]) or types.SimpleNamespace(pid=7, stdin=None),
    )
    submission = make_submission("local")
    sbatch._start_process(submission, ["true"], parse_cluster_settings({"name": "local", "time": "0.4s"}))
    assert f"--kill-after={sbatch._KILL_SECONDS} 1 " in scripts[0]


@pytest.mark.parametrize("is_saved", [True, False])
def test_a_local_task_starts_only_after_its_process_id_is_saved(
    is_saved, make_submission, monkeypatch, tmp_path
):
    """A later command cannot find a task without an ID before its journal exists, and would submit its cases again."""
    pids = []

    def save(submission, jobs):
        pids.extend(map(int, jobs.values()))
        if not is_saved:
            raise OSError
        return submission

    submission = make_submission("local")
    monkeypatch.setattr(sbatch, "save_job_ids", save)
    monkeypatch.setattr(subprocess, "_active", None)  # otherwise this list keeps the pipe open
    with contextlib.suppress(OSError):  # the end of a launcher closes the pipe, too
        sbatch._start_process(submission, ["touch", str(tmp_path / "started")], ClusterSettings(name="local"))
    os.waitpid(pids[0], 0)
    assert (tmp_path / "started").exists() == is_saved
