"""Tests of `scaling run --help`: every field with its meaning, valid values and default, in 80 columns."""

import re

import yaml

from scaling.core.case import CHOICES, OPTIONS, Case
from scaling.study import configuration
from tests.support.paths import CONF


def parse_entries(text):
    """Map the name of each field to its help text."""
    parts = re.split(r"^  ([a-z_.]+): ", text, flags=re.MULTILINE)[1:]
    return {name: " ".join(text.split()) for name, text in zip(parts[::2], parts[1::2], strict=True)}


def test_every_configuration_key_is_shown_with_its_meaning_and_default():
    entries = parse_entries(configuration.describe_fields())
    config = yaml.safe_load((CONF / "config.yaml").read_text())
    del config["defaults"]
    config |= {f"sampling.{name}": value for name, value in config.pop("sampling").items()}
    assert entries.keys() == config.keys()
    for name, text in entries.items():
        meaning, default = text.rsplit("Default: ", 1)
        assert len(meaning.partition(" Values:")[0]) > 8, name
        if config[name] is not None and name != "results":
            assert yaml.safe_load(default.removesuffix(".")) == config[name], name


def test_a_field_of_a_case_is_shown_with_its_default_and_valid_values():
    entries = parse_entries(configuration.describe_fields())
    case = Case("linear")
    for name, values in (CHOICES | OPTIONS).items():
        assert re.search(
            rf"Values: {', '.join(values)}\. Default: {getattr(case, name) or 'null'}\.", entries[name]
        ), name
    assert entries["jit"].endswith("Values: true, false. Default: true.")
    assert "autograd, casadi, torch" in entries["engine"] and "stencil" in entries["workload"]
    assert "ceiling" not in entries["workload"]
    assert "interface" not in entries["engine"] and "formulas" not in entries["engine"]


def test_help_fits_into_80_columns_and_does_not_print_the_configuration(scaling_command):
    done = scaling_command(["run", "--help"])
    assert done.returncode == 0 and done.stderr == ""
    assert max(map(len, done.stdout.splitlines())) <= 80
    assert "{fields}" not in done.stdout and "mode: null" not in done.stdout
    assert "\ncluster/examples: " in done.stdout and "\nstudy: " in done.stdout
    assert "Values: jacfwd, linearize" in " ".join(done.stdout.split())


def test_user_studies_are_among_the_choices(scaling_command, write_study):
    arguments = write_study("grids: [{workload: linear}]", name="mine")[:3]
    assert "mine" in scaling_command([*arguments, "--help"]).stdout
