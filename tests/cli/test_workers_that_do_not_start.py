"""Tests of runs whose workers do not start: exit status 1 and a failed record for every case."""

import contextlib
import re

import pytest

from scaling.cli import main
from scaling.core.case import Refusal
from scaling.launcher import machine, worker_group
from scaling.results.store import load

ARGUMENTS = ["run", "study=function", "workload=linear", "points=6", "devices=1", "api=jit", "mode=jacrev"]
open_worker_group = worker_group.open_worker_group


@contextlib.contextmanager
def fail_to_start(header, variant, *rest):
    """Start the process of the preflight only."""
    if variant.name != "preflight":
        raise worker_group.WorkerDied("killed", "the process died of signal 9")
    with open_worker_group(header, variant, *rest) as group:
        yield group


def test_a_run_with_a_failed_case_exits_with_status_1_and_writes_its_record(
    restore_signals, monkeypatch, tmp_path
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(worker_group, "open_worker_group", fail_to_start)
    assert main.main([*ARGUMENTS, "bind=false", "results=here"]) == 1
    (record,) = load(tmp_path / "here").records
    assert (record.status, record.reason) == ("failed", "killed")


def test_a_platform_that_jax_cannot_start_is_named_with_the_variable_that_requests_it(monkeypatch):
    monkeypatch.setenv("JAX_PLATFORMS", "no_such_platform")
    machine._query_jax_devices.cache_clear()
    with pytest.raises(
        Refusal,
        match=r"=no_such_platform: .*; JAX_PLATFORMS=cpu runs on the CPU, or install .*ad-scaling\[cuda\]",
    ):
        machine.local_machine()


@pytest.mark.process
@pytest.mark.parametrize(
    ("variable", "value", "why"),
    [("XLA_FLAGS", "--xla_nope=1", "Unknown flag in XLA_FLAGS: --xla_nope=1"),
     ("XLA_FLAGS", "--xla_dump_hlo_as_text=maybe", "Couldn't interpret value maybe for flag xla_dump_hlo_as_text."),
     ("JAX_TRANSFER_GUARD", "maybe", 'ValueError: Invalid value "maybe" for JAX flag jax_transfer_guard'),
     ("JAX_ENABLE_X64", "maybe", "ValueError: invalid truth value 'maybe' for environment 'JAX_ENABLE_X64'")],
)  # fmt: skip
def test_a_wrong_variable_of_xla_or_jax_is_named_before_any_case_runs(
    variable, value, why, restore_signals, monkeypatch, tmp_path, capsys
):
    monkeypatch.setenv(variable, value)
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    monkeypatch.chdir(tmp_path)
    assert main.main([*ARGUMENTS, "results=here"]) == 2
    assert f": {why}; correct or unset it" in capsys.readouterr().err and not (tmp_path / "here").exists()
    machine._query_jax_devices.cache_clear()
    with pytest.raises(Refusal, match=f": {re.escape(why)}; correct or unset it"):
        machine._query_jax_devices()


def test_a_requested_accelerator_that_jax_replaces_by_the_cpu_is_refused(monkeypatch):
    monkeypatch.setenv("JAX_PLATFORMS", "cuda,cpu")
    monkeypatch.setattr(machine, "_query_jax_devices", lambda: machine.Machine("cpu", "cpu", 1))
    with pytest.raises(
        Refusal, match=r"JAX_PLATFORMS=cuda,cpu: it found only the CPU; .*JAX_PLATFORMS=cpu runs"
    ):
        machine.local_machine()


@pytest.mark.process
def test_the_query_of_the_devices_imports_no_file_of_the_working_directory(monkeypatch, tmp_path):
    """The preflight names such a file, and a user with an accelerator sees the same message."""
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "types.py").touch()
    machine._query_jax_devices.cache_clear()
    assert machine._query_jax_devices().platform == "cpu"
