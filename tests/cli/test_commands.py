"""Tests of the table of commands: each command has a module, and its help lists the valid values."""

import importlib
import shutil
from pathlib import Path

import pytest

import scaling
from scaling.cli.commands import COMMANDS, format_overview, parse_arguments
from scaling.cli.main import main
from scaling.report import export


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_a_callable_execute_function(name):
    assert callable(importlib.import_module(f"scaling.cli.{name}").execute)


def test_the_commands_in_the_overview_fit_in_80_columns():
    assert max(map(len, format_overview().splitlines()[1:])) <= 80


def test_the_help_of_export_names_every_format():
    arguments = dict(COMMANDS["export"].arguments)
    assert set(export.FORMATS) <= set(arguments["--format",]["help"].replace(",", "").split())


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("merge", ["a", "b", "--output", "c"]), ("compare", ["a", "b", "--margin", "0.1"]),
        ("logs", ["a", "3f", "--all"]), ("report", ["a", "efficiency=0.6", "--proposal"]),
    ],
)  # fmt: skip
def test_an_option_may_stand_anywhere(name, words):
    first, second, *option = words
    assert (
        parse_arguments(name, [first, *option, second])
        == parse_arguments(name, [*option, first, second])
        == parse_arguments(name, words)
    )


@pytest.mark.parametrize("words", [["run", "study=smoke"], ["status", "results"]])
def test_a_deleted_working_directory_is_one_clear_line(words, tmp_path, monkeypatch, capfd):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert main(words) == 2
    assert "the working directory was deleted: change to a folder that exists" in capfd.readouterr().err


@pytest.mark.parametrize("file", ["scaling.py", "scaling/__init__.py"])
def test_another_package_of_this_name_in_the_working_directory_is_refused(file, tmp_path, monkeypatch, capfd):
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).touch()
    monkeypatch.chdir(tmp_path)
    assert (
        main(["run", "study=smoke", "dry_run=true"]) == 2
    )  # a worker would import it instead of this package
    assert f"{file} hides the package of this command" in capfd.readouterr().err
    assert main(["status", "nowhere"]) == 2  # starts no worker
    assert "no results in 'nowhere'" in capfd.readouterr().err


def test_a_copy_of_the_package_in_the_working_directory_is_accepted(monkeypatch, tmp_path):
    shutil.copytree(Path(scaling.__file__).parent, tmp_path / "scaling")
    monkeypatch.chdir(tmp_path)
    assert main(["run", "--help"]) == 0
