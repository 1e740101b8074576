"""CasADi: a symbolic graph (SX) of the derivative of one point, built once and evaluated for every point.

`jit: false` runs the graph in CasADi's virtual machine, `jit: true` as C code that `cc` compiles. The
loop over the points is CasADi's in both, divided among threads. `jacfwd` and `jacrev` fix the direction
of the sweeps that build the graph (`ad_weight`); `passes` counts these, after colouring. The graph leaves
out known zeros and ones; zeros are filled in when the dense result is written, which is timed. In a graph
of scalars a product is a sum, so the formulations of `residual`, and those of `rbf` as the source writes
it, are one. `batch: whole` makes one graph of all points. `compile_seconds` is the building and compiling
of the graph. Computes in float64 alone.
"""

import math
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from scaling.core.case import SECOND, Case
from scaling.core.modes import HESSIAN
from scaling.peers.interface import Prepared, first_reason

PACKAGES = ("casadi",)
THREADS = True
JIT = (False, True)

_WEIGHTS = {"jacfwd": 0, "jacrev": 1, "grad_of_sum": 1}  # ad_weight: 0 is forward, 1 is reverse
_SECOND_WEIGHTS = {  # inner, outer
    "fwd_over_rev": (1, 0), "rev_over_fwd": (0, 1), "rev_over_rev": (1, 1), "fwd_over_fwd": (0, 0),
}  # fmt: skip
_MODES = ("value", *_WEIGHTS, *HESSIAN)
_MOST = 2_000_000  # instructions of a graph
_MOST_COMPILED = 40_000  # of a graph that is compiled: some seconds
_MOST_SWEPT = 400_000_000  # instructions of all sweeps: about half a minute
_MOST_COPIED = 2**27  # numbers of the shared inputs, copied for every point
_GRID = np.arange(-10.0, 11.0)


def unfit(case: Case, workload: Any, sizes: Any) -> str | None:
    """Return why CasADi does not offer a case; None if it does."""
    return first_reason(
        (case.workload not in _FUNCTIONS, f"casadi is written for {', '.join(_FUNCTIONS)}"),
        (case.mode not in _MODES, f"casadi offers {', '.join(_MODES)}"),
        (case.dtype != "float64", "CasADi computes in float64"),
        (case.chunk is not None, "casadi takes all seeds at once"),
        (case.workload == "poisson" and case.ad_mode.is_value,
         "CasADi has no logarithm of the gamma function"),
        (case.batch == "whole" and case.devices > 1, "the graph of a whole batch runs on one core"),
        (case.jit and shutil.which("cc") is None,
         "casadi with jit=true needs a C compiler, cc, on the PATH; jit=false needs none"),
    ) or _refuse_size(case, workload, sizes)  # fmt: skip


def _refuse_size(case: Case, workload: Any, sizes: Any) -> str | None:
    """Return why a graph of scalars is too large for a case; None if it is not."""
    s = {"m": 1, "d": 1, "p": 1, "o": 1} | dict(case.sizes)
    values = {"rbf": s["m"] * (5 + 3 * s["d"]), "linear": 2 * s["p"] * s["o"], "residual": 400, "poisson": 6}
    value = values[case.workload] * (case.points if case.batch == "whole" else 1)
    graph = value * (1 if case.ad_mode.is_value else 3) * (sizes.inputs if case.target == "hessian" else 1)
    most = _MOST_COMPILED if case.jit else _MOST
    copied = case.points * sum(math.prod(draw.shape) for draw in workload.shared.values())
    too_large = f"too large{' to compile' if case.jit else ''}; the most is {most:,}"
    return first_reason(
        (graph > most, f"a graph of some {graph:,} scalars is {too_large}"),
        (value * sizes.passes > _MOST_SWEPT,
         f"{sizes.passes:,} sweeps over some {value:,} scalars take too long"),
        (case.batch != "whole" and copied > _MOST_COPIED,
         f"a copy of the shared inputs for every point takes {copied:,} numbers"),
    )  # fmt: skip


def prepare(
    case: Case, workload: Any, sizes: Any, arrays: Mapping[str, np.ndarray], threads: int
) -> Prepared:
    """Return the graph, with inputs and result in memory that it reads and writes without conversion."""
    began = time.perf_counter()
    points = 1 if case.batch == "whole" else case.points
    each = -(-points // threads)  # points of a thread; the last one repeats the last point
    graph, passes = _graph(case, workload, sizes, arrays)
    mapped = graph.map(each) if each > 1 else graph
    mapped = mapped.map(threads, "thread", threads) if threads > 1 else mapped
    made = time.perf_counter() - began
    buffer, evaluate = mapped.buffer()
    inputs = [_rows(case, workload, name, arrays[name], each * threads) for name in arrays]
    result = np.empty((each * threads, graph.numel_out(0)))
    for i, array in enumerate(inputs):
        buffer.set_arg(i, memoryview(array))  # type: ignore[arg-type]
    buffer.set_res(0, memoryview(result))  # type: ignore[arg-type]

    def call() -> np.ndarray:
        evaluate()
        if buffer.ret():
            raise ArithmeticError(f"CasADi gave up with status {buffer.ret()}")
        return result

    def collect(got: np.ndarray) -> np.ndarray:
        assert len(inputs) == len(arrays)  # keeps the inputs alive: the buffer points at them
        return got[:points]

    return Prepared(call, collect, compile_seconds=made, passes=passes)


def _rows(case: Case, workload: Any, name: str, array: np.ndarray, count: int) -> np.ndarray:
    """Return an input as the graph reads it: float64, a copy for each of `count` points."""
    flat = np.ascontiguousarray(array, np.float64)
    if case.batch == "whole":
        return flat.reshape(1, -1)
    if name in workload.shared:
        return np.tile(flat.reshape(1, -1), (count, 1))
    flat = flat.reshape(len(flat), -1)
    return np.concatenate([flat, np.repeat(flat[-1:], count - len(flat), axis=0)])


def _graph(case: Case, workload: Any, sizes: Any, arrays: Mapping[str, np.ndarray]) -> tuple[Any, int | None]:
    """Return the derivative of a point (or of all, with batch=whole) as a function, and the sweeps that
    built it.

    CasADi stores matrices by columns: each is the transpose of NumPy's here, so that memory is in NumPy's
    order.
    """
    import casadi as ca

    symbols = {}
    for name, array in arrays.items():
        own = name in workload.points and case.batch != "whole"
        symbols[name] = ca.SX.sym(name, *(array.shape[1:] if own else array.shape)[::-1])
    y = ca.vec(_FUNCTIONS[case.workload](ca, case, **symbols))
    x = ca.vertcat(*[ca.vec(symbols[name]) for name in workload.names])
    found, passes = (y, None) if case.ad_mode.is_value else _derivative(ca, case, workload, sizes, y, x)
    inputs = list(symbols.values())
    if not case.jit:
        return ca.Function("point", inputs, [ca.densify(found)]), passes
    with tempfile.TemporaryDirectory() as folder:  # the loaded library outlives it
        # Straight-line scalar code runs as fast with -O1 as with -O3, which takes several times as long to
        # compile.
        flags, directory = ["-O1", "-march=native"], f"{folder}/"
        options = {"compiler": "cc", "flags": flags, "directory": directory, "cleanup": False}
        jit: dict[str, Any] = {"jit": True, "compiler": "shell", "jit_options": options, "jit_cleanup": False}
        return ca.Function("point", inputs, [ca.densify(found)], jit), passes


def _derivative(ca: Any, case: Case, workload: Any, sizes: Any, y: Any, x: Any) -> tuple[Any, int | None]:
    """Return (inputs, outputs) in CasADi's order, (outputs, inputs) in memory, and the number of sweeps."""
    if case.target in SECOND:
        inner, outer = _SECOND_WEIGHTS[case.mode]
        gradient = ca.vec(_jacobian(ca, y, x, inner)[0])
        if case.target == "hvp":
            return ca.jtimes(
                gradient, x, x, bool(outer)
            ), None  # transposed, in reverse: a Hessian is symmetric
        return _jacobian(ca, gradient, x, outer)[0].T, None
    if case.ad_mode.single_seed:
        found, passes = _jacobian(ca, ca.sum1(y), x, _WEIGHTS[case.mode])
        return found.T, passes
    found, passes = _jacobian(ca, y, x, _WEIGHTS[case.mode])
    if workload.reduce:
        found = ca.vertcat(*[ca.sum1(block) for block in ca.vertsplit(found, sizes.outputs)])
    return found.T, passes


def _jacobian(ca: Any, y: Any, x: Any, weight: int) -> tuple[Any, int]:
    """Return the Jacobian by sweeps in one direction, and their number: slices without a common nonzero
    share one.
    """
    found = ca.jacobian(y, x, {"helper_options": {"ad_weight": weight, "ad_weight_sp": weight}})
    pattern = found.sparsity()
    colours = pattern.T.uni_coloring(pattern) if weight else pattern.uni_coloring(pattern.T)
    return found, colours.size2()


def _rbf(ca: Any, case: Case, x: Any, support: Any) -> Any:
    """(d, 1), (d, m) -> (m, 1)."""
    if case.variant == "squared" and case.formulation == "product":
        return ca.exp(ca.mtimes(support.T, x) - 0.5 * (ca.sum1(x**2) + ca.sum1(support**2).T))
    if case.variant == "squared":
        return ca.exp(-0.5 * ca.sum1((ca.repmat(x, 1, support.size2()) - support) ** 2)).T
    return ca.exp(-0.5 * (-2 * x * support + (x + support))).T


def _linear(ca: Any, case: Case, X: Any, W: Any) -> Any:
    """(p, points), (o, p) -> (o, points)."""
    return ca.mtimes(W, X)


def _residual(ca: Any, case: Case, d: Any, m: Any) -> Any:
    """(21, 1), (1, 1) -> (21, 1), or the sum of its squares."""
    f = ca.exp(-1.5 * (ca.SX(_GRID) - m) ** 2)
    rs = d - ca.sum1(d * f) / ca.sum1(f * f) * f
    return ca.sum1(rs**2) if case.variant == "scalar" else rs


def _poisson(ca: Any, case: Case, c: Any, lam: Any) -> Any:
    """log pmf(c; lam) without the terms that do not depend on lam; the sum over terms, for a whole batch."""
    return ca.sum1(c * ca.log(lam) - lam)


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "rbf": _rbf, "linear": _linear, "residual": _residual, "poisson": _poisson,
}  # fmt: skip
