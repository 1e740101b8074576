"""PyTorch: forward mode by `torch.func.jvp`, reverse mode by `torch.autograd.grad`, many seeds at once by
`torch.func.vmap`.

The points are a leading axis of the function, which needs no `vmap` over them: the same numbers as
vmap(jacfwd(f)) and vmap(jacrev(f)), mostly in 0.4 to 0.9 of their time. A single seed is not batched.
`chunk` is the chunk_size of the `vmap` over seeds. `jit: false` is eager; `jit: true` is `torch.compile`,
which takes torch.func alone: reverse mode is then `torch.func.vjp`. On the CPU only. `compile_seconds` is
the first call, with a warm compiler and no caches.
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

from scaling.core.case import SECOND, Case
from scaling.core.memory import available_bytes
from scaling.core.modes import COTANGENT, HESSIAN
from scaling.peers import formulas
from scaling.peers.interface import Prepared, first_reason

PACKAGES = ("torch",)
THREADS = True
JIT = (False, True)

_MODES = ("value", "jacfwd", "jacrev", "grad_of_sum", *HESSIAN)
_BYTES = {"float32": 4, "float64": 8, "bfloat16": 2}
_ALIVE = {"rbf": 2, "linear": 2, "residual": 6, "poisson": 4}  # intermediates of a seed at once, as measured
_ALIVE_TWICE = 36  # of a seed of a Hessian

Arrays = tuple[Any, ...]
LinearMap = Callable[[Arrays], Arrays]


def unfit(case: Case, workload: Any, sizes: Any) -> str | None:
    """Return why PyTorch does not offer a case; None if it does."""
    functions = f"torch is given the functions {', '.join(formulas.KNOWN)}"
    compiler = any(shutil.which(name) for name in ("g++", "c++", "clang++"))
    headers = Path(sysconfig.get_paths()["include"], "Python.h").exists()
    if reason := first_reason(
        (case.workload not in formulas.KNOWN, f"{functions}; it cannot take one that is written in JAX"),
        (case.mode not in _MODES, f"torch offers {', '.join(_MODES)}"),
        (case.target in SECOND and case.workload not in ("residual", "poisson"),
         "torch takes the Hessians of residual (variant scalar) and poisson"),
        (case.jit and case.ad_mode.pass_per_output,
         "torch.compile crashes on one torch.func.jvp inside another; jit=false runs it"),
        (case.jit and not compiler,
         "torch.compile needs a C++ compiler, g++, c++ or clang++, on the PATH; jit=false needs none"),
        (case.jit and not headers,
         "torch.compile needs Python's headers (Debian: python3-dev); jit=false needs none"),
    ):  # fmt: skip
        return reason
    needs, has = _needed_bytes(case, workload, sizes), available_bytes() or math.inf
    text = f"needs about {needs / 1e9:.3g} GB, has {has / 1e9:.3g} GB; a smaller chunk may need less"
    return text if needs > has else None


def _needed_bytes(case: Case, workload: Any, sizes: Any) -> int:
    """Return the bytes of the function's graph, the seeds, their intermediates at a time, and all slices.

    For eager execution; torch.compile often needs less, but not always.
    """
    size = {name: math.prod(draw.shape) for name, draw in {**workload.points, **workload.shared}.items()}
    by, mode = sum(size[name] for name in workload.names), case.ad_mode
    reverse, second = mode.seed == COTANGENT, mode.order == 2
    support = size.get("support", 0) if case.formulation == "rowwise" else 0
    wide = max(sizes.values, size.get("d", 0), support)  # of one point
    rows = by * (1 if case.batch == "whole" and not sizes.summed else case.points)
    slices = rows if reverse or second else case.points * (1 if workload.reduce else sizes.values)
    at_once = min(case.chunk or sizes.seeds, sizes.seeds) * (sizes.passes // max(sizes.seeds, 1))
    alive = _ALIVE_TWICE if second and not mode.pass_per_output else _ALIVE[case.workload]
    graph = (8 + alive * at_once) * case.points * wide
    return _BYTES[case.dtype] * (graph + sizes.seeds**2 + sizes.seeds * slices)


def prepare(
    case: Case, workload: Any, sizes: Any, arrays: Mapping[str, np.ndarray], threads: int
) -> Prepared:
    """Return the derivative as a function of existing tensors, compiled if the case asks for it."""
    import torch

    from scaling.core.shape import result_shape  # imports JAX

    torch.set_num_threads(threads)
    if torch.get_num_interop_threads() != 1:
        torch.set_num_interop_threads(1)
    torch.set_float32_matmul_precision("highest")
    named = {name: _tensor(torch, array) for name, array in arrays.items()}
    x = tuple(_prepare_input(case, workload, name, named[name]) for name in workload.names)
    derivative, seconds = _derivative(torch, case, workload, sizes, named, x), None
    if case.jit:
        derivative, seconds = _compile(torch, derivative, x)
    points, rows, columns = result_shape(case, workload, sizes)
    slices, order = (rows, (1, 0, 2)) if case.ad_mode.seed == COTANGENT else (columns, (1, 2, 0))

    def collect(result: Arrays) -> np.ndarray:
        parts = [part.detach().to(torch.promote_types(part.dtype, torch.float32)).numpy() for part in result]
        return np.concatenate([part.reshape(slices, points, -1) for part in parts], axis=2).transpose(order)

    return Prepared(lambda: derivative(*x), collect, seconds, sizes.passes or None)


def _tensor(torch: Any, array: np.ndarray) -> Any:
    if array.dtype.name == "bfloat16":  # a dtype of NumPy's that torch does not read
        return torch.from_numpy(array.astype(np.float32)).to(torch.bfloat16)
    return torch.from_numpy(np.array(array))


def _prepare_input(case: Case, workload: Any, name: str, tensor: Any) -> Any:
    """Return an input to differentiate by; a copy for each point where each has rows of its own by a
    shared input.
    """
    if name in workload.shared and case.batch == "vmap" and case.ad_mode.seed == COTANGENT:
        tensor = tensor.expand(case.points, *tensor.shape)
    by_autograd = not case.jit and (case.ad_mode.seed == COTANGENT or case.mode == "rev_over_rev")
    return tensor.detach().requires_grad_(by_autograd)


def _compile(torch: Any, derivative: Callable[..., Arrays], x: Arrays) -> tuple[Callable[..., Arrays], float]:
    """Return the compiled derivative, and the seconds of its first call, without caches and other
    processes.
    """
    inductor: Any = importlib.import_module("torch._inductor.config")
    compiler: Any = importlib.import_module("torch.compiler.config")
    inductor.compile_threads = 1
    compiler.force_disable_caches = True
    torch.compiler.reset()  # forget other cases
    torch.compile(lambda a: a + 1)(torch.ones(1))  # starts the compiler
    compiled = torch.compile(derivative, fullgraph=True, dynamic=False)
    began = time.perf_counter()
    compiled(*x)
    return compiled, time.perf_counter() - began


def _derivative(
    torch: Any, case: Case, workload: Any, sizes: Any, named: Mapping[str, Any], x: Arrays
) -> Callable[..., Arrays]:
    """Return the map from x to slices of the derivative, in one array or one for each input: (seeds,
    points, ...).

    One seed has no axis. Seeds are made before the call: inside, a compiled derivative takes up to thirty
    times as long.
    """
    f = _function(torch, case, workload, sizes, named)
    common = case.batch == "vmap"  # all points have the same seed
    if case.ad_mode.is_value:
        return lambda *x: (f(*x),)
    if case.ad_mode.seed == COTANGENT:
        y = f(*x).detach()
        ones = (torch.ones_like(y)[None],)
        cotangents = ones if case.ad_mode.single_seed else _identity(torch, (y,), [common])
        return lambda *x: _rows(torch, case, workload, f, x, cotangents)
    tangents = _identity(torch, x, [common and name in workload.points for name in workload.names])
    if case.ad_mode.order == 1:
        return lambda *x: _columns(torch, case, workload, f, x, tangents)
    if case.target == "hvp":
        return lambda *x: _hessian(torch, case, f, x, tangents)(x)
    return lambda *x: _over_seeds(torch, case, _hessian(torch, case, f, x, tangents), tangents)


def _function(
    torch: Any, case: Case, workload: Any, sizes: Any, named: Mapping[str, Any]
) -> Callable[..., Any]:
    """Return the function of the batch by the inputs `x`: (points, outputs), (points,) or, for a summed
    batch, ().
    """
    dtype = getattr(torch, case.dtype)
    log_gamma = lambda k: torch.special.gammaln(k.to(dtype))  # noqa: E731 of integers it would be a float32
    formula = formulas.function(case, torch, log_gamma if case.ad_mode.is_value else None)
    by_name = _linear if case.workload == "linear" else formula

    def function(*x: Any) -> Any:
        y = by_name(**{**named, **dict(zip(workload.names, x, strict=True))})
        return y.sum() if sizes.summed else y

    return function


def _linear(X: Any, W: Any) -> Any:
    """(points, p), (p, o) or (points, p, o) -> (points, o). One product of matrices is faster than one
    for each point.
    """
    return X @ W if W.dim() == 2 else (X[:, None, :] @ W)[:, 0, :]


def _identity(torch: Any, like: Arrays, common: list[bool]) -> Arrays:
    """Return the rows of an identity matrix as seeds, (seeds, *shape) for each array, the same for all
    points if `common`.
    """
    shapes = [(1, *a.shape[1:]) if same else a.shape for a, same in zip(like, common, strict=True)]
    sizes = [math.prod(shape) for shape in shapes]
    rows = torch.eye(sum(sizes), dtype=like[0].dtype).split(sizes, dim=1)
    seeds = [row.reshape(len(row), *shape) for row, shape in zip(rows, shapes, strict=True)]
    return tuple(seed.expand(len(seed), *a.shape) for seed, a in zip(seeds, like, strict=True))


def _over_seeds(torch: Any, case: Case, linear_map: LinearMap, seeds: Arrays) -> Arrays:
    """Return the slices of a linear map for every seed, seeds leading; one seed alone is not batched."""
    if len(seeds[0]) == 1:
        return linear_map(tuple(seed[0].contiguous() for seed in seeds))
    return torch.func.vmap(linear_map, chunk_size=case.chunk)(seeds)


def _columns(
    torch: Any, case: Case, workload: Any, f: Callable[..., Any], x: Arrays, tangents: Arrays
) -> Arrays:
    """Return columns by one JVP per seed. Eager with one seed, dual numbers take 0.7 of the time of
    torch.func.
    """
    from torch.autograd import forward_ad

    def jvp(v: Arrays) -> Any:
        if case.jit or len(tangents[0]) > 1:
            return torch.func.jvp(f, x, v)[1]
        with forward_ad.dual_level():
            return forward_ad.unpack_dual(f(*map(forward_ad.make_dual, x, v))).tangent

    return _over_seeds(torch, case, lambda v: (jvp(v).sum(-1) if workload.reduce else jvp(v),), tangents)


def _rows(
    torch: Any, case: Case, workload: Any, f: Callable[..., Any], x: Arrays, cotangents: Arrays
) -> Arrays:
    """Return rows by one VJP per seed, after one forward pass for all; added up where the outputs are."""
    rows = _over_seeds(torch, case, _pullback(torch, case, lambda *z: (f(*z),), x), cotangents)
    if not workload.reduce or len(cotangents[0]) == 1:
        return rows
    if case.batch == "whole":
        return tuple(row.reshape(case.points, -1, *row.shape[1:]).sum(1) for row in rows)
    return tuple(row.sum(0) for row in rows)


def _pullback(torch: Any, case: Case, f: Callable[..., Arrays], x: Arrays) -> LinearMap:
    """Return the map from cotangents of f(x) to cotangents of x."""
    if case.jit:
        return torch.func.vjp(f, *x)[1]
    y = f(*x)
    return lambda v: torch.autograd.grad(y, x, v, retain_graph=True)


def _hessian(torch: Any, case: Case, f: Callable[..., Any], x: Arrays, tangents: Arrays) -> LinearMap:
    """Return the map from a seed to a column of the Hessian of each point, in one array or one for each
    input.
    """
    every = tuple(range(len(x)))
    total = lambda *z: f(*z).sum()  # noqa: E731 points do not mix, so this has the gradients of all

    def rev_over_rev() -> LinearMap:
        eager = lambda *z: torch.autograd.grad(total(*z), z, create_graph=True)  # noqa: E731
        return _pullback(torch, case, torch.func.grad(total, every) if case.jit else eager, x)

    def gradient(*z: Any) -> Any:  # in forward mode: a JVP for each input
        columns = _over_seeds(torch, case, lambda u: (torch.func.jvp(f, z, u)[1],), tangents)[0]
        return columns.movedim(0, -1) if len(tangents[0]) > 1 else columns

    maps: dict[str, Callable[[], LinearMap]] = {
        "rev_over_rev": rev_over_rev,
        "fwd_over_rev": lambda: lambda v: torch.func.jvp(torch.func.grad(total, every), x, v)[1],
        "rev_over_fwd": lambda: (
            lambda v: torch.func.grad(lambda *z: torch.func.jvp(total, z, v)[1], every)(*x)
        ),
        "fwd_over_fwd": lambda: lambda v: (torch.func.jvp(gradient, x, v)[1],),
    }
    return maps[case.mode]()
