"""Fixtures of the tests of W&B: a server of ours, and a results folder."""

import pytest

from tests.support.wandb_server import run_server
from tests.support.wandb_study import write_results


@pytest.fixture
def server(monkeypatch, tmp_path):
    with run_server(monkeypatch, tmp_path) as running:
        yield running


@pytest.fixture
def folder(tmp_path):
    return write_results(tmp_path / "made")
