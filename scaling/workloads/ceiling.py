"""Define the workload `ceiling`: benchmarks that measure a machine (copy, matmul, all-reduce, latency, ...).

The benchmarks measure the peak FLOP/s, the peak bandwidth and the minimum latency. These limit the
performance of all other workloads. The functions are not differentiated. A point (batch element) is a vector
of k elements, or a k x k matrix for `matmul` and `transpose`. The targets are:

    copy            add 1 to each element of an array that is larger than the caches
    matmul          multiply each matrix by a shared matrix
    transcendental  for each element x, sum exp(-x j / terms) over j = 1, ..., terms
    arithmetic      for each element x, sum (x + j / terms) (x + j / terms + 1) over the same j
    division        for each element x, sum 1 / (x + j / terms) over the same j
    reduction       sum the k elements of each vector
    transpose       transpose each matrix
    all_reduce      sum over the points of all devices, with the result on every device
    call            `copy` of a few elements, which measures the dispatch latency
    collective      `all_reduce` of a few elements, which measures the latency of a collective

Source: S. Williams, A. Waterman, D. Patterson, "Roofline", Communications of the ACM 52(4), 2009.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from scaling.core.case import FLOORS, PEAKS, POINTS, Case
from scaling.core.workload import Inputs, InputSpec, Reference, Workload, uniform

TARGETS = VALUE = (*PEAKS, *FLOORS)
SIZES = {"k": 1, "terms": 1}

# Functions of an element x and a fraction s in (0, 1]. The terms of a sum are independent, so that a core
# computes several of them at a time. A chain of dependent terms would measure the latency. All terms are
# positive: if they cancelled in some of the 500 million elements, their check would take minutes.
_TERM: dict[str | None, Callable[..., Any]] = {
    "transcendental": lambda x, s: x.__array_namespace__().exp(-s * x),
    "arithmetic": lambda x, s: (x + s) * (x + (s + 1)),
    "division": lambda x, s: 1 / (x + s),
}


def _sum_terms(target, terms, x):
    """Return the sum of `_TERM[target](x, j / terms)` over j = 1, ..., `terms`, for each element of x."""
    return sum(_TERM[target](x, j / terms) for j in range(1, terms + 1))


def _sum_over_points(x):
    """Return the sum of x over the points of all devices, broadcast to the shape of x."""
    return jnp.broadcast_to(jax.lax.psum(x.sum(axis=0), POINTS), x.shape)


def workload(case: Case) -> Workload:
    """Return the `Workload` of the benchmark that `case.target` names, such as "copy"."""
    k, terms, points, target = case.sizes["k"], case.sizes["terms"], case.points, case.target
    # All terms of a matrix product are positive. Coarser rounding of factors or results does not accumulate.
    product_terms = k if case.precision == "highest" else 16
    product_terms = 1 if case.dtype == "bfloat16" else product_terms
    # The latency benchmarks are a copy and an all-reduce of a few elements.
    computation = {"call": "copy", "collective": "all_reduce"}.get(target or "", target)
    # Name -> (function of NumPy or JAX arrays, number of terms in its longest sum)
    functions: dict[str | None, tuple[Callable[..., Any], int]] = {
        # On a CPU, XLA compiles a single operation without a constant, such as -x, to a slower loop.
        "copy": (lambda x: x + 1, 1),
        "matmul": (lambda x, w: x @ w, product_terms),
        "reduction": (lambda x: x.sum(axis=-1), k),
        "transpose": (lambda x: x.swapaxes(-1, -2), 1),
        "all_reduce": (lambda x: x * points, points),
        **{name: (functools.partial(_sum_terms, name, terms), terms) for name in _TERM},
    }
    function, longest_sum = functions[computation]
    x = uniform(k, k) if target in ("matmul", "transpose") else uniform(k)
    if computation == "all_reduce":
        # All points are equal, so that the reference can sum them without having them all.
        x = InputSpec((k,), lambda _, rows: np.tile(np.linspace(0.5, 1.0, k), (len(rows), 1)))

    def reference(inputs: Inputs) -> Reference:
        value = function(**inputs)
        return Reference(value.reshape(len(value), -1), np.empty(0))

    return Workload(
        function,
        points={"x": x},
        shared={"w": uniform(k, k)} if target == "matmul" else {},
        whole_modes={"value": _sum_over_points} if computation == "all_reduce" else {},
        reference=reference,
        terms=longest_sum,
    )
