"""Replicates, processes, fresh compilations, the compilation cache and the other side of a comparison, by the real command."""

import os
import statistics
import subprocess
from collections import Counter

import pytest

from scaling.core.store import latest, load

pytestmark = pytest.mark.process

BODY = """
if case.variant.endswith("rank"):
    def wait(x):
        CALLS.append(time.sleep(0.02 * jax.process_index()))
        if case.variant == "failing_rank" and jax.process_index() and len(CALLS) > 2:
            raise ValueError("no more")
        return x
    return jax.pure_callback(wait, jax.ShapeDtypeStruct((3,), x.dtype), x, vmap_method="broadcast_all")
return jnp.sin(STEPS * x)[:2] * x[2]
"""
HEAD = 'import time\nSTEPS = 1\nVARIANTS = ("plain", "slow_rank", "failing_rank")\nCALLS = []'


@pytest.fixture
def mine(write_workload, write_study):
    """The words that run a small study of a workload of one's own."""
    write_workload(head=HEAD, body=BODY)

    def study(**fields):
        told = {"workload": "mine", "points": 6, "api": "jit", "mode": "[jacfwd, jacrev]"} | fields
        return write_study("{" + ", ".join(f"{k}: {v}" for k, v in told.items()) + "}")

    return study


def results(tmp_path, *more):
    return tmp_path.joinpath("results", "mine", *more)


def test_each_replicate_is_a_fresh_process_and_more_of_them_can_be_added_later(
    mine, scaling_command, tmp_path
):
    words = mine()
    assert scaling_command(words).returncode == 0
    done = scaling_command([*words, "replicates=3"])
    assert done.returncode == 0 and "4 cases to run, 2 done before" in done.stdout, done.stderr
    records = load(results(tmp_path)).records
    assert Counter(r.key for r in records).most_common()[-1][1] == 3
    assert sorted(r.replicate for r in records) == [0, 0, 1, 1, 2, 2]
    assert len(list(results(tmp_path).glob("*.jsonl"))) == 3, "a process writes a file of its own"
    blocks = {r.block for r in records}
    assert len(blocks) == 3 and all(
        len({r.key for r in records if r.block == block}) == 2 for block in blocks
    )
    assert "0 cases to run, 6 done before" in scaling_command([*words, "replicates=3"]).stdout


def test_a_case_is_shared_by_processes_and_the_slowest_counts(mine, scaling_command, tmp_path):
    words = mine(variant="slow_rank", mode="value", api="shard_map", devices="[1, 2]")
    done = scaling_command([*words, "processes=2"])
    assert done.returncode == 0, done.stdout + done.stderr
    one, two = sorted(latest(load(results(tmp_path)).records), key=lambda r: r.case.devices)
    assert one.status == two.status == "ok", (one.text, two.text)
    assert two.slowest_rank == 1 and min(two.seconds) >= 0.02 > 2 * statistics.median(two.seconds_min)
    assert one.seconds == one.seconds_min and one.slowest_rank == 0, "one device, one process: nobody waits"
    assert two.environment["processes"] == 2 and len(two.environment["cores"]) == 2
    assert one.setting == two.setting, "both are points of one curve"


def test_an_error_of_one_process_while_sampling_ends_the_case_at_once(mine, scaling_command, tmp_path):
    """The others would wait for it, and the case would end as a time-out."""
    words = mine(variant="failing_rank", mode="value", api="shard_map", devices=2)
    done = scaling_command([*words, "processes=2", "case_seconds=100"], timeout=60)
    assert done.returncode == 1
    [record] = load(results(tmp_path)).records
    assert record.status == "failed" and record.reason != "timeout" and record.seconds == []


def test_a_persons_own_compilation_cache_hides_nothing(mine, scaling_command, tmp_path):
    cache = {
        "JAX_COMPILATION_CACHE_DIR": str(tmp_path / "cache"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }
    (tmp_path / "cache").mkdir()
    assert scaling_command(mine(mode="jacfwd"), env=cache).returncode == 0
    assert list((tmp_path / "cache").iterdir()) == []


@pytest.mark.parametrize("api, split", [("pmap", "points"), ("shard_map", "seeds")])
def test_several_processes_give_right_answers_in_every_layout(api, split, mine, scaling_command, tmp_path):
    words = mine(api=api, split=split, devices=2, mode="[jacrev]" if split == "seeds" else "[jacfwd, jacrev]")
    done = scaling_command([*words, "processes=2"])
    records = latest(load(results(tmp_path)).records)
    assert done.returncode == 0 and {r.status for r in records} == {"ok"}, [r.text for r in records]
    assert all(r.error <= r.tolerance and len(r.environment["cores"]) == 2 for r in records)


def test_fresh_compilations_are_nested_above_the_samples(mine, scaling_command, tmp_path):
    assert scaling_command([*mine(mode="jacfwd"), "sampling.compilations=3"]).returncode == 0
    [record] = load(results(tmp_path)).records
    assert [sorted(c) for c in record.compilations] == [
        ["compile_seconds", "first_seconds", "lower_seconds", "samples", "trace_seconds"]
    ] * 2
    assert all(c["compile_seconds"] > 0 and c["samples"] == 7 for c in record.compilations)
    assert len(record.seconds) == sum(record.turns) == 21


@pytest.mark.quiet
def test_a_warm_compilation_cache_saves_most_of_compiling_and_nothing_of_the_time(
    mine, scaling_command, tmp_path
):
    assert scaling_command(mine(mode="jacfwd", cache="[null, cold, warm]")).returncode == 0
    of = {r.case.cache: r for r in load(results(tmp_path)).records}
    assert {r.status for r in of.values()} == {"ok"} and set(of) == {None, "cold", "warm"}
    assert of["warm"].compile_seconds < of["cold"].compile_seconds


@pytest.mark.default
def test_a_revision_is_measured_in_turns_with_what_is_here(mine, scaling_command, tmp_path):
    """Its own module is what runs: twice the work of ours. And what is done in pairs is not done again."""
    words = [*mine(mode="jacfwd"), "versus=commit:HEAD"]
    who = {f"GIT_{role}_{what}": "a@b" for role in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    for git in (["init", "-q"], ["add", "mine.py"], ["commit", "-qm", "first"]):
        subprocess.run(["git", *git], cwd=tmp_path, check=True, env=os.environ | who)
    module = tmp_path / "mine.py"
    module.write_text(module.read_text().replace("STEPS = 1", "STEPS = 2"))
    done = scaling_command([*words, "replicates=2"])
    assert done.returncode == 0 and "no difference shown" in done.stdout, done.stdout + done.stderr
    [beside] = results(tmp_path).glob("versus-commit-*")
    ours, theirs = load(results(tmp_path)).records, load(beside).records
    assert {(r.key, r.replicate, r.block) for r in ours} == {(r.key, r.replicate, r.block) for r in theirs}
    digests = (
        {r.environment["workload_digest"] for r in ours},
        {r.environment["workload_digest"] for r in theirs},
    )
    assert len(digests[0]) == len(digests[1]) == 1 and digests[0] != digests[1]
    again = scaling_command([*words, "replicates=2"])
    assert "0 cases to run, 2 done before" in again.stdout
    for path in beside.glob("*.jsonl"):
        path.unlink()
    told = scaling_command([*words, "replicates=2", "dry_run=true"]).stdout
    assert "2 to run, 0 to skip, 0 done before" in told, "half a pair is none"


def test_two_sides_are_compared_over_five_pairs_unless_another_number_is_given(mine, scaling_command):
    words = [*mine(mode="jacfwd"), "versus=self", "dry_run=true"]
    for more, pairs in (([], 5), (["replicates=2"], 2)):
        assert f"\n{pairs} to run" in scaling_command([*words, *more]).stdout


def test_a_module_in_a_folder_that_is_on_the_path_comes_from_the_revision_too(
    mine, scaling_command, tmp_path
):
    words = [*mine(mode="jacfwd"), "versus=commit:HEAD", "replicates=1"]
    (tmp_path / "src").mkdir()
    module = (tmp_path / "mine.py").rename(tmp_path / "src" / "mine.py")
    who = {f"GIT_{role}_{what}": "a@b" for role in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    for git in (["init", "-q"], ["add", "src"], ["commit", "-qm", "first"]):
        subprocess.run(["git", *git], cwd=tmp_path, check=True, env=os.environ | who)
    module.write_text(module.read_text().replace("STEPS = 1", "STEPS = 2"))
    assert scaling_command(words, env={"PYTHONPATH": str(tmp_path / "src")}).returncode == 0
    [beside] = results(tmp_path).glob("versus-commit-*")
    [here], [there] = load(results(tmp_path)).records, load(beside).records
    assert here.environment["workload_digest"] != there.environment["workload_digest"]


def test_flags_that_the_other_side_does_not_know_are_refused_before_anything_is_made(
    mine, scaling_command, tmp_path
):
    done = scaling_command([*mine(mode="jacfwd"), "versus=xla:--xla_no_such_flag=1"])
    assert done.returncode == 2 and len(done.stderr.splitlines()) == 1, done.stderr
    assert "cannot run a worker" in done.stderr and not results(tmp_path).exists()


def test_flags_of_the_other_side_are_in_its_environment(mine, scaling_command, tmp_path):
    words = [*mine(mode="jacfwd"), "versus=xla:--xla_cpu_enable_fast_math=true", "replicates=1"]
    assert scaling_command(words).returncode == 0
    [beside] = results(tmp_path).glob("versus-xla-*")
    [here], [there] = load(results(tmp_path)).records, load(beside).records
    assert "fast_math" in there.environment["xla_flags"] and "fast_math" not in here.environment["xla_flags"]
    assert here.block == there.block and here.setting != there.setting
