"""Tests of the table of verbs: each verb has a module, and its help lists the valid values."""

import importlib

import pytest

from scaling.cli.main import main
from scaling.cli.verbs import VERBS
from scaling.report import export


@pytest.mark.parametrize("name", VERBS)
def test_every_verb_has_a_callable_execute_function(name):
    assert callable(importlib.import_module(f"scaling.cli.{name}").execute)


def test_the_help_of_export_names_every_format():
    arguments = dict(VERBS["export"].arguments)
    assert set(export.FORMATS) <= set(arguments["--format",]["help"].replace(",", "").split())


@pytest.mark.parametrize("words", [["run", "study=smoke"], ["status", "results"]])
def test_a_deleted_working_directory_is_one_clear_line(words, tmp_path, monkeypatch, capfd):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert main(words) == 2
    assert "the working directory was deleted: change to a folder that exists" in capfd.readouterr().err
