"""Workload `ceiling`: the peak benchmarks of a machine, functions such as copy, matmul and all-reduce.

The functions measure the peak FLOP/s, the peak bandwidth and the least dispatch latency, which limit the
performance of all other workloads. They are not differentiated. A point (batch element) is a vector of k
elements, or a k x k matrix for `matmul` and `transpose`. The targets are:

    copy            negate each element, for arrays that are larger than the caches
    matmul          multiply each matrix by a shared matrix
    transcendental  for each element x, sum exp(-x j / terms) over j = 1 ... terms
    arithmetic      for each element x, sum (x + j / terms) (x - j / terms) over j
    division        for each element x, sum 1 / (x + j / terms) over j
    reduction       sum the k elements
    transpose       transpose each matrix
    all_reduce      sum over all points of all devices, on every device
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

from scaling.core.case import FLOORS, PEAKS, Case
from scaling.core.workload import Inputs, InputSpec, Reference, Workload, uniform

TARGETS = VALUE = (*PEAKS, *FLOORS)
SIZES = {"k": 1, "terms": 1}

# Functions of an element x, a fraction s in (0, 1] and the array library. The terms of a sum are independent,
# so that a core computes several of them at a time. A chain of dependent terms would measure the latency.
_TERM: dict[str | None, Callable[..., Any]] = {
    "transcendental": lambda x, s, xp: xp.exp(-s * x),
    "arithmetic": lambda x, s, _: (x + s) * (x - s),
    "division": lambda x, s, _: 1 / (x + s),
}


def _sum_terms(target, terms, x, xp=jnp):
    """Return the sum of the terms of a target, such as "division", for each element of the array x.

    `terms` is the number of terms, and `xp` is the array library, NumPy or jax.numpy.
    """
    return sum(_TERM[target](x, j / terms, xp) for j in range(1, terms + 1))


def _sum_over_points(x):
    """Return the sum of x over the points of all devices, repeated for each point of this device.

    x has the shape (points of this device, k), and so does the result. If each device has one point, the
    function is an all-reduce without other work.
    """
    from scaling.core.layout import POINTS

    return jnp.broadcast_to(jax.lax.psum(x.sum(axis=0), POINTS), x.shape)


def _reference_from_values(function: Callable[..., np.ndarray]) -> Callable[[Inputs], Reference]:
    """Return a function from a dict of inputs to a `Reference` with values and an empty derivative.

    `function` returns the values, an array of shape (points, ...). It takes the inputs as keyword arguments.
    """

    def reference(inputs: Inputs) -> Reference:
        value = function(**inputs)
        return Reference(value.reshape(len(value), -1), np.empty(0))

    return reference


def workload(case: Case) -> Workload:
    """Return the `Workload` of the benchmark named by `case.target`, such as "copy"."""
    k, terms = case.sizes["k"], case.sizes["terms"]
    vector, matrix = {"x": uniform(k)}, {"x": uniform(k, k)}
    if case.target == "matmul":
        # All terms are positive. The coarser rounding of the factors or of the result does not accumulate.
        rounded_terms = 1 if case.dtype == "bfloat16" else 16 if case.precision != "highest" else k
        product = lambda x, w: x @ w  # noqa: E731
        reference = _reference_from_values(product)
        return Workload(product, matrix, {"w": uniform(k, k)}, reference=reference, terms=rounded_terms)
    if case.target in _TERM:
        function = functools.partial(_sum_terms, case.target, terms)
        reference = _reference_from_values(functools.partial(function, xp=np))
        return Workload(function, vector, reference=reference, terms=terms)
    if case.target == "reduction":
        reference = _reference_from_values(lambda x: x.sum(axis=1))
        return Workload(lambda x: x.sum(), vector, reference=reference, terms=k)
    if case.target == "transpose":
        return Workload(lambda x: x.T, matrix, reference=_reference_from_values(lambda x: x.swapaxes(1, 2)))
    if case.target in ("all_reduce", "collective"):
        # All points are equal, so that the reference can compute the sum over all points from some of them.
        equal_rows = InputSpec((k,), lambda _, rows: np.tile(np.linspace(0.5, 1.0, k), (len(rows), 1)))
        total = lambda x: x * case.points  # noqa: E731
        return Workload(
            total,
            {"x": equal_rows},
            whole_modes={"value": _sum_over_points},
            reference=_reference_from_values(total),
            terms=case.points,
        )
    return Workload(lambda x: -x, vector, reference=_reference_from_values(lambda x: -x))
