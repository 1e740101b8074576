"""Tests of slurm/cluster, the Slurm on this host that tests use: running, rejecting, cancelling, preempting, accounting."""

import os

import pytest

from tests.support.slurm import CLUSTER, run_command, slurm, start_requeued_job, submit, wait_for, wait_until

pytestmark = pytest.mark.slurm

needs_cluster = pytest.mark.usefixtures("cluster")
needs_root = pytest.mark.skipif(
    os.geteuid() != 0, reason="only root may start and stop daemons: sudo scripts/test"
)
INVALID_ACCOUNT = "Invalid account or account/partition combination specified"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "up, status, down, stop-node, start-node"),
        (["upp"], "'upp'"),
        (["up", "--nodes", "5"], "--nodes '5': must be 2, 3, or 4"),
        (["up", "--cpus", "none"], "--cpus 'none': must be a number"),
        (["up", "--user", "nobody of this host"], "--user 'nobody of this host'"),
        (["up", "--hard"], "--install, --nodes, --cpus, --user"),
        (["down", "--nodes"], "down '--nodes'"),
        (["stop-node", "n7"], "stop-node 'n7'"),
    ],
    ids=str,
)
def test_invalid_arguments_are_rejected_in_one_line_with_the_valid_ones(arguments, message):
    done = run_command(CLUSTER, *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr and len(done.stderr.splitlines()) == 1


@needs_root
@needs_cluster
def test_up_does_not_restart_a_running_cluster():
    before = slurm("scontrol", "show", "config")
    assert slurm(CLUSTER, "up").startswith("already up")
    assert boot_time(slurm("scontrol", "show", "config")) == boot_time(before)


def boot_time(config):
    (line,) = [line for line in config.splitlines() if line.startswith("BOOT_TIME")]
    return line


@needs_root
@needs_cluster
def test_up_rejects_another_shape_while_a_cluster_is_running():
    done = run_command(CLUSTER, "up", "--cpus", "77")
    assert done.returncode == 2 and "slurm/cluster down first" in done.stderr


@needs_root
@needs_cluster
def test_a_node_without_slurmd_is_reported_and_can_be_restarted():
    slurm(CLUSTER, "stop-node", "n2")
    try:
        done = run_command(CLUSTER, "status")
        assert done.returncode == 1 and "n2 does not answer" in done.stdout
    finally:
        slurm(CLUSTER, "start-node", "n2")
    slurm(CLUSTER, "status")


def test_a_job_on_two_nodes_runs_on_both(cluster, tmp_path):
    job = submit(tmp_path, "srun sh -c 'echo $SLURMD_NODENAME'", "-N", "2", "--ntasks-per-node", "1")
    wait_for(job, "COMPLETED")
    nodes = (tmp_path / f"job-{job}").read_text().split()
    assert len(set(nodes)) == 2 and set(nodes) <= set(cluster)


@needs_cluster
def test_every_index_of_a_job_array_runs(tmp_path):
    job = submit(tmp_path, "echo $SLURM_ARRAY_TASK_ID", "--array=1-3")
    wait_for(job, *["COMPLETED"] * 3)
    assert [(tmp_path / f"job-{job}_{index}").read_text().strip() for index in (1, 2, 3)] == ["1", "2", "3"]


@needs_cluster
@pytest.mark.parametrize(
    ("arguments", "message"),
    [(["-A", "nobody's"], INVALID_ACCOUNT), (["-p", "nowhere"], "Invalid partition name specified")],
    ids=str,
)
def test_an_unknown_account_or_partition_is_rejected_with_the_message_of_slurm(arguments, message):
    done = run_command("sbatch", *arguments, "--wrap", "true")
    assert done.returncode == 1 and message in done.stderr


@needs_cluster
@pytest.mark.parametrize(("arguments", "account"), [([], "study"), (["-A", "spare"], "spare")])
def test_a_job_has_the_requested_account_or_the_default_one(arguments, account, tmp_path):
    job = submit(tmp_path, "true", *arguments)
    wait_for(job, "COMPLETED")
    assert slurm("sacct", "-X", "-n", "-P", "-o", "Account", "-j", job) == account


@needs_cluster
def test_accounting_stores_that_a_job_was_cancelled(tmp_path):
    job = submit(tmp_path, "echo began; sleep 600")
    wait_until((tmp_path / f"job-{job}").exists, "the job's start")
    slurm("scancel", job)
    wait_for(job, "CANCELLED")


@needs_cluster
def test_a_job_sees_only_the_gpus_that_it_requested(tmp_path):
    job = submit(tmp_path, "echo $CUDA_VISIBLE_DEVICES", "--gpus-per-node=3")
    wait_for(job, "COMPLETED")
    assert len((tmp_path / f"job-{job}").read_text().strip().split(",")) == 3
    assert run_command("sbatch", "--gpus-per-node=5", "--wrap", "true").returncode == 1


@needs_cluster
@pytest.mark.parametrize(
    ("partition", "expected"), [("low", ["PREEMPTED", "COMPLETED"]), ("scavenge", ["PREEMPTED"])]
)
def test_the_partition_high_preempts_a_job(partition, expected, tmp_path):
    all_of_n1 = ("-w", "n1", "--gpus-per-node=4")
    job = submit(
        tmp_path,
        "echo began $SLURM_RESTART_COUNT; [ $SLURM_RESTART_COUNT ] || sleep 600",
        "-p",
        partition,
        *all_of_n1,
    )
    wait_until((tmp_path / f"job-{job}").exists, "the job's start")
    wait_for(submit(tmp_path, "true", "-p", "high", *all_of_n1), "COMPLETED")
    if "COMPLETED" in expected:
        start_requeued_job(job)
    wait_for(job, *expected)
    assert not run_command("squeue", "-h", "-t", "PD,R", "-j", job).stdout  # and it will not start again
    starts = [line for line in (tmp_path / f"job-{job}").read_text().splitlines() if line.startswith("began")]
    assert starts == ["began", "began 1"][: len(expected)]
