"""Interface of peers, the other AD libraries: import of the module for `engine=NAME`, and class `Prepared`.

A peer runs the same cases as JAX, with the same inputs and checks. It is a module of this package, such as
`engine: torch`, or a module of the user, given by its import path. A peer must define two functions,

    reason_to_skip(case, workload, sizes) -> str | None     the reason why the peer cannot run a case, or None
    prepare(case, workload, sizes, arrays, threads) -> Prepared     the derivative as a function to call

and may define these constants and functions:

    PACKAGES      the Python packages that the peer needs; their versions are recorded
    INSTALL       the command that installs these packages
    THREADS       whether the peer can use several cores
    JIT           the supported values of `jit`; any other value is replaced by the first of them
    SYSTEMS       the names of the AD systems, if the peer has several: `engine: julia/ForwardDiff`
    FORMULATIONS  {workload: formulations that only this peer offers}
    versions(system) -> {name: version or None}     replaces PACKAGES; system is "" without SYSTEMS

The module must import only NumPy and the standard library at its top level, and other packages in `prepare`.
"""

import functools
import hashlib
import importlib
import importlib.metadata
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from scaling.core.case import AUTO, JAX, LAPLACIAN, Case, Refusal, unknown_name
from scaling.core.timing import Samples, Sampling

_BUILT_IN = ("autograd", "casadi", "enzyme", "julia", "numpy", "torch")  # the modules of this folder
_INSTALL = "pip install 'ad-scaling[peers]'"


@dataclass(frozen=True)
class Prepared:
    """A derivative function prepared by another AD library (a peer), ready to be called and timed.

    Attributes:
        call: a function that computes the complete derivative. It must not return before the computation is
            finished.
        collect: a function that converts the result of `call` to an array of shape (points, outputs, inputs).
            `shape.result_shape` defines this shape.
        compile_seconds: the time of compilation or tracing in seconds, or None if there is neither.
        passes: the number of JVPs, VJPs or function evaluations per Jacobian, or None if it is unknown.
        sample: a function that samples the run time with a benchmark tool of the peer. If it is None, `call`
            is timed in the same way as JAX.
    """

    call: Callable[[], Any]
    collect: Callable[[Any], np.ndarray]
    compile_seconds: float | None = None
    passes: int | None = None
    sample: Callable[[Sampling], Samples] | None = None


def module(engine: str) -> ModuleType:
    """Import and return the module that runs an AD library other than JAX.

    `engine` is a name, such as "torch" or "julia/ForwardDiff", or an import path. Raise `Refusal` if the
    module cannot be imported or lacks the functions of a peer.
    """
    name, _, system = engine.partition("/")
    path = f"scaling.peers.{name}" if name in _BUILT_IN else name
    try:
        peer = importlib.import_module(path)
    except Exception as error:
        missing_name = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing_name and f"{path}.".startswith(f"{missing_name}."):
            text = unknown_name("engine", engine, [JAX, *engines()])
            raise Refusal(f"{text}, or give the import path of a peer of your own") from None
        kind = "" if isinstance(error, ModuleNotFoundError) else f"{type(error).__name__}: "
        raise Refusal(f"engine {engine!r} cannot be imported: {kind}{error}") from None
    for function in ("reason_to_skip", "prepare"):
        if not callable(getattr(peer, function, None)):
            raise Refusal(f"engine {engine!r} has no function {function}; see docs/adding_a_peer.md")
    systems = getattr(peer, "SYSTEMS", ())
    if system not in (systems or ("",)):
        raise unknown_name("engine", engine, [f"{name}/{each}" for each in systems] or [name])
    return peer


def engines() -> list[str]:
    """Return all values of `engine` for the peers in this package, such as "torch" or "julia/ForwardDiff"."""
    modules = {name: importlib.import_module(f"scaling.peers.{name}") for name in _BUILT_IN}
    systems = {name: getattr(peer, "SYSTEMS", ("",)) for name, peer in modules.items()}
    return [f"{name}/{system}" if system else name for name in systems for system in systems[name]]


@functools.cache
def versions(engine: str) -> dict[str, str | None]:
    """Return a dict from the name of each package of an engine to its version.

    The version of a package that is not installed is None. For a peer of the user, the dict also contains the
    name of its module with a hash of its source. The dict is empty for JAX: every record has its version.
    """
    if engine == JAX:
        return {}
    peer, (name, _, system) = module(engine), engine.partition("/")
    if callable(getattr(peer, "versions", None)):
        by_package = peer.versions(system) if system else peer.versions()
    else:
        by_package = {package: _version(package) for package in getattr(peer, "PACKAGES", ())}
    if name not in _BUILT_IN:
        source = Path(str(peer.__file__)).read_bytes()
        by_package = {**by_package, peer.__name__: hashlib.sha256(source).hexdigest()[:16]}
    return by_package


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def missing(engine: str) -> str | None:
    """Return an error message if packages of an engine are not installed, or None if all are installed."""
    names = [name for name, version in versions(engine).items() if version is None]
    if not names:
        return None
    verb, install = "is" if len(names) == 1 else "are", getattr(module(engine), "INSTALL", _INSTALL)
    return f"{' and '.join(names)} {verb} not installed; {install}"


def complete_case(case: Case) -> dict[str, Any]:
    """Return the fields of a case that its AD library determines, as a dict from field name to value.

    An AD library other than JAX computes the whole batch with threads in a single process. Therefore fields
    that select options of JAX, such as `api` and `block`, get a fixed value. `jit` gets a value that the
    library supports.
    """
    supported = getattr(module(case.engine), "JIT", (False,))
    jax_options = dict.fromkeys(("mesh", "block", "storage", "memory_limit", "remat", "forward"))
    return jax_options | {
        "api": "jit", "split": "points", "overlap": False, "precision": "highest",
        "jit": case.jit if case.jit in supported else supported[0],
        "chunk": None if case.chunk == AUTO else case.chunk,
    }  # fmt: skip


def formulations(case: Case) -> tuple[str, ...]:
    """Return the formulations that only the AD library of a case offers, or () if the library is JAX."""
    if case.engine == JAX:
        return ()
    return tuple(getattr(module(case.engine), "FORMULATIONS", {}).get(case.workload, ()))


def why_not_offered(case: Case, workload: Any, sizes: Any) -> tuple[str, str] | None:
    """Return (reason, error message) if the AD library of a case cannot run the case, or None if it can.

    The reason is "not_offered" or "not_installed".
    """
    peer = module(case.engine)
    only_jax = "is implemented for engine=jax only, not for"
    reason = first_reason(
        (case.devices > 1 and not getattr(peer, "THREADS", False), f"{case.engine} uses one core"),
        (case.ad_mode.parts, f"mode=mixed {only_jax} {case.engine}"),
        (case.reduce is not None, f"reduce={case.reduce} {only_jax} {case.engine}"),
        (case.target == LAPLACIAN, f"target={LAPLACIAN} {only_jax} {case.engine}"),
        (case.seeds != "identity", f"seeds={case.seeds} {only_jax} {case.engine}"),
    )
    if text := reason or peer.reason_to_skip(case, workload, sizes):
        return "not_offered", text
    text = missing(case.engine)
    return ("not_installed", text) if text else None


def reshape_result(case: Case, result: np.ndarray, shape: tuple[int, int, int]) -> np.ndarray:
    """Return the result of an AD library in a shape. Raise `Refusal` if its number of elements differs."""
    if np.size(result) != math.prod(shape):
        returned = f"{case.engine} returns {case.mode} of {case.workload} as {np.shape(result)}"
        raise Refusal(f"{returned}, where {shape} is expected")
    return np.asarray(result).reshape(shape)


def first_reason(*checks: tuple[Any, str]) -> str | None:
    """Return the text of the first (condition, text) whose condition is true, or None if all are false."""
    return next((text for condition, text in checks if condition), None)
