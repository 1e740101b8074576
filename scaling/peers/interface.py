"""Import peers by `engine`, define their result type `Prepared`, and find the cases that they cannot run.

A peer runs the same cases as JAX, with the same inputs and checks. It is a module of this package, such as
`engine: torch`, or a module of the user, given by its import path. A peer must define two functions,

    reason_to_skip(case, workload, sizes) -> str | None     the reason why the peer cannot run a case, or None
    prepare(case, workload, sizes, arrays, threads) -> Prepared     the derivative as a function to call

and may define these constants and functions:

    PACKAGES      the Python packages that the peer needs; their versions are recorded
    INSTALL       the command that installs these packages
    THREADS       whether the peer can use several cores
    JIT           the supported values of `jit`; any other value is replaced by the first one
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
from scaling.core.memory import available_bytes
from scaling.core.timing import Samples, Sampling

_BUILT_IN = ("autograd", "casadi", "enzyme", "julia", "numpy", "torch")  # the modules of this folder
_INSTALL = "pip install 'ad-scaling[peers]'"

Check = tuple[Any, str]  # (whether a condition prevents a case, text that states the condition)


@dataclass(frozen=True)
class Prepared:
    """A function value or derivative prepared by a peer, ready to be called and timed.

    Attributes:
        call: computes the complete derivative, and returns after the computation is finished.
        collect: converts the result of `call` to an array of shape (points, outputs, inputs).
            `shape.result_shape` defines this shape.
        compile_seconds: the time of compilation or tracing, or None if there is neither.
        passes: the number of JVPs, VJPs or function evaluations per Jacobian, or None if it is unknown.
        sample: samples the run time with a benchmark tool of the peer. If it is None, `call` is timed in the
            same way as JAX.
    """

    call: Callable[[], Any]
    collect: Callable[[Any], np.ndarray]
    compile_seconds: float | None = None
    passes: int | None = None
    sample: Callable[[Sampling], Samples] | None = None


def module(engine: str) -> ModuleType:
    """Import and return the module of an engine: a name such as "julia/ForwardDiff", or an import path.

    Raise `Refusal` if the module cannot be imported or lacks the functions of a peer.
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
    names: list[str] = []
    for name in _BUILT_IN:
        systems = getattr(importlib.import_module(f"scaling.peers.{name}"), "SYSTEMS", ())
        names += [f"{name}/{system}" for system in systems] or [name]
    return names


@functools.cache
def versions(engine: str) -> dict[str, str | None]:
    """Return the version of each package of an engine, or None for a package that is not installed.

    For a peer of the user, the dict also contains a hash of the source of its module. The dict is empty
    for JAX, whose version is in every record.
    """
    if engine == JAX:
        return {}
    peer, (name, _, system) = module(engine), engine.partition("/")
    if callable(getattr(peer, "versions", None)):
        by_package = peer.versions(system)
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
    """Return the fields of a case that its peer determines: `jit`, `chunk`, and fixed values of JAX options.

    A peer computes the whole batch with threads in a single process.
    """
    supported = getattr(module(case.engine), "JIT", (False,))
    jax_options = dict.fromkeys(("mesh", "block", "storage", "memory_limit", "remat", "forward"))
    return jax_options | {
        "api": "jit", "split": "points", "overlap": False, "precision": "highest",
        "jit": case.jit if case.jit in supported else supported[0],
        "chunk": None if case.chunk == AUTO else case.chunk,
    }  # fmt: skip


def formulations(case: Case) -> tuple[str, ...]:
    """Return the formulations that only the peer of a case offers, or () if its engine is JAX."""
    if case.engine == JAX:
        return ()
    return tuple(getattr(module(case.engine), "FORMULATIONS", {}).get(case.workload, ()))


def why_not_offered(case: Case, workload: Any, sizes: Any) -> tuple[str, str] | None:
    """Return why a peer cannot run a case, as ("not_offered" or "not_installed", text), or None if it can."""
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


def memory_check(needed_bytes: int, fix: str = "") -> Check:
    """Return a check for `first_reason` that is true if `needed_bytes` exceed the free memory.

    `fix` is appended to the text of the check.
    """
    available = available_bytes() or math.inf
    text = f"needs about {needed_bytes / 1e9:.3g} GB, has {available / 1e9:.3g} GB{fix}"
    return needed_bytes > available, text


def first_reason(*checks: Check) -> str | None:
    """Return the text of the first check whose condition is true, or None if all are false."""
    return next((text for condition, text in checks if condition), None)
