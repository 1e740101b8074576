"""What may import what: imports point one way, and the planning and reading side never loads JAX."""

import ast
import functools
from pathlib import Path

from tests.support.imported import NOT_IN_THE_WORKER, modules_after
from tests.support.paths import PACKAGE

# Each may import those before it.
ORDER = [
    "words", "user_frames", "case", "effects", "where", "intervals", "sampling", "draws", "peer", "pytrees", "workload",
    "formulas", "measuring.modes",
    "measuring.colors", "measuring.sparsity", "measuring.shape", "measuring.unfit", "measuring.seeds", "measuring.slices",
    "measuring.summed", "measuring.derivative", "measuring.entries", "measuring.collect", "measuring.spmd", "measuring.inputs",
    "measuring.reduced", "measuring.places", "measuring.counts", "measuring.products", "measuring.rounding",
    "measuring.reference", "measuring.fd_check",
    "measuring.differences", "measuring.numeric", "measuring.sampled", "measuring.check",
    "measuring.streaming", "measuring.blocks", "measuring.hlo", "measuring.operations", "measuring.kernels",
    "measuring.measure", "environment", "process_state", "channel", "reaper", "processes",
    "machine", "cores", "memory", "measuring.compiling", "measuring.counted",
    "measuring.conditions", "validation", "record",
    "store", "measuring.attempt", "worker", "study", "ceilings", "settings", "preflight", "examine",
    "cluster.steps", "seats", "launch",
    "supervise", "planning.cost", "versus", "cluster.settings", "cluster.slurm", "cluster.pack", "cluster.submission",
    "cluster.task", "cluster.outcome", "cluster.submit", "cluster.tally", "cluster.table", "cluster.follow",
    "reading.series", "reading.ratios", "reading.resampling", "reading.sweeps", "reading.ways", "reading.certainty",
    "reading.curves",
    "reading.stages", "reading.crossover", "reading.standing", "reading.footprint", "reading.fronts", "reading.meshes",
    "reading.overlaps", "reading.colorings", "reading.roofline", "reading.laws", "reading.losses", "reading.growth",
    "reading.compare", "reading.score", "reading.forecast", "reading.findings", "reading.trends", "reading.answer",
    "reading.lint", "reading.published",
    "showing.wording", "showing.choice",
    "showing.drawing.palette", "showing.drawing.sheet", "showing.drawing.lines", "showing.drawing.scaling",
    "showing.drawing.sizes", "showing.drawing.mesh", "showing.drawing.names", "showing.drawing.front",
    "showing.drawing.crossover", "showing.drawing.losses", "showing.drawing.roofline", "showing.drawing.memory",
    "showing.drawing.compiling", "showing.drawing.plans", "showing.drawing.scores", "showing.figures",
    "showing.files", "showing.rows", "showing.extrap", "showing.export", "showing.plot",
    "showing.document", "showing.methods",
    "showing.proposal", "showing.summary",
    "showing.terminal", "showing.outcomes", "showing.cards", "showing.planned", "showing.tables",
    "showing.page", "showing.report", "tracking.settings", "tracking.handover",
    "tracking.values", "tracking.sending", "tracking.readback", "tracking.dashboard", "tracking.client", "tracking.runs",
    "tracking.ledger",
    "tracking.outcome", "tracking.publish", "tracking.early",
    "planning.hardware", "planning.network", "planning.model", "planning.calibration", "planning.topology", "planning.planner",
    "planning.crew", "planning.plan",
    "progress", "streams", "yaml_files", "options", "compose", "field_help", "status", "merge", "logs", "run", "cli",
]  # fmt: skip
WITH_JAX = [
    "draws", "workload", "measuring.modes", "measuring.shape", "measuring.unfit", "measuring.seeds", "measuring.slices",
    "measuring.summed", "measuring.derivative", "measuring.entries", "measuring.collect", "measuring.spmd", "measuring.inputs",
    "measuring.counts", "measuring.products", "measuring.rounding", "measuring.reference", "measuring.fd_check",
    "measuring.differences", "measuring.numeric", "measuring.sampled", "measuring.check",
    "measuring.streaming", "measuring.blocks",
    "measuring.measure", "measuring.compiling", "measuring.counted", "measuring.attempt", "planning.topology",
    "process_state",
]  # fmt: skip


def name_of(path: Path) -> str:
    """A module's name below the package."""
    return ".".join(path.relative_to(PACKAGE).with_suffix("").parts)


@functools.cache
def names_of_modules() -> set[str]:
    """Return the name of every module below the package."""
    return {name_of(each) for each in PACKAGE.rglob("*.py")}


def imports_of(path: Path) -> set[str]:
    """The modules of the package that a file imports at its top level, named below the package."""
    names = names_of_modules()
    found = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "scaling":
            module = ".".join((node.module or "").split(".")[1:])
            inside = {f"{module}.{alias.name}".strip(".") for alias in node.names}
            found |= {module} if module in names else inside
    return found


def test_every_module_has_its_place_in_the_order():
    ours = {name_of(path) for path in PACKAGE.rglob("*.py") if path.parent.name not in ("workloads", "peers")}
    assert {name for name in ours if not name.endswith("__init__")} == set(ORDER)


def test_imports_point_one_way():
    for i, name in enumerate(ORDER):
        assert imports_of(PACKAGE / f"{name.replace('.', '/')}.py") <= set(ORDER[:i]), name


def test_a_workload_knows_cases_and_the_form_of_a_workload_only():
    for path in (PACKAGE / "workloads").glob("*.py"):
        assert imports_of(path) <= {"case", "workload"}, path.stem


def test_planning_and_reading_a_study_load_no_jax():
    code = "\n".join(f"import scaling.{name}" for name in ORDER if name not in WITH_JAX and name != "worker")
    assert not modules_after(code) & {"jax", "jaxlib"}


def test_the_worker_loads_nothing_but_jax_and_numpy():
    code = "\n".join(f"import scaling.{name}" for name in ("worker", *WITH_JAX, "workloads.residual"))
    loaded = modules_after(code)
    assert "jax" in loaded
    assert not loaded & set(NOT_IN_THE_WORKER)
