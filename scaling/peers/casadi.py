"""Run cases with CasADi: differentiate a symbolic graph of one point, and evaluate the graph at all points.

The graph consists of CasADi's type SX, whose operations are scalar. With `jit: false`, CasADi's virtual
machine evaluates the graph. With `jit: true`, `cc` compiles the graph as C code. In both cases, CasADi
distributes the points over threads. With `batch: whole`, a single graph contains all points.
`compile_seconds` is the time to differentiate and compile the graph.

A sweep is one forward or reverse differentiation of the graph. It yields one compressed column or row of the
Jacobian. The modes `jacfwd` and `jacrev` select forward and reverse sweeps (`ad_weight`). `passes` is the
number of sweeps after graph coloring. CasADi removes operations with constant zeros and ones from the graph.
The result is a dense array, and the measured time includes the writing of its zeros.

A matrix product becomes a sum of scalar products. Therefore the formulations of `residual` have equal graphs,
and so do the formulations of `rbf` with `variant: source`.
"""

import math
import shutil
import tempfile
import time
from typing import Any

import numpy as np

from scaling.core.case import Case
from scaling.peers import formulas
from scaling.peers.interface import Prepared

PACKAGES = ("casadi",)
THREADS = True
COMPILES = True

_WEIGHTS = {"jacfwd": 0, "jacrev": 1, "grad_of_sum": 1}  # ad_weight: 0 is forward, 1 is reverse
_MAX_INSTRUCTIONS = 2_000_000  # maximum number of instructions in a graph that is not compiled
_MAX_COMPILED = 40_000  # maximum number in a compiled graph; the compilation takes several seconds
_MAX_SWEPT = 400_000_000  # maximum number of instructions in all sweeps, which take about half a minute


def reason_to_skip(case: Case, workload: Any, sizes: Any) -> str | None:
    """Return why CasADi cannot run a case, such as "CasADi computes in float64", or None if it can."""
    is_whole, is_value = case.batch == "whole", case.ad_mode.is_value
    m, d, p, o = (case.sizes.get(name, 1) for name in "mdpo")
    instructions_per_point = {"rbf": m * (5 + 3 * d), "linear": 2 * p * o, "residual": 400, "poisson": 6}
    value_instructions = instructions_per_point.get(case.workload, 0) * (case.points if is_whole else 1)
    graph_instructions = value_instructions * (1 if is_value else 3)
    max_scalars = _MAX_COMPILED if case.jit else _MAX_INSTRUCTIONS
    too_large = f"too large{' to compile' if case.jit else ''}; the limit is {max_scalars:,}"
    return formulas.reason_to_skip(
        case, ("value", *_WEIGHTS),
        (case.dtype != "float64", "CasADi computes in float64"),
        (case.chunk is not None, "casadi computes all seeds at once; omit chunk"),
        (case.workload == "poisson" and is_value, "CasADi has no logarithm of the gamma function"),
        (is_whole and case.devices > 1, "the graph of a whole batch runs on one core"),
        (case.jit and shutil.which("cc") is None,
         "casadi with jit=true needs a C compiler, cc, on the PATH; jit=false needs none"),
        (graph_instructions > max_scalars, f"a graph of about {graph_instructions:,} scalars is {too_large}"),
        (value_instructions * sizes.passes > _MAX_SWEPT,
         f"{sizes.passes:,} sweeps over about {value_instructions:,} scalars take too long"),
    )  # fmt: skip


def prepare(case: Case, workload: Any, sizes: Any, arrays: dict[str, np.ndarray], threads: int) -> Prepared:
    """Return the functions that compute the value or derivative of a case with CasADi on `threads` cores."""
    points = 1 if case.batch == "whole" else case.points
    per_thread = -(-points // threads)  # the last thread repeats the last point as padding
    symbols, y = _trace(case, workload, sizes, arrays)
    start = time.perf_counter()
    graph, passes = _build_graph(case, workload, sizes, symbols, y)
    mapped = graph.map(per_thread) if per_thread > 1 else graph
    mapped = mapped.map(threads, "thread", threads) if threads > 1 else mapped
    seconds = time.perf_counter() - start
    buffer, evaluate = mapped.buffer()
    inputs = [_pad_rows(case, workload, name, arrays[name], per_thread * threads) for name in arrays]
    result = np.empty((per_thread * threads, graph.numel_out(0)))
    for i, array in enumerate(inputs):
        buffer.set_arg(i, memoryview(array))  # type: ignore[arg-type]
    buffer.set_res(0, memoryview(result))  # type: ignore[arg-type]

    def call() -> np.ndarray:
        evaluate()
        if buffer.ret():
            raise ArithmeticError(f"CasADi failed with status {buffer.ret()}")
        return result

    def collect(padded: np.ndarray) -> np.ndarray:
        assert len(inputs) == len(arrays)  # keeps a reference to the arrays that the buffer points to
        return padded[:points]

    return Prepared(call, collect, compile_seconds=seconds, passes=passes)


def _pad_rows(case: Case, workload: Any, name: str, array: np.ndarray, count: int) -> np.ndarray:
    """Return the input `name` as a float64 array with `count` rows, one row per point.

    The last point is repeated as padding. A shared input is repeated in every row. With batch=whole, a single
    row contains all values of the input.
    """
    is_per_point = name in workload.points and case.batch != "whole"
    rows = np.ascontiguousarray(array, np.float64).reshape(case.points if is_per_point else 1, -1)
    return np.pad(rows, ((0, count - len(rows)), (0, 0)), mode="edge")


def _trace(
    case: Case, workload: Any, sizes: Any, arrays: dict[str, np.ndarray]
) -> tuple[dict[str, Any], Any]:
    """Return the symbolic inputs of a case by name, and the symbolic outputs of its function.

    Each input, and the outputs, are a column vector of symbols in row-major order. The vectors contain a
    single point or, with batch=whole, all points.
    """
    import casadi as ca

    symbols, inputs = {}, {}
    for name, array in arrays.items():
        is_one_point = name in workload.points and case.batch != "whole"
        shape = (1, *array.shape[1:]) if is_one_point else array.shape
        symbols[name] = ca.SX.sym(name, math.prod(shape))
        element = np.frompyfunc(symbols[name].__getitem__, 1, 1)
        inputs[name] = element(np.arange(math.prod(shape)).reshape(shape))  # an array of scalar symbols
    y = formulas.formula_of(case, np)(**inputs)
    return symbols, ca.vertcat(*([np.sum(y)] if sizes.summed else y.ravel()))


def _build_graph(
    case: Case, workload: Any, sizes: Any, symbols: dict[str, Any], y: Any
) -> tuple[Any, int | None]:
    """Return the CasADi function that computes a case, and its number of sweeps (None if mode=value).

    `symbols` contains the symbolic inputs by name, and `y` the symbolic outputs. A sweep is one forward or
    reverse differentiation of the graph.
    """
    import casadi as ca

    x = ca.vertcat(*[symbols[name] for name in workload.names])
    result, passes = (y, None) if case.ad_mode.is_value else _derivative(ca, case, workload, sizes, y, x)
    inputs, outputs = list(symbols.values()), [ca.densify(result)]
    if not case.jit:
        return ca.Function("point", inputs, outputs), passes
    with tempfile.TemporaryDirectory() as folder:  # the loaded library remains usable without its file
        options = {
            "compiler": "cc",
            "flags": ["-O1", "-march=native"],  # scalar code is as fast as with -O3, and compiles faster
            "directory": f"{folder}/",
            "cleanup": False,
        }
        jit: dict[str, Any] = {"jit": True, "compiler": "shell", "jit_options": options, "jit_cleanup": False}
        return ca.Function("point", inputs, outputs, jit), passes


def _derivative(ca: Any, case: Case, workload: Any, sizes: Any, y: Any, x: Any) -> tuple[Any, int]:
    """Return the transposed derivative of `y` with respect to `x`, and the number of sweeps.

    The transposed derivative is a CasADi matrix. If the workload has a reduction, the derivative is summed
    over the outputs of each point. A sweep is one forward or reverse differentiation. `ca` is the module
    casadi.
    """
    ad_weight, y = _WEIGHTS[case.mode], ca.sum1(y) if case.ad_mode.single_seed else y
    jacobian = ca.jacobian(y, x, {"helper_options": {"ad_weight": ad_weight, "ad_weight_sp": ad_weight}})
    pattern = jacobian.sparsity()
    colors = pattern.T.uni_coloring(pattern) if ad_weight else pattern.uni_coloring(pattern.T)
    if workload.reduce and not case.ad_mode.single_seed:
        jacobian = ca.vertcat(*[ca.sum1(block) for block in ca.vertsplit(jacobian, sizes.outputs)])
    # The transposed matrix in column-major order is a row-major array of shape (outputs, inputs).
    return jacobian.T, colors.size2()
