"""A peer: another system that differentiates, on the same cases, inputs and checks as JAX, and how a name
selects it.

A peer is a module, ours (`engine: torch`) or a user's (an import path), with two functions,

    unfit(case, workload, sizes) -> str | None                      why it does not offer a case, in words
    prepare(case, workload, sizes, arrays, threads) -> Prepared     the derivative, ready to call

and, where they apply, the constants and functions

    PACKAGES   distributions that it needs: they must be installed, and their versions are recorded
    INSTALL    the command that installs them
    THREADS    True if it can use more than one core
    JIT        the values of `jit` that it offers; any other becomes the first of them
    SYSTEMS    the systems of a peer that has several: `engine: julia/ForwardDiff`
    FORMULATIONS   {workload: formulations that only this peer has}
    versions() -> {name: version or None}, instead of PACKAGES; or versions(system), if SYSTEMS differ

Its module imports NumPy and the standard library alone until `prepare` is called. Does not know JAX,
devices or timing.
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

from scaling.core.case import AUTO, JAX, Case, Refusal, unknown_name
from scaling.core.timing import Samples, Sampling

_INSTALL = "pip install 'ad-scaling[peers]'"
_NO_PEERS = {"formulas", "interface"}  # modules of this folder


@dataclass(frozen=True)
class Prepared:
    """A derivative that a peer made ready.

    call: computes all of it, and returns when it is there. collect: result of `call` -> (points, outputs,
    inputs), as `shape.result_shape` says. compile_seconds: the preparation, if the peer compiles or
    records something. passes: JVPs, VJPs or evaluations for one Jacobian. sample: the peer's own way to
    take samples, if it has one.
    """

    call: Callable[[], Any]
    collect: Callable[[Any], np.ndarray]
    compile_seconds: float | None = None
    passes: int | None = None
    sample: Callable[[Sampling], Samples] | None = None


def built_in() -> list[str]:
    """Return the names of the peers that come with the package."""
    modules = {module.name for module in pkgutil.iter_modules([str(Path(__file__).parent)])}
    return sorted(name for name in modules - _NO_PEERS if name[0] != "_")


def module(engine: str) -> ModuleType:
    """Return the module of an engine: one of ours by its short name, or any import path."""
    name, _, system = engine.partition("/")
    path = f"scaling.peers.{name}" if name in built_in() else name
    try:
        found = importlib.import_module(path)
    except Exception as error:
        missing_name = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing_name and f"{path}.".startswith(f"{missing_name}."):
            text = unknown_name("engine", engine, [JAX, *engines()])
            raise Refusal(f"{text}, or give the import path of a peer of your own") from None
        kind = "" if isinstance(error, ModuleNotFoundError) else f"{type(error).__name__}: "
        raise Refusal(f"engine {engine!r} cannot be imported: {kind}{error}") from None
    for function in ("unfit", "prepare"):
        if not callable(getattr(found, function, None)):
            raise Refusal(f"engine {engine!r} has no function {function}; see docs/adding_a_peer.md")
    systems = getattr(found, "SYSTEMS", ())
    if system not in (systems or ("",)):
        raise unknown_name("engine", engine, [f"{name}/{each}" for each in systems] or [name])
    return found


def engines() -> list[str]:
    """Return every engine that comes with the package, by the name that a case has for it."""
    systems = {
        name: getattr(importlib.import_module(f"scaling.peers.{name}"), "SYSTEMS", ()) for name in built_in()
    }
    return [
        full for name, own in systems.items() for full in ([f"{name}/{system}" for system in own] or [name])
    ]


@functools.cache
def versions(engine: str) -> dict[str, str | None]:
    """Return the versions of what a peer runs on; None for what is not installed. {} for JAX, which every
    record has.

    A user's peer is identified by a hash of its source as well.
    """
    if engine == JAX:
        return {}
    peer, (name, _, system) = module(engine), engine.partition("/")
    if callable(getattr(peer, "versions", None)):
        found = peer.versions(*[system][: len(inspect.signature(peer.versions).parameters)])
    else:
        found = {package: _version(package) for package in getattr(peer, "PACKAGES", ())}
    source = Path(str(peer.__file__)).read_bytes()
    own = {} if name in built_in() else {peer.__name__: hashlib.sha256(source).hexdigest()[:16]}
    return {**found, **own}


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def missing(engine: str) -> str | None:
    """Return what an engine lacks on this machine, and the command that installs it; None if it can run."""
    lacking = [name for name, version in versions(engine).items() if version is None]
    if not lacking:
        return None
    verb, install = "is" if len(lacking) == 1 else "are", getattr(module(engine), "INSTALL", _INSTALL)
    return f"{' and '.join(lacking)} {verb} not installed; {install}"


def complete_case(case: Case) -> dict[str, Any]:
    """Return the fields of a peer's case that leave no choice: it takes the whole batch on a number of
    threads.
    """
    known = getattr(module(case.engine), "JIT", (False,))
    without = dict.fromkeys(
        ("mesh", "block", "storage", "memory_limit", "remat", "forward")
    )  # options of JAX
    return without | {
        "api": "jit", "split": "points", "overlap": False, "precision": "highest",
        "jit": case.jit if case.jit in known else known[0],
        "chunk": None if case.chunk == AUTO else case.chunk,
    }  # fmt: skip


def formulations(case: Case) -> tuple[str, ...]:
    """Return the formulations of a workload that only this case's engine has."""
    if case.engine == JAX:
        return ()
    return tuple(getattr(module(case.engine), "FORMULATIONS", {}).get(case.workload, ()))


def why_not_offered(case: Case, workload: Any, sizes: Any) -> tuple[str, str] | None:
    """Return why a peer cannot run a case, as (reason, text); None if it can."""
    peer, mixed, reduced = module(case.engine), bool(case.ad_mode.parts), case.reduce is not None
    if case.devices > 1 and not getattr(peer, "THREADS", False):
        return "not_offered", f"{case.engine} uses one core"
    if mixed or reduced or case.seeds != "identity":
        asked = "mode=mixed" if mixed else f"reduce={case.reduce}" if reduced else f"seeds={case.seeds}"
        text = f"{case.engine} is not asked for {asked}, which is made of JAX's linear maps here"
        return "not_offered", text
    if text := peer.unfit(case, workload, sizes):
        return "not_offered", text
    lacking = missing(case.engine)
    return ("not_installed", lacking) if lacking else None


def collected(case: Case, result: np.ndarray, expected: tuple[int, int, int]) -> np.ndarray:
    """Return the result of a peer in the expected shape; a result of another size is refused."""
    if np.size(result) != math.prod(expected):
        what = f"{case.engine} returns {case.mode} of {case.workload} as {np.shape(result)}"
        raise Refusal(f"{what}, where {expected} is due")
    return np.asarray(result).reshape(expected)


def first_reason(*checks: tuple[Any, str]) -> str | None:
    """Return the text of the first check whose condition holds."""
    return next((text for condition, text in checks if condition), None)
