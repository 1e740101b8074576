"""Tests of remote workers: the command lines of srun and of a remote shell, and explanations of failed steps."""

import contextlib
import os
import queue
import shlex
import traceback

import pytest

from scaling.cluster.cluster_settings import parse_cluster_settings
from scaling.core import environment
from scaling.launcher import child_process, worker_group
from scaling.launcher.child_process import ChildProcess
from scaling.launcher.machine import ProcessShape
from scaling.launcher.worker_group import SrunSteps, SshShells

WORKER = ["python", "-m", "scaling.worker"]


def parse_flags(command):
    return dict(argument.partition("=")[::2] for argument in command if argument.startswith("--"))


def test_a_step_requests_its_shape_on_the_first_nodes_of_the_allocation():
    (command,) = SrunSteps(("n1", "n2", "n3"), "cpu").commands(ProcessShape(8, 2, 4), WORKER, os.environ)
    flags = parse_flags(command)
    assert (flags["--nodes"], flags["--ntasks"], flags["--ntasks-per-node"], flags["--cpus-per-task"]) == (
        "2",
        "4",
        "2",
        "2",
    )
    assert flags["--nodelist"] == "n1,n2" and "--exact" in flags and command[0] == "srun"
    assert command[-3:] == WORKER
    assert "--gres" not in flags


@pytest.mark.parametrize(("cores", "cpus"), [(None, None), (6, "12")])
def test_a_step_with_gpus_requests_the_gpus_of_a_node_and_their_cores(cores, cpus):
    (command,) = SrunSteps(("n1", "n2"), "gpu", "gpu:h100", cores).commands(
        ProcessShape(8, 2, 4), WORKER, os.environ
    )
    assert parse_flags(command)["--gres"] == "gpu:h100:4"
    assert parse_flags(command).get("--cpus-per-task") == cpus


def test_container_and_srun_options_precede_the_worker_command():
    cluster = parse_cluster_settings(
        {"name": "slurm", "container": "image.sqsh", "srun": ["--container-mounts=/scratch"]}
    )
    (command,) = SrunSteps(("n1",), "gpu", arguments=cluster.srun_options).commands(
        ProcessShape(1), WORKER, os.environ
    )
    assert command[-5:] == ["--container-image=image.sqsh", "--container-mounts=/scratch", *WORKER]
    assert "versions" in cluster.unknown_fields  # versions of packages in a container are unknown


def test_a_remote_shell_starts_workers_in_this_folder_with_the_variables_of_jax(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XLA_FLAGS", "--xla_one=1 --xla_two='a b'")
    monkeypatch.setenv("SECRET_TOKEN", "hidden")
    commands = SshShells(("a", "b", "c"), ("ssh", "-q")).commands(ProcessShape(8, 2, 4), WORKER, os.environ)
    assert [command[:3] for command in commands] == [["ssh", "-q", host] for host in ("a", "a", "b", "b")]
    command = shlex.split(commands[2][3])
    assert command[:4] == ["cd", str(tmp_path), "&&", "exec"] and command[-3:] == WORKER
    assert "AD_SCALING_NODE=b" in command and "XLA_FLAGS=--xla_one=1 --xla_two='a b'" in command
    assert not any("hidden" in argument for argument in command)


@pytest.mark.parametrize("name", environment.PROGRAM_VARIABLES)
def test_a_remote_shell_forwards_each_variable_that_is_part_of_the_environment(name):
    # Otherwise the environment of the worker would not be the one that the launcher expects.
    (command,) = SshShells(("a",), ("ssh",)).commands(ProcessShape(1, 1, 1), WORKER, {name: "1"})
    assert f"{name}=1" in shlex.split(command[2])


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (
            "slurmstepd-n1: error: *** STEP 12.0 ON n1 CANCELLED AT 2026-11-21T21:00:00 DUE TO TIME LIMIT ***",
            "timeout",
        ),
        (
            "slurmstepd: error: *** STEP 12.0 ON n1 CANCELLED AT 2026-11-21T21:00:00 DUE TO PREEMPTION ***",
            "preempted",
        ),
        ("srun: error: Node failure on n1", "node_failed"),
        (
            "slurmstepd-n1: error: *** STEP 12.0 ON n1 CANCELLED AT 2026-11-21T21:00:00 DUE TO NODE FAILURE ***",
            "node_failed",
        ),
        (
            "slurmstepd-n1: error: StepId=12.0 exceeded memory limit (217348096 > 4194304), being killed",
            "out_of_memory",
        ),
        ("slurmstepd-n1: error: Exceeded job memory limit", "out_of_memory"),
        ("srun: error: n1: task 0: Killed", None),
    ],
)
def test_a_message_of_slurm_about_the_end_of_a_step_gives_the_reason(line, reason):
    failure = child_process.explain_failure(["Traceback", line, "srun: Force Terminated StepId=12.0"])
    assert failure == ((reason, line) if reason else None)


def test_missed_heartbeats_in_jax_are_reported_as_a_failed_node():
    lines = [
        "F1122 client.h:80] UNAVAILABLE: The following tasks are unhealthy (stopped sending heartbeats):",
        "srun: error: n1",
    ]
    reason, text = child_process.explain_failure(lines)
    assert reason == "node_failed" and "its node or its network failed" in text


@pytest.mark.parametrize(
    ("status", "message"),
    [
        (255, "ended with status 255"),
        (137, "was killed by signal 9"),
        (143, "was killed by signal 15"),
        (2, "ended with status 2"),
    ],
)
def test_a_status_of_srun_is_reported_as_a_signal_only_if_the_signal_exists(status, message):
    lines = ["srun: error: Unable to create step for job 12: Requested nodes are busy"]
    lines += ["srun: Step created for job 12", "srun: cluster configuration lacks support for cpu binding"]
    lines += ["srun: error: n1: task 0: Exited with exit code 255"]
    process = ChildProcess(["true"])
    process.stderr_lines = lambda: lines
    group = worker_group.WorkerGroup([process], queue.Queue(), SrunSteps(("n1",), "cpu"))
    text = str(group._explain_death(0, status))
    process.close()
    assert message in text and "Requested nodes are busy" in text


ALLOCATOR = "Allocator (GPU_0_bfc) ran out of memory. The caller indicates that this is not a failure"


def explain_death(lines, status, remote=None):
    """Return the reason of the death of a worker that wrote these lines to its standard error."""
    process = ChildProcess(["sh", "-c", 'printf "%s\\n" "$@" >&2', "sh", *lines])
    group = worker_group.WorkerGroup([process], queue.Queue(), remote)
    process.receive(60)
    death = group._explain_death(0, status)
    process.close()
    return death.reason


@pytest.mark.parametrize(
    "warning",
    [
        f"2026-11-21 20:00:00.1: W external/xla/xla/tsl/framework/bfc_allocator.cc:306] {ALLOCATOR}",
        f"W1121 20:00:00.100000    42 bfc_allocator.cc:306] {ALLOCATOR}",
    ],
    ids=["tsl", "absl"],
)
def test_a_warning_of_the_allocator_does_not_explain_a_later_death(warning):
    assert explain_death([warning, "Fatal Python error: Segmentation fault"], -11) == "killed"
    heartbeats = "E1121 client.h:80] task:1 stopped sending heartbeats"
    lines = [warning, heartbeats, "srun: error: n2: task 1: Killed"]
    assert explain_death(lines, 137, SrunSteps(("n1", "n2"), "gpu")) == "node_failed"
    assert explain_death([warning, "RESOURCE_EXHAUSTED: Out of memory"], 1) == "out_of_memory"


@pytest.mark.parametrize(
    "end", ["task 1: Aborted (core dumped)", "tasks 0-3: Killed", "task 0: Exited with exit code 1"]
)
def test_the_message_of_a_worker_explains_its_death_and_the_end_of_its_task_does_not(end):
    lines = ["RESOURCE_EXHAUSTED: Out of memory", "| an earlier case", f"srun: error: n1: {end}"]
    assert explain_death(lines, 134, SrunSteps(("n1",), "gpu")) == "out_of_memory"
    lines = ["worker ended", "srun: error: n1: task 0: Out Of Memory"]
    assert explain_death(lines, 1, SrunSteps(("n1",), "gpu")) == "out_of_memory"


def test_only_messages_of_slurm_state_its_causes_and_the_last_one_counts():
    assert child_process.explain_failure(["fusion of node failed, using the default", "my oom_kill"]) is None
    lines = [
        "srun: error: Node failure on n1",
        "slurmstepd: error: *** STEP 1.0 CANCELLED DUE TO PREEMPTION ***",
    ]
    assert child_process.explain_failure(lines)[0] == "preempted"


@pytest.mark.parametrize(("own", "reason"), [(None, "out_of_memory"), (2, "killed"), (3, "out_of_memory")])
def test_memory_kills_are_counted_in_the_cgroup_of_the_process_if_it_is_known(monkeypatch, own, reason):
    """Other users' processes are killed on the same host too."""
    folder = "/sys/fs/cgroup/user.slice"
    files = {
        "/proc/self/cgroup": "0::/user.slice/session.scope",
        "/proc/vmstat": "oom_kill 7\noom_kill_other 9",
    }
    if own is not None:
        files[f"{folder}/memory.events"] = "low 0\noom 4\noom_kill 2\noom_group_kill 0"
    monkeypatch.setattr(environment, "read_text", lambda path: files.get(str(path)))
    process = ChildProcess(["true"])
    process.close()
    files["/proc/vmstat"] = "oom_kill 8"
    if own is not None:
        files[f"{folder}/memory.events"] = f"oom_kill {own}"
    assert process.explain_exit(137)[0] == reason


def test_the_error_message_of_xla_explains_an_exit_and_the_stack_trace_that_follows_does_not():
    message = "Check failed: ret == 0 (11 vs. 0) Thread creation via pthread_create() failed."
    trace = ["*** Check failure stack trace: ***", "    @     0x7f4a67f58ba3  PyObject_Vectorcall"]
    aborted = ["*** SIGABRT received at time=1795977000 on cpu 0 ***", "PC: @     0x7f4a67c1aeec  (unknown)"]
    assert child_process.last_informative_line([message, *trace, *aborted]) == message
    connected = "[Gloo] Rank 1 is connected to 1 peer ranks. Expected number of connected peer ranks is : 1"
    assert child_process.last_informative_line([message, connected]) == message
    overflow = "*** stack smashing detected ***: terminated"
    assert child_process.last_informative_line([message, overflow]) == overflow
    group = traceback.format_exception(BaseExceptionGroup("two", [ValueError("first"), KeyError("last")]))
    assert child_process.last_informative_line("".join(group).splitlines()) == "KeyError: 'last'"


def test_a_child_process_starts_without_a_folder_for_temporary_files(monkeypatch):
    """No such folder can be used if the disk is full."""
    monkeypatch.setattr("tempfile.tempdir", "/proc/none")
    child = ChildProcess(["head", "--lines=1"])
    child.send({"event": "text"})
    events = [child.receive(60), child.receive(60)]
    child.close()
    assert events == [{"event": "text"}, {"event": "exit", "status": 0}]


def test_a_record_of_millions_of_samples_is_received_as_one_event():
    event = {"event": "end", "line": "0" * 2**26}
    with contextlib.closing(ChildProcess(["cat"])) as child:
        child.send(event)
        assert child.receive(60) == event
