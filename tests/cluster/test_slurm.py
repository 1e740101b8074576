"""A study on a real Slurm (slurm/cluster): what was asked for is what runs, and whatever becomes of a job, no record is lost."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from scaling.cluster import job_state, submission_files
from scaling.core.store import load
from scaling.workers import cores
from tests.support.commands import QUICK
from tests.support.paths import TOP
from tests.support.slurm import CLUSTER, call, slurm

pytestmark = [pytest.mark.slurm, pytest.mark.usefixtures("cluster")]
PATIENCE = 300.0  # seconds, for a cluster that shares two cores with everything else
WHOLE = ("--nodes=2", "--cpus-per-task=2", "--output=/dev/null")  # all that the cluster has
SLURM = ("cluster=slurm", "oversubscribe=true")

# The case that the fault is to meet: it stays in its first call until the file is there, and is like any other from then on.
STUCK = """
    if RUNNING and case.sizes["n"] == 3 and not os.path.exists("go"):
        open("stuck", "w").close()
        import time
        time.sleep(3600)
"""
STUDY = "{workload: mine, points: [8, 12], sizes: {n: [2, 3]}, mode: [jacfwd, jacrev], devices: DEVICES}"
CASES = 8  # of it, for each number of devices


def until(happened, what, seconds=PATIENCE):
    """Wait for something to be true; what it is worth comes back."""
    end = time.monotonic() + seconds
    while not (found := happened()):
        assert time.monotonic() < end, f"waited {seconds:.0f} s for {what}"
        time.sleep(0.2)
    return found


def queue():
    """The jobs that wait or run."""
    return call("squeue", "--noheader", "--format=%i %T").stdout.splitlines()


@pytest.fixture(autouse=True)
def empty_queue():
    """Each test finds an empty queue, and leaves one."""
    call("scancel", f"--user={os.environ.get('USER') or os.getuid()}")
    until(lambda: not queue(), "an empty queue")
    yield
    call("scancel", f"--user={os.environ.get('USER') or os.getuid()}")


@pytest.fixture
def results(tmp_path):
    return tmp_path / "out"


@pytest.fixture
def submit(write_study, write_workload, scaling_command):
    """Submits a study with a case that gets stuck, again at will; what is asked for beside comes as words."""
    write_workload(
        head='SIZES = {"n": 2}',
        body=STUCK.replace("\n    ", "\n").strip("\n") + '\nreturn jnp.sin(x)[: case.sizes["n"] - 1] * x[2]',
    )

    def again(*more, devices="1"):
        words = write_study(STUDY.replace("DEVICES", devices))
        done = scaling_command([*words, *SLURM, "results=out", *more], timeout=PATIENCE)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return again


def stuck(tmp_path):
    """Wait until the first case that gets stuck has, while others have records; these come back."""
    until((tmp_path / "stuck").exists, "a case to get stuck")
    return finished(tmp_path / "out")


def finished(results):
    """How many good records there are of each case and replicate."""
    return Counter((r.key, r.replicate) for r in load(results).records if r.status == "ok")


def complete(submit, tmp_path, before, *more, devices="1"):
    """The next run brings the study to its end, and no record that was finished is lost or doubled."""
    (tmp_path / "go").touch()
    submit("wait=true", *more, devices=devices)
    after = finished(tmp_path / "out")
    assert before, "nothing was finished that could be lost"
    assert set(before) <= set(after) and len(after) == CASES and set(after.values()) == {1}


def failures(results):
    return [(r.reason, r.text) for r in load(results).records if r.status == "failed"]


def ended(results):
    """Wait until no task waits or runs; the states of all."""
    until(lambda: not any(one.state.live for one in job_state.find_tasks(results)), "the tasks to end")
    return [one.state.name for one in job_state.find_tasks(results)]


def test_device_counts_over_two_nodes_end_as_curves_and_what_has_no_core_of_its_own_is_not_drawn(
    scaling_command, results
):
    words = ["run", "study=smoke", *SLURM, *QUICK, "devices=[1,2,4]", "results=out", "wait=true"]
    words += [
        "where=\"mode == 'jacfwd' and points < 20000\""
    ]  # every workload, api, split and dtype, on both nodes too
    done = scaling_command(words, timeout=2 * PATIENCE)
    assert done.returncode == 0, done.stdout + done.stderr
    records = load(results).records
    assert {r.status for r in records} <= {"ok", "skipped"}
    by_count = {
        count: [r for r in records if r.case.devices == count and r.status == "ok"] for count in (1, 2, 4)
    }
    assert all(r.honest for count in (1, 2) for r in by_count[count]) and not any(
        r.honest for r in by_count[4]
    )
    assert {len(r.environment["hosts"]) for r in by_count[4]} == {2}
    assert all(r.environment["shape"] == {"devices": 4, "nodes": 2, "processes": 2} for r in by_count[4])
    assert {r.environment["code"] for r in records if r.status == "ok"} == {"snapshot"}
    assert "oversubscribed, without a core for each device" in scaling_command(["report", "out"]).stdout
    again = scaling_command(words, timeout=PATIENCE)
    assert "smoke: 0 cases to run" in again.stdout and load(results).records == records


def test_two_processes_on_two_nodes_add_up_their_parts(scaling_command, write_study, results):
    """The all-reduce of the ceilings is checked like any case: each device must have the sum over all."""
    words = write_study(
        "{workload: ceiling, target: all_reduce, mode: value, points: 4, sizes: {k: 64}, devices: 4}"
    )
    done = scaling_command([*words, *SLURM, "results=out", "wait=true"], timeout=PATIENCE)
    (record,) = load(results).records
    assert (done.returncode, record.status, len(record.environment["hosts"])) == (0, "ok", 2)
    assert record.collectives["all-reduce"] == 1 and record.slowest_rank in (0, 1)


def test_a_process_for_each_device_is_what_is_asked_for(scaling_command, write_study, results):
    words = write_study("{workload: residual, points: 64, mode: jacfwd, devices: 4}")
    done = scaling_command([*words, *SLURM, "results=out", "wait=true", "processes=device"], timeout=PATIENCE)
    (record,) = load(results).records
    assert (done.returncode, record.status) == (0, "ok"), record.text
    assert record.environment["shape"] == {"devices": 4, "nodes": 2, "processes": 4}


def test_more_devices_than_cores_in_truth_fail_and_say_so(scaling_command, write_study, results):
    """Slurm has four cores and the host two: without leave to oversubscribe the workers refuse."""
    words = write_study("{workload: residual, points: 64, mode: jacfwd, devices: 4}")
    done = scaling_command([*words, "cluster=slurm", "results=out", "wait=true"], timeout=PATIENCE)
    assert done.returncode == 1
    assert [
        reason for reason, text in failures(results) if "4 cores were requested, but n1, n2 have" in text
    ] == ["not_as_asked"]
    again = scaling_command(
        [*words, *SLURM, "results=out", "wait=true"], timeout=PATIENCE
    )  # as it was told to
    assert again.returncode == 0 and sum(finished(results).values()) == 1


def test_all_device_counts_share_an_allocation_block_by_block(scaling_command, write_study, results):
    words = write_study("{workload: residual, points: 64, mode: [jacfwd, jacrev], devices: [1, 2, 4]}")
    done = scaling_command([*words, *SLURM, "results=out", "wait=true", "nested=true"], timeout=PATIENCE)
    assert done.returncode == 0, done.stdout + done.stderr
    records = sorted(load(results).records, key=lambda r: r.started_at)
    assert {r.environment["job"] for r in records} == {
        submission_files.read_submissions(results)[0].entries[0].job
    }
    assert Counter((r.case.devices, r.replicate) for r in records) == {
        (d, b): 2 for d in (1, 2, 4) for b in range(3)
    }
    assert [r.replicate for r in records] == sorted(r.replicate for r in records)
    orders = [
        tuple(dict.fromkeys(r.case.devices for r in records if r.replicate == block)) for block in range(3)
    ]
    assert len(set(orders)) > 1  # shuffled
    assert {d: {tuple(r.environment["hosts"]) for r in records if r.case.devices == d} for d in (1, 2, 4)} == {
        1: {("n1",)}, 2: {("n1",)}, 4: {("n1", "n2")},
    }  # fmt: skip


def test_one_sbatch_does_the_same_without_submitit(tmp_path, scaling_command, write_study, results):
    words = write_study("{workload: residual, points: 64, mode: jacfwd, devices: [1, 2, 4]}")[1:]
    top = TOP
    words = [str(tmp_path / "my_conf") if word == "my_conf" else word for word in words]
    asked = ["--wait", "--nodes=2", "--cpus-per-task=2", f"--chdir={top}", f"--output={tmp_path}/said"]
    command = ["sbatch", *asked, "slurm/study.sbatch", *words, "oversubscribe=true", f"results={results}"]
    try:
        done = subprocess.run(command, cwd=top, capture_output=True, text=True, check=False, timeout=PATIENCE)
    except subprocess.TimeoutExpired:
        pytest.fail((tmp_path / "said").read_text())
    assert done.returncode == 0, (tmp_path / "said").read_text()
    assert Counter((r.case.devices, r.status) for r in load(results).records) == {
        (d, "ok"): 3 for d in (1, 2, 4)
    }
    assert not (results / "jobs").exists()


def test_a_cancelled_task_loses_nothing_that_was_finished(submit, tmp_path, results):
    submit()
    before = stuck(tmp_path)
    call("scancel", submission_files.read_submissions(results)[0].entries[0].job)
    assert ended(results) == ["CANCELLED"]
    complete(submit, tmp_path, before)
    assert failures(results) and {reason for reason, _ in failures(results)} == {"cancelled"}


def workers_of(job):
    """The processes of the workers of a job, without the srun that started them."""
    found = []
    for pid in map(int, call("pgrep", "-f", "scaling.worker").stdout.split()):
        with contextlib.suppress(OSError):  # it has ended since
            command, told = (
                Path(f"/proc/{pid}/{what}").read_bytes().split(b"\0") for what in ("cmdline", "environ")
            )
            if b"srun" not in command[0] and {
                f"SLURM_JOB_ID={job}".encode(),
                f"SLURM_ARRAY_JOB_ID={job}".encode(),
            } & set(told):
                found.append(pid)
    assert found
    return found


def test_a_worker_that_is_killed_costs_one_record(submit, tmp_path, results):
    submit()
    before = stuck(tmp_path)
    (tmp_path / "go").touch()
    job = submission_files.read_submissions(results)[0].entries[0].job.partition("_")[0]
    for pid in workers_of(job):
        os.kill(pid, signal.SIGKILL)
    assert ended(results) == ["COMPLETED"]
    assert [reason for reason, _ in failures(results)] == ["killed"]
    assert all("killed by signal 9" in text for _, text in failures(results))
    complete(submit, tmp_path, before)


def test_a_requeued_task_goes_on_from_where_it_was(submit, tmp_path, results):
    submit()
    before = stuck(tmp_path)
    (tmp_path / "go").touch()
    call("scontrol", "requeue", submission_files.read_submissions(results)[0].entries[0].job)
    assert ended(results) == ["COMPLETED"]
    after = finished(results)
    assert set(before) <= set(after) and len(after) == CASES and set(after.values()) == {1}
    assert {r.environment["restarts"] for r in load(results).records if r.status == "ok"} == {0, 1}
    assert all(reason == "killed" and "requeued" in text for reason, text in failures(results))


def test_a_node_that_fails_in_the_middle_of_a_case_loses_nothing(submit, tmp_path, results):
    submit("cluster.sbatch={requeue: false, no-requeue: true}")
    before = stuck(tmp_path)
    node = job_state.find_tasks(results)[0].state.node
    call(CLUSTER, "stop-node", node)
    try:
        assert ended(results) in (["NODE_FAIL"], ["CANCELLED"])
    finally:
        call(CLUSTER, "start-node", node)
    until(
        lambda: "idle" in call("sinfo", "--noheader", f"--nodes={node}", "--format=%t").stdout,
        "the node to come back",
    )
    complete(submit, tmp_path, before)
    assert {reason for reason, _ in failures(results)} <= {"node_failed", "cancelled"}


def test_a_task_that_comes_to_its_time_limit_is_resubmitted_by_the_next_run(submit, tmp_path, results):
    """Without accounting the log of the job says that it was the time limit."""
    submit("cluster.time=1", "cluster.fill=1")
    before = stuck(tmp_path)
    assert "TIMEOUT" in ended(results)
    with pytest.MonkeyPatch.context() as without:  # accounting, and a controller that remembers
        without.setattr("scaling.cluster.slurm.query_states", lambda jobs: {})
        for path in results.glob("jobs/*/states.json"):
            path.unlink()
        assert "TIMEOUT" in ended(results)
    complete(submit, tmp_path, before)
    assert {reason for reason, _ in failures(results)} == {"timeout"}


@pytest.mark.parametrize(("partition", "state"), [("low", "COMPLETED"), ("scavenge", "PREEMPTED")])
def test_a_preempted_task_is_requeued_by_the_cluster_or_resubmitted_by_the_next_run(
    submit, tmp_path, results, partition, state
):
    submit(f"cluster.partition={partition}", devices="4")
    before = stuck(tmp_path)
    (tmp_path / "go").touch()
    done = call("sbatch", "--wait", "--partition=high", *WHOLE, "--wrap=sleep 1")
    assert done.returncode == 0, done.stderr
    assert ended(results) == [state]
    complete(submit, tmp_path, before, devices="4")
    assert {reason for reason, _ in failures(results)} <= {"killed", "preempted"}


def test_who_waits_gets_what_was_preempted_without_asking_again(
    start_command, write_study, write_workload, tmp_path, results
):
    write_workload(
        head='SIZES = {"n": 2}',
        body=STUCK.replace("\n    ", "\n").strip("\n") + "\nreturn jnp.sin(x)[:2] * x[2]",
    )
    words = write_study("{workload: mine, points: [8, 12], sizes: {n: 3}, devices: 4}")
    waits = start_command([*words, *SLURM, "results=out", "cluster.partition=scavenge", "wait=true"])
    stuck(tmp_path)
    (tmp_path / "go").touch()
    call("sbatch", "--wait", "--partition=high", *WHOLE, "--wrap=sleep 1")
    out, err = waits.communicate(timeout=PATIENCE)
    assert waits.returncode == 0, out + err
    assert len(finished(results)) == 2 and [reason for reason, _ in failures(results)] == ["preempted"]


def test_attempts_are_counted_and_bounded(submit, tmp_path, results):
    for _ in range(2):
        (tmp_path / "stuck").unlink(missing_ok=True)
        submit("cluster.attempts=2")
        stuck(tmp_path)
        call("scancel", submission_files.read_submissions(results)[-1].entries[0].job)
        ended(results)
    told = submit("cluster.attempts=2")
    assert "failed for good or 2 times (cluster.attempts)" in told
    assert max(r.attempt for r in load(results).records) == 2
    complete(submit, tmp_path, finished(results), "cluster.attempts=3")


def test_a_wrong_answer_is_final(scaling_command, write_study, write_workload, results):
    wrong = "reference=lambda named: Reference(np.ones((6, 2)), np.ones((6, 2, 3)))"
    write_workload(returns=f'Workload(function=function, points={{"x": uniform(3)}}, {wrong})')
    words = [*write_study("{workload: mine, points: 6}"), *SLURM, "results=out", "wait=true"]
    assert scaling_command(words, timeout=PATIENCE).returncode == 1
    count = len(load(results).records)
    again = scaling_command(words, timeout=PATIENCE)
    assert again.returncode == 1 and "0 cases to run" in again.stdout and "failed for good" in again.stdout
    assert len(load(results).records) == count
    assert scaling_command([*words, "retry=true"], timeout=PATIENCE).returncode == 1
    assert [r.attempt for r in load(results).records] == [*range(1, count + 2)]


def test_a_job_that_waits_for_cores_of_another_study_says_so(scaling_command, write_study, results):
    study = write_study("{workload: residual, points: 32, mode: jacfwd, devices: [1]}")
    with cores.claim_cores(len(cores.usable_cores()), "another study"):
        done = scaling_command([*study, *SLURM, "results=out"], timeout=PATIENCE)
        assert done.returncode == 0, done.stderr
        until(
            lambda: any(task.blocked for task in job_state.find_tasks(results)),
            "the worker to wait",
        )
        assert "waits for" in scaling_command(["status", "out"]).stdout
        assert f"process {os.getpid()}" in scaling_command(["logs", "out", "residual"]).stdout
    assert ended(results) == ["COMPLETED"]


@pytest.mark.parametrize(
    ("line", "said"),
    [("false", "exit status 1: false"), ("exit 3", "exit status 3: exit 3"), ("no_such_module", "not found")],
)
def test_a_setup_line_that_fails_ends_the_job_and_is_named_in_the_record(
    scaling_command, write_study, results, line, said
):
    study = write_study("{workload: residual, points: 32, mode: jacfwd, devices: [1]}")
    done = scaling_command(
        [*study, *SLURM, "results=out", f"cluster.setup=['export A=1','{line}']"], timeout=PATIENCE
    )
    assert done.returncode == 0, done.stderr
    assert ended(results) == ["FAILED"]
    shown = scaling_command(["status", "out"]).stdout
    assert "setup line failed with exit status" in shown and said in shown
    assert said in scaling_command(["logs", "out"]).stdout
    assert "0 ok, 0 skipped, 1 failed" in scaling_command(["report", "out"]).stdout


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["cluster.partition=gpus"], "unknown cluster.partition 'gpus': choose from high, low, main, scavenge"),
        (["cluster.platform=gpu", "devices=16"], "devices=16 exceed the 8 gpu devices (2 nodes of 4) of partition main"),
        (["cluster.platform=gpu", "cluster.gres=gpu:h100"], "no node of partition main has a gpu:h100"),
        (["cluster.account=nobodys"], "Batch job submission failed: Invalid account or account/partition combination specified"),
        (["cluster.constraint=a100"], "Slurm: Batch job submission failed: Invalid feature specification"),
        (["cluster.sbatch={colour: red}"], "Slurm: unrecognized option '--colour=red'"),
        (["cluster.sbatch.colour=red"], "Slurm: unrecognized option '--colour=red'"),
        (["cluster.time=-1"], "cluster.time must be a positive number of minutes, not -1"),
        (["cluster.partion=main"], "unknown key of cluster 'partion': choose from name, partition"),
    ],
)  # fmt: skip
def test_what_a_cluster_cannot_give_is_one_line_and_leaves_nothing_behind(
    scaling_command, write_study, results, words, said
):
    study = write_study("{workload: residual, points: 32, mode: jacfwd, devices: [1, 2]}")
    done = scaling_command([*study, *SLURM, "results=out", *words])
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert said in done.stderr
    assert not queue() and not list(results.glob("jobs/*"))


def test_a_queued_task_runs_what_was_submitted_and_not_what_was_changed_since(
    submit, tmp_path, results, write_workload
):
    """Of the package a copy is run; a user's module that has changed is not run at all."""
    (tmp_path / "go").touch()
    holder = call("sbatch", "--parsable", *WHOLE, "--wrap=sleep 600").stdout.strip()
    until(lambda: any("RUNNING" in line for line in queue()), "the nodes to be taken")
    submit()
    write_workload(head='SIZES = {"n": 2}', body="return jnp.cos(x)[:1] * x[2]")
    call("scancel", holder)
    ended(results)
    assert {text for _, text in failures(results)} == {
        "mine has changed since this case was asked for; run the study again"
    }
    assert not finished(results)
    submit("wait=true")
    assert len(finished(results)) == CASES


def test_tasks_are_split_as_the_cluster_wants_and_shapes_follow_one_another(submit, results):
    """fill=0.001: a task for every problem, of which there are four on one device and four on two."""
    submit("cluster.fill=0.001", "cluster.at_once=1", devices="[1, 2]")
    (made,) = submission_files.read_submissions(results)
    assert len(made.entries) == 8 and {entry.shape.devices for entry in made.entries} == {1, 2}
    told = json.loads((made.folder / "submission.json").read_text())
    assert len({task["job"] for task in told["tasks"]}) == 8
    arrays = list(dict.fromkeys(entry.job.partition("_")[0] for entry in made.entries))
    assert len(arrays) == 2
    assert f"afterany:{arrays[0]}" in call("scontrol", "show", "job", arrays[1]).stdout
    assert sum("RUNNING" in line for line in queue()) <= 1


def test_what_is_in_the_queue_is_not_submitted_twice(submit, tmp_path, results):
    submit()
    stuck(tmp_path)
    told = submit()
    assert "0 cases to run" in told and "in the queue already" in told
    assert len(submission_files.read_submissions(results)) == 1


def test_a_scheduler_that_has_forgotten_a_job_is_not_needed_to_tell_what_became_of_it(
    submit, tmp_path, results, monkeypatch
):
    (tmp_path / "go").touch()
    submit("wait=true")
    shutil.rmtree(results / "jobs" / submission_files.read_submissions(results)[0].folder.name / "code")
    (states,) = results.glob("jobs/*/states.json")
    states.unlink()
    monkeypatch.setattr("scaling.cluster.slurm.query_states", lambda jobs: {})
    assert [one.state.name for one in job_state.find_tasks(results)] == ["COMPLETED"]


def test_a_worker_sees_the_gpus_of_its_shape_and_fails_where_jax_has_none(
    scaling_command, write_study, results, tmp_path
):
    """Fake GPUs: Slurm hands them out for real, and JAX says that there are none."""
    told = tmp_path / "told"
    python = tmp_path / "python"
    python.write_text(
        f'#!/bin/sh\necho "$SLURM_STEP_NUM_NODES $SLURMD_NODENAME $CUDA_VISIBLE_DEVICES" >> {told}\nexec {sys.executable} "$@"\n'
    )
    python.chmod(0o755)
    words = write_study("{workload: residual, points: 64, mode: jacfwd, devices: [1, 8], api: shard_map}")
    words += [*SLURM, "results=out", "wait=true", "cluster.platform=gpu", f"cluster.python={python}"]
    done = scaling_command(words, timeout=PATIENCE)
    assert done.returncode == 1
    seen = Counter(told.read_text().splitlines())
    assert {line.rpartition(" ")[0] for line in seen} <= {"1 n1", "1 n2", "2 n1", "2 n2"}
    assert all(len(line.split()[2].split(",")) == (1 if line.startswith("1") else 4) for line in seen)
    assert seen["2 n1 0,1,2,3"] == seen["2 n2 0,1,2,3"] > 0
    assert {r.case.devices for r in load(results).records} == {1, 8}
    assert all(r.status == "failed" and "gpu" in r.text.lower() for r in load(results).records)


ONE = "{workload: residual, points: 64, mode: jacfwd, devices: 1}"


def test_memory_is_asked_for_in_gigabytes_and_more_than_a_node_has_is_refused(
    scaling_command, write_study, results
):
    words = [*write_study(ONE), *SLURM, "results=out"]
    holder = call("sbatch", "--parsable", *WHOLE, "--wrap=sleep 600").stdout.strip()
    assert scaling_command([*words, "cluster.memory=4"], timeout=PATIENCE).returncode == 0
    (entry,) = submission_files.read_submissions(results)[0].entries
    assert call("squeue", "-h", "-o", "%m", "-j", entry.job).stdout.strip() == "4G"
    call("scancel", holder)
    assert ended(results) == ["COMPLETED"] and sum(finished(results).values()) == 1
    done = scaling_command([*words, "points=128", "cluster.memory=2TB"])
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert "Memory specification can not be satisfied" in done.stderr


def test_a_case_that_takes_more_memory_than_its_job_has_is_out_of_memory(
    scaling_command, write_study, write_workload, results
):
    write_workload(
        body="if RUNNING: hold = np.ones(2**27); import time; time.sleep(30)\nreturn jnp.sin(x)[:2] * x[2]"
    )
    words = [
        *write_study("{workload: mine, points: 8}"),
        *SLURM,
        "results=out",
        "wait=true",
        "cluster.memory=1000MB",
    ]
    done = scaling_command([*words, "cluster.attempts=1"], timeout=PATIENCE)
    assert done.returncode == 1, done.stdout
    assert [reason for reason, _ in failures(results)] == ["out_of_memory"], failures(results)


@pytest.fixture
def cpu_default(cluster):
    """The partition without GPUs is the default one."""
    slurm("scontrol", "create", "PartitionName=cpu", "Nodes=c1", "Default=YES")
    yield
    slurm("scontrol", "update", "PartitionName=main", "Default=YES")
    slurm("scontrol", "delete", "PartitionName=cpu")


@pytest.mark.usefixtures("cpu_default")
def test_a_gpu_partition_beside_a_default_one_without_gpus_is_found_and_a_jax_without_cuda_is_not_as_asked(
    scaling_command, write_study, results
):
    words = [*write_study(ONE), *SLURM, "results=out", "cluster.platform=gpu"]
    refused = scaling_command(words)
    assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)
    assert (
        "no node of partition cpu has a gpu: set cluster.partition to one that has: high, low, main"
        in refused.stderr
    )
    # As at a site where something other than cluster.partition leads to the GPUs.
    done = scaling_command(
        [*words, "cluster.per_node=2", "cluster.sbatch={partition: main}", "wait=true"], timeout=PATIENCE
    )
    assert done.returncode == 1, done.stdout + done.stderr
    ((reason, text),) = failures(results)
    assert (
        reason == "not_as_asked"
        and "JAX has no gpu backend on n" in text
        and "install the extra ad-scaling[cuda]" in text
    )
    assert {tuple(r.environment["hosts"]) for r in load(results).records} <= {("n1",), ("n2",)}


@pytest.mark.parametrize("option", ["gpus_per_node", "gpus_per_task"])
def test_gpus_and_cpus_reach_the_workers_however_the_gpus_are_requested(
    scaling_command, write_study, tmp_path, option
):
    told, python = tmp_path / "told", tmp_path / "python"
    python.write_text(
        f'#!/bin/sh\necho "$CUDA_VISIBLE_DEVICES $SLURM_CPUS_PER_TASK" >> {told}\nexec {sys.executable} "$@"\n'
    )
    python.chmod(0o755)
    words = write_study("{workload: residual, points: 64, mode: jacfwd, devices: 4, api: shard_map}")
    words += [
        *SLURM,
        "results=out",
        "wait=true",
        "cluster.platform=gpu",
        f"cluster.python={python}",
        f"cluster.gpu_option={option}",
    ]
    assert scaling_command(words, timeout=PATIENCE).returncode == 1
    assert set(told.read_text().splitlines()) == {"0,1,2,3 2"}  # all CPUs of the node


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("cluster.python=/no/such/python", "No such file or directory"),
        ("cluster.setup=[module load nothing, exit 3]", "module: command not found"),
        ("cluster.srun=[--no-such-option]", "unrecognized option"),
    ],
)
def test_the_words_that_explain_a_failure_are_on_record_and_in_the_logs(
    scaling_command, write_study, results, word, said
):
    words = [*write_study(ONE), *SLURM, "results=out", "wait=true", "cluster.attempts=1", word]
    assert scaling_command(words, timeout=PATIENCE).returncode == 1
    (record,) = load(results).records
    assert said in record.text
    shown = scaling_command(["logs", "out", record.key[:8]])
    assert shown.returncode == 0 and said in shown.stdout.partition("log")[2]


def test_a_job_whose_launcher_was_killed_before_it_noted_it_runs_and_can_be_cancelled(
    submit, scaling_command, tmp_path, results
):
    submit()
    (path,) = results.glob("jobs/*/submission.json")
    written = json.loads(path.read_text())
    gone = subprocess.Popen(["true"])
    gone.wait()
    for task in written["tasks"]:
        task["job"] = None
    path.write_text(json.dumps(written | {"pid": gone.pid}))
    stuck(tmp_path)
    assert [one.state.name for one in job_state.find_tasks(results)] == ["RUNNING"]
    assert scaling_command(["cancel", "out"], timeout=PATIENCE).returncode == 0
    assert ended(results) == ["CANCELLED"]
    assert not job_state.queued_cases(job_state.find_tasks(results))


def test_a_dry_run_prints_what_is_submitted(scaling_command, write_study, results):
    words = [*write_study(ONE), *SLURM, "results=out", "cluster.memory=2GB", "cluster.time=00:20:00"]
    printed = scaling_command([*words, "dry_run=true"]).stdout
    assert not (results / "jobs").exists()
    assert scaling_command(words, timeout=PATIENCE).returncode == 0
    (script,) = results.glob("jobs/*/log/*_submission.sh")
    assert (
        script.read_text().strip()
        == printed[printed.index("#!/bin/bash") :].replace("STAMP", script.parts[-3]).strip()
    )
