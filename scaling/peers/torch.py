"""Peer: PyTorch on the CPU, with `torch.func.jvp`, `torch.autograd.grad`, and `torch.func.vmap` over seeds.

The function takes the whole batch with a leading axis of points, so that no vmap over points is needed. The
result is equal to vmap(jacfwd(f)) or vmap(jacrev(f)), and in most cases takes 0.4 to 0.9 times as long. A
single seed is computed without vmap. `chunk` is the chunk_size of the vmap over seeds.

With `jit: false`, PyTorch runs eagerly. With `jit: true`, the derivative is compiled by `torch.compile`.
Reverse mode then uses `torch.func.vjp`, because `torch.compile` does not support `torch.autograd.grad`.
`compile_seconds` is the time of the first call. The compiler is initialized before, and its caches are
disabled.
"""

import importlib
import math
import shutil
import sysconfig
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from scaling.core.case import Case
from scaling.core.memory import available_bytes
from scaling.core.modes import COTANGENT
from scaling.peers import formulas
from scaling.peers.interface import Prepared, first_reason

PACKAGES = ("torch",)
THREADS = True
JIT = (False, True)

_MODES = ("value", "jacfwd", "jacrev", "grad_of_sum")
_BYTES = {"float32": 4, "float64": 8, "bfloat16": 2}
_LIVE_ARRAYS = {"rbf": 2, "linear": 2, "residual": 6, "poisson": 4}  # measured arrays in memory per seed

Arrays = tuple[Any, ...]


def reason_to_skip(case: Case, workload: Any, sizes: Any) -> str | None:
    has_compiler = any(shutil.which(name) for name in ("g++", "c++", "clang++"))
    has_headers = Path(sysconfig.get_paths()["include"], "Python.h").exists()
    needed, available = _needed_bytes(case, workload, sizes), available_bytes() or math.inf
    memory = f"needs about {needed / 1e9:.3g} GB, has {available / 1e9:.3g} GB"
    return first_reason(
        formulas.check_workload(case),
        (case.mode not in _MODES, f"torch offers {', '.join(_MODES)}"),
        (case.jit and not has_compiler,
         "torch.compile needs a C++ compiler, g++, c++ or clang++, on the PATH; jit=false needs none"),
        (case.jit and not has_headers,
         "torch.compile needs Python's headers (Debian: python3-dev); jit=false needs none"),
        (needed > available, f"{memory}; a smaller chunk may need less"),
    )  # fmt: skip


def _needed_bytes(case: Case, workload: Any, sizes: Any) -> int:
    """Return an estimate of the bytes for graph, seeds and derivative. A compiled case usually needs less."""
    size = {name: math.prod(spec.shape) for name, spec in workload.inputs.items()}
    support = size.get("support", 0) if case.formulation == "rowwise" else 0
    width = max(sizes.values, size.get("d", 0), support)  # elements of the largest intermediate of a point
    if case.ad_mode.seed == COTANGENT:
        inputs = sum(size[name] for name in workload.names)
        slice_size = inputs * (1 if case.batch == "whole" and not sizes.summed else case.points)
    else:
        slice_size = case.points * (1 if workload.reduce else sizes.values)
    seeds_at_once = min(case.chunk or sizes.seeds, sizes.seeds)
    graph = (8 + _LIVE_ARRAYS.get(case.workload, 0) * seeds_at_once) * case.points * width
    return _BYTES[case.dtype] * (graph + sizes.seeds**2 + sizes.seeds * slice_size)


def prepare(case: Case, workload: Any, sizes: Any, arrays: dict[str, np.ndarray], threads: int) -> Prepared:
    """Return a `Prepared` object whose `call` computes the derivative. With `jit: true`, it is compiled."""
    import torch

    from scaling.core.shape import result_shape  # imports JAX

    torch.set_num_threads(threads)
    if torch.get_num_interop_threads() != 1:
        torch.set_num_interop_threads(1)
    torch.set_float32_matmul_precision("highest")
    tensors = {name: _to_tensor(torch, array) for name, array in arrays.items()}
    x = tuple(_prepare_input(case, workload, name, tensors[name]) for name in workload.names)
    derivative, seconds = _make_derivative(torch, case, workload, sizes, tensors, x), None
    if case.jit:
        derivative, seconds = _compile(torch, derivative, x)
    points, rows, columns = result_shape(case, workload, sizes)
    slices, order = (rows, (1, 0, 2)) if case.ad_mode.seed == COTANGENT else (columns, (1, 2, 0))

    def collect(result: Arrays) -> np.ndarray:
        parts = [part.detach().to(torch.promote_types(part.dtype, torch.float32)).numpy() for part in result]
        return np.concatenate([part.reshape(slices, points, -1) for part in parts], axis=2).transpose(order)

    return Prepared(lambda: derivative(*x), collect, seconds, sizes.passes or None)


def _to_tensor(torch: Any, array: np.ndarray) -> Any:
    """Return a copy of an array as a tensor of the same dtype."""
    if array.dtype.name == "bfloat16":  # torch cannot read this dtype from NumPy
        return torch.from_numpy(array.astype(np.float32)).to(torch.bfloat16)
    return torch.from_numpy(np.array(array))


def _prepare_input(case: Case, workload: Any, name: str, tensor: Any) -> Any:
    """Return the tensor of a differentiated input, with `requires_grad` set if eager reverse mode needs it.

    In reverse mode with `batch: vmap`, a shared input is expanded along a new axis of points, so that its
    gradient is not summed over points.
    """
    if name in workload.shared and case.batch == "vmap" and case.ad_mode.seed == COTANGENT:
        tensor = tensor.expand(case.points, *tensor.shape)
    return tensor.detach().requires_grad_(case.ad_mode.seed == COTANGENT and not case.jit)


def _compile(torch: Any, derivative: Callable[..., Arrays], x: Arrays) -> tuple[Callable[..., Arrays], float]:
    """Return (compiled derivative, time in seconds of its first call, which compiles it)."""
    inductor: Any = importlib.import_module("torch._inductor.config")
    compiler: Any = importlib.import_module("torch.compiler.config")
    inductor.compile_threads = 1
    compiler.force_disable_caches = True
    torch.compiler.reset()  # discard the programs of other cases
    torch.compile(lambda a: a + 1)(torch.ones(1))  # initializes the compiler
    compiled = torch.compile(derivative, fullgraph=True, dynamic=False)
    start = time.perf_counter()
    compiled(*x)
    return compiled, time.perf_counter() - start


def _make_derivative(
    torch: Any, case: Case, workload: Any, sizes: Any, tensors: Mapping[str, Any], x: Arrays
) -> Callable[..., Arrays]:
    """Return a function from the inputs x to a tuple of tensors with the columns or rows of the derivative.

    The tuple contains a single tensor or one for each input. The shape of a tensor is (seeds, points, ...),
    or (points, ...) if there is a single seed. The seeds are created once, outside of the returned function,
    because creating them in a compiled function takes up to thirty times as long.
    """
    f = _make_function(torch, case, workload, sizes, tensors)
    is_common = case.batch == "vmap"  # all points have the same seed
    if case.ad_mode.is_value:
        return lambda *x: (f(*x),)
    if case.ad_mode.seed == COTANGENT:
        y = f(*x).detach()
        ones = (torch.ones_like(y)[None],)
        cotangents = ones if case.ad_mode.single_seed else _unit_seeds(torch, (y,), [is_common])
        return lambda *x: _rows(torch, case, workload, f, x, cotangents)
    tangents = _unit_seeds(torch, x, [is_common and name in workload.points for name in workload.names])
    return lambda *x: _columns(torch, case, workload, f, x, tangents)


def _make_function(
    torch: Any, case: Case, workload: Any, sizes: Any, tensors: Mapping[str, Any]
) -> Callable[..., Any]:
    """Return the function that maps the differentiated inputs of a batch to the outputs or their sum."""
    dtype = getattr(torch, case.dtype)
    log_gamma = lambda k: torch.special.gammaln(k.to(dtype))  # noqa: E731 gammaln of integers is float32
    formula = formulas.function(case, torch, log_gamma if case.ad_mode.is_value else None)

    def function(*x: Any) -> Any:
        y = formula(**{**tensors, **dict(zip(workload.names, x, strict=True))})
        return y.sum() if sizes.summed else y

    return function


def _unit_seeds(torch: Any, like: Arrays, is_common: list[bool]) -> Arrays:
    """Return the unit tangents or cotangents of several tensors, each of shape (seeds, *shape of the tensor).

    `is_common` specifies for each tensor whether a seed is the same for all points.
    """
    shapes = [(1, *a.shape[1:]) if common else a.shape for a, common in zip(like, is_common, strict=True)]
    sizes = [math.prod(shape) for shape in shapes]
    rows = torch.eye(sum(sizes), dtype=like[0].dtype).split(sizes, dim=1)
    seeds = [row.reshape(len(row), *shape) for row, shape in zip(rows, shapes, strict=True)]
    return tuple(seed.expand(len(seed), *a.shape) for seed, a in zip(seeds, like, strict=True))


def _map_seeds(torch: Any, case: Case, linear_map: Callable[[Arrays], Arrays], seeds: Arrays) -> Arrays:
    """Return the results of a linear map for all seeds, with a leading axis of seeds if there are several."""
    if len(seeds[0]) == 1:
        return linear_map(tuple(seed[0].contiguous() for seed in seeds))
    return torch.func.vmap(linear_map, chunk_size=case.chunk)(seeds)


def _columns(
    torch: Any, case: Case, workload: Any, f: Callable[..., Any], x: Arrays, tangents: Arrays
) -> Arrays:
    """Return the columns of the Jacobian, computed by one JVP per seed."""
    from torch.autograd import forward_ad

    def jvp(v: Arrays) -> Any:
        if case.jit or len(tangents[0]) > 1:
            return torch.func.jvp(f, x, v)[1]
        with forward_ad.dual_level():  # takes 0.7 times as long as torch.func
            return forward_ad.unpack_dual(f(*map(forward_ad.make_dual, x, v))).tangent

    return _map_seeds(torch, case, lambda v: (jvp(v).sum(-1) if workload.reduce else jvp(v),), tangents)


def _rows(
    torch: Any, case: Case, workload: Any, f: Callable[..., Any], x: Arrays, cotangents: Arrays
) -> Arrays:
    """Return the rows of the Jacobian, or their sums over the outputs of each point, by one VJP per seed."""
    if case.jit:
        pullback = torch.func.vjp(lambda *z: (f(*z),), *x)[1]
    else:
        y = f(*x)
        pullback = lambda v: torch.autograd.grad((y,), x, v, retain_graph=True)  # noqa: E731
    rows = _map_seeds(torch, case, pullback, cotangents)
    if not workload.reduce or len(cotangents[0]) == 1:
        return rows
    if case.batch == "whole":
        return tuple(row.reshape(case.points, -1, *row.shape[1:]).sum(1) for row in rows)
    return tuple(row.sum(0) for row in rows)
