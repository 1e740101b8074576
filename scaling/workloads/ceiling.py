"""The peaks of a machine and its dispatch latency, measured in the same way as cases.

One point is k numbers; for `matmul` it is a matrix of k by k.

    copy            each number with its sign changed: many more numbers than fit into the caches
    matmul          each point times a matrix that all share
    transcendental  for each number x, the sum of exp(-x j / terms) over j = 1 ... terms
    arithmetic      the same of (x + j / terms) (x - j / terms)
    division        the same of 1 / (x + j / terms)
    reduction       the sum of the k numbers
    transpose       of a matrix of k by k
    all_reduce      the sum over all points, on every device
    call            `copy` of a few numbers: a floor
    collective      `all_reduce` of a few numbers: a floor

Source of the idea: S. Williams, A. Waterman, D. Patterson, "Roofline", Communications of the ACM 52(4), 2009.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from scaling.core.case import FLOORS, PEAKS, Case
from scaling.core.workload import InputSpec, Reference, Workload, uniform

TARGETS = VALUE = (*PEAKS, *FLOORS)
SIZES = {"k": 1, "terms": 1}

# Functions of a number x, a share s in (0, 1] and the array library. The terms of a sum are independent of
# each other, so that a core works on several at once; a chain of terms would measure their latency.
_TERM: dict[str | None, Callable[..., Any]] = {
    "transcendental": lambda x, s, xp: xp.exp(-s * x),
    "arithmetic": lambda x, s, _: (x + s) * (x - s),
    "division": lambda x, s, _: 1 / (x + s),
}


def _added(target, terms, x, xp=jnp):
    """Return the sum over terms of a function of _TERM."""
    return sum(_TERM[target](x, j / terms, xp) for j in range(1, terms + 1))


def _sum_over_points(x):
    """Return the sum over the points of all devices; with one point a device, an all-reduce and nothing
    else.
    """
    from scaling.core.layout import POINTS

    return jnp.broadcast_to(jax.lax.psum(x.sum(axis=0), POINTS), x.shape)


def _value(value: np.ndarray) -> Reference:
    return Reference(value.reshape(len(value), -1), np.empty(0))  # never differentiated


def workload(case: Case) -> Workload:
    """Return the peak, or the dispatch latency, that the target of a case names."""
    k, terms, x = case.sizes["k"], case.sizes["terms"], {"x": uniform(case.sizes["k"])}
    if case.target == "matmul":
        # All terms are positive: coarser roundings of the factors or of the result do not add up.
        added = 1 if case.dtype == "bfloat16" else 16 if case.precision != "highest" else k
        product = lambda inputs: _value(inputs["x"] @ inputs["w"])  # noqa: E731
        return Workload(
            lambda x, w: x @ w, {"x": uniform(k, k)}, {"w": uniform(k, k)}, reference=product, terms=added
        )
    if case.target in _TERM:
        function = functools.partial(_added, case.target, terms)
        return Workload(function, x, reference=lambda inputs: _value(function(inputs["x"], np)), terms=terms)
    if case.target == "reduction":
        return Workload(
            lambda x: x.sum(), x, reference=lambda inputs: _value(inputs["x"].sum(axis=1)), terms=k
        )
    if case.target == "transpose":
        turned = lambda inputs: _value(inputs["x"].swapaxes(1, 2))  # noqa: E731
        return Workload(lambda x: x.T, {"x": uniform(k, k)}, reference=turned)
    if case.target in ("all_reduce", "collective"):
        # All points are the same row, so that the reference, which gets some of them, has the sum over all.
        same = InputSpec((k,), lambda _, rows: np.tile(np.linspace(0.5, 1.0, k), (len(rows), 1)))
        total, whole = lambda x: x * case.points, {"value": _sum_over_points}
        return Workload(
            total,
            {"x": same},
            whole_modes=whole,
            reference=lambda i: _value(total(i["x"])),
            terms=case.points,
        )
    return Workload(lambda x: -x, x, reference=lambda inputs: _value(-inputs["x"]))
