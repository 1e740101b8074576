"""Fixtures for the tests of the command line."""

import pytest

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
