"""The exit status of a run whose workers do not start: every case has a record that says so."""

import contextlib
import signal

import pytest

from scaling.cli import main
from scaling.core.store import load
from scaling.workers import worker_group

WORDS = ["run", "study=function", "workload=linear", "points=6", "devices=1", "api=jit", "mode=jacrev"]


@contextlib.contextmanager
def no_worker(*_):
    raise worker_group.WorkerDied("killed", "the process died of signal 9")
    yield


@pytest.fixture
def handlers():
    """Put back the signal handlers that the command installs."""
    several = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
    before = [signal.getsignal(each) for each in several]
    yield
    for each, handler in zip(several, before, strict=True):
        signal.signal(each, handler)


def test_a_run_with_a_failed_case_ends_with_status_1_and_its_record(handlers, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(worker_group, "open_worker_group", no_worker)
    assert main.main([*WORDS, "bind=false", "results=here"]) == 1
    (record,) = load(tmp_path / "here").records
    assert (record.status, record.reason) == ("failed", "killed")
