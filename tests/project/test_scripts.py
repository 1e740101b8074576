"""`scripts/test` looks at what the repository tracks: a file that a person saves in the clone does not stop it."""

import hashlib
import shutil
import subprocess

import pytest
from packaging.requirements import Requirement

from tests.support.paths import TOP

TOOL = """#!/bin/sh
echo "$(basename "$0")" "$@" >> called
"""


def test_files_that_are_not_tracked_are_not_linted_and_do_not_stop_the_tests(tmp_path):
    (tmp_path / "scripts").mkdir()
    for name in ("scripts/test", "scripts/environment", "pyproject.toml", "constraints.txt"):
        shutil.copy(TOP / name, tmp_path / name)
    inputs = b"".join((tmp_path / name).read_bytes() for name in ("pyproject.toml", "constraints.txt", "scripts/environment"))
    tools = tmp_path / ".venv" / "bin"
    tools.mkdir(parents=True)
    (tmp_path / ".venv" / ".made-from").write_text(f"{hashlib.sha256(inputs).hexdigest()}  -\n")
    for name in ("ruff", "mypy", "python"):
        (tools / name).write_text(TOOL)
        (tools / name).chmod(0o755)
    for name in ("ours.py", "with a space.py", "gone.py"):
        (tmp_path / name).write_text("x = 1\n")
    for words in (["init", "-q"], ["add", "ours.py", "with a space.py", "gone.py"]):
        subprocess.run(["git", *words], cwd=tmp_path, check=True)
    (tmp_path / "spring.py").write_text("import  os\n")
    (tmp_path / "gone.py").unlink()
    subprocess.run(["scripts/test", "-k", "some"], cwd=tmp_path, check=True)
    assert (tmp_path / "called").read_text().splitlines() == [
        "ruff check ours.py with a space.py",
        "ruff format --check ours.py with a space.py",
        "mypy",
        "python -m pytest -k some",
    ]


@pytest.mark.parametrize("python", ["3.11", "3.12", "3.13"])
def test_every_package_has_one_pin_for_each_python_and_jaxlib_that_of_jax(python):
    lines = [Requirement(line) for line in (TOP / "constraints.txt").read_text().splitlines()]
    pins = [pin for pin in lines if pin.marker is None or pin.marker.evaluate({"python_version": python})]
    versions = {pin.name: str(pin.specifier) for pin in pins}
    assert len(versions) == len(pins) and {pin.name for pin in lines} == set(versions)
    assert all(version.startswith("==") for version in versions.values())
    assert versions["jax"] == versions["jaxlib"] == versions["jax-cuda12-plugin"] == versions["jax-cuda12-pjrt"]
