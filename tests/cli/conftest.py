"""Fixtures for the tests of the command line."""

import signal

import pytest

from scaling.cli import main
from scaling.core.record import to_line
from scaling.results import store


@pytest.fixture
def folders(tmp_path, make_record):
    """Write results folders DIR and GOOD with a record of the same case; return DIR and the record."""
    record = make_record(environment={"cores": [0]}, started_at="2026-11-21T00:00:00Z")
    for name in ("DIR", "GOOD"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.jsonl").write_text(to_line(record) + "\n")
        store.write_json(
            tmp_path / name / "study.json", store.schema_and_version() | {"study": "mine", "cases": []}
        )
    return tmp_path / "DIR", record


@pytest.fixture
def restore_signals():
    """Restore the signal handlers that the command replaces."""
    before = {number: signal.getsignal(number) for number in main._STOP_SIGNALS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def fail_with(monkeypatch, restore_signals, capsys):
    """Return a function that calls a command which raises an error, and returns its status and its message on one line."""

    def call(error, words=("run",)):
        def fail(*_):
            raise error

        monkeypatch.setattr(main, "_run_command", fail)
        return main.main([*words]), " ".join(capsys.readouterr().err.split())

    return call
