"""CasADi: a symbolic graph (SX) of the derivative of one point, built once and evaluated for every point.

`jit: false` runs the graph in CasADi's virtual machine, `jit: true` as the C code that CasADi makes of it, translated by `cc`;
the loop over the points is CasADi's in both, and threads share them out. `jacfwd` and `jacrev` fix the direction of the sweeps
that build the graph (`ad_weight`); `passes` counts these, after colouring. What CasADi knows to be zero or one is left out of the
graph, and the zeros are filled in where the dense result is written, inside what is timed. In a graph of scalars a product is the
sum that it stands for, so that the formulations of `residual`, and those of `rbf` as the source writes it, are one. With
`batch: whole` there is one graph of all points. `compile_seconds` is the building of the graph and its translation. Computes in
float64 alone.
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
from scaling.peers.interface import Prepared

PACKAGES = ("casadi",)
THREADS = True
JIT = (False, True)

_WEIGHTS = {"jacfwd": 0, "jacrev": 1, "grad_of_sum": 1}  # ad_weight: 0 is forward, 1 is reverse
_SECOND_WEIGHTS = {
    "fwd_over_rev": (1, 0),
    "rev_over_fwd": (0, 1),
    "rev_over_rev": (1, 1),
    "fwd_over_fwd": (0, 0),
}  # inner, outer
_MODES = ("value", *_WEIGHTS, *HESSIAN)
_MOST = 2_000_000  # instructions of a graph
_MOST_COMPILED = 40_000  # of one that a C compiler is given: some seconds
_MOST_SWEPT = 400_000_000  # that the sweeps go over while the graph is built: about half a minute
_MOST_COPIED = 2**27  # numbers of the shared inputs, of which every point is handed a copy
_GRID = np.arange(-10.0, 11.0)


def unfit(case: Case, workload: Any, sizes: Any) -> str | None:
    """Why CasADi does not offer a case; None if it does."""
    if case.workload not in _FUNCTIONS:
        return f"casadi is written for {', '.join(_FUNCTIONS)}"
    if case.mode not in _MODES:
        return f"casadi offers {', '.join(_MODES)}"
    if case.dtype != "float64":
        return "CasADi computes in float64"
    if case.chunk is not None:
        return "casadi takes all seeds at once"
    if case.workload == "poisson" and case.ad_mode.is_value:
        return "CasADi has no logarithm of the gamma function"
    if case.batch == "whole" and case.devices > 1:
        return "the graph of a whole batch runs on one core"
    if case.jit and shutil.which("cc") is None:
        return "casadi with jit=true needs a C compiler, cc, on the PATH; jit=false needs none"
    return _too_large(case, workload, sizes)


def _too_large(case: Case, workload: Any, sizes: Any) -> str | None:
    """The sizes for which a graph of scalars is absurd, told from the sizes alone."""
    s = {"m": 1, "d": 1, "p": 1, "o": 1} | dict(case.sizes)
    value = {"rbf": s["m"] * (5 + 3 * s["d"]), "linear": 2 * s["p"] * s["o"], "residual": 400, "poisson": 6}[
        case.workload
    ]
    value *= case.points if case.batch == "whole" else 1
    graph = value * (1 if case.ad_mode.is_value else 3) * (sizes.inputs if case.target == "hessian" else 1)
    most = _MOST_COMPILED if case.jit else _MOST
    copied = case.points * sum(math.prod(draw.shape) for draw in workload.shared.values())
    if graph > most:
        return f"a graph of some {graph:,} scalars is too large{' to compile' if case.jit else ''}; the most is {most:,}"
    if value * sizes.passes > _MOST_SWEPT:
        return f"{sizes.passes:,} sweeps over some {value:,} scalars take too long"
    if case.batch != "whole" and copied > _MOST_COPIED:
        return f"a copy of the shared inputs for every point takes {copied:,} numbers"
    return None


def prepare(
    case: Case, workload: Any, sizes: Any, arrays: Mapping[str, np.ndarray], threads: int
) -> Prepared:
    """The graph, and its inputs and result in memory that it reads and writes without conversion."""
    began = time.perf_counter()
    points = 1 if case.batch == "whole" else case.points
    each = -(
        -points // threads
    )  # points of a thread; the last one repeats the last point until it has as many
    graph, passes = _graph(case, workload, sizes, arrays)
    mapped = graph.map(each) if each > 1 else graph
    mapped = mapped.map(threads, "thread", threads) if threads > 1 else mapped
    made = time.perf_counter() - began
    buffer, evaluate = mapped.buffer()
    held = [_rows(case, workload, name, arrays[name], each * threads) for name in arrays]
    result = np.empty((each * threads, graph.numel_out(0)))
    for i, array in enumerate(held):
        buffer.set_arg(i, memoryview(array))  # type: ignore[arg-type]
    buffer.set_res(0, memoryview(result))  # type: ignore[arg-type]

    def call() -> np.ndarray:
        evaluate()
        if buffer.ret():
            raise ArithmeticError(f"CasADi gave up with status {buffer.ret()}")
        return result

    def collect(got: np.ndarray) -> np.ndarray:
        assert len(held) == len(
            arrays
        )  # the buffer points at them: they live as long as what is returned here
        return got[:points]

    return Prepared(call, collect, compile_seconds=made, passes=passes)


def _rows(case: Case, workload: Any, name: str, array: np.ndarray, count: int) -> np.ndarray:
    """An input as the graph reads it: float64, for every point its own copy, `count` of them one after another."""
    flat = np.ascontiguousarray(array, np.float64)
    if case.batch == "whole":
        return flat.reshape(1, -1)
    if name in workload.shared:
        return np.tile(flat.reshape(1, -1), (count, 1))
    flat = flat.reshape(len(flat), -1)
    return np.concatenate([flat, np.repeat(flat[-1:], count - len(flat), axis=0)])


def _graph(case: Case, workload: Any, sizes: Any, arrays: Mapping[str, np.ndarray]) -> tuple[Any, int | None]:
    """What a point asks for (or all of them, with batch=whole) as a function of its inputs, and the sweeps it took to build.

    CasADi keeps matrices by columns: each stands here for its transpose, so that memory is in NumPy's order.
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
    with tempfile.TemporaryDirectory() as folder:  # the library that is loaded from it stays
        # Straight-line scalar code runs as fast with -O1 as with -O3, which takes several times as long to translate it.
        options = {
            "compiler": "cc",
            "flags": ["-O1", "-march=native"],
            "directory": f"{folder}/",
            "cleanup": False,
        }
        jit: dict[str, Any] = {"jit": True, "compiler": "shell", "jit_options": options, "jit_cleanup": False}
        return ca.Function("point", inputs, [ca.densify(found)], jit), passes


def _derivative(ca: Any, case: Case, workload: Any, sizes: Any, y: Any, x: Any) -> tuple[Any, int | None]:
    """(inputs, outputs) as CasADi keeps it, which is (outputs, inputs) in memory, and how many sweeps made it."""
    if case.target in SECOND:
        inner, outer = _SECOND_WEIGHTS[case.mode]
        gradient = ca.vec(_jacobian(ca, y, x, inner)[0])
        if case.target == "hvp":
            return ca.jtimes(
                gradient, x, x, bool(outer)
            ), None  # transposed, for reverse: a Hessian is symmetric
        hessian, _ = _jacobian(ca, gradient, x, outer)
        return hessian.T, None
    if case.ad_mode.single_seed:
        found, passes = _jacobian(ca, ca.sum1(y), x, _WEIGHTS[case.mode])
        return found.T, passes
    found, passes = _jacobian(ca, y, x, _WEIGHTS[case.mode])
    if workload.reduce:
        found = ca.vertcat(*[ca.sum1(of_point) for of_point in ca.vertsplit(found, sizes.outputs)])
    return found.T, passes


def _jacobian(ca: Any, y: Any, x: Any, weight: int) -> tuple[Any, int]:
    """The Jacobian by sweeps of one direction, and how many: slices without a common nonzero share one."""
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
    """log pmf(c; lam) but for what does not depend on lam; the sum over terms, for a whole batch."""
    return ca.sum1(c * ca.log(lam) - lam)


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "rbf": _rbf,
    "linear": _linear,
    "residual": _residual,
    "poisson": _poisson,
}
