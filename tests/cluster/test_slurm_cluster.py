"""The cluster that tests run on, slurm/cluster, is a real Slurm: it runs, refuses, cancels, preempts and remembers."""

import os

import pytest

from tests.support.slurm import CLUSTER, call, slurm, submit, wait_for, wait_until

pytestmark = pytest.mark.slurm

needs_cluster = pytest.mark.usefixtures("cluster")
needs_root = pytest.mark.skipif(
    os.geteuid() != 0, reason="only root may start and stop daemons: sudo scripts/test"
)
REFUSED = "Invalid account or account/partition combination specified"


@pytest.mark.parametrize(
    ("words", "said"),
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
def test_bad_words_are_refused_in_one_line_that_says_what_to_say(words, said):
    done = call(CLUSTER, *words)
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr and len(done.stderr.splitlines()) == 1


@needs_root
@needs_cluster
def test_up_leaves_a_cluster_that_is_up_as_it_is():
    before = slurm("scontrol", "show", "config")
    assert slurm(CLUSTER, "up").startswith("already up")
    assert boot(slurm("scontrol", "show", "config")) == boot(before)


def boot(config):
    (line,) = [line for line in config.splitlines() if line.startswith("BOOT_TIME")]
    return line


@needs_root
@needs_cluster
def test_a_cluster_of_another_shape_must_go_down_first():
    done = call(CLUSTER, "up", "--cpus", "77")
    assert done.returncode == 2 and "slurm/cluster down first" in done.stderr


@needs_root
@needs_cluster
def test_a_node_whose_slurmd_died_is_missed_at_once_and_can_come_back():
    slurm(CLUSTER, "stop-node", "n2")
    try:
        done = call(CLUSTER, "status")
        assert done.returncode == 1 and "n2 does not answer" in done.stdout
    finally:
        slurm(CLUSTER, "start-node", "n2")
    slurm(CLUSTER, "status")


def test_a_job_over_two_nodes_runs_on_both(cluster, tmp_path):
    job = submit(tmp_path, "srun sh -c 'echo $SLURMD_NODENAME'", "-N", "2", "--ntasks-per-node", "1")
    wait_for(job, "COMPLETED")
    ran = (tmp_path / f"job-{job}").read_text().split()
    assert len(set(ran)) == 2 and set(ran) <= set(cluster)


@needs_cluster
def test_every_index_of_an_array_runs(tmp_path):
    job = submit(tmp_path, "echo $SLURM_ARRAY_TASK_ID", "--array=1-3")
    wait_for(job, *["COMPLETED"] * 3)
    assert [(tmp_path / f"job-{job}_{index}").read_text().strip() for index in (1, 2, 3)] == ["1", "2", "3"]


@needs_cluster
@pytest.mark.parametrize(
    ("words", "said"),
    [(["-A", "nobody's"], REFUSED), (["-p", "nowhere"], "Invalid partition name specified")],
    ids=str,
)
def test_an_unknown_account_or_partition_is_refused_in_slurms_own_words(words, said):
    done = call("sbatch", *words, "--wrap", "true")
    assert done.returncode == 1 and said in done.stderr


@needs_cluster
@pytest.mark.parametrize(("words", "account"), [([], "study"), (["-A", "spare"], "spare")])
def test_a_job_is_on_the_account_that_was_asked_for_or_else_on_the_default(words, account, tmp_path):
    job = submit(tmp_path, "true", *words)
    wait_for(job, "COMPLETED")
    assert slurm("sacct", "-X", "-n", "-P", "-o", "Account", "-j", job) == account


@needs_cluster
def test_accounting_remembers_that_a_job_was_cancelled(tmp_path):
    job = submit(tmp_path, "echo began; sleep 600")
    wait_until((tmp_path / f"job-{job}").exists, "the job's start")
    slurm("scancel", job)
    wait_for(job, "CANCELLED")


@needs_cluster
def test_a_job_sees_the_gpus_that_it_asked_for_and_no_more(tmp_path):
    job = submit(tmp_path, "echo $CUDA_VISIBLE_DEVICES", "--gpus-per-node=3")
    wait_for(job, "COMPLETED")
    assert len((tmp_path / f"job-{job}").read_text().strip().split(",")) == 3
    assert call("sbatch", "--gpus-per-node=5", "--wrap", "true").returncode == 1


@needs_cluster
@pytest.mark.parametrize(
    ("partition", "after"), [("low", ["PREEMPTED", "COMPLETED"]), ("scavenge", ["PREEMPTED"])]
)
def test_the_partition_high_preempts_a_job(partition, after, tmp_path):
    taking_all = ("-w", "n1", "--gpus-per-node=4")
    job = submit(
        tmp_path,
        "echo began $SLURM_RESTART_COUNT; [ $SLURM_RESTART_COUNT ] || sleep 600",
        "-p",
        partition,
        *taking_all,
    )
    wait_until((tmp_path / f"job-{job}").exists, "the job's start")
    wait_for(submit(tmp_path, "true", "-p", "high", *taking_all), "COMPLETED")
    wait_for(job, *after)
    assert not call("squeue", "-h", "-t", "PD,R", "-j", job).stdout  # nor will it start another time
    began = [line for line in (tmp_path / f"job-{job}").read_text().splitlines() if line.startswith("began")]
    assert began == ["began", "began 1"][: len(after)]
