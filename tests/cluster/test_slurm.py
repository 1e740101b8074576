"""Tests of studies on a real Slurm (slurm/cluster): jobs run as requested, and no record is lost however a job ends."""

import contextlib
import functools
import json
import os
import shutil
import signal
import sys
from collections import Counter
from pathlib import Path

import pytest

from scaling.cluster import task_state
from scaling.cluster.submission_files import read_submissions
from scaling.launcher import cores
from scaling.results.store import load
from tests.support import slurm as cluster_commands
from tests.support.commands import QUICK
from tests.support.paths import TOP
from tests.support.slurm import CLUSTER, run_command, slurm, start_requeued_job, wait_for

pytestmark = [pytest.mark.slurm, pytest.mark.usefixtures("cluster")]
TIMEOUT = 300.0  # seconds; the cluster shares two cores with the tests
wait_until = functools.partial(cluster_commands.wait_until, seconds=TIMEOUT)
ALL_CORES = ("--nodes=2", "--cpus-per-task=2", "--output=/dev/null")  # all cores of the cluster
SLURM = ("cluster=slurm", "oversubscribe=true")

# A workload whose cases with n=3 block in their first call until the file `go` exists. Cases with n=2 run first.
STUCK = """
    if RUNNING and case.sizes["n"] == 3 and not os.path.exists("go"):
        open("stuck", "w").close()
        import time
        time.sleep(3600)
"""
STUDY = "{workload: mine, points: 8, sizes: {n: [2, 3]}, mode: [jacfwd, jacrev], devices: DEVICES}"
CASES = 4  # of the study, for each device count


def queued_jobs():
    """Return the pending and running jobs."""
    return slurm("squeue", "--noheader", "--format=%i %T").splitlines()


def preempt_all_jobs():
    """Run a short job of high priority on all cores, and wait until it has ended."""
    slurm("srun", "--partition=high", *ALL_CORES, "true")


@pytest.fixture(autouse=True)
def empty_queue():
    """Cancel all jobs before and after each test."""
    slurm("scancel", f"--user={os.environ.get('USER') or os.getuid()}")
    wait_until(lambda: not queued_jobs(), "an empty queue")
    yield
    slurm("scancel", f"--user={os.environ.get('USER') or os.getuid()}")


@pytest.fixture
def results(tmp_path):
    return tmp_path / "out"


@pytest.fixture
def submit(write_study, write_workload, scaling_command):
    """Submit a study with blocking cases; more arguments of the command may follow. It may be called repeatedly."""
    write_workload(
        head='SIZES = {"n": 2}',
        body=STUCK.replace("\n    ", "\n").strip("\n") + '\nreturn jnp.sin(x)[: case.sizes["n"] - 1] * x[2]',
    )

    def run(*options, devices="1"):
        arguments = write_study(STUDY.replace("DEVICES", devices))
        done = scaling_command([*arguments, *SLURM, "results=out", *options], timeout=TIMEOUT)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return run


def wait_for_block(tmp_path):
    """Wait until the first case blocks and return the counts of records of the cases that finished."""
    wait_until((tmp_path / "stuck").exists, "a case to get stuck")
    return count_ok(tmp_path / "out")


def count_ok(results):
    """Return the number of ok records of each case and replicate."""
    return Counter((r.key, r.replicate) for r in load(results).records if r.status == "ok")


def check_completion(submit, tmp_path, before, *options, devices="1"):
    """Check that the next run completes the study, and that no ok record is lost or duplicated."""
    (tmp_path / "go").touch()
    submit("wait=true", *options, devices=devices)
    after = count_ok(tmp_path / "out")
    assert before, "nothing was finished that could be lost"
    assert set(before) <= set(after) and len(after) == CASES and set(after.values()) == {1}


def failures(results):
    return [(r.reason, r.text) for r in load(results).records if r.status == "failed"]


def final_states(results):
    """Wait until no task is live and return the states of all."""
    wait_until(
        lambda: not any(task.state.live for task in task_state.find_tasks(results)), "the tasks to end"
    )
    return [task.state.name for task in task_state.find_tasks(results)]


@pytest.mark.thorough
def test_curves_over_two_nodes_exclude_oversubscribed_device_counts(scaling_command, results):
    arguments = ["run", "study=smoke", *SLURM, *QUICK, "devices=[1,2,4]", "results=out", "wait=true"]
    arguments += ["where=\"mode == 'jacfwd' and workload == 'linear'\""]  # both splits
    done = scaling_command(arguments, timeout=2 * TIMEOUT)
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
    assert "oversubscribed or unbound devices" in scaling_command(["report", "out"]).stdout
    again = scaling_command(arguments, timeout=TIMEOUT)
    assert "smoke: 0 cases to run" in again.stdout and load(results).records == records


def test_an_all_reduce_over_two_nodes_is_correct(scaling_command, write_study, results):
    """The all-reduce is checked like any case: each device must have the sum over all devices."""
    arguments = write_study(
        "{workload: ceiling, target: all_reduce, mode: value, points: 4, sizes: {k: 64}, devices: 4}"
    )
    done = scaling_command([*arguments, *SLURM, "results=out", "wait=true"], timeout=TIMEOUT)
    (record,) = load(results).records
    assert (done.returncode, record.status, len(record.environment["hosts"])) == (0, "ok", 2)
    assert record.collectives["all-reduce"] == 1 and record.slowest_rank in (0, 1)


@pytest.mark.thorough
def test_more_devices_than_real_cores_need_oversubscribe_and_run_in_a_process_for_each(
    scaling_command, write_study, results
):
    """Slurm claims four cores and the host has two: without oversubscribe=true the workers fail."""
    arguments = write_study("{workload: residual, points: 64, mode: jacfwd, devices: 4}")
    arguments += ["results=out", "wait=true", "processes=device"]
    assert scaling_command([*arguments, "cluster=slurm"], timeout=TIMEOUT).returncode == 1
    ((reason, text),) = failures(results)
    assert reason == "not_as_asked" and "4 cores were requested, but n1, n2 have" in text
    again = scaling_command([*arguments, *SLURM], timeout=TIMEOUT)  # as the message suggests
    assert again.returncode == 0
    (record,) = [record for record in load(results).records if record.status == "ok"]
    assert record.environment["shape"] == {"devices": 4, "nodes": 2, "processes": 4}


def test_nested_runs_all_device_counts_in_one_allocation_block_by_block(
    scaling_command, write_study, results
):
    arguments = write_study("{workload: residual, points: 64, mode: jacfwd, devices: [1, 4]}")
    done = scaling_command([*arguments, *SLURM, "results=out", "wait=true", "nested=true"], timeout=TIMEOUT)
    assert done.returncode == 0, done.stdout + done.stderr
    records = sorted(load(results).records, key=lambda r: r.started_at)
    assert {r.environment["job"] for r in records} == {read_submissions(results)[0].tasks[0].job}
    assert Counter((r.case.devices, r.replicate) for r in records) == {
        (d, b): 1 for d in (1, 4) for b in range(3)
    }
    assert [r.replicate for r in records] == sorted(r.replicate for r in records)
    orders = [
        tuple(dict.fromkeys(r.case.devices for r in records if r.replicate == block)) for block in range(3)
    ]
    assert len(set(orders)) > 1  # in random order
    hosts = {(r.case.devices, tuple(r.environment["hosts"])) for r in records}
    assert hosts == {(1, ("n1",)), (4, ("n1", "n2"))}


def test_a_plain_sbatch_script_runs_a_study_without_submitit(tmp_path, scaling_command, write_study, results):
    study = write_study("{workload: residual, points: 64, mode: jacfwd, devices: [2, 4]}")[1:]
    study = [str(tmp_path / "my_conf") if option == "my_conf" else option for option in study]
    options = ["--nodes=2", "--cpus-per-task=2", f"--chdir={TOP}", f"--output={tmp_path}/output"]
    arguments = [*study, "oversubscribe=true", f"results={results}"]
    job = slurm("sbatch", "--parsable", *options, "slurm/study.sbatch", *arguments, cwd=TOP)
    wait_until(lambda: not queued_jobs(), "the job to end")
    wait_for(job, "COMPLETED")
    assert Counter((r.case.devices, r.status) for r in load(results).records) == {
        (d, "ok"): 3 for d in (2, 4)
    }, (tmp_path / "output").read_text()
    assert not (results / "jobs").exists()


def test_cancelling_a_task_loses_no_finished_record(submit, tmp_path, results):
    submit()
    before = wait_for_block(tmp_path)
    slurm("scancel", read_submissions(results)[0].tasks[0].job)
    assert final_states(results) == ["CANCELLED"]
    check_completion(submit, tmp_path, before)
    assert failures(results) and {reason for reason, _ in failures(results)} == {"cancelled"}


def worker_pids(job):
    """Return the process ids of the workers of a job, without those of srun."""
    pids = []
    for pid in map(int, run_command("pgrep", "-f", "scaling.worker").stdout.split()):
        with contextlib.suppress(OSError):  # it has ended since
            command, environment = (
                Path(f"/proc/{pid}/{name}").read_bytes().split(b"\0") for name in ("cmdline", "environ")
            )
            if b"srun" not in command[0] and {
                f"SLURM_JOB_ID={job}".encode(),
                f"SLURM_ARRAY_JOB_ID={job}".encode(),
            } & set(environment):
                pids.append(pid)
    assert pids
    return pids


@pytest.mark.thorough
def test_a_killed_worker_fails_only_one_case(submit, tmp_path, results):
    submit()
    before = wait_for_block(tmp_path)
    (tmp_path / "go").touch()
    job = read_submissions(results)[0].tasks[0].job.partition("_")[0]
    for pid in worker_pids(job):
        os.kill(pid, signal.SIGKILL)
    assert final_states(results) == ["COMPLETED"]
    assert [reason for reason, _ in failures(results)] == ["killed"]
    assert all("killed by signal 9" in text for _, text in failures(results))
    check_completion(submit, tmp_path, before)


@pytest.mark.thorough
def test_a_requeued_task_resumes_after_its_finished_cases(submit, tmp_path, results):
    submit()
    before = wait_for_block(tmp_path)
    (tmp_path / "go").touch()
    job = read_submissions(results)[0].tasks[0].job
    slurm("scontrol", "requeue", job)
    start_requeued_job(job)
    assert final_states(results) == ["COMPLETED"]
    after = count_ok(results)
    assert set(before) <= set(after) and len(after) == CASES and set(after.values()) == {1}
    assert {r.environment["restarts"] for r in load(results).records if r.status == "ok"} == {0, 1}
    assert all(reason == "killed" and "requeued" in text for reason, text in failures(results))


def test_a_node_failure_loses_no_finished_record(submit, tmp_path, results):
    submit("cluster.sbatch={requeue: false, no-requeue: true}")
    before = wait_for_block(tmp_path)
    node = task_state.find_tasks(results)[0].state.node
    slurm(CLUSTER, "stop-node", node)
    slurm("scontrol", "update", f"NodeName={node}", "State=DOWN", "Reason=test")  # as after SlurmdTimeout
    try:
        assert final_states(results) in (["NODE_FAIL"], ["CANCELLED"])
    finally:
        slurm(CLUSTER, "start-node", node)
    wait_until(
        lambda: "idle" in run_command("sinfo", "--noheader", f"--nodes={node}", "--format=%t").stdout,
        "the node to come back",
    )
    check_completion(submit, tmp_path, before)
    assert {reason for reason, _ in failures(results)} <= {"node_failed", "cancelled"}


def test_a_task_that_timed_out_is_resubmitted_by_the_next_run(submit, tmp_path, results):
    """Without accounting, the state is read from the log of the job."""
    submit("cluster.time=1", "cluster.fill=1")
    before = wait_for_block(tmp_path)
    for job, _ in map(str.split, queued_jobs()):  # the time limit of a minute, earlier
        slurm("scontrol", "update", f"JobId={job}", "EndTime=now+1")
    assert "TIMEOUT" in final_states(results)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("scaling.cluster.slurm.run_command", lambda *_: "")
        assert "TIMEOUT" in final_states(results)
    check_completion(submit, tmp_path, before)
    assert {reason for reason, _ in failures(results)} == {"timeout"}


@pytest.mark.thin(2, "thorough")
@pytest.mark.parametrize(("partition", "state"), [("low", "COMPLETED"), ("scavenge", "PREEMPTED")])
def test_a_preempted_task_is_requeued_by_slurm_or_resubmitted_by_the_next_run(
    submit, tmp_path, results, partition, state
):
    submit(f"cluster.partition={partition}", devices="4")
    before = wait_for_block(tmp_path)
    (tmp_path / "go").touch()
    preempt_all_jobs()
    if state == "COMPLETED":
        start_requeued_job(read_submissions(results)[0].tasks[0].job)
    assert final_states(results) == [state]
    check_completion(submit, tmp_path, before, devices="4")
    assert {reason for reason, _ in failures(results)} <= {"killed", "preempted"}


@pytest.mark.thorough
def test_a_waiting_run_reports_preempted_cases_and_the_same_command_runs_them(
    start_command, scaling_command, write_study, write_workload, tmp_path, results
):
    write_workload(
        head='SIZES = {"n": 2}',
        body=STUCK.replace("\n    ", "\n").strip("\n") + "\nreturn jnp.sin(x)[:2] * x[2]",
    )
    arguments = write_study("{workload: mine, points: [8, 12], sizes: {n: 3}, devices: 4}")
    arguments += [*SLURM, "results=out", "cluster.partition=scavenge", "wait=true"]
    waiting_run = start_command(arguments)
    wait_for_block(tmp_path)
    (tmp_path / "go").touch()
    preempt_all_jobs()
    out, err = waiting_run.communicate(timeout=TIMEOUT)
    assert waiting_run.returncode == 1 and "repeat the command to run these cases" in out, out + err
    assert [reason for reason, _ in failures(results)] == ["preempted"]
    assert len(read_submissions(results)) == 1
    done = scaling_command(arguments, timeout=TIMEOUT)
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(count_ok(results)) == 2 and [reason for reason, _ in failures(results)] == ["preempted"]


@pytest.mark.thorough
def test_attempts_are_counted_and_limited(submit, tmp_path, results):
    for _ in range(2):
        (tmp_path / "stuck").unlink(missing_ok=True)
        submit("cluster.attempts=2")
        wait_for_block(tmp_path)
        slurm("scancel", read_submissions(results)[-1].tasks[0].job)
        final_states(results)
    output = submit("cluster.attempts=2")
    assert "failed permanently or 2 times (cluster.attempts)" in output
    assert max(r.attempt for r in load(results).records) == 2
    check_completion(submit, tmp_path, count_ok(results), "cluster.attempts=3")


@pytest.mark.thorough
def test_a_wrong_answer_is_final(scaling_command, write_study, write_workload, results):
    shapes = 'np.ones((len(named["x"]), 2)), np.ones((len(named["x"]), 2, 3))'
    wrong = f"reference=lambda named: Reference({shapes})"
    write_workload(returns=f'Workload(function=function, points={{"x": uniform(3)}}, {wrong})')
    arguments = [*write_study("{workload: mine, points: 6}"), *SLURM, "results=out", "wait=true"]
    assert scaling_command(arguments, timeout=TIMEOUT).returncode == 1
    count = len(load(results).records)
    again = scaling_command(arguments, timeout=TIMEOUT)
    assert again.returncode == 1 and "0 cases to run" in again.stdout and "failed permanently" in again.stdout
    assert len(load(results).records) == count
    assert scaling_command([*arguments, "retry=true"], timeout=TIMEOUT).returncode == 1
    assert [r.attempt for r in load(results).records] == [*range(1, count + 2)]


def test_a_job_that_waits_for_cores_of_another_study_reports_it(scaling_command, write_study, results):
    study = write_study("{workload: residual, points: 32, mode: jacfwd, devices: [1]}")
    with cores.claim_cores(len(cores.usable_cores()), "another study"):
        done = scaling_command([*study, *SLURM, "results=out"], timeout=TIMEOUT)
        assert done.returncode == 0, done.stderr
        wait_until(
            lambda: any(
                task.explanation.startswith("waits for cores") for task in task_state.find_tasks(results)
            ),
            "the worker to wait",
        )
        assert "waits for" in scaling_command(["status", "out"]).stdout
        assert f"process {os.getpid()}" in scaling_command(["logs", "out", "residual"]).stdout
    assert final_states(results) == ["COMPLETED"]


@pytest.mark.thin(3, "thorough")
@pytest.mark.parametrize(
    ("line", "message"),
    [("false", "exit status 1: false"), ("exit 3", "exit status 3: exit 3"), ("no_such_module", "not found")],
)
def test_a_failing_setup_line_ends_the_job_and_is_named_in_the_record(
    scaling_command, write_study, results, line, message
):
    study = write_study("{workload: residual, points: 32, mode: jacfwd, devices: [1]}")
    done = scaling_command(
        [*study, *SLURM, "results=out", f"cluster.setup=['export A=1','{line}']"], timeout=TIMEOUT
    )
    assert done.returncode == 0, done.stderr
    assert final_states(results) == ["FAILED"]
    shown = scaling_command(["status", "out"]).stdout
    assert "setup line failed with exit status" in shown and message in shown
    assert message in scaling_command(["logs", "out"]).stdout
    assert "0 ok, 0 skipped, 1 failed" in scaling_command(["report", "out"]).stdout


@pytest.mark.thin(3, "thorough")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["cluster.partition=gpus"], "unknown cluster.partition 'gpus': choose from high, low, main, scavenge"),
        (["cluster.platform=gpu", "devices=16"], "devices=16 exceed the 8 gpu devices (2 nodes of 4) of partition main"),
        (["cluster.platform=gpu", "cluster.gres=gpu:h100"], "no node of partition main has a gpu:h100"),
        (["cluster.account=nobodys"], "Batch job submission failed: Invalid account or account/partition combination specified"),
        (["cluster.constraint=a100"], "Slurm: Batch job submission failed: Invalid feature specification"),
        (["cluster.sbatch={colour: red}"], "Slurm: unrecognized option '--colour=red'"),
        (["cluster.sbatch.colour=red"], "Slurm: unrecognized option '--colour=red'"),
        (["cluster.time=-1"], "cluster.time must be a positive number of minutes, or a time such as 2h"),
        (["cluster.partion=main"], "unknown key of cluster=slurm 'partion': choose from name, partition"),
    ],
)  # fmt: skip
def test_impossible_requests_are_rejected_in_one_line_and_leave_no_files(
    scaling_command, write_study, results, arguments, message
):
    study = write_study("{workload: residual, points: 32, mode: jacfwd, devices: [1, 2]}")
    done = scaling_command([*study, *SLURM, "results=out", *arguments])
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert message in done.stderr
    assert not queued_jobs() and not list(results.glob("jobs/*"))


def test_a_queued_task_does_not_run_code_changed_after_submission(submit, tmp_path, results, write_workload):
    """The job runs a copy of the package. Cases of a user's module that has changed fail."""
    (tmp_path / "go").touch()
    blocking_job = slurm("sbatch", "--parsable", *ALL_CORES, "--wrap=sleep 600")
    wait_until(lambda: any("RUNNING" in line for line in queued_jobs()), "the nodes to be taken")
    submit()
    write_workload(head='SIZES = {"n": 2}', body="return jnp.cos(x)[:1] * x[2]")
    slurm("scancel", blocking_job)
    final_states(results)
    assert {text for _, text in failures(results)} == {
        "mine has changed since this case was asked for; run the study again"
    }
    assert not count_ok(results)
    submit("wait=true")
    assert len(count_ok(results)) == CASES


def test_tasks_are_split_by_fill_and_arrays_of_different_shapes_run_in_sequence(submit, results):
    """fill=0.001 gives one task per problem: two problems on one device and two on two."""
    submit("cluster.fill=0.001", "cluster.at_once=1", devices="[1, 2]")
    (submission,) = read_submissions(results)
    assert len(submission.tasks) == 4 and {entry.shape.devices for entry in submission.tasks} == {1, 2}
    stored = json.loads((submission.folder / "submission.json").read_text())
    assert len({task["job"] for task in stored["tasks"]}) == 4
    arrays = list(dict.fromkeys(entry.job.partition("_")[0] for entry in submission.tasks))
    assert len(arrays) == 2
    assert f"afterany:{arrays[0]}" in run_command("scontrol", "show", "job", arrays[1]).stdout
    assert sum("RUNNING" in line for line in queued_jobs()) <= 1


def test_queued_cases_are_not_submitted_twice(submit, tmp_path, results):
    submit()
    wait_for_block(tmp_path)
    output = submit()
    assert "0 cases to run" in output and "in the queue already" in output
    assert len(read_submissions(results)) == 1


def test_the_state_of_a_job_is_known_after_the_scheduler_has_forgotten_it(
    scaling_command, write_study, results, monkeypatch
):
    arguments = [*write_study(ONE_CASE), *SLURM, "results=out", "wait=true"]
    assert scaling_command(arguments, timeout=TIMEOUT).returncode == 0
    shutil.rmtree(results / "jobs" / read_submissions(results)[0].folder.name / "code")
    monkeypatch.setattr("scaling.cluster.slurm.run_command", lambda *_: "")
    assert [task.state.name for task in task_state.find_tasks(results)] == ["COMPLETED"]


def test_workers_see_the_gpus_of_their_shape_and_fail_without_a_gpu_backend(
    scaling_command, write_study, results, tmp_path
):
    """The GPUs are fake: Slurm allocates them, and JAX has no GPU backend."""
    log = tmp_path / "log"
    python = tmp_path / "python"
    python.write_text(
        f'#!/bin/sh\necho "$SLURM_STEP_NUM_NODES $SLURMD_NODENAME $CUDA_VISIBLE_DEVICES" >> {log}\nexec {sys.executable} "$@"\n'
    )
    python.chmod(0o755)
    arguments = write_study("{workload: residual, points: 64, mode: jacfwd, devices: [1, 8], api: shard_map}")
    arguments += [*SLURM, "results=out", "wait=true", "cluster.platform=gpu", f"cluster.python={python}"]
    done = scaling_command(arguments, timeout=TIMEOUT)
    assert done.returncode == 1
    lines = Counter(log.read_text().splitlines())
    assert {line.rpartition(" ")[0] for line in lines} <= {"1 n1", "1 n2", "2 n1", "2 n2"}
    assert all(len(line.split()[2].split(",")) == (1 if line.startswith("1") else 4) for line in lines)
    assert lines["2 n1 0,1,2,3"] == lines["2 n2 0,1,2,3"] > 0
    assert {r.case.devices for r in load(results).records} == {1, 8}
    assert all(r.status == "failed" and "gpu" in r.text.lower() for r in load(results).records)


ONE_CASE = "{workload: residual, points: 64, mode: jacfwd, devices: 1}"


def test_memory_is_requested_in_gigabytes_and_too_much_is_rejected(scaling_command, write_study, results):
    arguments = [*write_study(ONE_CASE), *SLURM, "results=out"]
    blocking_job = slurm("sbatch", "--parsable", *ALL_CORES, "--wrap=sleep 600")
    assert scaling_command([*arguments, "cluster.memory=4"], timeout=TIMEOUT).returncode == 0
    (entry,) = read_submissions(results)[0].tasks
    assert run_command("squeue", "-h", "-o", "%m", "-j", entry.job).stdout.strip() == "4G"
    slurm("scancel", blocking_job)
    assert final_states(results) == ["COMPLETED"] and sum(count_ok(results).values()) == 1
    done = scaling_command([*arguments, "points=128", "cluster.memory=2TB"])
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert "Memory specification can not be satisfied" in done.stderr


def test_a_case_that_exceeds_the_memory_of_its_job_is_out_of_memory(
    scaling_command, write_study, write_workload, results
):
    write_workload(
        body="if RUNNING: hold = np.ones(2**27); import time; time.sleep(30)\nreturn jnp.sin(x)[:2] * x[2]"
    )
    arguments = [
        *write_study("{workload: mine, points: 8}"),
        *SLURM,
        "results=out",
        "wait=true",
        "cluster.memory=1000MB",
    ]
    done = scaling_command([*arguments, "cluster.attempts=1"], timeout=TIMEOUT)
    assert done.returncode == 1, done.stdout
    assert [reason for reason, _ in failures(results)] == ["out_of_memory"], failures(results)


@pytest.fixture
def cpu_default(cluster):
    """Make a partition without GPUs the default one."""
    slurm("scontrol", "create", "PartitionName=cpu", "Nodes=c1", "Default=YES")
    yield
    slurm("scontrol", "update", "PartitionName=main", "Default=YES")
    slurm("scontrol", "delete", "PartitionName=cpu")


@pytest.mark.usefixtures("cpu_default")
def test_a_gpu_partition_that_is_not_the_default_is_suggested_and_needs_jax_with_cuda(
    scaling_command, write_study, results
):
    arguments = [*write_study(ONE_CASE), *SLURM, "results=out", "cluster.platform=gpu"]
    rejected = scaling_command(arguments)
    assert (rejected.returncode, rejected.stderr.count("\n")) == (2, 1)
    words = "no node of partition cpu has a gpu: set cluster.partition to one that has: high, low, main"
    assert words in rejected.stderr
    done = scaling_command([*arguments, "cluster.partition=main", "wait=true"], timeout=TIMEOUT)
    assert done.returncode == 1, done.stdout + done.stderr
    ((reason, text),) = failures(results)
    assert reason == "not_as_asked" and "JAX has no gpu backend on n" in text
    assert "install the extra ad-scaling[cuda]" in text
    assert {tuple(r.environment["hosts"]) for r in load(results).records} <= {("n1",), ("n2",)}


@pytest.mark.thin(2, "thorough")
@pytest.mark.parametrize("option", ["gpus_per_node", "gpus_per_task"])
def test_workers_get_gpus_and_cpus_for_every_gpu_option(scaling_command, write_study, tmp_path, option):
    log, python = tmp_path / "log", tmp_path / "python"
    python.write_text(
        f'#!/bin/sh\necho "$CUDA_VISIBLE_DEVICES $SLURM_CPUS_PER_TASK" >> {log}\nexec {sys.executable} "$@"\n'
    )
    python.chmod(0o755)
    arguments = write_study("{workload: residual, points: 64, mode: jacfwd, devices: 4, api: shard_map}")
    arguments += [
        *SLURM,
        "results=out",
        "wait=true",
        "cluster.platform=gpu",
        f"cluster.python={python}",
        f"cluster.gpu_option={option}",
    ]
    assert scaling_command(arguments, timeout=TIMEOUT).returncode == 1
    assert set(log.read_text().splitlines()) == {"0,1,2,3 2"}  # all CPUs of the node


@pytest.mark.thin(2, "thorough")
@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("cluster.python=/no/such/python", "No such file or directory"),
        ("cluster.setup=[module load nothing, exit 3]", "module: command not found"),
        ("cluster.srun=[--no-such-option]", "unrecognized option"),
    ],
)
def test_the_cause_of_a_failure_is_in_the_record_and_in_the_logs(
    scaling_command, write_study, results, option, message
):
    arguments = [*write_study(ONE_CASE), *SLURM, "results=out", "wait=true", "cluster.attempts=1", option]
    assert scaling_command(arguments, timeout=TIMEOUT).returncode == 1
    (record,) = load(results).records
    assert message in record.text
    shown = scaling_command(["logs", "out", record.key[:8]])
    assert shown.returncode == 0 and message in shown.stdout.partition("log")[2]


def test_a_job_whose_id_was_not_saved_is_found_and_can_be_cancelled(
    submit, scaling_command, tmp_path, results
):
    submit()
    (path,) = results.glob("jobs/*/submission.json")
    written = json.loads(path.read_text())
    for task in written["tasks"]:
        task["job"] = None
    path.write_text(json.dumps(written))
    wait_for_block(tmp_path)
    assert [task.state.name for task in task_state.find_tasks(results)] == ["RUNNING"]
    assert scaling_command(["cancel", "out"], timeout=TIMEOUT).returncode == 0
    assert final_states(results) == ["CANCELLED"]
    assert not task_state.queued_cases(task_state.find_tasks(results))


def test_a_dry_run_prints_the_submitted_script(scaling_command, write_study, results):
    arguments = [*write_study(ONE_CASE), *SLURM, "results=out", "cluster.memory=2GB", "cluster.time=00:20:00"]
    printed = scaling_command([*arguments, "dry_run=true"]).stdout
    assert not (results / "jobs").exists()
    assert scaling_command(arguments, timeout=TIMEOUT).returncode == 0
    (script,) = results.glob("jobs/*/log/*_submission.sh")
    assert (
        script.read_text().strip()
        == printed[printed.index("#!/bin/bash") :].replace("STAMP", script.parts[-3]).strip()
    )
