"""Tests of the architecture: which folders may import which others, and how many modules a dense case loads."""

import ast
import json
import os
import re
import sys
import tomllib
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from tests.support.imported import NOT_IN_THE_WORKER, modules_after
from tests.support.paths import PACKAGE, TOP

MAY_IMPORT = {  # folder -> the other folders that its modules may import; each may import core
    "core": set(), "programs": set(), "options": {"checks", "programs"}, "checks": {"options", "programs"},
    "peers": set(), "workloads": set(), "results": set(), "launcher": {"results"},
    "study": {"launcher", "options", "peers", "results", "worker"}, "cluster": {"launcher", "results"},
    "advice": {"analysis", "launcher", "options", "plan", "programs", "results", "study"},
    "plan": {"analysis", "launcher", "options", "programs", "results", "study", "worker"},
    "analysis": {"options", "results"}, "wandb": {"analysis", "launcher", "results", "worker"},
    "report": {"analysis", "contrib", "options", "results"}, "contrib": {"analysis", "report"},
    "cli": {"advice", "analysis", "cluster", "launcher", "options", "plan", "report", "results", "study", "wandb",
            "worker"},
}  # fmt: skip
EXCEPTIONS: set[str] = set()  # imports that violate the rules; none may be added
WITHOUT_JAX = ("analysis", "cli", "cluster", "contrib", "report", "results", "launcher")
MAX_IN_WORKER = 25  # modules of the package
OPTIONAL_EXTRAS = ("peers", "dashboard", "parquet", "sparse")
PROVIDED_BY = {  # module -> the distribution that contains it or depends on it
    "hydra": "hydra-core", "omegaconf": "hydra-core", "yaml": "hydra-core", "markupsafe": "jinja2",
    "vl_convert": "vl-convert-python", "numba": "asdex",
}  # fmt: skip
REQUESTS = [{"do": "prepare", "workload_digest": None, "engine": {}, "replicate": 0, "order": 0,
           "attempt": 1, "block": "b"}, {"do": "turn"}, {"do": "finish"}]  # fmt: skip


def find_imports(path: Path) -> set[str]:
    """Return the modules that a file imports anywhere, and the names that it imports from them."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


@pytest.mark.parametrize("folder", MAY_IMPORT)
def test_a_folder_imports_only_allowed_folders(folder):
    allowed, violations = MAY_IMPORT[folder] | {"core", folder}, set()
    for path in (PACKAGE / folder).rglob("*.py"):
        module = ".".join(path.relative_to(PACKAGE).with_suffix("").parts)
        folders = {name.split(".")[1] for name in find_imports(path) if name.startswith("scaling.")}
        violations |= {f"{module}>{other}" for other in folders - allowed}
    assert violations == {exception for exception in EXCEPTIONS if exception.startswith(f"{folder}.")}


def test_no_files_import_each_other_in_a_circle():
    files = {".".join(p.relative_to(TOP).with_suffix("").parts): p for p in PACKAGE.rglob("*.py")}
    graph = {name: find_imports(path) & set(files) for name, path in files.items()}
    assert {*TopologicalSorter(graph).static_order()} == {*files}  # CycleError lists the files of a circle


def test_every_folder_has_a_rule_and_core_imports_only_jax_numpy_and_stdlib():
    assert {path.parent.name for path in PACKAGE.glob("*/__init__.py")} == set(MAY_IMPORT)
    used = {name.split(".")[0] for path in (PACKAGE / "core").glob("*.py") for name in find_imports(path)}
    assert used <= {"jax", "numpy", "scaling", *sys.stdlib_module_names}


def test_every_imported_package_is_a_dependency_or_belongs_to_an_extra():
    project = tomllib.loads((TOP / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    declared = [*project["dependencies"], *(line for name in OPTIONAL_EXTRAS for line in extras[name])]
    distributions = {re.split(r"[^\w-]", line)[0].lower() for line in declared}
    used = {name.split(".")[0] for path in PACKAGE.rglob("*.py") for name in find_imports(path)}
    used -= {"scaling", *sys.stdlib_module_names}
    assert {PROVIDED_BY.get(name, name.replace("_", "-")) for name in used} <= distributions
    tools = {re.split(r"[^\w-]", line)[0].lower() for line in extras["test"]}
    assert not tools & distributions, "the tests require another version than the package"


def test_folders_that_read_records_or_submit_jobs_do_not_load_jax():
    modules = [
        ".".join(p.relative_to(PACKAGE).with_suffix("").parts)
        for f in WITHOUT_JAX
        for p in (PACKAGE / f).rglob("*.py")
    ]
    assert "jax" not in modules_after(
        "\n".join(f"import scaling.{name}" for name in modules if "__init__" not in name)
    )


def test_importing_the_package_is_light_and_the_command_loads_no_pandas():
    assert not modules_after("import scaling") & {"jax", "pandas", "numpy", "scipy"}
    assert not modules_after("import scaling.wandb.job") & {"jax", "numpy", "scipy"}, "each publish starts it"
    assert not modules_after("import scaling.wandb.publish") & {"jax", "wandb"}
    calls = ["['status', '--help']", "['run', '--help']", "['status', 'nowhere']", "['lint', 'nowhere']"]
    for arguments in calls:
        code = f"import sys; sys.argv[1:] = {arguments}\ntry:\n from scaling.cli.main import entry; entry()\nexcept SystemExit: pass"
        assert "pandas" not in modules_after(code)
    assert "pandas" not in modules_after("import scaling.report.terminal, scaling.cli.run")


def test_a_dense_case_loads_few_modules_in_the_worker(monkeypatch):
    from scaling.core.case import Case, non_default_fields
    from scaling.core.timing import Sampling
    from scaling.study import case_rules

    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    case = case_rules.complete(Case("linear", points=6, api="jit"))
    job = {"platform": "cpu", "device_kind": None, "x64": False, "bind": False, "cores": None,
           "owner": "o", "oversubscribe": True, "requested_processes": None, "order_seed": 0,
           "sampling": vars(Sampling()), "environment": {},
           "shape": {"devices": 1, "nodes": 1, "processes": 1}, "rank": 0, "parent": os.getpid()}  # fmt: skip
    requests = [request | {"key": case.key, "case": non_default_fields(case)} for request in REQUESTS]
    stdin = "\n".join(map(json.dumps, [job, *requests])) + "\n"
    send = "worker.Channel.send_event = lambda channel, **event: print('status', event.get('status'))"
    loaded = modules_after(f"from scaling import worker\n{send}\nworker.main()", True, stdin)
    assert "status ok" in loaded
    assert not {name.split(".")[0] for name in loaded} & set(NOT_IN_THE_WORKER)
    assert len({name for name in loaded if name.startswith("scaling")}) <= MAX_IN_WORKER
