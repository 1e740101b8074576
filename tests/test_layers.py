"""What may import what: imports point one way, and the planning and reading side never loads JAX."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "scaling"
# Each may import those before it.
ORDER = [
    "case", "words", "intervals", "sampling", "draws", "peer", "workload", "formulas", "modes", "derivative", "spmd",
    "inputs", "differences", "check", "counts", "measure", "environment", "memory", "conditions", "record", "store", "attempt",
    "worker", "study", "ceilings", "preflight", "seats", "launch", "supervise", "versus", "ratios", "curves", "standing",
    "compare", "answer", "series", "lint", "published", "figures", "report", "handover", "track", "progress", "compose",
    "cli",
]  # fmt: skip
WITHOUT_JAX = [
    "case", "study", "store", "record", "curves", "answer", "figures", "report", "handover", "track", "launch", "preflight",
    "progress", "compose", "cli", "environment", "intervals", "words", "sampling", "peer", "formulas", "standing",
    "published", "conditions", "ceilings", "versus", "seats", "supervise", "ratios", "compare", "series", "lint",
]  # fmt: skip
NOT_IN_THE_WORKER = ["hydra", "omegaconf", "wandb", "submitit", "matplotlib", "rich", "jinja2"]


def modules_after(code: str) -> set[str]:
    """The top-level modules that are loaded after some code ran in a fresh interpreter."""
    ask = f"{code}\nimport sys; print('\\n'.join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True, check=True)
    return {line.split(".")[0] for line in done.stdout.splitlines()}


def imports_of(path: Path) -> set[str]:
    """The modules of the package that a file imports at its top level."""
    found = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.ImportFrom) and node.module == "scaling":
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("scaling."):
            found.add(node.module.split(".")[1])
    return found


def test_every_module_has_its_place_in_the_order():
    assert {path.stem for path in PACKAGE.glob("*.py")} - {"__init__"} == set(ORDER)


@pytest.mark.parametrize("name", ORDER)
def test_imports_point_one_way(name):
    assert imports_of(PACKAGE / f"{name}.py") <= set(ORDER[: ORDER.index(name)])


@pytest.mark.parametrize("path", sorted((PACKAGE / "workloads").glob("*.py")), ids=lambda path: path.stem)
def test_a_workload_knows_cases_and_the_form_of_a_workload_only(path):
    assert imports_of(path) <= {"case", "workload"}


def test_planning_and_reading_a_study_load_no_jax():
    code = "\n".join(f"import scaling.{name}" for name in WITHOUT_JAX)
    assert not modules_after(code) & {"jax", "jaxlib"}


def test_the_worker_loads_nothing_but_jax_and_numpy():
    code = "import scaling.worker, scaling.check, scaling.inputs, scaling.measure, scaling.spmd, scaling.workloads.residual"
    loaded = modules_after(code)
    assert "jax" in loaded
    assert not loaded & set(NOT_IN_THE_WORKER)
