"""Tests of the environment of a record: its digest, scrubbed paths and secrets, and one core per CPU device."""

import json
import os
import tomllib
from importlib import metadata

import pytest

from scaling import host_monitor, jax_worker
from scaling.core import environment
from scaling.core.case import Refusal
from scaling.launcher import cores
from scaling.results.store import load
from tests.support.paths import TOP

CORES = cores.usable_cores()
needs_two_cores = pytest.mark.skipif(len(CORES) < 2, reason="needs two cores")


def describe(where="cpu", kind=None, flags="", workload=None, bound=(0,)):
    return environment.describe(where, kind, {"XLA_FLAGS": flags}, workload, bound)


@pytest.mark.parametrize(
    ("text", "scrubbed"),
    [
        ("/home/ada/secret project.py", "secret project.py"),
        ("in /home/ada/work/mine.py:12", "in mine.py:12"),
        ('File "/home/ada/work/mine.py", line 3', 'File "mine.py", line 3'),
        ("--xla_dump_to=/scratch/ada/dump --other", "--xla_dump_to=dump --other"),
        ("(/home/ada/a.py) [/home/ada/b.py] </home/ada/c.py>", "(a.py) [b.py] <c.py>"),
        ("/home/ada/a.py,/home/ada/b.py;/home/ada/c.py|/home/ada/d.py", "a.py,b.py;c.py|d.py"),
        (
            "3 m/s, and/or, 1/2/3, https://docs.jax.dev/en/latest/x.html",
            "3 m/s, and/or, 1/2/3, https://docs.jax.dev/en/latest/x.html",
        ),
        ("relative/path/stays.py", "relative/path/stays.py"),
        ("", ""),
    ],
)
def test_scrub_reduces_an_absolute_path_to_its_last_part(text, scrubbed):
    assert environment.scrub(text) == scrubbed


@pytest.mark.parametrize(
    "text",
    ["/opt/lib:/home/ada/lib", "at:/home/ada/x", "file:///home/ada/x.py", "~/x:/home/ada/", "\t/home/ada/x"],
)
def test_scrub_finds_a_path_after_any_prefix(text):
    assert "home" not in environment.scrub(text)


@pytest.mark.parametrize("name", ["SOME_API_KEY", "HF_TOKEN", "CLIENT_SECRET", "DB_PASSWORD", "some_api_key"])
def test_scrub_replaces_the_value_of_a_secret_by_its_name(monkeypatch, name):
    monkeypatch.setenv(name, "s3cr3t/v4lue+x")
    assert (
        environment.scrub("refused: s3cr3t/v4lue+x, twice: s3cr3t/v4lue+x")
        == f"refused: <{name}>, twice: <{name}>"
    )


@pytest.mark.parametrize("value", ["hf_abcdef123", '"abc def"', "'abc def'"])
def test_scrub_hides_a_value_that_a_text_assigns_to_a_secret(value):
    line = environment.scrub(
        f"setup line failed with exit status 1: export HF_TOKEN={value}; HF_HOME=somewhere"
    )
    assert "HF_TOKEN=<HF_TOKEN>" in line and value.split()[0] not in line and "HF_HOME=somewhere" in line


def test_scrub_hides_a_secret_within_the_value_of_another_assignment():
    text = "srun --export=ALL,HF_TOKEN=hf_abcdef123 --time=10"
    assert environment.scrub(text) == "srun --export=ALL,HF_TOKEN=<HF_TOKEN> --time=10"


def test_scrub_reads_each_of_many_assignments_once(monkeypatch):
    class Text(str):
        def replace(self, *_):
            raise AssertionError("the whole text is read again for an assignment")

    monkeypatch.setattr(environment, "_find_secrets", lambda variables: [])
    assert environment.hide_secrets(Text("A_KEY=abcdef B_KEY=bcdefg")) == "A_KEY=<A_KEY> B_KEY=<B_KEY>"


def test_the_secrets_are_found_once_for_many_lines_and_again_after_a_change(monkeypatch):
    environment._find_secrets.cache_clear()
    for value in ("first-value", "second-value"):
        monkeypatch.setenv("A_TOKEN", value)
        assert [environment.scrub(f"line {i}: {value}") for i in (1, 2)] == [
            "line 1: <A_TOKEN>",
            "line 2: <A_TOKEN>",
        ]
    assert environment._find_secrets.cache_info().misses == 2


def test_scrub_hides_a_secret_that_is_not_valid_utf_8(monkeypatch):
    monkeypatch.setenv("A_TOKEN", os.fsdecode(b"\xff\xfe-value"))
    assert environment.scrub("at ?t=%FF%FE-value") == "at ?t=<A_TOKEN>"


def test_scrub_keeps_counts_and_other_assigned_values():
    text = "n_tokens=1048576 key=k1 mode=jacrev author=somebody key==something"
    assert environment.scrub(text) == text


def test_scrub_keeps_short_words_that_equal_a_secret(monkeypatch):
    monkeypatch.setenv("SOME_KEY", "true")
    assert environment.scrub("this is true") == "this is true"


def test_the_digest_changes_with_each_setting_that_makes_times_incomparable():
    digests = [
        describe()["digest"], describe(flags="--xla_cpu_fast_math=true")["digest"], describe(workload="a" * 16)["digest"],
        describe(workload="b" * 16)["digest"], describe(bound=None)["digest"], describe("gpu", "H200")["digest"],
        describe("gpu", "B200")["digest"],
    ]  # fmt: skip
    assert len(set(digests)) == len(digests)


@pytest.mark.parametrize(
    ("owner", "attribute", "value"),
    [
        (environment, "commit", lambda: ("c" * 40, False)),
        (environment, "package_hash", lambda: "d" * 12),
        (environment, "processor", lambda: "Another processor"),
        (environment.machine, "python_version", lambda: "3.99.1"),
        (metadata, "version", lambda name: "0.99"),
    ],
)
def test_the_digest_changes_with_the_code_the_versions_and_the_processor(
    monkeypatch, owner, attribute, value
):
    monkeypatch.setattr(environment, "_versions", environment._versions.__wrapped__)  # without the cache
    before = describe()["digest"]
    monkeypatch.setattr(owner, attribute, value)
    assert describe()["digest"] != before


@pytest.mark.parametrize("package", ["jax", "jaxlib", "numpy"])
def test_the_digest_changes_with_the_version_of_each_numerical_package(monkeypatch, package):
    monkeypatch.setattr(environment, "_versions", environment._versions.__wrapped__)
    before, installed = describe(), metadata.version
    monkeypatch.setattr(metadata, "version", lambda name: "0.99" if name == package else installed(name))
    assert describe()["digest"] != before["digest"] and describe()["setting"] != before["setting"]


def test_only_the_digest_of_a_gpu_changes_with_the_driver(monkeypatch):
    before = describe("gpu", "H200"), describe()
    monkeypatch.setattr(host_monitor, "driver_version", lambda: "580.1.2")
    after = describe("gpu", "H200"), describe()
    assert [old["digest"] == new["digest"] for old, new in zip(before, after, strict=True)] == [False, True]
    assert [new["driver"] for new in after] == ["580.1.2", None]


def test_the_digest_ignores_load_host_kernel_governor_and_core_numbers(monkeypatch):
    before = describe(bound=[0])
    monkeypatch.setattr(os, "getloadavg", lambda: (37.5, 1.0, 1.0))
    monkeypatch.setattr(environment.machine, "release", lambda: "7.0")
    monkeypatch.setattr(environment, "cpu_governor", lambda cores: "powersave")
    monkeypatch.setattr(environment.socket, "gethostname", lambda: "another-host")
    after = describe(bound=[1, 3])
    assert after["digest"] == before["digest"]
    assert (after["load"], after["hosts"], after["cores"]) == (37.5, ["another-host"], [1, 3])
    assert (after["kernel"], after["governor"]) == ("7.0", "powersave")


@pytest.mark.parametrize(
    ("governors", "governor"), [({1: "performance", 3: "performance"}, "performance"), ({1: "schedutil", 3: "performance"},
    "performance+schedutil"), ({3: "powersave"}, "powersave"), ({0: "powersave"}, None), ({}, None)],
)  # fmt: skip
def test_the_governor_is_that_of_the_bound_cores(monkeypatch, governors, governor):
    monkeypatch.setattr(
        environment,
        "read_text",
        lambda path: next((governors[core] for core in governors if f"cpu{core}/" in path), None),
    )
    assert environment.cpu_governor([1, 3]) == governor


def test_the_launcher_and_a_worker_have_the_same_digest():
    """The launcher does not know the cores yet. With another digest no case would ever count as done."""
    assert describe(bound=[])["digest"] == describe(bound=[1])["digest"] != describe(bound=None)["digest"]


def test_paths_in_xla_flags_are_not_recorded():
    assert "somebody" not in json.dumps(describe(flags="--xla_dump_to=/home/somebody/dump"))


@pytest.mark.parametrize(
    "name",
    [
        "JAX_DEBUG_NANS",
        "LIBTPU_INIT_ARGS",
        "NPROC",
        "NVIDIA_TF32_OVERRIDE",
        "XLA_CLIENT_MEM_FRACTION",  # with another limit, a case may fit, and chunk=auto chooses other blocks
        "XLA_PYTHON_CLIENT_ALLOCATOR",
        "XLA_PYTHON_CLIENT_MEM_FRACTION",
    ],
)
def test_variables_that_change_programs_are_part_of_the_environment(name, monkeypatch):
    monkeypatch.delenv("JAX_DISABLE_MOST_OPTIMIZATIONS")  # conftest.py sets it
    monkeypatch.setenv("JAX_LOG_COMPILES", "1")
    before = environment.describe("cpu", None, environment.variables("cpu"), None, (0,))
    monkeypatch.setenv(name, "1")
    launcher = environment.describe("cpu", None, environment.variables("cpu"), None, (0,))
    worker = environment.describe("cpu", None, os.environ | environment.variables("cpu"), None, (0,))
    assert launcher["jax_settings"] == {name: "1"} and "jax_settings" not in before
    assert launcher["digest"] == worker["digest"] != before["digest"]
    assert launcher["setting"] == worker["setting"] != before["setting"]


def test_a_worker_refuses_a_jax_that_is_older_than_the_package_requires(monkeypatch):
    """An interpreter that versus=python:PATH or cluster.python names may have any JAX."""
    required = tomllib.loads((TOP / "pyproject.toml").read_text())["project"]["dependencies"]
    assert "jax>=0.10" in required
    assert environment.why_jax_is_too_old() is None
    monkeypatch.setattr(metadata, "version", lambda name: "0.9.2")
    with pytest.raises(Refusal, match=r"^JAX 0\.9\.2 on \S+ is too old: install jax>=0\.10$"):
        jax_worker.start_jax({}, 0, None, None)


def test_the_flags_of_the_user_are_kept_and_the_required_flag_is_added_once(monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_fast_math=true")
    monkeypatch.delenv("GLIBC_TUNABLES", raising=False)
    once = environment.variables("cpu")
    assert "--xla_cpu_fast_math=true" in once["XLA_FLAGS"].split()
    monkeypatch.setenv("XLA_FLAGS", once["XLA_FLAGS"])
    monkeypatch.setenv("GLIBC_TUNABLES", "glibc.malloc.check=1")
    assert environment.variables("cpu") == once | {"GLIBC_TUNABLES": "glibc.malloc.check=1"}
    assert environment.variables("gpu") == environment.variables("cpu")


CHECK_CORES = """
    if RUNNING:
        import threading
        cores = len(os.sched_getaffinity(0))
        assert (cores, jax.device_count()) == (case.devices, case.devices), f"{cores} cores, {jax.device_count()} devices"
"""


@needs_two_cores
def test_a_worker_is_bound_to_as_many_cores_as_devices(
    scaling_command, write_study, write_workload, tmp_path
):
    write_workload(body=CHECK_CORES.replace("\n    ", "\n") + "return jnp.sin(x)[:2] * x[2]")
    arguments = write_study("{workload: mine, points: 6, devices: [1, 2]}")
    assert scaling_command([*arguments, "results=bound"]).returncode == 0
    records = load(tmp_path / "bound").records
    assert {record.case.devices: len(record.environment["cores"]) for record in records} == {1: 1, 2: 2}
    assert all(record.honest and record.environment["bound"] for record in records)

    assert scaling_command([*arguments, "results=unbound", "bind=false"]).returncode == (
        0 if len(CORES) == 1 else 1
    )
    unbound = load(tmp_path / "unbound").records
    assert [
        record.case.devices
        for record in unbound
        if record.status == "failed" and "cores, 1 devices" in record.text
    ] == [1]
    assert not any(record.honest or record.environment["bound"] for record in unbound)
    assert {r.environment["digest"] for r in records}.isdisjoint(r.environment["digest"] for r in unbound)


def test_the_commit_of_a_checkout_that_another_user_owns_is_known(monkeypatch):
    find_commit = environment.commit.__wrapped__  # without its cache
    expected = find_commit()
    monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")  # git refuses such a checkout by default
    assert find_commit() == expected


def test_the_commit_is_that_of_the_package_inside_a_hook_of_git(monkeypatch, tmp_path):
    """Git sets these variables for a hook, and for `git rebase --exec`."""
    find_commit = environment.commit.__wrapped__  # without its cache
    expected = find_commit()
    for name in ("GIT_DIR", "GIT_INDEX_FILE", "GIT_WORK_TREE"):
        monkeypatch.setenv(name, str(tmp_path))
    assert find_commit() == expected
