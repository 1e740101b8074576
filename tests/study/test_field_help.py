"""`scaling run --help` shows every field with its meaning, the values it takes and its default, in 80 columns."""

import re

import yaml

from scaling.core.case import CHOICES, OPTIONS, Case
from scaling.study import field_help
from tests.support.paths import CONF


def entries(text):
    """Return the words on each field, by its name."""
    found = re.split(r"^  ([a-z_.]+) ", text, flags=re.MULTILINE)[1:]
    return {name: " ".join(words.split()) for name, words in zip(found[::2], found[1::2], strict=True)}


def test_every_key_of_the_configuration_has_a_meaning_and_its_default():
    found, told = entries(field_help.describe(CONF)), yaml.safe_load((CONF / "config.yaml").read_text())
    for name in ("defaults", "hydra"):
        del told[name]
    told |= {f"sampling.{name}": value for name, value in told.pop("sampling").items()}
    assert found.keys() == told.keys()
    for name, words in found.items():
        meaning, default = words.rsplit("Default: ", 1)
        assert len(meaning.partition(" Values:")[0]) > 8, name
        if told[name] is not None and name != "results":
            assert yaml.safe_load(default.removesuffix(".")) == told[name], name


def test_a_field_of_a_case_shows_its_own_default_and_every_value():
    found = entries(field_help.describe(CONF))
    case = Case("linear")
    for name, values in (CHOICES | OPTIONS).items():
        assert re.search(
            rf"Values: {', '.join(values)}\. Default: {getattr(case, name) or 'null'}\.", found[name]
        ), name
    assert found["jit"].endswith("Values: true, false. Default: true.")
    assert (
        "julia/Zygote" in found["engine"]
        and "stencil" in found["workload"]
        and "ceiling" not in found["workload"]
    )
    assert "interface" not in found["engine"] and "formulas" not in found["engine"]


def test_the_help_fits_into_eighty_columns_and_has_no_bare_configuration(scaling_command):
    done = scaling_command(["run", "--help"])
    assert done.returncode == 0 and done.stderr == ""
    assert max(map(len, done.stdout.splitlines())) <= 80
    assert field_help.MARK not in done.stdout and "mode: null" not in done.stdout
    assert "Values: jacfwd, linearize" in " ".join(done.stdout.split())


def test_studies_of_ones_own_are_among_the_choices(scaling_command, write_study):
    words = write_study("grids: [{workload: linear}]", name="mine")[:3]
    assert "mine" in scaling_command([*words, "--help"]).stdout
