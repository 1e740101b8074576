"""Peer: Julia in a child process (ForwardDiff, ReverseDiff, Zygote, Enzyme, DifferentiationInterface).

The value of `engine` is `julia/` and the name of one of these packages, such as `julia/ForwardDiff`. A worker
starts `measure.jl` as a child process, writes the inputs to files, and sends requests as lines of JSON: to
prepare the derivative, to call it, and to sample its run time with BenchmarkTools. `julia` must be on the
PATH. `install()` creates the environment `environments/ad-scaling` in the Julia depot.

`measure.jl` was not timed on a current version of Julia, and not run with Enzyme and DifferentiationInterface
(docs/sources.md). If a case fails with one of these two, the cause may be an error in `measure.jl`.

`compile_seconds` is the time to prepare a case (configurations and tapes) and to call it once, without the
start of Julia and the loading of packages. BenchmarkTools stops after a number of samples or a time. Unlike
with other engines, the width of the confidence interval does not matter.

`jit` affects only ReverseDiff, directly or through DifferentiationInterface: true compiles a tape for every
point, and false records a tape at each call. `poisson` with batch=whole has additional formulations from a
forum thread on Julia. The default is `broadcast`. On a single thread, the value of `rbf` with variant=source
is computed as a matrix of all points. In all other cases with batch=vmap, the points are divided among
threads.
"""

import os
import shutil
import subprocess
import tempfile
import tomllib
import weakref
from pathlib import Path
from typing import Any

import numpy as np

from scaling.core.case import Case
from scaling.core.timing import Samples, Sampling
from scaling.peers import formulas
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
# Packages that measure.jl loads for every system, and for one system besides the package of its name.
_COMMON_PACKAGES = ("ADTypes", "BenchmarkTools", "Distributions", "JSON", "SpecialFunctions")
_MORE_PACKAGES = {"DifferentiationInterface": ("ForwardDiff", "ReverseDiff")}
THREADS = True
JIT = (True, False)
FORMULATIONS = {"poisson": ("type_broadcast", "generator", "loop", "forward_inside", "broadcast")}
INSTALL = (
    "see https://julialang.org/install, then: python -c 'from scaling.peers.julia import install; install()'"
)

_JULIA_SOURCES = Path(__file__).parent


def reason_to_skip(case: Case, workload: Any, sizes: Any) -> str | None:
    system = case.engine.partition("/")[2]
    offered = (*MODES[system], "finite_difference", "value")
    has_tape = case.mode == "jacrev" and system in ("ReverseDiff", "DifferentiationInterface")
    return first_reason(
        *formulas.checks(case, offered),
        (case.dtype not in ("float32", "float64"), "julia offers float32 and float64 only"),
        (case.ad_mode.finite_step and case.dtype != "float64",
         "the finite-difference step of 1e-6 requires float64"),
        (case.chunk is not None, f"{case.engine} chooses its own chunk size; omit chunk"),
        (not case.jit and not has_tape,
         "jit=false records a tape at each call, which only ReverseDiff offers; use jit=true"),
        (case.batch == "whole" and case.devices > 1, "batch=whole runs on a single thread"),
        (case.formulation in FORMULATIONS["poisson"] and case.batch != "whole",
         f"formulation={case.formulation} is a sum over terms, which needs batch=whole"),
        (case.formulation == "forward_inside" and system != "ReverseDiff",
         "forward_inside is a feature of ReverseDiff"),
    )  # fmt: skip


def versions(system: str) -> dict[str, str | None]:
    """Return the versions of Julia ("julia") and of the packages for a system such as "ForwardDiff".

    The version of a package that is not installed is None.
    """
    if shutil.which("julia") is None:
        return {"julia": None}
    command = ["julia", "--version"]  # prints "julia version 1.11.2"
    printed = subprocess.run(command, capture_output=True, text=True, check=False).stdout.split()
    try:
        manifest = tomllib.loads((_environment_folder() / "Manifest.toml").read_text())
    except (OSError, ValueError):
        manifest = {}
    entries = manifest.get("deps", manifest)  # Julia 1.5 lists the packages as top-level entries
    names = *_COMMON_PACKAGES, system, *_MORE_PACKAGES.get(system, ())
    installed = {name: entries.get(name, [{}])[0].get("version") for name in names}
    return {"julia": printed[-1] if printed else None} | installed


def _environment_folder() -> Path:
    """Return the folder of the Julia environment that `install()` creates."""
    depot = os.environ.get("JULIA_DEPOT_PATH", "").split(os.pathsep)[0]
    return Path(depot or "~/.julia").expanduser() / "environments" / "ad-scaling"


def install() -> None:
    """Create or update the Julia environment that Project.toml describes, and install its packages."""
    _environment_folder().mkdir(parents=True, exist_ok=True)
    shutil.copy(_JULIA_SOURCES / "Project.toml", _environment_folder())
    update = "using Pkg; Pkg.resolve(); Pkg.instantiate()"
    subprocess.run(["julia", f"--project={_environment_folder()}", "-e", update], check=True)


def prepare(case: Case, workload: Any, sizes: Any, arrays: dict[str, np.ndarray], threads: int) -> Prepared:
    """Return the function value or derivative of a case, computed in a new Julia process."""
    julia = _Julia(case.engine.partition("/")[2], threads)
    is_value = case.ad_mode.is_value
    is_summed = bool(workload.reduce) and not is_value
    points = 1 if is_value and sizes.summed else case.points
    shape = points, 1 if is_summed else sizes.outputs, 1 if is_value else sizes.inputs
    is_source = (case.workload, case.variant, case.formulation) == ("rbf", "source", None)
    is_whole = case.batch == "whole" or (threads == 1 and is_value and is_source)
    reply = julia.request(
        "prepare", workload=case.workload, variant=case.variant, formulation=case.formulation,
        names=workload.names, mode=case.mode, dtype=case.dtype, jit=case.jit, whole=is_whole,
        summed=is_summed, outputs=sizes.outputs, shape=shape,
        arrays=[julia.write_input(name, array) for name, array in arrays.items()],
    )  # fmt: skip

    def call() -> None:
        julia.request("call")

    def collect(_: None) -> np.ndarray:
        file = julia.folder / "result"
        julia.request("result", file=str(file))
        return np.fromfile(file, case.dtype).reshape(shape)

    def sample(sampling: Sampling) -> Samples:
        reply = julia.request("sample", seconds=sampling.seconds, least=sampling.least, most=sampling.most)
        seconds = [1e-9 * nanoseconds for nanoseconds in reply["times"]]
        return Samples(seconds, reply["evaluations"], "most" if len(seconds) >= sampling.most else "seconds")

    return Prepared(call, collect, float(reply["seconds"]), sizes.passes or None, sample)


class _Julia:
    """A Julia process that runs `measure.jl`, and ends when this object is deleted."""

    def __init__(self, system: str, threads: int) -> None:
        folder = tempfile.TemporaryDirectory(prefix="scaling-julia-")
        self.folder = Path(folder.name)
        options = "--startup-file=no", f"--project={_environment_folder()}", f"--threads={threads}"
        self._process = ChildProcess(
            ["julia", *options, str(_JULIA_SOURCES / "measure.jl"), system], reaped=False, tagged=False
        )
        weakref.finalize(self, _close, self._process, folder)

    def write_input(self, name: str, array: np.ndarray) -> dict[str, Any]:
        """Write an array to a binary file. Return a dict that describes the file for a request to Julia."""
        file = self.folder / f"{name}.bin"
        np.ascontiguousarray(array).tofile(file)
        return {"name": name, "file": str(file), "shape": array.shape, "type": array.dtype.name}

    def request(self, action: str, **fields: Any) -> dict[str, Any]:
        """Send a request, such as "call", and return the reply. Raise `RuntimeError` if Julia fails."""
        self._process.send({"do": action, **fields})
        reply = self._process.receive()
        assert reply is not None
        if reply.get("event") == "exit":
            lines = [line for line in self._process.stderr_lines() if line.strip()] or ["nothing"]
            error = next((line for line in lines if line.startswith("ERROR")), lines[-1])
            raise RuntimeError(f"Julia exited with status {reply['status']}: {error}")
        if "error" in reply:
            raise RuntimeError(f"Julia: {reply['error']}")
        return reply


def _close(process: ChildProcess, folder: tempfile.TemporaryDirectory) -> None:
    process.close(end_seconds=0.0)
    folder.cleanup()
