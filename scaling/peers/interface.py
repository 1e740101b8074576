"""Import the module of a peer (an AD library other than JAX), check it, and prepare cases (`Prepared`).

A peer runs the same cases as JAX, with the same inputs and checks. The field `engine` of a case is the name
of a module in this folder, such as `torch`, or the import path of a user's module. A peer must define two
functions,

    reason_to_skip(case, workload, sizes) -> str | None     the reason why the peer cannot run a case, or None
    prepare(case, workload, sizes, arrays, threads) -> Prepared     the derivative as a function to call

and may define these constants:

    PACKAGES    the Python packages that the peer needs; their versions are recorded
    THREADS     whether the peer can use several cores (default: False)
    COMPILES    whether the peer compiles if `jit: true` (default: False; `jit` is then set to false)

The module must import only NumPy and the standard library at its top level, and other packages in `prepare`.
"""

import dataclasses
import functools
import hashlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import distributions
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from scaling.core.case import AUTO, JAX, LAPLACIAN, Case, Refusal
from scaling.core.record import is_number
from scaling.core.workload import import_named

if TYPE_CHECKING:
    from scaling.core.derivative import Derivative
    from scaling.core.run_case import Attempt, PlacedProgram

ENGINES = ("autograd", "casadi", "torch")  # the peers in this folder


@dataclass(frozen=True)
class Prepared:
    """The functions of a peer that compute the value or derivative of a case and convert the result.

    Attributes:
        call: a function that computes the whole value or derivative, and returns when it is finished.
        collect: a function that converts the result of `call` to an array of shape
            (points, outputs, inputs), as `Derivative.result_shape` defines it.
        compile_seconds: the time of compilation or tracing, or None if the peer does neither.
        passes: the number of JVPs, VJPs or function evaluations per Jacobian, or None if it is unknown.
    """

    call: Callable[[], Any]
    collect: Callable[[Any], np.ndarray]
    compile_seconds: float | None = None
    passes: int | None = None

    def __post_init__(self) -> None:
        passes, seconds = self.passes, self.compile_seconds  # a record with another value could not be read
        if passes is not None and (type(passes) is not int or passes < 0):
            raise Refusal(f"passes must be an integer, zero or more, or None, not {passes!r}")
        if seconds is not None and (not is_number(seconds) or seconds < 0):
            raise Refusal(f"compile_seconds must be a number, zero or more, or None, not {seconds!r}")


def import_peer(engine: str) -> ModuleType:
    """Import the module of a peer (an AD library other than JAX), and return it.

    `engine` is a name in `ENGINES` or an import path. Raise `Refusal` if the module cannot be imported, if it
    does not define `reason_to_skip` and `prepare`, or if its constant `PACKAGES` is invalid.
    """
    path = f"scaling.peers.{engine}" if engine in ENGINES else engine
    peer = import_named("engine", engine, path, [JAX, *ENGINES, "the import path of a peer of your own"])
    for function in ("reason_to_skip", "prepare"):
        if not callable(getattr(peer, function, None)):
            choices = ", ".join([JAX, *ENGINES])
            raise Refusal(
                f"engine {engine!r} has no function {function}: choose from {choices}, or add it to your "
                "peer (docs/adding_a_peer.md)"
            )
    packages = getattr(peer, "PACKAGES", ())
    if not isinstance(packages, list | tuple) or not all(isinstance(name, str) and name for name in packages):
        raise Refusal(f"PACKAGES of engine {engine!r} must be like ('numpy',) or (), not {packages!r}")
    return peer


@functools.cache
def package_versions(engine: str) -> dict[str, str | None]:
    """Return {package: version} for the packages that a peer needs. None means not installed.

    `engine` is the name or import path of the peer. For a user's peer, the dict also contains a hash of the
    source code of its module. For JAX, the dict is empty.
    """
    if engine == JAX:  # every record contains the version of JAX
        return {}
    peer = import_peer(engine)
    by_package = {
        name: next((installed.version for installed in distributions(name=name)), None)
        for name in getattr(peer, "PACKAGES", ())
    }
    if engine not in ENGINES:
        source = Path(str(peer.__file__)).read_bytes()
        by_package[peer.__name__] = hashlib.sha256(source).hexdigest()[:16]
    return by_package


def complete_case(case: Case) -> dict[str, Any]:
    """Return field values that turn off the options of a case that only JAX has, such as `mesh`."""
    jax_options = dict.fromkeys(("mesh", "block", "storage", "memory_limit", "remat", "forward"))
    return jax_options | {
        "api": "jit", "split": "points", "overlap": False, "precision": "highest",
        "jit": case.jit and getattr(import_peer(case.engine), "COMPILES", False),
        "chunk": None if case.chunk == AUTO else case.chunk,
    }  # fmt: skip


def why_not_offered(derivative: "Derivative") -> tuple[str, str] | None:
    """Return a reason and an explanation if the peer of a case cannot run it, otherwise None.

    The reason is "not_offered" or "not_installed", keys of `scaling.core.record.SKIPPED`.
    """
    case = derivative.case
    peer = import_peer(case.engine)
    only_jax = f"is implemented for engine=jax only, not for {case.engine}"
    reason = first_reason(
        (case.devices > 1 and not getattr(peer, "THREADS", False), f"{case.engine} uses one core"),
        (bool(case.ad_mode.parts), f"mode=mixed {only_jax}"),
        (case.reduce is not None, f"reduce={case.reduce} {only_jax}"),
        (case.target == LAPLACIAN, f"target={LAPLACIAN} {only_jax}"),
        (case.seeds != "identity", f"seeds={case.seeds} {only_jax}"),
    )
    text = reason or peer.reason_to_skip(case, derivative.workload, derivative)
    if text is not None and not isinstance(text, str):
        raise Refusal(f"reason_to_skip of the peer {case.engine} must return text or None, not {text!r}")
    if text:
        return "not_offered", text
    if missing := [name for name, version in package_versions(case.engine).items() if version is None]:
        verb, names = "is" if len(missing) == 1 else "are", " ".join(missing)
        return "not_installed", f"{' and '.join(missing)} {verb} not installed; pip install {names}"
    return None


def first_reason(*checks: tuple[bool, str]) -> str | None:
    """Return the text of the first pair (condition, text) whose condition is true, or None."""
    return next((text for condition, text in checks if condition), None)


def prepare_program(attempt: "Attempt", case: Case, workload: Any) -> "PlacedProgram":
    """Prepare a case for its peer (an AD library other than JAX), and return the program to time.

    Record the compile time and the number of passes (JVPs, VJPs or function evaluations per Jacobian) in
    `attempt`. Raise `TooLarge` if the inputs and the result do not fit into memory.
    """
    from scaling.core import compile_case, inputs, run_case  # import JAX
    from scaling.core.derivative import describe_derivative

    group, derivative = attempt.group, describe_derivative(case, workload)
    # The threads of a peer share all arrays, so that the case needs as much memory as on one device.
    on_one_device = dataclasses.replace(derivative, case=dataclasses.replace(case, devices=1))
    first_device = group._replace(devices=group.devices[:1])
    describe_shortage = functools.partial(run_case.describe_memory_shortage, first_device)
    compile_case.raise_if_too_large(compile_case.without_program(on_one_device), describe_shortage)
    expected_shape = derivative.result_shape
    arrays = inputs.input_arrays(case, workload)
    prepared = import_peer(case.engine).prepare(case, workload, derivative, arrays, case.devices)
    attempt.note(compile_seconds=prepared.compile_seconds, passes=prepared.passes)

    def collect(result: object) -> np.ndarray:
        array = prepared.collect(result)
        if np.iscomplexobj(array):
            raise Refusal(f"{case.engine} returns complex numbers, where real numbers are expected")
        if np.size(array) != math.prod(expected_shape):
            returned = f"{case.engine} returns {case.mode} of {case.workload} as {np.shape(array)}"
            raise Refusal(f"{returned}, where {expected_shape} is expected")
        return np.asarray(array).reshape(expected_shape)

    return run_case.PlacedProgram(derivative, prepared.call, collect)
