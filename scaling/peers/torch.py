"""Run cases with PyTorch on the CPU: derivatives by torch.func and torch.autograd, compiled by torch.compile.

JVPs are computed with `torch.func.jvp`, and VJPs with `torch.autograd.grad`. The function takes the whole
batch with a leading axis of points. Therefore vmap is used over seeds only, and not at all for a single seed.
The result is that of vmap(jacfwd(f)) or vmap(jacrev(f)), but most computations take only 0.4 to 0.9 times as
long. `chunk` is the chunk_size of the vmap.

With `jit: false`, PyTorch runs eagerly. With `jit: true`, `torch.compile` compiles the derivative. Reverse
mode then uses `torch.func.vjp`, because `torch.compile` does not support `torch.autograd.grad`.
`compile_seconds` is the time of the first call. It does not include the initialization of the compiler. The
caches of the compiler are disabled.
"""

import importlib
import shutil
import sysconfig
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from scaling.core.case import Case
from scaling.core.modes import COTANGENT
from scaling.peers import formulas
from scaling.peers.formulas import Batch
from scaling.peers.interface import Prepared

PACKAGES = ("torch",)
THREADS = True
COMPILES = True
MODES = ("value", "jacfwd", "jacrev", "grad_of_sum")

Tensors = tuple[Any, ...]


def reason_to_skip(case: Case, workload: Any, sizes: Any) -> str | None:
    """Return why PyTorch cannot run a case, such as a missing C++ compiler, or None if it can."""
    has_compiler = any(shutil.which(name) for name in ("g++", "c++", "clang++"))
    has_headers = Path(sysconfig.get_paths()["include"], "Python.h").exists()
    return formulas.reason_to_skip(
        case, MODES,
        (case.jit and not has_compiler,
         "torch.compile needs a C++ compiler, g++, c++ or clang++, on the PATH; jit=false needs none"),
        (case.jit and not has_headers,
         "torch.compile needs Python's headers (Debian: python3-dev); jit=false needs none"),
    )  # fmt: skip


def prepare(case: Case, workload: Any, sizes: Any, arrays: dict[str, np.ndarray], threads: int) -> Prepared:
    """Return the functions that compute the value or derivative of a case with PyTorch on `threads` cores."""
    import torch

    torch.set_num_threads(threads)
    if torch.get_num_interop_threads() != 1:  # it can be set only once in a process
        torch.set_num_interop_threads(1)
    torch.set_float32_matmul_precision("highest")
    dtype = getattr(torch, case.dtype)
    # torch cannot read bfloat16 from NumPy. Integers are cast as well, because their gammaln is float32.
    tensors = {name: torch.from_numpy(x.astype(np.float64)).to(dtype) for name, x in arrays.items()}
    batch = formulas.make_batch(case, workload, sizes, tensors, torch, torch.special.gammaln)
    needs_graph = case.ad_mode.seed == COTANGENT and not case.jit
    x = tuple(tensor.detach().requires_grad_(needs_graph) for tensor in batch.x)
    derivative, seconds = _make_derivative(torch, batch, x), None
    if case.jit:
        derivative, seconds = _compile(torch, derivative, x)

    def collect(result: Tensors) -> np.ndarray:
        parts = [part.detach().to(torch.promote_types(part.dtype, torch.float32)).numpy() for part in result]
        if case.ad_mode.is_value:
            return parts[0]
        return batch.collect(part[None] for part in parts) if sizes.seeds == 1 else batch.collect(parts)

    return Prepared(lambda: derivative(*x), collect, seconds, sizes.passes or None)


def _compile(
    torch: Any, derivative: Callable[..., Tensors], x: Tensors
) -> tuple[Callable[..., Tensors], float]:
    """Compile `derivative` with `torch.compile`, and return the compiled function and the compile time.

    The compile time, in seconds, is the time of the first call, with the arguments `x`.
    """
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


def _make_derivative(torch: Any, batch: Batch, x: Tensors) -> Callable[..., Tensors]:
    """Return a function of the inputs that computes a case and returns a tuple of tensors.

    mode=value      one tensor: the value
    forward mode    one tensor: a column of the Jacobian for each seed
    reverse mode    one tensor for each input: a row of the Jacobian for each seed

    Several columns or rows are stacked along a leading axis.
    """
    # The seeds are created here. A compiled function that creates seeds takes up to thirty times as long.
    mode = batch.case.ad_mode
    if mode.is_value:
        return lambda *x: (batch.function(*x),)
    if mode.seed == COTANGENT:
        y = batch.function(*x).detach()
        ones = (torch.ones_like(y)[None],)
        cotangents = ones if mode.single_seed else _unit_seeds(torch, (y,), [batch.points_per_cotangent])
        return lambda *x: _rows(torch, batch, x, cotangents)
    tangents = _unit_seeds(torch, x, [batch.points_per_tangent(index) for index in range(len(x))])
    return lambda *x: _columns(torch, batch, x, tangents)


def _unit_seeds(torch: Any, like: Tensors, parts: list[int]) -> Tensors:
    """Return all seeds (tangents or cotangents), as one tensor for each tensor in `like`.

    Tensor i has the shape (seeds, *like[i].shape). `like[i]` consists of `parts[i]` parts of equal size, for
    example one for each point. Each seed belongs to one tensor and one position. It is 1 at this position in
    every part of the tensor, and 0 elsewhere.
    """
    sizes = [a.numel() // points for a, points in zip(like, parts, strict=True)]
    all_seeds = torch.eye(sum(sizes), dtype=like[0].dtype).split(sizes, dim=1)
    return tuple(
        seeds[:, None].expand(-1, points, -1).reshape(len(seeds), *a.shape)
        for seeds, a, points in zip(all_seeds, like, parts, strict=True)
    )


def _map_seeds(torch: Any, case: Case, linear_map: Callable[[Tensors], Tensors], seeds: Tensors) -> Tensors:
    """Return the results of a linear map, such as a JVP, for all seeds (unit vectors).

    If there are several seeds, the map is vectorized with vmap, and the results have a leading axis of seeds.
    """
    if len(seeds[0]) == 1:
        return linear_map(tuple(seed[0].contiguous() for seed in seeds))
    return torch.func.vmap(linear_map, chunk_size=case.chunk)(seeds)


def _columns(torch: Any, batch: Batch, x: Tensors, tangents: Tensors) -> Tensors:
    """Return the columns of the Jacobian, one for each tangent, as a tuple of one tensor.

    If the workload has reduce="outputs", each column is summed over the outputs of a point.
    """
    from torch.autograd import forward_ad

    def jvp(v: Tensors) -> Any:
        if batch.case.jit or len(tangents[0]) > 1:
            return torch.func.jvp(batch.function, x, v)[1]
        with forward_ad.dual_level():  # takes 0.7 times as long as torch.func
            return forward_ad.unpack_dual(batch.function(*map(forward_ad.make_dual, x, v))).tangent

    def column(v: Tensors) -> Tensors:
        return (jvp(v).sum(-1) if batch.workload.reduce else jvp(v),)

    return _map_seeds(torch, batch.case, column, tangents)


def _rows(torch: Any, batch: Batch, x: Tensors, cotangents: Tensors) -> Tensors:
    """Return the rows of the Jacobian with respect to each input, as one tensor for each input.

    If the workload has reduce="outputs", the rows are summed over the outputs of a point. Otherwise, there is
    one row for each cotangent.
    """
    case = batch.case
    if case.jit:
        pullback = torch.func.vjp(lambda *z: (batch.function(*z),), *x)[1]
    else:
        y = batch.function(*x)
        pullback = lambda v: torch.autograd.grad((y,), x, v, retain_graph=True)  # noqa: E731
    rows = _map_seeds(torch, case, pullback, cotangents)
    if not batch.workload.reduce or len(cotangents[0]) == 1:
        return rows
    outputs = batch.sizes.outputs  # of a point, whose rows are consecutive
    return tuple(row.reshape(-1, outputs, *row.shape[1:]).sum(1) for row in rows)
