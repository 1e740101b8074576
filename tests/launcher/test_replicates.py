"""Tests of replicates, processes per case, the compilation cache and `versus`, with the real command."""

import os
import statistics
import subprocess
from collections import Counter

import pytest

from scaling.results.store import latest_records, load

pytestmark = pytest.mark.process

BODY = """
if case.variant == "failing_trace" and jax.process_index():
    raise ValueError("no more")
if case.variant.endswith("rank"):
    def wait(x):
        CALLS.append(time.sleep(0.02 * jax.process_index()))
        if case.variant == "failing_rank" and jax.process_index() and len(CALLS) > 2:
            raise ValueError("no more")
        callers = traceback.extract_stack(sys._current_frames()[threading.main_thread().ident])
        is_last = "finish_case" in [frame.name for frame in callers]
        if case.variant == "failing_last_rank" and jax.process_index() and is_last:
            raise ValueError("no more")
        return x
    return jax.pure_callback(wait, jax.ShapeDtypeStruct((3,), x.dtype), x, vmap_method="broadcast_all")
return jnp.sin(STEPS * x)[:2] * x[2]
"""
HEAD = """
import threading, time, traceback

STEPS = 1
VARIANTS = ("plain", "slow_rank", "failing_trace", "failing_rank", "failing_last_rank")
CALLS = []
"""


@pytest.fixture
def command(write_workload, write_study):
    """Return the arguments that run a small study of a user's workload."""
    write_workload(head=HEAD, body=BODY)

    def build(**fields):
        return write_study(
            **{"workload": "mine", "points": 6, "api": "jit", "mode": "[jacfwd, jacrev]"} | fields
        )

    return build


def results(tmp_path, *options):
    return tmp_path.joinpath("results", "mine", *options)


def test_each_replicate_runs_in_a_new_process_and_more_can_be_added_later(command, scaling_command, tmp_path):
    arguments = command()
    assert scaling_command(arguments).returncode == 0
    done = scaling_command([*arguments, "replicates=3"])
    assert done.returncode == 0 and "4 cases to run, 2 already done" in done.stdout, done.stderr
    records = load(results(tmp_path)).records
    assert Counter(r.key for r in records).most_common()[-1][1] == 3
    assert sorted(r.replicate for r in records) == [0, 0, 1, 1, 2, 2]
    assert len(list(results(tmp_path).glob("*.jsonl"))) == 2, "one file per run"
    blocks = {r.block for r in records}
    assert len(blocks) == 3 and all(
        len({r.key for r in records if r.block == block}) == 2 for block in blocks
    )
    assert "0 cases to run, 6 already done" in scaling_command([*arguments, "replicates=3"]).stdout


def test_the_time_of_a_case_with_several_processes_is_that_of_the_slowest(command, scaling_command, tmp_path):
    arguments = command(variant="slow_rank", mode="value", api="shard_map", devices="[1, 2]")
    done = scaling_command([*arguments, "processes=2"])
    assert done.returncode == 0, done.stdout + done.stderr
    one, two = sorted(latest_records(load(results(tmp_path)).records), key=lambda r: r.case.devices)
    assert one.status == two.status == "ok", (one.text, two.text)
    assert two.slowest_rank == 1 and min(two.seconds) >= 0.02 > 2 * statistics.median(two.seconds_min)
    assert one.seconds == one.seconds_min and one.slowest_rank == 0, "one process does not wait"
    assert two.environment["processes"] == 2 and len(two.environment["cores"]) == 2
    assert one.setting == two.setting, "both belong to one curve"


@pytest.mark.parametrize("variant", ["failing_trace", "failing_rank", "failing_last_rank"])
def test_an_error_of_one_process_ends_the_case_at_once(variant, command, scaling_command, tmp_path):
    """Otherwise the other processes would wait for it until the timeout. The last call follows the samples."""
    arguments = command(variant=variant, mode="value", api="shard_map", devices=2)
    done = scaling_command([*arguments, "processes=2", "case_seconds=100"], timeout=60)
    assert done.returncode == 1
    [record] = load(results(tmp_path)).records
    assert record.status == "failed" and record.reason != "timeout" and record.seconds == []
    assert "no more" in record.text and "process 1" in record.text, record.text


@pytest.mark.thorough
def test_the_compilation_cache_of_the_user_is_not_used(command, scaling_command, tmp_path):
    cache = {
        "JAX_COMPILATION_CACHE_DIR": str(tmp_path / "cache"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }
    (tmp_path / "cache").mkdir()
    assert scaling_command(command(mode="jacfwd"), env=cache).returncode == 0
    assert list((tmp_path / "cache").iterdir()) == []


def test_several_processes_give_correct_results_in_every_layout(command, scaling_command, tmp_path):
    layouts = "\"api == 'pmap' and split == 'points' or api == 'shard_map' and split == 'seeds' and mode == 'jacrev'\""
    arguments = command(api="[pmap, shard_map]", split="[points, seeds]", devices=2, where=layouts)
    done = scaling_command([*arguments, "processes=2"])
    records = latest_records(load(results(tmp_path)).records)
    assert [r.case.mode for r in records].count("jacrev") == 2 and len(records) == 3
    assert done.returncode == 0 and {r.status for r in records} == {"ok"}, [r.text for r in records]
    assert all(r.error <= r.tolerance and len(r.environment["cores"]) == 2 for r in records)


@pytest.mark.quiet
def test_a_warm_compilation_cache_shortens_compilation(command, scaling_command, tmp_path):
    assert scaling_command(command(mode="jacfwd", cache="[null, cold, warm]")).returncode == 0
    by_cache = {r.case.cache: r for r in load(results(tmp_path)).records}
    assert {r.status for r in by_cache.values()} == {"ok"} and set(by_cache) == {None, "cold", "warm"}
    assert by_cache["warm"].compile_seconds < by_cache["cold"].compile_seconds


def commit_and_change(top, module):
    """Commit a user's module to a new repository, and then double the work of its function."""
    identity = {
        f"GIT_{role}_{field}": "a@b" for role in ("AUTHOR", "COMMITTER") for field in ("NAME", "EMAIL")
    }
    for git in (["init", "-q"], ["add", module], ["commit", "-qm", "first"]):
        subprocess.run(["git", *git], cwd=top, check=True, env=os.environ | identity)
    module.write_text(module.read_text().replace("STEPS = 1", "STEPS = 2"))


@pytest.mark.default
def test_a_revision_is_measured_in_pairs_with_the_working_tree(command, scaling_command, tmp_path):
    """The revision runs its own module, with half the work. Complete pairs do not run again."""
    arguments = [*command(mode="jacfwd"), "versus=commit:HEAD"]
    commit_and_change(tmp_path, tmp_path / "mine.py")
    done = scaling_command([*arguments, "replicates=2"])
    assert done.returncode == 0 and "no difference shown" in done.stdout, done.stdout + done.stderr
    [variant_folder] = results(tmp_path).glob("versus-commit-*")
    current, variant = load(results(tmp_path)).records, load(variant_folder).records
    assert {(r.key, r.replicate, r.block) for r in current} == {
        (r.key, r.replicate, r.block) for r in variant
    }
    digests = (
        {r.environment["workload_digest"] for r in current},
        {r.environment["workload_digest"] for r in variant},
    )
    assert len(digests[0]) == len(digests[1]) == 1 and digests[0] != digests[1]
    again = scaling_command([*arguments, "replicates=2"])
    assert "0 cases to run, 2 already done" in again.stdout
    for path in variant_folder.glob("*.jsonl"):
        path.unlink()
    output = scaling_command([*arguments, "replicates=2", "dry_run=true"]).stdout
    assert "2 to run, 0 to skip, 0 already done" in output, "an incomplete pair runs again"


def test_a_comparison_has_five_pairs_by_default(command, scaling_command):
    arguments = [*command(mode="jacfwd"), "versus=self", "dry_run=true"]
    for options, pairs in (([], 5), (["replicates=2"], 2)):
        assert f"\n{pairs} to run" in scaling_command([*arguments, *options]).stdout


@pytest.mark.thorough
def test_a_module_in_a_folder_on_the_python_path_comes_from_the_revision(command, scaling_command, tmp_path):
    arguments = [*command(mode="jacfwd"), "versus=commit:HEAD", "replicates=1"]
    (tmp_path / "src").mkdir()
    module = (tmp_path / "mine.py").rename(tmp_path / "src" / "mine.py")
    commit_and_change(tmp_path, module)
    assert scaling_command(arguments, env={"PYTHONPATH": str(tmp_path / "src")}).returncode == 0
    [variant_folder] = results(tmp_path).glob("versus-commit-*")
    [current], [variant] = load(results(tmp_path)).records, load(variant_folder).records
    assert current.environment["workload_digest"] != variant.environment["workload_digest"]


@pytest.mark.parametrize(
    ("flag", "reason"),
    [
        ("--xla_no_such_flag=1", "Unknown flag in XLA_FLAGS: --xla_no_such_flag=1"),
        (
            "--xla_cpu_enable_fast_math=maybe",
            "XLA_FLAGS: Couldn't interpret value maybe for flag xla_cpu_enable_fast",
        ),
    ],
)
def test_wrong_xla_flags_of_a_variant_are_rejected_before_anything_is_written(
    flag, reason, command, scaling_command, tmp_path
):
    done = scaling_command([*command(mode="jacfwd"), f"versus=xla:{flag}"])
    assert done.returncode == 2 and len(done.stderr.splitlines()) == 1, done.stderr
    assert f"cannot run a worker: {reason}" in done.stderr and not results(tmp_path).exists()


@pytest.mark.thorough
def test_xla_flags_of_a_variant_are_recorded_in_its_environment(command, scaling_command, tmp_path):
    arguments = [*command(mode="jacfwd"), "versus=xla:--xla_cpu_enable_fast_math=true", "replicates=1"]
    assert scaling_command(arguments).returncode == 0
    [variant_folder] = results(tmp_path).glob("versus-xla-*")
    [current], [variant] = load(results(tmp_path)).records, load(variant_folder).records
    assert "fast_math" in variant.environment["xla_flags"]
    assert "fast_math" not in current.environment["xla_flags"]
    assert current.block == variant.block and current.setting != variant.setting
