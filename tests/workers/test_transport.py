"""How workers are started elsewhere: the words for srun and for a remote shell."""

import os
import queue
import shlex

import pytest

from scaling.cluster.cluster_settings import from_config
from scaling.workers import transport, worker_group
from scaling.workers.child_process import ChildProcess
from scaling.workers.machine import ProcessShape
from scaling.workers.transport import SrunSteps, SshShells

WORKER = ["python", "-m", "scaling.worker"]


def options(words):
    return dict(word.partition("=")[::2] for word in words if word.startswith("--"))


def test_a_step_asks_for_its_shape_on_the_first_nodes_of_the_allocation():
    (words,) = SrunSteps(("n1", "n2", "n3"), "cpu").commands(ProcessShape(8, 2, 4), WORKER, os.environ)
    asked = options(words)
    assert (asked["--nodes"], asked["--ntasks"], asked["--ntasks-per-node"], asked["--cpus-per-task"]) == (
        "2",
        "4",
        "2",
        "2",
    )
    assert (
        asked["--nodelist"] == "n1,n2" and "--exact" in asked and words[0] == "srun" and words[-3:] == WORKER
    )
    assert "--gres" not in asked


@pytest.mark.parametrize(("cores", "each"), [(None, None), (6, "12")])
def test_a_step_with_gpus_asks_for_those_of_a_node_and_for_their_cores(cores, each):
    (words,) = SrunSteps(("n1", "n2"), "gpu", "gpu:h100", cores).commands(
        ProcessShape(8, 2, 4), WORKER, os.environ
    )
    assert options(words)["--gres"] == "gpu:h100:4" and options(words).get("--cpus-per-task") == each


def test_a_container_and_more_words_come_before_the_worker():
    cluster = from_config(
        {"name": "slurm", "container": "image.sqsh", "srun": ["--container-mounts=/scratch"]}
    )
    (words,) = SrunSteps(("n1",), "gpu", arguments=cluster.srun_options).commands(
        ProcessShape(1), WORKER, os.environ
    )
    assert words[-5:] == ["--container-image=image.sqsh", "--container-mounts=/scratch", *WORKER]
    assert "versions" in cluster.untold  # of the packages in it


def test_a_shell_starts_each_worker_on_its_host_in_this_folder_with_what_steers_jax(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XLA_FLAGS", "--xla_one=1 --xla_two='a b'")
    monkeypatch.setenv("SECRET_TOKEN", "hidden")
    commands = SshShells(("a", "b", "c"), ("ssh", "-q")).commands(ProcessShape(8, 2, 4), WORKER, os.environ)
    assert [words[:3] for words in commands] == [["ssh", "-q", host] for host in ("a", "a", "b", "b")]
    said = shlex.split(commands[2][3])
    assert said[:4] == ["cd", str(tmp_path), "&&", "exec"] and said[-3:] == WORKER
    assert "AD_SCALING_NODE=b" in said and "XLA_FLAGS=--xla_one=1 --xla_two='a b'" in said
    assert not any("hidden" in word for word in said)


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
def test_slurms_words_for_the_end_of_a_step_become_a_reason(line, reason):
    found = transport.explain_failure(["Traceback", line, "srun: Force Terminated StepId=12.0"])
    assert found == ((reason, line) if reason else None)


def test_a_node_that_went_silent_is_the_reason_where_jax_missed_its_heartbeats():
    said = [
        "F1122 client.h:80] UNAVAILABLE: The following tasks are unhealthy (stopped sending heartbeats):",
        "srun: error: n1",
    ]
    reason, text = transport.explain_failure(said)
    assert reason == "node_failed" and "its node or its network failed" in text


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (255, "ended with status 255"),
        (137, "was killed by signal 9"),
        (143, "was killed by signal 15"),
        (2, "ended with status 2"),
    ],
)
def test_a_status_of_srun_is_a_signal_only_where_there_is_such_a_signal(status, words):
    said = ["srun: error: Unable to create step for job 12: Requested nodes are busy"]
    said += ["srun: error: n1: task 0: Exited with exit code 255"]
    process = ChildProcess(["true"], reaped=False)
    process.stderr_lines = lambda: said
    group = worker_group.WorkerGroup(ProcessShape(1), [process], queue.Queue(), SrunSteps(("n1",), "cpu"))
    text = str(group._explain_death(0, status))
    process.close()
    assert words in text and "Requested nodes are busy" in text
