"""The four problems of GradBench with their sizes, and the C++ programs with hand-written derivatives."""

import shutil
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from examples.bundle_adjustment import pattern

FOLDER = Path(__file__).parent
CPP, CPP_FAST, FUNCTION, CPP_FUNCTION = "C++", "C++ -ffast-math", "JAX function", "C++ function"
FLAGS = ("-O3", "-march=native")
FAST_MATH = "-ffast-math"  # allows the compiler to vectorize sums, exp and tanh


@dataclass(frozen=True)
class Cell:
    """One GradBench problem at one size.

    Attributes:
        problem: the name of the workload in `examples` and of the C++ source.
        label: the size as in GradBench.
        fields: the fields of the case that differ from `COMMON`.
        entries: the entries of the dense Jacobian of a point that the C++ program returns, or None for all.
        nonzeros: the entries of each block of `block` numbers of the C++ program that are not always zero,
            which are compared, or None for all.
        modes: the AD modes of JAX that are measured even if the advice does not choose them.
    """

    problem: str
    label: str
    fields: Mapping[str, Any]
    entries: np.ndarray | None = None
    nonzeros: np.ndarray | None = None
    block: int = 1
    modes: tuple[str, ...] = ("jacrev",)


COMMON = {"points": 1, "dtype": "float64", "api": "jit", "devices": 1}


def _mixture(d: int, k: int, n: int) -> Cell:
    return Cell("gmm", f"d={d}, K={k}, N={n:,}", {"sizes": {"d": d, "k": k, "n": n}})


def _bundle(observations: int) -> Cell:
    rows, columns = pattern()
    fields = {"points": observations, "seeds": "colored"}
    entries, label = 15 * rows + columns, f"p={observations:,}"
    return Cell(
        "bundle_adjustment",
        label,
        fields,
        entries,
        np.minimum(entries, 30),
        31,
        ("vmap_grad", "jacrev", "jacfwd"),
    )


def _network(layers: int, characters: int) -> Cell:
    sizes = {"l": layers, "c": characters, "b": 14}
    return Cell("lstm", f"l={layers}, c={characters:,}", {"sizes": sizes})


def _hand(vertices: int, measured: int) -> Cell:
    fields = {"sizes": {"vertices": vertices, "measured": measured}, "seeds": "colored"}
    is_nonzero = np.ones((3, 28), bool)  # a coordinate of a residual by the pose and its two shares
    is_nonzero[:, 3:6] = np.eye(3)  # a translation moves one coordinate
    label, nonzeros = f"V={vertices:,}, c={measured:,}", np.flatnonzero(is_nonzero)
    modes = ("vmap_grad", "jacfwd") if measured < 1000 else ("vmap_grad",)
    return Cell("hand_tracking", label, fields, None, nonzeros, is_nonzero.size, modes)


def full_cells() -> list[Cell]:
    """Return the cells of the final measurement, at sizes for which times were published."""
    mixtures = [(2, 50), (10, 50), (20, 50), (32, 50), (64, 25), (64, 100)]
    return [
        *(_mixture(d, k, 1000) for d, k in mixtures),
        *(_mixture(d, k, 10000) for d, k in [(10, 50), (64, 10)]),
        *map(_bundle, [31843, 204472, 287451, 1091386]),
        *(_network(layers, characters) for layers in (2, 4) for characters in (1024, 4096)),
        *(_hand(10000, measured) for measured in (100, 800, 6400, 25600)),
    ]


def small_cells() -> list[Cell]:
    """Return one small cell of each problem, for trials and tests."""
    return [_mixture(5, 3, 21), _bundle(37), _network(3, 9), _hand(50, 7)]


def compile_jax(case: Any, cell: Cell) -> tuple[Callable[[], object], Callable[[object], np.ndarray]]:
    """Compile the JAX program of a case. Return (function that runs it, function from its result to NumPy).

    The NumPy array has the entries of the Jacobian that the C++ program returns, raveled.
    """
    import jax

    from scaling.core import compile_case, workload
    from scaling.core.derivative import describe_derivative

    compiled = compile_case.compile_case(describe_derivative(case, workload.build(case)), jax.devices()[:1])
    run, collect = compile_case.make_runner(compiled)

    def collect_entries(result: object) -> np.ndarray:
        array = collect(result)
        if case.mode == "value":
            return array.reshape(-1)
        if cell.entries is not None and case.seeds != "colored":
            return array.reshape(case.points, -1)[:, cell.entries].reshape(-1)
        has_zeros = cell.problem == "hand_tracking" and case.mode == "vmap_grad"
        return keep_nonzeros(array, cell) if has_zeros else array.reshape(-1)

    return run, collect_entries


def keep_nonzeros(array: np.ndarray, cell: Cell) -> np.ndarray:
    """Return the entries of a derivative that are not always zero, raveled.

    `array` consists of blocks of `cell.block` entries, each with the nonzeros `cell.nonzeros`.
    """
    blocks = array.reshape(-1, cell.block)
    return (blocks if cell.nonzeros is None else blocks[:, cell.nonzeros]).reshape(-1)


def relative_difference(result: np.ndarray, by_hand: np.ndarray) -> float:
    """Return the largest difference of two arrays, relative to the largest entry of the second."""
    return float(np.max(np.abs(result - by_hand)) / np.max(np.abs(by_hand)))


def find_compiler() -> str | None:
    """Return the path of g++, or None if it is not installed."""
    return shutil.which("g++")


def compile_program(problem: str, folder: Path, *more_flags: str) -> Path:
    """Compile the C++ source of a problem into a folder, and return the path of the program."""
    compiler = find_compiler()
    if compiler is None:
        raise FileNotFoundError("g++ is not installed: apt-get install g++")
    path = folder / "-".join([problem, *(flag.strip("-") for flag in more_flags)])
    command = [compiler, "-std=c++17", *FLAGS, *more_flags, f"{FOLDER / problem}.cpp", "-o", str(path)]
    subprocess.run(command, check=True)
    return path


def write_problem(path: Path, case: Any, arrays: Mapping[str, np.ndarray]) -> None:
    """Write a binary file for a C++ program: the sizes of a case as int64, and its inputs as float64."""
    from scaling.core import workload

    sizes = [case.sizes[name] for name in workload.import_workload(case.workload).SIZES] or [case.points]
    with path.open("wb") as file:
        np.array([len(sizes), *sizes], np.int64).tofile(file)
        for array in arrays.values():
            array.astype(np.float64).tofile(file)


class Program:
    """A running C++ program that computes a function and its derivative. `with` ends the program."""

    def __init__(self, path: Path, problem_file: Path) -> None:
        self._process = subprocess.Popen(
            [path, problem_file], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )

    def __enter__(self) -> "Program":
        return self

    def __exit__(self, *_: object) -> None:
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()

    def _ask(self, request: str) -> str:
        self._process.stdin.write(f"{request}\n")
        return self._process.stdout.readline()

    def seconds_per_call(self, function: str, calls: int) -> float:
        """Return the mean seconds of `calls` calls of a function, "value" or "derivative"."""
        return float(self._ask(f"{function} {calls}"))

    def results(self, path: Path, values: int, cell: Cell) -> tuple[np.ndarray, np.ndarray]:
        """Return the last results of the program: values (values,), and nonzero derivatives, raveled.

        The program writes the results to the file `path`.
        """
        self._ask(f"write {path}")
        results = np.fromfile(path, np.float64)
        return results[:values], keep_nonzeros(results[values:], cell)
