"""The wall around the core: what computes a dense case imports nothing else of the package, and options only when asked for."""

import ast
import json
import subprocess
import sys

import pytest

from scaling.core.case import Case, non_default_fields
from scaling.study import completion
from tests.support.paths import PACKAGE

CORE = sorted((PACKAGE / "core").glob("*.py"))
LAUNCHING = {"schedule", "supervise", "worker_group"}  # they still import how a process is reached
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
MEASURED = {"scaling.options.host_monitor", "scaling.options.program.program_stats"}  # of every case


def loaded_by(**fields):
    """Return the modules of options and peers that a case loads in a process of its own, without those of every case."""
    case = non_default_fields(completion.complete(Case(**fields)))
    done = subprocess.run(
        [sys.executable, "-c", RUN, json.dumps(case)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    others = {
        name for name in json.loads(done.stdout) if name.startswith(("scaling.options.", "scaling.peers."))
    }
    return {name for name in others - MEASURED if not name.startswith("scaling.options.program")}


@pytest.mark.parametrize("path", CORE, ids=lambda path: path.stem)
def test_the_core_imports_jax_numpy_and_itself(path):
    if path.stem in LAUNCHING:
        pytest.skip("it reaches processes on other hosts")
    for node in ast.walk(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        for name in names:
            own = name in ("scaling", "scaling.core") or name.startswith("scaling.core.")
            assert own or name.partition(".")[0] in ALLOWED, f"{path.name} imports {name}"


@pytest.mark.parametrize(
    ("fields", "option"),
    [
        ({}, None),
        ({"chunk": "auto"}, "scaling.options.autochunk"),
        ({"storage": "host", "block": 2}, "scaling.options.host_offload"),
        ({"seeds": "colored", "reduce": "whole"}, "scaling.options.sparse.case_coloring"),
        ({"engine": "numpy", "mode": "finite_difference"}, "scaling.peers.numpy"),
    ],
    ids=str,
)
def test_a_case_loads_the_options_that_it_asks_for_and_no_other(fields, option):
    found = loaded_by(workload="rbf", points=4, **{"api": "jit", "dtype": "float32"} | fields)
    assert (option in found) if option else not found
