"""The table of verbs: each has a module, and its help names what the module takes."""

import importlib

import pytest

from scaling.cli.verbs import VERBS
from scaling.report import export


@pytest.mark.parametrize("name", VERBS)
def test_a_verb_of_the_table_can_be_called(name):
    assert callable(importlib.import_module(f"scaling.cli.{VERBS[name].module}").execute)


def test_the_help_of_export_names_every_format():
    arguments = dict(VERBS["export"].arguments)
    assert set(export.FORMATS) <= set(arguments["--format",]["help"].replace(",", "").split())
