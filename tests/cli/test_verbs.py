"""Tests of the table of verbs: each verb has a module, and its help lists the valid values."""

import importlib

import pytest

from scaling.cli.verbs import VERBS
from scaling.report import export


@pytest.mark.parametrize("name", VERBS)
def test_every_verb_has_a_callable_execute_function(name):
    assert callable(importlib.import_module(f"scaling.cli.{VERBS[name].module}").execute)


def test_the_help_of_export_names_every_format():
    arguments = dict(VERBS["export"].arguments)
    assert set(export.FORMATS) <= set(arguments["--format",]["help"].replace(",", "").split())
