"""Interface of a peer (another AD system): find, check and version the module that `engine=NAME` names.

A peer runs the same cases as JAX, with the same inputs and checks. It is a module of this package (`engine:
torch`) or of the user (an import path) that defines two functions,

    reason_to_skip(case, workload, sizes) -> str | None     the reason why the peer cannot run a case
    prepare(case, workload, sizes, arrays, threads) -> Prepared     the derivative as a function to call

and optionally these constants and functions:

    PACKAGES      the distributions that it needs; their versions are recorded
    INSTALL       the command that installs them
    THREADS       whether it can use several cores
    JIT           the values of `jit` that it supports; any other value is replaced by the first of them
    SYSTEMS       the names of several systems in one peer: `engine: julia/ForwardDiff`
    FORMULATIONS  {workload: formulations that only this peer has}
    versions() -> {name: version or None}     instead of PACKAGES; versions(system) if SYSTEMS differ

Importing the module imports only NumPy and the standard library. Other packages are imported in `prepare`.
"""

import functools
import hashlib
import importlib
import importlib.metadata
import inspect
import math
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from scaling.core.case import AUTO, JAX, LAPLACIAN, Case, Refusal, unknown_name
from scaling.core.timing import Samples, Sampling

_INSTALL = "pip install 'ad-scaling[peers]'"
_NOT_PEERS = {"formulas", "interface"}  # other modules of this folder


@dataclass(frozen=True)
class Prepared:
    """A derivative that a peer has prepared, ready to be called and timed.

    Attributes:
        call: computes the complete derivative, and returns when it is finished.
        collect: maps the result of `call` to an array (points, outputs, inputs), see `shape.result_shape`.
        compile_seconds: the duration of compilation or tracing, or None if there is none.
        passes: the number of JVPs, VJPs or function evaluations per Jacobian, or None if unknown.
        sample: takes the timing samples with the peer's own benchmark tool, or None to use the common one.
    """

    call: Callable[[], Any]
    collect: Callable[[Any], np.ndarray]
    compile_seconds: float | None = None
    passes: int | None = None
    sample: Callable[[Sampling], Samples] | None = None


def built_in() -> list[str]:
    """Return the names of the peers in this package, such as "torch", in alphabetical order."""
    modules = {module.name for module in pkgutil.iter_modules([str(Path(__file__).parent)])}
    return sorted(name for name in modules - _NOT_PEERS if name[0] != "_")


def module(engine: str) -> ModuleType:
    """Return the module of an engine, which is the name of a peer in this package or an import path.

    Raise `Refusal` if the module cannot be imported or does not define a peer.
    """
    name, _, system = engine.partition("/")
    path = f"scaling.peers.{name}" if name in built_in() else name
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
    """Return all values of `engine` that this package provides, such as "torch", except JAX."""
    systems = {
        name: getattr(importlib.import_module(f"scaling.peers.{name}"), "SYSTEMS", ()) for name in built_in()
    }
    return [
        engine
        for name, names in systems.items()
        for engine in ([f"{name}/{system}" for system in names] or [name])
    ]


@functools.cache
def versions(engine: str) -> dict[str, str | None]:
    """Return a dict from package to version, or to None if not installed, for the packages of an engine.

    The version of a user's peer is a hash of its source. The result is empty for JAX, whose version every
    record contains.
    """
    if engine == JAX:
        return {}
    peer, (name, _, system) = module(engine), engine.partition("/")
    if callable(getattr(peer, "versions", None)):
        by_package = peer.versions(*[system][: len(inspect.signature(peer.versions).parameters)])
    else:
        by_package = {package: _version(package) for package in getattr(peer, "PACKAGES", ())}
    if name not in built_in():
        source = Path(str(peer.__file__)).read_bytes()
        by_package = {**by_package, peer.__name__: hashlib.sha256(source).hexdigest()[:16]}
    return by_package


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def missing(engine: str) -> str | None:
    """Return a message such as "torch is not installed; pip install ...", or None if nothing is missing."""
    names = [name for name, version in versions(engine).items() if version is None]
    if not names:
        return None
    verb, install = "is" if len(names) == 1 else "are", getattr(module(engine), "INSTALL", _INSTALL)
    return f"{' and '.join(names)} {verb} not installed; {install}"


def complete_case(case: Case) -> dict[str, Any]:
    """Return the fields of a case that its peer prescribes, as a dict from field name to value.

    A peer computes the whole batch with a number of threads, so that options of JAX do not apply.
    """
    supported = getattr(module(case.engine), "JIT", (False,))
    jax_options = dict.fromkeys(("mesh", "block", "storage", "memory_limit", "remat", "forward"))
    return jax_options | {
        "api": "jit", "split": "points", "overlap": False, "precision": "highest",
        "jit": case.jit if case.jit in supported else supported[0],
        "chunk": None if case.chunk == AUTO else case.chunk,
    }  # fmt: skip


def formulations(case: Case) -> tuple[str, ...]:
    """Return the names of the implementations of the case's function that only its engine offers."""
    if case.engine == JAX:
        return ()
    return tuple(getattr(module(case.engine), "FORMULATIONS", {}).get(case.workload, ()))


def why_not_offered(case: Case, workload: Any, sizes: Any) -> tuple[str, str] | None:
    """Return (reason, text) if the engine of a case cannot run it, or None if it can.

    The reason is "not_offered" or "not_installed".
    """
    peer, is_mixed, is_reduced = module(case.engine), bool(case.ad_mode.parts), case.reduce is not None
    if case.devices > 1 and not getattr(peer, "THREADS", False):
        return "not_offered", f"{case.engine} uses one core"
    is_laplacian = case.target == LAPLACIAN
    if is_mixed or is_reduced or is_laplacian or case.seeds != "identity":
        option = f"target={LAPLACIAN}" if is_laplacian else f"seeds={case.seeds}"
        if is_mixed or is_reduced:
            option = "mode=mixed" if is_mixed else f"reduce={case.reduce}"
        return "not_offered", f"{option} is implemented for engine=jax only, not for {case.engine}"
    if text := peer.reason_to_skip(case, workload, sizes):
        return "not_offered", text
    text = missing(case.engine)
    return ("not_installed", text) if text else None


def collected(case: Case, result: np.ndarray, expected: tuple[int, int, int]) -> np.ndarray:
    """Reshape the result of a peer to (points, outputs, inputs), or raise `Refusal` if its size differs."""
    if np.size(result) != math.prod(expected):
        returned = f"{case.engine} returns {case.mode} of {case.workload} as {np.shape(result)}"
        raise Refusal(f"{returned}, where {expected} is expected")
    return np.asarray(result).reshape(expected)


def first_reason(*checks: tuple[Any, str]) -> str | None:
    """Return the text of the first (condition, text) pair whose condition is true, or None."""
    return next((text for condition, text in checks if condition), None)
