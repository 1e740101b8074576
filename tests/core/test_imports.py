"""Tests of the imports of scaling/core: JAX, NumPy and itself, and options only for the cases that use them."""

import ast
import json
import subprocess
import sys

import pytest

from scaling.core.case import Case, non_default_fields
from scaling.study import completion
from tests.support.paths import PACKAGE

CORE = sorted((PACKAGE / "core").glob("*.py"))
LAUNCHER_MODULES = {"schedule", "supervise", "worker_group"}  # these import the transports
ALLOWED = {"jax", "numpy", *sys.stdlib_module_names}
RUN = """
import json, sys
import jax
from scaling.core import run_case
from scaling.core.case import Case
from scaling.core.record import Record
from scaling.core.timing import Sampling
sampling = Sampling(least=1, most=1, warm_up=0.0)
case = Case(**json.loads(sys.argv[1]))
record = run_case.run_case(Record(case, "failed", {"digest": "test"}), jax.devices()[:1], "cpu", sampling)
assert record.status == "ok", record.text
print(json.dumps([name for name in sys.modules if name.startswith("scaling.")]))
"""
LOADED_BY_ALL = {f"scaling.options.{name}" for name in ("host_monitor", "hlo", "program_stats")}


def loaded_options(**fields):
    """Return the modules of options and peers that a case loads in a fresh process, except LOADED_BY_ALL."""
    case = non_default_fields(completion.complete(Case(**fields)))
    process = subprocess.run(
        [sys.executable, "-c", RUN, json.dumps(case)], capture_output=True, text=True, check=False
    )
    assert process.returncode == 0, process.stderr
    modules = {
        name for name in json.loads(process.stdout) if name.startswith(("scaling.options.", "scaling.peers."))
    }
    return modules - LOADED_BY_ALL


@pytest.mark.parametrize("path", CORE, ids=lambda path: path.stem)
def test_the_core_imports_only_jax_numpy_and_itself(path):
    if path.stem in LAUNCHER_MODULES:
        pytest.skip("it starts processes on other hosts")
    for node in ast.walk(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        for name in names:
            is_core = name in ("scaling", "scaling.core") or name.startswith("scaling.core.")
            assert is_core or name.partition(".")[0] in ALLOWED, f"{path.name} imports {name}"


@pytest.mark.parametrize(
    ("fields", "option"),
    [
        ({}, None),
        ({"chunk": "auto"}, "scaling.options.autochunk"),
        ({"storage": "host", "block": 2}, "scaling.options.host_offload"),
        ({"seeds": "colored", "reduce": "whole"}, "scaling.options.coloring"),
        ({"engine": "numpy", "mode": "finite_difference"}, "scaling.peers.numpy"),
    ],
    ids=str,
)
def test_a_case_loads_only_the_options_that_it_uses(fields, option):
    loaded = loaded_options(workload="rbf", points=4, **{"api": "jit", "dtype": "float32"} | fields)
    assert (option in loaded) if option else not loaded
