"""A peer: another system that differentiates, on the same cases, inputs and check as JAX, and how to find one by name.

A peer is a module, ours or anybody's (`engine: torch`, or an import path), with two functions,

    unfit(case, workload, sizes) -> str | None                      why it does not offer a case, in words
    prepare(case, workload, sizes, arrays, threads) -> Prepared     the derivative made ready to call

and, where they apply, the constants and functions

    PACKAGES   distributions that it needs: they must be installed, and their versions are recorded
    INSTALL    the command that installs them
    THREADS    True if it can use more than one core
    JIT        the values of `jit` that it knows; one that it does not know becomes the first of them
    SYSTEMS    what it speaks for, where that is more than one: `engine: julia/ForwardDiff`
    FORMULATIONS   {workload: formulations of its own}
    versions() -> {name: version or None}, instead of PACKAGES; or versions(system), where SYSTEMS differ in what they need

Its module imports nothing but NumPy and the standard library until `prepare` is called. Does not know JAX, devices, or how
anything is timed.
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


@dataclass(frozen=True)
class Prepared:
    """A derivative made ready by a peer.

    call: computes all of it and returns when it is there. collect: what `call` returned -> (points, outputs, inputs), as
    `shape.due` says. compile_seconds: what making ready took, where the peer compiles or records something.
    passes: JVPs, VJPs or evaluations of one Jacobian. sample: the peer's own way to take samples, where it has one.
    """

    call: Callable[[], Any]
    collect: Callable[[Any], np.ndarray]
    compile_seconds: float | None = None
    passes: int | None = None
    sample: Callable[[Sampling], Samples] | None = None


_NO_PEERS = {"formulas", "interface"}  # modules of this folder that are not peers


def built_in() -> list[str]:
    """The names of the peers that come with the package."""
    return sorted(
        {m.name for m in pkgutil.iter_modules([str(Path(__file__).parent)]) if m.name[0] != "_"} - _NO_PEERS
    )


def module(engine: str) -> ModuleType:
    """The module of an engine: one of ours by its short name, or any import path."""
    name, _, system = engine.partition("/")
    path = f"scaling.peers.{name}" if name in built_in() else name
    try:
        found = importlib.import_module(path)
    except ModuleNotFoundError as error:
        if error.name and (path == error.name or path.startswith(f"{error.name}.")):
            words = unknown_name("engine", engine, [JAX, *engines()])
            raise Refusal(f"{words}, or give the import path of a peer of your own") from None
        raise Refusal(f"engine {engine!r} cannot be imported: {error}") from None
    except Exception as error:
        raise Refusal(f"engine {engine!r} cannot be imported: {type(error).__name__}: {error}") from None
    for function in ("unfit", "prepare"):
        if not callable(getattr(found, function, None)):
            raise Refusal(f"engine {engine!r} has no function {function}; see docs/adding_a_peer.md")
    systems = getattr(found, "SYSTEMS", ())
    if system not in (systems or ("",)):
        raise unknown_name("engine", engine, [f"{name}/{s}" for s in systems] or [name])
    return found


def engines() -> list[str]:
    """Every engine that comes with the package, by the name that a case gives it."""
    names = []
    for name in built_in():
        systems = getattr(importlib.import_module(f"scaling.peers.{name}"), "SYSTEMS", ())
        names += [f"{name}/{system}" for system in systems] or [name]
    return names


@functools.cache
def versions(engine: str) -> dict[str, str | None]:
    """What a peer runs on, by name; None for what is not installed. Nothing for JAX, whose versions every record holds.

    A peer of one's own is told by a hash of its source too.
    """
    if engine == JAX:
        return {}
    of = module(engine)
    if callable(getattr(of, "versions", None)):
        found = of.versions(*[engine.partition("/")[2]][: len(inspect.signature(of.versions).parameters)])
    else:
        found = {name: _version(name) for name in getattr(of, "PACKAGES", ())}
    if engine.partition("/")[0] in built_in():
        return dict(found)
    return {**found, of.__name__: hashlib.sha256(Path(str(of.__file__)).read_bytes()).hexdigest()[:16]}


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def missing(engine: str) -> str | None:
    """What an engine lacks on this machine, and the command that installs it; None if it can run."""
    lacking = [name for name, version in versions(engine).items() if version is None]
    verb = "is" if len(lacking) == 1 else "are"
    install = getattr(module(engine), "INSTALL", _INSTALL) if lacking else ""
    return f"{' and '.join(lacking)} {verb} not installed; {install}" if lacking else None


def complete_case(case: Case) -> dict[str, Any]:
    """The fields of a peer's case that leave no choice: it takes the whole batch on so many threads."""
    known = getattr(module(case.engine), "JIT", (False,))
    whole = dict.fromkeys(("mesh", "block", "storage", "memory_limit", "remat", "forward"))  # JAX's own ways
    return whole | {
        "api": "jit", "split": "points", "overlap": False, "precision": "highest",
        "jit": case.jit if case.jit in known else known[0], "chunk": None if case.chunk == AUTO else case.chunk,
    }  # fmt: skip


def formulations(case: Case) -> tuple[str, ...]:
    """The formulations of a workload that only this case's engine knows."""
    return (
        ()
        if case.engine == JAX
        else tuple(getattr(module(case.engine), "FORMULATIONS", {}).get(case.workload, ()))
    )


def why_not_offered(case: Case, workload: Any, sizes: Any) -> tuple[str, str] | None:
    """Why a peer cannot run a case, as (reason, words); None if it can."""
    of = module(case.engine)
    if case.devices > 1 and not getattr(of, "THREADS", False):
        return "not_offered", f"{case.engine} uses one core"
    if case.reduce is not None or case.seeds != "identity" or case.ad_mode.parts:
        asked = (
            "mode=mixed"
            if case.ad_mode.parts
            else f"reduce={case.reduce}"
            if case.reduce
            else f"seeds={case.seeds}"
        )
        return (
            "not_offered",
            f"{case.engine} is not asked for {asked}, which is made of JAX's linear maps here",
        )
    if words := of.unfit(case, workload, sizes):
        return "not_offered", words
    if words := missing(case.engine):
        return "not_installed", words
    return None


def collected(case: Case, result: np.ndarray, due: tuple[int, int, int]) -> np.ndarray:
    """What a peer returned, in the shape that is due; anything else is refused."""
    if np.size(result) != math.prod(due):
        raise Refusal(
            f"{case.engine} returns {case.mode} of {case.workload} as {np.shape(result)}, where {due} is due"
        )
    return np.asarray(result).reshape(due)
