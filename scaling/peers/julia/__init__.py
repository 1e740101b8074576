"""Julia: ForwardDiff, ReverseDiff, Zygote, Enzyme and DifferentiationInterface, on the formulas of the
Julia threads.

`engine: julia/ForwardDiff` and so on. `measure.jl` runs as a child of the worker and computes; this
module sends it the numbers, asks for the derivative and for BenchmarkTools' samples, a line of JSON each.
`measure.jl` was run unpatched on Julia 1.5.3 with ForwardDiff 0.10.39, ReverseDiff 1.16.2 and Zygote
0.6.40, for correctness: of 148 cases, in all workloads and most dtypes, 147 were right and one was
rightly refused. No current Julia was timed. Enzyme and DifferentiationInterface were not run: a failed
record of theirs may be our mistake. Every answer is checked, so a time on record is that of a right
answer.

`install()` puts Project.toml into the depot of Julia, as the environment `environments/ad-scaling`
in the depot, and has Julia fetch the packages; nothing is written into this package. `julia` must be on
the PATH.

`compile_seconds` is what Julia took to make a case ready (configurations, tapes) and for its first call,
which compiles; starting Julia and loading packages are not in it, nor is a call after it. `seconds` are
the samples of BenchmarkTools, in order: it warms up, repeats what is short, and stops at a number of
samples or a time, not at an interval.

`jit` matters to ReverseDiff alone (its own, or through DifferentiationInterface): true is a compiled tape
for every point, false a tape recorded at each call. poisson with batch=whole has the `formulation`s of
the thread; without one, it is `broadcast`. The value of rbf as the source writes it is the matrix of all
points at once, on one thread. Otherwise threads divide the points.
"""

import os
import re
import shutil
import subprocess
import tempfile
import tomllib
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from scaling.core.case import Case
from scaling.core.timing import Samples, Sampling
from scaling.peers.formulas import KNOWN
from scaling.peers.interface import Prepared, first_reason
from scaling.workers.child_process import ChildProcess

MODES = {
    "ForwardDiff": ("jacfwd",),
    "ReverseDiff": ("jacrev",),
    "Zygote": ("jacrev",),
    "Enzyme": ("jacfwd", "jacrev"),
    "DifferentiationInterface": ("jacfwd", "jacrev"),
}
SYSTEMS = tuple(MODES)
_PACKAGES = {  # that a system loads in addition to those of all systems; as in measure.jl
    **{name: (name,) for name in MODES},
    "DifferentiationInterface": ("DifferentiationInterface", "ForwardDiff", "ReverseDiff"),
}
THREADS = True
JIT = (True, False)
FORMULATIONS = {"poisson": ("type_broadcast", "generator", "loop", "forward_inside", "broadcast")}
INSTALL = (
    "see https://julialang.org/install, then: python -c 'from scaling.peers.julia import install; install()'"
)

_HERE = Path(__file__).parent
_ENVIRONMENT = Path("environments", "ad-scaling")
_NANOSECOND = 1e-9


def unfit(case: Case, workload: Any, sizes: Any) -> str | None:
    """Return why a system of Julia does not offer a case; None if it does."""
    system = case.engine.partition("/")[2]
    offered = (*MODES[system], "finite_difference", "value")
    has_tape = case.mode == "jacrev" and system in ("ReverseDiff", "DifferentiationInterface")
    return first_reason(
        (case.workload not in KNOWN, f"julia is written for {', '.join(KNOWN)}"),
        (case.mode not in offered, f"{case.engine} offers {', '.join(offered)}"),
        (case.dtype not in ("float32", "float64"), "julia is written for float32 and float64"),
        (case.ad_mode.finite_step and case.dtype != "float64",
         "the thread's step of 1e-6 is one for float64"),
        (case.chunk is not None, f"{case.engine} chooses its own chunks of seeds"),
        (not case.jit and not has_tape,
         "jit=false records a tape at each call, which ReverseDiff does; "
         "everything else in Julia is compiled"),
        (case.batch == "whole" and case.devices > 1, "a batch taken at once runs on one thread"),
        (case.formulation in FORMULATIONS["poisson"] and case.batch != "whole",
         f"formulation={case.formulation} is a way to add up terms; batch=whole adds them up"),
        (case.formulation == "forward_inside" and system != "ReverseDiff",
         "forward_inside is a feature of ReverseDiff"),
    )  # fmt: skip


def versions(system: str) -> dict[str, str | None]:
    """Return the version of Julia and of each package that a system loads; None for what is not installed."""
    found = re.search(r"(\d+\.\d+\.\S+)", _output("julia", "--version"))
    if not found:
        return {"julia": None}
    installed = _installed(found.group(1))
    # Julia's standard library has no version in Project.toml. Some packages belong to other systems.
    compatible = tomllib.loads((_HERE / "Project.toml").read_text())["compat"]
    others = {name for names in _PACKAGES.values() for name in names} - set(_PACKAGES[system])
    packages = [name for name in compatible if name != "julia" and name not in others]
    return {"julia": found.group(1)} | {name: installed.get(name) for name in packages}


def _output(*words: str) -> str:
    try:
        return subprocess.run(words, capture_output=True, text=True, check=False, timeout=60).stdout
    except (OSError, subprocess.TimeoutExpired):
        return ""


def _installed(julia: str) -> dict[str, str | None]:
    """Return the versions of the packages in the environment, from the manifest that this Julia takes.

    Julia takes the manifest of its own minor version, such as Manifest-v1.11.toml, and Manifest.toml
    where there is none; of either, the one with the prefix Julia comes first.
    """
    minor = ".".join(julia.split(".")[:2])
    names = (f"{prefix}Manifest{ending}.toml" for ending in (f"-v{minor}", "") for prefix in ("Julia", ""))
    manifest = next((path for path in map(_environment().joinpath, names) if path.is_file()), None)
    try:
        entries = tomllib.loads(manifest.read_text()) if manifest else {}
    except (OSError, ValueError):
        return {}
    # Before version 2.0 of the format, the packages stand at the top.
    entries = entries.get("deps", {}) if "manifest_format" in entries else entries
    return {name: each[0].get("version") for name, each in entries.items() if isinstance(each, list) and each}


def _environment() -> Path:
    """Return the folder of the environment, in the first depot."""
    depot = os.environ.get("JULIA_DEPOT_PATH", "").split(os.pathsep)[0]
    return Path(depot or "~/.julia").expanduser() / _ENVIRONMENT


def install() -> None:
    """Create the environment, or update it to Project.toml."""
    _environment().mkdir(parents=True, exist_ok=True)
    shutil.copy(_HERE / "Project.toml", _environment())
    update = "using Pkg; Pkg.resolve(); Pkg.instantiate()"
    subprocess.run(["julia", f"--project={_environment()}", "-e", update], check=True)


def prepare(
    case: Case, workload: Any, sizes: Any, arrays: Mapping[str, np.ndarray], threads: int
) -> Prepared:
    """Return the derivative in a Julia process, which ends when the returned value is discarded."""
    julia = _Julia(case.engine.partition("/")[2], threads)
    value = case.ad_mode.is_value
    summed = bool(workload.reduce) and not value
    points = 1 if value and sizes.summed else case.points
    shape = points, 1 if summed else sizes.outputs, 1 if value else sizes.inputs
    as_source = (case.workload, case.variant, case.formulation) == ("rbf", "source", None)
    at_once = threads == 1 and value and as_source
    ready = julia.ask(
        "prepare", workload=case.workload, variant=case.variant, formulation=case.formulation,
        names=workload.names,
        mode=case.mode, dtype=case.dtype, jit=case.jit, whole=case.batch == "whole" or at_once, summed=summed,
        outputs=sizes.outputs, due=shape,
        arrays=[julia.write_input(name, array) for name, array in arrays.items()],
    )  # fmt: skip

    def call() -> None:
        julia.ask("call")

    def collect(_: None) -> np.ndarray:
        file = julia.folder / "result"
        julia.ask("result", file=str(file))
        return np.fromfile(file, case.dtype).reshape(shape)

    def sample(sampling: Sampling) -> Samples:
        answer = julia.ask("sample", seconds=sampling.seconds, least=sampling.least, most=sampling.most)
        seconds = [_NANOSECOND * time for time in answer["times"]]
        return Samples(seconds, answer["evaluations"], "most" if len(seconds) >= sampling.most else "seconds")

    return Prepared(call, collect, float(ready["seconds"]), sizes.passes or None, sample)


class _Julia:
    """A process that answers each line of JSON with one; it is killed when nothing refers to it any more."""

    def __init__(self, system: str, threads: int) -> None:
        folder = tempfile.TemporaryDirectory(prefix="scaling-julia-")
        self.folder = Path(folder.name)
        options = "--startup-file=no", f"--project={_environment()}", f"--threads={threads}"
        self._process = ChildProcess(
            ["julia", *options, str(_HERE / "measure.jl"), system], reaped=False, tagged=False
        )
        weakref.finalize(self, _end, self._process, folder)

    def write_input(self, name: str, array: np.ndarray) -> dict[str, Any]:
        """Write an input to a raw file; return its description."""
        file = self.folder / f"{name}.bin"
        np.ascontiguousarray(array).tofile(file)
        return {"name": name, "file": str(file), "shape": array.shape, "type": array.dtype.name}

    def ask(self, what: str, **fields: Any) -> dict[str, Any]:
        """Return the answer to a request; RuntimeError with Julia's message if it has none."""
        self._process.send({"do": what, **fields})
        answer = self._process.receive()
        assert answer is not None
        if answer.get("event") == "exit":
            raise RuntimeError(f"Julia ended with status {answer['status']} and said: {self._last_error()}")
        if "error" in answer:
            raise RuntimeError(f"Julia: {answer['error']}")
        return answer

    def _last_error(self) -> str:
        lines = [line for line in self._process.stderr_lines() if line.strip()]
        return next((line for line in lines if line.startswith("ERROR")), lines[-1] if lines else "nothing")


def _end(process: ChildProcess, folder: tempfile.TemporaryDirectory) -> None:
    process.close(end_seconds=0.0)
    folder.cleanup()
